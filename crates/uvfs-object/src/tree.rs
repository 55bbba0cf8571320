//! The tree: nodes, their attributes, and the deadlines of their names.
//!
//! A file is one version of an object and never changes, so its attributes have no TTL. A directory is a prefix, whose
//! attributes are the mount's. Only names expire: a TTL after the store told them. The kernel gets the rest of it.
//!
//! A file that is being written has no version yet ([`FileState::Writing`]). It becomes the version that its writer has
//! published, with the same node. Only its own writer changes it, and only by more bytes of the same content.
//!
//! A node's id is its id in the cache, and 1 for the root. Its number is new for each version, and stays while the name
//! leads to that version in the cache.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use fuse3::raw::reply::{FileAttr, ReplyEntry};
use fuse3::{FileType, Timestamp};
use parking_lot::{Mutex, RwLock};
use uvfs_cache::attr::mode::{S_IFDIR, S_IFREG};
use uvfs_cache::machinery::ExternalBytes;
use uvfs_cache::{
    Attr, Balancer, CacheError, Config, HolderCall, InodeId, NameLock, NodeAnswer, NodeCache, NodeSuperblock,
    OwnedNode, Time, Ttl,
};
use uvfs_path::machinery::{KernelHolder, Patience, Pauses, fuse_descriptors, session_device};

use crate::changed::Changed;
use crate::names::Kind;
use crate::options::ObjectOptions;
use crate::store::Failed;
use crate::subdirs::{Subdirs, TextRoom};
use crate::version::{Etag, Version};

/// The root's node id.
pub(crate) const ROOT: u64 = 1;
/// How long the kernel may keep attributes: those of a node do not change.
pub(crate) const ALWAYS: Duration = Duration::from_secs(1 << 20);
/// Bytes of a value in memory of its own, beside the value.
pub(crate) const HEAP: u64 = 16;

const BATCH_BITS: u32 = 24;
const BATCH_MAX: u64 = (1 << BATCH_BITS) - 1;

/// Knowledge of a directory's names. Times are milliseconds of the tree's clock.
#[derive(Debug, Default)]
pub(crate) struct DirState {
    /// The number of the listing that found all names last; 0: none.
    pub(crate) whole: AtomicU64,
    /// When that began, and when it ended.
    pub(crate) began: AtomicU64,
    pub(crate) listed: AtomicU64,
    /// The directory has more names than a lookup lists.
    pub(crate) large: AtomicBool,
    /// Names that were asked for one by one since the listing that found all.
    pub(crate) asked: AtomicU32,
    /// When the listing began that the kernel has read to its end; 0: none.
    pub(crate) read: AtomicU64,
    /// Changes of names by this mount, as long as this node has lived.
    pub(crate) changed: Changed,
    /// When this node was made.
    pub(crate) born: u64,
    /// Names that may have been evicted.
    pub(crate) subdirs: Subdirs,
}

/// The content of a file.
pub(crate) enum FileState {
    /// Its writer has published nothing yet.
    Writing,
    Version(Version),
    /// Its writer has given up, or it was removed before it was published.
    Gone,
}

impl FileState {
    /// Bytes in memory of their own.
    fn owned(&self) -> u64 {
        let Self::Version(version) = self else { return 0 };
        match version.etag.as_ref().map_or(0, Etag::owned) as u64 {
            0 => 0,
            owned => owned + HEAP,
        }
    }
}

impl DirState {
    /// The names that were listed may be others by now. Called before a name is invalidated.
    pub(crate) fn distrust(&self) {
        self.whole.store(0, Relaxed);
        self.subdirs.forget();
    }

    pub(crate) fn is_large(&self) -> bool {
        self.large.load(Relaxed)
    }
}

/// The tree's data of a node, besides its attributes.
pub(crate) struct ObjectNode {
    what: What,
    /// When the store told last that the name leads here.
    told: AtomicU64,
    /// The listing that told it, and in the low bits the batch; 0: another call.
    listing: AtomicU64,
    /// When this mount published it, or gave it its name; 0: never.
    written: AtomicU64,
    /// Writers here that are going to replace it.
    overwriters: AtomicU32,
    external: Arc<ExternalBytes>,
}

enum What {
    File(RwLock<FileState>),
    Dir(Box<DirState>),
}

impl ObjectNode {
    fn new(kind: &Kind, now: u64, external: &Arc<ExternalBytes>) -> Self {
        let what = match kind {
            Kind::File(version) => What::File(RwLock::new(FileState::Version(version.clone()))),
            Kind::Dir => What::Dir(Box::new(DirState { born: now, ..DirState::default() })),
        };
        Self::of(what, external)
    }

    fn of(what: What, external: &Arc<ExternalBytes>) -> Self {
        let zero = || AtomicU64::new(0);
        let (overwriters, external_of) = (AtomicU32::new(0), external.clone());
        let (told, listing, written) = (zero(), zero(), zero());
        let node = Self { what, told, listing, written, overwriters, external: external_of };
        external.add(node.owned());
        node
    }

    /// Bytes in memory of their own.
    fn owned(&self) -> u64 {
        match &self.what {
            What::File(state) => state.read().owned(),
            What::Dir(_) => size_of::<DirState>() as u64 + HEAP,
        }
    }

    /// The version that a file is.
    ///
    /// # Errors
    /// EISDIR. EBUSY: its writer has published nothing yet. ESTALE: there is nothing to be published any more.
    pub(crate) fn version(&self) -> Result<Version, Failed> {
        match &self.what {
            What::Dir(_) => Err(libc::EISDIR),
            What::File(state) => match &*state.read() {
                FileState::Version(version) => Ok(version.clone()),
                FileState::Writing => Err(libc::EBUSY),
                FileState::Gone => Err(libc::ESTALE),
            },
        }
    }

    /// A writer has published, or has given up.
    pub(crate) fn set_state(&self, new: FileState) {
        let What::File(state) = &self.what else { return };
        let mut state = state.write();
        let (old, added) = (state.owned(), new.owned());
        *state = new;
        self.external.add(added);
        self.external.sub(old);
    }

    /// Whether its writer has published nothing yet.
    pub(crate) fn is_writing(&self) -> bool {
        matches!(&self.what, What::File(state) if matches!(*state.read(), FileState::Writing))
    }

    /// Whether the mount knows of the name's present state by a change of its own, made after `moment`.
    pub(crate) fn is_written_since(&self, moment: u64) -> bool {
        self.is_writing() || self.written.load(Relaxed) >= moment
    }

    /// This mount has published it, or given it its name.
    pub(crate) fn note_written(&self, now: u64) {
        self.written.store(now, Relaxed);
    }

    /// A writer is going to replace it: the kernel asks for its name each time.
    pub(crate) fn begin_overwrite(&self) {
        self.overwriters.fetch_add(1, Relaxed);
    }

    /// That writer has published, or has ended.
    pub(crate) fn end_overwrite(&self) {
        self.overwriters.fetch_sub(1, Relaxed);
    }

    /// When the store told last that the name leads here.
    pub(crate) fn told(&self) -> u64 {
        self.told.load(Relaxed)
    }

    pub(crate) fn dir(&self) -> Option<&DirState> {
        match &self.what {
            What::Dir(state) => Some(state),
            What::File(_) => None,
        }
    }

    /// The listing that told the name last.
    pub(crate) fn listing(&self) -> u64 {
        self.listing.load(Relaxed) >> BATCH_BITS
    }

    /// The batch of that listing.
    pub(crate) fn batch(&self) -> u64 {
        self.listing.load(Relaxed) & BATCH_MAX
    }

    /// A listing has the name.
    pub(crate) fn note_listed(&self, listing: u64, batch: u64) {
        self.listing.store(listing << BATCH_BITS | batch.min(BATCH_MAX), Relaxed);
    }

    /// Whether the store tells of this node now.
    pub(crate) fn is(&self, kind: &Kind) -> bool {
        match (&self.what, kind) {
            (What::File(state), Kind::File(told)) => {
                matches!(&*state.read(), FileState::Version(known) if known.is(told))
            }
            (What::Dir(_), Kind::Dir) => true,
            _ => false,
        }
    }
}

impl Drop for ObjectNode {
    fn drop(&mut self) {
        self.external.sub(self.owned());
    }
}

/// Bytes beside the names that are counted with them, until this is dropped.
#[derive(Debug)]
pub(crate) struct Counted(Arc<ExternalBytes>, u64);

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.sub(self.1);
    }
}

pub(crate) type Node = OwnedNode<ObjectNode>;

/// Directories in which requests wait for the store: the kernel has locked them.
#[derive(Clone, Debug, Default)]
pub(crate) struct Busy(Arc<Mutex<HashMap<InodeId, usize>>>);

/// A request that waits in a directory.
pub(crate) struct Waits(Busy, InodeId);

impl Busy {
    pub(crate) fn enter(&self, dir: &Node) -> Waits {
        *self.0.lock().entry(dir.id()).or_default() += 1;
        Waits(self.clone(), dir.id())
    }
}

impl Drop for Waits {
    fn drop(&mut self) {
        let mut busy = self.0.0.lock();
        if let Some(count) = busy.get_mut(&self.1) {
            *count -= 1;
            if *count == 0 {
                busy.remove(&self.1);
            }
        }
    }
}

/// The tree of one mount.
pub(crate) struct Tree {
    superblock: NodeSuperblock<ObjectNode>,
    root: InodeId,
    prefix: String,
    pub(crate) ttl: Duration,
    pub(crate) busy: Busy,
    external: Arc<ExternalBytes>,
    /// For the texts of [`Subdirs`].
    pub(crate) texts: Arc<TextRoom>,
    pauses: Pauses,
    writing: Arc<HolderCall>,
    begun: Instant,
    /// Milliseconds that tests have added.
    ahead: AtomicU64,
    /// The next inode number.
    next: AtomicU64,
    owner: (u32, u32),
    /// The times of directories.
    mounted: Time,
    lookups: AtomicU64,
    /// Descriptors of `/dev/fuse` from before the mount.
    before: Vec<i32>,
}

fn time(of: SystemTime) -> Time {
    let since = of.duration_since(UNIX_EPOCH).unwrap_or_default();
    Time::new(i64::try_from(since.as_secs()).unwrap_or(i64::MAX), since.subsec_nanos())
}

impl Tree {
    /// # Errors
    /// ENOMEM.
    pub(crate) fn new(prefix: &str, options: &ObjectOptions) -> Result<Self, CacheError> {
        let cache =
            NodeCache::<ObjectNode>::new(Config { memory_limit: options.shares().1, ..Config::default() })?;
        let external = cache.external_bytes();
        let mounted = time(SystemTime::now());
        let owner = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
        let attr = dir_attr(ROOT, owner, mounted);
        let data = ObjectNode::new(&Kind::Dir, 0, &external);
        let root = NodeAnswer { attr, name_ttl: Ttl::Forever, attr_ttl: Ttl::Forever, data };
        let superblock = cache.add_superblock(false, root)?;
        let root = superblock.root().id();
        Ok(Self {
            superblock,
            root,
            prefix: prefix.to_owned(),
            ttl: options.ttl,
            busy: Busy::default(),
            texts: TextRoom::new(options.shares().1, external.clone()),
            external,
            pauses: Pauses::default(),
            writing: Arc::default(),
            begun: Instant::now(),
            ahead: AtomicU64::new(0),
            next: AtomicU64::new(ROOT + 1),
            owner,
            mounted,
            lookups: AtomicU64::new(0),
            before: fuse_descriptors(),
        })
    }

    pub(crate) fn cache(&self) -> &NodeCache<ObjectNode> {
        self.superblock.cache()
    }

    /// Keep the limit from a thread of its own. `None`: the session's device was not found.
    pub(crate) fn keep_limit(&self) -> Option<Balancer> {
        let device = session_device(&self.before)?;
        let (busy, writing) = (self.busy.clone(), self.writing.clone());
        let is_used = Box::new(move |id| busy.0.lock().contains_key(&id));
        self.cache().balance(KernelHolder { device, root: self.root, is_used, writing }).ok()
    }

    /// Count bytes that are kept for names.
    pub(crate) fn count(&self, bytes: u64) -> Counted {
        self.external.add(bytes);
        Counted(self.external.clone(), bytes)
    }

    pub(crate) fn patience(&self) -> Patience<'_> {
        Patience::new(&self.pauses)
    }

    /// An attempt that needs memory of the cache.
    pub(crate) fn attempt<R>(
        &self,
        patience: &Patience<'_>,
        attempt: impl FnOnce() -> Result<R, CacheError>,
    ) -> Result<R, Failed> {
        let more = patience.is_long() || self.writing.is_blocked();
        let _more = more.then(|| self.cache().overdraw());
        attempt().map_err(|error| {
            if matches!(error, CacheError::NoMemory) {
                patience.note_short();
            }
            uvfs_cache::Errno::from(error).raw_os_error()
        })
    }

    /// Milliseconds since the mount, from 1 on.
    pub(crate) fn now(&self) -> u64 {
        let since = u64::try_from(self.begun.elapsed().as_millis()).unwrap_or(u64::MAX / 2);
        since + 1 + self.ahead.load(Relaxed)
    }

    /// The rest of a TTL that began at `told`.
    pub(crate) fn left(&self, told: u64) -> Duration {
        self.ttl.saturating_sub(Duration::from_millis(self.now().saturating_sub(told)))
    }

    /// Let time pass, for tests.
    pub(crate) fn advance(&self, milliseconds: u32) {
        self.ahead.fetch_add(milliseconds.into(), Relaxed);
        self.cache().advance_clock(milliseconds);
    }

    fn id_of(&self, id: u64) -> InodeId {
        if id == ROOT { self.root } else { InodeId::from_u64(id) }
    }

    pub(crate) fn id(&self, node: &Node) -> u64 {
        if node.id() == self.root { ROOT } else { node.id().as_u64() }
    }

    /// The node with an id.
    ///
    /// # Errors
    /// ESTALE.
    pub(crate) fn node(&self, id: u64) -> Result<Node, Failed> {
        self.cache().node(self.id_of(id)).ok_or(libc::ESTALE)
    }

    /// The key of a node, with a slash at its end if it is a directory other than the whole bucket.
    ///
    /// # Errors
    /// ESTALE: the name, or that of a directory on the way, is not known any more. The kernel then looks the path up
    /// again.
    pub(crate) fn key(&self, node: &Node) -> Result<String, Failed> {
        let path = loop {
            match node.path() {
                Ok(path) => break path.ok_or(libc::ESTALE)?,
                Err(_) => std::thread::yield_now(),
            }
        };
        let path = String::from_utf8(path).map_err(|_| libc::ESTALE)?;
        let end = if node.data().dir().is_some() && !path.is_empty() { "/" } else { "" };
        Ok(format!("{}{path}{end}", self.prefix))
    }

    /// An answer of the store, for the cache. `previous`: the node that the name leads to so far.
    pub(crate) fn answer(&self, previous: Option<&Node>, kind: &Kind) -> NodeAnswer<ObjectNode> {
        let same = previous.filter(|node| node.data().is(kind));
        let ino = same.map_or_else(|| self.next.fetch_add(1, Relaxed), |node| node.attr().ino);
        let attr = match kind {
            Kind::Dir => dir_attr(ino, self.owner, self.mounted),
            Kind::File(version) => {
                let at = version.modified.map_or(self.mounted, |(sec, nsec)| Time::new(sec, nsec));
                self.file_attr(ino, version.size, at)
            }
        };
        let data = ObjectNode::new(kind, self.now(), &self.external);
        NodeAnswer { attr, name_ttl: Ttl::For(self.ttl), attr_ttl: Ttl::Forever, data }
    }

    fn file_attr(&self, ino: u64, size: u64, at: Time) -> Attr {
        Attr {
            ino,
            mode: S_IFREG | 0o644,
            nlink: 1,
            uid: self.owner.0,
            gid: self.owner.1,
            size,
            blocks: size.div_ceil(512),
            atime: at,
            mtime: at,
            ctime: at,
            ..Attr::default()
        }
    }

    /// Give a name that is locked the node that the store has told, for a while.
    ///
    /// # Errors
    /// ENOMEM.
    pub(crate) async fn give(
        &self,
        mut lock: NameLock<ObjectNode>,
        kind: &Kind,
        name_ttl: Duration,
    ) -> Result<Node, Failed> {
        let previous = lock.previous();
        let mut patience = self.patience();
        loop {
            let answer = NodeAnswer { name_ttl: Ttl::For(name_ttl), ..self.answer(previous.as_ref(), kind) };
            match self.attempt(&patience, || lock.found(answer)) {
                Ok(node) => return Ok(node),
                Err(errno) if !patience.again().await => return Err(errno),
                Err(_) => {}
            }
        }
    }

    /// When the listing ended that told a name as a subdirectory's. The caller has locked the name. `None`: no listing that
    /// is believed still has told it.
    pub(crate) fn told_subdir(&self, state: &DirState, name: &str) -> Option<u64> {
        let (began, listed) = state.subdirs.told(name)?;
        (!self.left(listed).is_zero() && !state.changed.is_changed_since(began)).then_some(listed)
    }

    /// The node of a subdirectory that was evicted since a listing told it.
    ///
    /// # Errors
    /// ENOMEM.
    pub(crate) async fn restore(&self, lock: NameLock<ObjectNode>, listed: u64) -> Result<Node, Failed> {
        let node = self.give(lock, &Kind::Dir, self.left(listed)).await?;
        node.data().told.store(listed, Relaxed);
        Ok(node)
    }

    /// A file that is going to be written. Its name does not expire before it was published.
    pub(crate) fn writing_answer(&self) -> NodeAnswer<ObjectNode> {
        let attr = self.file_attr(self.next.fetch_add(1, Relaxed), 0, time(SystemTime::now()));
        let data = ObjectNode::of(What::File(RwLock::new(FileState::Writing)), &self.external);
        NodeAnswer { attr, name_ttl: Ttl::Forever, attr_ttl: Ttl::Forever, data }
    }

    /// A file that is going to be written, and has no name before it is published.
    ///
    /// # Errors
    /// ENOMEM.
    pub(crate) fn nameless(&self) -> Result<Node, Failed> {
        let _more = self.cache().overdraw();
        let asked = self.superblock.ask();
        let found = self.superblock.found_number(asked, self.writing_answer());
        found.map(|(node, _)| node).map_err(|error| uvfs_cache::Errno::from(error).raw_os_error())
    }

    /// A node has other bytes now, by its own writer.
    pub(crate) fn resized(&self, node: &Node, size: u64) {
        let now = time(SystemTime::now());
        node.update(|attr| {
            (attr.size, attr.blocks) = (size, size.div_ceil(512));
            (attr.mtime, attr.ctime) = (now, now);
        });
    }

    /// Seconds and nanoseconds, as a version has them.
    pub(crate) fn clock() -> (i64, u32) {
        let now = time(SystemTime::now());
        (now.sec(), now.nsec())
    }

    /// The store told that a name leads to a node.
    pub(crate) fn told(&self, node: &Node, listing: u64, batch: u64) {
        self.told_at(node, self.now(), listing, batch);
    }

    /// As [`Self::told`], by an answer from which the TTL counts.
    pub(crate) fn told_at(&self, node: &Node, moment: u64, listing: u64, batch: u64) {
        node.data().told.store(moment, Relaxed);
        node.data().note_listed(listing, batch);
    }

    /// The attributes of a node as the kernel gets them.
    pub(crate) fn attr(&self, node: &Node) -> FileAttr {
        let attr = node.attr();
        let stamp = |time: Time| Timestamp::new(time.sec(), time.nsec());
        FileAttr {
            ino: self.id(node),
            size: attr.size,
            blocks: attr.blocks,
            atime: stamp(attr.atime),
            mtime: stamp(attr.mtime),
            ctime: stamp(attr.ctime),
            kind: if attr.is_dir() { FileType::Directory } else { FileType::RegularFile },
            perm: (attr.mode & 0o7777) as u16,
            nlink: attr.nlink,
            uid: attr.uid,
            gid: attr.gid,
            rdev: 0,
            blksize: 1 << 20,
        }
    }

    /// How long the kernel may believe that a name leads to a node.
    pub(crate) fn name_ttl(&self, node: &Node) -> Duration {
        if node.data().is_writing() || node.data().overwriters.load(Relaxed) != 0 {
            return Duration::ZERO;
        }
        self.left(node.data().told.load(Relaxed))
    }

    /// A reply that makes the kernel look the node up once more. It is counted at the last moment, so that a request that
    /// is cancelled counts nothing.
    pub(crate) fn entry(&self, node: &Node) -> ReplyEntry {
        self.count_lookup(node);
        ReplyEntry { ttl: self.name_ttl(node), attr: self.attr(node), generation: 0 }
    }

    /// There is no such name, and that is believed for a while. A node id of 0 says so.
    pub(crate) fn absent(&self, ttl: Duration) -> ReplyEntry {
        let zero = Timestamp::new(0, 0);
        let attr = FileAttr {
            ino: 0,
            size: 0,
            blocks: 0,
            atime: zero,
            mtime: zero,
            ctime: zero,
            kind: FileType::RegularFile,
            perm: 0,
            nlink: 0,
            uid: 0,
            gid: 0,
            rdev: 0,
            blksize: 0,
        };
        ReplyEntry { ttl, attr, generation: 0 }
    }

    pub(crate) fn count_lookup(&self, node: &Node) {
        self.lookups.fetch_add(1, Relaxed);
        node.add_lookups(1);
    }

    pub(crate) fn forget(&self, id: u64, n: u64) {
        if id != ROOT {
            let given = self.superblock.forget_lookups(self.id_of(id), n);
            self.lookups.fetch_sub(given, Relaxed);
        }
    }

    /// Lookups that the kernel has not forgotten.
    pub(crate) fn lookups(&self) -> u64 {
        self.lookups.load(Relaxed)
    }

    /// The name leads to another version now: the next lookup asks the store. Returns its directory.
    pub(crate) fn expire(&self, node: &Node) -> Option<Node> {
        let (dir, name) = node.name()?;
        if let Some(state) = dir.data().dir() {
            state.distrust();
        }
        dir.invalidate(&name);
        Some(dir)
    }
}

fn dir_attr(ino: u64, owner: (u32, u32), at: Time) -> Attr {
    Attr {
        ino,
        mode: S_IFDIR | 0o755,
        nlink: 2,
        uid: owner.0,
        gid: owner.1,
        atime: at,
        mtime: at,
        ctime: at,
        ..Attr::default()
    }
}

impl fmt::Debug for Tree {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Tree({} lookups)", self.lookups())
    }
}
