//! The devices whose blocks count towards the limit ([`crate::buffers`]).
//!
//! A device that has joined a cache adds its committed bytes to one figure here. The figure is part of
//! [`Cache::committed`](crate::Cache::committed). The list does not keep a device alive. Its mutex is a
//! leaf. The only call under it is [`Reclaim::set_armed`], which tells a device whether to note uses and
//! takes no lock.

use std::fmt;
use std::sync::Weak;

use uvfs_sync::primitives::{AtomicBool, AtomicU64, Mutex, Ordering};

/// Memory outside the cache that counts towards its limit, and can be given up.
pub(crate) trait Reclaim: Send + Sync {
    /// Return memory to the system until `bytes` are returned; returns how many were.
    fn reclaim(&self, bytes: u64) -> u64;

    /// Note uses from now on, or no longer. Called with the list of devices locked.
    fn set_armed(&self, on: bool);
}

/// See the module's head.
#[derive(Default)]
pub(crate) struct Devices {
    bytes: AtomicU64,
    all: Mutex<Vec<Weak<dyn Reclaim>>>,
}

impl fmt::Debug for Devices {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Devices").field("bytes", &self.bytes()).finish_non_exhaustive()
    }
}

impl Devices {
    /// Bytes that all devices have committed.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    /// A device has committed `bytes` more.
    pub(crate) fn charge(&self, bytes: u64) {
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    /// A device has returned `bytes`.
    pub(crate) fn discharge(&self, bytes: u64) {
        self.bytes.fetch_sub(bytes, Ordering::Relaxed);
    }

    /// Tell all devices whether to note uses. `armed` is loaded under the lock. So of two calls of this, or
    /// of this and [`Devices::add`], the later one has the newest value.
    pub(super) fn arm(&self, armed: &AtomicBool) {
        let devices = self.all.lock();
        let all: Vec<_> = devices.iter().filter_map(Weak::upgrade).collect();
        all.iter().for_each(|device| device.set_armed(armed.load(Ordering::Relaxed)));
        // Before the devices: one of them may be kept alive only by this list.
        drop(devices);
    }

    pub(super) fn add(&self, device: Weak<dyn Reclaim>, new: &dyn Reclaim, armed: &AtomicBool) {
        let mut devices = self.all.lock();
        devices.retain(|other| other.strong_count() != 0 && !std::ptr::addr_eq(other.as_ptr(), new));
        devices.push(device);
        new.set_armed(armed.load(Ordering::Relaxed));
    }

    /// The device's bytes count elsewhere from now on.
    pub(crate) fn remove(&self, device: &dyn Reclaim) {
        self.all.lock().retain(|other| !std::ptr::addr_eq(other.as_ptr(), device));
    }

    /// Make devices return memory to the system until `bytes` are returned; returns how many were.
    pub(super) fn reclaim(&self, bytes: u64) -> u64 {
        let mut given = 0;
        let all: Vec<_> = self.all.lock().iter().filter_map(Weak::upgrade).collect();
        for device in all {
            if given >= bytes {
                break;
            }
            given += device.reclaim(bytes - given);
        }
        given
    }
}
