//! The store: numbers, keys, data, attributes and paths of inodes.
//!
//! Three numbers of an inode: its number towards the client (`ino`), by which the cache finds it; its id in the cache,
//! which stays in this crate; and the back end's, which is only part of its key. Numbers from the store are counted
//! up and never used again.
//!
//! The cache has all locks. This module has none.

use std::ffi::OsString;
use std::fmt;
use std::io;
use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;
use std::sync::Arc;

use parking_lot::Mutex;
use uvfs_cache::machinery::ExternalBytes;
use uvfs_cache::{
    Asked, Attr, Balancer, Config, Counters, Errno, InodeId, NodeAnswer, NodeCache, NodeKey, NodeKeys,
    NodeSuperblock, OwnedNode, Ttl,
};

use crate::attr::now;
use crate::inode::{CountedInode, StoredInode};
use crate::key::InodeKey;
use crate::limit::Waits;

/// The root's number (FUSE_ROOT_ID).
pub const ROOT: u64 = 1;

/// Properties of a store.
#[derive(Clone, Debug)]
pub struct StoreOptions {
    /// Bytes that the store may have; 0: no limit. Inodes that the client holds count: see
    /// [`InodeStore::keep_limit`].
    pub limit: u64,
    /// Inodes that address space is reserved for.
    pub max_inodes: u32,
    /// Bytes that the data of each inode owns on the heap. They count in the limit.
    pub data_bytes: u64,
    /// The first number that the store gives an inode whose key has none. The others follow. At least 2.
    pub first_number: u64,
    /// How long the store trusts that a name leads to its inode. Zero: names are not kept, so there are no paths,
    /// and the client is not asked to forget inodes.
    pub name_ttl: Ttl,
    /// How long the store trusts that there is no such name.
    pub absent_ttl: Ttl,
    /// How long the store trusts attributes.
    pub attr_ttl: Ttl,
}

impl Default for StoreOptions {
    fn default() -> Self {
        Self {
            limit: 0,
            max_inodes: Config::default().max_inodes,
            data_bytes: 0,
            first_number: ROOT + 1,
            name_ttl: Ttl::For(std::time::Duration::from_secs(1)),
            absent_ttl: Ttl::ZERO,
            attr_ttl: Ttl::ZERO,
        }
    }
}

/// The back end's answer: a file, its attributes, and the server's data for it.
#[derive(Debug)]
pub struct InodeAnswer<T> {
    /// Which file it is.
    pub key: InodeKey,
    /// Its attributes, as of [`attr_of`](crate::attr_of). The type is part of the file's identity.
    pub attr: Attr,
    /// The server's data. An inode that is in the store already keeps its own, and this is dropped.
    pub data: T,
}

/// Memory that inodes own outside the cache.
pub(crate) struct Owned {
    all: Arc<ExternalBytes>,
    each: u64,
}

/// The key of an inode: in the index, or, with a number of its own, in the inode only.
pub(crate) enum Held {
    Indexed(NodeKey),
    Own(Box<[u8]>),
}

impl Held {
    pub(crate) fn bytes(&self) -> &[u8] {
        match self {
            Self::Indexed(key) => key.key(),
            Self::Own(bytes) => bytes,
        }
    }

    /// Bytes on the heap that nobody else counts.
    fn owned(&self) -> u64 {
        match self {
            Self::Indexed(_) => 0,
            Self::Own(bytes) => bytes.len() as u64 + 16,
        }
    }
}

/// The cache's data of each inode.
pub(crate) struct Inner<T> {
    pub(crate) key: Held,
    pub(crate) data: T,
    owned: Arc<Owned>,
}

impl<T> Inner<T> {
    fn new(key: Held, data: T, owned: &Arc<Owned>) -> Self {
        owned.all.add(owned.each + key.owned());
        Self { key, data, owned: Arc::clone(owned) }
    }
}

impl<T> Drop for Inner<T> {
    fn drop(&mut self) {
        self.owned.all.sub(self.owned.each + self.key.owned());
    }
}

pub(crate) type Node<T> = OwnedNode<Inner<T>>;

/// An answer for the cache.
pub(crate) struct Described<T: Send + Sync + 'static> {
    pub(crate) key: InodeKey,
    pub(crate) answer: NodeAnswer<Inner<T>>,
    /// Another file that had the number before.
    pub(crate) old: Option<Node<T>>,
}

struct Parts<T: Send + Sync + 'static> {
    superblock: NodeSuperblock<Inner<T>>,
    keys: NodeKeys,
    root_key: InodeKey,
    owned: Arc<Owned>,
    options: StoreOptions,
    waits: Arc<Waits>,
    balancer: Mutex<Option<Balancer>>,
}

/// The inodes of a server by number, by key and by name. `T` is the server's own data of each: a descriptor, a handle.
/// It is dropped once, when the inode leaves the store. That may happen inside any call, with name locks held, so the
/// drop waits for nobody. A clone is the same store.
///
/// Calls with a closure run it on the calling thread, with the name locked: callers for the same name wait, and
/// nobody else.
pub struct InodeStore<T: Send + Sync + 'static>(Arc<Parts<T>>);

impl<T: Send + Sync + 'static> Clone for InodeStore<T> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<T: Send + Sync + 'static> fmt::Debug for InodeStore<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("InodeStore").field("counters", &self.counters()).finish_non_exhaustive()
    }
}

/// An error of the cache as an operating system's.
pub(crate) fn io_error(error: impl Into<Errno>) -> io::Error {
    error.into().into()
}

impl<T: Send + Sync + 'static> InodeStore<T> {
    /// A store with its root, which has the number [`ROOT`].
    ///
    /// # Errors
    /// ENOMEM. ENOTDIR: the root is no directory. EINVAL: the first number is less than 2.
    pub fn new(options: StoreOptions, root: InodeAnswer<T>) -> io::Result<Self> {
        let InodeAnswer { key, attr, data } = root;
        if !attr.is_dir() {
            return Err(io_error(Errno::NOTDIR));
        }
        if options.first_number <= ROOT {
            return Err(io_error(Errno::INVAL));
        }
        let config =
            Config { max_inodes: options.max_inodes, memory_limit: options.limit, ..Config::default() };
        let cache = NodeCache::new(config).map_err(io_error)?;
        let keys = cache.keys(options.first_number);
        let owned = Arc::new(Owned { all: cache.external_bytes(), each: options.data_bytes });
        let root_key = key.typed(attr.mode);
        let data = Inner::new(Held::Own(root_key.bytes().into()), data, &owned);
        let attr = Attr { ino: ROOT, ..attr };
        let answer = NodeAnswer { attr, name_ttl: Ttl::ZERO, attr_ttl: options.attr_ttl, data };
        let superblock = cache.add_superblock(false, answer).map_err(io_error)?;
        let (waits, balancer) = (Arc::default(), Mutex::default());
        Ok(Self(Arc::new(Parts { superblock, keys, root_key, owned, options, waits, balancer })))
    }

    /// The options.
    pub fn options(&self) -> &StoreOptions {
        &self.0.options
    }

    pub(crate) fn superblock(&self) -> &NodeSuperblock<Inner<T>> {
        &self.0.superblock
    }

    pub(crate) fn cache(&self) -> &NodeCache<Inner<T>> {
        self.0.superblock.cache()
    }

    pub(crate) fn waits(&self) -> &Arc<Waits> {
        &self.0.waits
    }

    pub(crate) fn set_balancer(&self, balancer: Balancer) {
        *self.0.balancer.lock() = Some(balancer);
    }

    /// Current figures. O(1).
    pub fn counters(&self) -> Counters {
        self.cache().counters()
    }

    /// The inode with a number.
    ///
    /// # Errors
    /// EBADF: there is none.
    pub fn get(&self, ino: u64) -> io::Result<StoredInode<T>> {
        self.node(ino).map(StoredInode)
    }

    pub(crate) fn node(&self, ino: u64) -> io::Result<Node<T>> {
        let node =
            if ino == ROOT { Some(self.superblock().root()) } else { self.superblock().by_number(ino) };
        node.ok_or_else(|| io_error(Errno::BADF))
    }

    /// The inode with a key and the type in `mode`, if it is in the store. The root too.
    pub fn by_key(&self, key: &InodeKey, mode: u32) -> Option<StoredInode<T>> {
        let key = key.typed(mode);
        if self.is_root_key(&key) {
            return Some(StoredInode(self.superblock().root()));
        }
        let node = match key.number() {
            Some(ino) => self.superblock().by_number(ino),
            None => self.superblock().by_key(&self.0.keys, key.bytes()),
        };
        node.filter(|node| node.data().key.bytes() == key.bytes()).map(StoredInode)
    }

    fn is_root_key(&self, key: &InodeKey) -> bool {
        key.bytes() == self.0.root_key.bytes()
    }

    /// The cache's form of an answer. An inode that has the answer's own number, and is another file, is found by it
    /// no longer.
    pub(crate) fn describe(&self, answer: InodeAnswer<T>) -> io::Result<Described<T>> {
        let InodeAnswer { key, attr, data } = answer;
        let key = key.typed(attr.mode);
        let (ino, held) = match key.number() {
            _ if self.is_root_key(&key) => (ROOT, Held::Own([].into())),
            None => {
                let key = self.0.keys.key(key.bytes()).map_err(|_| io_error(Errno::NAMETOOLONG))?;
                (key.number(), Held::Indexed(key))
            }
            Some(..=ROOT) => return Err(io_error(Errno::INVAL)),
            Some(ino) => (ino, Held::Own(key.bytes().into())),
        };
        let old = match held {
            Held::Own(_) if ino != ROOT => self.superblock().by_number(ino),
            _ => None,
        };
        let old = old.filter(|old| !self.is_file(old, &key));
        if let Some(old) = &old {
            old.replaced();
        }
        let StoreOptions { name_ttl, attr_ttl, .. } = self.0.options;
        let data = Inner::new(held, data, &self.0.owned);
        let answer = NodeAnswer { attr: Attr { ino, ..attr }, name_ttl, attr_ttl, data };
        Ok(Described { key, answer, old })
    }

    /// The client knows numbers only: lookups of the file that had the number before are lookups of this one.
    pub(crate) fn take_over(&self, old: Option<&Node<T>>, node: &Node<T>) {
        if let Some(old) = old.filter(|old| old.lookups() != 0) {
            node.add_lookups(old.lookups());
            self.superblock().forget_lookups(old.id(), u64::MAX);
        }
    }

    /// Whether a node is the file with this key.
    pub(crate) fn is_file(&self, node: &Node<T>, key: &InodeKey) -> bool {
        node.data().key.bytes() == key.bytes()
    }

    /// Call this before you ask the back end about an inode for [`InodeStore::found`].
    pub fn ask(&self) -> Asked {
        self.superblock().ask()
    }

    /// An answer about a file that was not asked for by name: the inode that is in the store, or a new one, with one
    /// lookup counted.
    ///
    /// # Errors
    /// ENOMEM. EINVAL: the key has the number 0 or 1.
    pub fn found(&self, asked: Asked, answer: InodeAnswer<T>) -> io::Result<CountedInode<'_, T>> {
        let Described { answer, old, .. } = self.describe(answer)?;
        let (node, _) = self.superblock().found_number(asked, answer).map_err(io_error)?;
        self.take_over(old.as_ref(), &node);
        Ok(CountedInode::new(self, node))
    }

    /// The client forgets `n` lookups of an inode. The root stays. Unknown numbers are ignored.
    pub fn forget(&self, ino: u64, n: u64) {
        if ino != ROOT
            && let Some(node) = self.superblock().by_number(ino)
        {
            self.superblock().forget_lookups(node.id(), n);
        }
    }

    /// [`InodeStore::forget`] of several inodes.
    pub fn batch_forget(&self, forgotten: impl IntoIterator<Item = (u64, u64)>) {
        forgotten.into_iter().for_each(|(ino, n)| self.forget(ino, n));
    }

    /// The path below the root, right across renames that go through this store ([`InodeStore::rename`]). O(depth).
    ///
    /// # Errors
    /// EBADF: there is no such inode. ENOENT: it, or a directory on the way, has no name in the store.
    pub fn path_of(&self, ino: u64) -> io::Result<PathBuf> {
        let node = self.node(ino)?;
        loop {
            match node.path() {
                Ok(Some(path)) => return Ok(OsString::from_vec(path).into()),
                Ok(None) => return Err(io_error(Errno::NOENT)),
                // Directories on the way moved during each attempt: their movers come first.
                Err(_) => std::thread::yield_now(),
            }
        }
    }

    /// The attributes of an inode. `ask` asks the back end; it is called only if the cached ones are not trusted.
    ///
    /// # Errors
    /// EBADF. Those of `ask`.
    pub fn attr(&self, ino: u64, ask: impl FnOnce(&StoredInode<T>) -> io::Result<Attr>) -> io::Result<Attr> {
        let inode = self.get(ino)?;
        if let Some(attr) = inode.trusted_attr() {
            return Ok(attr);
        }
        let revision = inode.0.revision();
        let attr = Attr { ino, ..ask(&inode)? };
        // A late answer is true enough for this caller, and not kept.
        inode.0.refresh(revision, &attr, self.0.options.attr_ttl);
        Ok(attr)
    }

    /// The back end has changed attributes of an inode, for instance the size by a write: the next reader asks.
    /// Needless if `attr_ttl` is zero.
    pub fn attr_changed(&self, ino: u64) {
        if let Ok(node) = self.node(ino) {
            self.note_changed(&node);
        }
    }

    pub(crate) fn note_changed(&self, node: &Node<T>) {
        if self.0.options.attr_ttl != Ttl::ZERO {
            // A moved `ctime` moves the revision, so that answers on their way are late.
            node.update(|attr| attr.ctime = now());
            node.refresh(node.revision(), &node.attr(), Ttl::ZERO);
        }
    }

    /// The number of an id of the cache.
    pub(crate) fn number_of(cache: &NodeCache<Inner<T>>, id: InodeId) -> Option<u64> {
        cache.borrow(id).map(|node| node.attr().ino)
    }
}
