//! What buffers take of the cache's memory limit.
//!
//! A device adds what it commits to a figure of the cache's ([`Registry`]), which is part of [`Cache::committed`], and
//! asks before it takes more. Where the limit stands in the way it evicts a block of its own, or names
//! give way while buffers have less than an eighth of the limit ([`Charge::ask_names`]). Names that need room take
//! it from buffers while these have more than a quarter ([`Cache::buffers_give`]). In between both help themselves.

use std::sync::{Arc, Weak};

use uvfs_sync::primitives::{AtomicU64, Mutex, Ordering};

use super::Device;
use crate::cache::Cache;

/// The devices of a cache.
#[derive(Debug, Default)]
pub(crate) struct Registry {
    bytes: AtomicU64,
    /// A leaf: nothing is taken, or called, while it is held.
    devices: Mutex<Vec<Weak<Device>>>,
}

impl Registry {
    /// Bytes that all devices have committed.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    pub(super) fn add(&self, device: &Arc<Device>) {
        let mut devices = self.devices.lock();
        devices.retain(|device| device.strong_count() != 0);
        devices.push(Arc::downgrade(device));
    }

    fn all(&self) -> Vec<Arc<Device>> {
        self.devices.lock().iter().filter_map(Weak::upgrade).collect()
    }
}

impl Cache {
    /// Bytes of the limit that block buffers have committed.
    pub fn buffer_bytes(&self) -> u64 {
        self.buffers.bytes()
    }

    /// Buffers give memory back to the system until so many bytes are; how many it became. O(blocks).
    pub(crate) fn buffers_give(&self, bytes: u64) -> u64 {
        let mut given = 0;
        for device in self.buffers.all() {
            if given >= bytes {
                break;
            }
            given += device.give(bytes - given);
        }
        given
    }

    /// Buffers have more than their share: who needs room for names asks them first.
    pub(crate) fn buffers_have_much(&self) -> bool {
        self.buffers.bytes() > self.ceiling() / 4
    }
}

/// A device's account.
#[derive(Debug)]
pub(super) struct Charge {
    /// None: nothing limits it.
    cache: Option<Arc<Cache>>,
    bytes: AtomicU64,
}

impl Charge {
    pub(super) fn new(cache: Option<Arc<Cache>>) -> Self {
        Self { cache, bytes: AtomicU64::new(0) }
    }

    /// Bytes that the device has committed.
    pub(super) fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    /// Whether so many more may be. Loads only.
    pub(super) fn may_grow(&self, bytes: u64) -> bool {
        self.cache.as_ref().is_none_or(|cache| cache.may_grow(bytes))
    }

    /// Whether more is committed than may be: the tree's nodes are not asked for beforehand.
    pub(super) fn is_over(&self) -> bool {
        self.cache.as_ref().is_some_and(|cache| {
            let limit = cache.ceiling();
            limit != 0 && cache.committed() > limit
        })
    }

    pub(super) fn add(&self, bytes: u64) {
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
        if let Some(cache) = &self.cache {
            cache.buffers.bytes.fetch_add(bytes, Ordering::Relaxed);
        }
    }

    pub(super) fn sub(&self, bytes: u64) {
        self.bytes.fetch_sub(bytes, Ordering::Relaxed);
        if let Some(cache) = &self.cache {
            cache.buffers.bytes.fetch_sub(bytes, Ordering::Relaxed);
        }
    }

    /// Whether uses are to be noted, because memory runs short.
    #[inline]
    pub(super) fn is_armed(&self) -> bool {
        self.cache.as_ref().is_some_and(|cache| cache.armed.load(Ordering::Relaxed))
    }

    /// Have names make room for so many bytes; whether they did. The caller holds no lock.
    pub(super) fn ask_names(&self, bytes: u64) -> bool {
        self.cache.as_ref().is_some_and(|cache| cache.names_give(bytes))
    }

    /// Whether buffers have so little that names should give way.
    pub(super) fn has_little(&self) -> bool {
        self.cache.as_ref().is_some_and(|cache| cache.buffers.bytes() < cache.ceiling() / 8)
    }
}

impl Drop for Charge {
    fn drop(&mut self) {
        self.sub(self.bytes());
    }
}
