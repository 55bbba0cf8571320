//! Changes of a directory's names by this mount, for LISTs that began before them.
//!
//! A LIST tells names as they were at some moment after it began. If this mount changes a name meanwhile, the LIST may
//! or may not tell of the change. The rule: of a name that was changed after the LIST began, the change is believed and
//! the LIST is not.
//!
//! | writer, with the name locked | LIST, with the name locked | outcome |
//! |---|---|---|
//! | create, publish: stamps the node, then gives it the name | leaves a name alone whose node was stamped since it began | the name stays |
//! | publish, remove: asks the store, then [`Changed::note_name`], then changes the name | leaves a name alone that was noted since it began | a name that was removed, or replaced and then evicted, is asked about |
//! | any: [`Changed::note_change`] before the name | makes the directory complete only if nothing was changed since it began | a name that was made and evicted is asked about |
//!
//! A LIST counts itself in before it begins, and its beginning is taken after that. So a writer that finds no LIST
//! counted knows that a later one sees its change. Changes are kept by name, up to [`NAMES`]; then all names of older
//! LISTs pass for changed, and are asked about one by one. Times are milliseconds, and equal ones count as a change.
//!
//! The mutex is a leaf.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};

use parking_lot::Mutex;

/// Changes that are kept by name.
const NAMES: usize = 4096;

#[derive(Debug, Default)]
struct Names {
    /// LISTs under way, and those that readers still hold.
    listings: usize,
    changed: HashMap<Box<str>, u64>,
    /// For LISTs that began up to here, any name may have been changed.
    all: u64,
}

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct Changed {
    last: AtomicU64,
    names: Mutex<Names>,
}

impl Changed {
    /// A name was made, or is about to be.
    pub(crate) fn note_change(&self, now: u64) {
        self.last.fetch_max(now, SeqCst);
    }

    /// The store has removed or replaced a name; the cache does not know it yet.
    pub(crate) fn note_name(&self, name: &str, now: u64) {
        self.note_change(now);
        let mut names = self.names.lock();
        if names.listings == 0 {
            return;
        }
        if names.changed.len() >= NAMES {
            names.changed.clear();
            names.all = now;
        } else {
            names.changed.insert(name.into(), now);
        }
    }

    /// A LIST is going to begin.
    pub(crate) fn enter(&self) {
        self.names.lock().listings += 1;
    }

    /// A LIST is not needed any more.
    pub(crate) fn leave(&self) {
        let mut names = self.names.lock();
        names.listings = names.listings.saturating_sub(1);
        if names.listings == 0 {
            names.changed = HashMap::new();
        }
    }

    /// Whether a name was removed or replaced since a LIST began.
    pub(crate) fn is_name_changed_since(&self, name: &str, began: u64) -> bool {
        let names = self.names.lock();
        names.all >= began || names.changed.get(name).is_some_and(|at| *at >= began)
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
        // Nobody lists: a later LIST tells of the change itself.
        changed.note_name("a", 5);
        assert!(!changed.is_name_changed_since("a", 3));
        changed.enter();
        changed.note_name("b", 10);
        assert!(changed.is_name_changed_since("b", 10) && changed.is_name_changed_since("b", 9));
        assert!(!changed.is_name_changed_since("b", 11) && !changed.is_name_changed_since("c", 1));
        assert!(changed.is_changed_since(10) && !changed.is_changed_since(11));
        for n in 0..=NAMES {
            changed.note_name(&n.to_string(), 20);
        }
        assert!(
            changed.is_name_changed_since("any name at all", 20) && !changed.is_name_changed_since("b", 21)
        );
        changed.leave();
        assert!(!changed.is_name_changed_since("1", 30));
    }
}
