//! What buffers take of the cache's memory limit.
//!
//! A device that has joined a cache adds what it commits to a figure of the cache's ([`Registry`]), which is part of
//! [`Cache::committed`], and asks before it takes more. Where the limit stands in the way it evicts a block of its own, or names
//! give way while buffers have less than an eighth of the limit (`Cache::names_give`). Names that need room take
//! it from buffers while these have more than a quarter ([`Cache::buffers_give`]). In between both help themselves.
//!
//! A device does not keep its cache alive: who reads through it may be what the cache is of. An [`Account`] is protected by its
//! device's mutex. Who may be the last one to let go of a cache does so without that mutex: the cache's end calls others.

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

    /// Tell all devices whether uses are to be noted, which `armed` says: it is looked at under the lock, so that
    /// of two who tell, or who tells and who joins, the later one has the newest answer.
    pub(crate) fn arm(&self, armed: &AtomicBool) {
        let devices = self.devices.lock();
        let all: Vec<_> = devices.iter().filter_map(Weak::upgrade).collect();
        all.iter().for_each(|device| device.set_armed(armed.load(Ordering::Relaxed)));
        // Before the devices: one of them may be gone but for this.
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

    /// What buffers have beyond a quarter of the limit, which is a name's whenever it needs it.
    pub(crate) fn buffers_beyond_share(&self) -> u64 {
        self.buffers.bytes().saturating_sub(self.ceiling() / 4)
    }

    /// Whether buffers have so little that names should give way.
    pub(super) fn buffers_have_little(&self) -> bool {
        self.buffers.bytes() < self.ceiling() / 8
    }

    /// Whether more is committed than may be: nodes of a device's tree are not asked for beforehand.
    pub(super) fn is_over(&self) -> bool {
        let limit = self.ceiling();
        limit != 0 && self.committed() > limit
    }

    /// Who needs room for names asks buffers first.
    pub(crate) fn buffers_have_much(&self) -> bool {
        self.buffers_beyond_share() != 0
    }
}

/// A device's account. Protected by the device's mutex.
#[derive(Debug, Default)]
pub(super) struct Account {
    /// Where it counts; nowhere: nothing limits it.
    cache: Weak<Cache>,
    registry: Option<Arc<Registry>>,
    bytes: u64,
}

impl Account {
    /// Bytes that the device has committed.
    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// The cache whose limit holds, if it is still there.
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
    /// Have what this device commits count in the limit of a cache from now on, and in that of no other. The device does not keep the cache alive: when
    /// that is gone, nothing limits the device but its slots.
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
        // Under the mutex: of two caches the last one is also the one that knows of it.
        cache.buffers.add(self, &cache.armed);
        drop(state);
        cache.arm();
        if cache.is_over() {
            cache.pressure.rise();
        }
    }
}
