//! The driver's side of an open regular file.
//!
//! A [`DriverFile`] has no reference to its inode, because its owners hold one anyway: a [`Handle`] of the library,
//! which borrows the cache, and an entry of the table for front ends ([`handle_table`](crate::ops::handle_table)), which does not.
//! The owner calls [`DriverFile::release`] once, after the last operation. An open file keeps its driver even past an
//! unmount. Nothing here is locked.
//!
//! [`Handle`]: crate::Handle

use std::fmt;
use std::sync::Arc;

use uvfs_cache::Cache;

use crate::driver::{Driver, File, Inode};
use crate::mount_table::Super;
use crate::types::{Access, Features, Op, Result};

/// The parts of a superblock that open files need.
pub(crate) struct Base {
    pub driver: Arc<dyn Driver>,
    pub features: Features,
    pub cache: Arc<Cache>,
}

impl Base {
    pub fn new(sup: &Super) -> Arc<Self> {
        let (driver, cache) = (Arc::clone(&sup.driver), Arc::clone(sup.cache()));
        Arc::new(Self { driver, features: sup.features, cache })
    }

    /// Opens a regular file in the driver; returns the driver's handle.
    pub fn open(&self, op: &Op, inode: &Inode<'_>, access: Access, append: bool) -> Result<u64> {
        if append {
            self.driver.open_to_append(op, inode, access)
        } else {
            self.driver.open(op, inode, access)
        }
    }
}

/// The driver's side of an open file.
pub(crate) struct DriverFile {
    pub base: Arc<Base>,
    pub access: Access,
    pub handle: u64,
}

impl fmt::Debug for DriverFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DriverFile").field("access", &self.access).field("handle", &self.handle).finish()
    }
}

impl DriverFile {
    pub fn with<R>(&self, inode: &Inode<'_>, act: impl FnOnce(&dyn Driver, File<'_>) -> R) -> R {
        act(&*self.base.driver, File { inode, handle: self.handle })
    }

    /// Closes the file in the driver. Called once, with its inode.
    #[inline]
    pub fn release(&self, inode: &Inode<'_>) {
        if !self.base.features.plain_files {
            self.with(inode, Driver::release);
        }
    }
}
