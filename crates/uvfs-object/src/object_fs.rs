//! The file system that fuse3 mounts: each request of the kernel, and the handles of open files and directories.
//!
//! Requests that may wait for the store run in [`Calls`]. Those that change something run in tasks of their own, which go
//! on to their end if the request is dropped: half a rename helps nobody. On a read-only mount they are EROFS. The mutexes
//! of the tables of handles are leaves.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::fmt;
use std::num::NonZeroU32;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use fuse3::raw::reply::*;
use fuse3::raw::{Filesystem, Request};
use fuse3::{Errno, FileType, Inode, Result, SetAttr};
use futures_util::Stream;
use futures_util::future::Either;
use opendal::Operator;
use parking_lot::Mutex;
use uvfs_cache::Balancer;

use crate::calls::Calls;
use crate::control::{Control, is_control};
use crate::data_budget::DataBudget;
use crate::dir_handle::{DirHandle, Entries};
use crate::dying::is_killed;
use crate::listings::Listings;
use crate::lookup::Finder;
use crate::object_reader::OpenObject;
use crate::options::ObjectOptions;
use crate::store::{Failed, OpenError, Store};
use crate::tree::{ALWAYS, Node, Tree};
use crate::upload::Upload;
use crate::writers::{Handle, Opening, Writers};

/// FOPEN_KEEP_CACHE: the kernel's cached pages stay.
const KEEP_CACHE: u32 = 1 << 1;
/// FOPEN_DIRECT_IO: no pages of the kernel's, so each write comes here, in order.
const DIRECT_IO: u32 = 1 << 0;
/// FOPEN_NOFLUSH: a close needs no answer.
const NO_FLUSH: u32 = 1 << 5;
/// FOPEN_CACHE_DIR: the kernel may cache the names.
const CACHE_DIR: u32 = 1 << 3;

/// All that a mount consists of, but for the session.
pub(crate) struct Core {
    pub(crate) tree: Arc<Tree>,
    store: Store,
    finder: Arc<Finder>,
    writers: Arc<Writers>,
    read_only: bool,
    listings: Arc<Listings>,
    calls: Calls,
    budget: Arc<DataBudget>,
    parts: (u64, u64),
    dirs: Mutex<HashMap<u64, Arc<DirHandle>>>,
    next: AtomicU64,
    keeper: Mutex<Option<Balancer>>,
    control: Control,
    /// See [`ObjectFigures::rereads`].
    rereads: AtomicU64,
}

/// An object store as a file system for [`fuse3::raw::Session`].
pub struct ObjectFs(pub(crate) Arc<Core>);

/// Figures of an [`ObjectFs`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ObjectFigures {
    /// Keys that were listed and are not shown, since they are no names.
    pub unshown_keys: u64,
    /// Requests of the kernel under way that may wait for the store.
    pub running: usize,
    /// Files that are open for writing.
    pub writing: usize,
    /// Bytes of data in memory now, and the most so far.
    pub data: (u64, u64),
    /// Names in the tree.
    pub names: u64,
    /// Lookups that the kernel has not forgotten.
    pub lookups: u64,
    /// Bytes that the names are counted with, and their limit (0: none).
    pub name_bytes: u64,
    /// See `name_bytes`.
    pub limit: u64,
    /// LISTs, a page each, that the store has answered.
    pub lists: u64,
    /// Open directories that the kernel has read here although it may keep the names that it had read: it has given them
    /// up. Each is a LIST more.
    pub rereads: u64,
    /// HEADs.
    pub heads: u64,
    /// GETs.
    pub gets: u64,
    /// Bytes that these have brought.
    pub bytes_read: u64,
    /// Bytes in the cache on a disk.
    pub disk_bytes: u64,
    /// Reads that it has answered.
    pub disk_reads: u64,
}

/// A handle to an [`ObjectFs`], useful after the mount.
#[derive(Clone)]
pub struct ObjectHandle(Arc<Core>);

impl ObjectHandle {
    /// Current figures. O(1).
    pub fn figures(&self) -> ObjectFigures {
        self.0.figures()
    }

    /// Give up all that is being written.
    pub(crate) async fn end_writers(&self) {
        self.0.writers.clone().end_all().await;
    }

    /// Let time pass, for tests of TTLs. The kernel's own time is not changed.
    pub fn advance_clock(&self, milliseconds: u32) {
        self.0.tree.advance(milliseconds);
    }
}

impl fmt::Debug for ObjectHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.figures().fmt(f)
    }
}

impl fmt::Debug for ObjectFs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ObjectFs({:?})", self.0.tree)
    }
}

impl ObjectFs {
    /// The file system of the keys below a prefix (empty, or with a slash at its end) in a store. Layers for retries and
    /// time-outs are added here. Asks nothing.
    ///
    /// # Errors
    /// No memory for the tables.
    pub fn new(
        operator: Operator,
        prefix: &str,
        options: &ObjectOptions,
    ) -> std::result::Result<Self, OpenError> {
        Self::of(Store::new(operator, prefix, options), options)
    }

    pub(crate) fn of(store: Store, options: &ObjectOptions) -> std::result::Result<Self, OpenError> {
        let store = store.with_disk(options)?;
        let tree = Tree::new(store.prefix(), options)
            .map_err(|error| OpenError::new(format!("no memory for the tables: {error}")))?;
        let tree = Arc::new(tree);
        let listings = Arc::new(Listings::new(tree.clone(), store.clone()));
        let finder =
            Arc::new(Finder { tree: tree.clone(), store: store.clone(), listings: listings.clone() });
        let budget = DataBudget::new(options.shares().0);
        let parts = (tree.clone(), store.clone(), finder.clone(), listings.clone());
        let writers = Writers::new(parts, budget.clone(), options.part_size);
        Ok(Self(Arc::new(Core {
            tree,
            store,
            finder,
            writers,
            read_only: options.read_only,
            listings,
            calls: Calls::new(options.deadline),
            budget,
            parts: (options.part_size, options.read_ahead),
            dirs: Mutex::default(),
            next: AtomicU64::new(1),
            keeper: Mutex::default(),
            control: Control::new(options.control),
            rereads: AtomicU64::new(0),
        })))
    }

    /// A handle, useful after the mount.
    pub fn handle(&self) -> ObjectHandle {
        ObjectHandle(self.0.clone())
    }
}

impl Core {
    fn figures(&self) -> ObjectFigures {
        let counters = self.tree.cache().counters();
        let [lists, heads, gets, bytes_read] = self.store.counts();
        let (disk_bytes, disk_reads) = self.store.disk_figures();
        ObjectFigures {
            unshown_keys: self.listings.unshown.count(),
            running: self.calls.running(),
            writing: self.writers.count(),
            data: self.budget.used(),
            names: counters.dentries,
            lookups: self.tree.lookups(),
            name_bytes: counters.bytes,
            limit: counters.limit,
            lists,
            rereads: self.rereads.load(Relaxed),
            heads,
            gets,
            bytes_read,
            disk_bytes,
            disk_reads,
        }
    }

    /// Open a file of `.uvfs`: past the kernel's pages, since its length is not known before.
    fn open_control(&self, node: Inode) -> ReplyOpen {
        let fh = self.next.fetch_add(1, Relaxed);
        self.control.open(node, fh, &self.figures());
        ReplyOpen { fh, flags: DIRECT_IO }
    }

    async fn open_file(&self, id: Inode) -> std::result::Result<ReplyOpen, Failed> {
        let node = self.tree.node(id)?;
        let version = node.data().version()?;
        let key = self.tree.key(&node)?;
        match OpenObject::open(self.store.clone(), key, version, &self.budget, self.parts).await {
            Ok(object) => {
                let fh = self.insert(Handle::Reader(node, object));
                // A node is one version, so its pages stay right.
                Ok(ReplyOpen { fh, flags: KEEP_CACHE | NO_FLUSH })
            }
            Err(errno) => {
                self.outdate(id, errno);
                Err(errno)
            }
        }
    }

    fn insert(&self, handle: Handle) -> u64 {
        let fh = self.next.fetch_add(1, Relaxed);
        self.writers.files.lock().insert(fh, handle);
        fh
    }

    fn handle(&self, fh: u64) -> std::result::Result<Handle, Failed> {
        self.writers.files.lock().get(&fh).cloned().ok_or(libc::EBADF)
    }

    fn upload_of(&self, fh: u64) -> std::result::Result<Arc<Upload>, Failed> {
        match self.handle(fh)? {
            Handle::Writer(upload) => Ok(upload),
            Handle::Reader(..) => Err(libc::EBADF),
        }
    }

    /// How long the kernel may keep the attributes of a node.
    fn attr_ttl(&self, node: &Node) -> Duration {
        if node.data().is_writing() || self.writers.upload(node).is_some() { Duration::ZERO } else { ALWAYS }
    }

    fn writable(&self) -> std::result::Result<(), Failed> {
        if self.read_only { Err(libc::EROFS) } else { Ok(()) }
    }

    /// Run a change to its end, whatever becomes of the request.
    async fn change<R: Send + 'static>(
        &self,
        req: Request,
        change: impl Future<Output = std::result::Result<R, Failed>> + Send + 'static,
    ) -> Result<R> {
        self.writable()?;
        let task = tokio::spawn(change);
        // A panic of a dependency, or a runtime that ends.
        self.calls.run((req.unique, req.pid), async move { task.await.unwrap_or(Err(libc::EIO)) }).await
    }

    async fn set_attr(&self, req: Request, inode: Inode, fh: Option<u64>, set: SetAttr) -> Result<ReplyAttr> {
        self.writable()?;
        let writers = self.writers.clone();
        match (set.size, fh.map(|fh| self.upload_of(fh))) {
            (None, _) => {}
            (Some(len), Some(upload)) => self.change(req, writers.set_len(upload?, len)).await?,
            (Some(len), None) => self.change(req, writers.truncate(inode, len, req.pid)).await?,
        }
        // Mode, owner and times are not kept: see the README.
        let node = self.tree.node(inode)?;
        Ok(ReplyAttr { ttl: self.attr_ttl(&node), attr: self.tree.attr(&node) })
    }

    /// After ESTALE, the next lookup asks the store.
    fn outdate(&self, id: Inode, errno: Failed) {
        if errno == libc::ESTALE
            && let Ok(node) = self.tree.node(id)
            && let Some(dir) = self.tree.expire(&node)
        {
            self.listings.distrust(&dir);
        }
    }

    async fn read_file(
        &self,
        id: Inode,
        fh: u64,
        offset: u64,
        size: u32,
    ) -> std::result::Result<ReplyData, Failed> {
        let object = match self.handle(fh)? {
            Handle::Reader(_, object) => object,
            Handle::Writer(upload) => return Ok(upload.read(offset, size.into()).await?.into()),
        };
        let was_stale = object.is_stale();
        let read = object.read(offset, size.into()).await;
        if let Err(errno) = read
            && !was_stale
        {
            self.outdate(id, errno);
        }
        Ok(read?.into())
    }

    fn dir_handle(&self, fh: u64) -> std::result::Result<Arc<DirHandle>, Failed> {
        self.dirs.lock().get(&fh).cloned().ok_or(libc::EBADF)
    }

    fn open_dir(&self, id: Inode) -> std::result::Result<ReplyOpen, Failed> {
        let node = self.tree.node(id)?;
        let state = node.data().dir().ok_or(libc::ENOTDIR)?;
        let read = state.read.load(Relaxed);
        let keeps = read != 0 && !self.tree.left(read).is_zero();
        let fh = self.next.fetch_add(1, Relaxed);
        self.dirs.lock().insert(fh, Arc::new(DirHandle::new(node, fh, keeps)));
        Ok(ReplyOpen { fh, flags: CACHE_DIR | if keeps { KEEP_CACHE } else { 0 } })
    }

    async fn entries(&self, fh: u64, offset: u64) -> std::result::Result<Entries, Failed> {
        let dir = self.dir_handle(fh)?;
        if dir.is_reread() {
            self.rereads.fetch_add(1, Relaxed);
        }
        let _waits = self.tree.busy.enter(dir.node());
        let unlisted = || self.writers.unlisted(dir.node());
        dir.entries(&self.listings, self.tree.clone(), unlisted, offset).await
    }
}

/// A name as keys have it.
fn text(name: &OsStr) -> std::result::Result<String, Failed> {
    name.to_str().map(str::to_owned).ok_or(libc::EILSEQ)
}

/// Whether a file is opened to be changed.
fn is_for_writing(flags: u32) -> bool {
    flags & libc::O_ACCMODE as u32 != libc::O_RDONLY as u32 || flags & libc::O_TRUNC as u32 != 0
}

impl Filesystem for ObjectFs {
    async fn init(&self, _req: Request) -> Result<ReplyInit> {
        let keeper = self.0.tree.keep_limit();
        if keeper.is_none() {
            tracing::warn!("the session's device was not found: the kernel is not asked to forget nodes");
        }
        *self.0.keeper.lock() = keeper;
        Ok(ReplyInit::new(NonZeroU32::MIN.saturating_add((1 << 20) - 1)))
    }

    async fn destroy(&self, _req: Request) {
        let keeper = self.0.keeper.lock().take();
        drop(keeper);
    }

    async fn lookup(&self, req: Request, parent: Inode, name: &OsStr) -> Result<ReplyEntry> {
        if let Some(answer) = self.0.control.lookup(parent, name) {
            return answer.map_err(Errno::from);
        }
        let reserved = name.to_str().and_then(|name| self.0.writers.reserved_node(parent, name, req.pid));
        if let Some(node) = reserved {
            return Ok(self.0.tree.entry(&node));
        }
        self.0.calls.run((req.unique, req.pid), self.0.finder.lookup(parent, name)).await
    }

    async fn forget(&self, _req: Request, inode: Inode, nlookup: u64) {
        if !is_control(inode) {
            self.0.tree.forget(inode, nlookup);
        }
    }

    async fn batch_forget(&self, _req: Request, inodes: &[(Inode, u64)]) {
        let inodes = inodes.iter().filter(|(inode, _)| !is_control(*inode));
        inodes.for_each(|(inode, nlookup)| self.0.tree.forget(*inode, *nlookup));
    }

    async fn getattr(&self, _req: Request, inode: Inode, _fh: Option<u64>, _flags: u32) -> Result<ReplyAttr> {
        if is_control(inode) {
            return Ok(ReplyAttr { ttl: ALWAYS, attr: self.0.control.attr(inode) });
        }
        let node = self.0.tree.node(inode).map_err(Errno::from)?;
        Ok(ReplyAttr { ttl: self.0.attr_ttl(&node), attr: self.0.tree.attr(&node) })
    }

    async fn open(&self, req: Request, inode: Inode, flags: u32) -> Result<ReplyOpen> {
        if is_control(inode) && is_for_writing(flags) {
            return Err(Errno::from(libc::EACCES));
        }
        if is_for_writing(flags) {
            let how = match flags {
                flags if flags & libc::O_TRUNC as u32 != 0 => Opening::Empty,
                flags if flags & libc::O_APPEND as u32 != 0 => Opening::Append,
                _ => Opening::Change,
            };
            let opened = self.0.writers.clone().open(inode, how, req.pid);
            let upload = self.0.change(req, opened).await?.take().ok_or(libc::EIO)?;
            return Ok(ReplyOpen { fh: self.0.insert(Handle::Writer(upload)), flags: DIRECT_IO });
        }
        if is_control(inode) {
            return Ok(self.0.open_control(inode));
        }
        self.0.calls.run((req.unique, req.pid), self.0.open_file(inode)).await
    }

    async fn read(&self, req: Request, inode: Inode, fh: u64, offset: u64, size: u32) -> Result<ReplyData> {
        if let Some(text) = self.0.control.read(fh, offset, size) {
            return Ok(text.into());
        }
        self.0.calls.run((req.unique, req.pid), self.0.read_file(inode, fh, offset, size)).await
    }

    async fn release(
        &self,
        _req: Request,
        _inode: Inode,
        fh: u64,
        _flags: u32,
        _lock_owner: u64,
        _flush: bool,
    ) -> Result<()> {
        if self.0.control.release(fh) {
            return Ok(());
        }
        let handle = self.0.writers.files.lock().remove(&fh);
        if let Some(Handle::Writer(upload)) = handle {
            tokio::spawn(self.0.writers.clone().release(upload));
        }
        Ok(())
    }

    async fn write(
        &self,
        req: Request,
        _inode: Inode,
        fh: u64,
        offset: u64,
        data: &[u8],
        _write_flags: u32,
        _flags: u32,
    ) -> Result<ReplyWrite> {
        let upload = self.0.upload_of(fh)?;
        let written = self.0.writers.clone().write(upload, offset, data.to_vec());
        Ok(ReplyWrite { written: self.0.change(req, written).await? })
    }

    async fn flush(&self, req: Request, _inode: Inode, fh: u64, _lock_owner: u64) -> Result<()> {
        let Ok(upload) = self.0.upload_of(fh) else { return Ok(()) };
        if is_killed(req.pid) {
            // Its file is half written. Others that have the handle may go on.
            return Err(Errno::from(libc::EINTR));
        }
        self.0.change(req, self.0.writers.clone().publish(upload)).await
    }

    async fn fsync(&self, req: Request, _inode: Inode, fh: u64, _datasync: bool) -> Result<()> {
        let Ok(upload) = self.0.upload_of(fh) else { return Ok(()) };
        self.0.change(req, self.0.writers.clone().publish(upload)).await
    }

    async fn opendir(&self, _req: Request, inode: Inode, _flags: u32) -> Result<ReplyOpen> {
        if is_control(inode) {
            return Ok(ReplyOpen { fh: 0, flags: 0 });
        }
        self.0.open_dir(inode).map_err(Errno::from)
    }

    async fn readdir<'a>(
        &'a self,
        req: Request,
        parent: Inode,
        fh: u64,
        offset: i64,
    ) -> Result<ReplyDirectory<impl Stream<Item = Result<DirectoryEntry>> + Send + 'a>> {
        let entries = if is_control(parent) {
            Either::Left(Control::names(offset as u64))
        } else {
            let entries = self.0.calls.run((req.unique, req.pid), self.0.entries(fh, offset as u64)).await?;
            Either::Right(entries.names())
        };
        Ok(ReplyDirectory { entries })
    }

    async fn readdirplus<'a>(
        &'a self,
        req: Request,
        parent: Inode,
        fh: u64,
        offset: u64,
        _lock_owner: u64,
    ) -> Result<ReplyDirectoryPlus<impl Stream<Item = Result<DirectoryEntryPlus>> + Send + 'a>> {
        let entries = if is_control(parent) {
            Either::Left(self.0.control.nodes(offset))
        } else {
            Either::Right(self.0.calls.run((req.unique, req.pid), self.0.entries(fh, offset)).await?.nodes())
        };
        Ok(ReplyDirectoryPlus { entries })
    }

    async fn releasedir(&self, _req: Request, _inode: Inode, fh: u64, _flags: u32) -> Result<()> {
        let dir = self.0.dirs.lock().remove(&fh);
        drop(dir);
        Ok(())
    }

    async fn statfs(&self, _req: Request, _inode: Inode) -> Result<ReplyStatFs> {
        let names = self.0.tree.cache().counters().dentries;
        let (bsize, namelen) = (1 << 20, 255);
        // A store has no size. Programs that look for room find some.
        let room = if self.0.read_only { 0 } else { 1 << 30 };
        Ok(ReplyStatFs {
            blocks: room,
            bfree: room,
            bavail: room,
            files: names,
            ffree: 0,
            bsize,
            namelen,
            frsize: bsize,
        })
    }

    async fn interrupt(&self, _req: Request, unique: u64) -> Result<()> {
        // The kernel need not wait for the outcome.
        let core = self.0.clone();
        tokio::spawn(async move { core.calls.interrupt(unique).await });
        Ok(())
    }

    /// fuse3 has told the kernel that locks are the file system's.
    #[cfg(feature = "file-lock")]
    async fn getlk(
        &self,
        _: Request,
        _: Inode,
        _: u64,
        _: u64,
        _: u64,
        _: u64,
        _: u32,
        _: u32,
    ) -> Result<ReplyLock> {
        Err(Errno::from(libc::ENOLCK))
    }

    #[cfg(feature = "file-lock")]
    async fn setlk(
        &self,
        _: Request,
        _: Inode,
        _: u64,
        _: u64,
        _: u64,
        _: u64,
        _: u32,
        _: u32,
        _: bool,
    ) -> Result<()> {
        Err(Errno::from(libc::ENOLCK))
    }

    async fn setattr(&self, req: Request, inode: Inode, fh: Option<u64>, set: SetAttr) -> Result<ReplyAttr> {
        self.0.set_attr(req, inode, fh, set).await
    }

    async fn create(
        &self,
        req: Request,
        parent: Inode,
        name: &OsStr,
        _mode: u32,
        flags: u32,
    ) -> Result<ReplyCreated> {
        let has = |flag: i32| flags & flag as u32 != 0;
        let how = (has(libc::O_EXCL), has(libc::O_TRUNC));
        let opened = self.0.change(req, self.0.writers.clone().create(parent, text(name)?, how)).await?;
        let upload = opened.take().ok_or(libc::EIO)?;
        self.0.tree.count_lookup(&upload.node);
        let attr = self.0.tree.attr(&upload.node);
        let fh = self.0.insert(Handle::Writer(upload));
        Ok(ReplyCreated { ttl: Duration::ZERO, attr, generation: 0, fh, flags: DIRECT_IO })
    }

    async fn mkdir(
        &self,
        req: Request,
        parent: Inode,
        name: &OsStr,
        _mode: u32,
        _umask: u32,
    ) -> Result<ReplyEntry> {
        let node = self.0.change(req, self.0.writers.clone().mkdir(parent, text(name)?)).await?;
        Ok(self.0.tree.entry(&node))
    }

    async fn unlink(&self, req: Request, parent: Inode, name: &OsStr) -> Result<()> {
        self.0.change(req, self.0.writers.clone().unlink(parent, text(name)?)).await
    }

    async fn rmdir(&self, req: Request, parent: Inode, name: &OsStr) -> Result<()> {
        self.0.change(req, self.0.writers.clone().rmdir(parent, text(name)?)).await
    }

    async fn rename(
        &self,
        req: Request,
        parent: Inode,
        name: &OsStr,
        new_parent: Inode,
        new_name: &OsStr,
    ) -> Result<()> {
        self.rename2(req, parent, name, new_parent, new_name, 0).await
    }

    async fn rename2(
        &self,
        req: Request,
        parent: Inode,
        name: &OsStr,
        new_parent: Inode,
        new_name: &OsStr,
        flags: u32,
    ) -> Result<()> {
        let is_new = flags == libc::RENAME_NOREPLACE;
        if flags != 0 && !is_new {
            return Err(Errno::from(libc::EINVAL));
        }
        let (from, to) = ((parent, text(name)?), (new_parent, text(new_name)?));
        self.0.change(req, self.0.writers.clone().rename(from, to, is_new)).await
    }

    async fn mknod(&self, _: Request, _: Inode, _: &OsStr, _: u32, _: u32) -> Result<ReplyEntry> {
        self.0.writable()?;
        Err(Errno::from(libc::EPERM))
    }

    async fn symlink(&self, _: Request, _: Inode, _: &OsStr, _: &OsStr) -> Result<ReplyEntry> {
        self.0.writable()?;
        Err(Errno::from(libc::EPERM))
    }

    async fn link(&self, _: Request, _: Inode, _: Inode, _: &OsStr) -> Result<ReplyEntry> {
        self.0.writable()?;
        Err(Errno::from(libc::EPERM))
    }
}

impl Drop for ObjectFs {
    /// The session has ended: its device is closed, also if a handle is left. No parts of uploads stay.
    fn drop(&mut self) {
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            runtime.spawn(self.0.writers.clone().end_all());
        }
        let keeper = self.0.keeper.lock().take();
        drop(keeper);
    }
}

impl fmt::Debug for Core {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.tree.fmt(f)
    }
}

/// The type of an entry.
pub(crate) fn kind_of(is_dir: bool) -> FileType {
    if is_dir { FileType::Directory } else { FileType::RegularFile }
}
