//! Whether a name was used since the shrinker's hand last passed: a byte for each dentry.
//!
//! The byte stands outside everything that a sequence guards. A hit sets it while eviction is armed, and
//! the hand clears it (rule 17). A hit loads the byte first and stores only if it is 0. So hits of a name
//! in constant use store once per round of the hand.

use std::io;

use uvfs_sync::arena::Arena;
use uvfs_sync::primitives::{AtomicU8, Ordering};
use uvfs_sync::slot;

slot! {
    /// One name's byte.
    #[derive(Debug)]
    pub(crate) struct Visited { used: AtomicU8 }
}

/// The bytes of all dentries.
pub(crate) struct Used(Arena<Visited>);

impl Used {
    pub(super) fn new(capacity: u32) -> io::Result<Self> {
        Arena::reserve(capacity).map(Self)
    }

    /// A name was used.
    #[cold]
    pub(crate) fn note(&self, dentry: u32) {
        let used = &self.0.get(dentry).used;
        if used.load(Ordering::Relaxed) == 0 {
            used.store(1, Ordering::Relaxed);
            #[cfg(all(test, not(loom)))]
            noted::add(dentry, 1);
        }
    }

    /// A name begins in this slot, unused.
    pub(super) fn begin(&self, dentry: u32) {
        let used = &self.0.get(dentry).used;
        if used.load(Ordering::Relaxed) != 0 {
            used.store(0, Ordering::Relaxed);
        }
    }

    /// The hand passes; whether the name was used since it last did.
    pub(crate) fn take(&self, dentry: u32) -> bool {
        let used = &self.0.get(dentry).used;
        if used.load(Ordering::Relaxed) == 0 {
            return false;
        }
        used.store(0, Ordering::Relaxed);
        #[cfg(all(test, not(loom)))]
        noted::add(dentry, 0);
        true
    }
}

/// This thread's stores to the bytes, counted for the tests of rule 17.
#[cfg(all(test, not(loom)))]
pub(crate) mod noted {
    use std::cell::RefCell;
    use std::collections::HashMap;

    thread_local! {
        /// By dentry and stored value.
        static NOTED: RefCell<HashMap<(u32, u8), u64>> = RefCell::default();
    }

    pub(super) fn add(dentry: u32, stored: u8) {
        NOTED.with_borrow_mut(|noted| *noted.entry((dentry, stored)).or_default() += 1);
    }

    pub(crate) fn count(dentry: u32, stored: u8) -> u64 {
        NOTED.with_borrow(|noted| noted.get(&(dentry, stored)).copied().unwrap_or_default())
    }
}
