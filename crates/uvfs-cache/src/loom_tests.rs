//! Model checks of the cache's protocols, named after the design rules they prove.
//!
//! Small worlds: eight inodes, two threads, one or two operations each. Preemptions are bounded;
//! `LOOM_MAX_PREEMPTIONS` raises the bound. Each test says which planted bug makes it fail.

use std::sync::Arc;

use crate::attr::mode::{S_IFDIR, S_IFREG};
use crate::{
    Attr, Cache, Config, Fresh, InodeId, InodeRef, Known, Life, Lookup, NameGuard, Peek, Room, SbId,
    SbOptions, Step,
};

fn model(f: impl Fn() + Send + Sync + 'static) {
    let mut b = loom::model::Builder::new();
    if b.preemption_bound.is_none() {
        b.preemption_bound = Some(2);
    }
    b.max_branches = 50_000;
    let f = Arc::new(f);
    b.check(move || {
        let f = f.clone();
        // loom's own thread has a small stack; a cache is built on it.
        roomy(move || f()).join().unwrap();
    });
}

fn roomy<R: Send + 'static>(f: impl FnOnce() -> R + Send + 'static) -> loom::thread::JoinHandle<R> {
    loom::thread::Builder::new().stack_size(1 << 16).spawn(f).unwrap()
}

fn fresh(ino: u64, dir: bool) -> Fresh {
    let mode = if dir { S_IFDIR | 0o755 } else { S_IFREG | 0o644 };
    // The attributes are redundant, so that a copy of two moments shows.
    let attr = Attr { ino, mode, nlink: 1, uid: ino as u32, gid: ino as u32, size: ino, ..Attr::default() };
    Fresh { attr, private: ino, life: Life::Forever }
}

#[derive(Clone)]
struct World {
    cache: Arc<Cache>,
    sb: SbId,
}

impl World {
    fn new(resident: bool) -> Self {
        let cache = Cache::new(Config { max_inodes: 8, max_negative: 2 }).unwrap();
        let sb = cache.add_superblock(SbOptions { resident, on_evict: Box::new(|_, _| {}) }).unwrap();
        drop(cache.make_root(sb, &fresh(1, true)).unwrap());
        Self { cache, sb }
    }
    fn root(&self) -> InodeRef<'_> {
        self.cache.root(self.sb).unwrap()
    }
    fn root_id(&self) -> InodeId {
        self.root().id()
    }
    fn create(&self, name: &[u8], ino: u64, dir: bool) -> InodeId {
        let root = self.root();
        self.create_at(&root, name, ino, dir)
    }
    fn create_at(&self, dir: &InodeRef<'_>, name: &[u8], ino: u64, is_dir: bool) -> InodeId {
        let guard = self.cache.lock_name(dir, name);
        let room = guard.reserve(if is_dir { Room::Dir } else { Room::Node }).unwrap();
        guard.create(room, &fresh(ino, is_dir)).id()
    }
    fn remove(&self, name: &[u8]) {
        let root = self.root();
        self.cache.lock_name(&root, name).remove(None);
    }
    fn rename(&self, from: &[u8], to: &[u8]) {
        let root = self.root();
        let (a, b) = self.cache.lock_names((&root, from), (&root, to));
        let room = b.reserve(Room::Name).unwrap();
        self.cache.rename(&a, &b, room, None);
    }
    fn peek(&self, root: InodeId, name: &[u8]) -> Peek {
        self.cache.peek(root, name)
    }
    fn spawn<R: Send + 'static>(
        &self,
        f: impl FnOnce(World) -> R + Send + 'static,
    ) -> loom::thread::JoinHandle<R> {
        let world = self.clone();
        roomy(move || f(world))
    }
}

fn whole(attr: &Attr) {
    assert!(
        attr.ino == attr.size && attr.uid == attr.gid && u64::from(attr.uid) == attr.ino,
        "torn: {attr:?}"
    );
}

fn miss<'c>(lookup: Lookup<'c>) -> NameGuard<'c> {
    match lookup {
        Lookup::Miss(guard) => guard,
        other => panic!("not a miss: {other:?}"),
    }
}

/// Rule 1: an id whose slot serves another life is recognised. Planted bug: leave the life out of
/// `Cache::attr`'s comparison.
#[test]
fn loom_rule1_an_id_never_reads_another_life() {
    model(|| {
        let w = World::new(true);
        let id = w.create(b"a", 5, false);
        let t = w.spawn(|w| {
            w.remove(b"a");
            w.create(b"b", 6, false);
        });
        if let Some(attr) = w.cache.attr(id) {
            whole(&attr);
            assert_eq!(attr.ino, 5, "another life's attributes");
        }
        t.join().unwrap();
        assert!(w.cache.attr(id).is_none() && w.cache.get(id).is_none());
    });
}

/// Rule 4: a length or index read from a name that is being rewritten leads nowhere wrong. Planted
/// bug: read the length a second time in `copy_name`'s caller, or drop the bound in `Tails::matches`.
#[test]
fn loom_rule4_a_name_that_changes_length_is_not_misread() {
    model(|| {
        let w = World::new(true);
        let (short, long) = ([b's'; 3], [b'l'; 44]);
        w.create(&short, 5, false);
        let root = w.root_id();
        let t = w.spawn(move |w| w.rename(&[b's'; 3], &[b'l'; 44]));
        let dir = w.root();
        w.cache.read_dir(&dir, 0, &mut |name, ino, _, _| {
            assert!(name == short || name == long, "a name of two moments");
            assert_eq!(ino, 5);
            true
        });
        if let Peek::Hit(_, attr) = w.peek(root, &long) {
            whole(&attr);
        }
        t.join().unwrap();
    });
}

/// Rule 7: what a hit copies is one moment's truth, also when the name is removed and the inode's
/// slot is recycled meanwhile. Planted bug: leave the dentry's check out of `child_attr`, or read
/// the dentry's inode a second time after it.
#[test]
fn loom_rule7_a_hit_is_one_moments_truth() {
    model(|| {
        let w = World::new(true);
        w.create(b"a", 5, false);
        let root = w.root_id();
        let t = w.spawn(|w| {
            w.remove(b"a");
            w.create(b"b", 6, false);
        });
        match w.peek(root, b"a") {
            Peek::Hit(_, attr) => {
                whole(&attr);
                assert_eq!(attr.ino, 5, "another file's attributes under this name");
            }
            Peek::Negative | Peek::Miss => {}
            Peek::Stale => panic!("the root is no directory"),
        }
        t.join().unwrap();
    });
}

/// Rule 8: permissions that a walk reads are one moment's, if its position still stands. Planted
/// bug: let `Published::change` leave the walk sequence alone.
#[test]
fn loom_rule8_a_walk_sees_permissions_of_one_moment() {
    model(|| {
        let w = World::new(true);
        let root = w.root_id();
        let t = w.spawn(|w| {
            w.root().update(|a| {
                a.uid = 9;
                a.gid = 9;
            });
        });
        if let Some(at) = w.cache.pos(root) {
            let perm = w.cache.perm(at);
            if w.cache.check(at) {
                assert_eq!(perm.uid, perm.gid, "owner and group of two moments");
            }
        }
        t.join().unwrap();
    });
}

/// Rule 8: a directory that is renamed away while a walk goes through it stops the walk. Planted
/// bug: rename without moving the walk sequence.
#[test]
fn loom_rule8_a_walk_notices_that_its_directory_moved() {
    model(|| {
        let w = World::new(true);
        w.create(b"d", 5, true);
        let root = w.root_id();
        let at = w.cache.pos(root).unwrap();
        let hash = w.cache.hash_name(b"d");
        let Step::Found(child) = w.cache.step(at, &hash) else { panic!("d is there") };
        let inside = w.cache.enter(at, &child).unwrap();
        let t = w.spawn(|w| w.rename(b"d", b"e"));
        let still = w.cache.check(inside);
        let gone = matches!(w.peek(root, b"d"), Peek::Negative);
        t.join().unwrap();
        assert!(!w.cache.check(inside));
        // Seen before the rename or not at all.
        let _ = (still, gone);
    });
}

/// Rule 9: an eviction never makes a name that exists look absent. Planted bug: take the complete
/// flag away after the name instead of before, or read it before the scan.
#[test]
fn loom_rule9_an_evicted_name_is_unknown_not_absent() {
    model(|| {
        let w = World::new(false);
        let root = w.root();
        let scan = w.cache.begin_scan(&root);
        drop(miss(w.cache.lookup(&root, b"a")).found(&fresh(5, false)).unwrap());
        assert!(scan.complete());
        assert_eq!(w.peek(root.id(), b"x"), Peek::Negative);
        let t = w.spawn(|w| assert_eq!(w.cache.evict_unused(w.sb, 1), 1));
        assert_ne!(w.peek(root.id(), b"a"), Peek::Negative, "a false ENOENT");
        t.join().unwrap();
        assert_eq!(w.peek(root.id(), b"a"), Peek::Miss);
    });
}

/// Rule 10: an answer that was asked for before an invalidation is not cached. Planted bug: check
/// the revision before the bucket is locked instead of under the lock.
#[test]
fn loom_rule10_a_late_answer_is_not_cached() {
    model(|| {
        let w = World::new(false);
        let root = w.root();
        let guard = miss(w.cache.lookup(&root, b"a"));
        let t = w.spawn(|w| w.cache.invalidate(&w.root(), b"a"));
        let inode = guard.found(&fresh(5, false)).unwrap();
        assert_eq!(inode.ino(), 5, "the answer is returned all the same");
        t.join().unwrap();
        assert_eq!(w.peek(root.id(), b"a"), Peek::Miss, "a late answer was cached");
    });
}

/// Rule 11: of a create in a directory and the directory's removal, one fails. Planted bug: count
/// the child after it was published.
#[test]
fn loom_rule11_no_child_in_a_removed_directory() {
    model(|| {
        let w = World::new(true);
        let id = w.create(b"d", 5, true);
        let t = w.spawn(move |w| {
            let Some(dir) = w.cache.get(id) else { return false };
            let guard = w.cache.lock_name(&dir, b"f");
            match guard.reserve(Room::Node) {
                Ok(room) => {
                    guard.create(room, &fresh(6, false));
                    true
                }
                Err(_) => false,
            }
        });
        let root = w.root();
        let guard = w.cache.lock_name(&root, b"d");
        let Known::Hit(dir) = guard.find() else { panic!("d is there") };
        let removed = dir.begin_death().map(|death| guard.remove(Some(death))).is_ok();
        drop((dir, guard));
        let created = t.join().unwrap();
        assert!(created != removed, "created {created}, removed {removed}");
        assert_eq!(matches!(w.peek(root.id(), b"d"), Peek::Hit(..)), created);
    });
}

/// Rule 12: a name that is replaced by a rename is never absent, and leads to the old or the new
/// file. Planted bug: unlock between taking the target out and putting the new one in.
#[test]
fn loom_rule12_a_replaced_target_is_never_absent() {
    model(|| {
        let w = World::new(true);
        w.create(b"a", 5, false);
        w.create(b"b", 6, false);
        let root = w.root_id();
        let t = w.spawn(|w| w.rename(b"a", b"b"));
        match w.peek(root, b"b") {
            Peek::Hit(_, attr) => {
                whole(&attr);
                assert!(attr.ino == 5 || attr.ino == 6);
            }
            Peek::Miss => {}
            other => panic!("the target was absent: {other:?}"),
        }
        t.join().unwrap();
        assert!(matches!(w.peek(root, b"b"), Peek::Hit(_, a) if a.ino == 5));
        assert_eq!(w.peek(root, b"a"), Peek::Negative);
    });
}

/// Rule 12: exchanged names are never absent, and once one shows the other's file, so does the
/// other. Planted bug: two write sections instead of one in `exchange`.
#[test]
fn loom_rule12_an_exchange_is_one_step() {
    model(|| {
        let w = World::new(true);
        w.create(b"a", 5, false);
        w.create(b"b", 6, false);
        let root = w.root_id();
        let t = w.spawn(|w| {
            let root = w.root();
            let (a, b) = w.cache.lock_names((&root, b"a"), (&root, b"b"));
            w.cache.exchange(&a, &b);
        });
        let ino = |p: Peek| match p {
            Peek::Hit(_, attr) => Some(attr.ino),
            Peek::Miss => None,
            other => panic!("an exchanged name was absent: {other:?}"),
        };
        let first = ino(w.peek(root, b"a"));
        let second = ino(w.peek(root, b"b"));
        if first == Some(6) {
            assert!(second.is_none_or(|i| i == 5), "half an exchange");
        }
        t.join().unwrap();
    });
}

/// Rule 13: of two concurrent misses of one name one asks, and the other is woken when the answer
/// is there. Planted bug: release the name without telling who waits (loom reports the deadlock).
#[test]
fn loom_rule13_concurrent_misses_ask_once() {
    model(|| {
        let w = World::new(false);
        let asked = Arc::new(loom::sync::atomic::AtomicUsize::new(0));
        let ask = |w: &World, asked: &loom::sync::atomic::AtomicUsize| {
            let root = w.root();
            loop {
                match w.cache.lookup(&root, b"a") {
                    Lookup::Hit(inode, _) => return inode.ino(),
                    Lookup::Negative => panic!("it exists"),
                    Lookup::Busy(pending) => pending.wait().unwrap(),
                    Lookup::Miss(guard) => {
                        asked.fetch_add(1, loom::sync::atomic::Ordering::Relaxed);
                        drop(guard.found(&fresh(5, false)).unwrap());
                    }
                }
            }
        };
        let t = {
            let asked = asked.clone();
            w.spawn(move |w| ask(&w, &asked))
        };
        assert_eq!(ask(&w, &asked), 5);
        assert_eq!(t.join().unwrap(), 5);
        assert_eq!(asked.load(loom::sync::atomic::Ordering::Relaxed), 1, "asked twice");
    });
}

/// Rule 16: a name that is being created is absent or finished, never half made. Planted bug: put
/// the dentry in before the inode is filled.
#[test]
fn loom_rule16_an_insert_is_finished_before_it_is_seen() {
    model(|| {
        let w = World::new(true);
        let root = w.root_id();
        let t = w.spawn(|w| w.create(b"a", 5, false));
        match w.peek(root, b"a") {
            Peek::Hit(id, attr) => {
                whole(&attr);
                assert_eq!(attr.ino, 5);
                assert!(w.cache.get(id).is_some(), "found before it had a reference");
            }
            Peek::Negative | Peek::Miss => {}
            Peek::Stale => panic!("the root is no directory"),
        }
        t.join().unwrap();
    });
}
