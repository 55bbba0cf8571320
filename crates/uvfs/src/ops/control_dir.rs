//! The control directory: a name in the root that leads into a file system of its own.
//!
//! The name is not in the cache, and its directory's driver is never asked for it. Each operation that would look
//! the name up, or ask, comes here first. So a lock-free walk does not find it. If that walk is certain that a name
//! is absent, and the path contains this name, the walk with references looks again. Other walks pay nothing else,
//! and only those that end in ENOENT pay that. Listings omit the driver's entry of the same name; if the control
//! directory is listed, it comes last. This module has no lock: the control directory's place never changes once it
//! is set.

use crate::driver::Inode;
use crate::mount_table::{CONTROL_NAME, Control};
use crate::types::{DirEntry, Result, mode};
use crate::vfs::Vfs;
use uvfs_cache::InodeId;

/// The control directory's cookie in a listing: after all cookies of the driver.
const LAST_COOKIE: u64 = i64::MAX as u64;

impl Vfs {
    /// The root of the control file system, if `name` in `dir` means that.
    #[inline]
    pub(crate) fn control_at(&self, dir: &Inode<'_>, name: &[u8]) -> Option<InodeId> {
        if name != CONTROL_NAME {
            return None;
        }
        self.mounts.control().filter(|control| control.dir == dir.id()).map(|control| control.root)
    }

    /// Whether a walk along `path` may reach the control directory. The lock-free walk asks this of each link's target
    /// too, and leaves such a link to the walk with references.
    pub(crate) fn may_mean_control(&self, path: &[u8]) -> bool {
        self.mounts.control().is_some() && path.split(|b| *b == b'/').any(|name| name == CONTROL_NAME)
    }

    /// A listing of the control directory's parent; `list` hands out the other entries.
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
