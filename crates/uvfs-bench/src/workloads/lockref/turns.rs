//! The turns: pairs of all threads, and the lock taken by the first of them.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::Result;
use clap::ValueEnum;
use parking_lot::Mutex;
use uvfs_sync::lockref::LockRef;

use super::objects::{Line, Object, own};
use crate::arms::lockref::diverted;
use crate::harness::{Arm, Worker, WorkerSeat};

/// Pairs of a batch: few, so that a batch ends even if the arm has degraded to a few hundred operations a second.
const GRAIN: u64 = 64;

/// When the lock is taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum Locker {
    /// Once in a turn: afterwards nothing but references.
    Once,
    /// At intervals.
    Often,
}

/// How often the lock is taken, and for how long.
#[derive(Clone, Copy)]
pub(super) struct Pace {
    pub(super) locker: Locker,
    pub(super) hold: Duration,
    /// Time before each hold; none: the lock is not taken.
    pub(super) every: Duration,
}

/// An arm.
pub(super) struct Shared<O> {
    name: &'static str,
    pace: Pace,
    object: O,
    began: Instant,
    /// When the lock was first released in this turn, in nanoseconds since `began`; 0: not yet.
    released: AtomicU64,
    /// By the number of threads: an arm serves turns of each width, and rates of one and of two do not compare.
    halves: Mutex<BTreeMap<usize, Halves>>,
}

impl<O: Object> Shared<O> {
    pub(super) fn new(name: &'static str, pace: Pace, object: O) -> Self {
        let halves = Mutex::default();
        Self { name, pace, object, began: Instant::now(), released: AtomicU64::new(0), halves }
    }

    fn now(&self) -> u64 {
        self.began.elapsed().as_nanos() as u64
    }
}

/// Pairs of some threads, and the threads' time.
#[derive(Clone, Copy, Default)]
struct Part {
    pairs: u64,
    nanos: u64,
}

impl Part {
    fn add(&mut self, other: Self) {
        self.pairs += other.pairs;
        self.nanos += other.nanos;
    }

    /// Million pairs of one thread in a second.
    fn rate(self) -> f64 {
        self.pairs as f64 * 1e3 / self.nanos.max(1) as f64
    }
}

/// Before and after the one hold.
#[derive(Clone, Copy, Default)]
struct Halves {
    before: Part,
    after: Part,
    /// Gets and puts that took the lock after the release.
    diverted: u64,
    /// Nanoseconds from the release to the last of them, the longest of all turns.
    last: u64,
}

impl Halves {
    fn add(&mut self, other: Self) {
        self.before.add(other.before);
        self.after.add(other.after);
        self.diverted += other.diverted;
        self.last = self.last.max(other.last);
    }

    /// `None`: the lock was not taken, or not in a turn that went on after it.
    fn sentence(&self, threads: usize) -> Option<String> {
        let Self { before, after, diverted, last } = *self;
        (after.pairs != 0).then(|| {
            format!(
                "{threads} threads: each made {:.2} M/s before the hold and {:.2} after it; after it {diverted} gets and \
                 puts took the lock, the last one {:.1} µs after the release",
                before.rate(),
                after.rate(),
                last as f64 / 1e3
            )
        })
    }
}

impl<O: Object> Arm for Shared<O> {
    fn name(&self) -> &str {
        self.name
    }

    fn check(&self) -> Result<()> {
        let own = own();
        self.object.pairs(&own.0, 10)?;
        self.object.hold(&|| ());
        self.object.pairs(&own.0, 10)
    }

    fn prepare(&self, _variant: usize, _workers: usize) -> Result<()> {
        self.released.store(0, Ordering::Relaxed);
        Ok(())
    }

    fn worker<'a>(&'a self, _variant: usize, seat: WorkerSeat) -> Result<Box<dyn Worker + 'a>> {
        let next = (seat.index == 0 && !self.pace.every.is_zero()).then(|| Instant::now() + self.pace.every);
        Ok(Box::new(Pairs {
            arm: self,
            threads: seat.of,
            own: own(),
            next,
            seen: None,
            halves: Halves::default(),
        }))
    }

    fn grain(&self, _variant: usize) -> Option<u64> {
        Some(GRAIN)
    }

    fn remark(&self) -> Option<String> {
        let halves = self.halves.lock();
        let halves = halves.iter().filter_map(|(threads, halves)| halves.sentence(*threads));
        let all: Vec<_> = self.object.remark().into_iter().chain(halves).collect();
        (!all.is_empty()).then(|| all.join("; "))
    }
}

struct Pairs<'a, O: Object> {
    arm: &'a Shared<O>,
    /// Threads of this turn.
    threads: usize,
    own: Box<Line<LockRef>>,
    /// When this thread next takes the lock, if it is the thread that does.
    next: Option<Instant>,
    /// When the last batch ended.
    seen: Option<u64>,
    halves: Halves,
}

impl<O: Object> Pairs<'_, O> {
    fn hold(&mut self) {
        let pace = self.arm.pace;
        self.arm.object.hold(&|| {
            let began = Instant::now();
            while began.elapsed() < pace.hold {
                std::hint::spin_loop();
            }
        });
        self.arm.released.store(self.arm.now(), Ordering::Relaxed);
        self.next = (pace.locker == Locker::Often).then(|| Instant::now() + pace.every);
    }

    /// Enters a batch in its half of the turn. The one in which the lock was released counts as after it.
    fn enter(&mut self, pairs: u64, diverted: u64) {
        let (now, released) = (self.arm.now(), self.arm.released.load(Ordering::Relaxed));
        let part = Part { pairs, nanos: now - self.seen.unwrap_or(now) };
        if released == 0 {
            self.halves.before.add(part);
        } else {
            self.halves.after.add(part);
            self.halves.diverted += diverted;
            if diverted != 0 {
                self.halves.last = now.saturating_sub(released);
            }
        }
        self.seen = Some(now);
    }
}

impl<O: Object> Worker for Pairs<'_, O> {
    fn batch(&mut self, ops: u64) -> Result<()> {
        if self.next.is_some_and(|next| Instant::now() >= next) {
            self.hold();
        }
        if self.arm.pace.locker == Locker::Often {
            return self.arm.object.pairs(&self.own.0, ops);
        }
        let before = diverted();
        self.arm.object.pairs(&self.own.0, ops)?;
        self.enter(ops, diverted() - before);
        Ok(())
    }
}

impl<O: Object> Drop for Pairs<'_, O> {
    fn drop(&mut self) {
        self.arm.halves.lock().entry(self.threads).or_default().add(self.halves);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::arms::lockref::StockRef;
    use crate::workloads::lockref::objects::Locked;

    /// Batches until the lock has been taken and released, and two more. The batch of the hold counts as after it.
    fn turn(arm: &Shared<Locked<StockRef>>, of: usize) {
        arm.prepare(0, of).unwrap();
        let mut worker = arm.worker(0, WorkerSeat { index: 0, of }).unwrap();
        while arm.released.load(Ordering::Relaxed) == 0 {
            worker.batch(GRAIN).unwrap();
        }
        worker.batch(GRAIN).unwrap();
        worker.batch(GRAIN).unwrap();
    }

    #[test]
    fn one_hold_divides_the_turns_of_each_width() {
        let pace = Pace { locker: Locker::Once, hold: Duration::ZERO, every: Duration::from_millis(1) };
        let arm = Shared::new("stock", pace, Locked::<StockRef>::new());
        turn(&arm, 1);
        turn(&arm, 2);
        turn(&arm, 2);
        let halves = arm.halves.lock();
        let after: Vec<_> = halves.iter().map(|(threads, halves)| (*threads, halves.after.pairs)).collect();
        assert_eq!(after, [(1, 3 * GRAIN), (2, 6 * GRAIN)]);
        // Nobody else was there.
        assert!(halves.values().all(|halves| halves.before.pairs >= GRAIN && halves.diverted == 0));
        drop(halves);
        let said = arm.remark().unwrap();
        assert!(said.contains("1 threads: each made") && said.contains("2 threads: each made"), "{said}");
    }
}
