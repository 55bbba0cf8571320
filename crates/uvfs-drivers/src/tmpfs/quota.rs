//! Limits: bytes and inodes. And inode numbers, which there is no end of.
//!
//! What is limited is counted by one counter, changed by compare-and-exchange so that no race can take it above the limit,
//! not even for a moment. Whoever takes gives back exactly that much. A write takes all it needs
//! in one step, so the counter's line is written once a call, and not at all by overwriting.
//! What is not limited is counted by each thread for itself, and summed by who asks.

use crossbeam_utils::CachePadded;
use uvfs_sync::primitives::{AtomicU64, Ordering, SHARDS, Stat, shard};

/// A limit and how much of it is used.
#[derive(Debug)]
pub(super) struct Limit {
    max: Option<u64>,
    /// Where there is a limit.
    used: CachePadded<AtomicU64>,
    /// Where there is none: what the threads of a shard took, less what they gave back (it may be below 0).
    shares: Box<[CachePadded<Stat>]>,
}

impl Limit {
    /// `None`: no limit, but the use is counted all the same.
    pub(super) fn new(max: Option<u64>) -> Self {
        let shares = if max.is_some() { 0 } else { SHARDS };
        Self {
            max,
            used: CachePadded::default(),
            shares: (0..shares).map(|_| CachePadded::default()).collect(),
        }
    }

    pub(super) fn max(&self) -> Option<u64> {
        self.max
    }

    /// Exact once those who take and give are done.
    pub(super) fn used(&self) -> u64 {
        let shares = self.shares.iter().fold(0, |sum: u64, share| sum.wrapping_add(share.get()));
        // One thread's share may be seen without another's that it belongs to.
        self.used.load(Ordering::Relaxed) + (shares as i64).max(0) as u64
    }

    /// All of `amount`, or nothing.
    #[must_use]
    pub(super) fn take(&self, amount: u64) -> bool {
        amount == 0 || self.take_up_to(amount, 1) == 1
    }

    /// As many as there is room for of `count` times `unit`; says how many.
    #[must_use]
    pub(super) fn take_up_to(&self, unit: u64, count: u64) -> u64 {
        /// So much may be taken 2^31 times before the sum wraps.
        const SMALL: u64 = u32::MAX as u64;
        if unit == 0 || count == 0 {
            return count;
        }
        let Some(max) = self.max else {
            let room =
                if unit.saturating_mul(count) <= SMALL { SMALL } else { MOST.saturating_sub(self.used()) };
            let granted = count.min(room / unit);
            self.shares[shard()].add(granted * unit);
            return granted;
        };
        // Relaxed: the number guards nothing but itself.
        let mut used = self.used.load(Ordering::Relaxed);
        loop {
            let granted = count.min(max.saturating_sub(used) / unit);
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
        if self.max.is_none() {
            return self.shares[shard()].sub(amount);
        }
        let before = self.used.fetch_sub(amount, Ordering::Relaxed);
        debug_assert!(before >= amount, "more was given back than taken");
    }
}

/// What is counted where there is no limit may not come above this: the sum must not wrap.
const MOST: u64 = i64::MAX as u64;

/// Numbers that a shard takes at once.
const BATCH: u64 = 64;

/// Inode numbers. They are never used again; the first one is the root directory's. Each shard of threads hands out
/// some that it has taken from all, so that those who make files do not meet here.
#[derive(Debug)]
pub(super) struct Numbers {
    /// The next that nobody has taken: one above a multiple of `BATCH`, as all that a batch begins with.
    rest: CachePadded<AtomicU64>,
    /// The next that each shard hands out; where a batch would begin, the shard has none left.
    next: [CachePadded<AtomicU64>; SHARDS],
}

impl Numbers {
    pub(super) fn new() -> Self {
        let one = || CachePadded::new(AtomicU64::new(1));
        Self { rest: one(), next: std::array::from_fn(|_| one()) }
    }

    /// A number that nobody had.
    pub(super) fn next(&self) -> u64 {
        let next = &self.next[shard()];
        let mut number = next.load(Ordering::Relaxed);
        loop {
            let new =
                if number % BATCH == 1 { self.rest.fetch_add(BATCH, Ordering::Relaxed) } else { number };
            // Relaxed: a number guards nothing. Another thread of the shard was faster: a batch that was taken in vain
            // is nobody's.
            match next.compare_exchange_weak(number, new + 1, Ordering::Relaxed, Ordering::Relaxed) {
                Ok(_) => return new,
                Err(now) => number = now,
            }
        }
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
    fn no_number_comes_twice() {
        let numbers = Numbers::new();
        assert_eq!(numbers.next(), 1);
        let mut all: Vec<u64> = std::thread::scope(|s| {
            let threads: Vec<_> = (0..2 * SHARDS)
                .map(|_| s.spawn(|| (0..1000).map(|_| numbers.next()).collect::<Vec<_>>()))
                .collect();
            threads.into_iter().flat_map(|t| t.join().unwrap()).collect()
        });
        all.sort_unstable();
        assert!(all.first() > Some(&1) && all.windows(2).all(|pair| pair[0] < pair[1]));
    }

    #[test]
    fn what_one_thread_took_another_gives_back() {
        for max in [None, Some(100)] {
            let limit = Limit::new(max);
            assert_eq!(limit.take_up_to(10, 5), 5);
            std::thread::scope(|s| s.spawn(|| limit.give(20)).join().unwrap());
            assert_eq!(limit.used(), 30);
            limit.give(30);
            assert_eq!(limit.used(), 0);
        }
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
