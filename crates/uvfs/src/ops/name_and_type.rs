//! Checks of a name and of an inode's type that operations share.

use crate::driver::Inode;
use crate::types::{Errno, NAME_MAX, Result, mode};

/// ENOTDIR on anything but a directory.
pub(crate) fn require_dir(inode: &Inode<'_>) -> Result<()> {
    if is_dir(inode) { Ok(()) } else { Err(Errno::NOTDIR) }
}

/// Whether this is a directory.
pub(crate) fn is_dir(inode: &Inode<'_>) -> bool {
    inode.fmt() == mode::S_IFDIR
}

/// The requirements on a name to look up: not empty, no slash or nul, not too long. Operations handle `.` and `..`,
/// with errors of their own.
pub(crate) fn check_name(name: &[u8]) -> Result<()> {
    if name.is_empty() {
        Err(Errno::NOENT)
    } else if name.len() > NAME_MAX {
        Err(Errno::NAMETOOLONG)
    } else if name.iter().fold(false, |bad, &b| bad | (b == b'/') | (b == 0)) {
        Err(Errno::INVAL)
    } else {
        Ok(())
    }
}
