//! How far the memory limit is lowered while the system is short of memory.
//!
//! In sixteenths of the limit. Each time that the system says so, a quarter of what is in force goes, down to a quarter of
//! the limit. When it has said nothing for [`HOLD`], a sixteenth comes back, and one more after each [`RISE`]. Plain
//! values, owned by one thread, which brings the time.

use std::time::{Duration, Instant};

/// The whole limit.
pub(crate) const WHOLE: u32 = 16;
/// The least.
const LEAST: u32 = 4;
/// How long the mark stays where it is after the last word of pressure.
const HOLD: Duration = Duration::from_secs(10);
/// Between two steps up.
const RISE: Duration = Duration::from_secs(2);

/// See the module.
#[derive(Debug)]
pub(crate) struct Mark {
    share: u32,
    rises: Option<Instant>,
}

impl Mark {
    pub(crate) fn new() -> Self {
        Self { share: WHOLE, rises: None }
    }

    /// Sixteenths of the limit that may be used.
    pub(crate) fn share(&self) -> u32 {
        self.share
    }

    /// Programs wait for memory.
    pub(crate) fn press(&mut self, now: Instant) {
        self.share = (self.share - self.share / 4).max(LEAST);
        self.rises = Some(now + HOLD);
    }

    /// Time has passed; whether the mark has risen.
    pub(crate) fn pass(&mut self, now: Instant) -> bool {
        if self.rises.is_none_or(|at| now < at) {
            return false;
        }
        self.share = (self.share + 1).min(WHOLE);
        self.rises = (self.share < WHOLE).then(|| now + RISE);
        true
    }

    /// How long it stays where it is; `None`: until there is pressure.
    pub(crate) fn stays(&self, now: Instant) -> Option<Duration> {
        self.rises.map(|at| at.saturating_duration_since(now))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pressure_lowers_the_mark_and_time_raises_it_step_by_step() {
        let begin = Instant::now();
        let mut mark = Mark::new();
        assert_eq!((mark.share(), mark.stays(begin)), (WHOLE, None));
        assert!(!mark.pass(begin + Duration::from_secs(1_000_000)));
        let mut shares = Vec::new();
        for _ in 0..10 {
            mark.press(begin);
            shares.push(mark.share());
        }
        assert_eq!(shares[..6], [12, 9, 7, 6, 5, LEAST]);
        assert_eq!(mark.share(), LEAST);
        assert_eq!(mark.stays(begin), Some(HOLD));
        assert!(!mark.pass(begin + HOLD - Duration::from_nanos(1)));
        let mut now = begin + HOLD;
        for share in LEAST + 1..=WHOLE {
            assert!(mark.pass(now) && !mark.pass(now));
            assert_eq!(mark.share(), share);
            now += RISE;
        }
        assert_eq!(mark.stays(now), None);
    }

    #[test]
    fn pressure_that_goes_on_keeps_the_mark_down() {
        let begin = Instant::now();
        let mut mark = Mark::new();
        for second in 0..100 {
            let now = begin + Duration::from_secs(second);
            mark.press(now);
            assert!(!mark.pass(now + Duration::from_secs(1)));
        }
        assert_eq!(mark.share(), LEAST);
    }
}
