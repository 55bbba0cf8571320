//! Changes of a directory's names by this mount, for LISTs that began before them.
//!
//! A LIST tells names as they were at some moment after it began. If this mount changes a name meanwhile, the LIST may
//! or may not tell of the change. The rule: of a name that was changed after the LIST began, the change is believed and
//! the LIST is not.
//!
//! | writer, with the name locked | LIST, with the name locked | outcome |
//! |---|---|---|
//! | create, publish: stamps the node, then gives it the name | leaves a name alone whose node was stamped since it began | the name stays |
//! | remove: asks the store, then [`Changed::note_removal`], then takes the name away | leaves a name alone that was removed since it began | the name stays away |
//! | any: [`Changed::note_change`] before the name | makes the directory complete only if nothing was changed since it began | a name that was made and evicted is asked about |
//!
//! A LIST counts itself in before it begins, and its beginning is taken after that. So a writer that finds no LIST
//! counted knows that a later one sees its change. Removals are kept by name, up to [`NAMES`]; then all names of older
//! LISTs pass for removed, and are asked about one by one. Times are milliseconds, and equal ones count as a change.
//!
//! The mutex is a leaf.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};

use parking_lot::Mutex;

/// Removals that are kept by name.
const NAMES: usize = 4096;

#[derive(Debug, Default)]
struct Removed {
    /// LISTs under way, and those that readers still hold.
    listings: usize,
    names: HashMap<Box<str>, u64>,
    /// For LISTs that began up to here, any name may have been removed.
    all: u64,
}

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct Changed {
    last: AtomicU64,
    removed: Mutex<Removed>,
}

impl Changed {
    /// A name was made or changed, or is about to be.
    pub(crate) fn note_change(&self, now: u64) {
        self.last.fetch_max(now, SeqCst);
    }

    /// The store has removed a name; the cache does not know it yet.
    pub(crate) fn note_removal(&self, name: &str, now: u64) {
        self.note_change(now);
        let mut removed = self.removed.lock();
        if removed.listings == 0 {
            return;
        }
        if removed.names.len() >= NAMES {
            removed.names.clear();
            removed.all = now;
        } else {
            removed.names.insert(name.into(), now);
        }
    }

    /// A LIST is going to begin.
    pub(crate) fn enter(&self) {
        self.removed.lock().listings += 1;
    }

    /// A LIST is not needed any more.
    pub(crate) fn leave(&self) {
        let mut removed = self.removed.lock();
        removed.listings = removed.listings.saturating_sub(1);
        if removed.listings == 0 {
            removed.names = HashMap::new();
        }
    }

    /// Whether a name was removed since a LIST began.
    pub(crate) fn is_removed_since(&self, name: &str, began: u64) -> bool {
        let removed = self.removed.lock();
        removed.all >= began || removed.names.get(name).is_some_and(|at| *at >= began)
    }

    /// Whether any name was changed since a LIST began.
    pub(crate) fn is_changed_since(&self, began: u64) -> bool {
        self.last.load(SeqCst) >= began
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_sees_the_changes_since_it_began_and_no_others() {
        let changed = Changed::default();
        // Nobody lists: a later LIST tells of the removal itself.
        changed.note_removal("a", 5);
        assert!(!changed.is_removed_since("a", 3));
        changed.enter();
        changed.note_removal("b", 10);
        assert!(changed.is_removed_since("b", 10) && changed.is_removed_since("b", 9));
        assert!(!changed.is_removed_since("b", 11) && !changed.is_removed_since("c", 1));
        assert!(changed.is_changed_since(10) && !changed.is_changed_since(11));
        for n in 0..=NAMES {
            changed.note_removal(&n.to_string(), 20);
        }
        assert!(changed.is_removed_since("any name at all", 20) && !changed.is_removed_since("b", 21));
        changed.leave();
        assert!(!changed.is_removed_since("1", 30));
    }
}
