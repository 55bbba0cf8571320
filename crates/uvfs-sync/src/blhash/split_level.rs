//! A bucket's level: how many bits of a hash lead to it. A split raises the level, and a look or a lock checks it
//! (rule 5).

use crate::bitlock::WAIT;

pub(super) const LEVEL_SHIFT: u32 = 2;
pub(super) const LEVEL_MASK: u64 = 0x3f << LEVEL_SHIFT;
pub(super) const SEQ_ONE: u64 = 1 << 8;
/// In place of the level plus one: the bucket no longer exists, and its memory may go at any time.
pub(super) const GONE: u32 = 63;

/// The header of a changed bucket that now has this level (plus one; 0: none).
pub(super) fn with_level(header: u64, level: u32) -> u64 {
    (header & !LEVEL_MASK).wrapping_add(SEQ_ONE) | u64::from(level) << LEVEL_SHIFT
}

/// Whether this bucket exists. A bucket whose memory is untouched, or was given back, is locked only by the
/// thread that makes it.
pub(super) fn is_there(header: u64) -> bool {
    header & !WAIT != 0 && (header & LEVEL_MASK) >> LEVEL_SHIFT != u64::from(GONE)
}

/// The bucket of a hash in a table of this size: buckets that are split use one bit more.
#[inline(always)]
pub(super) fn bucket_of(hash: u64, mask: u32, split: u32) -> u32 {
    let low = hash as u32 & mask;
    if low < split { hash as u32 & (mask << 1 | 1) } else { low }
}

#[inline]
pub(super) fn mask(level: u32) -> u32 {
    ((1u64 << level) - 1) as u32
}

/// Whether entries with this hash belong to a bucket with this header. `emptied`: the table is the old one
/// of a re-key, which no longer splits, and whose buckets get level 0 when they are emptied.
#[inline]
pub(super) fn belongs(header: u64, hash: u64, bucket: u32, emptied: bool) -> bool {
    match ((header & LEVEL_MASK) >> LEVEL_SHIFT) as u32 {
        0 => emptied,
        GONE => false,
        level => hash as u32 & mask(level - 1) == bucket,
    }
}
