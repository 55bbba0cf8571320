//! The memory limit: the front end's interface for the thread that keeps it ([`crate::limit::balance`]), and its counters.
//!
//! Everything here loads, or adds to counters of the mount; nothing waits. The mutexes are leaves.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use uvfs::{Balance, Held, Leaf, Overdraft, SbId, Vfs};

use super::Frontend;
use crate::mount::mounted::Shortages;
use crate::threads::pending::{MOMENT, Wait};
use crate::transport::NodeId;

/// For this long after the kernel was last asked to forget something, that may happen again.
const NEW: Duration = Duration::from_secs(10);

/// Counters and state of memory shortage.
#[derive(Default)]
pub(super) struct Shortage {
    /// The number of nodes that the kernel was asked to forget.
    pruned: AtomicU64,
    /// Names that the kernel was asked to look up again, for the same reason.
    invalidated: AtomicU64,
    /// Requests that had to wait for memory.
    pub(super) waited: AtomicU64,
    /// Waiting requests that got no memory.
    pub(super) refused: AtomicU64,
    /// Waiting requests that got memory beyond the limit.
    overdrawn: AtomicU64,
    /// When the invalidation now in progress began, if there is one.
    invalidating: Mutex<Option<Instant>>,
    /// Directory entries that were listed without their nodes.
    pub(super) plain: AtomicU64,
    /// When the kernel was last asked to forget something.
    last: Mutex<Option<Instant>>,
    /// How often the system reported memory pressure.
    pressed: AtomicU64,
    /// Steps of the thread that keeps the limit.
    steps: AtomicU64,
}

impl Shortage {
    /// Whether the kernel was recently asked to forget something.
    pub(super) fn is_new(&self) -> bool {
        self.last.lock().is_some_and(|last| last.elapsed() < NEW)
    }

    /// Permission to exceed the limit, if the thread that keeps it is waiting to invalidate a name. The kernel
    /// changes a directory with its lock held, and a lookup in it holds that lock until it is answered. So the two
    /// would wait for each other until the request is refused, and all other callers for both. The kernel's locks
    /// are not known here, so any waiting request goes on.
    pub(super) fn overdraw(&self, vfs: &Vfs) -> Option<Overdraft> {
        let stuck = self.invalidating.lock().is_some_and(|began| began.elapsed() >= MOMENT);
        stuck.then(|| {
            self.overdrawn.fetch_add(1, Relaxed);
            vfs.cache().overdraw()
        })
    }

    fn asked(&self) {
        *self.last.lock() = Some(Instant::now());
    }
}

impl Frontend {
    /// Whether requests wait in a directory, so that an invalidation of a name in it would wait for them. With
    /// `for_ever`, whether that may be for ever.
    pub(crate) fn is_waited_in(&self, dir: NodeId, for_ever: bool) -> bool {
        let pending = &self.core.pending;
        if for_ever { pending.for_driver(dir) == Wait::Long } else { pending.about(dir) != Wait::No }
    }

    /// The VFS that is mounted.
    pub(crate) fn vfs(&self) -> &Arc<Vfs> {
        &self.core.vfs
    }

    /// One step of the cache towards its watermarks; the kernel was asked to forget `named`.
    pub(crate) fn balance(&self, named: &[Leaf]) -> Balance {
        self.core.short.steps.fetch_add(1, Relaxed);
        self.core.vfs.cache().balance_after(named)
    }

    /// Nothing more can be evicted now.
    pub(crate) fn give_up_shrinking(&self) {
        self.core.vfs.cache().give_up_shrinking();
    }

    /// Nodes that only the kernel holds, at most `max`, from a search of some ten thousand names.
    pub(crate) fn held_by_kernel(&self, sb: SbId, max: usize) -> Held {
        self.core.vfs.cache().held_by_kernel(sb, max, 512)
    }

    /// Directory and name of a leaf that is not a directory.
    pub(crate) fn name_of(&self, leaf: &Leaf) -> Option<(NodeId, Vec<u8>)> {
        let (dir, name) = self.core.vfs.cache().name_of(leaf)?;
        Some((self.core.node_of(dir), name))
    }

    /// The system reported memory pressure, or has not for a while: this share of the limit may be used.
    pub(crate) fn lower_watermarks(&self, share: u32, pressed: bool) {
        self.core.short.pressed.fetch_add(u64::from(pressed), Relaxed);
        self.core.vfs.cache().lower_watermarks(share);
    }

    /// The kernel was asked to forget this many nodes.
    pub(crate) fn count_pruned(&self, nodes: usize) {
        self.core.short.asked();
        self.core.short.pruned.fetch_add(nodes as u64, Relaxed);
    }

    /// Invalidates a name by `write`, which may wait for a request that waits for memory.
    pub(crate) fn while_invalidating<T>(&self, write: impl FnOnce() -> T) -> T {
        *self.core.short.invalidating.lock() = Some(Instant::now());
        let done = write();
        *self.core.short.invalidating.lock() = None;
        done
    }

    /// The kernel was asked to look this many names up again.
    pub(crate) fn count_invalidated(&self, names: usize) {
        if names > 0 {
            self.core.short.asked();
        }
        self.core.short.invalidated.fetch_add(names as u64, Relaxed);
    }

    pub(crate) fn shortages(&self) -> Shortages {
        let short = &self.core.short;
        Shortages {
            pruned: short.pruned.load(Relaxed),
            invalidated: short.invalidated.load(Relaxed),
            waited: short.waited.load(Relaxed),
            refused: short.refused.load(Relaxed),
            overdrawn: short.overdrawn.load(Relaxed),
            plain: short.plain.load(Relaxed),
            pressed: short.pressed.load(Relaxed),
            steps: short.steps.load(Relaxed),
        }
    }
}
