//! The file system that fuse3 mounts: which calls the table answers, and what a call does to the table.
//!
//! Calls with a handle pass on; their path is the file's present one, or `None` if it was removed. Calls by path use
//! the path while the back end works ([`crate::paths_in_use`]).

use std::ffi::{OsStr, OsString};
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use bytes::Bytes;
use fuse3::notify::Notify;
use fuse3::path::PathFilesystem;
use fuse3::raw::reply::*;
use fuse3::raw::{Filesystem, Request};
use fuse3::{Inode, Result, SetAttr};
use futures_util::Stream;
use uvfs_cache::{Counters, Ttl};

use crate::change::{Making, Removing};
use crate::dirs::Listings;
use crate::options::PathOptions;
use crate::paths_in_use::PathUse;
use crate::table::{Keeper, Node, Table, errno};

/// A path file system behind a table of its nodes.
///
/// `PathFs::new(fs, options)` goes to [`fuse3::raw::Session::mount`] where `fs` went to
/// [`fuse3::path::Session::mount`].
///
/// With a limit, a thread asks the kernel to forget nodes, through the session's device. The device is found if no
/// other is opened between [`PathFs::new`] and the mount; see [`PathHandle::asks_kernel`].
pub struct PathFs<F> {
    fs: F,
    table: Arc<Table>,
    listings: Listings,
    keeper: Arc<Keeper>,
}

/// The table of a [`PathFs`], for its figures, its limit, and changes that others make.
#[derive(Clone)]
pub struct PathHandle {
    table: Arc<Table>,
    keeper: Arc<Keeper>,
}

impl<F: PathFilesystem + Send + Sync + 'static> PathFs<F> {
    /// The file system with an empty table.
    ///
    /// # Errors
    /// ENOMEM.
    pub fn new(fs: F, options: PathOptions) -> Result<Self> {
        Ok(Self {
            fs,
            table: Arc::new(Table::new(options)?),
            listings: Listings::default(),
            keeper: Arc::default(),
        })
    }

    /// A handle to the table, which is useful after the mount.
    pub fn handle(&self) -> PathHandle {
        PathHandle { table: Arc::clone(&self.table), keeper: Arc::clone(&self.keeper) }
    }

    /// The back end.
    pub fn back_end(&self) -> &F {
        &self.fs
    }

    /// Use a node's path.
    async fn using(&self, id: Inode) -> Result<(OsString, PathUse<1>)> {
        let node = self.table.node(id)?;
        let used = self.table.uses.enter([&node]).await;
        Ok((self.table.path(&node)?, used))
    }

    /// The path or a handle of a file, by which the back end knows it.
    fn target(&self, node: &Node, fh: Option<u64>) -> Result<(Option<OsString>, Option<u64>)> {
        let path = self.table.path_of(node);
        match fh.or_else(|| path.is_none().then(|| self.table.open_files.last(node.id()))?) {
            None if path.is_none() => Err(libc::ESTALE.into()),
            fh => Ok((path, fh)),
        }
    }

    /// The present path of an open file's node.
    fn open_path(&self, id: Inode) -> Option<OsString> {
        self.table.path_of(&self.table.node(id).ok()?)
    }

    /// An open file that was written has new attributes.
    fn written(&self, id: Inode) {
        if let Ok(node) = self.table.node(id) {
            node.data().written.store(true, Ordering::Relaxed);
            self.table.attr_changed(&node);
        }
    }

    /// The data written have reached the back end, whose attributes may change by that.
    fn flushed(&self, id: Inode, released: bool) {
        if let Ok(node) = self.table.node(id) {
            let written = &node.data().written;
            let was = if released {
                written.swap(false, Ordering::Relaxed)
            } else {
                written.load(Ordering::Relaxed)
            };
            if was || released {
                self.table.attr_changed(&node);
            }
        }
    }

    async fn ask_attr(&self, req: Request, node: &Node, fh: Option<u64>, flags: u32) -> Result<ReplyAttr> {
        let table = &self.table;
        let _used = table.uses.enter([node]).await;
        let revision = node.revision();
        let (path, fh) = self.target(node, fh)?;
        let reply = self.fs.getattr(req, path.as_deref(), fh, flags).await?;
        let attr = table.answer_of(node, &reply.attr)?;
        // A late answer is true enough for this caller, and not kept.
        node.refresh(revision, &attr, table.attr_ttl(reply.ttl));
        Ok(ReplyAttr { ttl: table.kernel_ttl(node), attr: table.kernel_attr(node, &attr) })
    }

    fn known_attr(&self, node: &Node) -> Option<ReplyAttr> {
        let attr = node.trusted_attr()?;
        Some(ReplyAttr { ttl: self.table.options.kernel_ttl, attr: self.table.kernel_attr(node, &attr) })
    }

    /// Attributes; of those who miss them at once, one asks.
    async fn attr(&self, req: Request, id: Inode, fh: Option<u64>, flags: u32) -> Result<ReplyAttr> {
        let node = self.table.node(id)?;
        if let Some(known) = self.known_attr(&node) {
            return Ok(known);
        }
        // Without trust, the answer of another caller is of no use.
        let named = node.name().filter(|_| self.table.options.attr_ttl != Some(Ttl::ZERO));
        let _lock = match &named {
            Some((dir, name)) => Some(dir.lock_name(name).await),
            None => None,
        };
        match self.known_attr(&node) {
            Some(known) => Ok(known),
            None => self.ask_attr(req, &node, fh, flags).await,
        }
    }
}

impl PathHandle {
    /// Current figures. O(1).
    pub fn counters(&self) -> Counters {
        self.table.cache().counters()
    }

    /// Lookups that the kernel has not forgotten yet.
    pub fn lookups(&self) -> u64 {
        self.table.lookups()
    }

    /// Change the limit (bytes; 0: none), and come down to it as far as possible.
    pub fn set_limit(&self, bytes: u64) {
        self.table.cache().set_memory_limit(bytes);
    }

    /// Whether the session's device was found, so that the kernel is asked to forget nodes.
    pub fn asks_kernel(&self) -> bool {
        self.keeper.is_set()
    }

    /// The path that a node id (`st_ino`) has now, right across renames of any directory on the way. O(depth).
    ///
    /// # Errors
    /// ESTALE: there is no such node. ENOENT: it, or a directory on the way, was removed.
    pub fn path_of(&self, id: Inode) -> Result<OsString> {
        self.table.path_of(&self.table.node(id)?).ok_or_else(fuse3::Errno::new_not_exist)
    }

    /// Others have changed what a path leads to: the table asks again. The kernel asks when its TTL has passed.
    ///
    /// # Errors
    /// EINVAL: the path has no name.
    pub fn changed(&self, path: &std::path::Path) -> Result<()> {
        use std::os::unix::ffi::OsStrExt;
        let mut names = path.iter().filter(|name| *name != "/").peekable();
        let mut dir = self.table.superblock().root();
        while let Some(name) = names.next() {
            if names.peek().is_none() {
                self.table.expire(&dir, name);
                return Ok(());
            }
            let next = self.table.cache().borrow(dir.id()).and_then(|dir| match dir.child(name.as_bytes()) {
                uvfs_cache::NodeKnown::Hit(node) => Some(node.to_owned()),
                _ => None,
            });
            // A directory that is not known has no known names.
            let Some(next) = next else { return Ok(()) };
            dir = next;
        }
        Err(errno(uvfs_cache::Errno::INVAL))
    }
}

impl<F: PathFilesystem + Send + Sync + 'static> Filesystem for PathFs<F> {
    async fn init(&self, req: Request) -> Result<ReplyInit> {
        let reply = self.fs.init(req).await?;
        let mut init = ReplyInit::new(reply.max_write);
        (init.max_background, init.congestion_threshold) = (reply.max_background, reply.congestion_threshold);
        Ok(init)
    }

    async fn ready(&self, _notify: Notify) {
        let keeper = self.table.keep_limit();
        if keeper.is_none() && self.table.options.limit != 0 {
            tracing::warn!(
                "the session's device was not found: the limit does not bind nodes that the kernel holds"
            );
        }
        self.keeper.set(keeper);
    }

    async fn destroy(&self, req: Request) {
        self.keeper.set(None);
        self.fs.destroy(req).await;
    }

    async fn lookup(&self, req: Request, parent: Inode, name: &OsStr) -> Result<ReplyEntry> {
        self.table.lookup(&self.fs, req, parent, name).await
    }

    async fn forget(&self, _req: Request, inode: Inode, nlookup: u64) {
        self.table.forget(inode, nlookup);
    }

    async fn batch_forget(&self, _req: Request, inodes: &[(Inode, u64)]) {
        inodes.iter().for_each(|(inode, nlookup)| self.table.forget(*inode, *nlookup));
    }

    async fn getattr(&self, req: Request, inode: Inode, fh: Option<u64>, flags: u32) -> Result<ReplyAttr> {
        self.attr(req, inode, fh, flags).await
    }

    async fn setattr(&self, req: Request, inode: Inode, fh: Option<u64>, set: SetAttr) -> Result<ReplyAttr> {
        let table = &self.table;
        let node = table.node(inode)?;
        let _used = table.uses.enter([&node]).await;
        let revision = node.revision();
        let (path, fh) = self.target(&node, fh)?;
        let reply = self.fs.setattr(req, path.as_deref(), fh, set).await?;
        let attr = table.answer_of(&node, &reply.attr)?;
        table.store_attr(&node, revision, &attr, table.attr_ttl(reply.ttl));
        Ok(ReplyAttr { ttl: table.kernel_ttl(&node), attr: table.kernel_attr(&node, &attr) })
    }

    async fn readlink(&self, req: Request, inode: Inode) -> Result<ReplyData> {
        let (path, _used) = self.using(inode).await?;
        self.fs.readlink(req, &path).await
    }

    async fn symlink(&self, req: Request, parent: Inode, name: &OsStr, link: &OsStr) -> Result<ReplyEntry> {
        self.table.make(&self.fs, (req, parent, name), Making::Link { to: link }).await
    }

    async fn mknod(
        &self,
        req: Request,
        parent: Inode,
        name: &OsStr,
        mode: u32,
        rdev: u32,
    ) -> Result<ReplyEntry> {
        self.table.make(&self.fs, (req, parent, name), Making::Node { mode, rdev }).await
    }

    async fn mkdir(
        &self,
        req: Request,
        parent: Inode,
        name: &OsStr,
        mode: u32,
        umask: u32,
    ) -> Result<ReplyEntry> {
        self.table.make(&self.fs, (req, parent, name), Making::Dir { mode, umask }).await
    }

    async fn unlink(&self, req: Request, parent: Inode, name: &OsStr) -> Result<()> {
        self.table.remove(&self.fs, (req, parent, name), Removing::File).await
    }

    async fn rmdir(&self, req: Request, parent: Inode, name: &OsStr) -> Result<()> {
        self.table.remove(&self.fs, (req, parent, name), Removing::Dir).await
    }

    async fn rename(&self, req: Request, from: Inode, name: &OsStr, to: Inode, new: &OsStr) -> Result<()> {
        self.table.rename(&self.fs, req, ((from, name), (to, new)), None).await
    }

    async fn rename2(
        &self,
        req: Request,
        from: Inode,
        name: &OsStr,
        to: Inode,
        new: &OsStr,
        flags: u32,
    ) -> Result<()> {
        self.table.rename(&self.fs, req, ((from, name), (to, new)), Some(flags)).await
    }

    async fn link(&self, req: Request, inode: Inode, to: Inode, name: &OsStr) -> Result<ReplyEntry> {
        self.table.link(&self.fs, req, inode, (to, name)).await
    }

    async fn create(
        &self,
        req: Request,
        parent: Inode,
        name: &OsStr,
        mode: u32,
        flags: u32,
    ) -> Result<ReplyCreated> {
        self.table.create(&self.fs, (req, parent, name), (mode, flags)).await
    }

    async fn open(&self, req: Request, inode: Inode, flags: u32) -> Result<ReplyOpen> {
        let (path, _used) = self.using(inode).await?;
        let node = self.table.node(inode)?;
        let opened = self.fs.open(req, &path, flags).await?;
        self.table.open_files.opened(node.id(), opened.fh);
        if flags & libc::O_TRUNC as u32 != 0 {
            self.written(inode);
        }
        Ok(opened)
    }

    async fn read(&self, req: Request, inode: Inode, fh: u64, offset: u64, size: u32) -> Result<ReplyData> {
        self.fs.read(req, self.open_path(inode).as_deref(), fh, offset, size).await
    }

    async fn write(
        &self,
        req: Request,
        inode: Inode,
        fh: u64,
        offset: u64,
        data: &[u8],
        write_flags: u32,
        flags: u32,
    ) -> Result<ReplyWrite> {
        let path = self.open_path(inode);
        let written = self.fs.write(req, path.as_deref(), fh, offset, data, write_flags, flags).await;
        // Also of an error: part of the data may have been written.
        self.written(inode);
        written
    }

    async fn statfs(&self, req: Request, inode: Inode) -> Result<ReplyStatFs> {
        let (path, _used) = self.using(inode).await?;
        self.fs.statfs(req, &path).await
    }

    async fn release(
        &self,
        req: Request,
        inode: Inode,
        fh: u64,
        flags: u32,
        lock_owner: u64,
        flush: bool,
    ) -> Result<()> {
        let path = self.open_path(inode);
        if let Ok(node) = self.table.node(inode) {
            self.table.open_files.released(node.id(), fh);
        }
        let released = self.fs.release(req, path.as_deref(), fh, flags, lock_owner, flush).await;
        if flags & libc::O_ACCMODE as u32 != libc::O_RDONLY as u32 {
            self.flushed(inode, true);
        }
        released
    }

    async fn fsync(&self, req: Request, inode: Inode, fh: u64, datasync: bool) -> Result<()> {
        let synced = self.fs.fsync(req, self.open_path(inode).as_deref(), fh, datasync).await;
        self.flushed(inode, false);
        synced
    }

    async fn flush(&self, req: Request, inode: Inode, fh: u64, lock_owner: u64) -> Result<()> {
        let flushed = self.fs.flush(req, self.open_path(inode).as_deref(), fh, lock_owner).await;
        self.flushed(inode, false);
        flushed
    }

    async fn setxattr(
        &self,
        req: Request,
        inode: Inode,
        name: &OsStr,
        value: &[u8],
        flags: u32,
        position: u32,
    ) -> Result<()> {
        let (path, _used) = self.using(inode).await?;
        self.fs.setxattr(req, &path, name, value, flags, position).await?;
        self.table.attr_changed(&self.table.node(inode)?);
        Ok(())
    }

    async fn getxattr(&self, req: Request, inode: Inode, name: &OsStr, size: u32) -> Result<ReplyXAttr> {
        let (path, _used) = self.using(inode).await?;
        self.fs.getxattr(req, &path, name, size).await
    }

    async fn listxattr(&self, req: Request, inode: Inode, size: u32) -> Result<ReplyXAttr> {
        let (path, _used) = self.using(inode).await?;
        self.fs.listxattr(req, &path, size).await
    }

    async fn removexattr(&self, req: Request, inode: Inode, name: &OsStr) -> Result<()> {
        let (path, _used) = self.using(inode).await?;
        self.fs.removexattr(req, &path, name).await?;
        self.table.attr_changed(&self.table.node(inode)?);
        Ok(())
    }

    async fn opendir(&self, req: Request, inode: Inode, flags: u32) -> Result<ReplyOpen> {
        let (path, _used) = self.using(inode).await?;
        self.fs.opendir(req, &path, flags).await
    }

    async fn readdir<'a>(
        &'a self,
        req: Request,
        parent: Inode,
        fh: u64,
        offset: i64,
    ) -> Result<ReplyDirectory<impl Stream<Item = Result<DirectoryEntry>> + Send + 'a>> {
        let dir = self.table.node(parent)?;
        Ok(ReplyDirectory { entries: self.table.list(&self.fs, req, (dir, fh), offset) })
    }

    async fn readdirplus<'a>(
        &'a self,
        req: Request,
        parent: Inode,
        fh: u64,
        offset: u64,
        lock_owner: u64,
    ) -> Result<ReplyDirectoryPlus<impl Stream<Item = Result<DirectoryEntryPlus>> + Send + 'a>> {
        let dir = (self.table.node(parent)?, fh);
        let entries = self.table.list_plus(&self.fs, &self.listings, req, dir, (offset, lock_owner));
        Ok(ReplyDirectoryPlus { entries })
    }

    async fn releasedir(&self, req: Request, inode: Inode, fh: u64, flags: u32) -> Result<()> {
        let node = self.table.node(inode)?;
        self.listings.forget(&node, fh);
        // A directory that was removed has no path, but a handle that the back end must hear of.
        let path = self.table.path_of(&node).unwrap_or_default();
        self.fs.releasedir(req, &path, fh, flags).await
    }

    async fn fsyncdir(&self, req: Request, inode: Inode, fh: u64, datasync: bool) -> Result<()> {
        let (path, _used) = self.using(inode).await?;
        self.fs.fsyncdir(req, &path, fh, datasync).await
    }

    #[cfg(feature = "file-lock")]
    async fn getlk(
        &self,
        req: Request,
        inode: Inode,
        fh: u64,
        lock_owner: u64,
        start: u64,
        end: u64,
        r#type: u32,
        pid: u32,
    ) -> Result<ReplyLock> {
        let path = self.open_path(inode);
        self.fs.getlk(req, path.as_deref(), fh, lock_owner, start, end, r#type, pid).await
    }

    #[cfg(feature = "file-lock")]
    async fn setlk(
        &self,
        req: Request,
        inode: Inode,
        fh: u64,
        lock_owner: u64,
        start: u64,
        end: u64,
        r#type: u32,
        pid: u32,
        block: bool,
    ) -> Result<()> {
        let path = self.open_path(inode);
        self.fs.setlk(req, path.as_deref(), fh, lock_owner, start, end, r#type, pid, block).await
    }

    async fn access(&self, req: Request, inode: Inode, mask: u32) -> Result<()> {
        let (path, _used) = self.using(inode).await?;
        self.fs.access(req, &path, mask).await
    }

    async fn interrupt(&self, req: Request, unique: u64) -> Result<()> {
        self.fs.interrupt(req, unique).await
    }

    async fn bmap(&self, req: Request, inode: Inode, block_size: u32, idx: u64) -> Result<ReplyBmap> {
        let (path, _used) = self.using(inode).await?;
        self.fs.bmap(req, &path, block_size, idx).await
    }

    async fn poll(
        &self,
        req: Request,
        inode: Inode,
        fh: u64,
        kh: Option<u64>,
        flags: u32,
        events: u32,
        notify: &Notify,
    ) -> Result<ReplyPoll> {
        let path = self.open_path(inode);
        self.fs.poll(req, path.as_deref(), fh, kh, flags, events, notify).await
    }

    async fn notify_reply(&self, req: Request, inode: Inode, offset: u64, data: Bytes) -> Result<()> {
        let path = self.table.path(&self.table.node(inode)?)?;
        self.fs.notify_reply(req, &path, offset, data).await
    }

    async fn fallocate(
        &self,
        req: Request,
        inode: Inode,
        fh: u64,
        offset: u64,
        length: u64,
        mode: u32,
    ) -> Result<()> {
        let path = self.open_path(inode);
        let done = self.fs.fallocate(req, path.as_deref(), fh, offset, length, mode).await;
        self.written(inode);
        done
    }

    async fn lseek(
        &self,
        req: Request,
        inode: Inode,
        fh: u64,
        offset: u64,
        whence: u32,
    ) -> Result<ReplyLSeek> {
        self.fs.lseek(req, self.open_path(inode).as_deref(), fh, offset, whence).await
    }

    async fn copy_file_range(
        &self,
        req: Request,
        inode: Inode,
        fh_in: u64,
        off_in: u64,
        inode_out: Inode,
        fh_out: u64,
        off_out: u64,
        length: u64,
        flags: u64,
    ) -> Result<ReplyCopyFileRange> {
        let (from, to) = (self.open_path(inode), self.open_path(inode_out));
        let (from, to) = (from.as_deref(), to.as_deref());
        let copied =
            self.fs.copy_file_range(req, from, fh_in, off_in, to, fh_out, off_out, length, flags).await;
        self.written(inode_out);
        copied
    }
}

impl<F> Drop for PathFs<F> {
    /// The session has ended: its device is closed, also if a handle to the table is left.
    fn drop(&mut self) {
        self.keeper.set(None);
    }
}

impl<F> fmt::Debug for PathFs<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PathFs({:?}, {} lookups)", self.table.uses, self.table.lookups())
    }
}

impl fmt::Debug for PathHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PathHandle({} lookups)", self.table.lookups())
    }
}
