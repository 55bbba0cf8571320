//! May the caller do this? The permission checks that begin an operation on a file or directory.
//!
//! They fetch the attributes if those in the cache have expired, and leave the decision to [`crate::permission`] and,
//! for a file with an access control list, to [`super::acl_checks`]. They hold no lock, but callers may hold name
//! locks. A trusted caller's kernel has checked already.

use crate::driver::Inode;
use crate::groups_and_capabilities::Who;
use crate::ops::name_and_type::require_dir;
use crate::permission;
use crate::types::{Access, Errno, Op, Perm, Result, mode};
use crate::vfs::Vfs;

impl Vfs {
    /// Whether the caller has the access `want`; an empty `want` asks for nothing.
    ///
    /// # Errors
    /// EROFS for writing a file, directory or link on a read-only file system, otherwise EACCES.
    pub fn access(&self, op: &Op, inode: &Inode<'_>, want: Access) -> Result<()> {
        self.permit(op, inode, want)
    }

    /// The permission `want` for an inode: EROFS before EACCES.
    pub(crate) fn permit(&self, op: &Op, inode: &Inode<'_>, want: Access) -> Result<()> {
        if want.contains(Access::WRITE)
            && matches!(inode.fmt(), mode::S_IFREG | mode::S_IFDIR | mode::S_IFLNK)
        {
            self.sup(inode)?.writable()?;
        }
        if op.trusted {
            return Ok(());
        }
        self.require(op, inode, &self.attr_now(op, inode)?, want)
    }

    /// The permission to look names up in a directory; ENOTDIR if it is not a directory.
    pub(crate) fn search(&self, op: &Op, dir: &Inode<'_>) -> Result<()> {
        require_dir(dir)?;
        if op.trusted || op.is_root() {
            return Ok(());
        }
        self.require(op, dir, &self.attr_now(op, dir)?, Access::EXEC)
    }

    /// The permission to add a name to a directory, and the attributes that granted it; ENOENT if the directory is
    /// removed.
    pub(crate) fn may_add(&self, op: &Op, dir: &Inode<'_>) -> Result<Perm> {
        let want = Access::WRITE | Access::EXEC;
        if dir.is_dead() {
            return Err(Errno::NOENT);
        }
        if !dir.expired() {
            let perm = dir.perm();
            // If the caller's rights must be asked for, the user id alone does not decide.
            if op.trusted || op.is_known() && permission::granted(&op.cred, perm, want) {
                return Ok(perm);
            }
        }
        let attr = self.attr_now(op, dir)?;
        self.require(op, dir, &attr, want)?;
        Ok((&attr).into())
    }

    /// The permission to remove the name of `victim` from `dir`.
    pub(crate) fn may_remove(&self, op: &Op, dir: &Inode<'_>, victim: &Inode<'_>) -> Result<()> {
        // Root may do so in any directory, sticky or not.
        if op.trusted || (op.is_root() && !dir.expired()) {
            return Ok(());
        }
        let attr = self.attr_now(op, dir)?;
        self.require(op, dir, &attr, Access::WRITE | Access::EXEC)?;
        if attr.mode & mode::S_ISVTX == 0 {
            return Ok(());
        }
        permission::require_unstuck(op, &attr, &self.attr_now(op, victim)?)
    }
}
