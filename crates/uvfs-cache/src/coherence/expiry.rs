//! The coarse clock for expiry, and the epoch of superblocks whose drivers notify of changes.
//!
//! An answer with a TTL has a *deadline*: milliseconds, 32 bits, wrapping, even. Only entries with a
//! deadline look at the clock. Deadlines lie at most 2^30 ms (12 days) ahead. So the comparison, which
//! wraps, is exact if an expired entry is looked at or removed within 24 days. An older entry is at worst
//! trusted again for its TTL.
//!
//! A watched superblock's answers are trusted until its driver notifies the cache. In place of the deadline
//! stands the *epoch* in which the driver was asked, an odd number. The answer is trusted while that is the
//! cache's epoch. If changes were lost, the epoch moves, and every earlier answer is suspect in one step
//! (see `stale.rs`). A hit compares, and stores nothing. An epoch recurs after 2^31 moves; an entry that
//! was not looked at in all that time would then be trusted again.

use uvfs_sync::primitives::{AtomicU32, Ordering};

use crate::types::Ttl;

/// Longest TTL that can be stored.
const LONGEST: u32 = 1 << 30;

/// "No deadline" in a slot.
pub(crate) const NEVER: u32 = 0;

/// An epoch that never occurs: an entry that has it must be asked for again.
pub(crate) const SUSPECT: u32 = 1;

/// Whether a deadline is an epoch.
pub(crate) fn is_epoch(deadline: u32) -> bool {
    deadline & 1 != 0
}

/// The clock of one cache; tests may advance it. It has its own line, because hits in watched superblocks
/// read it.
#[derive(Debug)]
#[repr(align(64))]
pub(crate) struct Clock {
    ahead: AtomicU32,
    epoch: AtomicU32,
}

impl Default for Clock {
    fn default() -> Self {
        Self { ahead: AtomicU32::new(0), epoch: AtomicU32::new(SUSPECT + 2) }
    }
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

    /// The deadline to store for a TTL that starts now. Parts of a millisecond are dropped.
    pub(crate) fn deadline(&self, ttl: Ttl) -> u32 {
        match ttl {
            Ttl::Forever => NEVER,
            // Up to one millisecond early, so that an answer with a TTL of zero is never trusted.
            Ttl::For(time) => {
                let ms = u32::try_from(time.as_millis()).unwrap_or(u32::MAX).min(LONGEST);
                match self.now().wrapping_add(ms) & !1 {
                    NEVER => u32::MAX - 1,
                    at => at,
                }
            }
        }
    }

    /// Whether a stored deadline has passed.
    #[inline]
    pub(crate) fn passed(&self, deadline: u32) -> bool {
        if is_epoch(deadline) {
            return deadline != self.epoch();
        }
        deadline != NEVER && self.now().wrapping_sub(deadline) as i32 >= 0
    }

    /// Whether an entry with this deadline is trusted without a look at the clock.
    #[inline(always)]
    pub(crate) fn stands(&self, deadline: u32) -> bool {
        deadline == NEVER || deadline == self.epoch()
    }

    /// The epoch now. Relaxed: a thread that must see a move was notified by the thread that made it. For
    /// all others the move comes later.
    #[inline(always)]
    pub(crate) fn epoch(&self) -> u32 {
        self.epoch.load(Ordering::Relaxed)
    }

    /// The epoch, to remember before a driver is asked. Acquire, with the release of the move. If this
    /// loads the new epoch, the driver sees what was changed before the move. (Otherwise an old answer
    /// would be stored with the new epoch.)
    pub(crate) fn asked(&self) -> u32 {
        self.epoch.load(Ordering::Acquire)
    }

    /// Make every answer from this epoch or before suspect.
    pub(crate) fn move_epoch(&self) {
        while self.epoch.fetch_add(2, Ordering::AcqRel).wrapping_add(2) == SUSPECT {}
    }

    /// Advance the clock.
    pub(crate) fn advance(&self, ms: u32) {
        self.ahead.fetch_add(ms, Ordering::Relaxed);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::time::Duration;

    use super::*;

    /// Rule 14: an entry expires when its time has passed, not before, and over a wrap too.
    #[test]
    fn rule14_deadlines_pass_once_and_over_a_wrap() {
        let clock = Clock::default();
        assert!(!clock.passed(clock.deadline(Ttl::Forever)));
        assert!(clock.passed(clock.deadline(Ttl::ZERO)));
        for _ in 0..8 {
            clock.advance(1 << 29);
            let at = clock.deadline(Ttl::For(Duration::from_millis(1_000_000)));
            assert!(!clock.passed(at));
            clock.advance(1_000_000);
            assert!(clock.passed(at));
        }
    }

    #[test]
    fn an_epoch_is_believed_while_it_lasts() {
        let clock = Clock::default();
        let asked = clock.epoch();
        assert!(is_epoch(asked) && clock.stands(asked) && !clock.passed(asked));
        assert!(clock.passed(SUSPECT) && !clock.stands(SUSPECT));
        clock.advance(u32::MAX / 2);
        assert!(!clock.passed(asked), "an epoch does not expire with time");
        clock.move_epoch();
        assert!(clock.passed(asked) && !clock.stands(asked));
        assert!(clock.stands(NEVER) && !clock.stands(clock.deadline(Ttl::For(Duration::from_millis(1000)))));
    }

    #[test]
    fn the_suspect_epoch_is_left_out() {
        let clock = Clock::default();
        clock.epoch.store(u32::MAX, Ordering::Relaxed);
        clock.move_epoch();
        assert_eq!(clock.epoch(), SUSPECT + 2);
    }
}
