//! An open file, directory or other node, as an in-process user holds it.
//!
//! A handle owns a reference to its inode and, for regular files, a place in the table of open
//! files; dropping it closes the file. It may be shared between threads: there is no file
//! position in it, each call names its offset.

use std::sync::Arc;
use std::task::{Wake, Waker};
use std::thread::{self, Thread};
use std::time::{Duration, Instant};

use crate::driver::Inode;
use crate::types::{
    Attr, Cred, DirEntry, Errno, Fallocate, OpenFlags, PollEvents, Result, Seek, StatFs, mode,
};
use crate::vfs::Vfs;

/// What [`Context::open`](crate::Context::open) returns; dropping it closes the file.
#[derive(Debug)]
pub struct Handle<'v> {
    pub(crate) vfs: &'v Vfs,
    pub(crate) cred: Cred,
    pub(crate) inode: Inode<'v>,
    pub(crate) flags: OpenFlags,
    /// 0 for everything but regular files.
    pub(crate) fh: u64,
}

impl<'v> Handle<'v> {
    /// The inode.
    pub fn inode(&self) -> &Inode<'v> {
        &self.inode
    }

    /// Its attributes, fresh.
    pub fn attr(&self) -> Result<Attr> {
        self.vfs.getattr(&self.vfs.op(&self.cred), &self.inode)
    }

    /// Reads at `offset`; fewer bytes than asked for only at the end of the file.
    ///
    /// # Errors
    /// EBADF (not open for reading), EISDIR, EINVAL (nothing that can be read), and what the
    /// driver answers.
    pub fn read_at(&self, buf: &mut [u8], offset: u64) -> Result<usize> {
        if !self.flags.contains(OpenFlags::READ) {
            return Err(Errno::BADF);
        }
        self.regular()?;
        self.vfs.read(&self.vfs.op(&self.cred), self.fh, offset, buf)
    }

    /// Writes at `offset`, or at the end if opened with `APPEND`.
    ///
    /// # Errors
    /// EBADF (not open for writing), EINVAL (nothing that can be written), EFBIG, and what the
    /// driver answers.
    pub fn write_at(&self, data: &[u8], offset: u64) -> Result<usize> {
        if !self.flags.contains(OpenFlags::WRITE) {
            return Err(Errno::BADF);
        }
        self.regular()?;
        let append = self.flags.contains(OpenFlags::APPEND);
        self.vfs.write(&self.vfs.op(&self.cred), self.fh, offset, data, append, false)
    }

    /// Changes the size; EINVAL unless open for writing.
    pub fn set_len(&self, size: u64) -> Result<()> {
        if self.fh == 0 {
            return Err(Errno::INVAL);
        }
        self.vfs.truncate(&self.vfs.op(&self.cred), self.fh, size)
    }

    /// Allocates, punches or zeroes a range; see [`Vfs::fallocate`].
    pub fn fallocate(&self, how: Fallocate, offset: u64, len: u64) -> Result<()> {
        self.vfs.fallocate(&self.vfs.op(&self.cred), self.fh, how, offset, len)
    }

    /// Where the next data or hole begins; see [`Vfs::seek`].
    pub fn seek(&self, offset: u64, what: Seek) -> Result<u64> {
        self.vfs.seek(&self.vfs.op(&self.cred), self.fh, offset, what)
    }

    /// What it is ready for now, and a waker for when that may have become another thing: one a
    /// handle, the last one counts.
    ///
    /// # Errors
    /// What the driver answers.
    pub fn poll(&self, waker: Option<&Waker>) -> Result<PollEvents> {
        if self.fh == 0 {
            return Ok(PollEvents::ALWAYS);
        }
        self.vfs.poll(&self.vfs.op(&self.cred), self.fh, waker)
    }

    /// Waits until it is ready for something of `want`, or in error or hung up, for at most `time`;
    /// what it is then ready for, nothing where the time ran out. Not for two threads at once on one
    /// handle.
    ///
    /// # Errors
    /// What the driver answers.
    pub fn wait(&self, want: PollEvents, time: Duration) -> Result<PollEvents> {
        let told = want | PollEvents::ERR | PollEvents::HUP;
        let waker = Waker::from(Arc::new(Parked(thread::current())));
        // None: longer than the clock goes.
        let deadline = Instant::now().checked_add(time);
        loop {
            let ready = self.poll(Some(&waker))? & told;
            let left = deadline.map(|end| end.saturating_duration_since(Instant::now()));
            match left {
                _ if !ready.is_empty() => return Ok(ready),
                Some(Duration::ZERO) => return Ok(ready),
                // A wake-up between the look and this leaves its token: it returns at once.
                Some(left) => thread::park_timeout(left),
                None => thread::park(),
            }
        }
    }

    /// Makes the file durable; nothing to do for what is not a regular file.
    pub fn sync(&self, data_only: bool) -> Result<()> {
        if self.fh == 0 {
            return Ok(());
        }
        self.vfs.fsync(&self.vfs.op(&self.cred), self.fh, data_only)
    }

    /// Hands out the entries of a directory after `cookie` until `sink` returns false; see
    /// [`Vfs::readdir`]. The permission was checked when the directory was opened.
    pub fn readdir(&self, cookie: u64, sink: &mut dyn FnMut(DirEntry<'_>) -> bool) -> Result<()> {
        crate::ops::require_dir(&self.inode)?;
        self.vfs.read_open_dir(&self.vfs.op(&self.cred), &self.inode, cookie, sink)
    }

    /// Figures of the file system.
    pub fn statfs(&self) -> Result<StatFs> {
        self.vfs.statfs(&self.vfs.op(&self.cred), &self.inode)
    }

    fn regular(&self) -> Result<()> {
        match self.inode.fmt() {
            mode::S_IFREG => Ok(()),
            mode::S_IFDIR => Err(Errno::ISDIR),
            _ => Err(Errno::INVAL),
        }
    }
}

/// A thread that waits.
struct Parked(Thread);

impl Wake for Parked {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

impl Drop for Handle<'_> {
    fn drop(&mut self) {
        if self.fh != 0 {
            self.vfs.release(self.fh);
        }
    }
}
