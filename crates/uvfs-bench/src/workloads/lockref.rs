//! `lockref`: all threads take and drop references, while one of them takes the lock at intervals.
//!
//! The subject is a lockref whose users are preempted in its fair queue. So it needs more threads than processors
//! (`--threads 8`), and no batch is dropped. The fall in the mail of Guzik ("vfs: move d_lockref out of the area used by
//! RCU lookup", June 2024) is another one: twenty running threads stay with the lock after it was taken once. Two
//! processors do not show it. `uvfs` is the caches' own lockref; `stock` and `patched` model the kernel's, with a ticket
//! lock ([`arms::lockref`](crate::arms::lockref)).
//!
//! The thread that takes the lock is a thread like the others and may be preempted while it holds the lock. A thread
//! that waits in the queue may be preempted too. Either happens about once in a hundred holds. So an arm that can
//! degrade needs a turn of seconds (`--seconds 10 --per-second`), or longer holds, to show it. Each turn begins anew.
//! Whether an arm degrades is judged round by round against `null`: with `--seconds 0.2` the five turns of a round are
//! one second.

use std::hint::black_box;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use clap::{Arg, ArgMatches, value_parser};
use serde_json::json;
use uvfs_sync::lockref::LockRef;

use crate::arms::lockref::{CountAndLock, QueueAtOnce, QueueLate, diverted};
use crate::harness::schedule::{Case, Params, Series};
use crate::harness::spread::Spread;
use crate::harness::{Arm, Worker, WorkerSeat};
use crate::workloads::target::RunTarget;
use crate::workloads::{Maker, Prepare, Workload};

/// Pairs of a batch: few, so that a batch ends even if the arm has degraded to a few hundred operations a second.
const GRAIN: u64 = 64;

/// The workload.
pub struct Lockref;

impl Workload for Lockref {
    fn name(&self) -> &'static str {
        "lockref"
    }

    fn about(&self) -> &'static str {
        "a reference taken and dropped by all threads; one of them takes the lock every so often"
    }

    fn arms(&self) -> Vec<&'static str> {
        vec!["null", "arc", "stock", "patched", "uvfs"]
    }

    fn args(&self) -> Vec<Arg> {
        let number = |name: &'static str, default, help| {
            Arg::new(name)
                .long(name)
                .value_name("N")
                .value_parser(value_parser!(u64).range(0..=1_000_000))
                .default_value(default)
                .help(help)
        };
        vec![
            number("hold-us", "20", "Microseconds for which the lock is held"),
            number("every-ms", "10", "Milliseconds between two holds; 0: the lock is not taken"),
        ]
    }

    fn cases<'w>(&'w self, matches: &ArgMatches) -> Result<Vec<Prepare<'w>>> {
        let number =
            |name: &str| matches.get_one::<u64>(name).copied().with_context(|| format!("--{name} is needed"));
        let (hold, every) = (number("hold-us")?, number("every-ms")?);
        let params =
            Params::from_iter([("hold_us".to_owned(), json!(hold)), ("every_ms".to_owned(), json!(every))]);
        let pace = Pace { hold: Duration::from_micros(hold), every: Duration::from_millis(every) };
        Ok(vec![Prepare { params, variants: vec![Params::new()], maker: Box::new(pace) }])
    }

    fn preemption_is_the_subject(&self) -> bool {
        true
    }

    fn has_targets(&self) -> bool {
        false
    }

    fn remarks(&self, case: &Case, series: &[Series]) -> Vec<String> {
        let find = |arm: &str, of: &Series| {
            series.iter().find(|s| s.width == of.width && case.arms[s.arm].name() == arm)
        };
        let remark = |s: &Series| {
            let least = least_of_first(&s.rates, &find("null", s)?.rates)?;
            let (arm, threads) = (case.arms[s.arm].name(), s.width.workers());
            Some(format!(
                "{arm}, {threads} threads: worst round over its first, both over null's: {least:.2}"
            ))
        };
        series.iter().filter(|s| case.arms[s.arm].name() != "null").filter_map(remark).collect()
    }
}

/// The least ratio of `a` over `b` in any round, over that of the first round.
fn least_of_first(a: &[Option<f64>], b: &[Option<f64>]) -> Option<f64> {
    let over: Vec<Option<f64>> = a.iter().zip(b).map(|(a, b)| Some((*a)? / (*b)?)).collect();
    let first = over.iter().flatten().next().copied()?;
    Some(Spread::of(over.into_iter().flatten())?.min / first)
}

/// How often the lock is taken, and for how long.
#[derive(Clone, Copy)]
struct Pace {
    hold: Duration,
    every: Duration,
}

impl Maker for Pace {
    fn arm(&self, name: &'static str, _threads: usize) -> Result<Box<dyn Arm>> {
        Ok(match name {
            "null" => Box::new(Shared { name, pace: *self, object: Private }),
            "arc" => Box::new(Shared { name, pace: *self, object: Counted(Arc::new(Line(0))) }),
            "stock" => Box::new(Shared { name, pace: *self, object: Locked::<QueueAtOnce>::new() }),
            "patched" => Box::new(Shared { name, pace: *self, object: Locked::<QueueLate>::new() }),
            "uvfs" => Box::new(Shared { name, pace: *self, object: Locked::<LockRef>::new() }),
            other => bail!("{other:?} is no arm"),
        })
    }

    fn target(&self, target: &RunTarget) -> Result<Box<dyn Arm>> {
        bail!("{target}: there are no system calls for references")
    }
}

/// The referenced object: the arms differ only in this.
trait Object: Send + Sync {
    /// One thread takes and drops a reference `pairs` times.
    fn pairs(&self, own: &LockRef, pairs: u64) -> Result<()>;

    /// Runs `while_held` with the lock held, if there is a lock.
    fn hold(&self, while_held: &dyn Fn());

    /// A remark for the report, after all rounds.
    fn remark(&self) -> Option<String> {
        None
    }
}

/// A cache line and its adjacent line, not shared with anything else.
#[repr(align(128))]
struct Line<T>(T);

fn pairs<P: CountAndLock>(refs: &P, pairs: u64) -> Result<()> {
    for _ in 0..pairs {
        ensure!(black_box(refs).get(), "a reference was refused");
        ensure!(!black_box(refs).put(), "a reference was lost");
    }
    Ok(())
}

/// Each thread has one of its own.
struct Private;

impl Object for Private {
    fn pairs(&self, own: &LockRef, n: u64) -> Result<()> {
        pairs(own, n)
    }

    fn hold(&self, while_held: &dyn Fn()) {
        while_held();
    }
}

struct Counted(Arc<Line<u64>>);

impl Object for Counted {
    fn pairs(&self, _own: &LockRef, n: u64) -> Result<()> {
        for _ in 0..n {
            drop(black_box(Arc::clone(black_box(&self.0))));
        }
        Ok(())
    }

    fn hold(&self, while_held: &dyn Fn()) {
        while_held();
    }
}

/// A lockref.
struct Locked<P> {
    refs: Line<P>,
    pairs: AtomicU64,
    diverted: AtomicU64,
}

impl<P: CountAndLock> Locked<P> {
    fn new() -> Self {
        Self { refs: Line(P::started()), pairs: AtomicU64::new(0), diverted: AtomicU64::new(0) }
    }
}

impl<P: CountAndLock> Object for Locked<P> {
    fn pairs(&self, _own: &LockRef, n: u64) -> Result<()> {
        let before = diverted();
        pairs(&self.refs.0, n)?;
        // Once per batch, the same for all arms of this kind.
        self.pairs.fetch_add(n, Ordering::Relaxed);
        self.diverted.fetch_add(diverted() - before, Ordering::Relaxed);
        Ok(())
    }

    fn hold(&self, while_held: &dyn Fn()) {
        self.refs.0.lock();
        while_held();
        self.refs.0.unlock();
    }

    fn remark(&self) -> Option<String> {
        let all = 2 * self.pairs.load(Ordering::Relaxed);
        let diverted = self.diverted.load(Ordering::Relaxed);
        let share = 100.0 * diverted as f64 / all.max(1) as f64;
        Some(format!("{diverted} of {all} gets and puts took the lock ({share:.3}%)"))
    }
}

struct Shared<O> {
    name: &'static str,
    pace: Pace,
    object: O,
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

    fn worker<'a>(&'a self, _variant: usize, seat: WorkerSeat) -> Result<Box<dyn Worker + 'a>> {
        let next = (seat.index == 0 && !self.pace.every.is_zero()).then(|| Instant::now() + self.pace.every);
        Ok(Box::new(Pairs { object: &self.object, own: own(), pace: self.pace, next }))
    }

    fn grain(&self, _variant: usize) -> Option<u64> {
        Some(GRAIN)
    }

    fn remark(&self) -> Option<String> {
        self.object.remark()
    }
}

fn own() -> Box<Line<LockRef>> {
    Box::new(Line(LockRef::started()))
}

struct Pairs<'a, O> {
    object: &'a O,
    own: Box<Line<LockRef>>,
    pace: Pace,
    /// When this thread next takes the lock, if it is the thread that does.
    next: Option<Instant>,
}

impl<O: Object> Worker for Pairs<'_, O> {
    fn batch(&mut self, ops: u64) -> Result<()> {
        if self.next.is_some_and(|next| Instant::now() >= next) {
            self.object.hold(&|| {
                let began = Instant::now();
                while began.elapsed() < self.pace.hold {
                    std::hint::spin_loop();
                }
            });
            self.next = Some(Instant::now() + self.pace.every);
        }
        self.object.pairs(&self.own.0, ops)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_round_that_was_slow_for_all_is_no_degradation() {
        let rates = |v: [f64; 3]| v.map(Some).to_vec();
        let least = |a, b| least_of_first(&rates(a), &rates(b)).unwrap();
        assert_eq!(least([8.0, 4.0, 8.0], [16.0, 8.0, 16.0]), 1.0);
        assert_eq!(least([8.0, 8.0, 2.0], [16.0, 16.0, 16.0]), 0.25);
        assert_eq!(least_of_first(&[None, Some(2.0), Some(1.0)], &rates([1.0, 1.0, 1.0])), Some(0.5));
        assert_eq!(least_of_first(&[None], &[None]), None);
    }
}
