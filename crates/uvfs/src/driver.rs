//! The trait that a file system implements: the only interface between the VFS and drivers.
//!
//! The VFS calls a driver with name locks held, so no other operation on the same name of the same directory runs.
//! It holds a reference to every inode, and no lock of the cache. So a driver may take as long as it must, and
//! delays only callers that ask for the same name. The VFS has checked permission, type, name length, emptiness of
//! resident directories, and directory loops.
//!
//! Attributes live in the cache. A driver that changes an inode reports it with [`Inode::update`]; this includes
//! the parents' times and link counts. The VFS publishes a returned [`NewInode`] after the call; publishing cannot
//! fail.

use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::task::Waker;

use uvfs_cache::Cache;

use crate::acl::{Acl, AclKind};
use crate::types::{
    Access, Answer, Attr, DirEntry, Errno, Fallocate, Features, FileFlags, FlagsForm, Make, NewInode, Op,
    PollEvents, Result, Seek, SetAttr, StatFs, Time, Ttl, XattrFlags,
};

/// A referenced inode; see [`uvfs_cache::InodeRef`].
pub type Inode<'c> = uvfs_cache::InodeRef<'c>;

/// The inodes and names that a rename changes.
#[derive(Clone, Copy, Debug)]
pub struct Rename<'a> {
    /// Directory of the old name.
    pub from_dir: &'a Inode<'a>,
    /// Old name.
    pub from_name: &'a [u8],
    /// The inode that the old name leads to.
    pub inode: &'a Inode<'a>,
    /// Directory of the new name (may be the same inode as `from_dir`).
    pub to_dir: &'a Inode<'a>,
    /// New name.
    pub to_name: &'a [u8],
    /// The inode of the new name; it is replaced, or swapped if `exchange` is set.
    pub target: Option<&'a Inode<'a>>,
    /// RENAME_EXCHANGE.
    pub exchange: bool,
}

/// An open regular file as the driver sees it.
#[derive(Clone, Copy, Debug)]
pub struct File<'a> {
    /// The inode.
    pub inode: &'a Inode<'a>,
    /// The value that [`Driver::open`] returned.
    pub handle: u64,
}

/// The callback that takes a descriptor which a driver lends: see [`FileLender::offer`].
pub type Borrower<'a> = dyn FnMut(BorrowedFd<'_>) -> Result<()> + 'a;

/// Lending open files to a front end's kernel (FUSE passthrough). Asked only with [`Features::lends`].
#[allow(unused_variables)]
pub trait FileLender {
    /// Offers the front end's kernel the driver's own file behind an open one, so that the kernel reads and writes
    /// it by itself. Calls `to` at most once, with a descriptor of that file. The calling thread has the identity
    /// and the rights that the kernel is to read and write with.
    ///
    /// # Errors
    /// Any error if the file is better not lent, and what `to` answers.
    fn offer(&self, op: &Op, file: File<'_>, to: &mut Borrower<'_>) -> Result<()>;
    /// From now until release, the front end's kernel reads and writes the data of an open file, in the file that
    /// was offered for its inode. The driver does not see these calls. At release it checks how the inode has
    /// changed.
    ///
    /// # Errors
    /// If it answers an error, the file is not lent.
    fn lend(&self, file: File<'_>) -> Result<()>;
    /// Whether an open file of this inode was lent since the cache has known the inode, to whatever opener. Writes of
    /// the kernel may have cleared its set-id bits.
    fn was_lent(&self, inode: &Inode<'_>) -> bool;
    /// Whether it was lent to an opener that could map it, as far as the driver knows. A program may have it mapped even if
    /// nobody has it open.
    fn may_be_mapped(&self, inode: &Inode<'_>) -> bool {
        self.was_lent(inode)
    }
    /// Whether the file behind an open one can be read and written with O_DIRECT.
    ///
    /// # Errors
    /// EINVAL if it cannot.
    fn takes_direct(&self, file: File<'_>) -> Result<()> {
        Ok(())
    }
}

/// A file system. The default of a call that changes, reads or lists something is EOPNOTSUPP.
#[allow(unused_variables)]
pub trait Driver: Send + Sync + 'static {
    /// Short name, as in `/proc/mounts` ("tmpfs").
    fn name(&self) -> &'static str;
    /// The properties of this driver.
    fn features(&self) -> Features;
    /// Whether calls on this inode may take long, for drivers with [`Features::may_block`]. Asked before each
    /// request of a front end, so it must not wait.
    fn may_block(&self, inode: &Inode<'_>) -> bool {
        true
    }
    /// The root directory. Called once, at mount.
    fn root(&self, op: &Op) -> Result<NewInode>;
    /// Called once for each mount: the file system is in `cache` now, with this root. Nobody has looked anything up
    /// in it yet. For drivers whose tree changes by itself: they report changes to the cache
    /// ([`Cache::name_changed`], [`Cache::inode_changed`]). Keep `cache` only as a `Weak`, because the cache holds
    /// the driver.
    fn mounted(&self, cache: &Arc<Cache>, root: &Inode<'_>) {}
    /// Look a name up. ENOENT may be returned as an error, or as [`Answer::Absent`] (which is cached).
    fn lookup(&self, op: &Op, dir: &Inode<'_>, name: &[u8]) -> Result<Answer> {
        Err(Errno::OPNOTSUPP)
    }
    /// An inode that [`Driver::lookup`] found is in the cache now, as `inode`; `private` is the value from the
    /// answer. If [`Inode::private`] differs, the cache knew the inode before and keeps its old value. The value
    /// from the answer is then dropped, without a call of [`Driver::evict`]. For drivers that count the values they
    /// hand out.
    fn published(&self, inode: &Inode<'_>, private: u64) {}
    /// Fresh attributes; called when their TTL has passed.
    fn getattr(&self, op: &Op, inode: &Inode<'_>) -> Result<Attr> {
        Ok(inode.attr())
    }
    /// The TTL of attributes that [`Driver::getattr`] fetched, of names made by [`Driver::link`] and
    /// [`Driver::rename`], and of what a front end tells its own kernel. Not asked of resident drivers, whose
    /// answers hold for ever. Zero means: ask again each time. That is the default: a driver that says nothing is
    /// asked too often, and no answer is too old.
    fn ttl(&self) -> Ttl {
        Ttl::For(std::time::Duration::ZERO)
    }
    /// Change attributes (truncation included), and the cached inode with them.
    fn setattr(&self, op: &Op, inode: &Inode<'_>, set: &SetAttr) -> Result<()> {
        Err(Errno::OPNOTSUPP)
    }
    /// Make a node of any type. Updates `dir`'s times, and its link count if the node is a directory.
    fn create(&self, op: &Op, dir: &Inode<'_>, name: &[u8], make: &Make<'_>) -> Result<NewInode> {
        Err(Errno::OPNOTSUPP)
    }
    /// [`Driver::create`] of a regular file. A driver that can do so opens it in the same step, and returns a value
    /// as [`Driver::open`] does. On `None`, `open` is called afterwards. The creator's access is not checked
    /// against the new mode.
    fn create_open(
        &self,
        op: &Op,
        dir: &Inode<'_>,
        name: &[u8],
        make: &Make<'_>,
        access: Access,
    ) -> Result<(NewInode, Option<u64>)> {
        self.create(op, dir, name, make).map(|new| (new, None))
    }
    /// Make a regular file without a name (O_TMPFILE), with a link count of 0, on the file system of `dir`; `dir`
    /// does not change. The driver opens it in the same step, or returns `None` and [`Driver::open`] is called
    /// afterwards. `linkable`: it may be given a name later.
    fn tmpfile(
        &self,
        op: &Op,
        dir: &Inode<'_>,
        make: &Make<'_>,
        access: Access,
        linkable: bool,
    ) -> Result<(NewInode, Option<u64>)> {
        Err(Errno::OPNOTSUPP)
    }
    /// Whether [`Driver::link`] may give a name to this inode, whose link count is 0: [`Driver::tmpfile`] made it,
    /// and it has never had a name. Asked with the inode lock held.
    fn is_linkable(&self, inode: &Inode<'_>) -> bool {
        false
    }
    /// Add a name for `inode`, and update its link count and ctime and `dir`'s times.
    fn link(&self, op: &Op, inode: &Inode<'_>, dir: &Inode<'_>, name: &[u8]) -> Result<()> {
        Err(Errno::OPNOTSUPP)
    }
    /// Remove a name of something that is not a directory; updates link count and times.
    fn unlink(&self, op: &Op, dir: &Inode<'_>, name: &[u8], inode: &Inode<'_>) -> Result<()> {
        Err(Errno::OPNOTSUPP)
    }
    /// Remove an empty directory (link count 0 afterwards), and update `dir`.
    fn rmdir(&self, op: &Op, dir: &Inode<'_>, name: &[u8], inode: &Inode<'_>) -> Result<()> {
        Err(Errno::OPNOTSUPP)
    }
    /// Rename; updates link counts and times of all inodes involved.
    fn rename(&self, op: &Op, rename: &Rename<'_>) -> Result<()> {
        Err(Errno::OPNOTSUPP)
    }
    /// Rename, and in the same step leave a whiteout under the old name (RENAME_WHITEOUT): the character device 0/0, as
    /// `whiteout` describes it. The driver returns the inode that it made, or none if the old name must be looked up.
    /// Never an exchange.
    ///
    /// # Errors
    /// EINVAL if the file system has no whiteouts, and those of [`Driver::rename`].
    fn rename_whiteout(&self, op: &Op, rename: &Rename<'_>, whiteout: &Make<'_>) -> Result<Option<NewInode>> {
        Err(Errno::INVAL)
    }
    /// Hand out entries after `cookie` (0: from the start) until `sink` returns false or the directory ends. The
    /// driver must hold no lock while `sink` runs. The reader gets each entry when the next one comes, or at the end; if
    /// `sink` returns false, the reader has not seen this entry.
    fn readdir(
        &self,
        op: &Op,
        dir: &Inode<'_>,
        cookie: u64,
        sink: &mut dyn FnMut(DirEntry<'_>) -> bool,
    ) -> Result<()> {
        Err(Errno::OPNOTSUPP)
    }
    /// Whether a directory has no entry now.
    fn is_empty(&self, op: &Op, dir: &Inode<'_>) -> Result<bool> {
        let mut empty = true;
        self.readdir(op, dir, 0, &mut |_| {
            empty = false;
            false
        })?;
        Ok(empty)
    }
    /// The target of a symbolic link.
    fn readlink(&self, op: &Op, inode: &Inode<'_>) -> Result<Vec<u8>> {
        Err(Errno::OPNOTSUPP)
    }
    /// Whether the target of this link, which was just read, stays the same until the driver calls
    /// `forget_target` of the inode. Not asked if all are fixed ([`Features::fixed_links`]). A front end's kernel
    /// caches no such target.
    fn link_is_fixed(&self, inode: &Inode<'_>) -> bool {
        false
    }
    /// Open a regular file; the value comes back as [`File::handle`]. A caller that executes the file asks for
    /// [`Access::EXEC`] alone. The file is read then, which needs no read permission. Not called with
    /// [`Features::plain_files`].
    fn open(&self, op: &Op, inode: &Inode<'_>, access: Access) -> Result<u64> {
        Ok(0)
    }
    /// Open a regular file of which every write goes to the end (O_APPEND). Only drivers of files that can be appended to
    /// and not written elsewhere have a reason to tell the two apart.
    fn open_to_append(&self, op: &Op, inode: &Inode<'_>, access: Access) -> Result<u64> {
        self.open(op, inode, access)
    }
    /// The last user of an open file is gone. Not called with [`Features::plain_files`].
    fn release(&self, file: File<'_>) {}
    /// The driver as a lender of open files; needed with [`Features::lends`].
    fn lender(&self) -> Option<&dyn FileLender> {
        None
    }
    /// The driver as a store of access control lists; needed with [`Features::acl`].
    fn acls(&self) -> Option<&dyn AclStore> {
        None
    }
    /// Read up to `buf.len()` bytes; fewer only at the end of the file. May update atime.
    fn read(&self, op: &Op, file: File<'_>, offset: u64, buf: &mut [u8]) -> Result<usize> {
        Err(Errno::OPNOTSUPP)
    }
    /// Write at `offset`, or at the end if `append` is set; updates size, blocks, mtime and ctime. A count is short
    /// only if the space ran out midway.
    fn write(&self, op: &Op, file: File<'_>, offset: u64, data: &[u8], append: bool) -> Result<usize> {
        Err(Errno::OPNOTSUPP)
    }
    /// Allocate, punch or zero.
    fn fallocate(&self, op: &Op, file: File<'_>, how: Fallocate, offset: u64, len: u64) -> Result<()> {
        Err(Errno::OPNOTSUPP)
    }
    /// SEEK_DATA and SEEK_HOLE; ENXIO past the end.
    fn seek(&self, op: &Op, file: File<'_>, offset: u64, what: Seek) -> Result<u64> {
        Err(Errno::OPNOTSUPP)
    }
    /// Returns the events that an open file is ready for. The driver wakes `waker` once when the answer may have
    /// changed. As with `Future::poll`, a new waker replaces the open file's old one, and [`Driver::release`] drops
    /// it. So that no change is lost, the driver reads the state after it has stored the waker where changes look for
    /// it, or does both under one lock. The driver may hold its locks when it wakes: a waker takes no lock of the
    /// VFS, calls no driver and does not wait.
    fn poll(&self, op: &Op, file: File<'_>, waker: Option<&Waker>) -> Result<PollEvents> {
        Ok(PollEvents::ALWAYS)
    }
    /// Make a file durable.
    fn fsync(&self, op: &Op, file: File<'_>, datasync: bool) -> Result<()> {
        Ok(())
    }
    /// Make the names of a directory durable.
    fn fsync_dir(&self, op: &Op, dir: &Inode<'_>, datasync: bool) -> Result<()> {
        Ok(())
    }
    /// The time of birth, if known. Asked only with [`Features::births`].
    fn birth(&self, op: &Op, inode: &Inode<'_>) -> Result<Option<Time>> {
        Ok(None)
    }
    /// The flags of a regular file or directory, in the requested form.
    ///
    /// # Errors
    /// ENOTTY if the file system has none.
    fn file_flags(&self, op: &Op, inode: &Inode<'_>, form: FlagsForm) -> Result<FileFlags> {
        Err(Errno::NOTTY)
    }
    /// Set them. The driver checks that the caller may.
    ///
    /// # Errors
    /// As [`Driver::file_flags`]; EPERM.
    fn set_file_flags(&self, op: &Op, inode: &Inode<'_>, flags: &FileFlags) -> Result<()> {
        Err(Errno::NOTTY)
    }
    /// Statistics of the whole file system.
    fn statfs(&self, op: &Op) -> Result<StatFs>;
    /// The value of an extended attribute; ENODATA if there is none.
    fn getxattr(&self, op: &Op, inode: &Inode<'_>, name: &[u8]) -> Result<Vec<u8>> {
        Err(Errno::OPNOTSUPP)
    }
    /// Set an extended attribute; updates ctime.
    fn setxattr(
        &self,
        op: &Op,
        inode: &Inode<'_>,
        name: &[u8],
        value: &[u8],
        flags: XattrFlags,
    ) -> Result<()> {
        Err(Errno::OPNOTSUPP)
    }
    /// All names, each followed by a nul, in one buffer, without those of access control lists.
    fn listxattr(&self, op: &Op, inode: &Inode<'_>) -> Result<Vec<u8>> {
        Ok(Vec::new())
    }
    /// Remove an extended attribute; ENODATA if there is none. Updates ctime.
    fn removexattr(&self, op: &Op, inode: &Inode<'_>, name: &[u8]) -> Result<()> {
        Err(Errno::OPNOTSUPP)
    }
    /// The cache drops an inode: nobody can reach `private` again. If `attr.nlink` is 0, the file is gone for good
    /// and its data may be freed. Any operation that needs memory may call this with its name locks held, so it
    /// must not call the VFS.
    fn evict(&self, attr: &Attr, private: u64) {}
}

/// Keeping access control lists. Asked only with [`Features::acl`].
#[allow(unused_variables)]
pub trait AclStore {
    /// The access or default list of an inode, if it has one. Asked at any time, also while the list is being
    /// changed. [`Attr::acl`] in the cache must say whether there is an access list: if it says no, mode bits alone
    /// decide. It may say yes if there could be one; a driver that then finds none first corrects the cache.
    fn acl(&self, op: &Op, inode: &Inode<'_>, kind: AclKind) -> Result<Option<Arc<Acl>>>;
    /// Set or remove the access or default list; with the access list also the permission bits `mode`, which say
    /// the same of owner, mask and others. Updates ctime, mode and [`Attr::acl`] in the cache under the lock that
    /// [`AclStore::acl`] takes, so that its answer is never newer than these. The caller holds the inode lock:
    /// calls for one inode do not overlap with each other, nor with [`Driver::setattr`].
    fn set_acl(
        &self,
        op: &Op,
        inode: &Inode<'_>,
        kind: AclKind,
        acl: Option<Arc<Acl>>,
        mode: Option<u32>,
    ) -> Result<()> {
        Err(Errno::OPNOTSUPP)
    }
}
