//! The table: node ids, attributes, paths, answers.
//!
//! A node's id is its id in the cache, which no other inode ever gets; the root's is 1. A path file system has no inode
//! numbers. The table numbers each file when it is found under a name, and keeps the number while the name leads to a
//! file of that type in the cache. So a name that has expired and is found again is the same node.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use fuse3::path::reply::FileAttr as PathAttr;
use fuse3::raw::reply::{FileAttr, ReplyEntry};
use fuse3::{Errno, Result};
use parking_lot::Mutex;
use uvfs_cache::{
    Attr, Balancer, CacheError, Config, HolderCall, InodeId, NodeAnswer, NodeCache, NodeKnown,
    NodeSuperblock, OwnedNode, Ttl,
};

use crate::attr::{fmt_of, now, to_cache, to_kernel};
use crate::handle_for_getattr::OpenFiles;
use crate::limit::{KernelHolder, fuse_descriptors, session_device};
use crate::options::PathOptions;
use crate::paths_in_use::Uses;
use crate::patience::{Patience, Pauses};

/// The root's node id.
pub(crate) const ROOT: u64 = 1;

const NAME_MAX: usize = 255;

/// The adapter's data of each node.
#[derive(Debug, Default)]
pub(crate) struct PathNode {
    /// Written through an open file that was not released since: its attributes may change once more when that is
    /// flushed.
    pub(crate) written: AtomicBool,
}

pub(crate) type Node = OwnedNode<PathNode>;

/// The table of one file system.
pub(crate) struct Table {
    superblock: NodeSuperblock<PathNode>,
    root: InodeId,
    pub(crate) options: PathOptions,
    pub(crate) uses: Uses,
    pub(crate) open_files: OpenFiles,
    pauses: Pauses,
    writing: Arc<HolderCall>,
    /// The next file's inode number.
    next: AtomicU64,
    /// Lookups that the kernel has and has not forgotten.
    lookups: AtomicU64,
    /// Descriptors of `/dev/fuse` from before the mount.
    before: Vec<i32>,
}

/// The errno of an error of the cache.
pub(crate) fn errno(error: impl Into<uvfs_cache::Errno>) -> Errno {
    error.into().raw_os_error().into()
}

/// The number of an errno of fuse3's, whose conversion negates it.
pub(crate) fn code(error: Errno) -> i32 {
    i32::from(error).abs()
}

impl Table {
    pub(crate) fn new(options: PathOptions) -> Result<Self> {
        let config =
            Config { max_inodes: options.max_nodes, memory_limit: options.limit, ..Config::default() };
        let cache = NodeCache::new(config).map_err(errno)?;
        // A directory about which nothing is known yet: the first getattr asks.
        let attr = Attr { ino: ROOT, mode: fmt_of(fuse3::FileType::Directory) | 0o755, ..Attr::default() };
        let answer =
            NodeAnswer { attr, name_ttl: Ttl::Forever, attr_ttl: Ttl::ZERO, data: PathNode::default() };
        let superblock = cache.add_superblock(false, answer).map_err(errno)?;
        let root = superblock.root().id();
        Ok(Self {
            superblock,
            root,
            options,
            uses: Uses::default(),
            open_files: OpenFiles::default(),
            pauses: Pauses::default(),
            writing: Arc::default(),
            next: AtomicU64::new(ROOT + 1),
            lookups: AtomicU64::new(0),
            before: fuse_descriptors(),
        })
    }

    pub(crate) fn superblock(&self) -> &NodeSuperblock<PathNode> {
        &self.superblock
    }

    pub(crate) fn cache(&self) -> &NodeCache<PathNode> {
        self.superblock.cache()
    }

    /// Keep the limit from a thread of its own. `None`: the session's device was not found.
    pub(crate) fn keep_limit(&self) -> Option<Balancer> {
        let device = session_device(&self.before)?;
        let (uses, writing) = (self.uses.clone(), self.writing.clone());
        let is_used = Box::new(move |id| uses.is_used(id));
        self.cache().balance(KernelHolder { device, root: self.root, is_used, writing }).ok()
    }

    pub(crate) fn patience(&self) -> Patience<'_> {
        Patience::new(&self.pauses)
    }

    /// An attempt that needs memory of the cache.
    pub(crate) fn attempt<R>(
        &self,
        patience: &Patience<'_>,
        attempt: impl FnOnce() -> std::result::Result<R, CacheError>,
    ) -> Result<R> {
        let more = patience.is_long() || self.writing.is_blocked();
        let _more = more.then(|| self.cache().overdraw());
        attempt().map_err(|error| {
            if matches!(error, CacheError::NoMemory) {
                patience.note_short();
            }
            errno(error)
        })
    }

    /// The node with an id.
    pub(crate) fn node(&self, id: u64) -> Result<Node> {
        self.cache().node(self.id_of(id)).ok_or_else(|| libc::ESTALE.into())
    }

    fn id_of(&self, id: u64) -> InodeId {
        if id == ROOT { self.root } else { InodeId::from_u64(id) }
    }

    pub(crate) fn id(&self, node: &Node) -> u64 {
        if node.id() == self.root { ROOT } else { node.id().as_u64() }
    }

    /// The path from the root on, as the back end knows it. `None`: the node, or a directory on the way, was removed.
    pub(crate) fn path_of(&self, node: &Node) -> Option<OsString> {
        loop {
            match node.path() {
                Ok(Some(mut path)) => {
                    path.insert(0, b'/');
                    return Some(OsString::from_vec(path));
                }
                Ok(None) => return None,
                // Directories on the way moved during each of many attempts: their movers come first.
                Err(_) => std::thread::yield_now(),
            }
        }
    }

    /// [`Table::path_of`] for calls that have no other name of the file.
    ///
    /// # Errors
    /// ESTALE: it was removed, or the table is no longer sure of its name. The kernel then looks its path up again.
    pub(crate) fn path(&self, node: &Node) -> Result<OsString> {
        self.path_of(node).ok_or_else(|| libc::ESTALE.into())
    }

    /// A name that the table can keep.
    ///
    /// # Errors
    /// ENAMETOOLONG. (The kernel passes names of more than 255 bytes on.)
    pub(crate) fn check_name(name: &OsStr) -> Result<()> {
        if name.len() > NAME_MAX { Err(libc::ENAMETOOLONG.into()) } else { Ok(()) }
    }

    fn ttl_of(own: Option<Ttl>, reply: Duration) -> Ttl {
        own.unwrap_or(Ttl::For(reply))
    }

    pub(crate) fn name_ttl(&self, reply: Duration) -> Ttl {
        Self::ttl_of(self.options.name_ttl, reply)
    }

    pub(crate) fn attr_ttl(&self, reply: Duration) -> Ttl {
        Self::ttl_of(self.options.attr_ttl, reply)
    }

    /// An answer about a file. `previous`: the file that the name leads to so far. One of the same type is the same
    /// file; any other is new.
    pub(crate) fn answer(
        &self,
        previous: Option<&Node>,
        attr: &PathAttr,
        (name_ttl, attr_ttl): (Duration, Duration),
    ) -> NodeAnswer<PathNode> {
        let same = previous.map(Node::attr).filter(|before| before.fmt() == fmt_of(attr.kind));
        let ino = same.map_or_else(|| self.next.fetch_add(1, Ordering::Relaxed), |before| before.ino);
        NodeAnswer {
            attr: to_cache(ino, attr),
            name_ttl: self.name_ttl(name_ttl),
            attr_ttl: self.attr_ttl(attr_ttl),
            data: PathNode::default(),
        }
    }

    /// An answer about this very node. Of another type, it is about another file: others have replaced it.
    ///
    /// # Errors
    /// ESTALE.
    pub(crate) fn answer_of(&self, node: &Node, attr: &PathAttr) -> Result<Attr> {
        let known = node.attr();
        if known.fmt() != fmt_of(attr.kind) {
            node.replaced();
            return Err(libc::ESTALE.into());
        }
        Ok(to_cache(known.ino, attr))
    }

    pub(crate) fn count_lookup(&self, node: &Node) {
        self.lookups.fetch_add(1, Ordering::Relaxed);
        node.add_lookups(1);
    }

    pub(crate) fn forget(&self, id: u64, n: u64) {
        if id != ROOT {
            let given = self.superblock.forget_lookups(self.id_of(id), n);
            self.lookups.fetch_sub(given, Ordering::Relaxed);
        }
    }

    pub(crate) fn lookups(&self) -> u64 {
        self.lookups.load(Ordering::Relaxed)
    }

    /// The attributes of a node as the kernel gets them.
    pub(crate) fn kernel_attr(&self, node: &Node, attr: &Attr) -> FileAttr {
        to_kernel(self.id(node), attr, self.options.block_size)
    }

    /// How long the kernel may trust what it gets of a node.
    pub(crate) fn kernel_ttl(&self, node: &Node) -> Duration {
        if node.trusted_attr().is_some() { self.options.kernel_ttl } else { Duration::ZERO }
    }

    /// A reply that makes the kernel look the node up once more. It is counted here, at the last moment before the
    /// reply, so that a call that is cancelled before counts nothing.
    pub(crate) fn entry(&self, node: &Node, attr: &Attr) -> ReplyEntry {
        self.count_lookup(node);
        ReplyEntry { ttl: self.kernel_ttl(node), attr: self.kernel_attr(node, attr), generation: 0 }
    }

    /// There is no such name: told with a TTL, unless it is not to be trusted.
    pub(crate) fn absent(&self) -> Result<ReplyEntry> {
        if self.options.absent_ttl == Ttl::ZERO {
            return Err(Errno::new_not_exist());
        }
        // A node id of 0 says so.
        let attr = to_kernel(0, &Attr::default(), 0);
        Ok(ReplyEntry { ttl: self.options.kernel_ttl, attr, generation: 0 })
    }

    /// Others have changed what a name leads to: the next lookup asks. A node keeps its name until the answer, for
    /// those who have it open.
    pub(crate) fn expire(&self, dir: &Node, name: &OsStr) {
        let known = self.cache().borrow(dir.id()).and_then(|dir| match dir.child(name.as_bytes()) {
            NodeKnown::Hit(node) => Some(node.to_owned()),
            _ => None,
        });
        match known {
            Some(node) => self.attr_changed(&node),
            None => dir.invalidate(name.as_bytes()),
        }
    }

    /// Attributes after a change that began after `revision`. If others changed some meanwhile, nobody knows whose
    /// answer is the later one, so the next reader asks.
    pub(crate) fn store_attr(&self, node: &Node, revision: u64, attr: &Attr, ttl: Ttl) {
        // From here on, answers that were asked before the change are late.
        node.update(|_| ());
        if !node.refresh(revision, attr, ttl) {
            self.attr_changed(node);
        }
    }

    /// The back end has changed attributes of a node: the next reader asks, and answers on their way are late.
    pub(crate) fn attr_changed(&self, node: &Node) {
        // A change of attributes moves `ctime`. That also moves the revision, so that answers to getattr are late.
        node.update(|attr| attr.ctime = now());
        node.refresh(node.revision(), &node.attr(), Ttl::ZERO);
    }
}

/// The thread that keeps the limit, while the session lives.
#[derive(Default)]
pub(crate) struct Keeper(Mutex<Option<Balancer>>);

impl Keeper {
    pub(crate) fn is_set(&self) -> bool {
        self.0.lock().is_some()
    }

    pub(crate) fn set(&self, balancer: Option<Balancer>) {
        *self.0.lock() = balancer;
    }
}
