//! Model checks of a front end's lookups, and of the step into a directory.

use super::*;

/// Rule 7: a step into a directory leads into the name's own one, even if it is removed and another
/// directory gets its slot meanwhile. Planted bug: rule7-enter-reads-the-stamp-last (and
/// rule7-enter-name-not-checked, which a test without threads finds).
#[test]
fn loom_rule7_a_directory_that_is_entered_is_the_names_own() {
    model(|| {
        let w = World::new(true);
        let id = w.create(b"d", 5, true);
        let at = w.at();
        let child = w.child(at, b"d");
        let inside =
            w.during(move |w| w.cache.enter(at, &child), |w| w.unlink_and_recycle(child.dentry, id, true));
        if let Ok(inside) = inside {
            assert_eq!(inside.id(), id, "another directory under this name");
        }
    });
}

/// Rule 2: the kernel's first lookup of a file takes its reference before it is counted. So a forget in
/// between, of a lookup that the kernel was not told of, drops no reference that nobody has taken. Planted
/// bug: rule2-lookups-counted-first.
#[test]
fn loom_rule2_a_forget_beside_the_first_lookup_drops_no_other_reference() {
    model(|| {
        let ended = Arc::new(AtomicU32::new(0));
        let count = ended.clone();
        let hook = Box::new(move |_: &Attr, _| {
            count.fetch_add(1, Ordering::Relaxed);
        });
        let w = World::with_hook(true, hook);
        let id = w.create(b"a", 5, false);
        // Open, and without a name: it has only this reference.
        let open = w.cache.get(id).unwrap();
        w.remove(b"a");
        let forgetter = w.spawn(move |w| w.cache.forget_lookups(id, 1));
        open.add_lookups(1);
        forgetter.join().unwrap();
        assert_eq!(ended.load(Ordering::Relaxed), 0, "the file ended while it was open");
        assert_eq!(open.attr().ino, 5);
        drop(open);
        w.cache.forget_lookups(id, 1);
        assert_eq!(ended.load(Ordering::Relaxed), 1);
        assert!(w.cache.get(id).is_none());
    });
}
