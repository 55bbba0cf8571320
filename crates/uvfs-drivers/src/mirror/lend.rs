//! Files that are lent: the kernel of a front end reads and writes their data in the host's own page cache (FUSE
//! passthrough). No call comes here between open and release.
//!
//! The kernel opens the file anew for each open of the mount's file, with the same access. It takes two things from
//! the descriptor that it is lent: which file it is, and the identity of the thread that lends. One descriptor is
//! lent for all that have the file open at a time. So:
//!
//! - The identity is that of the first opener. Of root's capabilities it has one, CAP_SYS_ADMIN, without which
//!   nothing can be lent ([`Server::lend_as`](super::caller::Server::lend_as)). So the file system, and security
//!   modules, find that identity in every reader and writer. Set-id bits go with a write, and the host's kernel
//!   counts space as it does for that user. Writes by others are counted as the file's owner's, as ever; only the
//!   reserve of a full file system is the first opener's or nobody's. A file that has set-id bits already is not
//!   lent: the writer decides whether a write removes them, and all writers have one identity.
//! - The descriptor is one for reading. It may stay with the kernel after the writer has closed the file; one for
//!   writing would keep the host from executing the file for so long.
//!
//! Because of that capability a file is lent only if its file system stores written data, and depends on the writer
//! only for limits and set-id bits ([`PLAIN`]). Three kinds are not lent. Some file systems make contents when they
//! are read, and check the writer's capabilities at a write (proc, sysfs, cgroup). Some have a server that decides by
//! the identity (NFS). The kernel does not take stacked ones.
//!
//! An append-only file is not lent, not even to readers. Later openers share the lent file, and one that may append
//! could change all of it through a mapping. The kernel of the mount does not know the flag, and the host's is not
//! asked.
//!
//! A node whose file was lent stays marked ([`Node::was_lent`](super::node::Node::was_lent)): the kernel's writes may
//! have cleared its set-id bits. A second mark says that an opener could map it
//! ([`Node::may_be_mapped`](super::node::Node::may_be_mapped)): mappings of the host's pages outlive the open file.
//! mmap(2) needs a descriptor that reads (EACCES), so a file that was lent for writing only, such as a copy, lacks it.
//!
//! Attributes in the cache are not right while a lent file is written. Front ends then ask each time
//! ([`Vfs::look`](uvfs::Vfs::look)). At its release the host is asked once more, so that the cache is right before
//! the events of these writes have come. (They count as another process's writes, and mean *look again*.) Stores
//! through a mapping that outlives the descriptor are reported when the mapping ends, as those in the source are.
//!
//! Nothing is locked here. The marks are set before the open that is lent is answered. Later opens look for them
//! after the front end has found that nobody has the file open in this way any more: its lock puts the two in order.

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
    /// Without this check the kernel would notice after the answer, and report EIO.
    pub(super) fn can_be_direct(&self, file: File<'_>) -> Result<()> {
        let file = self.files.get(file.handle)?;
        fcntl_setfl(&file.fd, OFlags::DIRECT | file.append)?;
        fcntl_setfl(&file.fd, file.append)
    }

    pub(super) fn lend_file(&self, file: File<'_>) -> Result<()> {
        let open = self.files.get(file.handle)?;
        let mappable = open.access != Access::WRITE;
        self.table.of(file.inode.ino()).ok_or(Errno::STALE)?.mark_lent(mappable);
        open.lent.store(true, Relaxed);
        Ok(())
    }

    pub(super) fn offer_file(&self, op: &Op, file: File<'_>, to: &mut Borrower<'_>) -> Result<()> {
        let file = self.files.get(file.handle)?;
        let _turn = self.budget.turn();
        // The mode in the cache may be old.
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
        let _acting = self.server.lend_as(&self.on_host(&op.cred).0, op.cred.is_root())?;
        to(fd)
    }

    /// A file is released. The cache does not know the kernel's writes through it.
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
