//! Opening regular files, and reading and writing through their handles in the [table](super::handle_table).

use std::sync::Arc;
use std::task::Waker;

use crate::driver::{Borrower, Inode};
use crate::mount_table::Super;
use crate::ops::driver_file::{Base, DriverFile};
use crate::ops::file_io::Opened;
use crate::ops::handle_table::OpenFile;
use crate::ops::setattr::How;
use crate::types::{Access, Errno, Fallocate, Op, PollEvents, Result, Seek, SetAttr, SetTime, mode};
use crate::vfs::Vfs;

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
        file.map_or(0, |file| self.files.insert(OpenFile::new(file, inode)))
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
