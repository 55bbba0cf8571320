//! Batches: the units into which a turn is cut, and which of them count.
//!
//! A thread's work is cut into batches of about [`GRAIN`]. Between two batches, outside the measured time, the thread
//! asks the kernel how often it was preempted while runnable (`ru_nivcsw` of `RUSAGE_THREAD`). A thread that waits
//! for a lock yields its processor voluntarily and is not counted: that wait is part of the arm's cost.
//!
//! While one thread is preempted, the others run without its contention. So a moment counts only if it counts for
//! all threads. A batch that overlaps a preempted batch of any thread is dropped. So is work done before the last
//! thread began or after the first ended. A guest cannot see in time which processor time its host takes away; the
//! report gives that share as `steal`.

use std::time::Duration;

use nix::sys::resource::{UsageWho, getrusage};

/// Length of an undisturbed batch.
pub const GRAIN: Duration = Duration::from_micros(100);

/// One batch; times in nanoseconds since the turn began.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Batch {
    /// When it began.
    pub from: u64,
    /// When it ended.
    pub to: u64,
    /// Operations done.
    pub ops: u64,
    /// Whether its thread was preempted meanwhile.
    pub preempted: bool,
    /// Nanoseconds that the worker paused voluntarily before this batch.
    pub paused: u64,
}

/// How often this thread was preempted; 0 if the kernel does not report it.
pub fn preemptions() -> i64 {
    getrusage(UsageWho::RUSAGE_THREAD).map_or(0, |usage| usage.involuntary_context_switches())
}

/// The counted part of a turn.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rate {
    /// Operations a second of all threads together.
    pub ops_per_s: f64,
    /// Share of all batches that count.
    pub kept: f64,
}

/// The rate of a turn, given each thread's batches, with disturbed batches left out. `None` if a thread has no
/// batch left.
pub fn undisturbed(threads: &[Vec<Batch>]) -> Option<Rate> {
    let begin = threads.iter().filter_map(|t| t.first()).map(|b| b.from).max()?;
    let end = threads.iter().filter_map(|t| t.last()).map(|b| b.to).min()?;
    let gaps = union(threads.iter().flat_map(|thread| gaps(thread)).collect());
    let counts = |b: &&Batch| b.from >= begin && b.to <= end && !meets(&gaps, b.from, b.to);
    rate(threads, counts)
}

/// The rate of a turn with everything counted: from the common beginning to each thread's end, without its pauses.
/// If there are more threads than processors, most threads wait for a processor most of the time. They wait between
/// two batches, and before the first one too.
pub fn everything(threads: &[Vec<Batch>]) -> Option<Rate> {
    let mut ops_per_s = 0.0;
    for thread in threads {
        let ops: u64 = thread.iter().map(|b| b.ops).sum();
        let paused: u64 = thread.iter().map(|b| b.paused).sum();
        ops_per_s += per_second(ops, thread.last()?.to.saturating_sub(paused))?;
    }
    Some(Rate { ops_per_s, kept: 1.0 })
}

fn rate(threads: &[Vec<Batch>], counts: impl Fn(&&Batch) -> bool) -> Option<Rate> {
    let (mut ops_per_s, mut kept) = (0.0, 0);
    for thread in threads {
        let (mut ops, mut ns) = (0, 0);
        for batch in thread.iter().filter(&counts) {
            ops += batch.ops;
            ns += batch.to - batch.from;
            kept += 1;
        }
        ops_per_s += per_second(ops, ns)?;
    }
    let all: usize = threads.iter().map(Vec::len).sum();
    Some(Rate { ops_per_s, kept: f64::from(kept) / all as f64 })
}

fn per_second(ops: u64, ns: u64) -> Option<f64> {
    (ns != 0).then(|| ops as f64 * 1e9 / ns as f64)
}

/// Intervals in which a thread may have been preempted. The kernel is asked after each batch, so the preemption
/// happened at some time since the previous question. The kernel prefers to preempt on return from a system call,
/// so the time between two batches must be included.
fn gaps(thread: &[Batch]) -> impl Iterator<Item = (u64, u64)> + '_ {
    let preempted = (0..thread.len()).filter(|i| thread[*i].preempted);
    preempted.map(|i| {
        let from = if i == 0 { thread[i].from } else { thread[i - 1].to };
        (from, thread.get(i + 1).map_or(thread[i].to, |next| next.from))
    })
}

/// Merges overlapping intervals; the result is in order.
fn union(mut intervals: Vec<(u64, u64)>) -> Vec<(u64, u64)> {
    intervals.sort_unstable();
    let mut out: Vec<(u64, u64)> = Vec::new();
    for (from, to) in intervals {
        match out.last_mut() {
            Some(last) if from <= last.1 => last.1 = last.1.max(to),
            _ => out.push((from, to)),
        }
    }
    out
}

/// Whether an interval overlaps one of `gaps`, which are sorted and disjoint.
fn meets(gaps: &[(u64, u64)], from: u64, to: u64) -> bool {
    let after = gaps.partition_point(|gap| gap.1 <= from);
    gaps.get(after).is_some_and(|gap| gap.0 < to)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn batch(from: u64, to: u64, ops: u64) -> Batch {
        Batch { from, to, ops, preempted: false, paused: 0 }
    }

    #[test]
    fn rates_are_operations_over_the_time_of_batches() {
        let turn = [vec![batch(0, 1000, 10), batch(2000, 3000, 30)], vec![batch(0, 3000, 3)]];
        let kept = undisturbed(&turn).unwrap();
        assert!((kept.ops_per_s - (20e6 + 1e6)).abs() < 1.0, "{kept:?}");
        assert_eq!(undisturbed(&[vec![]]), None);
    }

    #[test]
    fn where_everything_counts_so_does_the_time_between_batches() {
        // Waited for a processor until 1000, and again from 2000 to 3000; paused from 4000 to 4500.
        let waited = vec![batch(1000, 2000, 10), batch(3000, 4000, 10)];
        let paused = Batch { paused: 500, ..batch(4500, 5500, 10) };
        let all = everything(&[[waited.as_slice(), &[paused]].concat()]).unwrap();
        assert!((all.ops_per_s - 30e9 / 5000.0).abs() < 1.0, "{all:?}");
        assert_eq!(everything(&[vec![]]), None);
    }

    #[test]
    fn a_preemption_drops_what_overlaps_it_in_every_thread() {
        let off = Batch { preempted: true, ..batch(1000, 9000, 1) };
        let one = vec![batch(0, 1000, 10), off, batch(9000, 10_000, 10)];
        // The second thread was faster while it ran alone; that must not count.
        let two =
            vec![batch(0, 1000, 10), batch(1000, 2000, 99), batch(8500, 9500, 99), batch(9500, 10_000, 5)];
        let kept = undisturbed(&[one.clone(), two]).unwrap();
        assert!((kept.ops_per_s - 20e6).abs() < 1.0, "{kept:?}");
        assert!((kept.kept - 4.0 / 7.0).abs() < 1e-9);
        assert_eq!(undisturbed(&[one, vec![off]]), None);
    }

    #[test]
    fn a_preemption_between_two_batches_is_one_too() {
        // Preempted from 1000 to 9000; the query after the first batch reports it.
        let one = vec![Batch { preempted: true, ..batch(0, 1000, 10) }, batch(9000, 10_000, 10)];
        let two = vec![batch(0, 1000, 10), batch(4000, 5000, 99), batch(9000, 10_000, 10)];
        let kept = undisturbed(&[one, two]).unwrap();
        assert!((kept.ops_per_s - 20e6).abs() < 1.0, "{kept:?}");
    }

    #[test]
    fn what_one_thread_did_alone_at_the_ends_is_left_out() {
        let long = (0..10).map(|i| batch(i * 100, i * 100 + 100, 1)).collect::<Vec<_>>();
        let short = (3..6).map(|i| batch(i * 100, i * 100 + 100, 1)).collect::<Vec<_>>();
        assert!((undisturbed(&[long, short]).unwrap().kept - 6.0 / 13.0).abs() < 1e-9);
    }

    #[test]
    fn gaps_are_joined_and_found() {
        let gaps = union(vec![(5, 9), (1, 3), (2, 4), (9, 10)]);
        assert_eq!(gaps, [(1, 4), (5, 10)]);
        for (from, to, hit) in
            [(0, 1, false), (0, 2, true), (4, 5, false), (3, 6, true), (10, 12, false), (6, 7, true)]
        {
            assert_eq!(meets(&gaps, from, to), hit, "{from} {to}");
        }
    }
}
