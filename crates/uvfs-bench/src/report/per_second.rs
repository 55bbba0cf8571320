//! will-it-scale's output lines: the slowest worker, the fastest worker and the total of each second.

use crate::harness::batch::Batch;

const SECOND: u64 = 1_000_000_000;

/// One line per second of a turn. A turn shorter than a second gives one line, scaled to a second.
///
/// A batch counts for the second in which it ended.
pub fn lines(workers: &[Vec<Batch>]) -> Vec<String> {
    let end = workers.iter().filter_map(|w| w.last()).map(|b| b.to).max().unwrap_or(0);
    let (seconds, scale) =
        if end < SECOND { (1, SECOND as f64 / end.max(1) as f64) } else { (end / SECOND, 1.0) };
    (0..seconds)
        .map(|second| {
            let done =
                |w: &Vec<Batch>| -> u64 { w.iter().filter(|b| b.to / SECOND == second).map(|b| b.ops).sum() };
            let each: Vec<u64> = workers.iter().map(|w| (done(w) as f64 * scale) as u64).collect();
            let (min, max) =
                (each.iter().min().copied().unwrap_or(0), each.iter().max().copied().unwrap_or(0));
            format!("min:{min} max:{max} total:{}", each.iter().sum::<u64>())
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn batch(to: u64, ops: u64) -> Batch {
        Batch { from: to - 1000, to, ops, preempted: false, paused: 0 }
    }

    #[test]
    fn seconds_are_counted_apart() {
        let workers = [
            vec![batch(SECOND / 2, 10), batch(SECOND * 3 / 2, 20)],
            vec![batch(SECOND / 3, 5), batch(SECOND * 2, 9)],
        ];
        assert_eq!(lines(&workers), ["min:5 max:10 total:15", "min:0 max:20 total:20"]);
    }

    #[test]
    fn a_short_turn_is_scaled_to_a_second() {
        assert_eq!(lines(&[vec![batch(SECOND / 4, 10)]]), ["min:40 max:40 total:40"]);
        assert_eq!(lines(&[vec![]]), ["min:0 max:0 total:0"]);
    }
}
