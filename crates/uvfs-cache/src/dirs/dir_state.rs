//! The state that a directory has beyond its inode.
//!
//! * `children`: how many there are, and whether the directory is dying (see `child_count`).
//! * `state`: the revision, a count of evictions and the *complete* flag in one word (rules 9 and 10), so
//!   that setting complete and moving the rest cannot cross. The revision moves when a child is removed,
//!   renamed or invalidated. An answer requested before that is returned but not cached. A listing that
//!   began before that, or before a child was evicted, does not make the directory complete. An eviction
//!   makes no answer late: only the holder of a name lock may cache that name, so a name that is evicted
//!   meanwhile is another one. Otherwise a thread that must evict to make room for an answer would make
//!   just that answer late.
//! * `index`: entries in order, of resident directories. Its mutex is taken with no bucket locked.

use std::ops::{Deref, DerefMut};

use uvfs_sync::lock_order::{Class, Held};
use uvfs_sync::primitives::{AtomicU32, AtomicU64, Mutex, MutexGuard, Ordering};

use crate::coherence::expiry::{Clock, NEVER, SUSPECT};
use crate::dirs::child_count::ChildCount;
use crate::dirs::cookies::DirIndex;

const COMPLETE: u64 = 1;
/// One eviction. Their count overflows into the revision, where one step too many does no harm.
const EVICTION: u64 = 2;
const REVISION: u64 = 1 << 25;

/// State of one directory; lives as long as the directory's inode. It has a cache line of its own.
/// Directories that are made at the same time stand next to each other, and each change of names stores
/// here half a dozen times.
#[derive(Debug)]
#[cfg_attr(not(loom), repr(align(64)))]
pub(crate) struct DirState {
    /// Children, and whether the directory is dying.
    pub(crate) children: ChildCount,
    state: AtomicU64,
    /// The epoch or the deadline of the listing that made the directory complete; see [`DirState::set_complete`].
    listed: AtomicU32,
    /// Entries in the order of their creation (resident superblocks only).
    index: Mutex<DirIndex>,
}

#[cfg(not(loom))]
const _: () = assert!(size_of::<DirState>() == 64);

/// A directory's entries, locked.
pub(crate) struct Entries<'a> {
    index: MutexGuard<'a, DirIndex>,
    _order: Held,
}

impl Deref for Entries<'_> {
    type Target = DirIndex;

    fn deref(&self) -> &DirIndex {
        &self.index
    }
}

impl DerefMut for Entries<'_> {
    fn deref_mut(&mut self) -> &mut DirIndex {
        &mut self.index
    }
}

impl Default for DirState {
    fn default() -> Self {
        Self {
            children: ChildCount::default(),
            state: AtomicU64::new(0),
            listed: AtomicU32::new(SUSPECT),
            index: Mutex::new(DirIndex::default()),
        }
    }
}

impl DirState {
    /// Start over for a new directory; only the caller has the slot.
    pub(crate) fn reset(&self, complete: bool) {
        self.children.reset();
        // The revision continues: a ticket of the slot's last directory finds it moved.
        let next = (self.state.load(Ordering::Relaxed) & !COMPLETE) + REVISION;
        self.listed.store(if complete { NEVER } else { SUSPECT }, Ordering::Relaxed);
        self.state.store(next | u64::from(complete), Ordering::Release);
        *self.entries() = DirIndex::default();
    }

    /// The entries in order, locked.
    pub(crate) fn entries(&self) -> Entries<'_> {
        let order = Held::new(Class::DirIndex);
        Entries { index: self.index.lock(), _order: order }
    }

    /// Whether every name that is not cached is absent. Readers load it between two looks at a bucket's
    /// sequence. An eviction clears the flag in the same hold in which it unhashes. So a reader that misses
    /// the evicted name sees the flag gone, or the bucket locked or moved.
    #[inline]
    pub(crate) fn is_complete(&self, clock: &Clock) -> bool {
        // Relaxed: the scan's own acquire fence follows.
        if self.state.load(Ordering::Relaxed) & COMPLETE == 0 {
            return false;
        }
        let listed = self.listed.load(Ordering::Relaxed);
        clock.stands(listed) || !clock.passed(listed)
    }

    /// The revision, to remember before the driver is asked for a name.
    pub(crate) fn revision(&self) -> u64 {
        Self::revision_of(self.version())
    }

    /// The revision in a version.
    pub(crate) fn revision_of(version: u64) -> u64 {
        version / REVISION
    }

    /// Revision and evictions, to remember before the driver is asked for all names.
    pub(crate) fn version(&self) -> u64 {
        self.state.load(Ordering::Acquire) & !COMPLETE
    }

    /// A child was removed or renamed: the cached entries remain the whole truth, but answers on their way
    /// do not count.
    pub(crate) fn moved(&self) {
        self.state.fetch_add(REVISION, Ordering::AcqRel);
    }

    /// A child is invalidated: the cached entries are no longer the whole truth, and answers on their way
    /// may be wrong.
    pub(crate) fn moved_incomplete(&self) {
        self.incomplete(REVISION);
    }

    /// A child is evicted: the cached entries are no longer the whole truth.
    pub(crate) fn evicted(&self) {
        self.incomplete(EVICTION);
    }

    fn incomplete(&self, step: u64) {
        let mut old = self.state.load(Ordering::Relaxed);
        loop {
            let new = (old & !COMPLETE).wrapping_add(step);
            match self.state.compare_exchange_weak(old, new, Ordering::AcqRel, Ordering::Relaxed) {
                Ok(_) => return,
                Err(now) => old = now,
            }
        }
    }

    /// All entries are cached, if nothing moved since `version`; that is trusted in this epoch, or until this
    /// deadline ([`Clock`]).
    ///
    /// The epoch is stored after the flag is set. Until then, and if a listing of an older epoch stores its
    /// epoch last, the directory passes for incomplete. A thread that stores an epoch has listed the
    /// directory in it.
    pub(crate) fn set_complete(&self, version: u64, until: u32) -> bool {
        match self.state.compare_exchange(version, version | COMPLETE, Ordering::AcqRel, Ordering::Relaxed) {
            Ok(_) => {}
            // Another listing was first.
            Err(now) if now == version | COMPLETE => {}
            Err(_) => return false,
        }
        self.listed.store(until, Ordering::Relaxed);
        true
    }
}

#[cfg(all(test, loom))]
mod loom_tests {
    use super::*;
    use loom::thread::spawn;
    use uvfs_sync::primitives::{Arc, AtomicU32};

    /// Rule 10: a listing that began before a child was invalidated does not make the directory
    /// complete. Planted bug: rule10-complete-ignores-the-revision.
    #[test]
    fn loom_rule10_a_late_listing_does_not_make_complete() {
        loom::model(|| {
            let dir = Arc::new(DirState::default());
            let began = dir.version();
            let d = dir.clone();
            let listing = spawn(move || d.set_complete(began, NEVER));
            dir.moved_incomplete();
            listing.join().unwrap();
            assert!(!dir.is_complete(&Clock::default()));
        });
    }

    /// Rule 10: a driver that is asked after the revision was seen to move gives an answer that is true
    /// since the move. Planted bugs: rule10-revision-relaxed, rule10-moved-relaxed,
    /// rule10-moved-incomplete-relaxed.
    #[test]
    fn loom_rule10_a_reader_of_the_revision_sees_the_change() {
        for complete in [true, false] {
            loom::model(move || {
                let s = Arc::new((DirState::default(), AtomicU32::new(0)));
                let old = s.0.revision();
                let t = s.clone();
                let asked = spawn(move || (t.0.revision(), t.1.load(Ordering::Relaxed)));
                s.1.store(1, Ordering::Relaxed);
                if complete {
                    s.0.moved()
                } else {
                    s.0.moved_incomplete()
                }
                let (revision, truth) = asked.join().unwrap();
                assert!(revision == old || truth == 1, "an old answer under a new revision");
            });
        }
    }
}
