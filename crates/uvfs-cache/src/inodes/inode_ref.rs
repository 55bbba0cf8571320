//! A counted reference to an inode, and the operations on one.
//!
//! Holding one keeps the inode's slot in its generation: both halves remain the inode's. Changes go through
//! [`InodeRef::update`], under the attribute lock. Only the slabs' locks come after that lock in the lock
//! order.

use std::fmt;

use uvfs_sync::primitives::Ordering;

use crate::cache::Cache;
use crate::coherence::expiry::{NEVER, SUSPECT, is_epoch};
use crate::coherence::late_attributes::Asked;
use crate::dirs::dir_state::DirState;
use crate::inodes::attr::{Attr, mode};
use crate::inodes::inode::{self, DEAD, Perm, ROOT};
use crate::types::{InodeId, NotEmpty, SbId, Ttl};

/// A reference; dropping it may end the inode's generation (and call the superblock's evict hook).
/// [`Cache::put_inode`] decides where it is counted.
pub struct InodeRef<'c> {
    cache: &'c Cache,
    index: u32,
    generation: u32,
}

impl fmt::Debug for InodeRef<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "InodeRef({:?})", self.id())
    }
}

impl Clone for InodeRef<'_> {
    fn clone(&self) -> Self {
        self.cache.inodes.hold_again(self.id());
        Self { cache: self.cache, index: self.index, generation: self.generation }
    }
}

impl Drop for InodeRef<'_> {
    fn drop(&mut self) {
        self.cache.put_inode(self.index);
    }
}

/// Unlocks even if the closure of an update panics.
pub(crate) struct Unlock<'a>(&'a inode::Private);

impl Drop for Unlock<'_> {
    #[inline]
    fn drop(&mut self) {
        self.0.refs.unlock();
    }
}

impl<'c> InodeRef<'c> {
    /// Wraps a reference that the caller owns.
    pub(crate) fn new(cache: &'c Cache, index: u32, generation: u32) -> Self {
        Self { cache, index, generation }
    }

    #[inline(always)]
    pub(crate) fn index(&self) -> u32 {
        self.index
    }

    #[inline(always)]
    pub(crate) fn published(&self) -> &'c inode::Published {
        self.cache.inodes.get(self.index)
    }

    #[inline(always)]
    pub(crate) fn private_half(&self) -> &'c inode::Private {
        self.cache.inodes.private(self.index)
    }

    pub(crate) fn dir_state(&self) -> Option<&'c DirState> {
        self.cache.inodes.dir_state(self.index)
    }

    /// The id; a front end's node id.
    #[inline]
    pub fn id(&self) -> InodeId {
        InodeId::new(self.index, self.generation)
    }

    /// The superblock of the inode.
    #[inline]
    pub fn sb(&self) -> SbId {
        self.private_half().sb_id()
    }

    /// Inode number; never changes.
    #[inline]
    pub fn ino(&self) -> u64 {
        self.published().ino()
    }

    /// Type bits (`S_IFMT`); never change.
    #[inline]
    pub fn fmt(&self) -> u32 {
        self.published().mode_and_flags() & mode::S_IFMT
    }

    /// All attributes, of one moment. Stores nothing; after a few collisions with a writer it waits for
    /// that writer.
    pub fn attr(&self) -> Attr {
        let p = self.published();
        for _ in 0..8 {
            if let Some(seq) = p.seq.begin() {
                let attr = p.copy(|| self.private_half());
                if p.seq.check(seq) {
                    return attr;
                }
            }
            uvfs_sync::primitives::spin_loop();
        }
        let _lock = self.lock();
        p.copy(|| self.private_half())
    }

    #[inline]
    pub(crate) fn lock(&self) -> Unlock<'c> {
        let private = self.private_half();
        private.refs.lock();
        Unlock(private)
    }

    /// Change attributes, in one step that readers see whole or not at all. Type and inode number stay the
    /// same. `f` runs under the attribute lock: it must neither block nor call the cache.
    #[inline]
    pub fn update<R>(&self, f: impl FnOnce(&mut Attr) -> R) -> R {
        let _lock = self.lock();
        // No driver is asked about a resident superblock's inodes, so no answer can be late.
        if !self.private_half().is_resident() {
            self.note_change();
        }
        self.change(f)
    }

    /// Note a change before it is made, under the attribute lock: see `late_attributes.rs`.
    #[inline(never)]
    fn note_change(&self) {
        self.cache.sb_of(self.index()).changes().note(self.ino());
    }

    /// Change attributes under the attribute lock. Inlined together with `f`, so that fields which `f`
    /// leaves alone are neither compared nor stored.
    #[inline(always)]
    fn change<R>(&self, f: impl FnOnce(&mut Attr) -> R) -> R {
        let (published, private) = (self.published(), self.private_half());
        let old = published.copy(|| private);
        let mut new = old;
        let r = f(&mut new);
        new.ino = old.ino;
        new.mode = old.fmt() | new.mode & !mode::S_IFMT;
        if new != old {
            published.change(private, &self.cache.prefixes.changes, &old, &new);
        }
        r
    }

    /// Store a driver's answer that was requested in `epoch`; under the attribute lock.
    fn believe(&self, attr: &Attr, ttl: Ttl, epoch: u32) {
        self.change(|a| *a = *attr);
        self.published().believe();
        let deadline = self.cache.deadline(self.sb(), ttl, epoch);
        self.private_half().deadline.store(deadline, Ordering::Relaxed);
    }

    /// Store an answer about this inode whose requester did not know the inode. False: the answer is late,
    /// and nothing is done.
    pub(crate) fn refresh_unless_late(&self, asked: Asked, attr: &Attr, ttl: Ttl) -> bool {
        let _lock = self.lock();
        if self.is_of_the_past(asked.epoch)
            || self.cache.sb_of(self.index()).changes().since(attr.ino, asked.changes)
        {
            return false;
        }
        self.believe(attr, ttl, asked.epoch);
        true
    }

    /// The same for an inode that was made from that answer and filled with it before anybody could find
    /// it. A later writer has noted its change, so there are no attributes to compare.
    pub(crate) fn believe_unless_late(&self, asked: Asked, ttl: Ttl) -> bool {
        let _lock = self.lock();
        if self.is_of_the_past(asked.epoch)
            || self.cache.sb_of(self.index()).changes().since(self.ino(), asked.changes)
        {
            return false;
        }
        let deadline = self.cache.deadline(self.sb(), ttl, asked.epoch);
        self.private_half().deadline.store(deadline, Ordering::Relaxed);
        true
    }

    /// Whether an answer requested in `epoch` may know less than the cached state; under the attribute
    /// lock. Another name may have been asked for after the epoch moved, and its answer is trusted. This
    /// answer would then replace it with attributes from before the move. (A move after this check comes
    /// before any answer of the new epoch, which then waits for the lock.)
    fn is_of_the_past(&self, epoch: u32) -> bool {
        epoch != self.cache.clock.epoch()
    }

    /// The driver's value.
    pub fn private(&self) -> u64 {
        self.private_half().value.load(Ordering::Acquire)
    }

    /// The driver's value. If it is 0, `make` is called and its result set, once for all callers. `make`
    /// runs under the attribute lock: it must neither block for long nor call the cache.
    pub fn init_private(&self, make: impl FnOnce() -> u64) -> u64 {
        let value = self.private();
        if value != 0 {
            return value;
        }
        let _lock = self.lock();
        let word = &self.private_half().value;
        let value = word.load(Ordering::Relaxed);
        if value != 0 {
            return value;
        }
        let value = make();
        word.store(value, Ordering::Release);
        value
    }

    pub(crate) fn mark_dead(&self) {
        let _lock = self.lock();
        self.published().mark_dead();
        self.private_half().clear_passed();
    }

    /// Give up the reference without dropping it: another owner has it from now on.
    pub(crate) fn into_id(self) -> InodeId {
        let id = self.id();
        std::mem::forget(self);
        id
    }
}

// For this project's own crates: see `machinery`.
#[doc(hidden)]
impl<'c> InodeRef<'c> {
    /// The cache of the inode.
    pub fn cache(&self) -> &'c Cache {
        self.cache
    }

    /// Permission bits, owner and group, of one moment; see [`InodeRef::attr`].
    #[inline]
    pub fn perm(&self) -> Perm {
        let p = self.published();
        if let Some(seq) = p.seq.begin() {
            let perm = p.perm();
            if p.seq.check(seq) {
                return perm;
            }
        }
        (&self.attr()).into()
    }

    /// The cached attributes may be wrong. The driver is asked again for them, and for the names that lead
    /// to the inode; answers on their way are late. See [`Cache::inode_changed`].
    pub fn mark_stale(&self) {
        let _lock = self.lock();
        self.cache.sb_of(self.index()).changes().note(self.ino());
        self.published().mark_stale(self.private_half(), &self.cache.prefixes.changes);
        self.private_half().deadline.store(SUSPECT, Ordering::Relaxed);
    }

    /// Whether the attributes are stale, and not merely expired.
    pub fn is_stale(&self) -> bool {
        is_epoch(self.private_half().deadline.load(Ordering::Relaxed)) && self.expired()
    }

    /// Moves with every change of the attributes, and with the epoch. Callers remember it before they ask a
    /// driver for attributes.
    pub fn revision(&self) -> u64 {
        let epoch = self.cache.clock.asked();
        let _lock = self.lock();
        u64::from(epoch) << 32 | u64::from(self.published().seq.raw().load(Ordering::Relaxed))
    }

    /// Store fresh attributes from the driver, trusted for `ttl` from now, unless the attributes changed or
    /// the epoch moved since `revision`. Then the answer is late (rule 10 for attributes): nothing is done,
    /// and false is returned.
    pub fn refresh_unless_changed(&self, revision: u64, attr: &Attr, ttl: Ttl) -> bool {
        let _lock = self.lock();
        let epoch = (revision >> 32) as u32;
        if self.is_of_the_past(epoch) || self.published().seq.raw().load(Ordering::Relaxed) != revision as u32
        {
            return false;
        }
        self.believe(attr, ttl, epoch);
        true
    }

    /// Whether the attributes' TTL has passed. On a resident superblock it never does, and this reads
    /// nothing that references write.
    #[inline]
    pub fn expired(&self) -> bool {
        if self.private_half().is_resident() {
            return false;
        }
        let deadline = self.private_half().deadline.load(Ordering::Relaxed);
        deadline != NEVER && self.cache.clock.passed(deadline)
    }

    /// Whether this is a removed directory.
    #[inline]
    pub fn is_dead(&self) -> bool {
        self.published().mode_and_flags() & DEAD != 0
    }

    /// Make sure that the directory has no entry and gets none, before its removal (rule 11). Always
    /// succeeds for an inode that is not a directory.
    ///
    /// # Errors
    /// `NotEmpty`: it has entries, one is being made, or another removal is under way.
    pub fn begin_death(&self) -> Result<Death<'c>, NotEmpty> {
        if let Some(state) = self.dir_state() {
            state.children.begin_death()?;
        }
        Ok(Death { inode: self.clone(), committed: false })
    }

    /// Whether this is its superblock's root.
    pub fn is_root(&self) -> bool {
        self.published().mode_and_flags() & ROOT != 0
    }
}

/// The removal of a directory, not yet committed; dropping it cancels the removal.
#[derive(Debug)]
pub struct Death<'c> {
    inode: InodeRef<'c>,
    committed: bool,
}

impl Death<'_> {
    /// Commit the removal. Called under the lock of the bucket that its name is in, so that "dead" and
    /// "unhashed" are one moment (rule 16).
    pub(crate) fn commit(&mut self) {
        if self.inode.dir_state().is_some() {
            self.inode.mark_dead();
        }
        self.committed = true;
    }
}

impl<'c> Death<'c> {
    /// The removal without a borrow of the cache: a reference that [`Death::resume`] takes back. If it is lost,
    /// the directory stays without entries for good.
    pub(crate) fn park(mut self) -> InodeId {
        let id = self.inode.clone().into_id();
        // Nothing is committed: this keeps the drop from cancelling it.
        self.committed = true;
        id
    }

    pub(crate) fn resume(cache: &'c Cache, inode: InodeId) -> Self {
        Self { inode: InodeRef::new(cache, inode.index(), inode.generation()), committed: false }
    }
}

impl Drop for Death<'_> {
    fn drop(&mut self) {
        if !self.committed
            && let Some(state) = self.inode.dir_state()
        {
            state.children.revive();
        }
    }
}
