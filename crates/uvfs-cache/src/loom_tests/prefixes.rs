//! Model checks of prefix entries (`prefix_cache.rs`) with two threads that write.

use super::*;
use crate::walk::prefix_change_counts::{PLACES, group_of};

/// Rule 3: an entry has one writer at a time. Two paths of one slot that are noted at once leave one or the
/// other, never the text of one with the positions of the other. Planted bugs:
/// rule3-prefix-has-two-writers, rule3-prefix-is-free-at-once,
/// rule3-prefix-ends-relaxed.
#[test]
fn loom_rule3_a_directory_part_has_one_writer() {
    model(|| {
        let w = World::new(true);
        let ids = [w.create(b"d", 5, true), w.create(b"e", 6, true)];
        let [d, e] = ids.map(|id| w.cache.pos(id).unwrap());
        let start = w.at();
        let other = w.spawn(move |w| w.note(start, b"d", d));
        w.note(start, b"e", e);
        other.join().unwrap();
        let found = [b"d", b"e"].map(|text| w.prefix(start, text));
        assert!(found[0].is_none_or(|at| at == d), "found another path's position");
        assert!(found[1].is_none_or(|at| at == e), "found another path's position");
    });
}

/// Rule 10: a hit does not outlive a change of a directory on the way. A reader that sees the new owner finds no
/// entry. Planted bugs: rule10-paths-stay-after-a-change, rule10-paths-move-after-the-change.
#[test]
fn loom_rule10_a_path_does_not_outlive_a_change_on_its_way() {
    model(|| {
        let w = World::new(true);
        let id = w.create(b"d", 5, true);
        let (start, d) = (w.at(), w.cache.pos(id).unwrap());
        w.note(start, b"d", d);
        let (moved, found) = w.during(
            move |w| {
                let moved = w.cache.perm(start).uid == 9;
                uvfs_sync::primitives::fence(Ordering::Acquire);
                (moved, w.prefix(start, b"d"))
            },
            |w| w.root().update(|a| a.uid = 9),
        );
        assert!(!(moved && found.is_some()), "the way has changed, but its entry still hits");
        assert_eq!(w.prefix(start, b"d"), None);
    });
}

/// Rule 10: an entry that is made while a directory on its way changes does not hit afterwards. Planted bugs:
/// rule10-paths-flag-after-the-check, rule10-paths-note-without-fence, rule10-paths-change-without-fence,
/// rule10-paths-sum-after-the-check.
#[test]
fn loom_rule10_a_path_noted_beside_a_change_is_older() {
    model(|| {
        let w = World::new(true);
        let id = w.create(b"d", 5, true);
        let (start, d) = (w.at(), w.cache.pos(id).unwrap());
        w.during(move |w| w.note(start, b"d", d), |w| w.root().update(|a| a.uid = 9));
        assert_eq!(w.prefix(start, b"d"), None, "an entry of the old way hits");
    });
}

/// Rule 10: the same for an older entry that a walk renews beside a second change. Planted bugs:
/// rule10-paths-renewed-without-flag, rule10-paths-note-without-fence, rule10-paths-change-without-fence.
#[test]
fn loom_rule10_a_path_renewed_beside_a_second_change_is_older() {
    model(|| {
        let w = World::new(true);
        let id = w.create(b"d", 5, true);
        let d = w.cache.pos(id).unwrap();
        w.note(w.at(), b"d", d);
        w.root().update(|a| a.uid = 8);
        let start = w.at();
        w.during(move |w| w.note(start, b"d", d), |w| w.root().update(|a| a.uid = 9));
        assert_eq!(w.prefix(start, b"d"), None, "an entry of the old way hits");
    });
}

/// Rule 10: a hit does not outlive a rename on the way. A reader that no longer finds the old name finds no entry.
/// Planted bug: rule10-paths-stay-after-a-rename.
#[test]
fn loom_rule10_a_path_does_not_outlive_a_rename_on_its_way() {
    model(|| {
        let w = World::new(true);
        let id = w.create(b"d", 5, true);
        let (start, d) = (w.at(), w.cache.pos(id).unwrap());
        // The start stands for the end of the path too: its own walk sequence does not move.
        let mut way = Way::new(start);
        way.add(d);
        way.add(start);
        w.cache.note_prefix(&w.ask(start, b"d/e"), &way);
        assert_eq!(w.prefix(start, b"d/e"), Some(start));
        let (gone, found) = w.during(
            move |w| {
                let gone = matches!(w.step(start, b"d"), Step::Absent);
                (gone, w.prefix(start, b"d/e"))
            },
            |w| w.rename(b"d", b"f"),
        );
        assert!(!(gone && found.is_some()), "a name on the way is absent, but the entry still hits");
        assert_eq!(w.prefix(start, b"d/e"), None);
    });
}

/// The root and "d", then the root, which stands for the end of the path too.
fn way_through(start: Pos, d: Pos, times: usize) -> Way {
    let mut way = Way::new(start);
    (0..times).for_each(|_| way.add(d));
    way.add(start);
    way
}

/// Rule 10: two changes in two groups do not leave the sum as it was. A reader that sees the first change finds no
/// entry, beside the second or after it. Planted bug: rule10-changes-of-two-groups-cancel-out.
#[test]
fn loom_rule10_a_path_does_not_outlive_changes_in_two_groups() {
    model(|| {
        let w = World::new(true);
        let id = w.create(b"d", 5, true);
        let (start, d) = (w.at(), w.cache.pos(id).unwrap());
        assert_ne!(group_of(start.id().index()), group_of(id.index()));
        // The end is "e", which does not change.
        let end = w.cache.pos(w.create(b"e", 6, true)).unwrap();
        let mut way = Way::new(start);
        way.add(d);
        way.add(end);
        w.cache.note_prefix(&w.ask(start, b"d/e"), &way);
        assert_eq!(w.prefix(start, b"d/e"), Some(end));
        let (moved, found) = w.during(
            move |w| {
                let moved = w.cache.perm(d).uid == 9;
                uvfs_sync::primitives::fence(Ordering::Acquire);
                (moved, w.prefix(start, b"d/e"))
            },
            |w| {
                w.cache.get(id).unwrap().update(|a| a.uid = 9);
                w.root().update(|a| a.uid = 9);
            },
        );
        assert!(!(moved && found.is_some()), "the way has changed, but its entry still hits");
        assert_eq!(w.prefix(start, b"d/e"), None);
    });
}

/// Rule 10: a path that passes more directories than an entry has groups does not outlive a change of any. Planted
/// bug: rule10-long-paths-stay-after-a-change.
#[test]
fn loom_rule10_a_path_of_many_groups_does_not_outlive_a_change() {
    model(|| {
        let w = World::new(true);
        let id = w.create(b"d", 5, true);
        let (start, d) = (w.at(), w.cache.pos(id).unwrap());
        w.cache.note_prefix(&w.ask(start, b"d/e"), &way_through(start, d, PLACES));
        assert_eq!(w.prefix(start, b"d/e"), Some(start));
        let (moved, found) = w.during(
            move |w| {
                let moved = w.cache.perm(d).uid == 9;
                uvfs_sync::primitives::fence(Ordering::Acquire);
                (moved, w.prefix(start, b"d/e"))
            },
            |w| w.cache.get(id).unwrap().update(|a| a.uid = 9),
        );
        assert!(!(moved && found.is_some()), "the way has changed, but its entry still hits");
        assert_eq!(w.prefix(start, b"d/e"), None);
    });
}

/// Rule 10: nor is it kept from beside the change. Planted bugs: rule10-long-paths-stay-after-a-change,
/// rule10-long-paths-are-not-flagged.
#[test]
fn loom_rule10_a_path_of_many_groups_noted_beside_a_change_is_older() {
    model(|| {
        let w = World::new(true);
        let id = w.create(b"d", 5, true);
        let (start, d) = (w.at(), w.cache.pos(id).unwrap());
        w.during(
            move |w| w.cache.note_prefix(&w.ask(start, b"d/e"), &way_through(start, d, PLACES)),
            |w| w.cache.get(id).unwrap().update(|a| a.uid = 9),
        );
        assert_eq!(w.prefix(start, b"d/e"), None, "an entry of the old way hits");
    });
}
