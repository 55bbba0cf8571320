//! Model checks of symbolic links on the way of prefix entries (`prefix_passed_links.rs`).
//!
//! The entry is of the path "a/x", where "a" is a link. The root stands for the end of the path: its own walk sequence
//! does not move.

use super::*;

impl World {
    /// The way of a walk through the link.
    fn way_through(&self, at: Pos, child: &Child) -> Way {
        let mut out = [0; TARGET_MAX];
        let found = self.cache.child_target(at, child, || Time::new(0, 0), &mut out).unwrap().unwrap();
        let mut way = Way::new(at);
        way.add_link(found.link.unwrap());
        way.add(at);
        way
    }

    fn note_way(&self, at: Pos, way: &Way) {
        self.cache.note_prefix(&self.ask(at, b"a/x"), way);
    }

    /// A world with a link and a noted path through it.
    fn with_path() -> (Self, Pos) {
        let w = Self::new(true);
        let (at, child) = w.link(b"t");
        w.note_way(at, &w.way_through(at, &child));
        assert_eq!(w.prefix(at, b"a/x"), Some(at));
        (w, at)
    }
}

/// A path is noted beside `change`, which ends the way: afterwards no entry hits.
fn noted_beside(resident: bool, change: impl Fn(&World, &Child) + Send + Sync + 'static) {
    model(move || {
        let w = World::new(resident);
        let (at, child) = w.link(b"t");
        let way = w.way_through(at, &child);
        w.during(move |w| w.note_way(at, &way), |w| change(w, &child));
        assert_eq!(w.prefix(at, b"a/x"), None, "an entry of the old way hits");
    });
}

/// A reader that no longer finds the link under its name finds no entry either.
fn outlived_by(change: impl Fn(&World) + Send + Sync + 'static) {
    model(move || {
        let (w, at) = World::with_path();
        let (gone, found) = w.during(
            move |w| {
                let link = match w.step(at, b"a") {
                    Step::Found(child) => child.fmt() == S_IFLNK,
                    Step::Absent => false,
                    Step::Unknown | Step::Retry(_) => true,
                };
                (!link, w.prefix(at, b"a/x"))
            },
            &change,
        );
        assert!(!(gone && found.is_some()), "the link is gone, but the entry still hits");
        assert_eq!(w.prefix(at, b"a/x"), None);
    });
}

/// Rule 10: a hit does not outlive the link on its way. Planted bug: rule10-links-go-unseen.
#[test]
fn loom_rule10_a_path_does_not_outlive_its_link() {
    outlived_by(|w| w.remove(b"a"));
}

/// Rule 10: nor its name. Planted bug: rule10-links-are-renamed-unseen.
#[test]
fn loom_rule10_a_path_does_not_outlive_its_links_name() {
    outlived_by(|w| w.rename(b"a", b"b"));
}

/// Rule 10: nor does it show the way through a link that a file has replaced. Planted bug:
/// rule10-links-are-exchanged-unseen.
#[test]
fn loom_rule10_a_path_does_not_outlive_its_links_exchange() {
    model(|| {
        let (w, at) = World::with_path();
        w.create(b"f", 6, false);
        let (gone, found) = w.during(
            move |w| {
                let gone = matches!(w.step(at, b"a"), Step::Found(child) if child.fmt() == S_IFREG);
                (gone, w.prefix(at, b"a/x"))
            },
            |w| w.exchange(b"f", b"a"),
        );
        assert!(!(gone && found.is_some()), "a file is there, but the entry still hits");
        assert_eq!(w.prefix(at, b"a/x"), None);
    });
}

/// Rule 10: an entry that is made while the link on its way is removed does not hit afterwards. Planted bugs:
/// rule10-links-are-not-flagged, rule10-links-are-left-unchecked, rule10-names-of-links-are-left-unchecked,
/// rule10-links-note-without-fence.
#[test]
fn loom_rule10_a_path_noted_beside_its_links_end_is_older() {
    noted_beside(true, |w, _| w.remove(b"a"));
}

/// Rule 10: the same if the link's name is evicted. Planted bug: rule10-links-are-evicted-unseen.
#[test]
fn loom_rule10_a_path_noted_beside_its_links_eviction_is_older() {
    noted_beside(false, |w, _| {
        // The first round may find the name used.
        let evicted = w.cache.evict_unused(w.sb, 1) + w.cache.evict_unused(w.sb, 1);
        assert_eq!(evicted, 1);
    });
}

/// Rule 10: the same if another link takes its name by a rename.
#[test]
fn loom_rule10_a_path_noted_beside_its_links_replacement_is_older() {
    model(|| {
        let w = World::new(true);
        let (at, child) = w.link(b"t");
        w.create(b"f", 6, false);
        let way = w.way_through(at, &child);
        w.during(move |w| w.note_way(at, &way), |w| w.rename(b"f", b"a"));
        assert_eq!(w.prefix(at, b"a/x"), None, "an entry of the old way hits");
    });
}

/// Rule 10: the same if the link's attributes change: a read of it may then move the access time. Planted bugs:
/// rule10-attributes-of-links-change-unseen, rule10-attributes-of-links-are-left-unchecked.
#[test]
fn loom_rule10_a_path_noted_beside_its_links_change_is_older() {
    noted_beside(true, |w, child| {
        let (id, _) = w.cache.child_attr(w.at(), child).unwrap();
        w.cache.get(id).unwrap().update(|a| a.uid = 9);
    });
}

/// Rule 10: a reader that sees the link's new owner finds no entry.
#[test]
fn loom_rule10_a_path_does_not_outlive_its_links_change() {
    model(|| {
        let (w, at) = World::with_path();
        let child = w.child(at, b"a");
        let (moved, found) = w.during(
            move |w| {
                let moved = w.cache.child_attr(at, &child).is_ok_and(|(_, attr)| attr.uid == 9);
                (moved, w.prefix(at, b"a/x"))
            },
            |w| {
                let (id, _) = w.cache.child_attr(at, &child).unwrap();
                w.cache.get(id).unwrap().update(|a| a.uid = 9);
            },
        );
        assert!(!(moved && found.is_some()), "the link has changed, but its entry still hits");
        assert_eq!(w.prefix(at, b"a/x"), None);
    });
}

/// Rule 10: an entry that is made while the link's driver gives it another target does not hit afterwards. Planted bug:
/// rule10-forgotten-targets-go-unseen.
#[test]
fn loom_rule10_a_path_noted_beside_its_links_new_target_is_older() {
    noted_beside(true, |w, child| {
        let (id, _) = w.cache.child_attr(w.at(), child).unwrap();
        w.cache.get(id).unwrap().forget_target();
    });
}

/// Rule 3: a target that is forgotten is not copied from a slot that another link's target has taken. Planted bug:
/// rule3-a-forgotten-target-leaves-the-sequence.
#[test]
fn loom_rule3_a_forgotten_target_is_not_copied() {
    model(|| {
        let w = World::new(true);
        let (at, child) = w.link(b"own");
        let (id, _) = w.cache.child_attr(at, &child).unwrap();
        let read = w.during(
            move |w| {
                let mut out = [0; TARGET_MAX];
                let read = w.cache.child_target(at, &child, || Time::new(0, 0), &mut out);
                read.map(|found| found.map(|found| out[..found.len].to_vec()))
            },
            |w| {
                w.cache.get(id).unwrap().forget_target();
                // In a thread of its own, with no fence in between but the filler's.
                w.spawn(|w| w.cache.inodes.targets().fill(b"other", true, &|| true).unwrap()).join().unwrap();
            },
        );
        if let Ok(Some(target)) = read {
            assert_eq!(target, b"own");
        }
        // No other is cached in this generation.
        w.cache.get(id).unwrap().keep_target(b"late", true);
        let mut out = [0; TARGET_MAX];
        assert!(w.cache.child_target(at, &child, || Time::new(0, 0), &mut out).unwrap().is_none());
    });
}

/// Rule 10: a path is noted by one name of a link, while a writer removes its other name, which does not move what the
/// noting thread checks. Then the first name goes. Planted bug: rule10-links-lose-their-flag.
#[test]
fn loom_rule10_a_path_does_not_outlive_one_of_two_names() {
    model(|| {
        let (w, at) = World::with_path();
        {
            let root = w.root();
            let id = w.cache.child_attr(at, &w.child(at, b"a")).unwrap().0;
            let link = w.cache.get(id).unwrap();
            let guard = w.cache.lock_name(&root, b"b");
            guard.link(guard.reserve(Room::Name).unwrap(), &link, Ttl::Forever);
        }
        w.during(
            move |w| {
                let question = w.ask(at, b"a/x");
                if let Step::Found(child) = w.step(at, b"a") {
                    let mut out = [0; TARGET_MAX];
                    if let Ok(Some(found)) = w.cache.child_target(at, &child, || Time::new(0, 0), &mut out) {
                        let mut way = Way::new(at);
                        way.add_link(found.link.unwrap());
                        way.add(at);
                        w.cache.note_prefix(&question, &way);
                    }
                }
            },
            |w| w.remove(b"b"),
        );
        w.remove(b"a");
        assert_eq!(w.prefix(at, b"a/x"), None, "the link a is gone, but its entry hits");
    });
}
