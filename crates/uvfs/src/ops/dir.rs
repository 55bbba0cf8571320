//! Reading directories.
//!
//! For a resident file system, entries come from the cache, and this module maintains the access time without the
//! driver: relatime, as mount(8) describes it. Every other driver reads for itself and passes its own cookies. No
//! lock is held while entries are handed out.

use crate::driver::Inode;
use crate::mount::SuperRef;
use crate::ops::checks::require_dir;
use crate::types::{Access, Attr, DirEntry, Errno, Op, Result, Time};
use crate::vfs::Vfs;

/// An access time older than this is renewed even if nothing has changed since.
const RELATIME_SECONDS: i64 = 24 * 60 * 60;

impl Vfs {
    /// Hands out the entries of a directory after `cookie` (0: from the start) until `sink` returns false. `.` and
    /// `..` are not among them. Each call checks the permission to read the directory.
    ///
    /// # Errors
    /// ENOTDIR, EACCES, ENOENT if the directory is removed, and the driver's errors.
    pub fn readdir(
        &self,
        op: &Op,
        dir: &Inode<'_>,
        cookie: u64,
        sink: &mut dyn FnMut(DirEntry<'_>) -> bool,
    ) -> Result<()> {
        require_dir(dir)?;
        if !op.trusted {
            self.require(op, dir, &self.attr_now(op, dir)?, Access::READ)?;
        }
        self.read_open_dir(op, dir, cookie, sink)
    }

    /// Makes the names of a directory durable.
    ///
    /// # Errors
    /// ENOTDIR, and the driver's errors.
    pub fn sync_dir(&self, op: &Op, dir: &Inode<'_>, datasync: bool) -> Result<()> {
        require_dir(dir)?;
        self.sup(dir)?.driver.fsync_dir(op, dir, datasync)
    }

    /// [`Vfs::readdir`] for a caller that has opened the directory: the open checked the permission.
    pub(crate) fn read_open_dir(
        &self,
        op: &Op,
        dir: &Inode<'_>,
        cookie: u64,
        sink: &mut dyn FnMut(DirEntry<'_>) -> bool,
    ) -> Result<()> {
        if dir.is_dead() {
            return Err(Errno::NOENT);
        }
        let sup = self.sup(dir)?;
        match self.mounts.control() {
            Some(control) if control.dir == dir.id() => {
                self.list_around(control, cookie, sink, |sink| self.list(&sup, op, dir, cookie, sink))
            }
            _ => self.list(&sup, op, dir, cookie, sink),
        }
    }

    fn list(
        &self,
        sup: &SuperRef,
        op: &Op,
        dir: &Inode<'_>,
        cookie: u64,
        sink: &mut dyn FnMut(DirEntry<'_>) -> bool,
    ) -> Result<()> {
        if !sup.features.resident {
            return sup.driver.readdir(op, dir, cookie, sink);
        }
        self.cache
            .read_dir(dir, cookie, &mut |name, ino, fmt, cookie| sink(DirEntry { name, ino, fmt, cookie }));
        touch(sup, op.now, dir);
        Ok(())
    }
}

/// Moves the access time as relatime requires: at most one store after each change.
fn touch(sup: &SuperRef, now: Time, inode: &Inode<'_>) {
    if !sup.features.read_only && is_due(&inode.attr(), now) {
        inode.update(|attr| attr.atime = now);
    }
}

fn is_due(attr: &Attr, now: Time) -> bool {
    attr.atime <= attr.mtime || attr.atime <= attr.ctime || now.sec() - attr.atime.sec() >= RELATIME_SECONDS
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn access_time_is_due_after_a_change_and_once_a_day() {
        let at = |sec| Time::new(sec, 0);
        let attr = |a, m, c| Attr { atime: at(a), mtime: at(m), ctime: at(c), ..Attr::default() };
        for (attr, now, due) in [
            (attr(5, 5, 5), 6, true),
            (attr(6, 5, 5), 7, false),
            (attr(6, 7, 5), 8, true),
            (attr(6, 5, 7), 8, true),
            (attr(6, 5, 5), 6 + RELATIME_SECONDS, true),
        ] {
            assert_eq!(is_due(&attr, at(now)), due, "{attr:?} at {now}");
        }
    }
}
