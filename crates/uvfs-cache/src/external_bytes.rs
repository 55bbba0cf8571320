//! What drivers keep outside of the cache for each inode in it, counted in the cache's limit.
//!
//! A driver that has more to know of an inode than fits into its 64 bits has memory of its own, which grows and shrinks with
//! what is cached: it goes when [`SbOptions::on_evict`](crate::SbOptions::on_evict) says so. It says here how many bytes these are;
//! they are part of [`Cache::committed`], so that fewer names are kept where more is kept beside them. Nobody asks before he adds:
//! what comes with one name is less than what makes room for the next.
//!
//! One figure for a cache; nothing is locked.

use std::sync::Arc;

use uvfs_sync::primitives::{AtomicU64, Ordering};

use crate::cache::Cache;

/// See the module's head.
#[derive(Debug, Default)]
pub struct ExternalBytes(AtomicU64);

impl ExternalBytes {
    /// So many bytes more.
    pub fn add(&self, bytes: u64) {
        self.0.fetch_add(bytes, Ordering::Relaxed);
    }

    /// So many bytes less, which were added before: what is taken away and was not would make the figure immense, and the cache
    /// empty.
    pub fn sub(&self, bytes: u64) {
        self.0.fetch_sub(bytes, Ordering::Relaxed);
    }

    /// Bytes now.
    pub fn bytes(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

impl Cache {
    /// The figure of what is kept beside this cache. It may be kept longer than the cache.
    pub fn external_bytes(&self) -> Arc<ExternalBytes> {
        Arc::clone(&self.external)
    }
}
