//! How far the memory limit is lowered while the system is short of memory.
//!
//! Measured in sixteenths of the limit. Each report of pressure removes a quarter of the current share, down to a
//! quarter of the limit. After [`HOLD`] without a report, one sixteenth comes back, and one more after each
//! [`RISE`]. Plain values, owned by one thread, which supplies the time.

use std::time::{Duration, Instant};

/// The whole limit.
pub(crate) const WHOLE: u32 = 16;
/// The smallest share.
const LEAST: u32 = 4;
/// How long the watermark stays after the last report of pressure.
const HOLD: Duration = Duration::from_secs(10);
/// The time between two steps up.
const RISE: Duration = Duration::from_secs(2);

/// See the module.
#[derive(Debug)]
pub(crate) struct Watermark {
    share: u32,
    rises: Option<Instant>,
}

impl Watermark {
    pub(crate) fn new() -> Self {
        Self { share: WHOLE, rises: None }
    }

    /// Sixteenths of the limit that may be used.
    pub(crate) fn share(&self) -> u32 {
        self.share
    }

    /// Handles a report of memory pressure.
    pub(crate) fn press(&mut self, now: Instant) {
        self.share = (self.share - self.share / 4).max(LEAST);
        self.rises = Some(now + HOLD);
    }

    /// Handles the passage of time; returns whether the watermark has risen.
    pub(crate) fn pass(&mut self, now: Instant) -> bool {
        if self.rises.is_none_or(|at| now < at) {
            return false;
        }
        self.share = (self.share + 1).min(WHOLE);
        self.rises = (self.share < WHOLE).then(|| now + RISE);
        true
    }

    /// How long it stays where it is; `None`: until the next pressure.
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
        let mut watermark = Watermark::new();
        assert_eq!((watermark.share(), watermark.stays(begin)), (WHOLE, None));
        assert!(!watermark.pass(begin + Duration::from_secs(1_000_000)));
        let mut shares = Vec::new();
        for _ in 0..10 {
            watermark.press(begin);
            shares.push(watermark.share());
        }
        assert_eq!(shares[..6], [12, 9, 7, 6, 5, LEAST]);
        assert_eq!(watermark.share(), LEAST);
        assert_eq!(watermark.stays(begin), Some(HOLD));
        assert!(!watermark.pass(begin + HOLD - Duration::from_nanos(1)));
        let mut now = begin + HOLD;
        for share in LEAST + 1..=WHOLE {
            assert!(watermark.pass(now) && !watermark.pass(now));
            assert_eq!(watermark.share(), share);
            now += RISE;
        }
        assert_eq!(watermark.stays(now), None);
    }

    #[test]
    fn pressure_that_goes_on_keeps_the_mark_down() {
        let begin = Instant::now();
        let mut watermark = Watermark::new();
        for second in 0..100 {
            let now = begin + Duration::from_secs(second);
            watermark.press(now);
            assert!(!watermark.pass(now + Duration::from_secs(1)));
        }
        assert_eq!(watermark.share(), LEAST);
    }
}
