//! Renames by this mirror, against walks from a node to its file.
//!
//! A rename changes the host first, and then the places of nodes. A walk that comes between the two finds nothing at
//! the place that it read, though the file exists and nobody else has touched it. Such a walk must not answer ESTALE:
//! the kernel looks a path up twice at most, and in a storm of renames both would fail.
//!
//! **A walk against a rename.** A rename counts itself in `begun`, changes the host and the places, and counts itself
//! in `ended`. A walk reads `ended` first and, if it fails, `begun` last. If both are equal, each rename was either
//! over before the walk began, or had not changed the host when the walk failed: the failure stands. Otherwise the
//! walk keeps all renames out and is repeated.
//!
//! **Neither waits without bound.** The host may take long over one rename or one walk: a server that does not
//! answer, or a lease of another process. `lock` only keeps the two apart where both are short. A rename holds it
//! shared, a repeated walk holds it alone, and each continues without it after [`PATIENCE`]. The counts hold without
//! the lock, so such a walk still notices renames that it crossed. It is repeated [`WALKS`] times at most, and then
//! its failure stands.
//!
//! Nothing below the lock waits for a walk. It costs a walk one load, and a rename four read-modify-writes.

use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::time::Duration;

use parking_lot::{RwLock, RwLockReadGuard, RwLockWriteGuard};

/// How long a rename or a walk waits for the other.
const PATIENCE: Duration = Duration::from_millis(50);
/// Most walks once the first has failed.
pub(super) const WALKS: usize = 8;

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
    _shared: Option<RwLockReadGuard<'m, ()>>,
}

impl Moves {
    /// To be called before the host is asked to rename. The caller does not walk to a node until this is dropped.
    pub(super) fn begin(&self) -> Moving<'_> {
        let shared = self.lock.try_read_for(PATIENCE);
        self.begun.fetch_add(1, SeqCst);
        Moving { moves: self, _shared: shared }
    }

    /// The counter that a walk reads first.
    pub(super) fn ended(&self) -> u64 {
        self.ended.load(SeqCst)
    }

    /// Whether a rename may be the reason that a walk failed, which read `ended` when it began.
    pub(super) fn may_have_crossed(&self, ended: u64) -> bool {
        self.begun.load(SeqCst) != ended
    }

    /// Waits for the renames in progress, and keeps others out; `None` if one of them takes long.
    pub(super) fn stop(&self) -> Option<RwLockWriteGuard<'_, ()>> {
        self.lock.try_write_for(PATIENCE)
    }
}

impl Drop for Moving<'_> {
    fn drop(&mut self) {
        self.moves.ended.fetch_add(1, SeqCst);
    }
}

#[cfg(test)]
mod tests {
    use uvfs::{Cred, Errno, RenameFlags, Vfs, VfsConfig};

    use super::super::Mirror;
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
        assert!(moves.stop().is_some());
    }

    #[test]
    fn neither_a_rename_nor_a_walk_waits_for_one_that_hangs() {
        let moves = Moves::default();
        let hung = moves.begin();
        assert!(moves.stop().is_none());
        drop(moves.begin());
        drop(hung);
        let walk = moves.stop();
        assert!(walk.is_some());
        let ended = moves.ended();
        drop(moves.begin());
        assert!(moves.may_have_crossed(ended), "a rename went on beside the walk");
    }

    /// The rename of one file hangs in the host. Another file was removed there: it is stale at once, and a third one
    /// can be renamed.
    #[test]
    fn a_rename_that_hangs_keeps_nobody() {
        let source = tempfile::tempdir().unwrap();
        for name in ["removed", "from"] {
            std::fs::write(source.path().join(name), "x").unwrap();
        }
        let mirror = Mirror::new(source.path(), Duration::ZERO).unwrap();
        let vfs = Vfs::new(VfsConfig::default(), mirror.clone()).unwrap();
        let me = vfs.context(Cred::root());
        let removed = me.resolve(b"/removed").unwrap();
        std::fs::remove_file(source.path().join("removed")).unwrap();
        let hung = mirror.moves.begin();
        let op = vfs.op(&Cred::root());
        for _ in 0..3 {
            assert_eq!(vfs.getattr(&op, &removed).map(drop), Err(Errno::STALE));
        }
        me.rename(b"/from", b"/to", RenameFlags::empty()).unwrap();
        drop(hung);
        assert!(source.path().join("to").exists());
    }
}
