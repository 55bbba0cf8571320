//! References to inodes that do not borrow the cache, for tables that stand beside it: open files, mounts.
//!
//! An [`InodeId`] only names an inode, and any code may make one from a number; so an id cannot return a
//! reference. An [`OwnedId`] *is* a reference: it is made from an [`InodeRef`], is not copied, and ends
//! when it is adopted. Each bears the number of its cache, and no other cache accepts it. So safe code may
//! lose a reference, which keeps the inode for good. It cannot return a reference that it does not have.
//! Costs a comparison; nothing is locked, no count is touched.

use std::fmt;
use std::mem::ManuallyDrop;
use std::ops::Deref;

use crate::cache::{Cache, CacheNumber};
use crate::inodes::inode_ref::InodeRef;
use crate::types::InodeId;

/// One reference, made by [`InodeRef::into_owned`] and taken back by [`Cache::adopt`]. If it is dropped,
/// its inode stays for good.
///
/// An id is no reference, and each reference is adopted once:
///
/// ```compile_fail,E0308
/// fn by_id(cache: &uvfs_cache::Cache, id: uvfs_cache::InodeId) {
///     drop(cache.adopt(id));
/// }
/// ```
/// ```compile_fail,E0382
/// fn twice(cache: &uvfs_cache::Cache, owned: uvfs_cache::machinery::OwnedId) {
///     drop(cache.adopt(owned));
///     drop(cache.adopt(owned));
/// }
/// ```
#[must_use = "dropped, it keeps its inode for good"]
pub struct OwnedId {
    id: InodeId,
    cache: CacheNumber,
}

impl OwnedId {
    /// The inode's id.
    pub fn id(&self) -> InodeId {
        self.id
    }
}

/// No reference: the value left behind when one is taken out. No cache adopts it.
impl Default for OwnedId {
    fn default() -> Self {
        Self { id: InodeId::new(0, 0), cache: CacheNumber::default() }
    }
}

impl fmt::Debug for OwnedId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "OwnedId({:?})", self.id)
    }
}

/// The inode of an [`OwnedId`], whose owner keeps the reference.
pub struct Borrowed<'o>(ManuallyDrop<InodeRef<'o>>);

impl<'o> Deref for Borrowed<'o> {
    type Target = InodeRef<'o>;

    fn deref(&self) -> &InodeRef<'o> {
        &self.0
    }
}

impl fmt::Debug for Borrowed<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Borrowed({:?})", self.id())
    }
}

// For this project's own crates: see `machinery`.
#[doc(hidden)]
impl InodeRef<'_> {
    /// Give the reference up without dropping it; [`Cache::adopt`] takes it back.
    pub fn into_owned(self) -> OwnedId {
        let cache = self.cache().number;
        OwnedId { id: self.into_id(), cache }
    }
}

// For this project's own crates: see `machinery`.
#[doc(hidden)]
impl Cache {
    /// Take back a reference that [`InodeRef::into_owned`] gave up.
    ///
    /// # Panics
    /// If the reference belongs to another cache, or is none ([`OwnedId::default`]).
    pub fn adopt(&self, owned: OwnedId) -> InodeRef<'_> {
        self.view_of(owned.id, owned.cache)
    }

    /// The inode of a reference that its owner keeps.
    ///
    /// # Panics
    /// As [`Cache::adopt`].
    pub fn inode_of<'o>(&'o self, owned: &'o OwnedId) -> Borrowed<'o> {
        // This second view of the reference is never dropped.
        Borrowed(ManuallyDrop::new(self.view_of(owned.id, owned.cache)))
    }

    fn view_of(&self, id: InodeId, cache: CacheNumber) -> InodeRef<'_> {
        assert!(cache == self.number, "{id:?} is a reference of another cache");
        InodeRef::new(self, id.index(), id.generation())
    }
}
