//! The cache as servers embed it: data of their own for each inode, handles that tasks may keep, paths of inodes, and
//! numbers for keys.
//!
//! [`NodeCache`] owns a [`Cache`], which nobody else reaches: so every inode in it has a value of the embedder's
//! type, and the embedder needs no `unsafe`. A [`NodeSuperblock`] is one file system in it. An [`OwnedNode`] is a
//! directory or file; names are looked up, locked and listed through it.
//!
//! | file | contents |
//! |---|---|
//! | `inode_data` | the embedder's data of each inode, dropped once |
//! | `node_handles` | handles, with names and paths |
//! | `owned_ticket` | lookup tickets and answers |
//! | `owned_name_lock` | name locks and rename locks; create, link, remove, rename |
//! | `listing` | listings |
//! | `numbers_for_keys` | numbers for keys of up to 64 bytes |
//!
//! Waiting is a future or a blocking call; there is no runtime here. A future that is dropped gives up its place
//! and takes nothing with it. The lock order is that of docs/locking.md: rename lock, then name locks.

mod inode_data;
mod listing;
#[cfg(all(test, loom))]
mod loom_tests;
mod node_handles;
mod numbers_for_keys;
mod owned_name_lock;
mod owned_ticket;

use std::fmt;
use std::io;
use std::sync::{Arc, Weak};
use std::time::Instant;

pub use listing::NodeListing;
pub use node_handles::{NodeKnown, NodeRef, OwnedNode};
pub use numbers_for_keys::{KeyTooLong, NodeKey, NodeKeys};
pub use owned_name_lock::{NameLock, NamePlace, OwnedRenameLock};
pub use owned_ticket::{NodeAnswer, NodeLookup, Ticket};

use inode_data::Data;
use uvfs_sync::primitives::Mutex;

use crate::cache::Cache;
use crate::coherence::late_attributes::Asked;
use crate::coherence::listeners::Listener;
use crate::inodes::attr::mode::S_IFDIR;
use crate::limit::balancer::Balancer;
use crate::limit::external_bytes::ExternalBytes;
use crate::limit::forget_requests::NodeHolder;
use crate::limit::memory_waiters::Overdraft;
use crate::lookup::name_locks::NameLocks;
use crate::names::dentry::NameWords;
use crate::types::{CacheError, Config, Counters, InodeId, SbId, SbOptions};
use crate::walk::fast_hit::Peek;

/// A cache, and what belongs to it. Alive while a handle is.
struct Shared<T: Send + Sync + 'static> {
    cache: Cache,
    data: Data<T>,
    renames: NameLocks,
    /// Superblocks that were removed, and whether they are watched: a later one takes their place once they are
    /// empty.
    removed: Mutex<Vec<(SbId, bool)>>,
}

impl<T: Send + Sync + 'static> Shared<T> {
    /// # Panics
    /// If the node is of another cache.
    fn require(&self, node: &OwnedNode<T>) {
        assert!(std::ptr::eq(self, &*node.shared), "a node of another cache");
    }

    fn rename_key(&self, sb: SbId) -> u64 {
        self.renames.key(u32::from(sb.0), &NameWords::new(b"renames"))
    }

    /// Drop what names hold in a superblock, and what clients hold; returns how many inodes others still hold.
    fn empty(&self, sb: SbId) -> usize {
        let mut looked_up = Vec::new();
        self.cache.inodes_of(sb, &mut |inode| {
            if inode.lookups() != 0 {
                looked_up.push(inode.id());
            }
            true
        });
        looked_up.into_iter().for_each(|id| self.cache.forget_lookups(id, u64::MAX));
        self.cache.drop_superblock(sb)
    }
}

impl<T: Send + Sync + 'static> Drop for Shared<T> {
    /// No handle is left, so nothing holds an inode but names, roots and clients' lookups.
    fn drop(&mut self) {
        for sb in self.cache.superblocks().collect::<Vec<_>>() {
            self.empty(sb);
        }
    }
}

/// A dentry and inode cache whose inodes have data of the type `T`. A clone is the same cache.
///
/// `T` is dropped exactly once for each value, after the last handle to its inode. Its drop may run inside any call
/// of the cache that evicts, with name locks held: it must wait for nobody. If it panics, the cache catches that, and
/// goes on. The memory of the values themselves
/// counts in the limit (not what they own). With `T = ()` there is none.
pub struct NodeCache<T: Send + Sync + 'static>(Arc<Shared<T>>);

impl<T: Send + Sync + 'static> Clone for NodeCache<T> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

/// The same cache.
impl<T: Send + Sync + 'static> PartialEq for NodeCache<T> {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl<T: Send + Sync + 'static> Eq for NodeCache<T> {}

impl<T: Send + Sync + 'static> fmt::Debug for NodeCache<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("NodeCache").field(&self.0.cache).finish()
    }
}

impl<T: Send + Sync + 'static> NodeCache<T> {
    /// An empty cache. Reserves address space and commits next to nothing.
    ///
    /// # Errors
    /// `NoMemory` if the system grants not even a small reservation.
    pub fn new(config: Config) -> Result<Self, CacheError> {
        let side = Data::reserve(config.max_inodes).map_err(|_| CacheError::NoMemory)?;
        let each = config.data_bytes.into();
        let cache = Cache::build(config)?;
        let data = Data::new(side, cache.external_bytes(), each);
        cache.limit.set_side(data.memory());
        let (renames, removed) = (NameLocks::new(), Mutex::new(Vec::new()));
        Ok(Self(Arc::new(Shared { cache, data, renames, removed })))
    }

    /// Add a file system with its root. `watched`: the back end reports every change that others make
    /// ([`NodeSuperblock::name_changed`] and the like), and answers with [`Ttl::Forever`](crate::Ttl::Forever) hold
    /// until then. The root is found by its number too.
    ///
    /// # Errors
    /// `NoMemory`: also after 65,536 superblocks that were not removed. `NotDirectory`: the root.
    pub fn add_superblock(
        &self,
        watched: bool,
        root: NodeAnswer<T>,
    ) -> Result<NodeSuperblock<T>, CacheError> {
        let shared = &self.0;
        if root.attr.fmt() != S_IFDIR {
            return Err(CacheError::NotDirectory);
        }
        let sb = match self.reuse(watched) {
            Some(sb) => sb,
            None => {
                let on_evict = shared.data.hook();
                shared.cache.add_named_superblock(SbOptions { resident: false, watched, on_evict })?
            }
        };
        // From here on an error gives the superblock back.
        let superblock = NodeSuperblock { cache: self.clone(), sb, watched };
        let root = shared.data.make_root(&shared.cache, sb, (root.attr, root.attr_ttl), root.data)?;
        shared.cache.hash_root(&root);
        drop(root);
        Ok(superblock)
    }

    /// A removed superblock that is empty by now.
    fn reuse(&self, watched: bool) -> Option<SbId> {
        // The list belongs to this thread meanwhile: emptying drops data, which may remove other superblocks. A
        // thread that looks now finds none, and adds a new superblock.
        let mut removed = std::mem::take(&mut *self.0.removed.lock());
        // An answer that was on its way may have cached something in one since.
        removed.iter().filter(|(sb, _)| !self.0.cache.is_unused(*sb)).for_each(|(sb, _)| {
            self.0.empty(*sb);
        });
        let at = removed.iter().position(|(sb, of)| *of == watched && self.0.cache.is_unused(*sb));
        let found = at.map(|at| removed.swap_remove(at).0);
        self.0.removed.lock().append(&mut removed);
        found.inspect(|sb| self.0.cache.reuse_superblock(*sb))
    }

    /// The inode with an id; `None`: the id is stale (ESTALE).
    pub fn node(&self, id: InodeId) -> Option<OwnedNode<T>> {
        self.0.cache.get(id).map(|inode| OwnedNode::new(&self.0, inode))
    }

    /// [`NodeCache::node`] without counting the cache.
    #[inline]
    pub fn borrow(&self, id: InodeId) -> Option<NodeRef<'_, T>> {
        self.0.cache.get(id).map(|inode| NodeRef { shared: &self.0, inode })
    }

    /// Look a name up without taking any reference. Stores nothing that another thread reads, but above three quarters of
    /// the memory limit it marks the name as used.
    #[inline]
    pub fn peek(&self, dir: InodeId, name: &[u8]) -> Peek {
        self.0.cache.peek(dir, name)
    }

    /// From now on `listener` is notified of changes that the back end reports, for as long as it lives.
    pub fn listen(&self, listener: Weak<dyn Listener>) {
        self.0.cache.listen(listener);
    }

    /// Set the limit (bytes; 0: none), and come down to it as far as possible.
    pub fn set_memory_limit(&self, bytes: u64) {
        self.0.cache.set_memory_limit(bytes);
    }

    /// Keep the limit from a thread of its own, for a client that holds nodes. The thread ends when the result is
    /// dropped, or with the cache.
    ///
    /// # Errors
    /// The thread cannot be started.
    pub fn balance(&self, holder: impl NodeHolder + Send + 'static) -> io::Result<Balancer> {
        let weak = Arc::downgrade(&self.0);
        Balancer::start_over(&self.0.cache, move |f| weak.upgrade().map(|shared| f(&shared.cache)), holder)
    }

    /// Attempt something that needs memory. `attempt` returns `None` if there is none; it is called again whenever
    /// lookups have been forgotten, and every 10 ms, until `deadline`. The caller holds no name lock. Blocks.
    pub fn with_patience<R>(&self, deadline: Instant, attempt: impl FnMut() -> Option<R>) -> Option<R> {
        self.0.cache.with_patience(deadline, attempt)
    }

    // For this project's own crates: see `machinery`.
    /// [`Cache::overdraw`].
    #[doc(hidden)]
    pub fn overdraw(&self) -> Overdraft {
        self.0.cache.overdraw()
    }

    /// [`Cache::external_bytes`]: memory that the data own.
    #[doc(hidden)]
    pub fn external_bytes(&self) -> Arc<ExternalBytes> {
        self.0.cache.external_bytes()
    }

    /// Current figures. O(superblocks).
    pub fn counters(&self) -> Counters {
        self.0.cache.counters()
    }

    /// An empty index of keys. Its first number is `first`; the embedder's own numbers are below it.
    pub fn keys(&self, first: u64) -> NodeKeys {
        NodeKeys::new(first, self.0.cache.external_bytes().clone())
    }

    /// Advance the clock that TTLs use; for tests of servers.
    pub fn advance_clock(&self, ms: u32) {
        self.0.cache.advance_clock(ms);
    }
}

/// One file system in a cache. Dropping it removes it: its names go, its root, and what clients looked up. Inodes
/// that handles hold stay until those are dropped. Its slot then serves another file system.
pub struct NodeSuperblock<T: Send + Sync + 'static> {
    cache: NodeCache<T>,
    sb: SbId,
    watched: bool,
}

impl<T: Send + Sync + 'static> NodeSuperblock<T> {
    fn shared(&self) -> &Arc<Shared<T>> {
        &self.cache.0
    }

    /// The cache.
    pub fn cache(&self) -> &NodeCache<T> {
        &self.cache
    }

    /// Its id in notifications ([`Listener`]). Another superblock may have it after this one's removal.
    pub fn id(&self) -> SbId {
        self.sb
    }

    /// The root.
    pub fn root(&self) -> OwnedNode<T> {
        let root = self.shared().cache.root(self.sb).expect("a superblock has a root until it is removed");
        OwnedNode::new(self.shared(), root)
    }

    /// The inode with this number, the root too. If inodes of several types have it, an ordinary file comes first.
    pub fn by_number(&self, ino: u64) -> Option<OwnedNode<T>> {
        self.shared().cache.ilookup_any(self.sb, ino).map(|inode| OwnedNode::new(self.shared(), inode))
    }

    /// The inode with this key.
    pub fn by_key(&self, keys: &NodeKeys, key: &[u8]) -> Option<OwnedNode<T>> {
        self.by_number(keys.number(key)?)
    }

    /// Call this before you ask the back end about an inode for [`NodeSuperblock::found_number`].
    pub fn ask(&self) -> Asked {
        self.shared().cache.ask(self.sb)
    }

    /// The inode that an answer describes, known or new, without a name (`name_ttl` is not used). Also returns
    /// whether the answer's attributes are current. The inode leaves the cache with its last handle, unless it
    /// has a name.
    ///
    /// # Errors
    /// `NoMemory`.
    pub fn found_number(
        &self,
        asked: Asked,
        answer: NodeAnswer<T>,
    ) -> Result<(OwnedNode<T>, bool), CacheError> {
        let shared = self.shared();
        let NodeAnswer { attr, attr_ttl, data, .. } = answer;
        let asked = (self.sb, asked);
        let (inode, current) =
            shared.data.known_or_new(&shared.cache, asked, || false, (&attr, attr_ttl), || data)?;
        Ok((OwnedNode::new(shared, inode), current))
    }

    /// Others have changed what `name` leads to in the directory numbered `dir`. Call this after the change.
    /// Returns whether the directory is cached at all.
    pub fn name_changed(&self, dir: u64, name: &[u8]) -> bool {
        self.shared().cache.name_changed(self.sb, dir, name)
    }

    /// Others have changed the attributes of the inode `ino` of type `fmt`; with `content`, its content too.
    pub fn inode_changed(&self, ino: u64, fmt: u32, content: bool) -> bool {
        self.shared().cache.inode_changed(self.sb, ino, fmt, content)
    }

    /// Changes were lost: nothing cached of any watched superblock is trusted before the back end was asked.
    pub fn all_suspect(&self) {
        self.shared().cache.all_suspect(self.sb);
    }

    /// Remove it; returns how many inodes handles still hold.
    pub fn remove(self) -> usize {
        let held = self.shared().empty(self.sb);
        drop(self);
        held
    }
}

impl<T: Send + Sync + 'static> Drop for NodeSuperblock<T> {
    fn drop(&mut self) {
        self.shared().empty(self.sb);
        self.shared().removed.lock().push((self.sb, self.watched));
    }
}

impl<T: Send + Sync + 'static> fmt::Debug for NodeSuperblock<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "NodeSuperblock({:?})", self.sb)
    }
}
