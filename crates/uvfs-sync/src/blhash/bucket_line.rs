//! One cache line of a bucket's chain.
//!
//! Tags and slots are written under the lock in the head's header, and read by any thread.

use crate::arena::Slot;
use crate::primitives::{AtomicU32, AtomicU64, Ordering};

/// Entries in a line. Fewer under loom, which pays for every look.
pub(super) const SLOTS: usize = if cfg!(loom) { 3 } else { 10 };

const ONES: u64 = 0x0101_0101_0101_0101;

/// The high bit of each byte of `x` that is zero (and perhaps of one above such a byte).
#[inline]
fn zero_bytes(x: u64) -> u64 {
    x.wrapping_sub(ONES) & !x & (ONES << 7)
}

/// One cache line of a chain. The header is used in heads only.
#[derive(Debug)]
#[repr(C, align(64))]
pub(super) struct Line {
    /// `LOCK`, `WAIT`, level + 1 (0: this bucket does not exist yet), sequence.
    pub(super) header: AtomicU64,
    /// Tags of slots 0 to 7, one byte each.
    tags: AtomicU64,
    /// Tags of slots 8 and 9.
    more_tags: AtomicU32,
    pub(super) next: AtomicU32,
    pub(super) slots: [AtomicU32; SLOTS],
}

impl Line {
    /// Marks of the first eight slots whose tag is (probably) `tag`. A borrow in the byte-wise comparison
    /// can add a slot, never hide one.
    #[inline(always)]
    pub(super) fn first_marks(&self, tag: u8) -> u64 {
        zero_bytes(self.tags.load(Ordering::Relaxed) ^ (u64::from(tag) * ONES))
    }

    /// The same for the last two slots.
    #[inline(always)]
    pub(super) fn last_marks(&self, tag: u8) -> u64 {
        let differ = self.more_tags.load(Ordering::Relaxed) ^ (u32::from(tag) * 0x0101);
        zero_bytes(u64::from(differ & 0xffff) | !0xffff)
    }

    /// The index in a slot; 0 for a slot that does not exist. Acquire: pairs with the release store of
    /// `put`, so that the object is seen as it was filled before it was published (rule 16).
    #[inline(always)]
    pub(super) fn index(&self, slot: usize) -> u32 {
        self.slots.get(slot).map_or(0, |slot| slot.load(Ordering::Acquire))
    }

    /// The indices in all slots whose tag is (probably) `tag`, each with its slot. Most often there is none
    /// or one, so this goes through the marks and not the slots.
    #[inline]
    pub(super) fn candidates(&self, tag: u8) -> Candidates<'_> {
        Candidates { line: self, marks: [self.first_marks(tag), self.last_marks(tag)] }
    }

    /// The slot of an index with this tag.
    #[inline]
    pub(super) fn slot_of(&self, tag: u8, index: u32) -> Option<usize> {
        self.candidates(tag).find(|(_, found)| *found == index).map(|(slot, _)| slot)
    }

    pub(super) fn tag(&self, slot: usize) -> u8 {
        match slot {
            0..8 => (self.tags.load(Ordering::Relaxed) >> (8 * slot)) as u8,
            _ => (self.more_tags.load(Ordering::Relaxed) >> (8 * (slot - 8))) as u8,
        }
    }

    /// Under the head's lock, so a plain load and store suffice.
    pub(super) fn set_tag(&self, slot: usize, tag: u8) {
        if slot < 8 {
            let shift = 8 * slot;
            let rest = self.tags.load(Ordering::Relaxed) & !(0xff << shift);
            self.tags.store(rest | u64::from(tag) << shift, Ordering::Relaxed);
        } else {
            let shift = 8 * (slot - 8);
            let rest = self.more_tags.load(Ordering::Relaxed) & !(0xff << shift);
            self.more_tags.store(rest | u32::from(tag) << shift, Ordering::Relaxed);
        }
    }

    /// Empty the slots from this one on; under the head's lock.
    pub(super) fn clear_from(&self, slot: usize) {
        for i in slot..SLOTS {
            self.slots[i].store(0, Ordering::Relaxed);
        }
        let kept = |slots: usize| 1u64.checked_shl(8 * slots as u32).map_or(u64::MAX, |bit| bit - 1);
        self.tags.store(self.tags.load(Ordering::Relaxed) & kept(slot), Ordering::Relaxed);
        let more = self.more_tags.load(Ordering::Relaxed) & kept(slot.saturating_sub(8)) as u32;
        self.more_tags.store(more, Ordering::Relaxed);
    }
}

/// See [`Line::candidates`].
pub(super) struct Candidates<'l> {
    line: &'l Line,
    /// The highest bit of a byte for each slot still to be looked at: first eight slots, then the others.
    marks: [u64; 2],
}

impl Iterator for Candidates<'_> {
    type Item = (usize, u32);

    #[inline]
    fn next(&mut self) -> Option<(usize, u32)> {
        loop {
            let half = usize::from(self.marks[0] == 0);
            let marks = &mut self.marks[half];
            if *marks == 0 {
                return None;
            }
            let slot = 8 * half + marks.trailing_zeros() as usize / 8;
            *marks &= *marks - 1;
            match self.line.index(slot) {
                0 => {}
                index => return Some((slot, index)),
            }
        }
    }
}

#[cfg(not(loom))]
const _: () = assert!(size_of::<Line>() == 64);

// SAFETY: atomics only, all-zero is an empty line of a bucket that does not exist, no drop.
unsafe impl Slot for Line {
    #[cfg(loom)]
    fn zero() -> Self {
        Self {
            header: AtomicU64::new(0),
            tags: AtomicU64::new(0),
            more_tags: AtomicU32::new(0),
            next: AtomicU32::new(0),
            slots: std::array::from_fn(|_| AtomicU32::new(0)),
        }
    }
}
