//! One table of heads: the place of a hash, and the locking of its bucket.

use super::HashKey;
use super::bucket_line::Line;
use super::split_level::{GONE, SEQ_ONE, belongs, bucket_of, is_there, mask, with_level};
use crate::arena::Arena;
use crate::bitlock::{self, LOCK, WAIT};
use crate::lock_order::{self, Class};
use crate::primitives::{AtomicU64, Ordering, fence, spin_loop};

/// Level of a new table's buckets.
pub(super) const START_LEVEL: u32 = if cfg!(loom) { 0 } else { 6 };

#[derive(Debug)]
pub(super) struct Table {
    pub(super) heads: Arena<Line>,
    /// Mask of the level and the number of buckets split at this level, packed. A hint for readers, the
    /// truth for the splitter. Only grows while the table is in use.
    pub(super) size: AtomicU64,
    /// The key's two words; written only while the table is not in use.
    key: [AtomicU64; 2],
}

impl Table {
    pub(super) fn new(buckets: u32) -> std::io::Result<Self> {
        let table = Self {
            heads: Arena::reserve(buckets)?,
            size: AtomicU64::new(0),
            key: [AtomicU64::new(0), AtomicU64::new(0)],
        };
        Ok(table)
    }

    /// Make the table usable under a new key. Nobody looks for anything in it. But a thread that locked one
    /// of its (empty) buckets before the last re-key ended may still hold it.
    pub(super) fn start(&self, key: HashKey) {
        // A reader may still look here, in an epoch that is over: its hash then mixes an old place and a
        // new key. If it sees one of these stores, its acquire fence (in `scan`, in `rules_out`) makes it
        // see that the epoch has moved, and it proves nothing. If it sees none, it has the key of its
        // epoch.
        fence(Ordering::Release);
        self.key[0].store(key.0, Ordering::Relaxed);
        self.key[1].store(key.1, Ordering::Relaxed);
        for b in 0..1u32 << START_LEVEL {
            // The sequence continues from its old value, so that a reader that slept through the table's
            // last use cannot take this header for the one it read.
            let header = &self.heads.get(b).header;
            bitlock::lock(header);
            bitlock::unlock_with(header, |w| with_level(w, START_LEVEL + 1));
        }
        self.heads.begin_anew();
        self.set_size(START_LEVEL, 0);
    }

    #[inline]
    pub(super) fn key(&self) -> HashKey {
        HashKey(self.key[0].load(Ordering::Relaxed), self.key[1].load(Ordering::Relaxed))
    }

    /// Number of buckets at the present level, less one, and how many of them are split already. A hint: a
    /// bucket's own level tells whether it is the right one.
    #[inline(always)]
    pub(super) fn mask_and_split(&self) -> (u32, u32) {
        let size = self.size.load(Ordering::Relaxed);
        ((size >> 32) as u32, size as u32)
    }

    pub(super) fn level_and_split(&self) -> (u32, u32) {
        let (mask, split) = self.mask_and_split();
        (mask.count_ones(), split)
    }

    /// Set the values that [`Table::level_and_split`] returns.
    pub(super) fn set_size(&self, level: u32, split: u32) {
        self.size.store(u64::from(mask(level)) << 32 | u64::from(split), Ordering::Relaxed);
    }

    pub(super) fn buckets(&self) -> u64 {
        let (level, split) = self.level_and_split();
        (1u64 << level) + u64::from(split)
    }

    /// The probable bucket of the hash.
    #[inline]
    fn guess(&self, hash: u64) -> u32 {
        let (mask, split) = self.mask_and_split();
        bucket_of(hash, mask, split)
    }

    /// Begin to look for a hash: the bucket, with its header read before anything else in it.
    #[inline(always)]
    pub(super) fn look(&self, hash: u64) -> Looked<'_> {
        let bucket = self.guess(hash);
        let head = self.heads.get(bucket);
        // Acquire: pairs with the unlock of the last thread that changed the chain. Either this sees the
        // whole change, or the header has moved when it is looked at again.
        let header = head.header.load(Ordering::Acquire);
        Looked { head, seen: Seen { header, bucket }, tag: tag_of(hash) }
    }

    /// Continue with a bucket that was looked at.
    #[inline]
    pub(super) fn again(&self, seen: Seen) -> Looked<'_> {
        Looked { head: self.heads.get(seen.bucket), seen, tag: 0 }
    }

    /// Lock the buckets to which the hashes belong, in rising order; one lock if they are the same. False,
    /// with nothing locked: `valid` says that this is no longer the table to look in.
    #[inline]
    pub(super) fn lock<const N: usize>(
        &self,
        hashes: &[u64; N],
        buckets: &mut [u32; N],
        emptied: bool,
        valid: impl Fn() -> bool,
    ) -> bool {
        loop {
            for (bucket, hash) in buckets.iter_mut().zip(hashes) {
                *bucket = self.guess(*hash);
            }
            let (low, high) = (buckets.iter().min().copied(), buckets.iter().max().copied());
            let (Some(low), Some(high)) = (low, high) else { return false };
            if !self.lock_one(low, emptied) {
                // The table has ended, or the guess dates from a time when it was larger.
                if !valid() {
                    return false;
                }
                spin_loop();
                continue;
            }
            if high != low && !self.lock_one(high, emptied) {
                self.let_go(low);
                if !valid() {
                    return false;
                }
                spin_loop();
                continue;
            }
            // A split may have come between the guess and the lock: then the level differs and our entries
            // are elsewhere.
            let right = |(bucket, hash): (&u32, &u64)| {
                belongs(self.heads.get(*bucket).header.load(Ordering::Relaxed), *hash, *bucket, emptied)
            };
            let valid = valid();
            if valid && buckets.iter().zip(hashes).all(right) {
                // Readers that see any of our stores must see the lock bits too (rule 3).
                fence(Ordering::Release);
                return true;
            }
            if high != low {
                self.let_go(high);
            }
            self.let_go(low);
            if !valid {
                return false;
            }
            spin_loop();
        }
    }

    /// End buckets `from..to` after the table's end, when all its buckets are empty, and return their
    /// memory to the system. This waits for a thread that holds one of their locks (an emptied bucket's,
    /// since before the end). From then on nobody can take the lock. If the memory stays, it is used again.
    pub(super) fn retire(&self, from: u32, to: u32) {
        for bucket in from..to {
            let header = &self.heads.get(bucket).header;
            bitlock::lock(header);
            bitlock::unlock_with(header, |w| with_level(w, GONE));
        }
        if cfg!(loom) {
            // The effect of giving back, without pages.
            (from..to).for_each(|bucket| self.heads.get(bucket).header.store(0, Ordering::Relaxed));
        }
        let _ = self.heads.give_back(from, to);
    }

    /// Unlock a bucket that was not the right one, unchanged.
    #[cold]
    fn let_go(&self, bucket: u32) {
        self.unlock_with(bucket, |w| w);
    }

    /// Lock a bucket, unless it is gone. `emptied`: the table is the old one of a re-key.
    #[inline(always)]
    fn lock_one(&self, bucket: u32, emptied: bool) -> bool {
        lock_order::enter(Class::Bucket, u64::from(!emptied) << 32 | u64::from(bucket));
        let locked = bitlock::lock_if(&self.heads.get(bucket).header, is_there);
        if !locked {
            lock_order::leave(Class::Bucket);
        }
        locked
    }

    /// Lock a bucket that nobody but the caller can end, or make. `emptied`: the table is the old one of a
    /// re-key.
    pub(super) fn lock_own(&self, bucket: u32, emptied: bool) {
        lock_order::enter(Class::Bucket, u64::from(!emptied) << 32 | u64::from(bucket));
        bitlock::lock(&self.heads.get(bucket).header);
    }

    pub(super) fn unlock(&self, bucket: u32) {
        self.unlock_with(bucket, |w| w.wrapping_add(SEQ_ONE));
    }

    /// Unlock a bucket, and change its header by `change`.
    pub(super) fn unlock_with(&self, bucket: u32, change: impl Fn(u64) -> u64) {
        bitlock::unlock_with(&self.heads.get(bucket).header, change);
        lock_order::leave(Class::Bucket);
    }
}

/// A bucket, and its header, read before anything else in it.
#[derive(Clone, Copy, Debug)]
pub struct Seen {
    pub(super) header: u64,
    pub(super) bucket: u32,
}

/// A bucket that is being looked at.
#[derive(Clone, Copy)]
pub(super) struct Looked<'a> {
    pub(super) head: &'a Line,
    pub(super) seen: Seen,
    pub(super) tag: u8,
}

impl Looked<'_> {
    /// Whether the header, as it was, allows a conclusion from an absence in the chain: nobody was changing
    /// the chain, and the hash belongs here.
    #[inline]
    pub(super) fn proves(&self, hash: u64, emptied: bool) -> bool {
        self.seen.header & LOCK == 0 && belongs(self.seen.header, hash, self.seen.bucket, emptied)
    }

    /// Whether the header is still the same; called after an acquire fence. In the table's next use it may
    /// come to look the same. But a reader that misses an entry because it was moved out of the table sees
    /// the epoch of that move, and it checks the epoch too.
    #[inline]
    pub(super) fn stands(&self) -> bool {
        self.head.header.load(Ordering::Relaxed) & !WAIT == self.seen.header & !WAIT
    }
}

/// The table that is current in an epoch; the other one is its successor during a re-key.
#[inline]
pub(super) fn current_of(epoch: u32) -> usize {
    (epoch >> 1 & 1) as usize
}

#[inline]
pub(super) fn is_moving(epoch: u32) -> bool {
    epoch & 1 != 0
}

#[inline(always)]
pub(super) fn tag_of(hash: u64) -> u8 {
    (hash >> 56) as u8
}
