//! Chunks of a slab, as the arenas of inodes and of dentries use them.
//!
//! A chunk counts as committed from its first slot on, until its memory is given back. That memory then
//! reads as zero. So a chunk has a *floor*, which lies above every generation and every sequence that was
//! in it. A reader that slept through all of it finds neither again.

use uvfs_sync::primitives::Ordering;
use uvfs_sync::seqcount::SeqCount;
use uvfs_sync::slab::{CHUNK, Slab};

/// Whether an unused slot is the first one taken from a new chunk, in a slab that has other chunks. A user
/// that has filled one chunk is likely to fill another, and the whole chunk counts as committed from here
/// on.
pub(crate) fn begins_chunk(index: u32, slab: &Slab) -> bool {
    index.is_multiple_of(CHUNK) && slab.chunk_count() > 1
}

/// Memory that was given back reads as zero. The slot's sequence then continues above every value that it
/// had (see `floor_of`).
pub(crate) fn above_floor(seq: &SeqCount, floor: impl Fn() -> u32) {
    if seq.raw().load(Ordering::Relaxed) == 0 {
        seq.raw().store(floor() * 2, Ordering::Relaxed);
    }
}

/// A number above all these generations, and whose double is above all these sequences. `None`: the numbers
/// are so close to their end that the memory is kept.
pub(crate) fn floor_of<'a>(slots: impl Iterator<Item = (u32, &'a SeqCount)>) -> Option<u32> {
    let floor =
        slots.map(|(generation, seq)| generation.max(seq.raw().load(Ordering::Relaxed) / 2 + 1)).max();
    floor.filter(|floor| *floor < u32::MAX / 2)
}
