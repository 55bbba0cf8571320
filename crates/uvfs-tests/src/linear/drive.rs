//! Runs threads on a directory and records their calls and answers.
//!
//! While they run, threads share only the directory. Times come from the monotonic clock, because
//! a shared counter would order the threads more than the directory does.

use std::sync::Barrier;
use std::time::Instant;

use anyhow::{Result, bail};
use fastrand::Rng;

use super::{Directory, Event, IDS, LinearCall, LinearNames, NAMES, Verdict, check};

/// The size of a round.
#[derive(Clone, Copy, Debug)]
pub struct DriveShape {
    /// Threads.
    pub threads: usize,
    /// Operations per thread and round; there must be at least `threads * ops` identities.
    pub ops: usize,
    /// Whether hard links are made. On a FUSE mount the kernel can take a file with several links for a removed one.
    /// It counts links down itself after an unlink, also if a stat in between has brought the server's new count. It
    /// then refuses to link the file again (ENOENT).
    pub links: bool,
}

impl DriveShape {
    /// Whether there are enough identities for every operation to be a creation.
    pub fn fits(&self) -> bool {
        self.threads > 0 && self.threads * self.ops <= usize::from(IDS)
    }
}

fn random_call(rng: &mut Rng, id: u16, links: bool) -> LinearCall {
    let (a, b) = (rng.usize(..NAMES), rng.usize(..NAMES));
    match rng.u32(..16) {
        0..=2 => LinearCall::Create(a, id),
        3 => LinearCall::Unlink(a),
        4..=6 => LinearCall::Rename(a, b),
        7 => LinearCall::RenameNoReplace(a, b),
        8..=9 => LinearCall::Exchange(a, b),
        10 if links => LinearCall::Link(a, b),
        _ => LinearCall::Stat(a),
    }
}

/// One round: random operations by several threads; then one thread looks at every name.
pub fn round(dir: &dyn Directory, shape: DriveShape, seed: u64) -> Vec<Event> {
    let clock = Instant::now();
    let now = || clock.elapsed().as_nanos() as u64;
    let barrier = Barrier::new(shape.threads);
    let work = |thread: usize| {
        let mut rng = Rng::with_seed(seed.wrapping_mul(31).wrapping_add(thread as u64));
        let calls: Vec<LinearCall> = (0..shape.ops)
            .map(|i| random_call(&mut rng, (thread * shape.ops + i + 1) as u16, shape.links))
            .collect();
        let mut events = Vec::with_capacity(shape.ops);
        barrier.wait();
        for call in calls {
            let start = now();
            let reply = dir.call(call);
            events.push(Event { thread, call, reply, start, end: now() });
        }
        events
    };
    let mut events: Vec<Event> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..shape.threads).map(|t| scope.spawn(move || work(t))).collect();
        threads
            .into_iter()
            .flat_map(|t| t.join().expect("a thread panicked; its message stands above"))
            .collect()
    });
    for name in 0..NAMES {
        let start = now();
        let reply = dir.call(LinearCall::Stat(name));
        events.push(Event { thread: shape.threads, call: LinearCall::Stat(name), reply, start, end: now() });
    }
    events
}

/// Runs rounds from `seed` on, each from an empty directory, until one has no order or `enough`
/// says so. Returns the number of rounds.
pub fn drive(
    dir: &dyn Directory,
    shape: DriveShape,
    seed: u64,
    mut enough: impl FnMut(u64) -> bool,
) -> Result<u64> {
    if !shape.fits() {
        bail!("{} threads of {} operations need more than {IDS} identities", shape.threads, shape.ops);
    }
    let mut done = 0;
    while !enough(done) {
        for name in 0..NAMES {
            // ENOENT is fine: the names only have to be gone.
            let _ = dir.call(LinearCall::Unlink(name));
        }
        let events = round(dir, shape, seed + done);
        if let Verdict::Impossible { event } = check(LinearNames::default(), &events) {
            bail!("round of seed {} has no order; not explained: {}", seed + done, report(&events, event));
        }
        done += 1;
    }
    Ok(done)
}

/// The event that no order explains and what ran around it.
fn report(events: &[Event], at: usize) -> String {
    let mut sorted: Vec<(usize, &Event)> = events.iter().enumerate().collect();
    sorted.sort_by_key(|(_, e)| e.start);
    let place = sorted.iter().position(|(i, _)| *i == at).unwrap_or(0);
    let line = |(i, e): &(usize, &Event)| {
        let mark = if *i == at { ">>" } else { "  " };
        format!("{mark} thread {} {:9}..{:9} {:?} = {:?}", e.thread, e.start, e.end, e.call, e.reply)
    };
    let range = place.saturating_sub(20)..(place + 8).min(sorted.len());
    let lines: Vec<String> = sorted[range].iter().map(line).collect();
    format!("event {at}\n{}", lines.join("\n"))
}
