//! Model checks of listings: beside renames (rule 15), and of a driver's entries beside removals (rule 10).

use super::{World, fresh, miss, model};
use crate::{Peek, Room, Ttl};

/// The names of a directory, one a call: what is changed between two calls is seen by the second one.
fn list(w: &World) -> Vec<Vec<u8>> {
    let (root, mut names, mut cookie) = (w.root(), Vec::new(), 0);
    loop {
        let before = names.len();
        w.cache.read_dir(&root, cookie, &mut |name, _, _, next| {
            names.push(name.to_vec());
            cookie = next;
            false
        });
        if names.len() == before {
            return names;
        }
    }
}

fn count(names: &[Vec<u8>], name: &[u8]) -> usize {
    names.iter().filter(|listed| *listed == name).count()
}

/// Rule 15: a name that is replaced by a rename in its directory is listed once, by whoever lists meanwhile. Planted bug:
/// rule15-names-change-in-a-hold-of-their-own.
#[test]
fn loom_rule15_a_replaced_name_is_listed_once() {
    for newer in [b"a", b"b"] {
        model(move || {
            let w = World::new(true);
            let older: &[u8; 1] = if newer == b"a" { b"b" } else { b"a" };
            w.create(older, 5, false);
            w.create(newer, 6, false);
            let names = w.during(|w| list(&w), |w| w.rename(b"a", b"b"));
            assert_eq!(count(&names, b"b"), 1, "{names:?}");
            assert!(count(&names, b"a") <= 1, "{names:?}");
            assert_eq!(list(&w), [b"b"]);
        });
    }
}

/// Rule 15: the same for one that is replaced from another directory. Planted bug:
/// rule15-names-change-in-a-hold-of-their-own.
#[test]
fn loom_rule15_a_name_replaced_from_elsewhere_is_listed_once() {
    model(|| {
        let w = World::of(6, true, Box::new(|_, _| {}));
        w.create(b"b", 5, false);
        let other = w.create(b"d", 6, true);
        w.create_at(&w.cache.get(other).unwrap(), b"a", 7, false);
        let names = w.during(
            |w| list(&w),
            |w| {
                let (root, other) = (w.root(), w.cache.get(other).unwrap());
                let (a, b) = w.cache.lock_names((&other, b"a"), (&root, b"b"));
                let room = b.reserve(Room::Name).unwrap();
                w.cache.rename(&a, &b, room, None);
            },
        );
        assert_eq!((count(&names, b"b"), names.len()), (1, 2), "{names:?}");
    });
}

/// Rule 15: a file that moves to another directory is in the one or the other, for who lists the old one after it was seen
/// in the new one too, and is not listed under the name that it has there. Planted bug: rule15-lists-what-has-left.
#[test]
fn loom_rule15_what_has_left_is_not_listed() {
    model(|| {
        let w = World::new(true);
        let other = w.create(b"d", 6, true);
        w.create(b"a", 5, false);
        let names = w.during(
            |w| list(&w),
            |w| {
                let (root, other) = (w.root(), w.cache.get(other).unwrap());
                let (a, b) = w.cache.lock_names((&root, b"a"), (&other, b"b"));
                let room = b.reserve(Room::Name).unwrap();
                w.cache.rename(&a, &b, room, None);
            },
        );
        assert_eq!((count(&names, b"d"), count(&names, b"b")), (1, 0), "{names:?}");
        assert!(
            matches!(w.peek(other, b"b"), crate::Peek::Hit(_, attr) if attr.ino == fresh(5, false).attr.ino)
        );
    });
}

fn a_listed_name_beside(end: impl Fn(&World) + Clone + Send + Sync + 'static) {
    model(move || {
        let w = World::new(false);
        let root = w.root();
        let scan = w.cache.begin_scan(&root);
        // The driver lists "a", which ends, there and here, before or after the cache is told.
        let end = end.clone();
        let ends = w.spawn(move |w| end(&w));
        assert_eq!(scan.found(b"a", &fresh(5, false)).unwrap().ino(), 5);
        ends.join().unwrap();
        assert_eq!(w.peek(w.root_id(), b"a"), Peek::Miss, "cached though it has ended");
        assert!(!scan.complete());
        assert_eq!(w.peek(w.root_id(), b"b"), Peek::Miss);
    });
}

/// Rule 10: an entry of a listing that began before a removal is not cached. Planted bug:
/// rule10-listed-names-are-of-now.
#[test]
fn loom_rule10_a_listed_name_that_is_removed_is_not_cached() {
    a_listed_name_beside(|w| w.remove(b"a"));
}

/// Rule 10: the same of an invalidation, which does not have the right to the name. Planted bug:
/// rule10-listed-names-are-of-now.
#[test]
fn loom_rule10_a_listed_name_that_is_invalidated_is_not_cached() {
    a_listed_name_beside(|w| w.cache.invalidate(&w.root(), b"a"));
}

/// Rule 10: that a name is absent, asked before somebody made it and said so, is not cached. Planted bug:
/// rule10-a-late-absence-is-cached.
#[test]
fn loom_rule10_a_late_absence_is_not_cached() {
    model(|| {
        let w = World::new(false);
        let root = w.root();
        let guard = miss(w.cache.lookup(&root, b"a"));
        let t = w.spawn(|w| w.cache.invalidate(&w.root(), b"a"));
        guard.absent(Ttl::Forever);
        t.join().unwrap();
        assert_eq!(w.peek(root.id(), b"a"), Peek::Miss, "a late absence was cached");
    });
}
