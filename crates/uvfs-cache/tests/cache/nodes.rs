//! The cache as servers embed it: data of each inode, handles, names back, keys, TTLs, superblocks that come and go.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use uvfs_cache::attr::mode::{S_IFDIR, S_IFLNK, S_IFREG};
use uvfs_cache::{
    Attr, CacheError, Config, Errno, NodeAnswer, NodeCache, NodeKnown, NodeLookup, NodeSuperblock, OwnedNode,
    Peek, Room, Ttl,
};

/// The embedder's data: counts itself while it lives.
#[derive(Debug)]
pub struct Counted {
    pub label: u64,
    alive: Arc<AtomicI64>,
}

impl Counted {
    pub fn new(label: u64, alive: &Arc<AtomicI64>) -> Self {
        alive.fetch_add(1, Ordering::Relaxed);
        Self { label, alive: alive.clone() }
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        assert!(self.alive.fetch_sub(1, Ordering::Relaxed) > 0, "dropped twice");
    }
}

pub fn attr(ino: u64, mode: u32) -> Attr {
    Attr { ino, mode: mode | 0o755, nlink: 1, size: ino, ..Attr::default() }
}

pub fn answer<T>(attr: Attr, data: T) -> NodeAnswer<T> {
    NodeAnswer { attr, name_ttl: Ttl::Forever, attr_ttl: Ttl::Forever, data }
}

/// A superblock whose data count themselves.
struct World {
    alive: Arc<AtomicI64>,
    cache: NodeCache<Counted>,
    sb: NodeSuperblock<Counted>,
}

impl World {
    fn new() -> Self {
        Self::with(Config { max_inodes: 1 << 14, ..Config::default() })
    }

    fn with(config: Config) -> Self {
        let alive = Arc::new(AtomicI64::new(0));
        let cache = NodeCache::new(config).unwrap();
        let sb = cache.add_superblock(false, answer(attr(1, S_IFDIR), Counted::new(1, &alive))).unwrap();
        Self { alive, cache, sb }
    }

    fn answer(&self, ino: u64, mode: u32) -> NodeAnswer<Counted> {
        answer(attr(ino, mode), Counted::new(ino, &self.alive))
    }

    fn found(&self, dir: &OwnedNode<Counted>, name: &[u8], ino: u64, mode: u32) -> OwnedNode<Counted> {
        match dir.blocking_lookup(name).unwrap() {
            NodeLookup::Miss(ticket) => ticket.found(self.answer(ino, mode)).unwrap(),
            other => panic!("{other:?}"),
        }
    }

    fn alive(&self) -> i64 {
        self.alive.load(Ordering::Relaxed)
    }
}

fn path(node: &OwnedNode<Counted>) -> Option<String> {
    node.path().unwrap().map(|path| String::from_utf8(path).unwrap())
}

#[test]
fn data_lives_as_long_as_its_inode_and_is_dropped_once() {
    let w = World::new();
    let root = w.sb.root();
    assert_eq!((root.data().label, w.alive()), (1, 1));
    let file = w.found(&root, b"a", 5, S_IFREG);
    assert_eq!((file.data().label, w.alive()), (5, 2));
    // The inode is known: its data stays, and the answer's goes.
    let again = w.found(&root, b"b", 5, S_IFREG);
    assert_eq!((again == file, w.alive()), (true, 2));
    let borrowed = w.cache.borrow(root.id()).unwrap();
    let NodeKnown::Hit(child) = borrowed.child(b"a") else { panic!("cached") };
    assert_eq!((child.data().label, child.attr().size), (5, 5));
    assert!(matches!(borrowed.child(b"other"), NodeKnown::Unknown));
    drop((child, borrowed));
    // Data need not be made for an inode that is known.
    let NodeLookup::Miss(ticket) = root.blocking_lookup(b"c").unwrap() else { panic!() };
    let made = ticket.found_with(attr(5, S_IFREG), Ttl::Forever, Ttl::Forever, || panic!("known"));
    assert_eq!(made.unwrap(), file);
    root.invalidate(b"a");
    root.invalidate(b"b");
    root.invalidate(b"c");
    drop(again);
    assert_eq!((file.data().label, w.alive()), (5, 2), "the handle holds it");
    let id = file.id();
    drop(file);
    assert_eq!(w.alive(), 1);
    assert!(w.cache.node(id).is_none(), "a stale id");
    drop((root, w.sb));
    assert_eq!(w.alive.load(Ordering::Relaxed), 0);
}

#[test]
fn a_cache_drops_all_data_with_its_last_handle() {
    let w = World::new();
    let root = w.sb.root();
    for i in 0..100 {
        let file = w.found(&root, format!("{i}").as_bytes(), 10 + i, S_IFREG);
        file.add_lookups(3);
    }
    let World { alive, cache, sb } = w;
    let file = sb.by_number(17).unwrap();
    assert_eq!((alive.load(Ordering::Relaxed), file.lookups()), (101, 3));
    assert_eq!(sb.remove(), 2, "the root and the file, by their handles");
    drop((cache, root));
    assert_eq!((alive.load(Ordering::Relaxed), file.data().label), (1, 17));
    assert!(file.path().unwrap().is_none());
    drop(file);
    assert_eq!(alive.load(Ordering::Relaxed), 0);
}

#[test]
fn data_counts_in_the_limit_and_goes_with_evicted_inodes() {
    let w = World::with(Config { memory_limit: 4 << 20, ..Config::default() });
    let root = w.sb.root();
    let bare = w.cache.counters().bytes;
    drop(w.found(&root, b"first", 5, S_IFREG));
    assert!(w.cache.counters().bytes >= bare + 1024 * size_of::<Counted>() as u64, "a chunk of data");
    for i in 0..40_000u64 {
        drop(w.found(&root, format!("file {i}").as_bytes(), 10 + i, S_IFREG));
    }
    let counters = w.cache.counters();
    assert!(counters.evicted > 10_000 && counters.bytes <= 5 << 20, "{counters:?}");
    assert_eq!(w.alive(), counters.inodes as i64, "one value an inode");
    w.cache.set_memory_limit(1);
    assert!(w.alive() < 100, "{}", w.alive());
}

#[test]
fn data_without_bytes_takes_no_memory() {
    let (with, without) =
        (NodeCache::<u64>::new(Config::default()).unwrap(), NodeCache::<()>::new(Config::default()).unwrap());
    let _with = with.add_superblock(false, answer(attr(1, S_IFDIR), 7)).unwrap();
    let _without = without.add_superblock(false, answer(attr(1, S_IFDIR), ())).unwrap();
    assert_eq!(with.counters().bytes - without.counters().bytes, 8 * 1024);
}

#[test]
fn names_and_paths_lead_back_and_follow_renames() {
    let w = World::new();
    let root = w.sb.root();
    let dir = w.found(&root, b"dir", 2, S_IFDIR);
    let deep = w.found(&dir, b"deep", 3, S_IFDIR);
    let long = [b'n'; 200];
    let (file, link) = (w.found(&deep, &long, 4, S_IFREG), w.found(&deep, b"l", 5, S_IFLNK));
    let (parent, name) = file.name().unwrap();
    assert_eq!((parent == deep, &name[..]), (true, &long[..]));
    assert_eq!(path(&link).unwrap(), "dir/deep/l");
    assert_eq!(path(&root).unwrap(), "");
    assert!(root.name().is_none());
    let _renames = w.sb.blocking_lock_renames();
    assert!(w.sb.try_lock_renames().is_err());
    let (from, mut to) = w.cache.blocking_lock_names((&dir, b"deep"), (&root, b"up"));
    assert!(deep.is_below(&root) && !root.is_below(&deep));
    to.reserve(Room::Name).unwrap();
    w.cache.rename(from, to).unwrap();
    assert_eq!(path(&link).unwrap(), "up/l");
    assert_eq!(path(&file).unwrap(), format!("up/{}", String::from_utf8_lossy(&long)));
    root.invalidate(b"up");
    assert_eq!((path(&deep), path(&file), file.name().is_some()), (None, None, true));
    assert_eq!(path(&w.found(&dir, b"back", 3, S_IFDIR)).unwrap(), "dir/back");
    assert_eq!(path(&link).unwrap(), "dir/back/l");
}

#[test]
fn a_hard_link_has_all_its_names_and_finds_another() {
    let w = World::new();
    let root = w.sb.root();
    let dir = w.found(&root, b"dir", 2, S_IFDIR);
    let file = w.found(&root, b"one", 4, S_IFREG);
    file.update(|a| a.nlink = 3);
    for (dir, name) in [(&root, b"two"), (&dir, b"tri")] {
        dir.blocking_lock_name(name).link(&file, Ttl::Forever).unwrap();
    }
    let names = |file: &OwnedNode<Counted>| {
        let mut names: Vec<_> = file.names().into_iter().map(|(dir, name)| (dir.attr().ino, name)).collect();
        names.sort_unstable();
        names
    };
    assert_eq!(names(&file), [(1, b"one".to_vec()), (1, b"two".to_vec()), (2, b"tri".to_vec())]);
    assert_eq!(path(&file).unwrap(), "dir/tri", "the last one");
    dir.blocking_lock_name(b"tri").remove();
    assert!(["one", "two"].contains(&&path(&file).unwrap()[..]), "another one");
    root.blocking_lock_name(b"one").remove();
    root.blocking_lock_name(b"two").remove();
    assert!(file.name().is_none() && file.names().is_empty() && path(&file).is_none());
}

#[test]
fn changes_reserve_and_publish() {
    let w = World::new();
    let root = w.sb.root();
    let mut lock = root.blocking_lock_name(b"dir");
    assert!(matches!(lock.known(), NodeKnown::Unknown) && lock.name() == b"dir" && lock.dir() == root);
    lock.reserve(Room::Dir).unwrap();
    let dir = lock.create(w.answer(2, S_IFDIR)).unwrap();
    // Reserved as another kind than the back end made.
    let mut lock = dir.blocking_lock_name(b"file");
    lock.reserve(Room::Dir).unwrap();
    let file = lock.create(w.answer(3, S_IFREG)).unwrap();
    assert_eq!((path(&file).unwrap(), w.alive()), ("dir/file".into(), 3));
    let mut lock = root.blocking_lock_name(b"dir");
    assert!(lock.begin_removal(&dir).is_err(), "not empty");
    drop(lock);
    dir.blocking_lock_name(b"file").remove();
    let mut lock = root.blocking_lock_name(b"dir");
    lock.begin_removal(&dir).unwrap();
    assert_eq!(dir.blocking_lock_name(b"new").reserve(Room::Node).unwrap_err(), CacheError::Dying);
    // Given up: entries may come again.
    drop(lock);
    dir.blocking_lock_name(b"new").reserve(Room::Node).unwrap();
    let mut lock = root.blocking_lock_name(b"dir");
    lock.begin_removal(&dir).unwrap();
    lock.remove();
    assert!(dir.blocking_lock_name(b"new").reserve(Room::Node).is_err());
    assert_eq!(root.blocking_lock_name(b"").reserve(Room::Node).unwrap_err(), CacheError::Name);
    drop((dir, file));
    assert_eq!((w.alive(), w.cache.counters().dentries), (1, 0), "what was reserved is back");
}

#[test]
fn a_created_number_belongs_to_the_new_inode() {
    let w = World::new();
    let root = w.sb.root();
    let old = w.found(&root, b"old", 7, S_IFREG);
    let new = root.blocking_lock_name(b"new").create(w.answer(7, S_IFREG)).unwrap();
    assert!(old != new && w.sb.by_number(7).unwrap() == new);
    assert_eq!((old.data().label, old.trusted_attr()), (7, None));
    assert!(matches!(root.blocking_lookup(b"old").unwrap(), NodeLookup::Miss(_)), "asked again");
    drop(old);
    assert!(w.sb.by_number(7).unwrap() == new);
}

#[test]
fn the_root_is_found_by_number_and_gets_no_name() {
    let w = World::new();
    let root = w.sb.root();
    assert!(w.sb.by_number(1).unwrap() == root && w.sb.by_number(2).is_none());
    // A loop in the back end: the root below itself.
    let below = w.found(&root, b"loop", 1, S_IFDIR);
    assert!(below == root && root.name().is_none() && w.alive() == 1);
    assert_eq!(path(&root).unwrap(), "");
    assert!(matches!(root.blocking_lookup(b"loop").unwrap(), NodeLookup::Miss(_)), "not cached");
    let (by_number, current) = w.sb.found_number(w.sb.ask(), w.answer(9, S_IFREG)).unwrap();
    assert!(current && w.sb.by_number(9).unwrap() == by_number && by_number.name().is_none());
}

#[test]
fn a_root_that_is_no_directory_is_refused() {
    let cache = NodeCache::new(Config { max_inodes: 1 << 12, ..Config::default() }).unwrap();
    let bytes = cache.counters().bytes;
    for root in [S_IFREG, S_IFLNK, 0] {
        let refused = cache.add_superblock(false, answer(attr(1, root), ()));
        assert_eq!(refused.unwrap_err(), CacheError::NotDirectory);
    }
    assert_eq!(cache.counters().bytes, bytes);
    let root = cache.add_superblock(false, answer(attr(1, S_IFDIR), ())).unwrap().root();
    assert_eq!(root.attr().fmt(), S_IFDIR);
}

#[test]
fn data_counts_in_the_limit_while_it_lives() {
    let config = Config { max_inodes: 1 << 12, data_bytes: 1 << 30, ..Config::default() };
    let cache = NodeCache::new(config).unwrap();
    let sb = cache.add_superblock(false, answer(attr(1, S_IFDIR), ())).unwrap();
    let (root, each) = (sb.root(), || cache.counters().bytes >> 30);
    assert_eq!(each(), 1);
    let look = |name: &[u8], ino| match root.blocking_lookup(name).unwrap() {
        NodeLookup::Miss(ticket) => ticket.found(answer(attr(ino, S_IFREG), ())).unwrap(),
        other => panic!("{other:?}"),
    };
    let file = look(b"a", 2);
    assert_eq!(each(), 2);
    // Of an inode that has its data, that of the second answer is dropped.
    assert!(look(b"b", 2) == file);
    assert_eq!(each(), 2);
    root.invalidate(b"a");
    root.invalidate(b"b");
    assert_eq!(each(), 2, "a handle has it");
    drop(file);
    assert_eq!(each(), 1);
}

#[test]
fn a_key_has_a_number_while_its_inode_is_cached() {
    struct Keyed {
        key: uvfs_cache::NodeKey,
    }
    let cache = NodeCache::<Keyed>::new(Config { max_inodes: 1 << 12, ..Config::default() }).unwrap();
    let keys = cache.keys(1 << 32);
    let handle = [7u8; 64];
    let keyed = |bytes: &[u8]| {
        let key = keys.key(bytes).unwrap();
        answer(attr(key.number(), S_IFREG), Keyed { key })
    };
    let mut root = keyed(b"root");
    root.attr.mode = S_IFDIR | 0o755;
    let sb = cache.add_superblock(false, root).unwrap();
    let dir = sb.by_key(&keys, b"root").unwrap();
    assert!(dir == sb.root() && dir.data().key.key() == b"root");
    assert!(keys.key(&[0; 65]).is_err());
    let look = |name: &[u8], bytes: &[u8]| match dir.blocking_lookup(name).unwrap() {
        NodeLookup::Miss(ticket) => ticket.found(keyed(bytes)).unwrap(),
        other => panic!("{other:?}"),
    };
    drop(look(b"first", b"takes a chunk"));
    let bytes = cache.counters().bytes;
    let file = look(b"a", &handle);
    assert!(look(b"b", &handle) == file && sb.by_key(&keys, &handle).unwrap() == file);
    assert!(cache.counters().bytes > bytes + 64, "keys count in the limit");
    // The object under this key is another one now.
    file.replaced();
    let other = keys.replace(&file.data().key);
    let same = keys.replace(&file.data().key);
    assert_eq!(same.number(), other.number(), "the same change, seen twice, is one change");
    assert!(sb.by_key(&keys, &handle).is_none() && other.number() != file.attr().ino);
    let new = look(b"a", &handle);
    assert!(new != file && sb.by_key(&keys, &handle).unwrap() == new);
    assert!(new.attr().ino == other.number() && file.data().key.key() == handle);
    drop((file, other, same));
    assert!(sb.by_key(&keys, &handle).unwrap() == new, "the old key leaves the new one alone");
    dir.invalidate(b"a");
    dir.invalidate(b"b");
    drop(new);
    assert_eq!(keys.number(&handle), None);
    assert_eq!(cache.counters().bytes, bytes);
}

#[test]
fn names_absence_attributes_and_listings_have_ttls_of_their_own() {
    let w = World::new();
    let root = w.sb.root();
    let seconds = |s| Ttl::For(Duration::from_secs(s));
    let ask = |name: &[u8]| match root.blocking_lookup(name).unwrap() {
        NodeLookup::Miss(ticket) => ticket,
        other => panic!("{other:?}"),
    };
    let file = ask(b"a")
        .found(NodeAnswer { name_ttl: seconds(30), attr_ttl: seconds(10), ..w.answer(5, S_IFREG) })
        .unwrap();
    let quick = ask(b"q")
        .found(NodeAnswer { name_ttl: Ttl::ZERO, attr_ttl: seconds(10), ..w.answer(6, S_IFREG) })
        .unwrap();
    assert!(
        matches!(root.blocking_lookup(b"q").unwrap(), NodeLookup::Miss(_)) && quick.trusted_attr().is_some()
    );
    ask(b"no").absent(seconds(20));
    let listing = root.begin_listing();
    assert!(listing.blocking_found(b"a", w.answer(5, S_IFREG)).unwrap() == file);
    assert!(listing.complete(seconds(25)));
    assert!(matches!(root.blocking_lookup(b"never").unwrap(), NodeLookup::Negative), "complete");
    let known = |name: &[u8]| match root.blocking_lookup(name).unwrap() {
        NodeLookup::Hit(node) => {
            if node.trusted_attr().is_some() {
                "hit"
            } else {
                "old"
            }
        }
        NodeLookup::Negative => "negative",
        NodeLookup::Miss(_) => "miss",
    };
    let all = || [known(b"a"), known(b"no"), known(b"never")];
    assert_eq!(all(), ["hit", "negative", "negative"]);
    w.cache.advance_clock(11_000);
    assert_eq!(all(), ["old", "negative", "negative"]);
    let revision = file.revision();
    assert!(file.refresh(revision, &attr(5, S_IFREG), seconds(3)) && file.trusted_attr().is_some());
    w.cache.advance_clock(10_000);
    assert_eq!(all(), ["old", "miss", "negative"], "a negative entry that expired proves nothing");
    w.cache.advance_clock(5_000);
    assert_eq!(all(), ["old", "miss", "miss"], "the listing is too old");
    w.cache.advance_clock(5_000);
    assert_eq!(all(), ["miss", "miss", "miss"]);
}

#[test]
fn an_inode_listed_by_name_keeps_its_number_while_its_type_stays() {
    let w = World::new();
    let root = w.sb.root();
    let list = |ino, mode, name_ttl| {
        let answer = NodeAnswer { name_ttl, ..w.answer(ino, mode) };
        root.begin_listing().blocking_found_by_name(b"a", answer).unwrap()
    };
    let file = list(5, S_IFREG, Ttl::Forever);
    assert_eq!(file.attr().ino, 5);
    assert!(list(6, S_IFREG, Ttl::Forever) == file, "known");
    root.invalidate(b"a");
    let second = Ttl::For(Duration::from_secs(1));
    let file = list(8, S_IFREG, second);
    assert_eq!(file.attr().ino, 8, "an invalidated name proves nothing");
    w.cache.advance_clock(2_000);
    assert!(matches!(root.blocking_lookup(b"a").unwrap(), NodeLookup::Miss(_)));
    assert!(list(9, S_IFREG, second) == file, "expired");
    let dir = list(10, S_IFDIR, Ttl::Forever);
    assert!(dir != file && dir.attr().ino == 10);
    assert_eq!(path(&dir).as_deref(), Some("a"));
}

#[test]
fn a_removed_superblock_gives_everything_back_and_its_place_serves_again() {
    let w = World::new();
    let bytes = w.cache.counters().bytes;
    let mut ids = std::collections::HashSet::new();
    for round in 0..300 {
        let mut all: Vec<_> =
            (0..10).map(|_| w.cache.add_superblock(false, w.answer(1, S_IFDIR)).unwrap()).collect();
        ids.extend(all.iter().map(NodeSuperblock::id));
        let sb = all.pop().unwrap();
        let root = sb.root();
        let file = w.found(&root, b"file", 5, S_IFREG);
        file.add_lookups(1);
        assert_eq!(sb.by_number(5).unwrap(), file);
        drop((all, root));
        assert_eq!(sb.remove(), 1, "the file's handle");
        drop(file);
        assert_eq!(w.alive(), 1, "round {round}");
    }
    // One at a time waits for the file's handle.
    assert!(ids.len() <= 11, "{} ids", ids.len());
    assert!(w.cache.counters().bytes < bytes + (1 << 20), "{:?}", w.cache.counters());
}

#[test]
fn a_failed_question_reaches_all_that_wait_for_it() {
    let w = World::new();
    let root = w.sb.root();
    let NodeLookup::Miss(ticket) = root.try_lookup(b"a").unwrap() else { panic!() };
    assert!(ticket.name() == b"a" && ticket.dir() == root);
    let waits = root.try_lookup(b"a").unwrap_err();
    ticket.fail(Errno::IO);
    assert_eq!(waits.wait(), Err(Errno::IO));
    let NodeLookup::Miss(ticket) = root.try_lookup(b"a").unwrap() else { panic!() };
    let waits = root.try_lookup(b"a").unwrap_err();
    std::thread::spawn(move || drop(ticket)).join().unwrap();
    assert_eq!(waits.wait(), Ok(()));
    assert!(matches!(w.cache.peek(root.id(), b"a"), Peek::Miss));
}

/// An answer that comes after the removal of its superblock does no harm, and does not keep the place.
#[test]
fn a_ticket_that_outlives_its_superblock_leaves_nothing() {
    let w = World::new();
    let World { alive, cache, sb } = w;
    let (id, root) = (sb.id(), sb.root());
    let tickets: Vec<_> = [&b"a"[..], b"b", b"c"].map(|name| root.try_lookup(name).unwrap()).into();
    drop(sb);
    for (i, ticket) in tickets.into_iter().enumerate() {
        let NodeLookup::Miss(ticket) = ticket else { panic!("nobody asked") };
        match i {
            0 => drop(ticket.found(answer(attr(5, S_IFREG), Counted::new(5, &alive)))),
            1 => ticket.absent(Ttl::Forever),
            _ => drop(ticket),
        }
    }
    let new =
        |ino| cache.add_superblock(false, answer(attr(ino, S_IFDIR), Counted::new(ino, &alive))).unwrap();
    let beside = new(1);
    assert!(beside.id() != id, "the root is held");
    drop(root);
    let again = new(2);
    assert!(again.id() == id && again.by_number(1).is_none() && again.by_number(5).is_none());
    assert!(matches!(again.root().try_lookup(b"a"), Ok(NodeLookup::Miss(_))));
    assert!(matches!(again.root().try_lookup(b"b"), Ok(NodeLookup::Miss(_))));
    assert_eq!(alive.load(Ordering::Relaxed), 2);
    drop((beside, again));
    assert_eq!(alive.load(Ordering::Relaxed), 0);
}

/// Threads look up, evict, replace and rename in a cache of few inodes: each handle has its own inode's data.
#[test]
fn threads_find_the_data_of_their_own_inodes() {
    let w = World::with(Config { memory_limit: 1 << 20, ..Config::default() });
    let (root, alive) = (w.sb.root(), &w.alive);
    std::thread::scope(|scope| {
        for thread in 0..4u64 {
            let (root, w) = (root.clone(), &w);
            scope.spawn(move || {
                for i in 0..15_000u64 {
                    let n =
                        i.wrapping_mul(0x9e37_79b9_7f4a_7c15).wrapping_add(thread).rotate_left(23) % 9_000;
                    let name = format!("{n}");
                    let node = match root.blocking_lookup(name.as_bytes()).unwrap() {
                        NodeLookup::Hit(node) => node,
                        NodeLookup::Negative => continue,
                        NodeLookup::Miss(ticket) => match ticket.found(w.answer(10 + n, S_IFREG)) {
                            Ok(node) => node,
                            Err(error) => panic!("{error}"),
                        },
                    };
                    assert_eq!((node.data().label, node.attr().ino), (10 + n, 10 + n));
                    match i % 16 {
                        0 => node.replaced(),
                        1 => root.invalidate(name.as_bytes()),
                        2 => drop(w.sb.by_number(10 + n).map(|node| assert_eq!(node.data().label, 10 + n))),
                        3 => node.add_lookups(2),
                        4 => drop(w.sb.forget_lookups(node.id(), 2)),
                        _ => {}
                    }
                }
            });
        }
    });
    assert!(w.cache.counters().evicted > 0);
    assert_eq!(alive.load(Ordering::Relaxed), w.cache.counters().inodes as i64);
    drop(root);
    drop(w.sb);
    assert_eq!(alive.load(Ordering::Relaxed), 0);
}

/// Rule 12: the file is renamed to each next number, then its directory. So a path has the file's number, and for the
/// directory that or the one before.
#[test]
fn rule12_paths_beside_renames_are_of_one_moment() {
    let w = World::new();
    let root = w.sb.root();
    let dir = w.found(&root, b"0", 2, S_IFDIR);
    let file = w.found(&dir, b"0", 5, S_IFREG);
    let done = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                while !done.load(Ordering::Relaxed) {
                    let Ok(path) = file.path() else { continue };
                    let path = String::from_utf8(path.expect("it is never nameless")).unwrap();
                    let (dir, file) = path.split_once('/').unwrap();
                    let (dir, file): (u64, u64) = (dir.parse().unwrap(), file.parse().unwrap());
                    assert!(file == dir || file == dir + 1, "{path} was never its path");
                }
            });
        }
        for i in 0..20_000u64 {
            let (old, new) = (format!("{i}"), format!("{}", i + 1));
            for parent in [&dir, &root] {
                let (from, to) =
                    w.cache.blocking_lock_names((parent, old.as_bytes()), (parent, new.as_bytes()));
                w.cache.rename(from, to).unwrap();
            }
        }
        done.store(true, Ordering::Relaxed);
    });
    assert_eq!(path(&file).unwrap(), "20000/20000");
}
