//! File flags (ioctl_iflags(2)): the host keeps, checks and enforces them.
//!
//! The file is reached as for every change, and opened anew by its descriptor. So it is that very file, even if
//! another one has its name by now. Only regular files and directories are opened, for reading and without waiting.
//! This is done in the caller's name, and the host checks the caller: readers of the file see its flags, its owner
//! sets them, and some need CAP_LINUX_IMMUTABLE.

use std::os::fd::{AsFd, OwnedFd};

use rustix::fs::OFlags;
use uvfs::Inode;
use uvfs::types::{Access, Errno, FileFlags, FlagsForm, Op, Result, mode};

use super::Mirror;
use super::file::again;
use super::reach::At;
use super::sys;

/// FS_CASEFOLD_FL: names of a directory are compared without their case.
const CASEFOLD: u32 = 0x4000_0000;

impl Mirror {
    pub(super) fn get_flags(&self, op: &Op, inode: &Inode<'_>, form: FlagsForm) -> Result<FileFlags> {
        if self.node(inode)?.covered() {
            return Err(Errno::NOTTY);
        }
        let (node, at) = self.reach_inode(inode)?;
        let mut judge = self.judge(op);
        judge.may(&at, Access::READ)?;
        let _acting = judge.act()?;
        sys::file_flags(self.open_for_flags(&at, node.fmt())?, form).map_err(none)
    }

    pub(super) fn set_flags(&self, op: &Op, inode: &Inode<'_>, flags: &FileFlags) -> Result<()> {
        let (node, at) = self.reach_inode(inode)?;
        let mut judge = self.judge(op);
        judge.may(&at, Access::READ)?;
        judge.owns(&[at.as_fd()])?;
        let acting = judge.act()?;
        let outcome = self.open_for_flags(&at, node.fmt()).and_then(|fd| {
            expect_case_kept(&fd, flags)?;
            sys::set_file_flags(fd, flags).map_err(none)
        });
        drop(acting);
        self.settle(inode, &at);
        if outcome.is_ok() {
            // The change time is a new one. The kernel asks for no attributes after this call, although it does after
            // other changes.
            inode.cache().tell_of_attr(inode);
        }
        outcome
    }

    fn open_for_flags(&self, at: &At<'_>, fmt: u32) -> Result<OwnedFd> {
        let kind = match fmt {
            mode::S_IFREG => OFlags::empty(),
            mode::S_IFDIR => OFlags::DIRECTORY,
            _ => return Err(Errno::NOTTY),
        };
        again(|| self.links.open(at, OFlags::RDONLY | OFlags::NONBLOCK | kind))
    }
}

/// A directory must not begin to fold case: the cache knows names by their bytes, and would be wrong about it for
/// ever.
///
/// # Errors
/// EOPNOTSUPP if a directory would begin to fold case.
fn expect_case_kept(fd: impl AsFd, flags: &FileFlags) -> Result<()> {
    let folds = |flags: &FileFlags| matches!(flags, FileFlags::Inode(flags) if flags & CASEFOLD != 0);
    if folds(flags) && !folds(&sys::file_flags(fd, FlagsForm::Inode).map_err(none)?) {
        return Err(Errno::OPNOTSUPP);
    }
    Ok(())
}

/// The answer of a file system without flags, as ioctl(2) gives it.
fn none(errno: Errno) -> Errno {
    if errno == Errno::OPNOTSUPP { Errno::NOTTY } else { errno }
}
