//! A process that enters a sandbox after it has registered for membarrier(2).

mod seccomp;

use std::time::{Duration, Instant};

use uvfs_sync::barrier;

/// As `barrier` has it: what every processor had begun to store is there after that.
const DRAIN: Duration = Duration::from_millis(20);

#[test]
fn every_heavy_barrier_outlasts_the_light_ones_that_did_not_fence() {
    barrier::prepare();
    if barrier::fallback() || !seccomp::refuse_membarrier() {
        println!("skipped: no membarrier(2) to take away, or no seccomp(2)");
        return;
    }
    let first = std::thread::spawn(barrier::heavy);
    // The first one has found out, and waits; a light barrier may have been without a fence until this moment.
    let mut not_yet = Instant::now();
    loop {
        let now = Instant::now();
        if barrier::fallback() {
            break;
        }
        not_yet = now;
    }
    barrier::heavy();
    assert!(
        not_yet.elapsed() >= DRAIN,
        "a second heavy barrier went on before the first one's wait was over"
    );
    first.join().unwrap();
    // Now light barriers fence, and nobody waits.
    let began = Instant::now();
    (0..100).for_each(|_| barrier::heavy());
    assert!(began.elapsed() < DRAIN * 100);
    seccomp::semaphore_works_and_says_so();
}
