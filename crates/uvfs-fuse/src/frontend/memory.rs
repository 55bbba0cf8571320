//! The memory limit, as the thread that keeps it sees the front end ([`crate::balance`]), and what is counted of it.
//!
//! All of it loads, or adds to figures of the mount; nothing waits. The mutex is a leaf.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use uvfs::{Balance, Held, Leaf, Overdraft, SbId, Vfs};

use super::Frontend;
use crate::mounted::Shortages;
use crate::pending::{MOMENT, Wait};
use crate::transport::NodeId;

/// For how long after the kernel was last made to forget something it may be again.
const NEW: Duration = Duration::from_secs(10);

/// What was done where the cache had no memory.
#[derive(Default)]
pub(super) struct Shortage {
    /// Nodes that the kernel was asked to forget.
    pruned: AtomicU64,
    /// Names that the kernel was told to look up again, for the same reason.
    invalidated: AtomicU64,
    /// Requests that had to wait for memory.
    pub(super) waited: AtomicU64,
    /// Those of them that got none.
    pub(super) refused: AtomicU64,
    /// Those of them that got some beyond the limit.
    overdrawn: AtomicU64,
    /// When a name began to be invalidated that is not yet, if one is.
    invalidating: Mutex<Option<Instant>>,
    /// Entries of directories that were listed without their nodes.
    pub(super) plain: AtomicU64,
    /// When the kernel was last asked to forget something.
    last: Mutex<Option<Instant>>,
    /// Times that the system said that it is short of memory.
    pressed: AtomicU64,
    /// Steps of the thread that keeps the limit.
    steps: AtomicU64,
}

impl Shortage {
    /// Whether the kernel has been made to forget something of late.
    pub(super) fn is_new(&self) -> bool {
        self.last.lock().is_some_and(|last| last.elapsed() < NEW)
    }

    /// Leave to go beyond the limit, where the thread that keeps it waits to invalidate a name. The kernel changes a directory with its
    /// lock held, and who looks for a name there has that until he is answered: so each would wait for the other until he is refused,
    /// and everybody else for both. The kernel's locks are not known here, so whoever waits goes on.
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
    /// Whether requests wait in a directory, so that who invalidates a name of it would wait for them; with
    /// `for_ever`, whether that may be for ever.
    pub(crate) fn is_waited_in(&self, dir: NodeId, for_ever: bool) -> bool {
        let pending = &self.core.pending;
        if for_ever { pending.for_driver(dir) == Wait::Long } else { pending.about(dir) != Wait::No }
    }

    /// What is shown.
    pub(crate) fn vfs(&self) -> &Arc<Vfs> {
        &self.core.vfs
    }

    /// One step of the cache towards its watermarks; the kernel was asked to forget `named`.
    pub(crate) fn balance(&self, named: &[Leaf]) -> Balance {
        self.core.short.steps.fetch_add(1, Relaxed);
        self.core.vfs.cache().balance_after(named)
    }

    /// Nothing more can go now.
    pub(crate) fn give_up_shrinking(&self) {
        self.core.vfs.cache().give_up_shrinking();
    }

    /// Nodes that only the kernel holds, up to `max` of them, among some tens of thousands of names.
    pub(crate) fn held_by_kernel(&self, sb: SbId, max: usize) -> Held {
        self.core.vfs.cache().held_by_kernel(sb, max, 512)
    }

    /// Directory and name of a leaf that is no directory.
    pub(crate) fn name_of(&self, leaf: &Leaf) -> Option<(NodeId, Vec<u8>)> {
        let (dir, name) = self.core.vfs.cache().name_of(leaf)?;
        Some((self.core.node_of(dir), name))
    }

    /// The system said that it is short of memory, or has not for a while: so much of the limit may be used.
    pub(crate) fn lower_watermarks(&self, share: u32, pressed: bool) {
        self.core.short.pressed.fetch_add(u64::from(pressed), Relaxed);
        self.core.vfs.cache().lower_watermarks(share);
    }

    /// The kernel was asked to forget so many nodes.
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

    /// The kernel was told to look so many names up again.
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
