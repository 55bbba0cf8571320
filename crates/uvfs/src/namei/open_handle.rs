//! An open file, directory or other node, for an in-process user.
//!
//! A handle owns a reference to its inode and, for regular files, the driver's side of the open file. Dropping the
//! handle closes the file. Threads may share it: it has no file position, and each call names its offset.

use std::sync::Arc;
use std::task::{Wake, Waker};
use std::thread::{self, Thread};
use std::time::{Duration, Instant};

use crate::driver::Inode;
use crate::ops::{driver_file::DriverFile, file_io::Opened};
use crate::types::{
    Attr, Cred, DirEntry, Errno, Fallocate, OpenFlags, PollEvents, Result, Seek, StatFs, mode,
};
use crate::vfs::Vfs;

/// An open file, as [`Context::open`](crate::Context::open) returns it; dropping it closes the file.
#[derive(Debug)]
pub struct Handle<'v> {
    pub(crate) vfs: &'v Vfs,
    pub(crate) cred: Cred,
    pub(crate) inode: Inode<'v>,
    pub(crate) flags: OpenFlags,
    /// Of a regular file.
    pub(crate) file: Option<DriverFile>,
}

impl<'v> Handle<'v> {
    /// The inode.
    pub fn inode(&self) -> &Inode<'v> {
        &self.inode
    }

    /// The inode's attributes, fresh.
    pub fn attr(&self) -> Result<Attr> {
        self.vfs.getattr(&self.vfs.op(&self.cred), &self.inode)
    }

    /// Reads at `offset`; fewer bytes than asked for only at the end of the file.
    ///
    /// # Errors
    /// EBADF (not open for reading), EISDIR, EINVAL (not a readable kind of node), and the driver's errors.
    pub fn read_at(&self, buf: &mut [u8], offset: u64) -> Result<usize> {
        if !self.flags.contains(OpenFlags::READ) {
            return Err(Errno::BADF);
        }
        self.regular()?;
        self.opened()?.read(&self.vfs.op(&self.cred), offset, buf)
    }

    /// Writes at `offset`, or at the end if opened with `APPEND`.
    ///
    /// # Errors
    /// EBADF (not open for writing), EINVAL (not a writable kind of node), EFBIG, and the driver's errors.
    pub fn write_at(&self, data: &[u8], offset: u64) -> Result<usize> {
        if !self.flags.contains(OpenFlags::WRITE) {
            return Err(Errno::BADF);
        }
        self.regular()?;
        let append = self.flags.contains(OpenFlags::APPEND);
        self.opened()?.write(&self.vfs.op(&self.cred), offset, data, append, false)
    }

    /// Changes the size; EINVAL unless open for writing.
    pub fn set_len(&self, size: u64) -> Result<()> {
        self.opened().map_err(|_| Errno::INVAL)?.truncate(&self.vfs.op(&self.cred), size)
    }

    /// Allocates, punches or zeroes a range; see [`Vfs::fallocate`].
    pub fn fallocate(&self, how: Fallocate, offset: u64, len: u64) -> Result<()> {
        // As in the kernel, the length is checked first.
        let opened = self.opened().map_err(|bad| if len == 0 { Errno::INVAL } else { bad })?;
        opened.fallocate(&self.vfs.op(&self.cred), how, offset, len)
    }

    /// The offset at which the next data or hole begins; see [`Vfs::seek`].
    pub fn seek(&self, offset: u64, what: Seek) -> Result<u64> {
        self.opened()?.seek(&self.vfs.op(&self.cred), offset, what)
    }

    /// Returns the events that the file is ready for now. `waker` is woken when that may have changed. A handle has
    /// one waker: the last one counts.
    ///
    /// # Errors
    /// The driver's errors.
    pub fn poll(&self, waker: Option<&Waker>) -> Result<PollEvents> {
        if self.file.is_none() {
            return Ok(PollEvents::ALWAYS);
        }
        self.opened()?.poll(&self.vfs.op(&self.cred), waker)
    }

    /// Waits, for at most `time`, until the file is ready for one of `want`, in error, or hung up. Returns the
    /// ready events, or none if the time ran out. Two threads must not wait on one handle at once.
    ///
    /// # Errors
    /// The driver's errors.
    pub fn wait(&self, want: PollEvents, time: Duration) -> Result<PollEvents> {
        let told = want | PollEvents::ERR | PollEvents::HUP;
        let waker = Waker::from(Arc::new(Parked(thread::current())));
        // None: the deadline is beyond the clock's range.
        let deadline = Instant::now().checked_add(time);
        loop {
            let ready = self.poll(Some(&waker))? & told;
            let left = deadline.map(|end| end.saturating_duration_since(Instant::now()));
            match left {
                _ if !ready.is_empty() => return Ok(ready),
                Some(Duration::ZERO) => return Ok(ready),
                // A wake-up between the poll and this call leaves a token, so this returns at once.
                Some(left) => thread::park_timeout(left),
                None => thread::park(),
            }
        }
    }

    /// Makes the file durable; does nothing for other kinds of nodes.
    pub fn sync(&self, data_only: bool) -> Result<()> {
        if self.file.is_none() {
            return Ok(());
        }
        self.opened()?.fsync(&self.vfs.op(&self.cred), data_only)
    }

    /// Hands out the entries of a directory after `cookie` until `sink` returns false; see [`Vfs::readdir`]. The
    /// open checked the permission.
    pub fn readdir(&self, cookie: u64, sink: &mut dyn FnMut(DirEntry<'_>) -> bool) -> Result<()> {
        crate::ops::name_and_type::require_dir(&self.inode)?;
        self.vfs.read_open_dir(&self.vfs.op(&self.cred), &self.inode, cookie, sink)
    }

    /// Statistics of the file system.
    pub fn statfs(&self) -> Result<StatFs> {
        self.vfs.statfs(&self.vfs.op(&self.cred), &self.inode)
    }

    /// The open file; EBADF if this is no regular one.
    fn opened(&self) -> Result<Opened<'_>> {
        let file = self.file.as_ref().ok_or(Errno::BADF)?;
        Ok(Opened { vfs: self.vfs, file, inode: &self.inode })
    }

    fn regular(&self) -> Result<()> {
        match self.inode.fmt() {
            mode::S_IFREG => Ok(()),
            mode::S_IFDIR => Err(Errno::ISDIR),
            _ => Err(Errno::INVAL),
        }
    }
}

/// A waiting thread.
struct Parked(Thread);

impl Wake for Parked {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

impl Drop for Handle<'_> {
    fn drop(&mut self) {
        if let Some(file) = &self.file {
            file.release(&self.inode);
        }
    }
}
