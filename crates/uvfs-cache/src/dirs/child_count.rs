//! A directory's children, counted: rmdir against create.
//!
//! Children and the *dying* bit are one word (design rule 11). A create, link or rename into the
//! directory counts its child in before it publishes. An rmdir exchanges exactly zero for dying. If the
//! child comes first, it is counted, and the removal fails with ENOTEMPTY. If the removal comes first,
//! the directory is dying, and the child fails with ENOENT. Never both, never neither. No lock is taken.

use uvfs_sync::primitives::{AtomicU64, Ordering};

use crate::types::{CacheError, NotEmpty};

const DYING: u64 = 1 << 63;

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct ChildCount {
    word: AtomicU64,
}

impl ChildCount {
    /// No child, and not dying; only the caller has the directory's slot.
    pub(crate) fn reset(&self) {
        self.word.store(0, Ordering::Relaxed);
    }

    /// Count a child in, before it is published.
    pub(crate) fn enter(&self) -> Result<(), CacheError> {
        let mut old = self.word.load(Ordering::Relaxed);
        loop {
            if old & DYING != 0 {
                return Err(CacheError::Dying);
            }
            match self.word.compare_exchange_weak(old, old + 1, Ordering::Acquire, Ordering::Relaxed) {
                Ok(_) => return Ok(()),
                Err(now) => old = now,
            }
        }
    }

    /// Count a child out, after it was unhashed.
    pub(crate) fn leave(&self) {
        let old = self.word.fetch_sub(1, Ordering::Release);
        debug_assert!(old & !DYING != 0, "a child that was not counted");
    }

    /// No child, and none to come: zero becomes dying.
    pub(crate) fn begin_death(&self) -> Result<(), NotEmpty> {
        self.word
            .compare_exchange(0, DYING, Ordering::AcqRel, Ordering::Relaxed)
            .map(|_| ())
            .map_err(|_| NotEmpty)
    }

    /// The removal failed: children may come again.
    pub(crate) fn revive(&self) {
        self.word.fetch_and(!DYING, Ordering::Release);
    }

    /// Children counted in now.
    #[cfg(all(test, loom))]
    pub(crate) fn count(&self) -> u64 {
        self.word.load(Ordering::Relaxed) & !DYING
    }
}

#[cfg(all(test, loom))]
mod loom_tests {
    use super::*;
    use loom::thread::spawn;
    use uvfs_sync::primitives::{Arc, AtomicU32};

    /// Rule 11: of a create and an rmdir of its directory at most one succeeds, and a create that fails
    /// leaves nothing behind. Planted bug: rule11-death-ignores-children.
    #[test]
    fn loom_rule11_rmdir_and_create_exclude_each_other() {
        loom::model(|| {
            let dir = Arc::new(ChildCount::default());
            let d = dir.clone();
            let create = spawn(move || d.enter().is_ok());
            let removed = dir.begin_death().is_ok();
            let created = create.join().unwrap();
            assert!(created != removed, "created {created}, removed {removed}");
            assert_eq!(dir.count(), u64::from(created));
        });
    }

    /// Rule 11: a removal that finds the directory empty comes after everything that was done to its
    /// children. Planted bugs: rule11-leave-relaxed, rule11-death-relaxed.
    #[test]
    fn loom_rule11_an_empty_directory_is_seen_empty() {
        loom::model(|| {
            let dir = Arc::new((ChildCount::default(), AtomicU32::new(0)));
            dir.0.enter().unwrap();
            let d = dir.clone();
            let removed = spawn(move || (d.0.begin_death().is_ok(), d.1.load(Ordering::Relaxed)));
            dir.1.store(1, Ordering::Relaxed);
            dir.0.leave();
            let (empty, seen) = removed.join().unwrap();
            assert!(!empty || seen == 1, "the removal missed a child's last change");
        });
    }
}
