//! Ids, positions and answers that are out of date. Each test is one order of events in one thread, so that a missing check
//! fails it every time.

use std::sync::Arc;

use uvfs_cache::attr::mode::{S_IFDIR, S_IFREG};
use uvfs_cache::machinery::{Fresh, Lookup, NameGuard, Retry, SbOptions, Step};
use uvfs_cache::{Attr, Cache, Config, InodeId, InodeRef, Peek, Room, SbId, Ttl};

fn fresh(ino: u64, fmt: u32) -> Fresh {
    let attr = Attr { ino, mode: fmt | 0o755, nlink: 1, ..Attr::default() };
    Fresh { attr, private: ino, ttl: Ttl::Forever }
}

fn world(resident: bool) -> (Arc<Cache>, SbId) {
    let cache = Cache::new(Config { max_inodes: 1 << 12, max_negative: 64, ..Config::default() }).unwrap();
    let sb =
        cache.add_superblock(SbOptions { resident, watched: false, on_evict: Box::new(|_, _| {}) }).unwrap();
    drop(cache.make_root(sb, &fresh(1, S_IFDIR)).unwrap());
    (cache, sb)
}

fn create(cache: &Cache, dir: &InodeRef<'_>, name: &[u8], ino: u64, fmt: u32) -> InodeId {
    let guard = cache.lock_name(dir, name);
    let room = guard.reserve(if fmt == S_IFDIR { Room::Dir } else { Room::Node }).unwrap();
    guard.create(room, &fresh(ino, fmt)).id()
}

fn remove(cache: &Cache, dir: &InodeRef<'_>, name: &[u8]) {
    cache.lock_name(dir, name).remove(None);
}

fn miss<'c>(cache: &'c Cache, dir: &InodeRef<'c>, name: &[u8]) -> NameGuard<'c> {
    match cache.lookup(dir, name) {
        Lookup::Miss(guard) => guard,
        other => panic!("not a miss: {other:?}"),
    }
}

/// Rule 2: a stale id gets no reference to the file that has its slot now, also where that file's references are
/// counted per thread. Planted bug: rule2-counted-by-index-alone.
#[test]
fn rule2_a_stale_id_gets_no_reference_that_is_counted_per_thread() {
    let (cache, sb) = world(true);
    let root = cache.root(sb).unwrap();
    let old = create(&cache, &root, b"old", 5, S_IFREG);
    remove(&cache, &root, b"old");
    let new = create(&cache, &root, b"new", 6, S_IFREG);
    assert_eq!(new.as_u64() as u32, old.as_u64() as u32, "the slot was not used again");
    for _ in 0..1000 {
        drop(cache.get(new));
    }
    assert_eq!(cache.counters().spread, 1, "its references are not counted per thread");
    assert!(cache.get(old).is_none(), "a reference to another file");
    assert_eq!(cache.get(new).unwrap().attr().ino, 6);
    remove(&cache, &root, b"new");
    assert!(cache.get(new).is_none());
}

/// Rule 7: a step into a directory checks the name that led there. Planted bug: rule7-enter-name-not-checked.
#[test]
fn rule7_a_name_that_was_removed_is_not_entered() {
    let (cache, sb) = world(true);
    let root = cache.root(sb).unwrap();
    create(&cache, &root, b"d", 5, S_IFDIR);
    let at = cache.pos(root.id()).unwrap();
    let Step::Found(child) = cache.step(at, b"d") else { panic!("not found") };
    assert!(cache.enter(at, &child).is_ok());
    remove(&cache, &root, b"d");
    assert_eq!(cache.enter(at, &child), Err(Retry::Dentry), "the removed directory");
    create(&cache, &root, b"e", 6, S_IFDIR);
    assert_eq!(cache.enter(at, &child), Err(Retry::Dentry), "another directory under this name");
}

/// Rule 1: a name that was read stays out of date after the memory of its dentry was given back and used again: the new
/// sequence begins above the old one. Planted bugs: rule1-dentries-begin-below-the-floor,
/// rule1-dentries-leave-no-floor.
#[test]
fn rule1_a_dentry_whose_memory_was_given_back_is_not_taken_for_the_old_one() {
    let (cache, sb) = world(true);
    let root = cache.root(sb).unwrap();
    let name = |i: u64| format!("f{i}").into_bytes();
    // Three chunks and more, so that whole ones become empty.
    let names = 4000;
    let fill = || {
        for i in 0..names {
            create(&cache, &root, &name(i), 10 + i, S_IFREG);
        }
    };
    fill();
    let at = cache.pos(root.id()).unwrap();
    let find = |i: u64| match cache.step(at, &name(i)) {
        Step::Found(child) => child,
        other => panic!("{other:?}"),
    };
    let old: Vec<_> = (0..names).map(find).collect();
    assert!(old.iter().all(|child| cache.child_attr(at, child).is_ok()));
    (0..names).for_each(|i| remove(&cache, &root, &name(i)));
    assert!(cache.trim(sb) > 0, "no memory was given back");
    fill();
    let believed = old.iter().filter(|child| cache.child_attr(at, child).is_ok()).count();
    assert_eq!(believed, 0, "names of the dentries' last generations");
}

/// Rule 10: an answer on its way, and a listing, while `change` is made in `dir`: neither is kept.
fn late(cache: &Cache, dir: &InodeRef<'_>, change: &dyn Fn()) {
    let guard = miss(cache, dir, b"late");
    let scan = cache.begin_scan(dir);
    change();
    assert!(!scan.complete(), "a listing of before the change makes the directory complete");
    drop(guard.found(&fresh(99, S_IFREG)).unwrap());
    assert_eq!(cache.peek(dir.id(), b"late"), Peek::Miss, "an answer of before the change was kept");
}

/// A root with a directory "d" and files "a" and "d/b".
fn two_directories(cache: &Cache, sb: SbId) -> [InodeRef<'_>; 2] {
    let root = cache.root(sb).unwrap();
    let dir = cache.get(create(cache, &root, b"d", 5, S_IFDIR)).unwrap();
    create(cache, &root, b"a", 6, S_IFREG);
    create(cache, &dir, b"b", 7, S_IFREG);
    [root, dir]
}

/// Without a change the answer and the listing are kept: the tests below see what the change does.
#[test]
fn rule10_an_answer_in_time_is_kept() {
    let (cache, sb) = world(false);
    let [root, _dir] = two_directories(&cache, sb);
    let guard = miss(&cache, &root, b"late");
    let scan = cache.begin_scan(&root);
    drop(guard.found(&fresh(99, S_IFREG)).unwrap());
    assert!(matches!(cache.peek(root.id(), b"late"), Peek::Hit(..)));
    assert!(scan.complete());
}

/// Planted bug: rule10-remove-leaves-the-revision.
#[test]
fn rule10_an_answer_beside_a_removal_is_late() {
    let (cache, sb) = world(false);
    let [root, dir] = two_directories(&cache, sb);
    late(&cache, &root, &|| remove(&cache, &root, b"a"));
    late(&cache, &dir, &|| remove(&cache, &dir, b"b"));
}

/// Planted bugs: rule10-rename-leaves-the-old-revision, rule10-rename-leaves-the-new-revision.
#[test]
fn rule10_an_answer_beside_a_rename_is_late_in_both_directories() {
    for which in [0, 1] {
        let (cache, sb) = world(false);
        let dirs = two_directories(&cache, sb);
        late(&cache, &dirs[which], &|| {
            let (from, to) = cache.lock_names((&dirs[0], b"a"), (&dirs[1], b"c"));
            let room = to.reserve(Room::Name).unwrap();
            cache.rename(&from, &to, room, None);
        });
    }
}

/// Planted bugs: rule10-exchange-leaves-the-first-revision, rule10-exchange-leaves-the-second-revision.
#[test]
fn rule10_an_answer_beside_an_exchange_is_late_in_both_directories() {
    for which in [0, 1] {
        let (cache, sb) = world(false);
        let dirs = two_directories(&cache, sb);
        late(&cache, &dirs[which], &|| {
            let (a, b) = cache.lock_names((&dirs[0], b"a"), (&dirs[1], b"b"));
            cache.exchange(&a, &b);
        });
    }
}
