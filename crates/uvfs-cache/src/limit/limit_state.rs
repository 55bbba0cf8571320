//! The limit on a cache's memory: its figures, and the part of it that others may use.
//!
//! This file holds the state of the limit and does not depend on `Cache`: callers pass the committed bytes.
//! The locks here are the eviction lock, the list of devices, and the leaves of [`Pressure`]. All figures
//! outside them are atomics. A figure may be out of date when it is used; the result is a step too many or
//! too few.

use std::sync::{Arc, OnceLock, Weak};

use crossbeam_utils::CachePadded;
use uvfs_sync::lock_order::{Class, Ordered};
use uvfs_sync::primitives::{AtomicBool, AtomicU32, AtomicU64, Ordering, SHARDS, Statistic, shard};

use super::devices::{Devices, Reclaim};
use super::external_bytes::ExternalBytes;
use super::memory_waiters::Pressure;

/// The whole limit, in the units of `Cache::lower_watermarks`.
const WHOLE: u32 = 16;
/// No goal.
pub(super) const NONE: u64 = u64::MAX;

/// The state of the watermarks ([`crate::limit::watermarks`]).
#[derive(Debug)]
pub(crate) struct Watermarks {
    /// Sixteenths of the limit that may be used now.
    pub(super) share: AtomicU32,
    /// Bytes to come down to once; [`NONE`] without a goal.
    pub(super) goal: AtomicU64,
    /// The superblock that was last short.
    pub(super) short: AtomicU32,
    /// Names evicted by `Cache::balance`.
    pub(super) ahead: Statistic,
    /// Pieces searched since a name last went.
    pub(super) barren: AtomicU64,
}

impl Default for Watermarks {
    fn default() -> Self {
        let (share, goal) = (AtomicU32::new(WHOLE), AtomicU64::new(NONE));
        Self { share, goal, short: AtomicU32::new(0), ahead: Statistic::new(), barren: AtomicU64::new(0) }
    }
}

/// See the module's head.
pub(crate) struct Limit {
    /// The configured limit in bytes; 0: none.
    bytes: AtomicU64,
    /// Whether uses of names are noted.
    armed: AtomicBool,
    /// Held by the thread that empties chunks. Of the cache's locks only name locks and the rename mutex
    /// come before it.
    eviction: Ordered<(), { Class::Eviction as u8 }>,
    /// Names evicted so far, by the threads of each shard. Not in a line with the fields above: each hit and each
    /// miss loads those.
    evictions: [CachePadded<Statistic>; SHARDS],
    /// Inodes that a kernel has forgotten.
    forgets: Statistic,
    pub(super) pressure: Pressure,
    pub(super) watermarks: Watermarks,
    /// Devices whose blocks count towards the limit too.
    devices: Arc<Devices>,
    /// Memory that drivers keep besides.
    external: Arc<ExternalBytes>,
    /// The embedder's data of each inode, if it has any.
    side: OnceLock<Arc<dyn SideMemory>>,
}

/// Memory beside the inodes, counted in chunks as theirs is.
pub(crate) trait SideMemory: Send + Sync {
    /// Bytes committed.
    fn committed(&self) -> u64;

    /// Return chunks without a value to the system.
    fn trim(&self);
}

impl Limit {
    pub(crate) fn new(bytes: u64) -> Self {
        Self {
            bytes: AtomicU64::new(bytes),
            armed: AtomicBool::new(false),
            eviction: Ordered::new(()),
            evictions: std::array::from_fn(|_| CachePadded::new(Statistic::new())),
            forgets: Statistic::new(),
            pressure: Pressure::default(),
            watermarks: Watermarks::default(),
            devices: Arc::default(),
            external: Arc::default(),
            side: OnceLock::new(),
        }
    }

    /// The configured limit; 0: none.
    #[inline]
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    pub(super) fn set(&self, bytes: u64) {
        self.bytes.store(bytes, Ordering::Relaxed);
    }

    /// The limit in force: the configured one, or less while the watermarks are lowered; 0: none.
    pub(crate) fn ceiling(&self) -> u64 {
        match self.bytes() {
            0 => 0,
            // Never 0, however small the limit: 0 would mean no limit.
            limit => {
                (limit / u64::from(WHOLE) * u64::from(self.watermarks.share.load(Ordering::Relaxed))).max(1)
            }
        }
    }

    /// Use only this many sixteenths of the limit, at least 1.
    pub(super) fn lower(&self, sixteenths: u32) {
        self.watermarks.share.store(sixteenths.clamp(1, WHOLE), Ordering::Relaxed);
    }

    /// Whether uses of names are noted. A hit loads this; nobody writes it while memory is no concern.
    #[inline(always)]
    pub(crate) fn is_armed(&self) -> bool {
        self.armed.load(Ordering::Relaxed)
    }

    /// Note uses from three quarters of the limit on, so that something is known when the limit is reached.
    pub(super) fn arm(&self, committed: impl FnOnce() -> u64) {
        let limit = self.ceiling();
        let armed = limit != 0 && committed() > limit / 4 * 3;
        if self.armed.load(Ordering::Relaxed) != armed {
            self.armed.store(armed, Ordering::Relaxed);
            self.devices.arm(&self.armed);
        }
    }

    /// Take the eviction lock.
    pub(crate) fn lock_eviction(&self) -> impl Sized {
        self.eviction.lock()
    }

    /// Names evicted so far.
    pub(crate) fn evicted(&self) -> u64 {
        self.evictions.iter().fold(0, |sum, shard| sum.wrapping_add(shard.get()))
    }

    /// A name was evicted.
    pub(super) fn count_eviction(&self) {
        self.evictions[shard()].add(1);
    }

    /// An inode has gone, so a search for something to evict may succeed again.
    pub(crate) fn not_barren(&self) {
        self.pressure.not_barren();
    }

    /// A kernel has forgotten something that it had kept in the cache.
    pub(crate) fn ease(&self) {
        self.forgets.add(1);
        self.pressure.ease();
    }

    /// How often that happened.
    pub(super) fn forgets(&self) -> u64 {
        self.forgets.get()
    }

    /// The figure of external bytes.
    pub(crate) fn external(&self) -> &Arc<ExternalBytes> {
        &self.external
    }

    /// Count the embedder's data; called once, before there is any.
    pub(crate) fn set_side(&self, side: Arc<dyn SideMemory>) {
        let unset = self.side.set(side).is_ok();
        debug_assert!(unset, "a cache has one kind of side data");
    }

    /// The embedder's data of the inodes.
    pub(crate) fn side(&self) -> Option<&dyn SideMemory> {
        self.side.get().map(|side| &**side)
    }

    /// The figure of the devices' bytes.
    pub(crate) fn devices(&self) -> &Arc<Devices> {
        &self.devices
    }

    /// List a device.
    pub(crate) fn add_device(&self, device: Weak<dyn Reclaim>, new: &dyn Reclaim) {
        self.devices.add(device, new, &self.armed);
    }

    /// Make buffers return memory to the system until `bytes` are returned; returns how many were.
    /// O(blocks).
    pub(super) fn buffers_give(&self, bytes: u64) -> u64 {
        self.devices.reclaim(bytes)
    }

    /// Bytes of buffers beyond a quarter of the limit; names may take them whenever they need them.
    pub(super) fn buffers_beyond_share(&self) -> u64 {
        self.devices.bytes().saturating_sub(self.ceiling() / 4)
    }

    /// Whether a thread that needs room for names asks buffers first.
    pub(super) fn buffers_have_much(&self) -> bool {
        self.buffers_beyond_share() != 0
    }

    /// Whether buffers have so little that names should give way.
    pub(crate) fn buffers_have_little(&self) -> bool {
        self.devices.bytes() < self.ceiling() / 8
    }
}
