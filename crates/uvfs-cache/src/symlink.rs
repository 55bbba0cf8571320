//! Targets of symbolic links, kept to be read without a reference.
//!
//! A driver that promises that a link's target never changes while its inode lives has it kept here
//! when it is first asked for. The target stands in a type-stable slot; the inode's private half has
//! the slot's index, set once in a generation by a compare-exchange. A reader copies between two looks at
//! the inode's sequence, like attributes: an inode's end moves the sequence before its slot is freed,
//! and who fills a slot puts a release fence before its stores, so a copy that has a byte of the next
//! owner's sees the sequence moved.
//!
//! Targets longer than [`TARGET_MAX`] are not kept; their driver is asked each time. Costs 128 bytes
//! a link that was read.

use uvfs_sync::arena::Arena;
use uvfs_sync::primitives::{AtomicU64, Ordering, fence};
use uvfs_sync::slab::{Pool, Slab};
use uvfs_sync::slot;

use crate::attr::{Attr, mode};
use crate::cache::Cache;
use crate::inode_ref::InodeRef;
use crate::walk::{Child, Pos, Retry};

/// The longest target that is kept, in bytes.
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

/// All kept targets of a cache.
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

    /// A slot with this target in it; `None` where it is too long, or there is no slot left. Where
    /// memory is to be had, `may_grow` is asked.
    pub(crate) fn fill(&self, target: &[u8], may_grow: &dyn Fn() -> bool) -> Option<u32> {
        if target.len() > TARGET_MAX {
            return None;
        }
        let index = self.slab.alloc_within(&self.pool, may_grow)?;
        let slot = self.arena.get(index);
        // A reader of the slot's last target may still look here: rule 3.
        fence(Ordering::Release);
        slot.len.store(target.len() as u64, Ordering::Relaxed);
        for (word, bytes) in slot.words.iter().zip(target.chunks(8)) {
            let mut padded = [0; 8];
            padded[..bytes.len()].copy_from_slice(bytes);
            word.store(u64::from_le_bytes(padded), Ordering::Relaxed);
        }
        Some(index)
    }

    /// Free a slot whose inode's sequence has moved (or that nobody was told of); 0: none.
    pub(crate) fn free(&self, index: u32) {
        if index != 0 {
            self.pool.free(index, |_| &self.slab);
        }
    }

    /// Copy a target out; its length, clamped, because it may be of a torn moment.
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

    /// Give chunks without a target back to the system. A reader of one finds zeroes, and an inode
    /// whose sequence has moved.
    pub(crate) fn trim(&self) {
        self.slab.trim(&self.pool, |_, _| Some(0), |from, to| self.arena.give_back(from, to));
    }
}

impl Cache {
    /// Attributes and target of the symbolic link that `at` leads to, both of one moment (rule 7);
    /// the target's length in `out`. `None`: the target is not kept.
    ///
    /// # Errors
    /// What moved.
    pub fn child_target(
        &self,
        at: Pos,
        child: &Child,
        out: &mut [u8; TARGET_MAX],
    ) -> Result<Option<(Attr, usize)>, Retry> {
        let (published, private) = (self.inodes.get(child.inode), self.inodes_private.get(child.inode));
        let seq = published.seq.begin().ok_or(Retry::Inode)?;
        let attr = published.copy(|| private);
        // Pairs with the release in `keep_target`: who sees the slot sees what is in it.
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
    /// Keep a symbolic link's target, which will not change while the inode lives. Not kept where it
    /// is longer than [`TARGET_MAX`] or there is no memory: it is only asked for again then.
    pub fn keep_target(&self, target: &[u8]) {
        let (word, targets) = (&self.private_half().alias, &self.cache().targets);
        if self.fmt() != mode::S_IFLNK || word.load(Ordering::Relaxed) != 0 {
            return;
        }
        let may_grow = || self.cache().may_grow(CHUNK_BYTES);
        let Some(slot) = targets.fill(target, &may_grow) else { return };
        // Whoever comes second finds the same target there, and has told nobody of its own slot.
        if word.compare_exchange(0, slot, Ordering::Release, Ordering::Relaxed).is_err() {
            targets.free(slot);
        }
    }
}
