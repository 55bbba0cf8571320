//! Latencies of single writes: percentiles of each turn, and their ratios to the reference of the same round.

use parking_lot::Mutex;

use crate::harness::spread::Spread;

/// The arm with which all are compared: one heavy barrier and nothing else.
const REFERENCE: &str = "membarrier";

/// One turn of one arm.
#[derive(Debug)]
struct Turn {
    arm: &'static str,
    workers: usize,
    /// Nanoseconds.
    samples: Vec<f64>,
}

impl Turn {
    /// The value below which this share of the samples lies.
    fn quantile(&self, share: f64) -> Option<f64> {
        let mut sorted = self.samples.clone();
        sorted.sort_unstable_by(f64::total_cmp);
        sorted.get(((sorted.len() as f64 * share) as usize).min(sorted.len().saturating_sub(1))).copied()
    }
}

/// The turns of all arms of a case, in order of time.
#[derive(Debug, Default)]
pub struct TurnBook(Mutex<Vec<Turn>>);

impl TurnBook {
    /// A turn begins.
    pub fn begin(&self, arm: &'static str, workers: usize) {
        self.turns(|turns| turns.push(Turn { arm, workers, samples: Vec::new() }));
    }

    /// Records the samples of one worker of the current turn.
    pub fn enter(&self, samples: Vec<f64>) {
        self.turns(|turns| turns.last_mut().into_iter().for_each(|turn| turn.samples.extend(&samples)));
    }

    fn turns<R>(&self, f: impl FnOnce(&mut Vec<Turn>) -> R) -> R {
        f(&mut self.0.lock())
    }

    /// A remark on an arm, for each number of workers.
    pub fn remark(&self, arm: &str, phase: &str) -> Option<String> {
        let said = self.turns(|turns| {
            let mut widths: Vec<usize> = turns.iter().map(|turn| turn.workers).collect();
            widths.sort_unstable();
            widths.dedup();
            widths.iter().filter_map(|width| sentence(turns, arm, phase, *width)).collect::<Vec<_>>()
        });
        (!said.is_empty()).then(|| said.join("; "))
    }
}

fn sentence(turns: &[Turn], arm: &str, phase: &str, width: usize) -> Option<String> {
    // The first round is the warm-up.
    let rounds = |arm: &str, share: f64| -> Vec<Option<f64>> {
        let own = turns.iter().filter(|turn| turn.arm == arm && turn.workers == width);
        own.skip(1).map(|turn| turn.quantile(share)).collect()
    };
    let spread = |share| Spread::of(rounds(arm, share).into_iter().flatten());
    let (median, p99) = (spread(0.5)?, spread(0.99)?);
    let mut said = format!(
        "{phase}, {width} writing: median {}, 99th percentile {} us a write",
        micros(median),
        micros(p99)
    );
    if arm != REFERENCE
        && let Some(over) = Spread::of_ratios(&rounds(arm, 0.5), &rounds(REFERENCE, 0.5))
    {
        let Spread { median, min, max } = over;
        said.push_str(&format!(", median over the bare barrier's {median:.2} ({min:.2} to {max:.2})"));
    }
    Some(said)
}

fn micros(ns: Spread) -> String {
    let Spread { median, min, max } = ns;
    format!("{:.2} ({:.2} to {:.2})", median / 1e3, min / 1e3, max / 1e3)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_and_ratios_are_of_rounds_after_the_first() {
        let book = TurnBook::default();
        for round in 0..3 {
            for (arm, factor) in [(REFERENCE, 1000.0), ("uvfs", 1500.0)] {
                book.begin(arm, 1);
                let warm = if round == 0 { 100.0 } else { 1.0 };
                book.enter((1..=50).map(|i| f64::from(i) * factor * warm).collect());
                book.enter((51..=100).map(|i| f64::from(i) * factor * warm).collect());
            }
        }
        let said = book.remark("uvfs", "write-one").unwrap();
        assert_eq!(
            said,
            "write-one, 1 writing: median 76.50 (76.50 to 76.50), 99th percentile 150.00 (150.00 to 150.00) us \
             a write, median over the bare barrier's 1.50 (1.50 to 1.50)"
        );
        assert!(!book.remark(REFERENCE, "write-one").unwrap().contains("over"));
        assert_eq!(book.remark("other", "write-one"), None);
    }
}
