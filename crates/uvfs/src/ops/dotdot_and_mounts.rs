//! `..` of a directory, and the steps across mounts: down to a mounted root, and up from it.
//!
//! The REF-walk and LOOKUP come here. The lock-free walk has its own: `up` and `across` of `namei/lock_free_walk.rs`.
//! Nothing here checks a permission or asks a driver.

use uvfs_cache::InodeId;

use crate::driver::Inode;
use crate::types::{Errno, Result};
use crate::vfs::Vfs;

impl Vfs {
    /// `..` of a directory. Leaves the mount if it is a mounted root, and stays at `root`. ENOENT if the directory
    /// is removed.
    pub(crate) fn parent<'v>(&'v self, dir: &Inode<'v>, root: InodeId) -> Result<Inode<'v>> {
        if dir.id() == root {
            return Ok(dir.clone());
        }
        if let Some(up) = self.mounts.hidden_in(dir.id()) {
            return Ok(self.cross(self.inode(up)?));
        }
        let mut below = dir.clone();
        // Mounts may be stacked, so this goes one mount at a time: `root` may be in the middle.
        while let Some(point) = self.mounts.point_of(below.id()) {
            if point == root {
                return Ok(dir.clone());
            }
            below = self.inode(point)?;
        }
        let up = self.cache.parent_of(&below).ok_or(Errno::NOENT)?;
        Ok(self.cross(up))
    }

    /// Goes from a mount point to the root mounted there.
    pub(crate) fn cross<'v>(&'v self, inode: Inode<'v>) -> Inode<'v> {
        match self.mounts.mounted_on(inode.id()).and_then(|root| self.cache.get(root)) {
            Some(root) => root,
            None => inode,
        }
    }
}
