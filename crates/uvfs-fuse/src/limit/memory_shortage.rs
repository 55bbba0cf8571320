//! Shortages of memory: the requests that wait for it, and the counters of a mount.
//!
//! Everything but [`Shortage::patiently`] loads, or adds to counters, and never waits. The mutexes are leaves.

use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use uvfs::{Errno, Overdraft, Result, Vfs};

use crate::threads::waiting_by_node::MOMENT;

/// How long a request waits for memory.
const PATIENCE: Duration = Duration::from_secs(1);

/// For this long after the kernel was last asked to forget something, that may happen again.
const NEW: Duration = Duration::from_secs(10);

/// Measures of a mount while the cache had no memory; see [`Mounted::shortages`](crate::Mounted::shortages).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Shortages {
    /// Nodes that the kernel was asked to forget, by FUSE_NOTIFY_PRUNE.
    pub pruned: u64,
    /// Names that the kernel was told to look up again instead, by FUSE_NOTIFY_INVAL_ENTRY.
    pub invalidated: u64,
    /// Requests that waited for memory.
    pub waited: u64,
    /// Those of them that got none within a second: ENOMEM.
    pub refused: u64,
    /// Times that one of them was given some beyond the limit, because what would have made room waited for it.
    pub overdrawn: u64,
    /// Entries of directories that were listed without their nodes.
    pub plain: u64,
    /// Times that the system said that programs wait for memory, and the limit was lowered for a while.
    pub pressed: u64,
    /// Steps of the thread that keeps the limit; none are made while there is nothing to do.
    pub steps: u64,
}

/// Counters and state of memory shortage.
#[derive(Default)]
pub(crate) struct Shortage {
    /// The number of nodes that the kernel was asked to forget.
    pruned: AtomicU64,
    /// Names that the kernel was asked to look up again, for the same reason.
    invalidated: AtomicU64,
    /// Requests that had to wait for memory.
    waited: AtomicU64,
    /// Waiting requests that got no memory.
    refused: AtomicU64,
    /// Waiting requests that got memory beyond the limit.
    overdrawn: AtomicU64,
    /// When the invalidation now in progress began, if there is one.
    invalidating: Mutex<Option<Instant>>,
    /// Directory entries that were listed without their nodes.
    plain: AtomicU64,
    /// When the kernel was last asked to forget something.
    last: Mutex<Option<Instant>>,
    /// How often the system reported memory pressure.
    pressed: AtomicU64,
    /// Steps of the thread that keeps the limit.
    steps: AtomicU64,
}

impl Shortage {
    /// Whether the kernel was recently asked to forget something.
    pub(crate) fn is_new(&self) -> bool {
        self.last.lock().is_some_and(|last| last.elapsed() < NEW)
    }

    /// Permission to exceed the limit, if the thread that keeps it is waiting to invalidate a name. The kernel
    /// changes a directory with its lock held, and a lookup in it holds that lock until it is answered. So the two
    /// would wait for each other until the request is refused, and all other callers for both. The kernel's locks
    /// are not known here, so any waiting request goes on.
    fn overdraw(&self, vfs: &Vfs) -> Option<Overdraft> {
        let stuck = self.invalidating.lock().is_some_and(|began| began.elapsed() >= MOMENT);
        stuck.then(|| {
            self.overdrawn.fetch_add(1, Relaxed);
            vfs.cache().overdraw()
        })
    }

    fn asked(&self) {
        *self.last.lock() = Some(Instant::now());
    }

    /// Repeats `attempt` while it finds no memory, for [`PATIENCE`] at most. The calling thread waits.
    pub(crate) fn patiently<T>(&self, vfs: &Vfs, mut attempt: impl FnMut() -> Result<T>) -> Result<T> {
        self.waited.fetch_add(1, Relaxed);
        let outcome = vfs.cache().with_patience(Instant::now() + PATIENCE, || {
            let _overdraft = self.overdraw(vfs);
            let outcome = attempt();
            if matches!(outcome, Err(Errno::NOMEM)) { None } else { Some(outcome) }
        });
        outcome.unwrap_or_else(|| {
            self.refused.fetch_add(1, Relaxed);
            Err(Errno::NOMEM)
        })
    }

    /// Counts a directory entry that was listed without its node.
    pub(crate) fn count_plain(&self) {
        self.plain.fetch_add(1, Relaxed);
    }

    /// Counts a step of the thread that keeps the limit.
    pub(super) fn count_step(&self) {
        self.steps.fetch_add(1, Relaxed);
    }

    /// Counts a report of memory pressure.
    pub(super) fn count_pressure(&self) {
        self.pressed.fetch_add(1, Relaxed);
    }

    /// The kernel was asked to forget this many nodes.
    pub(crate) fn count_pruned(&self, nodes: usize) {
        self.asked();
        self.pruned.fetch_add(nodes as u64, Relaxed);
    }

    /// Invalidates a name by `write`, which may wait for a request that waits for memory.
    pub(crate) fn while_invalidating<T>(&self, write: impl FnOnce() -> T) -> T {
        *self.invalidating.lock() = Some(Instant::now());
        let done = write();
        *self.invalidating.lock() = None;
        done
    }

    /// The kernel was asked to look this many names up again.
    pub(super) fn count_invalidated(&self, names: usize) {
        if names > 0 {
            self.asked();
        }
        self.invalidated.fetch_add(names as u64, Relaxed);
    }

    pub(crate) fn counts(&self) -> Shortages {
        Shortages {
            pruned: self.pruned.load(Relaxed),
            invalidated: self.invalidated.load(Relaxed),
            waited: self.waited.load(Relaxed),
            refused: self.refused.load(Relaxed),
            overdrawn: self.overdrawn.load(Relaxed),
            plain: self.plain.load(Relaxed),
            pressed: self.pressed.load(Relaxed),
            steps: self.steps.load(Relaxed),
        }
    }
}
