//! Removing names: unlink, rmdir.
//!
//! The order of errors is the kernel's: read-only, no such name, a wrong trailing slash, no permission, sticky,
//! wrong type, mount point. A directory is first marked as dying. That fails unless the directory is empty, and
//! keeps it empty. Then the driver is asked.

use uvfs_cache::machinery::Death;

use crate::driver::Inode;
use crate::mount_table::SuperRef;
use crate::ops::name_and_type::{check_name, is_dir};
use crate::types::{Errno, Op, Result};
use crate::vfs::Vfs;

impl Vfs {
    /// Removes the name of something that is not a directory.
    ///
    /// # Errors
    /// ENOENT, EISDIR, EBUSY (a mount point), EACCES, EPERM (sticky), EROFS, ENOTDIR (`dir` is not a directory),
    /// and the driver's errors.
    pub fn unlink<'v>(&'v self, op: &Op, dir: &Inode<'v>, name: &[u8]) -> Result<()> {
        self.unlink_path(op, dir, name, false)
    }

    /// [`Vfs::unlink`] for a path that may have a trailing slash, which only a directory's may.
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
        let locked = self.inode_locks.take(victim.id());
        sup.driver.unlink(op, dir, name, &victim)?;
        guard.remove(None);
        drop(locked);
        Ok(())
    }

    /// Removes an empty directory.
    ///
    /// # Errors
    /// ENOENT, ENOTDIR, ENOTEMPTY, EBUSY (a mount point), EINVAL (`.`), EACCES, EPERM (sticky), EROFS, and the
    /// driver's errors.
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

    /// Marks a directory as dying; EBUSY if something is mounted on it, ENOTEMPTY if it has entries.
    ///
    /// This checks the mounts twice: before, for the errno, and after, for the race. A mount keeps its directory
    /// non-empty until it shows. If the mount comes first, either the mark fails or the second check sees the
    /// mount. If the mark comes first, the mount finds the directory dying.
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

    /// Others may have removed the directory's cached entries behind the cache. This asks the driver whether any
    /// entry is left.
    fn forget_if_empty(&self, op: &Op, sup: &SuperRef, dir: &Inode<'_>) -> Result<()> {
        if !sup.driver.is_empty(op, dir)? {
            return Err(Errno::NOTEMPTY);
        }
        self.cache.invalidate_children(dir);
        Ok(())
    }
}
