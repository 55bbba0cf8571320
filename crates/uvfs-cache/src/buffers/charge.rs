//! The buffers' share of the cache's memory limit.
//!
//! A device that has joined a cache adds its committed bytes to a figure of the cache ([`Registry`]), which
//! is part of [`Cache::committed`], and asks before it takes more. If the limit forbids more, the device
//! evicts a block of its own. While buffers have less than an eighth of the limit, names are evicted
//! instead (`Cache::names_give`). Names that need room take it from buffers while these have more than a
//! quarter ([`Cache::buffers_give`]). In between, each side evicts its own.
//!
//! A device does not keep its cache alive: the cache may contain a file system that reads through the
//! device. A device's mutex protects its [`Account`]. A thread that may drop the last reference to a cache
//! does so without that mutex, because the end of a cache calls other code.

use std::sync::{Arc, Weak};

use uvfs_sync::primitives::{AtomicBool, AtomicU64, Mutex, Ordering};

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

    /// Tell all devices whether to note uses. `armed` is loaded under the lock. So of two calls of this, or
    /// of this and a join, the later one has the newest value.
    pub(crate) fn arm(&self, armed: &AtomicBool) {
        let devices = self.devices.lock();
        let all: Vec<_> = devices.iter().filter_map(Weak::upgrade).collect();
        all.iter().for_each(|device| device.set_armed(armed.load(Ordering::Relaxed)));
        // Before the devices: one of them may be kept alive only by this list.
        drop(devices);
    }

    fn add(&self, device: &Arc<Device>, armed: &AtomicBool) {
        let mut devices = self.devices.lock();
        devices.retain(|other| other.strong_count() != 0 && other.as_ptr() != Arc::as_ptr(device));
        devices.push(Arc::downgrade(device));
        device.set_armed(armed.load(Ordering::Relaxed));
    }

    fn remove(&self, device: &Device) {
        self.devices.lock().retain(|other| !std::ptr::eq(other.as_ptr(), device));
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

    /// Make buffers return memory to the system until `bytes` are returned; returns how many were.
    /// O(blocks).
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

    /// Bytes of buffers beyond a quarter of the limit; names may take them whenever they need them.
    pub(crate) fn buffers_beyond_share(&self) -> u64 {
        self.buffers.bytes().saturating_sub(self.ceiling() / 4)
    }

    /// Whether buffers have so little that names should give way.
    pub(super) fn buffers_have_little(&self) -> bool {
        self.buffers.bytes() < self.ceiling() / 8
    }

    /// Whether more is committed than allowed: nodes of a device's tree grow without asking.
    pub(super) fn is_over(&self) -> bool {
        let limit = self.ceiling();
        limit != 0 && self.committed() > limit
    }

    /// Whether a thread that needs room for names asks buffers first.
    pub(crate) fn buffers_have_much(&self) -> bool {
        self.buffers_beyond_share() != 0
    }
}

/// A device's account. Protected by the device's mutex.
#[derive(Debug, Default)]
pub(super) struct Account {
    /// The cache whose limit counts; if none, no limit applies.
    cache: Weak<Cache>,
    registry: Option<Arc<Registry>>,
    bytes: u64,
}

impl Account {
    /// Bytes that the device has committed.
    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// The cache whose limit counts, if it still exists.
    pub(super) fn cache(&self) -> Option<Arc<Cache>> {
        self.cache.upgrade()
    }

    pub(super) fn add(&mut self, bytes: u64) {
        self.bytes += bytes;
        if let Some(registry) = &self.registry {
            registry.bytes.fetch_add(bytes, Ordering::Relaxed);
        }
    }

    pub(super) fn sub(&mut self, bytes: u64) {
        self.bytes -= bytes;
        if let Some(registry) = &self.registry {
            registry.bytes.fetch_sub(bytes, Ordering::Relaxed);
        }
    }
}

impl Drop for Account {
    fn drop(&mut self) {
        self.sub(self.bytes);
    }
}

impl Device {
    /// From now on this device's committed bytes count towards the limit of `cache`, and of no other. The
    /// device does not keep the cache alive. Once the cache is gone, only the number of slots limits the
    /// device.
    pub fn join(self: &Arc<Self>, cache: &Arc<Cache>) {
        let mut state = self.state.lock();
        let account = &mut state.account;
        let bytes = account.bytes;
        account.sub(bytes);
        let before = account.registry.replace(cache.buffers.clone());
        account.cache = Arc::downgrade(cache);
        account.add(bytes);
        if let Some(before) = before {
            before.remove(self);
        }
        // Under the mutex: if two caches race, the one that the device joined last is also the one that
        // lists it.
        cache.buffers.add(self, &cache.armed);
        drop(state);
        cache.arm();
        if cache.is_over() {
            cache.pressure.rise();
        }
    }
}
