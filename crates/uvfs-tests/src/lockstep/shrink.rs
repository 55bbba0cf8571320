//! Shrinks a list of operations that shows a difference to a short one that still does.

use std::time::{Duration, Instant};

use super::Mismatch;
use crate::ops::TestStep;

/// Whether two runs fail at the same kind of operation: a shorter list that shows quite
/// another difference explains nothing.
pub fn same_kind(a: (&[TestStep], &Mismatch), b: (&[TestStep], &Mismatch)) -> bool {
    let kind = |(steps, m): (&[TestStep], &Mismatch)| std::mem::discriminant(&steps[m.at].op);
    kind(a) == kind(b)
}

/// Drops operations, half of the list at first and then ever fewer at a time, as long as
/// `fails` confirms that the remaining list shows a difference. Stops after `limit`.
pub fn shrink(
    steps: &[TestStep],
    limit: Duration,
    mut fails: impl FnMut(&[TestStep]) -> bool,
) -> Vec<TestStep> {
    let start = Instant::now();
    let mut best = steps.to_vec();
    let mut chunk = best.len() / 2;
    while chunk > 0 {
        let mut at = 0;
        let mut progress = false;
        while at < best.len() && start.elapsed() < limit {
            let end = (at + chunk).min(best.len());
            let shorter = [&best[..at], &best[end..]].concat();
            if !shorter.is_empty() && fails(&shorter) {
                best = shorter;
                progress = true;
            } else {
                at = end;
            }
        }
        if !progress || chunk > 1 {
            chunk /= 2;
        }
    }
    best
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ops::{Bits, FileOp, Who};

    #[test]
    fn keeps_only_what_is_needed() {
        let step = |mask| TestStep { who: Who::Root, op: FileOp::Umask { mask: Bits(mask) } };
        let steps: Vec<TestStep> = (0..100).map(step).collect();
        let needs = |steps: &[TestStep]| steps.contains(&step(17)) && steps.contains(&step(80));
        assert_eq!(shrink(&steps, Duration::from_secs(10), needs), [step(17), step(80)]);
    }
}
