//! The embedder's data of each inode: stored with it, shared while it is held, dropped once.
//!
//! Every inode of a [`NodeCache`](super::NodeCache) has a value of the type `T`. It stands in a slot of its own
//! ([`SideData`]), and the inode's `private` word has the slot's index. This is the only file that makes an
//! inode of such a cache, so each index comes from [`Vacant::fill`] and belongs to one inode.
//!
//! **Dropped once.** The superblock's hook takes the value out. The cache calls it once for each inode that
//! has begun, after the last reference, and before the inode's slot is free. An answer about a number that is
//! cached already leaves its value with nobody; [`Data::settle`] sees that by the index, and takes it back.
//! If the holder's put comes first, its uses of the value come before the hook (the put releases, the last one
//! acquires). If the end comes first, no reference can be had, so nobody looks.
//!
//! `T`'s drop may run with name locks held, and must wait for nobody. A value without bytes costs nothing.
#![allow(
    unsafe_code,
    reason = "the embedder's values are shared by the counts of their inodes, see the head"
)]

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use uvfs_sync::side_data::{SideData, Vacant};

use super::node_handles::{NodeRef, OwnedNode};
use crate::cache::Cache;
use crate::coherence::late_attributes::Asked;
use crate::inodes::attr::Attr;
use crate::inodes::inode_ref::InodeRef;
use crate::limit::external_bytes::ExternalBytes;
use crate::limit::limit_state::SideMemory;
use crate::lookup::ticket::NameGuard;
use crate::names::reservation::Reserved;
use crate::types::{CacheError, EvictHook, Fresh, SbId, Ttl};

impl<T: Send + Sync> SideMemory for SideData<T> {
    fn committed(&self) -> u64 {
        self.bytes()
    }

    fn trim(&self) {
        SideData::trim(self);
    }
}

/// The heap that the values own: an estimate of each, and the cache's count of it.
#[derive(Clone)]
struct Owned {
    all: Arc<ExternalBytes>,
    each: u64,
}

impl Owned {
    /// A value was made.
    fn begin(&self) {
        if self.each != 0 {
            self.all.add(self.each);
        }
    }

    /// Drop a value that had begun. A panic of its drop (the panic hook has reported it) must not unwind through an
    /// eviction, which would leave slots and references behind.
    fn end<T>(&self, value: T) {
        let _ = catch_unwind(AssertUnwindSafe(|| drop(value)));
        if self.each != 0 {
            self.all.sub(self.each);
        }
    }
}

/// All values of a cache.
pub(super) struct Data<T> {
    side: Arc<SideData<T>>,
    /// Tells values without bytes apart: all of them have one index.
    next: AtomicU32,
    owned: Owned,
}

impl<T: Send + Sync + 'static> Data<T> {
    /// Space for so many values.
    pub(super) fn reserve(capacity: u32) -> std::io::Result<SideData<T>> {
        SideData::reserve(capacity)
    }

    /// Each value owns `each` bytes on the heap, which are counted in `all`.
    pub(super) fn new(side: SideData<T>, all: Arc<ExternalBytes>, each: u64) -> Self {
        Self { side: Arc::new(side), next: AtomicU32::new(0), owned: Owned { all, each } }
    }

    /// For the cache's limit.
    pub(super) fn memory(&self) -> Arc<dyn SideMemory> {
        self.side.clone()
    }

    /// The hook of every superblock: the inode has ended.
    pub(super) fn hook(&self) -> EvictHook {
        let (side, owned) = (self.side.clone(), self.owned.clone());
        // SAFETY: `value` is the `private` word of an inode of this cache, so its index was filled for that
        // inode. The hook is called once for it, after its last reference was put; see the module's head.
        Box::new(move |_, value| owned.end(unsafe { side.take(value as u32) }))
    }

    /// Room for a value, within the limit.
    pub(super) fn room(&self, cache: &Cache, sb: SbId) -> Result<Vacant<T>, CacheError> {
        cache.with_room(sb, || self.side.room(&|| cache.may_grow(SideData::<T>::chunk_bytes())))
    }

    /// An answer with a value for the inode that it may make.
    fn fresh(&self, attr: Attr, ttl: Ttl, room: Vacant<T>, value: T) -> Fresh {
        let nonce = if size_of::<T>() == 0 && std::mem::needs_drop::<T>() {
            self.next.fetch_add(1, Ordering::Relaxed)
        } else {
            0
        };
        self.owned.begin();
        Fresh { attr, private: u64::from(nonce) << 32 | u64::from(room.fill(value)), ttl }
    }

    /// The answer was given. Unless `inode` took the value, it is dropped. (If the cache panics before this
    /// call, the value is lost, and never dropped twice.)
    fn settle(&self, fresh: &Fresh, inode: Option<&InodeRef<'_>>) {
        if inode.is_none_or(|inode| inode.private() != fresh.private) {
            // SAFETY: filled by `fresh`, which is called once for each answer. No inode has this index, so
            // neither the hook nor `of` uses it.
            self.owned.end(unsafe { self.side.take(fresh.private as u32) });
        }
    }

    /// [`Cache::make_root`].
    pub(super) fn make_root<'c>(
        &self,
        cache: &'c Cache,
        sb: SbId,
        (attr, ttl): (Attr, Ttl),
        value: T,
    ) -> Result<InodeRef<'c>, CacheError> {
        let fresh = self.fresh(attr, ttl, self.room(cache, sb)?, value);
        let root = cache.make_root(sb, &fresh);
        self.settle(&fresh, root.as_ref().ok());
        root
    }

    /// The inode that an answer describes, known or new; `value` is called only if it is not known. Also returns
    /// whether the answer's attributes are current. See [`Cache::iget`].
    pub(super) fn known_or_new<'c>(
        &self,
        cache: &'c Cache,
        (sb, asked): (SbId, Asked),
        is_late: impl Fn() -> bool,
        (attr, ttl): (&Attr, Ttl),
        value: impl FnOnce() -> T,
    ) -> Result<(InodeRef<'c>, bool), CacheError> {
        if let Some(inode) = cache.ilookup(sb, attr.ino, attr.fmt()) {
            let current = !is_late() && inode.refresh_unless_late(asked, attr, ttl);
            return Ok((inode, current));
        }
        let fresh = self.fresh(*attr, ttl, self.room(cache, sb)?, value());
        let got = cache.known_or_new(sb, asked, is_late, &fresh);
        self.settle(&fresh, got.as_ref().ok().map(|(inode, _)| inode));
        got
    }

    /// [`NameGuard::create`] of an inode with a number of its own.
    pub(super) fn create<'c>(
        &self,
        guard: &NameGuard<'c>,
        room: Reserved<'c>,
        (attr, attr_ttl, name_ttl): (Attr, Ttl, Ttl),
        vacant: Vacant<T>,
        value: T,
    ) -> InodeRef<'c> {
        let fresh = self.fresh(attr, attr_ttl, vacant, value);
        let inode = guard.create_trusted(room, &fresh, name_ttl);
        self.settle(&fresh, Some(&inode));
        inode
    }
}

impl<T: Send + Sync + 'static> OwnedNode<T> {
    /// The embedder's data.
    pub fn data(&self) -> &T {
        // SAFETY: a node's inode is of its own cache, so it was made in this file, and its word has the index of
        // a filled slot (the load acquires). The node holds it while it is borrowed, so the hook is not called.
        unsafe { self.shared.data.side.get(self.view().private() as u32) }
    }
}

impl<T: Send + Sync + 'static> NodeRef<'_, T> {
    /// The embedder's data.
    pub fn data(&self) -> &T {
        debug_assert!(self.shared.cache.owns(&self.inode));
        // SAFETY: as above: a reference is made from its cache's own inode only (`NodeCache::borrow`, `child`).
        unsafe { self.shared.data.side.get(self.inode.private() as u32) }
    }
}
