//! When attributes last changed, by inode number: rule 10 for attributes.
//!
//! A driver's answer to a lookup may describe an inode that was not known when the driver was asked.
//! Meanwhile another name may have led to it: it was changed, perhaps even evicted again, and the
//! directory's revision does not show that. So each change of an inode of a superblock whose driver is
//! asked is counted. A small table keeps the count of the last change for the number's hash. The asking
//! thread remembers the count; an answer about a number that has changed since is late. If two numbers
//! share a hash, an answer may be treated as late although it is not: the driver is asked once more.
//!
//! Names that others change have a table of their own. A create changes two inodes' attributes by itself, so it would
//! meet its name's slot once in 128 times, forget the name, and with it that the directory is complete.
//!
//! A writer moves the count under the attribute lock before it stores the attributes, and a reader checks
//! it under the same lock. If the change comes first, the answer is found late. If the answer comes first,
//! the change comes after it and stands. Costs one shared count per change; resident superblocks have no
//! table and pay nothing. loom does not run it (its tests have no second name).

use uvfs_sync::primitives::{AtomicU64, Ordering};

/// A power of two.
const SLOTS: usize = 256;

/// The moment before a driver was asked about an inode: see [`Cache::iget`](crate::Cache::iget).
#[derive(Clone, Copy, Debug)]
pub struct Asked {
    /// The superblock's count of changes.
    pub(crate) changes: u64,
    /// The cache's epoch.
    pub(crate) epoch: u32,
}

/// The changes of one superblock.
#[derive(Debug)]
pub(crate) struct Changes {
    count: AtomicU64,
    last: Box<[AtomicU64]>,
    /// By a name's key.
    names: Box<[AtomicU64]>,
}

/// The slot of an inode's number, or of a name's key.
fn slot(table: &[AtomicU64], key: u64) -> Option<&AtomicU64> {
    table.get((key.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as usize)
}

impl Changes {
    pub(crate) fn new(resident: bool) -> Self {
        let slots = if resident || cfg!(loom) { 0 } else { SLOTS };
        let table = || (0..slots).map(|_| AtomicU64::new(0)).collect();
        Self { count: AtomicU64::new(0), last: table(), names: table() }
    }

    /// Changes so far, to remember before the driver is asked.
    pub(crate) fn count(&self) -> u64 {
        if self.last.is_empty() { 0 } else { self.count.load(Ordering::Acquire) }
    }

    /// An inode changes. Called under its attribute lock, before the change.
    pub(crate) fn note(&self, ino: u64) {
        self.note_in(&self.last, ino);
    }

    /// A name leads elsewhere, or its file has changed, behind the cache. Called before the name is forgotten.
    pub(crate) fn note_name(&self, key: u64) {
        self.note_in(&self.names, key);
    }

    fn note_in(&self, table: &[AtomicU64], key: u64) {
        if let Some(slot) = slot(table, key) {
            slot.fetch_max(self.count.fetch_add(1, Ordering::AcqRel) + 1, Ordering::AcqRel);
        }
    }

    /// Whether the inode may have changed after `count`.
    pub(crate) fn since(&self, ino: u64, count: u64) -> bool {
        slot(&self.last, ino).is_some_and(|slot| slot.load(Ordering::Acquire) > count)
    }

    /// Whether a name, or its file, may have changed after `count`.
    pub(crate) fn name_since(&self, key: u64, count: u64) -> bool {
        slot(&self.names, key).is_some_and(|slot| slot.load(Ordering::Acquire) > count)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn rule10_an_answer_is_late_if_its_inode_changed_since() {
        let changes = Changes::new(false);
        changes.note(1);
        let asked = changes.count();
        assert!(!changes.since(1, asked) && !changes.since(2, asked));
        changes.note(2);
        assert!(!changes.since(1, asked) && changes.since(2, asked));
        assert!(!changes.since(2, changes.count()));
    }

    #[test]
    fn rule10_a_name_is_late_if_it_changed_since_and_not_for_a_change_of_attributes() {
        let changes = Changes::new(false);
        (0..4096).for_each(|ino| changes.note(ino));
        assert!((0..4096).all(|key| !changes.name_since(key, 0)));
        changes.note_name(7);
        let asked = changes.count();
        assert!(changes.name_since(7, asked - 1) && !changes.name_since(7, asked));
    }
}
