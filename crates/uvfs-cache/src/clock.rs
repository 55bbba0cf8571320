//! The coarse clock that expiry goes by: milliseconds, 32 bits, wrapping.
//!
//! Only entries with a deadline look at it, so a cache whose driver knows of every change never
//! pays for it. Deadlines lie at most 2^30 ms (12 days) ahead, so a wrapping comparison is exact
//! as long as an expired entry is looked at or swept within 24 days; one that is older is at worst believed
//! again for what its time to live allowed.

use uvfs_sync::primitives::{AtomicU32, Ordering};

use crate::types::Life;

/// Longest time to live that can be stored.
const LONGEST: u32 = 1 << 30;

/// "No deadline" in a slot.
pub(crate) const NEVER: u32 = 0;

/// The clock of one cache; tests may put it forward.
#[derive(Debug, Default)]
pub(crate) struct Clock {
    ahead: AtomicU32,
}

impl Clock {
    #[cold]
    fn now(&self) -> u32 {
        #[cfg(not(loom))]
        let system = {
            // CLOCK_MONOTONIC; the value is folded to 32 bits of milliseconds.
            static START: std::sync::OnceLock<std::time::Instant> = std::sync::OnceLock::new();
            START.get_or_init(std::time::Instant::now).elapsed().as_millis() as u32
        };
        #[cfg(loom)]
        let system = 0u32;
        system.wrapping_add(self.ahead.load(Ordering::Relaxed))
    }

    /// The deadline to store for a time to live that starts now.
    pub(crate) fn deadline(&self, life: Life) -> u32 {
        match life {
            Life::Forever => NEVER,
            Life::Millis(ms) => match self.now().wrapping_add(ms.min(LONGEST)) {
                // One earlier, so that what is not to be believed at all never is.
                NEVER => u32::MAX,
                at => at,
            },
        }
    }

    /// Whether a stored deadline has passed.
    #[inline]
    pub(crate) fn passed(&self, deadline: u32) -> bool {
        deadline != NEVER && self.now().wrapping_sub(deadline) as i32 >= 0
    }

    /// Put the clock forward.
    pub(crate) fn advance(&self, ms: u32) {
        self.ahead.fetch_add(ms, Ordering::Relaxed);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    /// Rule 14: an entry expires when its time has passed, not before, and over a wrap too.
    #[test]
    fn rule14_deadlines_pass_once_and_over_a_wrap() {
        let clock = Clock::default();
        assert!(!clock.passed(clock.deadline(Life::Forever)));
        assert!(clock.passed(clock.deadline(Life::Millis(0))));
        for _ in 0..8 {
            clock.advance(1 << 29);
            let at = clock.deadline(Life::Millis(1_000_000));
            assert!(!clock.passed(at));
            clock.advance(1_000_000);
            assert!(clock.passed(at));
        }
    }
}
