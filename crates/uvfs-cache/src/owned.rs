//! A reference to an inode without a borrow of the cache, for tables that stand beside it: open files, mounts.
//!
//! An [`InodeId`] says which inode, and anybody may make one of a number; so no reference is given back by it. An
//! [`OwnedId`] *is* a reference: it comes of an [`InodeRef`], is not copied, and goes when it is adopted. Each bears the
//! number of its cache, and no other cache takes it. So safe code may lose a reference, which keeps the inode for good, but
//! cannot give one back that it does not have. Costs a comparison; nothing is locked, no count is touched.

use std::fmt;
use std::mem::ManuallyDrop;
use std::ops::Deref;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::cache::Cache;
use crate::inode_ref::InodeRef;
use crate::types::InodeId;

/// The number of a cache, which no other one of this process has; 0 is none's.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct CacheNumber(u64);

impl CacheNumber {
    pub(crate) fn next() -> Self {
        static LAST: AtomicU64 = AtomicU64::new(0);
        Self(LAST.fetch_add(1, Ordering::Relaxed) + 1)
    }
}

/// One reference, made by [`InodeRef::into_owned`] and taken back by [`Cache::adopt`]. Dropped, it keeps its inode for good.
///
/// An id is none, and each is adopted once:
///
/// ```compile_fail,E0308
/// fn by_id(cache: &uvfs_cache::Cache, id: uvfs_cache::InodeId) {
///     drop(cache.adopt(id));
/// }
/// ```
/// ```compile_fail,E0382
/// fn twice(cache: &uvfs_cache::Cache, owned: uvfs_cache::OwnedId) {
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
    /// Which inode.
    pub fn id(&self) -> InodeId {
        self.id
    }
}

/// No reference: what is left where one was taken out. No cache adopts it.
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

/// The inode of an [`OwnedId`], which stays its owner's.
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

impl InodeRef<'_> {
    /// Give the reference up without dropping it; [`Cache::adopt`] takes it back.
    pub fn into_owned(self) -> OwnedId {
        let cache = self.cache().number;
        OwnedId { id: self.into_id(), cache }
    }
}

impl Cache {
    /// Take back a reference that [`InodeRef::into_owned`] gave up.
    ///
    /// # Panics
    /// It is another cache's, or none ([`OwnedId::default`]).
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
