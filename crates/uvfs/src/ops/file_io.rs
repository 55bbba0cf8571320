//! Reading and writing through an open regular file, whoever owns it: a [`Handle`](crate::Handle), or the table of
//! handles. Nothing here is locked, and no operation stores anything itself.

use std::task::Waker;

use crate::driver::{Driver, File, Inode};
use crate::ops::driver_file::DriverFile;
use crate::ops::setattr::{How, MAX_FILE};
use crate::types::{Access, Errno, Fallocate, Op, PollEvents, Result, Seek, SetAttr, SetTime};
use crate::vfs::Vfs;

/// An open file and its inode, for one operation.
pub(crate) struct Opened<'a> {
    pub vfs: &'a Vfs,
    pub file: &'a DriverFile,
    pub inode: &'a Inode<'a>,
}

impl Opened<'_> {
    /// EBADF unless it is open for `want`.
    fn require(&self, want: Access) -> Result<()> {
        if self.file.access.contains(want) { Ok(()) } else { Err(Errno::BADF) }
    }

    pub fn with<R>(&self, act: impl FnOnce(&dyn Driver, File<'_>) -> R) -> R {
        self.file.with(self.inode, act)
    }

    pub fn read(&self, op: &Op, offset: u64, buf: &mut [u8]) -> Result<usize> {
        self.require(Access::READ)?;
        self.with(|driver, file| driver.read(op, file, offset, buf))
    }

    pub fn write(&self, op: &Op, offset: u64, data: &[u8], append: bool, kill_priv: bool) -> Result<usize> {
        self.require(Access::WRITE)?;
        let room = if append { MAX_FILE } else { MAX_FILE.saturating_sub(offset) };
        if data.is_empty() {
            return Ok(0);
        }
        if room == 0 {
            return Err(Errno::FBIG);
        }
        let len = usize::try_from(room).map_or(data.len(), |room| room.min(data.len()));
        self.before_change(op, kill_priv)?;
        self.with(|driver, file| driver.write(op, file, offset, &data[..len], append))
    }

    pub fn fallocate(&self, op: &Op, how: Fallocate, offset: u64, len: u64) -> Result<()> {
        if len == 0 {
            return Err(Errno::INVAL);
        }
        self.require(Access::WRITE)?;
        if offset.checked_add(len).is_none_or(|end| end > MAX_FILE) {
            return Err(Errno::FBIG);
        }
        self.before_change(op, false)?;
        self.with(|driver, file| driver.fallocate(op, file, how, offset, len))
    }

    pub fn seek(&self, op: &Op, offset: u64, what: Seek) -> Result<u64> {
        self.with(|driver, file| driver.seek(op, file, offset, what))
    }

    pub fn poll(&self, op: &Op, waker: Option<&Waker>) -> Result<PollEvents> {
        self.with(|driver, file| driver.poll(op, file, waker))
    }

    pub fn fsync(&self, op: &Op, datasync: bool) -> Result<()> {
        self.with(|driver, file| driver.fsync(op, file, datasync))
    }

    pub fn truncate(&self, op: &Op, size: u64) -> Result<()> {
        if !self.file.access.contains(Access::WRITE) {
            return Err(Errno::INVAL);
        }
        let set = SetAttr { size: Some(size), mtime: Some(SetTime::Now), ..SetAttr::default() };
        self.vfs.change(op, self.inode, &set, How { opened: true, chown: false }).map(|_| ())
    }

    fn before_change(&self, op: &Op, kill_priv: bool) -> Result<()> {
        if kill_priv || !(op.trusted || op.is_root()) {
            self.vfs.kill_privileges(op, &*self.file.base.driver, self.inode, kill_priv)?;
        }
        Ok(())
    }
}
