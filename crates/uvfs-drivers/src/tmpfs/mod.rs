//! Files in memory. The cache *is* the directory tree, and nothing of it is evicted. This driver holds only data for
//! which the cache has no place: pages, extended attributes, access control lists, targets of links.
//!
//! Attributes are changed in the cache, by [`Inode::update`]. The modules say what protects the rest: [`mod@file_data`]
//! (contents, and every change of a size), [`node`] (what an inode has), [`names`] (names), [`xattr`], [`mod@acl`],
//! [`quota`] (limits). In [`mod@passthrough`] are contents that the kernel of a front end reads and writes; [`shared_space`] shares
//! the limit with them. Lock order: a file's mapping mutex or its `extra` lock, then the inode's own lock in the
//! cache. Nothing here waits for anything but these.
//!
//! Beyond a limit calls fail with ENOSPC, and existing data stays. Data counts in whole pages, links by the length of
//! their target, an extended attribute (or access control list) by name, value and 64 bytes. The radix tree of a file
//! is not counted. It adds a node of 512 bytes to each 64 pages, or up to nine nodes to a single page in a sparse
//! file.

mod acl;
mod attr;
mod file_data;
mod host_pool;
mod names;
mod node;
mod options;
mod passthrough;
mod quota;
mod shared_space;
mod sys;
mod xattr;

use std::io;
use std::sync::Arc;

use uvfs::acl::{Acl, AclKind};
use uvfs::driver::{AclStore, Driver, File, FileLender, Inode, Rename};
use uvfs::types::{
    Access, Attr, Errno, Fallocate, Features, Make, NAME_MAX, NewInode, Op, Result, Seek, SetAttr, StatFs,
    Ttl, XattrFlags,
};
use uvfs_cache::machinery::mapping::Memory;
use uvfs_sync::segvec::SegVec;

#[doc(hidden)]
pub use options::amount;
pub use options::{TmpfsOptions, parse};

use file_data::PAGE;
use host_pool::Pool;
use node::Node;
use passthrough::{Handles, NOT_LENT};
use quota::{Limit, Numbers};
use shared_space::Space;

/// The driver.
#[derive(Debug)]
pub struct Tmpfs {
    options: TmpfsOptions,
    memory: Memory,
    nodes: SegVec<Node>,
    bytes: Space,
    inodes: Limit,
    numbers: Numbers,
    handles: Handles,
}

/// The present use of a tmpfs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Usage {
    /// Bytes counted against `size`.
    pub bytes: u64,
    /// Inodes, and hard links beyond the first of each.
    pub inodes: u64,
    /// Bytes of the system's memory that pages and their index hold.
    pub committed: u64,
    /// Reads that had to take a file's mutex because pages were recycled under them.
    pub locked_reads: u64,
    /// How often the system refused to take memory back.
    pub give_back_failures: u64,
}

impl Tmpfs {
    /// An empty file system. Address space is reserved for `size` bytes (for 4 TiB without a limit), but no memory is
    /// used yet. If less can be reserved, the limit is lowered to that, and `statfs` shows it.
    ///
    /// # Errors
    /// ENOMEM if next to no address space is left.
    pub fn new(options: TmpfsOptions) -> io::Result<Arc<Self>> {
        Self::with(options, |_| None)
    }

    /// As [`Tmpfs::new`], of a file system that lends files to a front end's kernel. Without the rights to do so, or on
    /// an old kernel, it lends none ([`Tmpfs::can_lend`]).
    ///
    /// # Errors
    /// As [`Tmpfs::new`].
    pub fn lending(options: TmpfsOptions) -> io::Result<Arc<Self>> {
        Self::with(options, |limited| {
            Pool::new(limited)
                .inspect_err(|error| tracing::info!(%error, "no file of the tmpfs is lent"))
                .ok()
        })
    }

    fn with(options: TmpfsOptions, pool: impl FnOnce(bool) -> Option<Pool>) -> io::Result<Arc<Self>> {
        let pages = match options.size {
            0 => u32::MAX,
            size => u32::try_from(size.div_ceil(PAGE)).unwrap_or(u32::MAX),
        };
        let memory = Memory::reserve(pages)?;
        let reserved = u64::from(memory.capacity()) * PAGE;
        let size =
            (options.size != 0).then(|| options.size.div_ceil(PAGE).saturating_mul(PAGE).min(reserved));
        Ok(Arc::new(Self {
            options,
            memory,
            nodes: SegVec::new(),
            bytes: Space::new(size, pool(size.is_some())),
            inodes: Limit::new((options.nr_inodes != 0).then_some(options.nr_inodes)),
            numbers: Numbers::new(),
            handles: Handles::default(),
        }))
    }

    /// Whether files can be lent.
    pub fn can_lend(&self) -> bool {
        self.bytes.pool().is_some()
    }

    /// Returns the present use. Constant time; the figures are not of one moment.
    pub fn usage(&self) -> Usage {
        Usage {
            bytes: self.bytes.used(),
            inodes: self.inodes.used(),
            committed: self.memory.committed_bytes() + self.bytes.pool().map_or(0, Pool::used),
            locked_reads: self.memory.locked_reads(),
            give_back_failures: self.memory.give_back_failures(),
        }
    }
}

impl Driver for Tmpfs {
    fn name(&self) -> &'static str {
        "tmpfs"
    }

    fn features(&self) -> Features {
        let lends = self.can_lend();
        Features {
            resident: true,
            fixed_links: true,
            acl: true,
            lends,
            plain_files: !lends,
            ..Features::default()
        }
    }

    fn root(&self, op: &Op) -> Result<NewInode> {
        if !self.inodes.take(1) {
            return Err(Errno::NOSPC);
        }
        let TmpfsOptions { mode, uid, gid, .. } = self.options;
        Ok(NewInode { attr: self.new_dir(mode, uid, gid, op.now), private: 0, ttl: Ttl::Forever })
    }

    fn getattr(&self, _op: &Op, inode: &Inode<'_>) -> Result<Attr> {
        self.attr_now(inode)
    }

    fn setattr(&self, op: &Op, inode: &Inode<'_>, set: &SetAttr) -> Result<()> {
        self.set_attr(op, inode, set)
    }

    fn create(&self, op: &Op, dir: &Inode<'_>, _name: &[u8], make: &Make<'_>) -> Result<NewInode> {
        self.make(op, dir, make)
    }

    fn tmpfile(
        &self,
        op: &Op,
        _dir: &Inode<'_>,
        make: &Make<'_>,
        _access: Access,
        linkable: bool,
    ) -> Result<(NewInode, Option<u64>)> {
        self.make_nameless(op, make, linkable).map(|new| (new, None))
    }

    fn is_linkable(&self, inode: &Inode<'_>) -> bool {
        self.may_be_named(inode)
    }

    fn link(&self, op: &Op, inode: &Inode<'_>, dir: &Inode<'_>, _name: &[u8]) -> Result<()> {
        self.add_link(op, inode, dir)
    }

    fn unlink(&self, op: &Op, dir: &Inode<'_>, _name: &[u8], inode: &Inode<'_>) -> Result<()> {
        self.remove_name(op, dir, inode);
        Ok(())
    }

    fn rmdir(&self, op: &Op, dir: &Inode<'_>, _name: &[u8], inode: &Inode<'_>) -> Result<()> {
        self.remove_name(op, dir, inode);
        Ok(())
    }

    fn rename(&self, op: &Op, rename: &Rename<'_>) -> Result<()> {
        self.move_name(op, rename);
        Ok(())
    }

    fn rename_whiteout(&self, op: &Op, rename: &Rename<'_>, whiteout: &Make<'_>) -> Result<Option<NewInode>> {
        self.move_name_from_whiteout(op, rename, whiteout).map(Some)
    }

    fn readlink(&self, op: &Op, inode: &Inode<'_>) -> Result<Vec<u8>> {
        file_data::touch_atime(inode, &inode.attr(), op.now);
        self.with_extra(inode, |extra| extra.target.to_vec()).ok_or(Errno::INVAL)
    }

    fn open(&self, _op: &Op, _inode: &Inode<'_>, _access: Access) -> Result<u64> {
        Ok(if self.can_lend() { self.handles.next() } else { NOT_LENT })
    }

    fn release(&self, file: File<'_>) {
        self.release_file(file);
    }

    fn lender(&self) -> Option<&dyn FileLender> {
        Some(self)
    }

    fn read(&self, op: &Op, file: File<'_>, offset: u64, buf: &mut [u8]) -> Result<usize> {
        self.read_file(op, file.inode, offset, buf)
    }

    fn write(&self, op: &Op, file: File<'_>, offset: u64, data: &[u8], append: bool) -> Result<usize> {
        self.write_file(op, file.inode, offset, data, append)
    }

    fn fallocate(&self, op: &Op, file: File<'_>, how: Fallocate, offset: u64, len: u64) -> Result<()> {
        self.allocate_file(op, file.inode, how, offset, len)
    }

    fn seek(&self, _op: &Op, file: File<'_>, offset: u64, what: Seek) -> Result<u64> {
        self.seek_file(file.inode, offset, what)
    }

    /// Without a limit the figures are 0, as in the kernel's tmpfs.
    fn statfs(&self, _op: &Op) -> Result<StatFs> {
        let free = |max: Option<u64>, used: u64| max.map_or(0, |max| max.saturating_sub(used));
        let free_blocks = free(self.bytes.max(), self.bytes.used()) / PAGE;
        Ok(StatFs {
            bsize: PAGE as u32,
            blocks: self.bytes.max().unwrap_or(0) / PAGE,
            bfree: free_blocks,
            bavail: free_blocks,
            files: self.inodes.max().unwrap_or(0),
            ffree: free(self.inodes.max(), self.inodes.used()),
            namelen: NAME_MAX as u32,
        })
    }

    fn getxattr(&self, _op: &Op, inode: &Inode<'_>, name: &[u8]) -> Result<Vec<u8>> {
        self.get_xattr(inode, name)
    }

    fn setxattr(
        &self,
        op: &Op,
        inode: &Inode<'_>,
        name: &[u8],
        value: &[u8],
        flags: XattrFlags,
    ) -> Result<()> {
        self.set_xattr(op, inode, name, value, flags)
    }

    fn listxattr(&self, _op: &Op, inode: &Inode<'_>) -> Result<Vec<u8>> {
        Ok(self.list_xattrs(inode))
    }

    fn removexattr(&self, op: &Op, inode: &Inode<'_>, name: &[u8]) -> Result<()> {
        self.remove_xattr(op, inode, name)
    }

    fn evict(&self, attr: &Attr, private: u64) {
        self.forget(attr, private);
    }

    fn acls(&self) -> Option<&dyn AclStore> {
        Some(self)
    }
}

impl AclStore for Tmpfs {
    fn acl(&self, _op: &Op, inode: &Inode<'_>, kind: AclKind) -> Result<Option<Arc<Acl>>> {
        Ok(self.get_acl(inode, kind))
    }

    fn set_acl(
        &self,
        op: &Op,
        inode: &Inode<'_>,
        kind: AclKind,
        acl: Option<Arc<Acl>>,
        mode: Option<u32>,
    ) -> Result<()> {
        self.put_acl(op, inode, kind, acl, mode)
    }
}
