//! Names that go: unlink, rmdir.
//!
//! The order of errors is the kernel's: read-only, no such name, a wrong trailing slash, no
//! permission, sticky, wrong type, mount point. A directory is first marked as dying, which
//! fails unless it is empty and keeps it so; then the driver is asked.

use uvfs_cache::Death;

use crate::driver::Inode;
use crate::mount::SuperRef;
use crate::ops::{check_name, is_dir};
use crate::types::{Errno, Op, Result};
use crate::vfs::Vfs;

impl Vfs {
    /// Removes the name of something that is not a directory.
    ///
    /// # Errors
    /// ENOENT, EISDIR, EBUSY (a mount point), EACCES, EPERM (sticky), EROFS, ENOTDIR (`dir` is
    /// none), and what the driver answers.
    pub fn unlink<'v>(&'v self, op: &Op, dir: &Inode<'v>, name: &[u8]) -> Result<()> {
        self.unlink_path(op, dir, name, false)
    }

    /// [`Vfs::unlink`] where the path may have had a trailing slash, which only a directory may.
    pub(crate) fn unlink_path<'v>(
        &'v self,
        op: &Op,
        dir: &Inode<'v>,
        name: &[u8],
        slash: bool,
    ) -> Result<()> {
        self.search(op, dir)?;
        if matches!(name, b"." | b"..") {
            return Err(Errno::ISDIR);
        }
        check_name(name)?;
        self.cache.prefetch(dir, name);
        let sup = self.sup(dir)?;
        sup.writable()?;
        let guard = self.cache.lock_name(dir, name);
        let victim = self.find(op, &sup, &guard)?.ok_or(Errno::NOENT)?;
        if slash {
            return Err(if is_dir(&victim) { Errno::ISDIR } else { Errno::NOTDIR });
        }
        self.may_remove(op, dir, &victim)?;
        if is_dir(&victim) {
            return Err(Errno::ISDIR);
        }
        let turn = self.inode_locks.take(victim.id());
        sup.driver.unlink(op, dir, name, &victim)?;
        guard.remove(None);
        drop(turn);
        Ok(())
    }

    /// Removes an empty directory.
    ///
    /// # Errors
    /// ENOENT, ENOTDIR, ENOTEMPTY, EBUSY (a mount point), EINVAL (`.`), EACCES, EPERM (sticky),
    /// EROFS, and what the driver answers.
    pub fn rmdir<'v>(&'v self, op: &Op, dir: &Inode<'v>, name: &[u8]) -> Result<()> {
        self.search(op, dir)?;
        match name {
            b"." => return Err(Errno::INVAL),
            b".." => return Err(Errno::NOTEMPTY),
            _ => check_name(name)?,
        }
        let sup = self.sup(dir)?;
        sup.writable()?;
        let guard = self.cache.lock_name(dir, name);
        let victim = self.find(op, &sup, &guard)?.ok_or(Errno::NOENT)?;
        self.may_remove(op, dir, &victim)?;
        if !is_dir(&victim) {
            return Err(Errno::NOTDIR);
        }
        let death = self.begin_death(op, &sup, &victim)?;
        sup.driver.rmdir(op, dir, name, &victim)?;
        guard.remove(Some(death));
        Ok(())
    }

    /// Marks a directory as dying; EBUSY where something is mounted on it, ENOTEMPTY where it
    /// has entries.
    ///
    /// The mounts are looked at twice: before, for the errno, and after, for the race. A mount
    /// keeps its directory non-empty until it shows; so either it fails here, or it is seen
    /// here, or it comes later and finds the directory dying.
    pub(crate) fn begin_death<'v>(&self, op: &Op, sup: &SuperRef, dir: &Inode<'v>) -> Result<Death<'v>> {
        let mounted = || self.mounts.is_busy(dir.id());
        if mounted() {
            return Err(Errno::BUSY);
        }
        let death = match dir.begin_death() {
            Err(_) if sup.features.passes_through => {
                self.forget_if_empty(op, sup, dir)?;
                dir.begin_death()
            }
            death => death,
        };
        let death = death.map_err(|_| Errno::NOTEMPTY)?;
        if mounted() { Err(Errno::BUSY) } else { Ok(death) }
    }

    /// What the cache knows in a directory may have been removed behind its back: the driver is asked whether anything
    /// is left.
    fn forget_if_empty(&self, op: &Op, sup: &SuperRef, dir: &Inode<'_>) -> Result<()> {
        let mut empty = true;
        sup.driver.readdir(op, dir, 0, &mut |_| {
            empty = false;
            false
        })?;
        if !empty {
            return Err(Errno::NOTEMPTY);
        }
        self.cache.invalidate_children(dir);
        Ok(())
    }
}
