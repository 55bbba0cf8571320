//! A process that was never allowed membarrier(2).

mod seccomp;

use uvfs_sync::barrier;

#[test]
fn both_sides_fence_where_membarrier_is_refused() {
    assert!(barrier::fallback(), "nobody has asked yet");
    if !seccomp::refuse_membarrier() {
        println!("skipped: no seccomp(2) here");
        return;
    }
    barrier::prepare();
    assert!(barrier::fallback());
    seccomp::semaphore_works_and_says_so();
}
