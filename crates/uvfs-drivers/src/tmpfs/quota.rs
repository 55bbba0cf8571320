//! Limits of bytes and inodes, and inode numbers, which have no limit.
//!
//! A limited quantity has one counter, changed by compare-and-exchange, so no race can take it above the limit,
//! even for a moment. Every taker gives back exactly what it took. A write takes all it needs
//! in one step, so the counter's line is written once per call, and not at all by overwriting.
//! For an unlimited quantity each thread counts for itself, and a reader of the use sums the counts.

use crossbeam_utils::CachePadded;
use uvfs_sync::primitives::{AtomicU64, Ordering, SHARDS, Statistic, shard};

/// A limit and its use.
#[derive(Debug)]
pub(super) struct Limit {
    max: Option<u64>,
    /// The use, if there is a limit.
    used: CachePadded<AtomicU64>,
    /// The use, if there is no limit: what a shard's threads took, less what they gave back (may be below 0).
    shares: Box<[CachePadded<Statistic>]>,
}

impl Limit {
    /// `None`: no limit, but the use is still counted.
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

    /// Exact once concurrent takers and givers are done.
    pub(super) fn used(&self) -> u64 {
        let shares = self.shares.iter().fold(0, |sum: u64, share| sum.wrapping_add(share.get()));
        // A reader may see one thread's share without the share of another that belongs to it.
        self.used.load(Ordering::Relaxed) + (shares as i64).max(0) as u64
    }

    /// Takes all of `amount`, or nothing.
    #[must_use]
    pub(super) fn take(&self, amount: u64) -> bool {
        amount == 0 || self.take_up_to(amount, 1) == 1
    }

    /// Takes `unit` up to `count` times, as often as the limit allows. Returns how often.
    #[must_use]
    pub(super) fn take_up_to(&self, unit: u64, count: u64) -> u64 {
        /// This much may be taken 2^31 times before the sum wraps.
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
        // Relaxed: the number guards only itself.
        let mut used = self.used.load(Ordering::Relaxed);
        loop {
            let granted = count.min(max.saturating_sub(used) / unit);
            if granted == 0 {
                return 0;
            }
            // No overflow: granted * unit is at most the limit's remainder above `used`.
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

/// Largest unlimited use: the sum must not wrap.
const MOST: u64 = i64::MAX as u64;

/// Numbers that a shard takes at a time.
const BATCH: u64 = 64;

/// Inode numbers. They are never reused; the first one is the root directory's. Each shard of threads hands out
/// numbers from a batch that it took from the common counter, so threads that create files do not contend here.
#[derive(Debug)]
pub(super) struct Numbers {
    /// The next untaken number: one above a multiple of `BATCH`, as is the first of each batch.
    rest: CachePadded<AtomicU64>,
    /// The next number of each shard. If it is where a batch would begin, the shard has none left.
    next: [CachePadded<AtomicU64>; SHARDS],
}

impl Numbers {
    pub(super) fn new() -> Self {
        let one = || CachePadded::new(AtomicU64::new(1));
        Self { rest: one(), next: std::array::from_fn(|_| one()) }
    }

    /// A fresh number.
    pub(super) fn next(&self) -> u64 {
        let next = &self.next[shard()];
        let mut number = next.load(Ordering::Relaxed);
        loop {
            let new =
                if number % BATCH == 1 { self.rest.fetch_add(BATCH, Ordering::Relaxed) } else { number };
            // Relaxed: a number guards nothing. If another thread of the shard was faster, a batch taken in vain
            // stays unused.
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
