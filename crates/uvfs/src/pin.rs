//! A reference to an inode that is not tied to a borrow of the cache.
//!
//! Tables that live inside the [`Vfs`](crate::Vfs) (open files, mounts) cannot hold an
//! [`Inode`], which borrows the cache that the same `Vfs` owns. A [`Pin`] owns one reference
//! and the cache with it. Nothing here is locked: a pin is immutable, and whoever holds it may
//! look at the inode through [`Pin::inode`], which touches no reference count.
//! Cost: one `Arc` of the cache per pin; nothing per use. An open file spares itself that one
//! (see `ops/file.rs`) and uses [`Pinned`] alone.

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
        Pinned::new(&self.cache, self.id)
    }
}

impl Drop for Pin {
    fn drop(&mut self) {
        drop(self.cache.adopt(self.id));
    }
}

/// A look at a pinned inode.
pub(crate) struct Pinned<'p>(ManuallyDrop<InodeRef<'p>>);

impl<'p> Pinned<'p> {
    /// Looks at an inode of which the caller keeps a reference.
    pub(crate) fn new(cache: &'p Cache, id: InodeId) -> Self {
        // The reference stays the caller's: this second view of it is never dropped.
        Self(ManuallyDrop::new(cache.adopt(id)))
    }
}

impl<'p> Deref for Pinned<'p> {
    type Target = Inode<'p>;

    fn deref(&self) -> &Inode<'p> {
        &self.0
    }
}
