//! Shrinks a list of operations that shows a difference to a short one that still does.

use std::time::{Duration, Instant};

use super::Mismatch;
use crate::ops::Step;

/// Whether two runs fail at the same kind of operation: a shorter list that shows quite
/// another difference explains nothing.
pub fn same_kind(a: (&[Step], &Mismatch), b: (&[Step], &Mismatch)) -> bool {
    let kind = |(steps, m): (&[Step], &Mismatch)| std::mem::discriminant(&steps[m.at].op);
    kind(a) == kind(b)
}

/// Drops operations, half of the list at first and then ever fewer at a time, as long as
/// `fails` confirms that the remaining list shows a difference. Stops after `limit`.
pub fn shrink(steps: &[Step], limit: Duration, mut fails: impl FnMut(&[Step]) -> bool) -> Vec<Step> {
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
    use crate::ops::{Bits, Op, Who};

    #[test]
    fn keeps_only_what_is_needed() {
        let step = |mask| Step { who: Who::Root, op: Op::Umask { mask: Bits(mask) } };
        let steps: Vec<Step> = (0..100).map(step).collect();
        let needs = |steps: &[Step]| steps.contains(&step(17)) && steps.contains(&step(80));
        assert_eq!(shrink(&steps, Duration::from_secs(10), needs), [step(17), step(80)]);
    }
}
