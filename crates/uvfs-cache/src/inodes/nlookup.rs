//! The lookup count of a front end's kernel (FUSE nlookup): LOOKUP raises it, and FORGET ends here.
//!
//! While the count is not zero, it owns one reference to the inode. Nothing here is locked.

use uvfs_sync::primitives::Ordering;

use super::inode_ref::InodeRef;
use crate::cache::Cache;
use crate::types::InodeId;

// For this project's own crates: see `machinery`.
#[doc(hidden)]
impl InodeRef<'_> {
    /// A front end's kernel looked this inode up `n` times more.
    pub fn add_lookups(&self, n: u64) {
        if n == 0 {
            return;
        }
        // The reference before the count. Otherwise a forget in between, of lookups that it was never told
        // of, would put a reference that does not exist yet.
        self.cache().inodes.hold_again(self.id());
        let nlookup = &self.private_half().nlookup;
        let old = nlookup.fetch_add(n, Ordering::AcqRel);
        if old.checked_add(n).is_none() {
            // No kernel counts as far: the caller is wrong. The inode is held until everything is forgotten.
            nlookup.store(u64::MAX, Ordering::Release);
        }
        if old != 0 {
            self.cache().put_inode(self.index());
        }
    }

    /// A client forgets `n` of the lookups; returns how many of them were counted.
    pub(crate) fn forget_counted_lookups(self, n: u64) -> u64 {
        let (cache, index) = (self.cache(), self.index());
        let nlookup = &self.private_half().nlookup;
        let mut old = nlookup.load(Ordering::Relaxed);
        let new = loop {
            let new = old.saturating_sub(n);
            match nlookup.compare_exchange_weak(old, new, Ordering::AcqRel, Ordering::Relaxed) {
                Ok(_) => break new,
                Err(now) => old = now,
            }
        };
        // Each step to zero returns the one reference that the step from zero took.
        let forgotten = old != 0 && new == 0;
        if forgotten {
            cache.put_inode(index);
        }
        drop(self);
        if forgotten {
            cache.limit.ease();
        }
        old - new
    }

    /// Lookups that a front end's kernel has not forgotten yet.
    pub fn lookups(&self) -> u64 {
        self.private_half().nlookup.load(Ordering::Relaxed)
    }
}

// For this project's own crates: see `machinery`.
#[doc(hidden)]
impl Cache {
    /// A client forgets `n` of the lookups that [`InodeRef::add_lookups`] counted, as with FUSE_FORGET. No
    /// name is dropped: see [`Cache::invalidate`]. Unknown ids, and more than was counted, are ignored: the
    /// client may forget what it was never told.
    pub fn forget_lookups(&self, id: InodeId, n: u64) {
        if let Some(inode) = self.get(id) {
            inode.forget_counted_lookups(n);
        }
    }
}
