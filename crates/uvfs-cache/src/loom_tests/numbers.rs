//! Model checks of inodes by number and of the enumeration (`by_number.rs`).
//!
//! The change consists of the bare stores, as in `loom_tests/hit.rs`: the last reference goes, and the slot is emptied
//! and filled for another inode. A reader forgets the reference that it got, so that the reader itself
//! never ends the inode.

use super::*;
use crate::inodes::by_number::Look;

impl World {
    /// An inode with one reference and no name.
    fn numbered(&self, ino: u64) -> InodeId {
        let asked = self.cache.ask(self.sb);
        self.cache.iget(self.sb, asked, &fresh(ino, false)).unwrap().0.into_id()
    }
    /// Drop the last reference, unless a reader has one; returns whether it was the last.
    fn end(&self, id: InodeId) -> bool {
        let last = self.cache.inodes.private(id.index()).refs.put();
        if last {
            self.cache.inodes.get(id.index()).clear();
        }
        last
    }
    /// Another inode begins in the slot.
    fn recycle(&self, id: InodeId, ino: u64) {
        let (published, private) = (self.cache.inodes.get(id.index()), self.cache.inodes.private(id.index()));
        uvfs_sync::primitives::fence(Ordering::Release);
        published.fill(private, id.generation() + 1, &fresh(ino, false).attr, 0);
        private.refs.start(id.generation() + 1);
    }
}

/// Rule 16: a reader that finds a number still hashed, while its inode ends and another inode gets the
/// slot, gets the number's inode alive, or none. Planted bugs: rule16-number-not-read-again,
/// rule2-get-ignores-generation.
#[test]
fn loom_rule16_a_number_leads_to_its_own_inode() {
    model(|| {
        let w = World::new(false);
        let id = w.numbered(5);
        w.during(
            move |w| {
                if let Some(inode) = w.cache.ilookup(w.sb, 5, S_IFREG) {
                    assert_eq!((inode.ino(), inode.id()), (5, id), "another inode under this number");
                    whole(&inode.attr());
                    std::mem::forget(inode);
                }
            },
            |w| {
                if w.end(id) {
                    w.recycle(id, 6);
                }
            },
        );
    });
}

/// Rules 7 and 16: the copy under a number is one moment's truth about its own inode. This covers only the
/// look at the slot: the bucket's part has models of its own. Planted bugs: rule7-number-copy-not-checked,
/// rule3-seq-write-without-fence (and its like).
#[test]
fn loom_rule7_attributes_under_a_number_are_its_own() {
    slow_model(|| {
        let w = World::new(false);
        let id = w.numbered(5);
        w.during(
            move |w| {
                let mut attr = Attr::default();
                if let Look::Is(seen) = w.cache.look_at(id.index(), (w.sb, 5, S_IFREG), &mut attr) {
                    whole(&attr);
                    assert_eq!((seen, attr.ino), (id, 5), "another inode's attributes under this number");
                }
            },
            |w| {
                if w.end(id) {
                    w.recycle(id, 6);
                }
            },
        );
    });
}

/// Rule 16: a change of attributes does not make a number absent. Planted bug: rule16-moving-is-absent.
#[test]
fn loom_rule16_a_number_that_is_being_changed_is_there() {
    model(|| {
        let w = World::new(false);
        let id = w.numbered(5);
        let there = w.during(
            move |w| w.cache.ipeek(w.sb, 5, S_IFREG, &mut Attr::default()).is_some(),
            |w| w.cache.get(id).unwrap().update(|attr| attr.uid = 9),
        );
        assert!(there, "the number was absent during a change");
    });
}

/// Rule 16: an enumeration shows no inode that is half made (NEW) or ending (FREEING). Planted bugs:
/// rule16-enumerates-without-a-reference.
#[test]
fn loom_rule16_an_enumeration_sees_finished_inodes() {
    model(|| {
        let w = World::new(false);
        let id = w.numbered(5);
        w.during(
            move |w| {
                w.cache.inodes_of(w.sb, &mut |inode| {
                    let attr = inode.attr();
                    whole(&attr);
                    let own = if inode.id() == id { 5 } else { 6 };
                    assert!(inode.is_root() || attr.ino == own, "not finished, or not its own: {attr:?}");
                    // So that the enumeration does not end it: see this module's head.
                    std::mem::forget(inode.clone());
                    true
                });
            },
            |w| {
                if w.end(id) {
                    w.recycle(id, 6);
                }
            },
        );
    });
}
