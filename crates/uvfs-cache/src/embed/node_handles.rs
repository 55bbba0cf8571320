//! Handles to inodes with the embedder's data: one that owns its cache, one that borrows it.
//!
//! Both hold a reference, so the data behind them stays. An [`OwnedNode`] also counts its cache, in one word that
//! all threads share. A [`NodeRef`] counts nothing but its inode, and is the fast path.

use std::fmt;
use std::mem::ManuallyDrop;
use std::sync::Arc;

use rustix::io::Errno;

use super::listing::NodeListing;
use super::owned_name_lock::NameLock;
use super::owned_ticket::{NodeLookup, Ticket};
use super::{NodeCache, NodeSuperblock, Shared};
use crate::inodes::attr::Attr;
use crate::inodes::inode_ref::InodeRef;
use crate::lookup::name_locks::Pending;
use crate::lookup::ref_lookup::{Known, Lookup};
use crate::names::path_of_inode::Moving;
use crate::types::{InodeId, SbId, Ttl};

/// A reference to an inode, for tasks and tables: `Send + Sync + 'static`. It keeps the inode, its data and its
/// cache. Dropping it may drop the data.
pub struct OwnedNode<T: Send + Sync + 'static> {
    pub(super) shared: Arc<Shared<T>>,
    /// The reference.
    id: InodeId,
}

impl<T: Send + Sync + 'static> OwnedNode<T> {
    /// Take a reference over.
    pub(super) fn new(shared: &Arc<Shared<T>>, inode: InodeRef<'_>) -> Self {
        debug_assert!(shared.cache.owns(&inode));
        Self { shared: shared.clone(), id: inode.into_id() }
    }

    /// The inode, whose reference the node keeps.
    pub(super) fn view(&self) -> ManuallyDrop<InodeRef<'_>> {
        ManuallyDrop::new(InodeRef::new(&self.shared.cache, self.id.index(), self.id.generation()))
    }

    /// The cache.
    pub fn cache(&self) -> NodeCache<T> {
        NodeCache(self.shared.clone())
    }

    /// The id, for clients; [`NodeCache::node`] leads back.
    pub fn id(&self) -> InodeId {
        self.id
    }

    /// The superblock.
    pub fn superblock(&self) -> SbId {
        self.view().sb()
    }

    /// The cached attributes, of one moment, trusted or not. `ino` and type never change.
    pub fn attr(&self) -> Attr {
        self.view().attr()
    }

    /// The cached attributes; `None` if their TTL has passed or they are stale. Then ask the back end, see
    /// [`OwnedNode::revision`].
    pub fn trusted_attr(&self) -> Option<Attr> {
        let inode = self.view();
        (!inode.expired()).then(|| inode.attr())
    }

    /// Remember this before you ask the back end for attributes.
    pub fn revision(&self) -> u64 {
        self.view().revision()
    }

    /// The back end's attributes, asked for after `revision`. False: they changed meanwhile, so the answer is
    /// late and is not kept.
    pub fn refresh(&self, revision: u64, attr: &Attr, ttl: Ttl) -> bool {
        self.view().refresh_unless_changed(revision, attr, ttl)
    }

    /// Change attributes in one step, after the back end has changed them. `f` runs under the attribute lock: it
    /// must neither block nor call the cache.
    pub fn update<R>(&self, f: impl FnOnce(&mut Attr) -> R) -> R {
        self.view().update(f)
    }

    /// A client looked this inode up `n` times more, and keeps it until [`NodeSuperblock::forget_lookups`].
    pub fn add_lookups(&self, n: u64) {
        self.view().add_lookups(n);
    }

    /// Lookups that clients have not forgotten yet.
    pub fn lookups(&self) -> u64 {
        self.view().lookups()
    }

    /// Whether this is the root of its superblock.
    pub fn is_root(&self) -> bool {
        self.view().is_root()
    }

    /// Whether this is `other` or lies below it. A caller that moves a directory asks this with the superblock's
    /// rename lock held. O(depth).
    pub fn is_below(&self, other: &Self) -> bool {
        self.shared.require(other);
        self.shared.cache.is_below(&self.view(), &other.view())
    }

    /// A name in this directory. Never waits.
    ///
    /// # Errors
    /// Another caller asks about the name or changes it: wait, then look again.
    pub fn try_lookup(&self, name: &[u8]) -> Result<NodeLookup<T>, Pending> {
        Ok(match self.shared.cache.lookup(&self.view(), name) {
            Lookup::Hit(inode, _) => NodeLookup::Hit(Self::new(&self.shared, inode)),
            Lookup::Negative => NodeLookup::Negative,
            Lookup::Miss(guard) => NodeLookup::Miss(Ticket::new(&self.shared, guard)),
            Lookup::Busy(pending) => return Err(pending),
        })
    }

    /// A name in this directory, once nobody else is asking about it. The future may be dropped at any time.
    ///
    /// # Errors
    /// The errno of the caller that asked about it ([`Ticket::fail`]).
    pub async fn lookup(&self, name: &[u8]) -> Result<NodeLookup<T>, Errno> {
        loop {
            match self.try_lookup(name) {
                Ok(found) => return Ok(found),
                Err(pending) => pending.await?,
            }
        }
    }

    /// [`OwnedNode::lookup`] for a thread that may block.
    ///
    /// # Errors
    /// As there.
    pub fn blocking_lookup(&self, name: &[u8]) -> Result<NodeLookup<T>, Errno> {
        loop {
            match self.try_lookup(name) {
                Ok(found) => return Ok(found),
                Err(pending) => pending.wait()?,
            }
        }
    }

    /// Take a name lock in this directory, to change the name. Never waits.
    ///
    /// # Errors
    /// Another caller has it.
    pub fn try_lock_name(&self, name: &[u8]) -> Result<NameLock<T>, Pending> {
        let guard = self.shared.cache.try_lock_name(&self.view(), name)?;
        Ok(NameLock::new(&self.shared, guard))
    }

    /// Take a name lock in this directory. Callers that hold one already use [`NodeCache::lock_names`].
    pub async fn lock_name(&self, name: &[u8]) -> NameLock<T> {
        loop {
            match self.try_lock_name(name) {
                Ok(lock) => return lock,
                // The errno was for those who ask about the name; this caller wants to change it.
                Err(pending) => {
                    let _ = pending.await;
                }
            }
        }
    }

    /// [`OwnedNode::lock_name`] for a thread that may block.
    pub fn blocking_lock_name(&self, name: &[u8]) -> NameLock<T> {
        NameLock::new(&self.shared, self.shared.cache.lock_name(&self.view(), name))
    }

    /// The cached entry of a name may be wrong: the next lookup asks. Answers on their way are late.
    pub fn invalidate(&self, name: &[u8]) {
        self.shared.cache.invalidate(&self.view(), name);
    }

    /// Call this before you ask the back end for the names in this directory.
    pub fn begin_listing(&self) -> NodeListing<T> {
        NodeListing::new(self)
    }

    /// A name of the inode, and its directory; `None`: it has none in the cache. O(1), but of a file with several
    /// links whose last name was removed O(names of the superblock), once.
    pub fn name(&self) -> Option<(Self, Vec<u8>)> {
        let inode = self.view();
        let back = self.shared.cache.name_back(&inode)?;
        Some((Self::new(&self.shared, back.parent), back.name))
    }

    /// All cached names of the inode, each with its directory. O(names of the superblock); for a directory as
    /// [`OwnedNode::name`].
    pub fn names(&self) -> Vec<(Self, Vec<u8>)> {
        let inode = self.view();
        if inode.attr().is_dir() {
            return self.name().into_iter().collect();
        }
        let backs = self.shared.cache.backs(&inode);
        backs.map(|back| (Self::new(&self.shared, back.parent), back.name)).collect()
    }

    /// The path below the superblock's root, without a leading slash, as it was at one moment: renames of any
    /// directory on the way show as a whole or not at all. `Ok(None)`: the inode or a directory on the way has no
    /// name in the cache. O(depth).
    ///
    /// # Errors
    /// [`Moving`]: directories on the way moved during each of 64 attempts.
    pub fn path(&self) -> Result<Option<Vec<u8>>, Moving> {
        self.shared.cache.path_back(&self.view())
    }

    /// The number (or the key that gave it) belongs to another inode from now on. This one is no longer found by
    /// it, its names ask the back end again, and its holders keep it.
    pub fn replaced(&self) {
        self.shared.cache.forget_number(&self.view());
    }
}

impl<T: Send + Sync + 'static> Clone for OwnedNode<T> {
    fn clone(&self) -> Self {
        Self::new(&self.shared, InodeRef::clone(&self.view()))
    }
}

impl<T: Send + Sync + 'static> Drop for OwnedNode<T> {
    fn drop(&mut self) {
        drop(ManuallyDrop::into_inner(self.view()));
    }
}

impl<T: Send + Sync + 'static> PartialEq for OwnedNode<T> {
    fn eq(&self, other: &Self) -> bool {
        self.id == other.id && Arc::ptr_eq(&self.shared, &other.shared)
    }
}

impl<T: Send + Sync + 'static> Eq for OwnedNode<T> {}

impl<T: Send + Sync + 'static> fmt::Debug for OwnedNode<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "OwnedNode({:?})", self.id)
    }
}

impl<T: Send + Sync + 'static> NodeSuperblock<T> {
    /// Trusted attributes by id, without taking any reference. `None` for inodes of other superblocks too.
    #[inline]
    pub fn trusted_attr(&self, id: InodeId) -> Option<Attr> {
        let (attr, sb) = self.cache.0.cache.attr_and_sb(id)?;
        (sb == self.sb).then_some(attr)
    }

    /// A client forgets `n` lookups of an id ([`OwnedNode::add_lookups`]). Unknown ids, and those of other
    /// superblocks, are ignored. Returns how many lookups were given back: no more than were counted.
    pub fn forget_lookups(&self, id: InodeId, n: u64) -> u64 {
        let cache = &self.cache.0.cache;
        cache.get(id).filter(|inode| inode.sb() == self.sb).map_or(0, |inode| inode.forget_counted_lookups(n))
    }
}

/// A reference to an inode that borrows the cache.
pub struct NodeRef<'c, T: Send + Sync + 'static> {
    pub(super) shared: &'c Arc<Shared<T>>,
    pub(super) inode: InodeRef<'c>,
}

/// The cache's knowledge of a name.
#[derive(Debug)]
pub enum NodeKnown<N> {
    /// The name leads to this inode.
    Hit(N),
    /// There is certainly no such name.
    Negative,
    /// The back end must be asked.
    Unknown,
}

impl<'c, T: Send + Sync + 'static> NodeRef<'c, T> {
    /// The id, for clients.
    pub fn id(&self) -> InodeId {
        self.inode.id()
    }

    /// The superblock.
    #[inline]
    pub fn superblock(&self) -> SbId {
        self.inode.sb()
    }

    /// As [`OwnedNode::attr`].
    pub fn attr(&self) -> Attr {
        self.inode.attr()
    }

    /// As [`OwnedNode::trusted_attr`].
    pub fn trusted_attr(&self) -> Option<Attr> {
        (!self.inode.expired()).then(|| self.inode.attr())
    }

    /// As [`OwnedNode::add_lookups`].
    pub fn add_lookups(&self, n: u64) {
        self.inode.add_lookups(n);
    }

    /// The cache's knowledge of a name in this directory, without a wait and without a ticket.
    #[inline]
    pub fn child(&self, name: &[u8]) -> NodeKnown<NodeRef<'c, T>> {
        match self.shared.cache.find(&self.inode, name) {
            Known::Hit(inode) => NodeKnown::Hit(NodeRef { shared: self.shared, inode }),
            Known::Negative => NodeKnown::Negative,
            Known::Unknown => NodeKnown::Unknown,
        }
    }

    /// A handle for a task.
    pub fn to_owned(&self) -> OwnedNode<T> {
        OwnedNode::new(self.shared, self.inode.clone())
    }
}

impl<T: Send + Sync + 'static> fmt::Debug for NodeRef<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "NodeRef({:?})", self.id())
    }
}
