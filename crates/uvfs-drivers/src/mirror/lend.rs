//! Files that are lent: their data is read and written by the kernel of a front end (FUSE passthrough), in the host's own page cache,
//! and no call comes here between open and release.
//!
//! The kernel opens the file anew for each open of the mount's file, as that was opened; of the descriptor that it is lent it takes which file it is,
//! and the identity of the thread that lends. One is lent for all who have the file open at a time, so:
//!
//! - the identity is that of who opened it first, without root's capabilities ([`Server::lend_as`](super::caller::Server::lend_as)): set-id bits go
//!   with a write, and the host's kernel counts space as it does for that user. What others write is counted
//!   as the file's owner's, as ever; only the reserve of a full file system is the first user's or nobody's;
//! - the descriptor is one for reading. It may stay with the kernel for longer than who opened the file for writing, and would keep the host
//!   from executing it.
//!
//! Files of which the host's server decides by the identity who may write what (NFS), and others that the watcher does not know
//! either, are not lent.
//!
//! Attributes in the cache are not right while a file that is lent is written. Front ends ask then each time
//! ([`Vfs::look`](uvfs::Vfs::look)). When it is released the host is asked once more, so that the cache is right before the events of these writes
//! have come, which are somebody else's and mean *look again*. Stores through a mapping that outlives the descriptor are told of
//! with the mapping's end, as those in the source are.
//!
//! Nothing is locked here.

use std::os::fd::AsFd;
use std::sync::atomic::Ordering::Relaxed;

use rustix::fs::{Mode, OFlags, fcntl_setfl, open};
use uvfs::Inode;
use uvfs::driver::{Borrower, File};
use uvfs::types::{Access, Op, Result};

use super::Mirror;
use super::file::{Opened, again};
use super::reach::proc_path;

impl Opened {
    /// Whether the kernel that it is lent to may write to it.
    pub(super) fn is_written(&self) -> bool {
        self.access.contains(Access::WRITE) && self.lent.load(Relaxed)
    }
}

impl Mirror {
    pub(super) fn lend_file(
        &self,
        op: &Op,
        file: File<'_>,
        direct: bool,
        to: Option<&mut Borrower<'_>>,
    ) -> Result<()> {
        let file = self.files.get(file.handle)?;
        if direct {
            // Otherwise the kernel finds out after the answer, and calls it EIO.
            fcntl_setfl(&file.fd, OFlags::DIRECT)?;
            fcntl_setfl(&file.fd, OFlags::empty())?;
        }
        if let Some(to) = to {
            self.hand_over(op, &file, to)?;
        }
        file.lent.store(true, Relaxed);
        Ok(())
    }

    fn hand_over(&self, op: &Op, file: &Opened, to: &mut Borrower<'_>) -> Result<()> {
        let _turn = self.budget.turn();
        let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
        let readable = match file.access.contains(Access::WRITE) {
            true => Some(again(|| open(proc_path(&file.fd), flags, Mode::empty()))?),
            false => None,
        };
        let fd = readable.as_ref().map_or(file.fd.as_fd(), AsFd::as_fd);
        let _acting = self.server.lend_as(&op.cred)?;
        to(fd)
    }

    /// A file is released: what others than we have written through it the cache does not know.
    pub(super) fn look_after_lending(&self, inode: &Inode<'_>, file: &Opened) {
        if file.is_written() {
            self.settle(inode, &file.fd);
        }
    }
}
