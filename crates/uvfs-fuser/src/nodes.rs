//! The table: node numbers, attributes, and what belongs to the table.
//!
//! A node's number is its id in the cache, which no other inode ever gets; the root's is 1. fuser shows it as `st_ino`
//! too. The back end's number (`FileAttr::ino` of an answer) only says which inode an answer is about. A back end without
//! numbers says 0 for the root. Then the name decides: an answer is about the inode that the name led to so far, if the
//! type is the same, and about a new one otherwise.

use std::fmt;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use fuser::{Errno, FileAttr, INodeNo, Notifier, ReplyAttr};
use parking_lot::Mutex;
use uvfs_cache::{
    Attr, Balancer, Config, Counters, InodeId, NodeAnswer, NodeCache, NodeKeys, NodeSuperblock, OwnedNode,
    Ttl,
};

use crate::attr::{now, to_cache, to_fuser};
use crate::limit::{Kernel, PendingDirs, PendingRequest};
use crate::paths::Paths;

/// A TTL that has passed at once, of a name that stays in the table, for paths.
pub(crate) const PASSED: Ttl = Ttl::For(Duration::from_nanos(1));

/// Properties of a table.
///
/// The kernel trusts a reply for `kernel_ttl`. After that it asks, and the table answers without the back end for as
/// long as the other TTLs say. So a change that others make shows after the sum of both at the latest. Each TTL is a second
/// by default.
#[derive(Clone, Debug)]
pub struct NodesOptions {
    /// Bytes that the table may have; 0 (the default): no limit. Nodes that the kernel holds count: see [`Nodes::keep_limit`].
    pub limit: u64,
    /// Nodes that address space is reserved for.
    pub max_nodes: u32,
    /// Bytes that each `T` owns on the heap (strings, boxes), as the server estimates them; they count in the limit. The
    /// `T` itself and its [`NodeKey`](crate::NodeKey) are counted already.
    pub data_bytes: u32,
    /// How long the table trusts that a name leads to its inode. With zero it asks each time, and keeps the name for
    /// paths.
    pub name_ttl: Ttl,
    /// How long the table trusts that there is no such name. With zero, the kernel does not trust it either.
    pub absent_ttl: Ttl,
    /// How long the table trusts attributes. While it does not, the kernel does not either.
    pub attr_ttl: Ttl,
    /// How long the table trusts that a directory has no other names than those listed.
    pub listing_ttl: Ttl,
    /// How long the kernel trusts a reply.
    pub kernel_ttl: Duration,
    /// `st_blksize`.
    pub block_size: u32,
}

impl Default for NodesOptions {
    fn default() -> Self {
        let second = Ttl::For(Duration::from_secs(1));
        Self {
            limit: 0,
            max_nodes: Config::default().max_inodes,
            data_bytes: 0,
            name_ttl: second,
            absent_ttl: second,
            attr_ttl: second,
            listing_ttl: second,
            kernel_ttl: Duration::from_secs(1),
            block_size: 4096,
        }
    }
}

struct Table<T: Send + Sync + 'static> {
    superblock: NodeSuperblock<T>,
    root: InodeId,
    keys: NodeKeys,
    options: NodesOptions,
    pending_dirs: Arc<PendingDirs>,
    paths: Paths<T>,
    balancer: Mutex<Option<Balancer>>,
    /// Lookups that the kernel has and has not forgotten.
    lookups: AtomicU64,
    /// The next number, if the back end has none.
    next: Option<AtomicU64>,
}

/// The node table of a fuser server. `T` is the server's own data of each node; it is dropped once, when the node
/// leaves the table. A clone is the same table.
///
/// Calls with a closure run it on the calling thread, with the name locked: callers for the same name wait, and
/// nobody else. To answer later from another thread, see [`Nodes::start_lookup`].
pub struct Nodes<T: Send + Sync + 'static>(Arc<Table<T>>);

impl<T: Send + Sync + 'static> Clone for Nodes<T> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<T: Send + Sync + 'static> fmt::Debug for Nodes<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Nodes").field("lookups", &self.lookups()).finish_non_exhaustive()
    }
}

/// The errno of an error of the cache.
pub(crate) fn errno(error: impl Into<uvfs_cache::Errno>) -> Errno {
    Errno::from_i32(error.into().raw_os_error())
}

impl<T: Send + Sync + 'static> Nodes<T> {
    /// A table with its root. `root` gets the index of keys, for a back end whose files have other identities than numbers
    /// ([`Nodes::keys`]). If it answers with number 0, the back end has none, and the numbers of all answers are
    /// ignored: a name leads to the same node while its type stays.
    ///
    /// # Errors
    /// Those of `root`; ENOMEM.
    pub fn new(
        options: NodesOptions,
        root: impl FnOnce(&NodeKeys) -> Result<(FileAttr, T), Errno>,
    ) -> Result<Self, Errno> {
        let config = Config {
            max_inodes: options.max_nodes,
            memory_limit: options.limit,
            data_bytes: options.data_bytes,
            ..Config::default()
        };
        let cache = NodeCache::new(config).map_err(errno)?;
        let keys = cache.keys(1);
        let (mut attr, data) = root(&keys)?;
        let next = (attr.ino == INodeNo(0)).then(|| AtomicU64::new(2));
        if next.is_some() {
            attr.ino = INodeNo::ROOT;
        }
        let answer = NodeAnswer {
            attr: to_cache(&attr),
            name_ttl: options.name_ttl,
            attr_ttl: options.attr_ttl,
            data,
        };
        let superblock = cache.add_superblock(false, answer).map_err(errno)?;
        let root = superblock.root().id();
        Ok(Self(Arc::new(Table {
            superblock,
            root,
            keys,
            options,
            pending_dirs: Arc::default(),
            paths: Paths::default(),
            balancer: Mutex::default(),
            lookups: AtomicU64::new(0),
            next,
        })))
    }

    /// The options.
    pub fn options(&self) -> &NodesOptions {
        &self.0.options
    }

    /// The file system in the cache below, to report changes that others make, and to find inodes by the back
    /// end's number.
    pub fn superblock(&self) -> &NodeSuperblock<T> {
        &self.0.superblock
    }

    /// Numbers for keys of up to 64 bytes (file handles, object keys), for `FileAttr::ino` of answers. The data
    /// `T` of a node keeps its key. Use numbers from here, or numbers of the back end, for all nodes.
    ///
    /// ```
    /// # use std::{fs, path::Path, os::unix::fs::MetadataExt};
    /// # use fuser::{Errno, FileAttr};
    /// use uvfs_fuser::{NodeKey, NodeKeys, Nodes, NodesOptions, host_attr};
    ///
    /// /// The answer about a host file: device and inode number say which file it is.
    /// fn ask(keys: &NodeKeys, path: &Path) -> Result<(FileAttr, NodeKey), Errno> {
    ///     let meta = fs::symlink_metadata(path)?;
    ///     let id = [meta.dev().to_le_bytes(), meta.ino().to_le_bytes()].concat();
    ///     let key = keys.key(&id).map_err(|_| Errno::EIO)?;
    ///     Ok((host_attr(key.number(), &meta), key))
    /// }
    /// // The root's answer gets the index; later ones take it from `nodes.keys()`.
    /// let nodes = Nodes::new(NodesOptions::default(), |keys| ask(keys, Path::new("/")))?;
    /// # ask(nodes.keys(), Path::new("/usr"))?;
    /// # Ok::<(), Errno>(())
    /// ```
    pub fn keys(&self) -> &NodeKeys {
        &self.0.keys
    }

    /// Current figures. O(1).
    pub fn counters(&self) -> Counters {
        self.0.superblock.cache().counters()
    }

    /// Lookups that the kernel has not forgotten yet.
    pub fn lookups(&self) -> u64 {
        self.0.lookups.load(Ordering::Relaxed)
    }

    /// Keep the memory limit from a thread of its own, which asks the kernel to forget nodes through `notifier`.
    /// Without it, nodes that the kernel holds keep the table above the limit. The thread ends with the table.
    ///
    /// The session needs two threads or more (`n_threads` of fuser's `Config`, which is 1 by default): a request that finds
    /// no memory waits for FORGETs, and another thread must read them. With one thread it waits in vain, up to two
    /// seconds, and may end with ENOMEM.
    ///
    /// # Errors
    /// The thread cannot be started.
    pub fn keep_limit(&self, notifier: Notifier) -> io::Result<()> {
        let kernel = Kernel::new(notifier, Arc::clone(&self.0.pending_dirs), self.0.root);
        let balancer = self.0.superblock.cache().balance(kernel)?;
        *self.0.balancer.lock() = Some(balancer);
        Ok(())
    }

    /// Change the limit (bytes; 0: none), and come down to it as far as possible.
    pub fn set_limit(&self, bytes: u64) {
        self.0.superblock.cache().set_memory_limit(bytes);
    }

    /// The node with a number.
    ///
    /// # Errors
    /// ESTALE: the kernel does not hold it, and it is gone.
    pub fn node(&self, ino: INodeNo) -> Result<OwnedNode<T>, Errno> {
        self.0.superblock.cache().node(self.id_of(ino)).ok_or(Errno::ESTALE)
    }

    fn id_of(&self, ino: INodeNo) -> InodeId {
        if ino == INodeNo::ROOT { self.0.root } else { InodeId::from_u64(ino.0) }
    }

    /// The number of a node.
    pub fn number_of(&self, node: &OwnedNode<T>) -> INodeNo {
        if node.id() == self.0.root { INodeNo::ROOT } else { INodeNo(node.id().as_u64()) }
    }

    /// The cached attributes of a node, as the kernel gets them.
    pub fn file_attr(&self, node: &OwnedNode<T>) -> FileAttr {
        to_fuser(self.number_of(node), &node.attr(), self.0.options.block_size)
    }

    pub(crate) fn count_lookup(&self, node: &OwnedNode<T>) {
        self.0.lookups.fetch_add(1, Ordering::Relaxed);
        node.add_lookups(1);
    }

    /// The kernel forgets `n` lookups. [`Filesystem::batch_forget`](fuser::Filesystem::batch_forget) calls `forget`
    /// for each node unless a server changes that. Lookups that the kernel was never told of are ignored.
    pub fn forget(&self, ino: INodeNo, n: u64) {
        // The count came first, so it is never below that of the nodes.
        let forgotten = self.0.superblock.forget_lookups(self.id_of(ino), n);
        self.0.lookups.fetch_sub(forgotten, Ordering::Relaxed);
    }

    /// Answer a getattr. `ask` asks the back end; it is called only if the cached attributes are not trusted.
    pub fn getattr(
        &self,
        ino: INodeNo,
        reply: ReplyAttr,
        ask: impl FnOnce(&OwnedNode<T>) -> Result<FileAttr, Errno>,
    ) {
        self.reply_attr(ino, reply, self.attr(ino, ask));
    }

    fn attr(
        &self,
        ino: INodeNo,
        ask: impl FnOnce(&OwnedNode<T>) -> Result<FileAttr, Errno>,
    ) -> Result<FileAttr, Errno> {
        let node = self.node(ino)?;
        if let Some(attr) = node.trusted_attr() {
            return Ok(to_fuser(ino, &attr, self.0.options.block_size));
        }
        let revision = node.revision();
        let attr = self.answer_of(&node, ask(&node)?)?;
        // A late answer is true enough for this caller, and not kept.
        node.refresh(revision, &attr, self.0.options.attr_ttl);
        Ok(to_fuser(ino, &attr, self.0.options.block_size))
    }

    /// Answer a setattr. `change` has the back end change the attributes, and returns the new ones. If it fails, it may
    /// have changed some: the next reader asks.
    pub fn setattr(
        &self,
        ino: INodeNo,
        reply: ReplyAttr,
        change: impl FnOnce(&OwnedNode<T>) -> Result<FileAttr, Errno>,
    ) {
        self.reply_attr(ino, reply, self.change_attr(ino, change));
    }

    fn change_attr(
        &self,
        ino: INodeNo,
        change: impl FnOnce(&OwnedNode<T>) -> Result<FileAttr, Errno>,
    ) -> Result<FileAttr, Errno> {
        let node = self.node(ino)?;
        let revision = node.revision();
        let changed = change(&node).and_then(|attr| self.answer_of(&node, attr));
        let attr = changed.inspect_err(|_| self.attr_changed(&node))?;
        self.store_attr(&node, revision, &attr);
        Ok(to_fuser(ino, &attr, self.0.options.block_size))
    }

    /// How long the kernel may trust the attributes that a reply gives.
    pub(crate) fn attr_ttl(&self, node: &OwnedNode<T>) -> Duration {
        if node.trusted_attr().is_some() { self.0.options.kernel_ttl } else { Duration::ZERO }
    }

    fn reply_attr(&self, ino: INodeNo, reply: ReplyAttr, attr: Result<FileAttr, Errno>) {
        match attr.and_then(|attr| Ok((attr, self.attr_ttl(&self.node(ino)?)))) {
            Ok((attr, ttl)) => reply.attr(&ttl, &attr),
            Err(error) => reply.error(error),
        }
    }

    /// Attributes after a change that began after `revision`. If others changed some meanwhile, nobody knows whose
    /// answer is the later one, so the next reader asks.
    pub(crate) fn store_attr(&self, node: &OwnedNode<T>, revision: u64, attr: &Attr) {
        // From here on, answers to lookups that were asked before the change are late.
        node.update(|_| ());
        if !node.refresh(revision, attr, self.0.options.attr_ttl) {
            self.attr_changed(node);
        }
    }

    /// The back end has changed attributes of a node, for instance the size by a write: the next reader asks.
    /// Answers on their way are late.
    pub fn attr_changed(&self, node: &OwnedNode<T>) {
        // A change of attributes moves `ctime`. That also moves the revision, so that answers to getattr are late.
        node.update(|attr| attr.ctime = now());
        node.refresh(node.revision(), &node.attr(), Ttl::ZERO);
    }

    /// Whether names decide which inode an answer is about.
    pub(crate) fn is_by_name(&self) -> bool {
        self.0.next.is_some()
    }

    /// How long a name is trusted.
    pub(crate) fn name_ttl(&self) -> Ttl {
        if self.0.options.name_ttl == Ttl::ZERO { PASSED } else { self.0.options.name_ttl }
    }

    /// An answer about a name. `previous` finds the inode that the name led to so far.
    pub(crate) fn answer(
        &self,
        previous: impl FnOnce() -> Option<OwnedNode<T>>,
        (attr, data): (FileAttr, T),
    ) -> NodeAnswer<T> {
        let (name_ttl, attr_ttl) = (self.name_ttl(), self.0.options.attr_ttl);
        let mut answer = NodeAnswer { attr: to_cache(&attr), name_ttl, attr_ttl, data };
        if let Some(next) = &self.0.next {
            let same = previous().map(|node| node.attr()).filter(|before| before.fmt() == answer.attr.fmt());
            answer.attr.ino = same.map_or_else(|| next.fetch_add(1, Ordering::Relaxed), |before| before.ino);
        }
        answer
    }

    /// An answer about this very node. Without numbers, one of another type is about another file: others have replaced
    /// it.
    ///
    /// # Errors
    /// ESTALE.
    pub(crate) fn answer_of(&self, node: &OwnedNode<T>, attr: FileAttr) -> Result<Attr, Errno> {
        let mut attr = to_cache(&attr);
        if self.is_by_name() {
            let known = node.attr();
            if known.fmt() != attr.fmt() {
                node.replaced();
                return Err(Errno::ESTALE);
            }
            attr.ino = known.ino;
        }
        Ok(attr)
    }

    pub(crate) fn paths(&self) -> &Paths<T> {
        &self.0.paths
    }

    pub(crate) fn pending_dirs(&self) -> &PendingDirs {
        &self.0.pending_dirs
    }

    /// A request that the kernel has locked a directory for.
    pub(crate) fn pending(&self, dir: &OwnedNode<T>) -> PendingRequest {
        self.0.pending_dirs.enter(dir.id())
    }
}

#[cfg(test)]
mod tests {
    use std::ffi::OsStr;

    use fuser::FileType;

    use super::*;
    use crate::attr::host_attr;
    use crate::lookup::LookedUp;

    fn found(number: u64, path: &str) -> Result<(FileAttr, ()), Errno> {
        Ok((host_attr(number, &std::fs::symlink_metadata(path)?), ()))
    }

    #[test]
    fn answers_from_before_a_change_are_late() {
        let nodes = Nodes::new(NodesOptions::default(), |_| found(1, "/")).unwrap();
        let LookedUp::Ask(question) = nodes.start_lookup(INodeNo::ROOT, OsStr::new("null")).unwrap() else {
            panic!("nobody said so");
        };
        let entry = question.answer(found(2, "/dev/null")).unwrap();
        let node = entry.node();
        let (revision, old) = (node.revision(), node.attr());
        assert!(node.trusted_attr().is_some());
        nodes.attr_changed(node);
        assert!(!node.refresh(revision, &old, Ttl::Forever));
        assert!(node.trusted_attr().is_none());
        // The kernel gets what is not trusted for no time.
        assert_eq!(nodes.attr_ttl(node), Duration::ZERO);
        assert_eq!(nodes.lookups(), 1);
        drop(entry);
        assert_eq!(nodes.lookups(), 0);
    }

    #[test]
    fn only_lookups_that_were_counted_are_forgotten() {
        let nodes = Nodes::new(NodesOptions::default(), |_| found(1, "/")).unwrap();
        let LookedUp::Ask(question) = nodes.start_lookup(INodeNo::ROOT, OsStr::new("null")).unwrap() else {
            panic!("nobody said so");
        };
        let mut entry = question.answer(found(2, "/dev/null")).unwrap();
        entry.give();
        nodes.forget(INodeNo::ROOT, 1);
        nodes.forget(INodeNo(77), 3);
        assert_eq!(nodes.lookups(), 1);
        nodes.forget(nodes.number_of(entry.node()), 5);
        assert_eq!(nodes.lookups(), 0);
    }

    #[test]
    fn a_change_of_attributes_that_fails_half_way_leaves_none_trusted() {
        let options = NodesOptions { attr_ttl: Ttl::Forever, ..NodesOptions::default() };
        let nodes = Nodes::new(options, |_| found(1, "/")).unwrap();
        let trusted = || nodes.node(INodeNo::ROOT).unwrap().trusted_attr().is_some();
        assert!(trusted());
        let error = nodes.change_attr(INodeNo::ROOT, |_| Err(Errno::ENOSPC)).unwrap_err();
        assert_eq!(error.code(), Errno::ENOSPC.code());
        assert!(!trusted());
        nodes.change_attr(INodeNo::ROOT, |_| Ok(found(1, "/")?.0)).unwrap();
    }

    #[test]
    fn without_numbers_a_name_leads_to_one_node_while_its_type_stays() {
        let nodes = Nodes::new(NodesOptions { name_ttl: Ttl::ZERO, ..Default::default() }, |_| found(0, "/"));
        let nodes = nodes.unwrap();
        let look_up = |path| match nodes.start_lookup(INodeNo::ROOT, OsStr::new("x")).unwrap() {
            LookedUp::Ask(question) => question.answer(found(0, path)).unwrap().node().clone(),
            other => panic!("{other:?}"),
        };
        let node = look_up("/dev/null");
        assert!(look_up("/dev/null") == node);
        let other =
            nodes.make(INodeNo::ROOT, OsStr::new("y"), FileType::CharDevice, |_| found(0, "/dev/null"));
        assert!(*other.unwrap().node() != node);
        // Attributes of the node itself.
        let number = nodes.number_of(&node);
        nodes.attr_changed(&node);
        nodes.attr(number, |_| Ok(found(0, "/dev/zero")?.0)).unwrap();
        assert_eq!(look_up("/dev/null").attr().ino, node.attr().ino);
        // A directory now.
        nodes.attr_changed(&node);
        let error = nodes.attr(number, |_| Ok(found(0, "/")?.0)).unwrap_err();
        assert_eq!(error.code(), Errno::ESTALE.code());
        let dir = look_up("/");
        assert!(dir != node && look_up("/") == dir);
    }

    #[test]
    fn a_question_is_answered_from_another_thread_and_a_dropped_one_is_asked_again() {
        let nodes = Nodes::new(NodesOptions::default(), |_| found(1, "/")).unwrap();
        let ask = || match nodes.start_lookup(INodeNo::ROOT, OsStr::new("null")).unwrap() {
            LookedUp::Ask(question) => question,
            other => panic!("{other:?}"),
        };
        drop(ask());
        let question = ask();
        std::thread::spawn(|| question.answer(Err(Errno::ENOENT)).unwrap_err()).join().unwrap();
        let again = nodes.start_lookup(INodeNo::ROOT, OsStr::new("null")).unwrap();
        assert!(matches!(again, LookedUp::Absent));
    }
}
