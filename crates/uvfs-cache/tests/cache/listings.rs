//! Entries of a driver's listing that are told to the cache while names and inodes change (design rule 10).
//!
//! The driver lists `a` (inode 5) and `b` (inode 6), and then something happens before the cache is told. An entry that it
//! concerns is not cached, whatever was cached of the name before, and the directory is not complete.

use std::sync::Arc;
use std::time::Duration;

use uvfs_cache::attr::mode::{S_IFDIR, S_IFREG};
use uvfs_cache::machinery::{Fresh, Lookup, NameGuard, SbOptions};
use uvfs_cache::{Attr, Cache, Config, InodeRef, Peek, Room, SbId, Ttl};

struct World {
    cache: Arc<Cache>,
    sb: SbId,
}

fn fresh(ino: u64, fmt: u32, size: u64) -> Fresh {
    let attr = Attr { ino, mode: fmt | 0o755, nlink: 2, size, ..Attr::default() };
    Fresh { attr, private: ino, ttl: Ttl::Forever }
}

fn file(ino: u64) -> Fresh {
    fresh(ino, S_IFREG, 1)
}

impl World {
    fn new() -> Self {
        let cache = Cache::new(Config { max_inodes: 1 << 12, ..Config::default() }).unwrap();
        let sb = cache
            .add_superblock(SbOptions { resident: false, watched: true, on_evict: Box::new(|_, _| {}) })
            .unwrap();
        drop(cache.make_root(sb, &fresh(1, S_IFDIR, 0)).unwrap());
        Self { cache, sb }
    }

    fn root(&self) -> InodeRef<'_> {
        self.cache.root(self.sb).unwrap()
    }

    fn ask(&self, name: &[u8]) -> NameGuard<'_> {
        match self.cache.lookup(&self.root(), name) {
            Lookup::Miss(guard) => guard,
            other => panic!("not a miss: {other:?}"),
        }
    }

    fn peek(&self, name: &[u8]) -> Peek {
        self.cache.peek(self.root().id(), name)
    }

    /// The number of the inode that a name leads to without anybody being asked.
    fn cached(&self, name: &[u8]) -> Option<u64> {
        match self.peek(name) {
            Peek::Hit(_, attr) => Some(attr.ino),
            _ => None,
        }
    }

    fn rename(&self, from: &[u8], to: &[u8]) {
        let (from, to) = self.cache.lock_names((&self.root(), from), (&self.root(), to));
        self.cache.rename(&from, &to, to.reserve(Room::Name).unwrap(), None);
    }
}

type Step = fn(&World);

/// The steps that decide what is cached of `a` before the listing.
const BEFORE: [(&str, Step); 4] = [
    ("nothing", |_| {}),
    ("a positive entry", |w| drop(w.ask(b"a").found(&file(5)).unwrap())),
    ("an expired entry", |w| {
        drop(w.ask(b"a").found(&Fresh { ttl: Ttl::For(Duration::from_millis(500)), ..file(5) }).unwrap());
        w.cache.advance_clock(1000);
        assert_eq!(w.peek(b"a"), Peek::Miss);
    }),
    ("a negative entry", |w| w.ask(b"a").absent(Ttl::Forever)),
];

/// The steps that happen to `a` after the driver has listed it, and before the cache is told.
const MEANWHILE: [(&str, Step); 9] = [
    ("removed", |w| w.cache.lock_name(&w.root(), b"a").remove(None)),
    ("renamed", |w| w.rename(b"a", b"moved")),
    ("replaced", |w| w.rename(b"other", b"a")),
    ("exchanged", |w| {
        let (a, b) = w.cache.lock_names((&w.root(), b"a"), (&w.root(), b"other"));
        w.cache.exchange(&a, &b);
    }),
    ("invalidated", |w| w.cache.invalidate(&w.root(), b"a")),
    ("changed by others", |w| assert!(w.cache.name_changed(w.sb, 1, b"a"))),
    ("removed and made anew", |w| {
        w.cache.lock_name(&w.root(), b"a").remove(None);
        let guard = w.cache.lock_name(&w.root(), b"a");
        drop(guard.create(guard.reserve(Room::Node).unwrap(), &file(8)));
    }),
    ("removed and evicted", |w| {
        w.cache.lock_name(&w.root(), b"a").remove(None);
        while w.cache.evict_unused(w.sb, 1) > 0 {}
    }),
    ("suspect with all else", |w| w.cache.all_suspect(w.sb)),
];

#[test]
fn rule10_an_entry_that_is_older_than_a_change_of_its_name_is_not_cached() {
    for (was, before) in BEFORE {
        for (what, meanwhile) in MEANWHILE {
            let w = World::new();
            let root = w.root();
            drop(w.ask(b"other").found(&file(7)).unwrap());
            before(&w);
            let scan = w.cache.begin_scan(&root);
            meanwhile(&w);
            let after = w.cached(b"a");
            assert_eq!(scan.found(b"a", &file(5)).unwrap().ino(), 5, "{was}, {what}: it is returned");
            assert_eq!(w.cached(b"a"), after, "{was}, {what}: cached though late");
            assert_ne!(after, Some(5), "{was}, {what}");
            assert!(!scan.complete(), "{was}, {what}: complete");
            assert_ne!(w.peek(b"never there"), Peek::Negative, "{was}, {what}");
        }
    }
}

/// A name that comes through [`NameGuard::found`] instead would be cached: the right to it is younger than the listing.
#[test]
fn rule10_an_entry_of_a_listing_that_nothing_disturbs_is_cached() {
    for (was, before) in BEFORE {
        let w = World::new();
        let root = w.root();
        before(&w);
        let scan = w.cache.begin_scan(&root);
        let a = scan.found(b"a", &file(5)).unwrap();
        let b = scan.found(b"b", &file(6)).unwrap();
        // A second listing, or the second half of this one, finds them.
        let names = w.cache.counters().dentries;
        assert_eq!((scan.found(b"a", &file(5)).unwrap().id(), names), (a.id(), w.cache.counters().dentries));
        assert_eq!((w.cached(b"a"), w.cached(b"b"), b.ino()), (Some(5), Some(6), 6), "{was}");
        assert!(scan.complete(), "{was}");
        assert_eq!(w.peek(b"never there"), Peek::Negative, "{was}");
    }
}

/// An eviction says nothing of the driver: what it evicted may be cached again, but the directory is not complete.
#[test]
fn rule10_an_eviction_during_a_listing_keeps_the_directory_incomplete() {
    for (was, before) in BEFORE {
        let w = World::new();
        let root = w.root();
        drop(w.ask(b"other").found(&file(7)).unwrap());
        before(&w);
        let scan = w.cache.begin_scan(&root);
        while w.cache.evict_unused(w.sb, 1) > 0 {}
        drop(scan.found(b"a", &file(5)).unwrap());
        assert_eq!(w.cached(b"a"), Some(5), "{was}");
        assert!(!scan.complete(), "{was}");
        assert_eq!(w.peek(b"other"), Peek::Miss, "{was}: it exists");
    }
}

/// Attributes that are older than a change of the inode, which another name leads to or somebody holds, are not stored. The
/// other entries are as good as before.
#[test]
fn rule10_attributes_of_a_listing_that_are_older_than_a_change_are_not_stored() {
    let changes: [fn(&World, &InodeRef<'_>); 2] = [
        |_, inode| inode.update(|attr| attr.size = 2),
        |w, inode| {
            assert!(w.cache.inode_changed(w.sb, 5, S_IFREG, false));
            assert!(inode.refresh_unless_changed(inode.revision(), &fresh(5, S_IFREG, 2).attr, Ttl::Forever));
        },
    ];
    for change in changes {
        for (was, before) in BEFORE {
            let w = World::new();
            let root = w.root();
            let inode = w.ask(b"link").found(&file(5)).unwrap();
            before(&w);
            let scan = w.cache.begin_scan(&root);
            change(&w, &inode);
            assert_eq!(scan.found(b"a", &file(5)).unwrap().id(), inode.id(), "{was}");
            assert_eq!(inode.attr().size, 2, "{was}: attributes of the past");
            drop(scan.found(b"b", &file(6)).unwrap());
            if was == "nothing" || was == "an expired entry" {
                assert_eq!((w.peek(b"a"), w.cached(b"b")), (Peek::Miss, Some(6)), "{was}");
                assert!(!scan.complete(), "{was}: without an entry");
            }
            assert!(matches!(w.peek(b"link"), Peek::Hit(_, attr) if attr.size == 2), "{was}");
        }
    }
}

/// Somebody holds the inode, and its name is not what the listing says.
#[test]
fn rule10_a_listing_that_contradicts_the_cache_is_believed() {
    let w = World::new();
    let root = w.root();
    drop(w.ask(b"a").found(&file(7)).unwrap());
    w.ask(b"b").absent(Ttl::Forever);
    let scan = w.cache.begin_scan(&root);
    drop((scan.found(b"a", &file(5)).unwrap(), scan.found(b"b", &file(6)).unwrap()));
    assert_eq!((w.cached(b"a"), w.cached(b"b")), (Some(5), Some(6)));
    assert!(scan.complete());
    // Where it may not be cached, neither is what it contradicts.
    let scan = w.cache.begin_scan(&root);
    let answer = Fresh { ttl: Ttl::ZERO, ..file(8) };
    drop(scan.found(b"a", &answer).unwrap());
    assert_eq!(w.peek(b"a"), Peek::Miss);
    assert!(!scan.complete());
}
