//! Changes of names by the embedder's own clients: name locks and rename locks that do not borrow the cache.
//!
//! Order: a superblock's rename lock, then name locks, two of them by [`NodeCache::lock_names`] only. A change
//! reserves what it needs ([`NameLock::reserve`]), asks the back end, and publishes. Dropping a lock frees the
//! name and what was reserved. Waiting for a lock is a future or a blocking call; a future that is dropped takes
//! no lock with it.

use std::cmp::Ordering;
use std::fmt;
use std::sync::Arc;

use uvfs_sync::side_data::Vacant;

use super::node_handles::{NodeKnown, OwnedNode};
use super::owned_ticket::{NodeAnswer, Ticket};
use super::{NodeCache, NodeSuperblock, Shared};
use crate::cache::{Cache, is_dir};
use crate::inodes::inode_ref::Death;
use crate::lookup::name_locks::Pending;
use crate::lookup::ref_lookup::Known;
use crate::lookup::ticket::{NameGuard, Parked};
use crate::names::reservation::{ParkedRoom, Reserved};
use crate::types::{CacheError, InodeId, NotEmpty, Room, Ttl};

/// A name lock, and what a change of the name has reserved.
pub struct NameLock<T: Send + Sync + 'static> {
    ticket: Option<Ticket<T>>,
    room: Option<ParkedRoom>,
    data: Option<Vacant<T>>,
    /// The directory that is being removed or replaced; see [`Death::park`].
    removal: Option<InodeId>,
}

impl<T: Send + Sync + 'static> NameLock<T> {
    pub(super) fn new(shared: &Arc<Shared<T>>, guard: NameGuard<'_>) -> Self {
        Self::of_ticket(Ticket::new(shared, guard))
    }

    pub(super) fn of_ticket(ticket: Ticket<T>) -> Self {
        Self { ticket: Some(ticket), room: None, data: None, removal: None }
    }

    fn ticket(&self) -> &Ticket<T> {
        self.ticket.as_ref().expect("a name lock has its name")
    }

    /// The name.
    pub fn name(&self) -> &[u8] {
        self.ticket().name()
    }

    /// The directory.
    pub fn dir(&self) -> OwnedNode<T> {
        self.ticket().dir()
    }

    fn with<R>(&mut self, f: impl FnOnce(&Arc<Shared<T>>, &NameGuard<'_>) -> R) -> R {
        self.ticket.as_mut().expect("a name lock has its name").with(f)
    }

    /// The cache's knowledge of the name. Nobody else changes it meanwhile.
    pub fn known(&mut self) -> NodeKnown<OwnedNode<T>> {
        self.with(|shared, guard| match guard.find() {
            Known::Hit(inode) => NodeKnown::Hit(OwnedNode::new(shared, inode)),
            Known::Negative => NodeKnown::Negative,
            Known::Unknown => NodeKnown::Unknown,
        })
    }

    /// [`Ticket::previous`].
    pub fn previous(&mut self) -> Option<OwnedNode<T>> {
        self.ticket.as_mut().and_then(Ticket::previous)
    }

    /// [`Ticket::found`] for a caller that keeps the lock.
    ///
    /// # Errors
    /// As there.
    pub fn found(&mut self, answer: NodeAnswer<T>) -> Result<OwnedNode<T>, CacheError> {
        let NodeAnswer { attr, name_ttl, attr_ttl, data } = answer;
        self.with(|shared, guard| shared.answered(guard, &attr, name_ttl, attr_ttl, || data))
    }

    /// Reserve memory and a place in the directory, before the back end is asked for the change.
    ///
    /// # Errors
    /// `Dying`: the directory is being removed. `NoMemory`. `Name`: the name is invalid.
    pub fn reserve(&mut self, room: Room) -> Result<(), CacheError> {
        self.release_room();
        let (parked, data) = self.with(|shared, guard| {
            let parked = guard.reserve(room)?;
            let data = match room {
                Room::Name => None,
                Room::Node | Room::Dir => Some(shared.data.room(guard.cache, guard.dir.sb())?),
            };
            Ok::<_, CacheError>((parked.park(), data))
        })?;
        (self.room, self.data) = (Some(parked), data);
        Ok(())
    }

    fn release_room(&mut self) {
        if let Some(room) = self.room.take() {
            drop(room.resume(&self.ticket().shared.cache));
        }
        self.data = None;
    }

    /// Reserve unless that was done.
    fn require(&mut self, room: Room) -> Result<(), CacheError> {
        if self.room.as_ref().is_some_and(|parked| parked.is(room)) { Ok(()) } else { self.reserve(room) }
    }

    /// Make sure that the directory `node`, which the name leads to, has no cached entry and gets none, before
    /// the back end removes or replaces it. Dropping the lock allows entries again.
    ///
    /// # Errors
    /// `NotEmpty`: it has entries, or one is being made; or it is a root, or the name leads elsewhere.
    pub fn begin_removal(&mut self, node: &OwnedNode<T>) -> Result<(), NotEmpty> {
        self.ticket().shared.require(node);
        self.cancel_removal();
        if node.attr().is_dir() {
            if node.view().is_root() || matches!(self.known(), NodeKnown::Hit(other) if other != *node) {
                return Err(NotEmpty);
            }
            self.removal = Some(node.view().begin_death()?.park());
        }
        Ok(())
    }

    fn cancel_removal(&mut self) {
        if let Some(removal) = self.removal.take() {
            drop(Death::resume(&self.ticket().shared.cache, removal));
        }
    }

    /// Everything, for a method that uses it up.
    fn into_parts(mut self) -> Parts {
        let (room, removal) = (self.room.take(), self.removal.take());
        let ticket = self.ticket.take().expect("a name lock has its name");
        Parts { parked: ticket.into_parked(), room, removal }
    }

    /// Publish a new inode that the back end has made under this name. An inode that had its number is
    /// [replaced](OwnedNode::replaced). Cannot fail after [`NameLock::reserve`] of the right kind.
    ///
    /// # Errors
    /// As [`NameLock::reserve`].
    pub fn create(mut self, answer: NodeAnswer<T>) -> Result<OwnedNode<T>, CacheError> {
        let NodeAnswer { attr, name_ttl, attr_ttl, data } = answer;
        self.require(if is_dir(attr.fmt()) { Room::Dir } else { Room::Node })?;
        let vacant = self.data.take().ok_or(CacheError::NoMemory)?;
        let shared = self.ticket().shared.clone();
        let Resumed { guard, room, .. } = self.into_parts().resume(&shared.cache);
        let room = room.ok_or(CacheError::NoMemory)?;
        if let Some(old) = shared.cache.ilookup(guard.dir.sb(), attr.ino, attr.fmt()) {
            shared.cache.forget_number(&old);
        }
        let ttls = (attr, attr_ttl, name_ttl);
        let made = shared.data.create(&guard, room, ttls, vacant, data);
        Ok(OwnedNode::new(&shared, made))
    }

    /// Publish another name of an inode.
    ///
    /// # Errors
    /// As [`NameLock::reserve`].
    ///
    /// # Panics
    /// If the inode is of another superblock.
    pub fn link(mut self, node: &OwnedNode<T>, name_ttl: Ttl) -> Result<(), CacheError> {
        self.ticket().shared.require(node);
        self.require(Room::Name)?;
        let shared = self.ticket().shared.clone();
        let Resumed { guard, room, .. } = self.into_parts().resume(&shared.cache);
        guard.link(room.ok_or(CacheError::NoMemory)?, &node.view(), name_ttl);
        Ok(())
    }

    /// The back end has removed the name. For a directory, call [`NameLock::begin_removal`] before.
    pub fn remove(self) {
        let shared = self.ticket().shared.clone();
        let Resumed { guard, removal, .. } = self.into_parts().resume(&shared.cache);
        guard.remove(removal);
    }
}

/// The parts of a name lock; their owner resumes them at once.
struct Parts {
    parked: Parked,
    room: Option<ParkedRoom>,
    removal: Option<InodeId>,
}

/// The same, borrowing the cache.
struct Resumed<'c> {
    room: Option<Reserved<'c>>,
    removal: Option<Death<'c>>,
    guard: NameGuard<'c>,
}

impl Parts {
    fn resume(self, cache: &Cache) -> Resumed<'_> {
        // The room before the guard: a field is dropped in this order, and a place in a directory is released
        // while the name is locked.
        Resumed {
            room: self.room.map(|room| room.resume(cache)),
            removal: self.removal.map(|removal| Death::resume(cache, removal)),
            guard: self.parked.resume(cache),
        }
    }
}

impl<T: Send + Sync + 'static> Drop for NameLock<T> {
    fn drop(&mut self) {
        if self.ticket.is_some() {
            self.release_room();
            self.cancel_removal();
        }
    }
}

impl<T: Send + Sync + 'static> fmt::Debug for NameLock<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "NameLock({:?})", self.ticket)
    }
}

/// A superblock's rename lock. A caller that moves a directory to another parent holds it, so that no loop can
/// arise. Taken before the name locks.
pub struct OwnedRenameLock<T: Send + Sync + 'static> {
    shared: Arc<Shared<T>>,
    key: u64,
}

impl<T: Send + Sync + 'static> Drop for OwnedRenameLock<T> {
    fn drop(&mut self) {
        self.shared.renames.release(self.key, Ok(()));
    }
}

impl<T: Send + Sync + 'static> fmt::Debug for OwnedRenameLock<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("OwnedRenameLock")
    }
}

impl<T: Send + Sync + 'static> NodeSuperblock<T> {
    /// Take the rename lock. Never waits.
    ///
    /// # Errors
    /// Another caller has it.
    pub fn try_lock_renames(&self) -> Result<OwnedRenameLock<T>, Pending> {
        let shared = self.shared();
        let key = shared.rename_key(self.id());
        shared.renames.take(key)?;
        Ok(OwnedRenameLock { shared: shared.clone(), key })
    }

    /// Take the rename lock.
    pub async fn lock_renames(&self) -> OwnedRenameLock<T> {
        loop {
            match self.try_lock_renames() {
                Ok(lock) => return lock,
                Err(pending) => {
                    let _ = pending.await;
                }
            }
        }
    }

    /// [`NodeSuperblock::lock_renames`] for a thread that may block.
    pub fn blocking_lock_renames(&self) -> OwnedRenameLock<T> {
        loop {
            match self.try_lock_renames() {
                Ok(lock) => return lock,
                Err(pending) => {
                    let _ = pending.wait();
                }
            }
        }
    }
}

/// A directory and a name in it.
pub type NamePlace<'a, T> = (&'a OwnedNode<T>, &'a [u8]);

impl<T: Send + Sync + 'static> NodeCache<T> {
    /// Take two name locks, in the one order that all callers use. The names may be the same.
    pub async fn lock_names(&self, a: NamePlace<'_, T>, b: NamePlace<'_, T>) -> (NameLock<T>, NameLock<T>) {
        let key = |place: NamePlace<'_, T>| {
            self.0.require(place.0);
            self.0.cache.name_key(&place.0.view(), place.1)
        };
        match key(a).cmp(&key(b)) {
            Ordering::Less => {
                let first = a.0.lock_name(a.1).await;
                (first, b.0.lock_name(b.1).await)
            }
            Ordering::Greater => {
                let first = b.0.lock_name(b.1).await;
                (a.0.lock_name(a.1).await, first)
            }
            Ordering::Equal => {
                let first = a.0.lock_name(a.1).await;
                (first, NameLock::new(&self.0, NameGuard::beside(&b.0.view(), b.1)))
            }
        }
    }

    /// [`NodeCache::lock_names`] for a thread that may block.
    pub fn blocking_lock_names(
        &self,
        a: NamePlace<'_, T>,
        b: NamePlace<'_, T>,
    ) -> (NameLock<T>, NameLock<T>) {
        self.0.require(a.0);
        self.0.require(b.0);
        let (a_view, b_view) = (a.0.view(), b.0.view());
        let (one, other) = self.0.cache.lock_names((&a_view, a.1), (&b_view, b.1));
        (NameLock::new(&self.0, one), NameLock::new(&self.0, other))
    }

    /// The back end has exchanged two names. If one of them is not cached, both are asked about again.
    ///
    /// # Panics
    /// If the directories belong to two superblocks, or the locks to another cache.
    pub fn exchange(&self, a: NameLock<T>, b: NameLock<T>) {
        let cache = &self.0.cache;
        assert!(Arc::ptr_eq(&self.0, &a.ticket().shared), "a name lock of another cache");
        assert!(Arc::ptr_eq(&self.0, &b.ticket().shared), "a name lock of another cache");
        let (a, b) = (a.into_parts().resume(cache), b.into_parts().resume(cache));
        cache.exchange(&a.guard, &b.guard);
    }

    /// The back end has given the name of `from` to `to`. If both names lead to one inode, both stay, as rename(2) has
    /// it. Otherwise the inode that `to` led to is replaced; if it is a directory, call [`NameLock::begin_removal`] on
    /// `to` before. Cannot fail after [`NameLock::reserve`] of
    /// [`Room::Name`] on `to`.
    ///
    /// # Errors
    /// As [`NameLock::reserve`].
    ///
    /// # Panics
    /// If the directories belong to two superblocks.
    pub fn rename(&self, from: NameLock<T>, mut to: NameLock<T>) -> Result<(), CacheError> {
        to.require(Room::Name)?;
        let cache = &self.0.cache;
        assert!(Arc::ptr_eq(&self.0, &from.ticket().shared), "a name lock of another cache");
        assert!(Arc::ptr_eq(&self.0, &to.ticket().shared), "a name lock of another cache");
        let (from, to) = (from.into_parts().resume(cache), to.into_parts().resume(cache));
        let room = to.room.ok_or(CacheError::NoMemory)?;
        cache.rename(&from.guard, &to.guard, room, to.removal);
        Ok(())
    }
}
