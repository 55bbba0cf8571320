//! Mistakes and chances of embedders: renames onto the same name, link counts that are late, data that owns
//! superblocks, or whose drop panics.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::time::Duration;

use uvfs_cache::attr::mode::{S_IFDIR, S_IFREG};
use uvfs_cache::{Config, NodeCache, NodeSuperblock, OwnedNode, Peek, Room, Ttl};
use uvfs_sync::primitives::Mutex;

use crate::nodes::{Counted, answer, attr};

/// A cache with a root that is listed whole: a name that is not cached does not exist.
fn complete() -> (NodeCache<()>, NodeSuperblock<()>) {
    let cache = NodeCache::new(Config { max_inodes: 1 << 14, ..Config::default() }).unwrap();
    let sb = cache.add_superblock(true, answer(attr(1, S_IFDIR), ())).unwrap();
    assert!(sb.root().begin_listing().complete(Ttl::Forever));
    (cache, sb)
}

fn create(dir: &OwnedNode<()>, name: &[u8], ino: u64) -> OwnedNode<()> {
    dir.blocking_lock_name(name).create(answer(attr(ino, S_IFREG), ())).unwrap()
}

fn is_hit(cache: &NodeCache<()>, dir: &OwnedNode<()>, name: &[u8]) -> bool {
    matches!(cache.peek(dir.id(), name), Peek::Hit(..))
}

#[test]
fn a_file_finds_its_other_name_whatever_its_link_count_says() {
    let (_cache, sb) = complete();
    let root = sb.root();
    let file = create(&root, b"a", 2);
    root.blocking_lock_name(b"b").link(&file, Ttl::Forever).unwrap();
    root.blocking_lock_name(b"b").remove();
    // The count is already as after the removal, or was never told.
    assert_eq!(file.attr().nlink, 1);
    assert_eq!(file.name().map(|(_, name)| name), Some(b"a".to_vec()));
    assert_eq!(file.path().unwrap(), Some(b"a".to_vec()));
    root.blocking_lock_name(b"a").remove();
    for _ in 0..2 {
        assert!(file.name().is_none() && file.path().unwrap().is_none());
    }
    root.blocking_lock_name(b"c").link(&file, Ttl::Forever).unwrap();
    assert_eq!(file.path().unwrap(), Some(b"c".to_vec()));
}

#[test]
fn a_rename_onto_itself_keeps_the_name_and_leaks_nothing() {
    let (cache, sb) = complete();
    let root = sb.root();
    for name in [&b"short"[..], &[b'n'; 200]] {
        let file = create(&root, name, name.len() as u64);
        let before = cache.counters().bytes;
        for _ in 0..20_000 {
            let (from, to) = cache.blocking_lock_names((&root, name), (&root, name));
            cache.rename(from, to).unwrap();
        }
        assert!(is_hit(&cache, &root, name), "{}", name.len());
        assert_eq!(file.name().map(|(_, name)| name), Some(name.to_vec()));
        assert!(cache.counters().bytes <= before + (1 << 16), "{before} {:?}", cache.counters());
    }
}

#[test]
fn a_rename_over_another_link_of_the_file_keeps_both_names() {
    let (cache, sb) = complete();
    let root = sb.root();
    let file = create(&root, b"a", 2);
    root.blocking_lock_name(b"b").link(&file, Ttl::Forever).unwrap();
    let (from, to) = cache.blocking_lock_names((&root, b"a"), (&root, b"b"));
    cache.rename(from, to).unwrap();
    assert!(is_hit(&cache, &root, b"a") && is_hit(&cache, &root, b"b"));
    assert_eq!(file.names().len(), 2);
}

#[test]
fn a_removal_begins_only_where_the_name_leads() {
    let (cache, sb) = complete();
    let root = sb.root();
    let make =
        |name: &[u8], ino| root.blocking_lock_name(name).create(answer(attr(ino, S_IFDIR), ())).unwrap();
    let (a, b) = (make(b"a", 2), make(b"b", 3));
    let mut lock = root.blocking_lock_name(b"a");
    assert!(lock.begin_removal(&root).is_err() && lock.begin_removal(&b).is_err());
    lock.begin_removal(&a).unwrap();
    drop(lock);
    for dir in [&root, &a, &b] {
        dir.blocking_lock_name(b"new").reserve(Room::Node).unwrap();
    }
    assert!(is_hit(&cache, &root, b"a"));
}

#[test]
fn lookups_of_a_client_that_counts_wrongly_saturate() {
    let (_cache, sb) = complete();
    let file = create(&sb.root(), b"a", 2);
    let id = file.id();
    file.add_lookups(u64::MAX);
    file.add_lookups(1);
    file.add_lookups(u64::MAX);
    sb.root().blocking_lock_name(b"a").remove();
    drop(file);
    let cache = sb.cache().clone();
    assert!(cache.node(id).is_some(), "the client holds it");
    assert_eq!(sb.forget_lookups(id, u64::MAX), u64::MAX);
    assert!(cache.node(id).is_none(), "and no more");
}

/// Data that owns a superblock of the same cache, as a mount point would.
struct Point {
    _inner: Mutex<Option<NodeSuperblock<Point>>>,
}

#[test]
fn data_may_own_a_superblock_of_its_cache() {
    let point = |inner| Point { _inner: Mutex::new(inner) };
    let cache = NodeCache::new(Config { max_inodes: 1 << 12, ..Config::default() }).unwrap();
    let new = |ino| cache.add_superblock(false, answer(attr(ino, S_IFDIR), point(None))).unwrap();
    let (outer, inner) = (new(1), new(1));
    let root = outer.root();
    let uvfs_cache::NodeLookup::Miss(ticket) = root.try_lookup(b"point").unwrap() else { panic!() };
    drop((root, outer));
    // The answer is late: its inode stays in the removed superblock until that serves again.
    drop(ticket.found(answer(attr(5, S_IFDIR), point(Some(inner)))));
    let (done, ends) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let next = cache.add_superblock(false, answer(attr(1, S_IFDIR), Point { _inner: Mutex::new(None) }));
        done.send(next.is_ok()).unwrap();
    });
    assert_eq!(ends.recv_timeout(Duration::from_secs(60)), Ok(true), "it waits for itself");
}

/// Data whose drop panics now and then.
struct Fragile {
    _counted: Counted,
    panics: bool,
}

impl Drop for Fragile {
    fn drop(&mut self) {
        assert!(!self.panics, "a test's panic");
    }
}

#[test]
fn a_drop_that_panics_leaves_no_slot_behind() {
    let alive = Arc::new(AtomicI64::new(0));
    let n = AtomicU64::new(0);
    let value = || {
        let n = n.fetch_add(1, Ordering::Relaxed);
        Fragile { _counted: Counted::new(n, &alive), panics: n % 1000 == 999 }
    };
    let limit = 1 << 20;
    let cache =
        NodeCache::new(Config { max_inodes: 1 << 16, memory_limit: limit, ..Config::default() }).unwrap();
    let sb = cache.add_superblock(false, answer(attr(1, S_IFDIR), value())).unwrap();
    let root = sb.root();
    for ino in 2..20_000_u64 {
        let name = format!("file {ino}");
        root.blocking_lock_name(name.as_bytes()).create(answer(attr(ino, S_IFREG), value())).unwrap();
    }
    drop(root);
    assert!(cache.counters().bytes <= limit, "{:?}", cache.counters());
    assert_eq!(sb.remove(), 0, "nothing is held");
    drop(cache);
    assert_eq!(alive.load(Ordering::Relaxed), 0, "each was dropped");
}
