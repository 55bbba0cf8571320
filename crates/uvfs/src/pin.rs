//! A reference to an inode that is not tied to a borrow of the cache.
//!
//! Tables that live inside the [`Vfs`](crate::Vfs) (open files, mounts) cannot hold an
//! [`Inode`], which borrows the cache that the same `Vfs` owns. A [`Pin`] owns one reference
//! and the cache with it. Nothing here is locked: a pin is immutable, and whoever holds it may
//! look at the inode through [`Pin::inode`], which touches no reference count.
//! Cost: one `Arc` of the cache per pin; nothing per use.

use std::mem::ManuallyDrop;
use std::ops::Deref;
use std::sync::Arc;

use uvfs_cache::{Cache, InodeId, InodeRef};

use crate::driver::Inode;

/// One owned reference.
#[derive(Debug)]
pub(crate) struct Pin {
    cache: Arc<Cache>,
    id: InodeId,
}

impl Pin {
    /// Takes over the reference that `inode` owns.
    pub(crate) fn new(cache: &Arc<Cache>, inode: Inode<'_>) -> Self {
        Self { cache: Arc::clone(cache), id: inode.into_id() }
    }

    /// The inode's id.
    pub(crate) fn id(&self) -> InodeId {
        self.id
    }

    /// The inode, borrowed from the pin.
    pub(crate) fn inode(&self) -> Pinned<'_> {
        // The reference stays the pin's: this second view of it is never dropped.
        Pinned(ManuallyDrop::new(self.cache.adopt(self.id)))
    }
}

impl Drop for Pin {
    fn drop(&mut self) {
        drop(self.cache.adopt(self.id));
    }
}

/// A look at a pinned inode.
pub(crate) struct Pinned<'p>(ManuallyDrop<InodeRef<'p>>);

impl<'p> Deref for Pinned<'p> {
    type Target = Inode<'p>;

    fn deref(&self) -> &Inode<'p> {
        &self.0
    }
}
