//! The generation of all noted paths: a change of a passed directory moves it, and older entries of the prefix cache
//! are refused ([`super::prefix`]).

use crossbeam_utils::CachePadded;
use uvfs_sync::primitives::{AtomicU64, Ordering, fence};

use crate::inodes::halves::Private;

/// The generation of all paths, on a line of its own: each hit reads it.
#[derive(Debug)]
pub(crate) struct Moves(CachePadded<AtomicU64>);

impl Moves {
    pub(crate) fn new() -> Self {
        Self(CachePadded::new(AtomicU64::new(1)))
    }

    /// Acquire, with the release of a change: see below.
    #[inline]
    pub(crate) fn now(&self) -> u64 {
        self.0.load(Ordering::Acquire)
    }

    /// To be called inside a write section of a directory's walk sequence, or of a link's name or attributes, before
    /// anything else is changed. `private` is that directory's or link's. See [`super::prefix`].
    pub(crate) fn before_change(&self, private: &Private) {
        // Pairs with the fence in `note_prefix`: either that thread sees the odd sequence, or we see its flag.
        fence(Ordering::SeqCst);
        if private.is_passed() {
            // Release: a walk that loads this generation finds the sequence odd.
            self.0.fetch_add(1, Ordering::Release);
            // All entries are older now, so the next change here may cost nothing.
            private.set_passed(false);
        }
    }
}
