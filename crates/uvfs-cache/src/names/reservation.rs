//! Reservations: the memory that a change of a name needs, set aside before the driver is asked.
//!
//! After the driver's call nothing may fail, so [`publish`](super::publish) and [`rename`](super::rename) use only
//! what a [`Reserved`] holds: a dentry and the name's tail, and for a new node an inode slot, for a new directory also
//! its state. A reservation also counts as a child of its directory (rule 11), so the directory cannot be removed
//! meanwhile. A reservation that is not used gives everything back when it is dropped.
//!
//! Callers hold the name lock. Allocations may evict names, and so run evict hooks.

use crate::cache::Cache;
use crate::inodes::inode_ref::InodeRef;
use crate::lookup::ticket::NameGuard;
use crate::types::{CacheError, InodeId, Room, SbId};

/// A reservation for a change, made before the driver is asked; dropping it releases it.
#[derive(Debug)]
pub struct Reserved<'c> {
    pub(super) cache: &'c Cache,
    pub(super) sb: SbId,
    /// The directory that counted the child in.
    pub(super) dir: Option<InodeRef<'c>>,
    /// Length of the name: any name of that length in that directory needs the same.
    len: usize,
    pub(super) dentry: u32,
    pub(super) tail: u32,
    pub(super) inode: u32,
    pub(super) state: u32,
}

impl Reserved<'_> {
    pub(crate) fn sb(&self) -> SbId {
        self.sb
    }
}

/// A reservation that does not borrow the cache. Its owner gives it back with [`ParkedRoom::resume`]; if it is
/// dropped, what it reserved is lost.
#[must_use = "dropped, it keeps what it reserved for good"]
pub(crate) struct ParkedRoom {
    sb: SbId,
    dir: Option<InodeId>,
    len: usize,
    dentry: u32,
    tail: u32,
    inode: u32,
    state: u32,
}

impl Reserved<'_> {
    pub(crate) fn park(mut self) -> ParkedRoom {
        let take = std::mem::take::<u32>;
        ParkedRoom {
            sb: self.sb,
            dir: self.dir.take().map(InodeRef::into_id),
            len: self.len,
            dentry: take(&mut self.dentry),
            tail: take(&mut self.tail),
            inode: take(&mut self.inode),
            state: take(&mut self.state),
        }
    }
}

impl ParkedRoom {
    /// Whether it was reserved as this.
    pub(crate) fn is(&self, room: Room) -> bool {
        let (inode, state) = (self.inode != 0, self.state != 0);
        match room {
            Room::Name => !inode,
            Room::Node => inode && !state,
            Room::Dir => inode && state,
        }
    }

    pub(crate) fn resume(self, cache: &Cache) -> Reserved<'_> {
        let Self { sb, dir, len, dentry, tail, inode, state } = self;
        let dir = dir.map(|id| InodeRef::new(cache, id.index(), id.generation()));
        Reserved { cache, sb, dir, len, dentry, tail, inode, state }
    }
}

impl Drop for Reserved<'_> {
    fn drop(&mut self) {
        if let Some(state) = self.dir.as_ref().and_then(|d| d.dir_state()) {
            state.children.leave();
        }
        if self.dentry != 0 {
            self.cache.free_dentry(self.dentry, self.tail);
        } else {
            self.cache.dentries.free_tail(self.tail);
        }
        if self.inode != 0 {
            self.cache.free_inode_slot(self.inode, self.state);
        }
    }
}

impl<'c> NameGuard<'c> {
    /// Reserve for a change of this name: a counted place in the directory (rule 11), a dentry, and the
    /// parts that `room` names.
    ///
    /// # Errors
    /// `Dying`: the directory is being removed. `NoMemory`. `Name`: the guard's name is invalid.
    pub fn reserve(&self, room: Room) -> Result<Reserved<'c>, CacheError> {
        let cache = self.cache;
        let sb = self.dir.sb();
        let state = self.state.ok_or(CacheError::Stale)?;
        state.children.enter()?;
        let (dir, len) = (Some(self.dir.clone()), self.name().len());
        let mut r = Reserved { cache, sb, dir, len, dentry: 0, tail: 0, inode: 0, state: 0 };
        r.tail = cache.alloc_tail(sb, &self.words())?;
        // A rename reuses the moved dentry, but it may need the tail.
        r.dentry = cache.alloc_dentry(sb)?;
        if room != Room::Name {
            r.inode = cache.alloc_inode(sb)?;
        }
        if room == Room::Dir {
            r.state = cache.alloc_dir(sb)?;
        }
        Ok(r)
    }

    /// A reservation counts in its directory, which the published dentry holds from then on.
    ///
    /// # Panics
    /// If `room` was reserved for another directory, or for a name of another length.
    pub(super) fn require(&self, room: &Reserved<'_>) {
        let same_dir = |dir: &InodeRef<'_>| dir.id() == self.dir.id() && self.cache.owns(dir);
        let fits = room.dir.as_ref().is_some_and(same_dir) && room.len == self.name().len();
        assert!(fits, "reserved for another name");
    }
}

// For this project's own crates: see `machinery`.
#[doc(hidden)]
impl Cache {
    /// Reserve an inode without a name ([`Cache::create_nameless`]), before the driver is asked.
    ///
    /// # Errors
    /// `NoMemory`.
    pub fn reserve_nameless(&self, sb: SbId) -> Result<Reserved<'_>, CacheError> {
        let inode = self.alloc_inode(sb)?;
        Ok(Reserved { cache: self, sb, dir: None, len: 0, dentry: 0, tail: 0, inode, state: 0 })
    }
}
