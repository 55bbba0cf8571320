//! Limits: bytes and inodes.
//!
//! One counter each, changed by compare-and-exchange so that no race can take it above the limit,
//! not even for a moment. Whoever takes gives back exactly that much. A write takes all it needs
//! in one step, so the counter's line is written once a call, and not at all by overwriting.

use std::sync::atomic::{AtomicU64, Ordering};

/// A limit and how much of it is used.
#[derive(Debug)]
pub(super) struct Limit {
    max: Option<u64>,
    used: AtomicU64,
}

impl Limit {
    /// `None`: no limit, but the use is counted all the same.
    pub(super) fn new(max: Option<u64>) -> Self {
        Self { max, used: AtomicU64::new(0) }
    }

    pub(super) fn max(&self) -> Option<u64> {
        self.max
    }

    pub(super) fn used(&self) -> u64 {
        self.used.load(Ordering::Relaxed)
    }

    /// All of `amount`, or nothing.
    #[must_use]
    pub(super) fn take(&self, amount: u64) -> bool {
        amount == 0 || self.take_up_to(amount, 1) == 1
    }

    /// As many as there is room for of `count` times `unit`; says how many.
    #[must_use]
    pub(super) fn take_up_to(&self, unit: u64, count: u64) -> u64 {
        if unit == 0 || count == 0 {
            return count;
        }
        // Relaxed: the number guards nothing but itself.
        let mut used = self.used.load(Ordering::Relaxed);
        loop {
            let room = self.max.unwrap_or(u64::MAX).saturating_sub(used);
            let granted = count.min(room / unit);
            if granted == 0 {
                return 0;
            }
            // No overflow: granted * unit is at most the room above `used`.
            let new = used + granted * unit;
            match self.used.compare_exchange_weak(used, new, Ordering::Relaxed, Ordering::Relaxed) {
                Ok(_) => return granted,
                Err(now) => used = now,
            }
        }
    }

    pub(super) fn give(&self, amount: u64) {
        let before = self.used.fetch_sub(amount, Ordering::Relaxed);
        debug_assert!(before >= amount, "more was given back than taken");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_granted_beyond_the_limit() {
        let limit = Limit::new(Some(10));
        assert!(limit.take(7));
        assert!(!limit.take(4));
        assert_eq!(limit.take_up_to(2, 5), 1);
        assert_eq!(limit.take_up_to(2, 5), 0);
        assert_eq!(limit.take_up_to(1, 5), 1);
        assert_eq!(limit.used(), 10);
        assert!(limit.take(0));
        limit.give(10);
        assert_eq!(limit.used(), 0);
        assert!(!limit.take(u64::MAX));
        assert_eq!(limit.take_up_to(u64::MAX, u64::MAX), 0);
    }

    #[test]
    fn without_a_limit_the_use_is_counted() {
        let limit = Limit::new(None);
        assert_eq!(limit.take_up_to(4096, 1 << 40), 1 << 40);
        assert!(!limit.take(u64::MAX), "the counter itself must not wrap");
        assert_eq!(limit.used(), 1 << 52);
    }

    #[test]
    fn racing_takers_never_get_more_than_there_is() {
        let limit = Limit::new(Some(1000));
        let got: u64 = std::thread::scope(|s| {
            let threads: Vec<_> =
                (0..8).map(|_| s.spawn(|| (0..1000).map(|_| limit.take_up_to(3, 2)).sum::<u64>())).collect();
            threads.into_iter().map(|t| t.join().unwrap()).sum()
        });
        assert_eq!(got, 333);
        assert_eq!(limit.used(), 999);
    }
}
