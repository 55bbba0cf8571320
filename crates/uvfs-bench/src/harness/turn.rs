//! One turn: one arm, on a number of threads, for a length of time.
//!
//! Threads are created for the turn and pinned. A barrier lets them begin together, and each reads the clock to
//! know when to end. The first error of a worker ends the turn for all.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Barrier, OnceLock};
use std::time::{Duration, Instant};

use anyhow::{Result, anyhow};

use crate::harness::batch::{Batch, GRAIN, preemptions};
use crate::harness::{Arm, Companion, Worker, WorkerSeat, pin};

/// The parameters of one turn.
#[derive(Clone, Copy, Debug)]
pub struct TurnPlan<'a> {
    /// Which variant of the case.
    pub variant: usize,
    /// Threads.
    pub threads: usize,
    /// Length of the turn.
    pub length: Duration,
    /// Operations of a batch.
    pub grain: u64,
    /// Processors to pin to.
    pub cpus: &'a [usize],
}

/// Runs a turn and returns the batches of each thread.
///
/// # Errors
/// The error of a worker or of the companion.
pub fn run(arm: &dyn Arm, plan: TurnPlan<'_>) -> Result<Vec<Vec<Batch>>> {
    let start =
        Start { barrier: Barrier::new(plan.threads), began: OnceLock::new(), over: AtomicBool::new(false) };
    let companion = arm.companion()?;
    std::thread::scope(|scope| {
        let start = &start;
        let beside = companion.map(|companion| scope.spawn(|| accompany(companion, &start.over)));
        let workers: Vec<_> =
            (0..plan.threads).map(|index| scope.spawn(move || seat(arm, plan, index, start))).collect();
        let done: Vec<_> = workers.into_iter().map(|w| w.join().unwrap_or_else(|_| Err(died()))).collect();
        start.over.store(true, Ordering::Relaxed);
        let beside = beside.map_or(Ok(()), |b| b.join().unwrap_or_else(|_| Err(died())));
        let done = done.into_iter().collect::<Result<Vec<_>>>()?;
        beside.map(|()| done)
    })
}

fn died() -> anyhow::Error {
    anyhow!("a measuring thread died")
}

/// Lets the threads of a turn begin and end together.
struct Start {
    barrier: Barrier,
    /// When the first thread left the barrier. All times count from then: otherwise nothing would show what one thread
    /// did alone before another woke up.
    began: OnceLock<Instant>,
    over: AtomicBool,
}

fn seat(arm: &dyn Arm, plan: TurnPlan<'_>, index: usize, start: &Start) -> Result<Vec<Batch>> {
    let ready = pin::pin(plan.cpus, index)
        .and_then(|()| arm.worker(plan.variant, WorkerSeat { index, of: plan.threads }));
    // Also after an error, because the others wait for all.
    start.barrier.wait();
    let began = *start.began.get_or_init(Instant::now);
    let batches = ready.and_then(|mut worker| {
        batches(&mut *worker, TurnTime { began, length: plan.length, grain: plan.grain }, &start.over)
    });
    if batches.is_err() {
        start.over.store(true, Ordering::Relaxed);
    }
    batches
}

/// How long a worker works.
#[derive(Clone, Copy, Debug)]
pub struct TurnTime {
    /// The moment from which all workers' times count.
    pub began: Instant,
    /// How long after that the turn ends.
    pub length: Duration,
    /// Operations of a batch.
    pub grain: u64,
}

/// Runs batches until the time is over or the worker has done its fixed amount; at least one.
///
/// # Errors
/// The worker's error.
pub fn batches(worker: &mut dyn Worker, time: TurnTime, over: &AtomicBool) -> Result<Vec<Batch>> {
    let TurnTime { began, length, grain } = time;
    let now = || began.elapsed().as_nanos() as u64;
    let mut out = Vec::with_capacity((length.as_nanos() / GRAIN.as_nanos()).min(1 << 20) as usize * 2 + 16);
    let mut before = preemptions();
    while !over.load(Ordering::Relaxed) {
        let idle = now();
        worker.between();
        let from = now();
        worker.batch(grain)?;
        let to = now();
        let after = preemptions();
        out.push(Batch { from, to, ops: grain, preempted: after != before, paused: from - idle });
        before = after;
        if worker.finished().unwrap_or(to >= length.as_nanos() as u64) {
            break;
        }
    }
    Ok(out)
}

fn accompany(mut companion: Box<dyn Companion + '_>, over: &AtomicBool) -> Result<()> {
    while !over.load(Ordering::Relaxed) {
        if let Err(error) = companion.step() {
            over.store(true, Ordering::Relaxed);
            return Err(error);
        }
    }
    Ok(())
}

/// How many operations fill [`GRAIN`], measured on one thread.
///
/// # Errors
/// The worker's error.
pub fn grain(arm: &dyn Arm, variant: usize, of: usize) -> Result<u64> {
    if let Some(grain) = arm.grain(variant) {
        return Ok(grain);
    }
    let mut worker = arm.worker(variant, WorkerSeat { index: 0, of })?;
    let mut ops = 1;
    loop {
        let began = Instant::now();
        worker.batch(ops)?;
        let took = began.elapsed().max(Duration::from_nanos(1));
        if took >= GRAIN / 2 || ops >= 1 << 24 {
            let scaled = ops as f64 * GRAIN.as_secs_f64() / took.as_secs_f64();
            return Ok((scaled as u64).clamp(1, 1 << 24));
        }
        ops *= 2;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Idle;

    impl Arm for Idle {
        fn name(&self) -> &str {
            "idle"
        }
        fn check(&self) -> Result<()> {
            Ok(())
        }
        fn worker<'a>(&'a self, variant: usize, _: WorkerSeat) -> Result<Box<dyn Worker + 'a>> {
            anyhow::ensure!(variant == 0, "no such variant");
            Ok(Box::new(Idling))
        }
    }

    struct Idling;

    impl Worker for Idling {
        fn batch(&mut self, _: u64) -> Result<()> {
            std::thread::yield_now();
            Ok(())
        }
    }

    fn plan(cpus: &[usize], variant: usize) -> TurnPlan<'_> {
        TurnPlan { variant, threads: 2, length: Duration::from_millis(2), grain: 7, cpus }
    }

    #[test]
    fn batches_follow_each_other_until_the_time_is_over() {
        let turn = run(&Idle, plan(&pin::cpus().unwrap(), 0)).unwrap();
        assert_eq!(turn.len(), 2);
        for batches in turn {
            assert!(batches.iter().all(|b| b.from <= b.to && b.ops == 7));
            assert!(batches.windows(2).all(|w| w[0].to <= w[1].from && w[0].to < 2_000_000));
        }
    }

    #[test]
    fn a_thread_that_wakes_up_late_counts_from_when_the_first_one_began() {
        let start = Start { barrier: Barrier::new(1), began: OnceLock::new(), over: AtomicBool::new(false) };
        start.began.set(Instant::now() - Duration::from_secs(1)).unwrap();
        let batches = std::thread::scope(|scope| {
            scope.spawn(|| seat(&Idle, plan(&pin::cpus().unwrap(), 0), 0, &start)).join().unwrap().unwrap()
        });
        assert_eq!(batches.len(), 1, "its time is over already");
        assert!(batches[0].from >= 1_000_000_000);
    }

    struct Counting(u64);

    impl Worker for Counting {
        fn batch(&mut self, ops: u64) -> Result<()> {
            self.0 = self.0.saturating_sub(ops);
            Ok(())
        }
        fn finished(&self) -> Option<bool> {
            Some(self.0 == 0)
        }
    }

    #[test]
    fn a_worker_with_so_much_to_do_does_just_that() {
        let (over, began) = (AtomicBool::new(false), Instant::now());
        for length in [Duration::ZERO, Duration::from_secs(3600)] {
            let time = TurnTime { began, length, grain: 3 };
            assert_eq!(batches(&mut Counting(12), time, &over).unwrap().len(), 4, "{length:?}");
        }
    }

    #[test]
    fn an_error_ends_the_turn() {
        let said = run(&Idle, plan(&pin::cpus().unwrap(), 1)).unwrap_err();
        assert_eq!(said.to_string(), "no such variant");
    }
}
