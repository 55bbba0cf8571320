//! Model checks of changes behind the cache (`stale.rs`, `expiry.rs`): an answer requested before a change
//! is not trusted after it.

use super::*;

/// The truth, and a change of it behind the cache.
struct Behind(AtomicU32);

impl Behind {
    fn new() -> Arc<Self> {
        Arc::new(Self(AtomicU32::new(1)))
    }
    fn attr(&self) -> Attr {
        let size = u64::from(self.0.load(Ordering::Relaxed));
        Attr { size, ..fresh(5, false).attr }
    }
    fn change(&self) {
        self.0.store(2, Ordering::Relaxed);
    }
}

fn watched() -> World {
    World::with(4, SbOptions { resident: false, watched: true, on_evict: Box::new(|_, _| {}) })
}

/// Rule 10: a getattr's answer that was requested before a change is not trusted after it, even if the
/// attributes were stale before. Planted bugs: rule10-stale-leaves-the-sequence,
/// rule10-refresh-ignores-the-sequence.
#[test]
fn loom_rule10_a_late_getattr_is_not_believed() {
    for stale in [false, true] {
        model(move || {
            let w = watched();
            let root = w.root();
            let inode = miss(w.cache.lookup(&root, b"a")).found(&fresh(5, false)).unwrap();
            if stale {
                inode.mark_stale();
            }
            let (behind, id) = (Behind::new(), inode.id());
            let theirs = behind.clone();
            let t = w.spawn(move |w| {
                theirs.change();
                w.cache.get(id).unwrap().mark_stale();
            });
            let asked = inode.revision();
            let answer = behind.attr();
            inode.refresh_unless_changed(asked, &answer, Ttl::Forever);
            t.join().unwrap();
            assert!(inode.expired() || inode.attr().size == 2, "a late answer is trusted");
        });
    }
}

/// Rule 14: a lookup's answer that was requested before the epoch moved is not trusted after it. Planted
/// bug: rule14-answer-of-the-present-epoch.
#[test]
fn loom_rule14_an_answer_of_the_last_epoch_is_not_believed() {
    model(|| {
        let w = watched();
        let (root, behind) = (w.root(), Behind::new());
        let theirs = behind.clone();
        let t = w.spawn(move |w| {
            theirs.change();
            w.cache.clock.move_epoch();
        });
        let guard = miss(w.cache.lookup(&root, b"a"));
        let answer = Fresh { attr: behind.attr(), ..fresh(5, false) };
        drop(guard.found(&answer).unwrap());
        t.join().unwrap();
        if let Peek::Hit(_, attr) = w.peek(root.id(), b"a") {
            assert_eq!(attr.size, 2, "a late answer is trusted");
        }
    });
}

/// Rule 14: the same for a getattr's answer. (A lookup looks at the cache once more after it has remembered
/// the epoch; the fence of that look would hide a relaxed load.) Planted bug: rule14-epoch-relaxed.
#[test]
fn loom_rule14_a_getattr_of_the_last_epoch_is_not_believed() {
    model(|| {
        let w = watched();
        let (root, behind) = (w.root(), Behind::new());
        let inode = miss(w.cache.lookup(&root, b"a")).found(&fresh(5, false)).unwrap();
        let theirs = behind.clone();
        let t = w.spawn(move |w| {
            theirs.change();
            w.cache.clock.move_epoch();
        });
        let asked = inode.revision();
        inode.refresh_unless_changed(asked, &behind.attr(), Ttl::Forever);
        t.join().unwrap();
        assert!(inode.expired() || inode.attr().size == 2, "a late answer is trusted");
    });
}

/// Rule 14: another name that was asked for in the new epoch does not serve a late answer either. Planted
/// bug: rule14-late-attributes-of-the-last-epoch.
#[test]
fn loom_rule14_a_late_answer_does_not_spoil_another_name() {
    slow_model(|| {
        let w = watched();
        let (root, behind) = (w.root(), Behind::new());
        drop(miss(w.cache.lookup(&root, b"b")).found(&fresh(5, false)).unwrap());
        let asked = miss(w.cache.lookup(&root, b"a"));
        let late = Fresh { attr: behind.attr(), ..fresh(5, false) };
        behind.change();
        let t = w.spawn(move |w| {
            w.cache.clock.move_epoch();
            let now = Fresh { attr: behind.attr(), ..fresh(5, false) };
            drop(miss(w.cache.lookup(&w.root(), b"b")).found(&now).unwrap());
        });
        drop(asked.found(&late).unwrap());
        t.join().unwrap();
        if let Peek::Hit(_, attr) = w.peek(root.id(), b"b") {
            assert_eq!(attr.size, 2, "a trusted name serves a late answer");
        }
    });
}

/// Rule 14: a reader that knows that the epoch has moved trusts nothing of the last one. Planted bug:
/// rule14-hit-ignores-the-epoch.
#[test]
fn loom_rule14_a_hit_notices_that_the_epoch_has_moved() {
    model(|| {
        let w = watched();
        let root = w.root_id();
        drop(miss(w.cache.lookup(&w.root(), b"a")).found(&fresh(5, false)).unwrap());
        let told = Arc::new(AtomicU32::new(0));
        let theirs = told.clone();
        let (knew, seen) = w.during(
            move |w| (theirs.load(Ordering::Acquire) == 1, w.peek(root, b"a")),
            |w| {
                w.cache.clock.move_epoch();
                told.store(1, Ordering::Release);
            },
        );
        assert!(!knew || seen == Peek::Miss, "trusted after the epoch moved: {seen:?}");
    });
}
