//! The life of an inode: its slot is taken, filled and started, and freed after the last reference.
//!
//! A slot is filled before any thread can get a reference, and started last (rule 16). The thread that puts
//! the last reference ends the generation: it takes the inode out of the number table, moves its sequences,
//! calls the superblock's hook and frees the slot. The hook may use the cache, so no lock is held but name
//! locks and the rename mutex.

use uvfs_sync::lock_order::{self, Class};
use uvfs_sync::primitives::Ordering;

use super::inode::ROOT;
use super::inode_ref::InodeRef;
use super::inode_slots::INODE_CHUNK;
use crate::cache::Cache;
use crate::types::{CacheError, Fresh, InodeId, SbId};

impl Cache {
    /// Make the root directory of a superblock, once. The superblock itself holds one reference until
    /// [`Cache::drop_superblock`].
    ///
    /// # Errors
    /// `NoMemory`.
    ///
    /// # Panics
    /// If the superblock has a root.
    #[doc(hidden)]
    pub fn make_root(&self, sb: SbId, fresh: &Fresh) -> Result<InodeRef<'_>, CacheError> {
        let (index, dir) = self.alloc_node(sb, true)?;
        let root = self.fill_inode(sb, index, dir, fresh, ROOT, self.clock.epoch());
        let id = root.id();
        // The superblock's own reference takes the place of a name's, and is dropped as one.
        self.superblock(sb).set_root(id);
        Ok(root)
    }

    pub(crate) fn alloc_inode(&self, sb: SbId) -> Result<u32, CacheError> {
        let slab = self.superblock(sb).inodes();
        let index = self.with_room(sb, || self.inodes.take(slab, &|| self.may_grow(INODE_CHUNK)))?;
        self.took(sb, index);
        Ok(index)
    }

    pub(crate) fn alloc_dir(&self, sb: SbId) -> Result<u32, CacheError> {
        self.with_room(sb, || self.inodes.take_dir(&|bytes| self.may_grow(bytes)))
    }

    /// An inode slot, and a directory state if `dir`.
    pub(crate) fn alloc_node(&self, sb: SbId, dir: bool) -> Result<(u32, u32), CacheError> {
        let index = self.alloc_inode(sb)?;
        match if dir { self.alloc_dir(sb) } else { Ok(0) } {
            Ok(dir) => Ok((index, dir)),
            Err(e) => {
                self.free_inode_slot(index, 0);
                Err(e)
            }
        }
    }

    /// Begin an inode's generation with two references: the returned one, and that of its name, which the
    /// caller makes. `dir` is the directory state, for directories. `epoch` is the one in which the driver
    /// was asked.
    pub(crate) fn fill_inode(
        &self,
        sb: SbId,
        index: u32,
        dir: u32,
        fresh: &Fresh,
        flags: u32,
        epoch: u32,
    ) -> InodeRef<'_> {
        let deadline = self.deadline(sb, fresh.ttl, epoch);
        let generation = self.fill_slot(sb, index, dir, fresh, flags, deadline);
        // Last, as in `start_inode`.
        self.inodes.private(index).refs.start_anchored(generation);
        InodeRef::new(self, index, generation)
    }

    /// Last: a thread that gets a reference by this generation finds the inode finished (rule 16).
    pub(crate) fn start_inode(&self, index: u32, generation: u32) -> InodeRef<'_> {
        self.inodes.private(index).refs.start(generation);
        InodeRef::new(self, index, generation)
    }

    /// Fill both halves of an inode to which nobody can get a reference yet; returns its generation. Its
    /// attributes are trusted until `deadline`.
    pub(crate) fn fill_slot(
        &self,
        sb: SbId,
        index: u32,
        dir: u32,
        fresh: &Fresh,
        flags: u32,
        deadline: u32,
    ) -> u32 {
        self.inodes.fill((sb, self.superblock(sb).inode_flags()), index, dir, fresh, flags, deadline)
    }

    /// Give an inode slot, and its directory state (0: none), back to the superblock that owns the slot
    /// (design rule 18).
    pub(crate) fn free_inode_slot(&self, index: u32, dir: u32) {
        if self.inodes.free(index, |owner| self.owner(owner).inodes()) {
            self.trim_ended(self.inodes.owner(index));
        }
        self.inodes.free_dir(dir);
    }

    /// Drop a reference; the last one ends the inode's generation.
    #[inline]
    pub(crate) fn put_inode(&self, index: u32) {
        if self.inodes.put(index) {
            self.end_inode(index);
        }
    }

    /// Drop the reference of a name (or of a superblock to its root). The caller holds no lock.
    pub(crate) fn put_name(&self, index: u32) {
        lock_order::check(Class::Eviction);
        if self.inodes.put_anchor(index) {
            self.end_inode(index);
        }
    }

    /// Empty a slot that was filled and not started. Nobody can have a reference, and the driver is not
    /// notified.
    pub(crate) fn discard_slot(&self, index: u32) {
        let dir = self.inodes.private(index).dir.swap(0, Ordering::Relaxed);
        self.inodes.get(index).clear();
        self.free_inode_slot(index, dir);
    }

    /// The inode is dead, and this thread made it so: take it out of everything and free the slot.
    #[cold]
    #[inline(never)]
    pub(crate) fn end_inode(&self, index: u32) {
        let (published, private) = (self.inodes.get(index), self.inodes.private(index));
        let sb = private.sb_id();
        let superblock = self.superblock(sb);
        let attr = published.copy(|| private);
        let value = private.value.load(Ordering::Relaxed);
        if !superblock.is_resident() {
            self.unhash_number(sb, index, attr.ino);
        }
        let dir = private.dir.load(Ordering::Relaxed);
        published.clear();
        private.dir.store(0, Ordering::Relaxed);
        // The sequence has moved, so a reader that copies the target now discards it.
        if attr.is_symlink() && !private.is_named() {
            self.inodes.targets().free(private.alias.swap(0, Ordering::Relaxed));
        }
        self.limit.not_barren();
        lock_order::check(Class::Eviction);
        superblock.notify_eviction(&attr, value);
        self.free_inode_slot(index, dir);
    }

    /// A reference from an id; `None` if that generation is over.
    #[inline]
    pub fn get(&self, id: InodeId) -> Option<InodeRef<'_>> {
        self.inodes.hold(id).then(|| InodeRef::new(self, id.index(), id.generation()))
    }

    /// The root of a superblock, if it has one.
    #[doc(hidden)]
    pub fn root(&self, sb: SbId) -> Option<InodeRef<'_>> {
        self.get(self.superblock(sb).root())
    }
}
