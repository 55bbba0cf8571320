//! The buffers' share of the cache's memory limit.
//!
//! A device that has joined a cache adds its committed bytes to a figure of the cache ([`Devices`]), which
//! is part of [`Cache::committed`], and asks before it takes more. If the limit forbids more, the device
//! evicts a block of its own. While buffers have less than an eighth of the limit, names are evicted
//! instead (`Cache::names_give`). Names that need room take it from buffers while these have more than a
//! quarter (`Limit::buffers_give`). In between, each side evicts its own.
//!
//! A device does not keep its cache alive: the cache may contain a file system that reads through the
//! device. A device's mutex protects its [`Account`]. A thread that may drop the last reference to a cache
//! does so without that mutex, because the end of a cache calls other code.

use std::sync::{Arc, Weak};

use crate::cache::Cache;
use crate::limit::devices::Devices;

/// The part of a cache that a device needs to stay within the limit. It keeps the cache alive: a thread drops it without
/// the device's mutex.
pub(super) struct Budget(Arc<Cache>);

impl Budget {
    /// Whether `bytes` more may be committed.
    pub(super) fn may_grow(&self, bytes: u64) -> bool {
        self.0.may_grow(bytes)
    }

    /// Evict names to make room for `bytes` of blocks; returns whether that succeeded.
    pub(super) fn names_give(&self, bytes: u64) -> bool {
        self.0.names_give(bytes)
    }

    /// Whether more is committed than allowed.
    pub(super) fn is_over(&self) -> bool {
        self.0.is_over()
    }

    /// Whether buffers have so little that names should give way.
    pub(super) fn buffers_have_little(&self) -> bool {
        self.0.limit.buffers_have_little()
    }
}

/// A device's account. Protected by the device's mutex.
#[derive(Debug, Default)]
pub(super) struct Account {
    /// The cache whose limit counts; if none, no limit applies.
    cache: Weak<Cache>,
    devices: Option<Arc<Devices>>,
    bytes: u64,
}

impl Account {
    /// Bytes that the device has committed.
    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// The cache whose limit counts, if it still exists.
    pub(super) fn budget(&self) -> Option<Budget> {
        self.cache.upgrade().map(Budget)
    }

    /// Count the bytes towards the limit of `cache` from now on, and no other; returns the list in which
    /// the device stood before.
    pub(super) fn join(&mut self, cache: &Arc<Cache>) -> Option<Arc<Devices>> {
        let bytes = self.bytes;
        self.sub(bytes);
        let before = self.devices.replace(cache.limit.devices().clone());
        self.cache = Arc::downgrade(cache);
        self.add(bytes);
        before
    }

    pub(super) fn add(&mut self, bytes: u64) {
        self.bytes += bytes;
        if let Some(devices) = &self.devices {
            devices.charge(bytes);
        }
    }

    pub(super) fn sub(&mut self, bytes: u64) {
        self.bytes -= bytes;
        if let Some(devices) = &self.devices {
            devices.discharge(bytes);
        }
    }
}

impl Drop for Account {
    fn drop(&mut self) {
        self.sub(self.bytes);
    }
}
