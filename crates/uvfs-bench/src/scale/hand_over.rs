//! The time in which a cache line goes from one processor to another, measured by two threads that take turns.

use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::Instant;

use anyhow::Result;

use crate::harness::pin::{cpus, pin};

const TURNS: u32 = 200_000;
const ROUNDS: usize = 5;

/// A line of its own.
#[repr(align(128))]
struct Line(AtomicU32);

/// Nanoseconds for one hand-over between the first two processors; the median of some rounds. None if there is only
/// one. Each thread waits for the other's store and then stores, so each turn moves the line once for the look and
/// once for the store.
///
/// # Errors
/// If threads cannot be pinned.
pub fn measure() -> Result<Option<f64>> {
    let cpus = cpus()?;
    if cpus.len() < 2 {
        return Ok(None);
    }
    let mut rounds = (0..ROUNDS).map(|_| round(&cpus)).collect::<Result<Vec<f64>>>()?;
    rounds.sort_by(f64::total_cmp);
    Ok(Some(rounds[ROUNDS / 2]))
}

fn round(cpus: &[usize]) -> Result<f64> {
    let line = Line(AtomicU32::new(0));
    let play = |me: u32| -> Result<f64> {
        pin(cpus, me as usize)?;
        let begin = Instant::now();
        for turn in (me..TURNS).step_by(2) {
            while line.0.load(Ordering::Acquire) != turn {
                std::hint::spin_loop();
            }
            line.0.store(turn + 1, Ordering::Release);
        }
        Ok(begin.elapsed().as_nanos() as f64 / f64::from(TURNS) / 2.0)
    };
    thread::scope(|scope| {
        let other = scope.spawn(|| play(1));
        // Pinned in a thread of its own, so that the caller's stays where it was.
        let mine = scope.spawn(|| play(0));
        let join = |thread: thread::ScopedJoinHandle<'_, Result<f64>>| {
            thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        };
        let (mine, other) = (join(mine)?, join(other)?);
        Ok(mine.max(other))
    })
}

#[cfg(test)]
mod tests {
    #[test]
    fn a_hand_over_takes_some_time() {
        if let Some(ns) = super::measure().unwrap() {
            assert!(ns > 0.5, "{ns}");
        }
    }
}
