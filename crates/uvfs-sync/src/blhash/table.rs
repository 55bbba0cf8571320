//! One table of heads: where a hash belongs, and how its bucket is locked.

use super::Key;
use super::line::Line;
use crate::arena::Arena;
use crate::bitlock;
use crate::primitives::{AtomicU64, Ordering, fence, spin_loop};

pub(super) const LEVEL_SHIFT: u32 = 2;
pub(super) const LEVEL_MASK: u64 = 0x3f << LEVEL_SHIFT;
pub(super) const SEQ_ONE: u64 = 1 << 8;
/// Level of a new table's buckets.
pub(super) const START_LEVEL: u32 = if cfg!(loom) { 0 } else { 6 };

#[derive(Debug)]
pub(super) struct Table {
    pub(super) heads: Arena<Line>,
    /// `(level, buckets split at this level)` packed; a hint for readers, the truth for the
    /// splitter. Only grows while the table is in use.
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

    /// Make the table usable under a new key. Nobody looks for anything in it; but who locked one of
    /// its (empty) buckets before the last re-key ended may hold it still.
    pub(super) fn start(&self, key: Key) {
        self.key[0].store(key.0, Ordering::Relaxed);
        self.key[1].store(key.1, Ordering::Relaxed);
        for b in 0..1u32 << START_LEVEL {
            // The sequence goes on from where it was, so that a reader who slept through the
            // table's last use cannot take this one's header for the one it read.
            let header = &self.heads.get(b).header;
            bitlock::lock(header);
            bitlock::unlock_with(header, |w| with_level(w, START_LEVEL + 1));
        }
        self.size.store(u64::from(START_LEVEL) << 32, Ordering::Relaxed);
    }

    #[inline]
    pub(super) fn key(&self) -> Key {
        Key(self.key[0].load(Ordering::Relaxed), self.key[1].load(Ordering::Relaxed))
    }

    #[inline]
    pub(super) fn level_and_split(&self) -> (u32, u32) {
        // A hint: a bucket says by its own level whether it is the right one.
        let size = self.size.load(Ordering::Relaxed);
        ((size >> 32) as u32, size as u32)
    }

    pub(super) fn buckets(&self) -> u64 {
        let (level, split) = self.level_and_split();
        (1u64 << level) + u64::from(split)
    }

    /// Where the hash probably lives.
    #[inline]
    pub(super) fn guess(&self, hash: u64) -> u32 {
        let (level, split) = self.level_and_split();
        let low = hash as u32 & mask(level);
        if low < split { hash as u32 & mask(level + 1) } else { low }
    }

    /// Lock the buckets that the hashes belong to, in rising order; one lock if they are the same.
    /// False, with nothing locked: `valid` says that the table is not the one to look in any more.
    pub(super) fn lock(
        &self,
        hashes: &[u64],
        buckets: &mut [u32],
        emptied: bool,
        valid: impl Fn() -> bool,
    ) -> bool {
        loop {
            for (bucket, hash) in buckets.iter_mut().zip(hashes) {
                *bucket = self.guess(*hash);
            }
            let (low, high) = (buckets.iter().min().copied(), buckets.iter().max().copied());
            let (Some(low), Some(high)) = (low, high) else { return false };
            bitlock::lock(&self.heads.get(low).header);
            if high != low {
                bitlock::lock(&self.heads.get(high).header);
            }
            // A split may have come between the guess and the lock: then the level differs and
            // our entries are elsewhere.
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
                bitlock::unlock(&self.heads.get(high).header);
            }
            bitlock::unlock(&self.heads.get(low).header);
            if !valid {
                return false;
            }
            spin_loop();
        }
    }

    pub(super) fn unlock(&self, bucket: u32) {
        bitlock::unlock_with(&self.heads.get(bucket).header, |w| w.wrapping_add(SEQ_ONE));
    }
}

/// A header whose bucket changed, and has this level (plus one; 0: none) from now on.
pub(super) fn with_level(header: u64, level: u32) -> u64 {
    (header & !LEVEL_MASK).wrapping_add(SEQ_ONE) | u64::from(level) << LEVEL_SHIFT
}

#[inline]
fn mask(level: u32) -> u32 {
    ((1u64 << level) - 1) as u32
}

/// Whether a bucket with this header holds what has this hash. `emptied`: the table is the old one
/// of a re-key, which does not split any more, and whose buckets get level 0 when they are emptied.
#[inline]
pub(super) fn belongs(header: u64, hash: u64, bucket: u32, emptied: bool) -> bool {
    match ((header & LEVEL_MASK) >> LEVEL_SHIFT) as u32 {
        0 => emptied,
        level => hash as u32 & mask(level - 1) == bucket,
    }
}

/// The table that is current in an epoch; the other one is its successor while a re-key goes on.
#[inline]
pub(super) fn current_of(epoch: u32) -> usize {
    (epoch >> 1 & 1) as usize
}

#[inline]
pub(super) fn is_moving(epoch: u32) -> bool {
    epoch & 1 != 0
}

#[inline]
pub(super) fn tag_of(hash: u64) -> u8 {
    (hash >> 56) as u8
}
