//! Targets of symbolic links, cached to be read without a reference.
//!
//! A driver may promise that a link's target never changes while its inode lives. Its targets are then
//! cached here when they are first read. The target stands in a type-stable slot. The inode's private half
//! has the slot's index, set once in a generation by a compare-exchange. A reader copies between two looks
//! at the inode's sequence, as for attributes. An inode's end moves the sequence before the slot is freed,
//! and a writer that fills a slot puts a release fence before its stores. So a copy with a byte of the next
//! owner's target sees the sequence moved.
//!
//! Targets longer than [`TARGET_MAX`] are not cached; their driver is asked each time. Costs 128 bytes per
//! link that was read.

use uvfs_sync::arena::Arena;
use uvfs_sync::primitives::{AtomicU64, Ordering, fence};
use uvfs_sync::slab::{Pool, Slab};
use uvfs_sync::slot;

use crate::cache::Cache;
use crate::inodes::attr::{Attr, mode};
use crate::inodes::inode_ref::InodeRef;
use crate::walk::step::{Child, Pos, Retry};

/// The longest target that is cached, in bytes.
pub const TARGET_MAX: usize = WORDS * 8;

/// Words of a target; the slot has one more for the length.
const WORDS: usize = if cfg!(loom) { 1 } else { 15 };

slot! {
    #[derive(Debug)]
    #[repr(C)]
    pub(crate) struct Slot { len: AtomicU64, words: [AtomicU64; WORDS] }
}

#[cfg(not(loom))]
const _: () = assert!(size_of::<Slot>() == 128);

const CHUNK_BYTES: u64 = uvfs_sync::slab::CHUNK as u64 * size_of::<Slot>() as u64;

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
    pub(crate) fn fill(&self, target: &[u8], may_grow: &dyn Fn() -> bool) -> Option<u32> {
        if target.len() > TARGET_MAX {
            return None;
        }
        let index = self.slab.alloc_within(&self.pool, may_grow)?;
        let slot = self.arena.get(index);
        // A reader of the slot's last target may still be looking here: rule 3.
        fence(Ordering::Release);
        slot.len.store(target.len() as u64, Ordering::Relaxed);
        for (word, bytes) in slot.words.iter().zip(target.chunks(8)) {
            let mut padded = [0; 8];
            padded[..bytes.len()].copy_from_slice(bytes);
            word.store(u64::from_le_bytes(padded), Ordering::Relaxed);
        }
        Some(index)
    }

    /// Free a slot whose inode's sequence has moved, or that was never published; 0: none.
    pub(crate) fn free(&self, index: u32) {
        if index != 0 {
            self.pool.free(index, |_| &self.slab);
        }
    }

    /// Copy a target out; returns its length, clamped, because it may be torn.
    fn copy(&self, index: u32, out: &mut [u8; TARGET_MAX]) -> usize {
        let slot = self.arena.get(index);
        let len = (slot.len.load(Ordering::Relaxed) as usize).min(TARGET_MAX);
        for (bytes, word) in out[..len.next_multiple_of(8)].chunks_mut(8).zip(&slot.words) {
            bytes.copy_from_slice(&word.load(Ordering::Relaxed).to_le_bytes());
        }
        len
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

impl Cache {
    /// Attributes and target of the symbolic link that `at` leads to, both of one moment (rule 7), with the
    /// target's length in `out`. `None`: the target is not cached.
    ///
    /// # Errors
    /// [`Retry`] says what moved.
    pub fn child_target(
        &self,
        at: Pos,
        child: &Child,
        out: &mut [u8; TARGET_MAX],
    ) -> Result<Option<(Attr, usize)>, Retry> {
        let (published, private) = (self.inodes.get(child.inode), self.inodes_private.get(child.inode));
        let seq = published.seq.begin().ok_or(Retry::Inode)?;
        let attr = published.copy(|| private);
        // Pairs with the release in `keep_target`: a reader that sees the slot sees its content.
        let slot = if attr.is_symlink() { private.alias.load(Ordering::Acquire) } else { 0 };
        let len = if slot == 0 { 0 } else { self.targets.copy(slot, out) };
        if !published.seq.check(seq) {
            return Err(Retry::Inode);
        }
        if !self.still(child) {
            return Err(Retry::Dentry);
        }
        if !self.check(at) {
            return Err(Retry::Parent);
        }
        Ok((slot != 0).then_some((attr, len)))
    }
}

impl InodeRef<'_> {
    /// Cache a symbolic link's target, which will not change while the inode lives. If it is longer than
    /// [`TARGET_MAX`] or there is no memory, it is not cached, and the driver is asked again next time.
    pub fn keep_target(&self, target: &[u8]) {
        let (word, targets) = (&self.private_half().alias, &self.cache().targets);
        if self.fmt() != mode::S_IFLNK || word.load(Ordering::Relaxed) != 0 {
            return;
        }
        let may_grow = || self.cache().may_grow(CHUNK_BYTES);
        let Some(slot) = targets.fill(target, &may_grow) else { return };
        // A thread that comes second finds the same target there, and has not published its own slot.
        if word.compare_exchange(0, slot, Ordering::Release, Ordering::Relaxed).is_err() {
            targets.free(slot);
        }
    }
}
