//! Slots of the targets of symbolic links ([`crate::walk::cached_link_targets`] reads them).
//!
//! Type-stable, 128 bytes each. Nothing here is locked but the slab. A writer that fills a slot puts a
//! release fence before its stores, and the inode's sequence moves before the slot is freed. So a reader
//! that copied a byte of the next owner's target finds that sequence moved.

use uvfs_sync::arena::Arena;
use uvfs_sync::primitives::{AtomicU64, Ordering, fence};
use uvfs_sync::slab::{Pool, Slab};
use uvfs_sync::slot;

/// The longest target that is cached, in bytes.
pub const TARGET_MAX: usize = WORDS * 8;

/// Words of a target; the slot has one more, with the length and [`TIMELESS`].
const WORDS: usize = if cfg!(loom) { 1 } else { 15 };

slot! {
    #[derive(Debug)]
    #[repr(C)]
    pub(crate) struct Slot { head: AtomicU64, words: [AtomicU64; WORDS] }
}

#[cfg(not(loom))]
const _: () = assert!(size_of::<Slot>() == 128);

/// In place of a slot: no target of this inode is cached any more.
pub(crate) const UNKEPT: u32 = u32::MAX;

/// Flag beside the length: no read of the target moves the access time.
const TIMELESS: u64 = 1 << 32;

/// A copy of a slot, besides the text.
pub(crate) struct Copied {
    /// The length, clamped, because it may be torn.
    pub len: usize,
    /// No read moves the access time.
    pub timeless: bool,
}

/// Bytes of a chunk of targets.
pub(crate) const CHUNK_BYTES: u64 = uvfs_sync::slab::CHUNK as u64 * size_of::<Slot>() as u64;

/// All cached targets of a cache.
#[derive(Debug)]
pub(crate) struct Targets {
    arena: Arena<Slot>,
    pool: Pool,
    slab: Slab,
}

impl Targets {
    pub(crate) fn new(capacity: u32) -> std::io::Result<Self> {
        let arena = Arena::reserve(capacity.min(if cfg!(loom) { 2 } else { 1 << 24 }))?;
        Ok(Self { pool: Pool::new(arena.capacity()), arena, slab: Slab::new(0) })
    }

    /// A slot filled with this target; `None` if it is too long, or no slot is left. `may_grow` is asked
    /// before memory is taken.
    pub(crate) fn fill(&self, target: &[u8], timeless: bool, may_grow: &dyn Fn() -> bool) -> Option<u32> {
        if target.len() > TARGET_MAX {
            return None;
        }
        let index = self.slab.alloc_within(&self.pool, may_grow)?;
        let slot = self.arena.get(index);
        // A reader of the slot's last target may still be looking here: rule 3.
        fence(Ordering::Release);
        let flag = if timeless { TIMELESS } else { 0 };
        slot.head.store(target.len() as u64 | flag, Ordering::Relaxed);
        for (word, bytes) in slot.words.iter().zip(target.chunks(8)) {
            let mut padded = [0; 8];
            padded[..bytes.len()].copy_from_slice(bytes);
            word.store(u64::from_le_bytes(padded), Ordering::Relaxed);
        }
        Some(index)
    }

    /// Free a slot whose inode's sequence has moved, or that was never published; 0 and [`UNKEPT`] are none.
    pub(crate) fn free(&self, index: u32) {
        if !matches!(index, 0 | UNKEPT) {
            self.pool.free(index, |_| &self.slab);
        }
    }

    /// Copy a target out.
    pub(crate) fn copy(&self, index: u32, out: &mut [u8; TARGET_MAX]) -> Copied {
        let slot = self.arena.get(index);
        let head = slot.head.load(Ordering::Relaxed);
        let len = (head as u32 as usize).min(TARGET_MAX);
        for (bytes, word) in out[..len.next_multiple_of(8)].chunks_mut(8).zip(&slot.words) {
            bytes.copy_from_slice(&word.load(Ordering::Relaxed).to_le_bytes());
        }
        Copied { len, timeless: head & TIMELESS != 0 }
    }

    pub(crate) fn bytes(&self) -> u64 {
        u64::from(self.pool.chunks_out()) * CHUNK_BYTES
    }

    /// Return chunks without a target to the system. A reader of such a slot finds zeroes, and an inode
    /// whose sequence has moved.
    pub(crate) fn trim(&self) {
        self.slab.trim(&self.pool, |_, _| Some(0), |from, to| self.arena.give_back(from, to));
    }
}
