//! The trait that a file system implements: the only door between the VFS and drivers.
//!
//! The VFS calls with names guarded (no other operation on the same name of the same directory
//! runs) and every inode referenced, but with no lock of the cache held: a driver may take as
//! long as it must and delays nobody but who asks for the same name. Permission, type, name
//! length, emptiness of resident directories and directory loops have been checked.
//!
//! Attributes live in the cache. A driver that changes an inode says so with
//! [`Inode::update`]; that holds for the parents' times and link counts too. What a driver
//! returns as [`NewInode`] is published by the VFS afterwards: publishing cannot fail.

use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::task::Waker;

use uvfs_cache::Cache;

use crate::acl::{Acl, AclKind};
use crate::types::{
    Access, Answer, Attr, DirEntry, Errno, Fallocate, Features, FileFlags, FlagsForm, Make, NewInode, Op,
    Perm, PollEvents, Result, Seek, SetAttr, StatFs, Time, Ttl, XattrFlags,
};

/// A referenced inode; see [`uvfs_cache::InodeRef`].
pub type Inode<'c> = uvfs_cache::InodeRef<'c>;

/// What a rename changes.
#[derive(Clone, Copy, Debug)]
pub struct Rename<'a> {
    /// Directory of the old name.
    pub from_dir: &'a Inode<'a>,
    /// Old name.
    pub from_name: &'a [u8],
    /// What the old name leads to.
    pub inode: &'a Inode<'a>,
    /// Directory of the new name (may be the same inode as `from_dir`).
    pub to_dir: &'a Inode<'a>,
    /// New name.
    pub to_name: &'a [u8],
    /// What the new name led to; replaced, or swapped where `exchange` says so.
    pub target: Option<&'a Inode<'a>>,
    /// RENAME_EXCHANGE.
    pub exchange: bool,
}

/// An open regular file as the driver sees it.
#[derive(Clone, Copy, Debug)]
pub struct File<'a> {
    /// The inode.
    pub inode: &'a Inode<'a>,
    /// What [`Driver::open`] returned.
    pub handle: u64,
}

/// What takes a descriptor that a driver lends: see [`Driver::lend`].
pub type Borrower<'a> = dyn FnMut(BorrowedFd<'_>) -> Result<()> + 'a;

/// A file system.
#[allow(unused_variables)]
pub trait Driver: Send + Sync + 'static {
    /// Short name, as in `/proc/mounts` ("tmpfs").
    fn name(&self) -> &'static str;
    /// What this driver is like.
    fn features(&self) -> Features;
    /// Whether calls on this inode may take long, where [`Features::may_block`] says that some do. Asked before each request of a
    /// front end: it must not wait.
    fn may_block(&self, inode: &Inode<'_>) -> bool {
        true
    }
    /// The root directory. Called once, at mount.
    fn root(&self, op: &Op) -> Result<NewInode>;
    /// The file system is in `cache` now, with this root; nobody has looked anything up in it yet. Once for
    /// each mount. For drivers whose tree changes by itself: they tell the cache what is not so any more
    /// ([`Cache::changed`], [`Cache::invalidate`]). `cache` must not be kept but as a `Weak`: it holds the driver.
    fn mounted(&self, cache: &Arc<Cache>, root: &Inode<'_>) {}
    /// Ask for a name. ENOENT may be told as an error or as [`Answer::Absent`] (which is cached).
    fn lookup(&self, op: &Op, dir: &Inode<'_>, name: &[u8]) -> Result<Answer> {
        Err(Errno::NOSYS)
    }
    /// What [`Driver::lookup`] found is in the cache now: `inode` is what it is known as, and `private` the value that
    /// was told. Where [`Inode::private`] is another one, the inode was known before and keeps that; the one that was
    /// told is forgotten, and [`Driver::evict`] is not called for it. For drivers that count what they have handed out.
    fn published(&self, inode: &Inode<'_>, private: u64) {}
    /// Whether `name` in the directory numbered `dir` still leads to the inode numbered `child`, or
    /// (none) still does not exist. Asked with [`Features::revalidates`] at each use of a name that is
    /// cached, the last of a path included; an answer of [`Driver::lookup`] is not asked about again.
    /// Where this says no, the cache forgets the name and looks it up anew. It may wait for a lock of
    /// the driver, which nothing of the VFS is held under, and must not call the VFS.
    fn revalidate(&self, dir: u64, name: &[u8], child: Option<u64>) -> bool {
        true
    }
    /// Mode and owner of an inode now (the type is the cache's); none where what is cached stands. Asked
    /// with [`Features::revalidates`] for each directory that is searched, and for what is opened,
    /// whoever asks, root too. As [`Driver::revalidate`] otherwise.
    fn permission(&self, ino: u64) -> Option<Perm> {
        None
    }
    /// Fresh attributes; called when their time to live has passed.
    fn getattr(&self, op: &Op, inode: &Inode<'_>) -> Result<Attr> {
        Ok(inode.attr())
    }
    /// How long attributes that [`Driver::getattr`] fetched, names made by [`Driver::link`] and
    /// [`Driver::rename`], and what a front end tells its own kernel may be believed. Not asked
    /// of resident drivers, whose answers hold for ever. Zero means: ask again each time.
    fn ttl(&self) -> Ttl {
        Ttl::For(std::time::Duration::ZERO)
    }
    /// Change attributes (including truncation) and the inode in the cache with them.
    fn setattr(&self, op: &Op, inode: &Inode<'_>, set: &SetAttr) -> Result<()> {
        Err(Errno::ROFS)
    }
    /// Make a node of any type. Updates `dir`'s times and, for a directory, its link count.
    fn create(&self, op: &Op, dir: &Inode<'_>, name: &[u8], make: &Make<'_>) -> Result<NewInode> {
        Err(Errno::ROFS)
    }
    /// [`Driver::create`] of a regular file, which is opened in the same step where the driver can: the value is then as
    /// [`Driver::open`]'s. Where there is none, `open` is called after this. Its mode does not bind who makes a file.
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
    /// Make a regular file that has no name (O_TMPFILE), with a link count of 0, on the file system that `dir` is in; nothing of `dir`
    /// changes. It is opened in the same step or, where there is no value, by [`Driver::open`] after this. `linkable`: it may be given a name.
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
    /// Whether [`Driver::link`] may be asked to give this inode a name, whose link count is 0: it was made by [`Driver::tmpfile`] and has
    /// never had one. Asked in the inode's turn.
    fn is_linkable(&self, inode: &Inode<'_>) -> bool {
        false
    }
    /// Add a name for `inode`, and update its link count and ctime and `dir`'s times.
    fn link(&self, op: &Op, inode: &Inode<'_>, dir: &Inode<'_>, name: &[u8]) -> Result<()> {
        Err(Errno::ROFS)
    }
    /// Remove a name of something that is not a directory; updates link count and times.
    fn unlink(&self, op: &Op, dir: &Inode<'_>, name: &[u8], inode: &Inode<'_>) -> Result<()> {
        Err(Errno::ROFS)
    }
    /// Remove an empty directory (link count 0 afterwards) and update `dir`.
    fn rmdir(&self, op: &Op, dir: &Inode<'_>, name: &[u8], inode: &Inode<'_>) -> Result<()> {
        Err(Errno::ROFS)
    }
    /// Rename; updates link counts and times of all that is involved.
    fn rename(&self, op: &Op, rename: &Rename<'_>) -> Result<()> {
        Err(Errno::ROFS)
    }
    /// Rename, and in the same step leave a whiteout under the old name (RENAME_WHITEOUT): the character device 0/0, as `whiteout`
    /// describes it. The driver describes what it made, or answers none where the old name is to be looked up. Never an exchange.
    ///
    /// # Errors
    /// EINVAL where there are no whiteouts, and those of [`Driver::rename`].
    fn rename_whiteout(&self, op: &Op, rename: &Rename<'_>, whiteout: &Make<'_>) -> Result<Option<NewInode>> {
        Err(Errno::INVAL)
    }
    /// Hand out entries after `cookie` (0: from the start) until `sink` returns false or the
    /// directory ends. No lock of the driver may be held while `sink` runs.
    fn readdir(
        &self,
        op: &Op,
        dir: &Inode<'_>,
        cookie: u64,
        sink: &mut dyn FnMut(DirEntry<'_>) -> bool,
    ) -> Result<()> {
        Err(Errno::NOSYS)
    }
    /// The target of a symbolic link.
    fn readlink(&self, op: &Op, inode: &Inode<'_>) -> Result<Vec<u8>> {
        Err(Errno::INVAL)
    }
    /// Open a regular file; the value is handed back as [`File::handle`]. Who executes it asks for [`Access::EXEC`] alone: the file is
    /// read then, which needs no permission to read.
    fn open(&self, op: &Op, inode: &Inode<'_>, access: Access) -> Result<u64> {
        Ok(0)
    }
    /// The last user of an open file is gone.
    fn release(&self, file: File<'_>) {}
    /// Offers the front end's kernel the file that the driver has behind an open one, to read and write it by itself: `to` is called, once at
    /// the most, with a descriptor of that file, by a thread that has the identity and the rights which the kernel is to read and
    /// write with. This, and the next three, are asked only with [`Features::lends`].
    ///
    /// # Errors
    /// Any where it is better not lent, and what `to` answers.
    fn offer(&self, op: &Op, file: File<'_>, to: &mut Borrower<'_>) -> Result<()> {
        Err(Errno::OPNOTSUPP)
    }
    /// From now until it is released the data of an open file is read and written by the front end's kernel, in the file that was
    /// offered for its inode, and the driver hears nothing of it; when the file is released it looks what has become of the inode.
    ///
    /// # Errors
    /// It is not lent then.
    fn lend(&self, file: File<'_>) -> Result<()> {
        Err(Errno::OPNOTSUPP)
    }
    /// Whether an open file of this inode was lent since the cache has known the inode: somebody may have it mapped even where nobody
    /// has it open.
    fn was_lent(&self, inode: &Inode<'_>) -> bool {
        false
    }
    /// Whether the file behind an open one can be read and written with O_DIRECT.
    ///
    /// # Errors
    /// EINVAL where it cannot.
    fn takes_direct(&self, file: File<'_>) -> Result<()> {
        Ok(())
    }
    /// Read up to `buf.len()` bytes; fewer only at the end of the file. May update atime.
    fn read(&self, op: &Op, file: File<'_>, offset: u64, buf: &mut [u8]) -> Result<usize> {
        Err(Errno::INVAL)
    }
    /// Write at `offset`, or at the end where `append`; updates size, blocks, mtime, ctime. A short count
    /// only where the space ran out in the middle.
    fn write(&self, op: &Op, file: File<'_>, offset: u64, data: &[u8], append: bool) -> Result<usize> {
        Err(Errno::ROFS)
    }
    /// Allocate, punch or zero.
    fn fallocate(&self, op: &Op, file: File<'_>, how: Fallocate, offset: u64, len: u64) -> Result<()> {
        Err(Errno::OPNOTSUPP)
    }
    /// SEEK_DATA and SEEK_HOLE; ENXIO past the end.
    fn seek(&self, op: &Op, file: File<'_>, offset: u64, what: Seek) -> Result<u64> {
        Err(Errno::OPNOTSUPP)
    }
    /// What an open file is ready for. `waker`, where there is one, is to be woken once when the answer
    /// may have become another; it takes the place of the one that this open file had, as with
    /// `Future::poll`, and goes with [`Driver::release`]. So that no change is lost, either look at
    /// the state after the waker is where the change looks for it, or do both under one lock. It may be
    /// woken with locks held: it takes none of the VFS's, calls no driver and does not wait.
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
    /// When the file was made, where that is known. Asked only with [`Features::births`].
    fn birth(&self, op: &Op, inode: &Inode<'_>) -> Result<Option<Time>> {
        Ok(None)
    }
    /// The flags of a regular file or directory, in the form that is wanted.
    ///
    /// # Errors
    /// ENOTTY where there are none.
    fn file_flags(&self, op: &Op, inode: &Inode<'_>, form: FlagsForm) -> Result<FileFlags> {
        Err(Errno::NOTTY)
    }
    /// Set them. The driver sees to it that the caller may: it is told of the caller alone.
    ///
    /// # Errors
    /// As [`Driver::file_flags`]; EPERM.
    fn set_file_flags(&self, op: &Op, inode: &Inode<'_>, flags: &FileFlags) -> Result<()> {
        Err(Errno::NOTTY)
    }
    /// Figures of the whole file system.
    fn statfs(&self, op: &Op) -> Result<StatFs>;
    /// The value of an extended attribute; ENODATA where there is none.
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
    /// All names, each followed by a nul, in one buffer; those of access control lists excepted.
    fn listxattr(&self, op: &Op, inode: &Inode<'_>) -> Result<Vec<u8>> {
        Ok(Vec::new())
    }
    /// Remove an extended attribute; ENODATA where there is none. Updates ctime.
    fn removexattr(&self, op: &Op, inode: &Inode<'_>, name: &[u8]) -> Result<()> {
        Err(Errno::OPNOTSUPP)
    }
    /// The access or default list of an inode, none where it has none. Asked only with [`Features::acl`]. For the
    /// access list [`Attr::acl`] must say, in the cache, whether there is one: permission is checked by mode
    /// bits alone where it does not. (It may also say that there could be one; who then answers that there is none says so
    /// in the cache first.) May be asked at any time, also while the list is being changed.
    fn acl(&self, op: &Op, inode: &Inode<'_>, kind: AclKind) -> Result<Option<Arc<Acl>>> {
        Err(Errno::OPNOTSUPP)
    }
    /// Set or remove the access or default list, and with the access list the permission bits `mode`, which say
    /// the same of owner, mask and others. Updates ctime, mode and [`Attr::acl`] in the cache, under the lock
    /// that [`Driver::acl`] takes: its answer is never newer than these. Who has the
    /// inode's turn asks: two calls for one inode do not overlap, nor one with [`Driver::setattr`].
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
    /// The cache lets go of an inode: nobody can reach `private` again. Where `attr.nlink` is 0
    /// the file is gone for good and its data may be freed. It may be called from within any operation that needs
    /// memory, whose names are guarded: it must not call the VFS.
    fn evict(&self, attr: &Attr, private: u64) {}
}
