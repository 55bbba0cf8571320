//! The memory limit, as the thread that keeps it sees the front end ([`crate::balance`]), and what is counted of it.
//!
//! All of it loads, or adds to figures of the mount; nothing waits.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

use uvfs::{Balance, Held, Leaf, SbId, Vfs};

use super::Frontend;
use crate::mounted::Shortages;
use crate::transport::{NodeId, ROOT};

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
    /// Entries of directories that were listed without their nodes.
    pub(super) plain: AtomicU64,
    /// Times that the system said that it is short of memory.
    pressed: AtomicU64,
    /// Steps of the thread that keeps the limit.
    steps: AtomicU64,
}

/// Directories in which names were looked up of late, that the cache did not know.
#[derive(Default)]
pub(super) struct Recent([AtomicU64; 8]);

impl Recent {
    pub(super) fn note(&self, dir: NodeId) {
        let place = &self.0[dir as usize % self.0.len()];
        // Load first: most often it is the same again.
        if place.load(Relaxed) != dir {
            place.store(dir, Relaxed);
        }
    }
}

impl Frontend {
    /// Whether names were looked up in a directory of late.
    pub(crate) fn looked_in(&self, dir: NodeId) -> bool {
        let recent = &self.core.recent.0;
        recent[dir as usize % recent.len()].load(Relaxed) == dir
    }

    /// What is shown.
    pub(crate) fn vfs(&self) -> &Arc<Vfs> {
        &self.core.vfs
    }

    /// One step of the cache towards its marks; the kernel was asked to forget `named`.
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
        Some((if dir == self.core.root { ROOT } else { dir.as_u64() }, name))
    }

    /// The system said that it is short of memory, or has not for a while: so much of the limit may be used.
    pub(crate) fn lower_marks(&self, share: u32, pressed: bool) {
        self.core.short.pressed.fetch_add(u64::from(pressed), Relaxed);
        self.core.vfs.cache().lower_marks(share);
    }

    /// The kernel was asked to forget so many nodes.
    pub(crate) fn count_pruned(&self, nodes: usize) {
        self.core.short.pruned.fetch_add(nodes as u64, Relaxed);
    }

    /// The kernel was told to look so many names up again.
    pub(crate) fn count_invalidated(&self, names: usize) {
        self.core.short.invalidated.fetch_add(names as u64, Relaxed);
    }

    pub(crate) fn shortages(&self) -> Shortages {
        let short = &self.core.short;
        Shortages {
            pruned: short.pruned.load(Relaxed),
            invalidated: short.invalidated.load(Relaxed),
            waited: short.waited.load(Relaxed),
            refused: short.refused.load(Relaxed),
            plain: short.plain.load(Relaxed),
            pressed: short.pressed.load(Relaxed),
            steps: short.steps.load(Relaxed),
        }
    }
}
