//! The control directory: a name in the root that leads into a file system of its own.
//!
//! The name is not in the cache and its directory's driver is never asked for it: each operation that
//! would look for it there, or ask, comes here first. So a walk without references does not find
//! it; where the cache is certain that there is no such name, and the path has it in it, the walk with
//! references looks again. That is the only price that other walks pay, and only those that end in
//! ENOENT. Listings drop what the driver has of that name; where the control directory shall be
//! listed, it comes last.
//! Nothing here is locked: where the control directory is never changes once it is set.

use crate::driver::Inode;
use crate::mount::{CONTROL_NAME, Control};
use crate::types::{DirEntry, Result, mode};
use crate::vfs::Vfs;
use uvfs_cache::InodeId;

/// The cookie of the control directory in a listing: after all that a driver has.
const LAST_COOKIE: u64 = i64::MAX as u64;

impl Vfs {
    /// The root of the control file system, where that is what `name` in `dir` means.
    #[inline]
    pub(crate) fn control_at(&self, dir: &Inode<'_>, name: &[u8]) -> Option<InodeId> {
        if name != CONTROL_NAME {
            return None;
        }
        self.mounts.control().filter(|control| control.dir == dir.id()).map(|control| control.root)
    }

    /// Whether a walk along `path` may come to the control directory. A symbolic link's target may lead
    /// there too, but links are followed with references.
    pub(crate) fn may_mean_control(&self, path: &[u8]) -> bool {
        self.mounts.control().is_some() && path.split(|b| *b == b'/').any(|name| name == CONTROL_NAME)
    }

    /// A listing of the directory that has the control directory; `list` hands out the rest.
    pub(crate) fn list_around(
        &self,
        control: &Control,
        cookie: u64,
        sink: &mut dyn FnMut(DirEntry<'_>) -> bool,
        list: impl FnOnce(&mut dyn FnMut(DirEntry<'_>) -> bool) -> Result<()>,
    ) -> Result<()> {
        if cookie == LAST_COOKIE {
            return Ok(());
        }
        let mut full = false;
        list(&mut |entry| {
            full = entry.name != CONTROL_NAME && !sink(entry);
            !full
        })?;
        if control.listed && !full {
            let ino = self.cache.get(control.root).map_or(0, |root| root.ino());
            sink(DirEntry { name: CONTROL_NAME, ino, fmt: mode::S_IFDIR, cookie: LAST_COOKIE });
        }
        Ok(())
    }
}
