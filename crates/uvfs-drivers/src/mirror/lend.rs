//! Files that are lent: their data is read and written by the kernel of a front end (FUSE passthrough), in the host's own page cache,
//! and no call comes here between open and release.
//!
//! The kernel opens the file anew for each open of the mount's file, as that was opened. Of the descriptor that it is
//! lent it takes two things: which file it is, and the identity of the thread that lends. One descriptor is lent for all
//! that have the file open at a time. So:
//!
//! - The identity is that of the first opener. Of root's capabilities it has one, CAP_SYS_ADMIN, without which nothing
//!   can be lent ([`Server::lend_as`](super::caller::Server::lend_as)). So the file system, and security modules, find
//!   that identity in every reader and writer. Set-id bits go with a write, and the host's kernel counts space as it
//!   does for that user. Writes by others are counted as the file's owner's, as ever; only the reserve of a full file
//!   system is the first opener's or nobody's. A file that has set-id bits already is not lent: whether they go with a
//!   write or stay depends on the writer, and there is one identity for all writers.
//! - The descriptor is one for reading. It may stay with the kernel after the writer has closed the file; one for
//!   writing would keep the host from executing the file for so long.
//!
//! Because of that capability a file is lent only if its file system keeps what is written, and asks nothing of the
//! writer but for limits and set-id bits ([`PLAIN`]). Three kinds are not lent. Some make contents when they are read,
//! and ask at a write what capabilities the writer has (proc, sysfs, cgroup). Some have a server that decides by the
//! identity (NFS). Stacked ones the kernel does not take.
//!
//! An append-only file is not lent, to readers neither: later openers share what is lent, and one that may append could
//! change all of it through a mapping. The kernel of the mount does not know the flag, and the host's is not asked.
//!
//! A node whose file was lent stays marked ([`Node::was_lent`](super::node::Node::was_lent)): mappings of the host's pages last when the file is closed.
//!
//! Attributes in the cache are not right while a file that is lent is written. Front ends ask then each time
//! ([`Vfs::look`](uvfs::Vfs::look)). When it is released the host is asked once more, so that the cache is right before the events of these writes
//! have come, which are somebody else's and mean *look again*. Stores through a mapping that outlives the descriptor are told of
//! with the mapping's end, as those in the source are.
//!
//! Nothing is locked here. The mark is set before the open that is lent is answered. Later opens look for the mark after
//! the front end has found that nobody has the file open in this way any more: its lock puts the two in order.

use std::os::fd::AsFd;
use std::sync::atomic::Ordering::Relaxed;

use rustix::fs::{AtFlags, OFlags, StatxAttributes, StatxFlags, fcntl_setfl, fstatfs, statx};
use uvfs::Inode;
use uvfs::driver::{Borrower, File};
use uvfs::types::{Access, Errno, Op, Result, mode};

use super::Mirror;
use super::file::{Opened, again};

/// ext2, ext3 and ext4, XFS, Btrfs, F2FS, bcachefs, tmpfs.
const PLAIN: [u32; 6] = [0xef53, 0x5846_5342, 0x9123_683e, 0xf2f5_2010, 0xca45_1a4e, 0x0102_1994];

/// Whether it is on one of those.
pub(super) fn is_plain(fd: impl AsFd) -> bool {
    fstatfs(fd).is_ok_and(|figures| PLAIN.contains(&(figures.f_type as u32)))
}

impl Opened {
    /// Whether the kernel that it is lent to may write to it.
    pub(super) fn is_written(&self) -> bool {
        self.access.contains(Access::WRITE) && self.lent.load(Relaxed)
    }
}

impl Mirror {
    /// Otherwise the kernel finds out after the answer, and calls it EIO.
    pub(super) fn can_be_direct(&self, file: File<'_>) -> Result<()> {
        let file = self.files.get(file.handle)?;
        fcntl_setfl(&file.fd, OFlags::DIRECT | file.append)?;
        fcntl_setfl(&file.fd, file.append)
    }

    pub(super) fn lend_file(&self, file: File<'_>) -> Result<()> {
        let open = self.files.get(file.handle)?;
        self.table.of(file.inode.ino()).ok_or(Errno::STALE)?.mark_lent();
        open.lent.store(true, Relaxed);
        Ok(())
    }

    pub(super) fn offer_file(&self, op: &Op, file: File<'_>, to: &mut Borrower<'_>) -> Result<()> {
        let file = self.files.get(file.handle)?;
        let _turn = self.budget.turn();
        // What the cache has of its mode may be old.
        let seen = statx(&file.fd, c"", AtFlags::EMPTY_PATH, StatxFlags::MODE)?;
        let set_id = u32::from(seen.stx_mode) & (mode::S_ISUID | mode::S_ISGID) != 0;
        if set_id || seen.stx_attributes.contains(StatxAttributes::APPEND) {
            return Err(Errno::PERM);
        }
        let flags = OFlags::RDONLY | OFlags::NONBLOCK;
        let readable = match file.access.contains(Access::WRITE) {
            true => Some(again(|| self.links.open(&file.fd, flags))?),
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

#[cfg(test)]
mod tests {
    use std::fs::File;

    use super::is_plain;

    #[test]
    fn what_asks_who_writes_is_not_lent() {
        for dir in ["/proc", "/sys"] {
            assert!(File::open(dir).is_ok_and(|dir| !is_plain(dir)), "{dir}");
        }
    }
}
