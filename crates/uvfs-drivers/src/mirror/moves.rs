//! Renames by this mirror, against walks from a node to its file.
//!
//! A rename changes the host first and the places of nodes after that. A walk that comes between the two finds nothing at the
//! place that it read, though the file is there and nobody else has touched it. Such a walk must not answer ESTALE: the
//! kernel looks a path up twice at most, and in a storm of renames both would fail.
//!
//! **A walk against a rename.** A rename counts itself in `begun`, changes the host and the places, and counts itself in `ended`. A walk
//! reads `ended` first and, if it fails, `begun` last. If both are equal, each rename either was over before the walk began or had not
//! changed the host when the walk failed: the failure stands. Otherwise the walk is done once more with all renames kept
//! out. So it waits for those in progress, and only then.
//!
//! `lock` is held shared across the host's rename, so renames do not wait for each other. Nothing below it waits for a walk.
//! It costs a walk one load, and a rename four read-modify-writes.

use std::sync::atomic::{AtomicU64, Ordering::SeqCst};

use parking_lot::{RwLock, RwLockReadGuard, RwLockWriteGuard};

/// See the module.
#[derive(Default)]
pub(super) struct Moves {
    begun: AtomicU64,
    ended: AtomicU64,
    lock: RwLock<()>,
}

/// A rename in progress, until the places are right again.
pub(super) struct Moving<'m> {
    moves: &'m Moves,
    _shared: RwLockReadGuard<'m, ()>,
}

impl Moves {
    /// To be called before the host is asked to rename. The caller does not walk to a node until this is dropped.
    pub(super) fn begin(&self) -> Moving<'_> {
        let shared = self.lock.read();
        self.begun.fetch_add(1, SeqCst);
        Moving { moves: self, _shared: shared }
    }

    /// What a walk reads first.
    pub(super) fn ended(&self) -> u64 {
        self.ended.load(SeqCst)
    }

    /// Whether a rename may have made a walk fail that read `ended` when it began.
    pub(super) fn may_have_crossed(&self, ended: u64) -> bool {
        self.begun.load(SeqCst) != ended
    }

    /// Keeps renames out. Waits for those in progress.
    pub(super) fn stop(&self) -> RwLockWriteGuard<'_, ()> {
        self.lock.write()
    }
}

impl Drop for Moving<'_> {
    fn drop(&mut self) {
        self.moves.ended.fetch_add(1, SeqCst);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_walk_that_overlaps_a_rename_is_told() {
        let moves = Moves::default();
        let before = moves.ended();
        assert!(!moves.may_have_crossed(before));
        let one = moves.begin();
        let amid = moves.ended();
        assert!(moves.may_have_crossed(before) && moves.may_have_crossed(amid));
        let other = moves.begin();
        drop(one);
        assert!(moves.may_have_crossed(moves.ended()), "the other one is in progress");
        drop(other);
        assert!(moves.may_have_crossed(before) && moves.may_have_crossed(amid));
        assert!(!moves.may_have_crossed(moves.ended()));
        drop(moves.stop());
    }
}
