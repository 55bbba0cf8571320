//! One turn: one arm, on so many threads, for so long.
//!
//! Threads are made for the turn and pinned; a barrier lets them begin together, each ends by its own look at the
//! clock. The first error of a worker ends the turn for all.

use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Result, anyhow};

use crate::harness::batch::{Batch, GRAIN, preemptions};
use crate::harness::{Arm, Companion, Seat, Worker, pin};

/// What one turn shall be.
#[derive(Clone, Copy, Debug)]
pub struct Plan<'a> {
    /// Which variant of the case.
    pub variant: usize,
    /// Threads.
    pub threads: usize,
    /// How long.
    pub length: Duration,
    /// Operations of a batch.
    pub grain: u64,
    /// Processors to pin to.
    pub cpus: &'a [usize],
}

/// Runs a turn; the batches of each thread.
///
/// # Errors
/// What a worker or the companion said.
pub fn run(arm: &dyn Arm, plan: Plan<'_>) -> Result<Vec<Vec<Batch>>> {
    let (barrier, over) = (Barrier::new(plan.threads), AtomicBool::new(false));
    let companion = arm.companion()?;
    std::thread::scope(|scope| {
        let beside = companion.map(|companion| scope.spawn(|| accompany(companion, &over)));
        let workers: Vec<_> = (0..plan.threads)
            .map(|index| {
                let (barrier, over) = (&barrier, &over);
                scope.spawn(move || seat(arm, plan, index, barrier, over))
            })
            .collect();
        let done: Vec<_> = workers.into_iter().map(|w| w.join().unwrap_or_else(|_| Err(died()))).collect();
        over.store(true, Ordering::Relaxed);
        let beside = beside.map_or(Ok(()), |b| b.join().unwrap_or_else(|_| Err(died())));
        let done = done.into_iter().collect::<Result<Vec<_>>>()?;
        beside.map(|()| done)
    })
}

fn died() -> anyhow::Error {
    anyhow!("a measuring thread died")
}

fn seat(
    arm: &dyn Arm,
    plan: Plan<'_>,
    index: usize,
    barrier: &Barrier,
    over: &AtomicBool,
) -> Result<Vec<Batch>> {
    let ready =
        pin::pin(plan.cpus, index).and_then(|()| arm.worker(plan.variant, Seat { index, of: plan.threads }));
    // Also after an error: the others wait for all.
    barrier.wait();
    let batches = ready.and_then(|mut worker| batches(&mut *worker, plan.grain, plan.length, over));
    if batches.is_err() {
        over.store(true, Ordering::Relaxed);
    }
    batches
}

/// Batches until the time is over.
///
/// # Errors
/// What the worker said.
pub fn batches(
    worker: &mut dyn Worker,
    grain: u64,
    length: Duration,
    over: &AtomicBool,
) -> Result<Vec<Batch>> {
    let began = Instant::now();
    let now = || began.elapsed().as_nanos() as u64;
    let mut out = Vec::with_capacity((length.as_nanos() / GRAIN.as_nanos()) as usize * 2 + 16);
    let mut before = preemptions();
    while !over.load(Ordering::Relaxed) {
        let from = now();
        worker.batch(grain)?;
        let to = now();
        let after = preemptions();
        out.push(Batch { from, to, ops: grain, preempted: after != before });
        before = after;
        if to >= length.as_nanos() as u64 {
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

/// How many operations fill [`GRAIN`], tried out on one thread.
///
/// # Errors
/// What the worker said.
pub fn grain(arm: &dyn Arm, variant: usize, of: usize) -> Result<u64> {
    if let Some(grain) = arm.grain() {
        return Ok(grain);
    }
    let mut worker = arm.worker(variant, Seat { index: 0, of })?;
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
