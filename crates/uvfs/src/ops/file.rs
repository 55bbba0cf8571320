//! Opening regular files, and the table of handles for front ends.
//!
//! A handle is a number that names an [`OpenFile`], which owns one reference to the inode and the driver's side of the
//! file. The table is sharded; a shard's lock protects only its maps and is never held while a driver runs. An
//! operation borrows the open file as an `Arc`. A concurrent release removes the handle at once, and the driver's
//! `release` waits until the last operation is done. The library's own [`Handle`](crate::Handle) owns its file and has
//! no entry here.
//!
//! Threads that open files of one superblock at the same time must not share a counter. Each shard has a [`Base`]
//! for each superblock, which counts that shard's open files, and an open file's reference to its inode may be
//! counted per thread. A base goes when the superblock is unmounted, or with the last open file after that. An
//! operation by number costs one read lock of the shard and one count; an entry and its removal cost the write lock
//! and an allocation. Files opened by different threads are in different shards.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::Waker;

use foldhash::fast::FixedState;
use parking_lot::RwLock;
use uvfs_cache::SbId;
use uvfs_cache::machinery::{Borrowed, OwnedId};

use crate::driver::{Borrower, Inode};
use crate::mount::Super;
use crate::ops::attr::How;
use crate::ops::open_file::{Base, DriverFile, Opened};
use crate::types::{Access, Errno, Fallocate, Op, PollEvents, Result, Seek, SetAttr, SetTime, mode};
use crate::vfs::Vfs;

/// A power of two.
const SHARDS: u64 = 64;

/// An entry of the table. Its last user drops it, and that releases the file in the driver.
struct OpenFile {
    file: DriverFile,
    /// Returned in `drop`.
    inode: OwnedId,
}

impl OpenFile {
    fn inode(&self) -> Borrowed<'_> {
        self.file.base.cache.inode_of(&self.inode)
    }
}

impl Drop for OpenFile {
    fn drop(&mut self) {
        self.file.release(&self.inode());
        drop(self.file.base.cache.adopt(std::mem::take(&mut self.inode)));
    }
}

#[derive(Default)]
struct Shard {
    open: std::collections::HashMap<u64, Arc<OpenFile>, FixedState>,
    last: u64,
    /// Only of mounted superblocks.
    bases: Vec<(SbId, Arc<Base>)>,
}

impl Shard {
    fn known(&self, sb: SbId) -> Option<Arc<Base>> {
        self.bases.iter().find(|(id, _)| *id == sb).map(|(_, base)| Arc::clone(base))
    }
}

/// A shard on cache lines of its own.
#[derive(Default)]
#[repr(align(128))]
struct Padded(RwLock<Shard>);

/// The table of open files.
pub(crate) struct Files {
    shards: Box<[Padded]>,
}

impl Files {
    pub(crate) fn new() -> Self {
        Self { shards: (0..SHARDS).map(|_| Padded::default()).collect() }
    }

    fn shard(&self, fh: u64) -> &RwLock<Shard> {
        &self.shards[(fh % SHARDS) as usize].0
    }

    /// The calling thread's shard.
    fn mine(&self) -> u64 {
        thread_number() as u64 % SHARDS
    }

    /// The parts of a mounted superblock, if the calling thread's shard has them.
    pub(crate) fn known(&self, sb: SbId) -> Option<Arc<Base>> {
        self.shard(self.mine()).read().known(sb)
    }

    /// The parts of `sup` for open files of the calling thread.
    fn base(&self, sup: &Super, mounted: impl FnOnce() -> bool) -> Arc<Base> {
        let shard = self.shard(self.mine());
        if let Some(base) = shard.read().known(sup.id) {
            return base;
        }
        let mut shard = shard.write();
        if let Some(base) = shard.known(sup.id) {
            return base;
        }
        let base = Base::new(sup);
        // Checked under the shard's lock. An unmount removes the superblock from the mounts, and then takes this
        // lock. If the unmount comes first, this check sees it. If this check comes first, the unmount removes the
        // base again.
        if mounted() {
            shard.bases.push((sup.id, Arc::clone(&base)));
        }
        base
    }

    /// A handle for `file`; never 0.
    fn insert(&self, file: OpenFile) -> u64 {
        let number = self.mine();
        let file = Arc::new(file);
        let mut shard = self.shard(number).write();
        shard.last += 1;
        let fh = shard.last * SHARDS + number;
        shard.open.insert(fh, file);
        fh
    }

    /// After an unmount: from now on only open files keep the superblock's driver.
    pub(crate) fn forget(&self, sb: SbId) {
        for shard in &self.shards {
            // Dropped outside the lock: this may be the driver's last user.
            let _gone: Vec<_> = shard.0.write().bases.extract_if(.., |(id, _)| *id == sb).collect();
        }
    }

    fn get(&self, fh: u64) -> Result<Arc<OpenFile>> {
        self.shard(fh).read().open.get(&fh).cloned().ok_or(Errno::BADF)
    }

    fn remove(&self, fh: u64) -> Option<Arc<OpenFile>> {
        self.shard(fh).write().open.remove(&fh)
    }
}

/// A number for each thread, in the order of first opens: it spreads threads over the shards.
fn thread_number() -> usize {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    thread_local! {
        static MINE: usize = NEXT.fetch_add(1, Ordering::Relaxed);
    }
    MINE.try_with(|n| *n).unwrap_or(0)
}

/// How a file is opened besides its access.
#[derive(Clone, Copy, Default)]
pub(crate) struct Opening {
    pub truncate: bool,
    pub append: bool,
}

impl Vfs {
    /// Opens an inode. `truncate` cuts a regular file to zero length; it needs write access, and does nothing for
    /// other types. Only regular files get handles; others get 0.
    ///
    /// # Errors
    /// ELOOP (a symbolic link), EISDIR (a directory for writing), EACCES, EROFS, ENXIO (a socket), and the driver's
    /// errors.
    pub fn open(&self, op: &Op, inode: &Inode<'_>, access: Access, truncate: bool) -> Result<u64> {
        let file = self.open_file(op, inode, access, Opening { truncate, append: false })?;
        Ok(self.handle_of(inode, file))
    }

    /// [`Vfs::open`] by a caller that marks each write as an appending one (O_APPEND), as [`Vfs::write`] takes it.
    ///
    /// # Errors
    /// As [`Vfs::open`]. An append-only file of the host, which that refuses, can be opened.
    pub fn open_to_append(&self, op: &Op, inode: &Inode<'_>, access: Access, truncate: bool) -> Result<u64> {
        let file = self.open_file(op, inode, access, Opening { truncate, append: true })?;
        Ok(self.handle_of(inode, file))
    }

    /// [`Vfs::open`] for an owner of its own: the file, or `None` for other types.
    pub(crate) fn open_file(
        &self,
        op: &Op,
        inode: &Inode<'_>,
        access: Access,
        how: Opening,
    ) -> Result<Option<DriverFile>> {
        let Opening { truncate, append } = how;
        let cuts = truncate && inode.fmt() == mode::S_IFREG;
        let mut want = access;
        want.set(Access::WRITE, access.contains(Access::WRITE) || truncate);
        match inode.fmt() {
            mode::S_IFLNK => return Err(Errno::LOOP),
            mode::S_IFDIR if want.contains(Access::WRITE) => return Err(Errno::ISDIR),
            _ => {}
        }
        self.permit(op, inode, want)?;
        if inode.fmt() == mode::S_IFSOCK {
            return Err(Errno::NXIO);
        }
        self.open_permitted(op, inode, access, Opening { truncate: cuts, append })
    }

    /// Opens a regular file for reading by a caller that executes it: execute permission is checked.
    ///
    /// # Errors
    /// EACCES, also for anything but a regular file, and the driver's errors.
    pub fn open_to_run(&self, op: &Op, inode: &Inode<'_>) -> Result<u64> {
        if inode.fmt() != mode::S_IFREG {
            return Err(Errno::ACCESS);
        }
        self.permit(op, inode, Access::EXEC)?;
        let base = self.base_of(inode)?;
        let handle = if base.features.plain_files { 0 } else { base.open(op, inode, Access::EXEC, false)? };
        Ok(self.handle_of(inode, Some(DriverFile { base, access: Access::READ, handle })))
    }

    /// Whether a handle is open for `want`.
    pub fn is_open_for(&self, fh: u64, want: Access) -> bool {
        self.files.get(fh).is_ok_and(|open| open.file.access.contains(want))
    }

    /// [`Vfs::open_file`] without a permission check: for a file that the caller has just made, whatever its mode.
    pub(crate) fn open_permitted(
        &self,
        op: &Op,
        inode: &Inode<'_>,
        access: Access,
        how: Opening,
    ) -> Result<Option<DriverFile>> {
        if inode.fmt() != mode::S_IFREG {
            return Ok(None);
        }
        let base = self.base_of(inode)?;
        let handle = if base.features.plain_files { 0 } else { base.open(op, inode, access, how.append)? };
        let file = DriverFile { base, access, handle };
        if how.truncate {
            let set = SetAttr { size: Some(0), mtime: Some(SetTime::Now), ..SetAttr::default() };
            self.change(op, inode, &set, How { opened: true, chown: false })
                .inspect_err(|_| file.release(inode))?;
        }
        Ok(Some(file))
    }

    /// The parts of an inode's superblock for open files of the calling thread; ESTALE once it is unmounted.
    fn base_of(&self, inode: &Inode<'_>) -> Result<Arc<Base>> {
        if let Some(base) = self.files.known(inode.sb()) {
            return Ok(base);
        }
        let sup = self.sup(inode)?;
        Ok(self.files.base(&sup, || self.mounts.super_of(sup.id).is_ok()))
    }

    /// A file that the driver has opened.
    pub(crate) fn driver_file(&self, sup: &Super, access: Access, handle: u64) -> DriverFile {
        let base = self.files.base(sup, || self.mounts.super_of(sup.id).is_ok());
        DriverFile { base, access, handle }
    }

    /// A handle for an open file; 0 for none.
    pub(crate) fn handle_of(&self, inode: &Inode<'_>, file: Option<DriverFile>) -> u64 {
        file.map_or(0, |file| self.files.insert(OpenFile { file, inode: inode.clone().into_owned() }))
    }

    /// Makes one call with the file of a handle; EBADF if there is none.
    fn with_handle<R>(&self, fh: u64, act: impl FnOnce(Opened<'_>) -> Result<R>) -> Result<R> {
        let open = self.files.get(fh)?;
        act(Opened { vfs: self, file: &open.file, inode: &open.inode() })
    }

    /// Releases a handle; ignores an unknown one.
    pub fn release(&self, fh: u64) {
        // Outside the shard's lock: the last user's drop calls the driver.
        drop(self.files.remove(fh));
    }

    /// Offers the file behind an open one to a front end's kernel; see [`FileLender::offer`](crate::driver::FileLender::offer).
    ///
    /// # Errors
    /// EBADF, and the driver's errors.
    pub fn offer(&self, op: &Op, fh: u64, to: &mut Borrower<'_>) -> Result<()> {
        self.with_handle(fh, |open| {
            open.with(|driver, file| driver.lender().ok_or(Errno::OPNOTSUPP)?.offer(op, file, to))
        })
    }

    /// From now on a front end's kernel reads and writes an open file by itself; see [`FileLender::lend`](crate::driver::FileLender::lend).
    ///
    /// # Errors
    /// EBADF, and the driver's errors.
    pub fn lend(&self, fh: u64) -> Result<()> {
        self.with_handle(fh, |open| {
            open.with(|driver, file| driver.lender().ok_or(Errno::OPNOTSUPP)?.lend(file))
        })
    }

    /// Whether an open file can be lent with O_DIRECT; see [`FileLender::takes_direct`](crate::driver::FileLender::takes_direct).
    ///
    /// # Errors
    /// EBADF, and the driver's errors.
    pub fn takes_direct(&self, fh: u64) -> Result<()> {
        self.with_handle(fh, |open| {
            open.with(|driver, file| driver.lender().map_or(Ok(()), |lender| lender.takes_direct(file)))
        })
    }

    /// Reads at `offset`; fewer bytes than asked for only at the end of the file.
    ///
    /// # Errors
    /// EBADF (no such handle, or not open for reading), and the driver's errors.
    pub fn read(&self, op: &Op, fh: u64, offset: u64, buf: &mut [u8]) -> Result<usize> {
        self.with_handle(fh, |open| open.read(op, offset, buf))
    }

    /// Writes at `offset`, or at the end if `append` is set. Set-id bits are cleared first if `kill_priv` is set,
    /// or if the caller is neither root nor trusted.
    ///
    /// # Errors
    /// EBADF (no such handle, or not open for writing), EFBIG, and the driver's errors.
    pub fn write(
        &self,
        op: &Op,
        fh: u64,
        offset: u64,
        data: &[u8],
        append: bool,
        kill_priv: bool,
    ) -> Result<usize> {
        self.with_handle(fh, |open| open.write(op, offset, data, append, kill_priv))
    }

    /// Allocates, punches or zeroes a range.
    ///
    /// # Errors
    /// EBADF, EINVAL (nothing to do), EFBIG, EOPNOTSUPP, and the driver's errors.
    pub fn fallocate(&self, op: &Op, fh: u64, how: Fallocate, offset: u64, len: u64) -> Result<()> {
        self.with_handle(fh, |open| open.fallocate(op, how, offset, len))
    }

    /// SEEK_DATA and SEEK_HOLE: the offset of the next data or hole at or after `offset`.
    ///
    /// # Errors
    /// EBADF, ENXIO (past the end), EOPNOTSUPP.
    pub fn seek(&self, op: &Op, fh: u64, offset: u64, what: Seek) -> Result<u64> {
        self.with_handle(fh, |open| open.seek(op, offset, what))
    }

    /// The events an open file is ready for; see [`Driver::poll`](crate::Driver::poll). A handle has one waker: the last one counts.
    ///
    /// # Errors
    /// EBADF, and the driver's errors.
    pub fn poll(&self, op: &Op, fh: u64, waker: Option<&Waker>) -> Result<PollEvents> {
        self.with_handle(fh, |open| open.poll(op, waker))
    }

    /// Makes a file durable.
    ///
    /// # Errors
    /// EBADF, and the driver's errors.
    pub fn fsync(&self, op: &Op, fh: u64, datasync: bool) -> Result<()> {
        self.with_handle(fh, |open| open.fsync(op, datasync))
    }

    /// Changes the size of an open file. A caller that has it open for writing may do so, whatever the mode is by
    /// now.
    ///
    /// # Errors
    /// EINVAL if it is not open for writing, EFBIG, and the driver's errors.
    pub fn truncate(&self, op: &Op, fh: u64, size: u64) -> Result<()> {
        self.with_handle(fh, |open| open.truncate(op, size))
    }
}
