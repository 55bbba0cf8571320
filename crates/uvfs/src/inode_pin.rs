//! A reference to an inode that does not borrow the cache.
//!
//! Tables inside the [`Vfs`](crate::Vfs) (open files, mounts) cannot hold an [`Inode`], which borrows the cache
//! that the same `Vfs` owns. A [`Pin`] owns one reference, and the cache with it. This module has no lock: a pin is
//! immutable, and its holder may use the inode through [`Pin::inode`], which touches no reference count. Cost: one
//! `Arc` of the cache per pin; nothing per use. An open file avoids that one (see `ops/open_read_write.rs`) and has only an
//! [`OwnedId`].

use std::sync::Arc;

use uvfs_cache::machinery::{Borrowed, OwnedId};
use uvfs_cache::{Cache, InodeId};

use crate::driver::Inode;

/// One owned reference.
#[derive(Debug)]
pub(crate) struct Pin {
    cache: Arc<Cache>,
    inode: OwnedId,
}

impl Pin {
    /// Takes over the reference that `inode` owns.
    pub(crate) fn new(cache: &Arc<Cache>, inode: Inode<'_>) -> Self {
        Self { cache: Arc::clone(cache), inode: inode.into_owned() }
    }

    /// The inode's id.
    pub(crate) fn id(&self) -> InodeId {
        self.inode.id()
    }

    /// The inode, borrowed from the pin.
    pub(crate) fn inode(&self) -> Borrowed<'_> {
        self.cache.inode_of(&self.inode)
    }
}

impl Drop for Pin {
    fn drop(&mut self) {
        drop(self.cache.adopt(std::mem::take(&mut self.inode)));
    }
}
