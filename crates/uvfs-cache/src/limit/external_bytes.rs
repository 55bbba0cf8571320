//! Memory that drivers keep outside the cache for each cached inode, counted towards the limit.
//!
//! A driver that must know more of an inode than fits into its 64 bits keeps memory of its own. That memory
//! grows and shrinks with the cache, because the driver frees it when
//! [`SbOptions::on_evict`](crate::machinery::SbOptions::on_evict) is called. The driver reports its bytes here. They
//! are part of [`Cache::committed`](crate::Cache::committed), so fewer names are kept if drivers keep more
//! for each. A driver may add without asking: to make room for the next name, the cache frees more than one
//! name's external bytes.
//!
//! One figure per cache; nothing is locked.

use uvfs_sync::primitives::{AtomicU64, Ordering};

/// See the module's head.
#[derive(Debug, Default)]
pub struct ExternalBytes(AtomicU64);

impl ExternalBytes {
    /// Add `bytes`.
    pub fn add(&self, bytes: u64) {
        self.0.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Subtract `bytes`, which were added before. If more is subtracted than was added, the figure is 0.
    pub fn sub(&self, bytes: u64) {
        self.0.fetch_sub(bytes, Ordering::Relaxed);
    }

    /// Bytes now.
    pub fn bytes(&self) -> u64 {
        self.0.load(Ordering::Relaxed).cast_signed().max(0).cast_unsigned()
    }
}
