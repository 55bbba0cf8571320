//! Rule 6: names that were chosen to collide. Names that no file can have.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use uvfs_cache::attr::mode::{S_IFDIR, S_IFREG};
use uvfs_cache::machinery::{Fresh, Lookup, SbOptions, Step, Stuck};
use uvfs_cache::{Attr, Cache, CacheError, Config, InodeId, Listener, Peek, Room, SbId, Ttl};

fn fresh(ino: u64, fmt: u32) -> Fresh {
    let attr = Attr { ino, mode: fmt | 0o755, nlink: 1, ..Attr::default() };
    Fresh { attr, private: ino, ttl: Ttl::Forever }
}

/// Without the key all of these have the same hash (which a unit test of the hash shows). Broken if the key
/// does not part them: then chains get too long, are counted, and the key is changed in vain.
#[test]
fn rule6_names_that_collide_without_the_key_make_no_long_chains() {
    let cache = Cache::new(Config { max_inodes: 1 << 20, ..Config::default() }).unwrap();
    let sb = cache
        .add_superblock(SbOptions { resident: false, watched: false, on_evict: Box::new(|_, _| {}) })
        .unwrap();
    let root = cache.make_root(sb, &fresh(1, S_IFDIR)).unwrap();
    let name = |i: u64| format!("{i:08}\t").into_bytes();
    for i in 0..50_000 {
        match cache.lookup(&root, &name(i)) {
            Lookup::Miss(guard) => drop(guard.found(&fresh(i + 2, S_IFREG)).unwrap()),
            other => panic!("{other:?}"),
        }
    }
    assert!((0..50_000).all(|i| matches!(cache.peek(root.id(), &name(i)), Peek::Hit(..))));
    let counters = cache.counters();
    // Eight lines are eighty names, where six are usual.
    assert_eq!((counters.long_chains, counters.rekeys), (0, 0), "{counters:?}");
}

/// Counts what it is told of names.
#[derive(Default)]
struct Told(AtomicU64);

impl Listener for Told {
    fn name(&self, _: SbId, _: InodeId, _: &[u8]) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
    fn inode(&self, _: SbId, _: InodeId, _: bool) {}
    fn all(&self, _: SbId) {}
}

/// No name is empty, or longer than 255 bytes: such ones lead nowhere, and nothing is made, kept or told of them.
/// Planted bugs: names-too-long-are-kept, and those beside it.
#[test]
fn names_that_cannot_be_lead_nowhere_and_are_not_made() {
    for resident in [false, true] {
        let cache = Cache::new(Config { max_inodes: 1 << 12, ..Config::default() }).unwrap();
        let sb = cache
            .add_superblock(SbOptions { resident, watched: false, on_evict: Box::new(|_, _| {}) })
            .unwrap();
        let root = cache.make_root(sb, &fresh(1, S_IFDIR)).unwrap();
        let told = Arc::new(Told::default());
        let listener: Arc<dyn Listener> = told.clone();
        cache.listen(Arc::downgrade(&listener));
        let make = |name: &[u8], ino| {
            let guard = cache.lock_name(&root, name);
            let room = guard.reserve(Room::Node).unwrap();
            drop(guard.create(room, &fresh(ino, S_IFREG)));
        };
        make(&[b'x'; 255], 2);
        make(b"x", 3);
        let before = cache.counters();
        for len in [0, 256, 257, 511, 512, 70_000] {
            let name = vec![b'x'; len];
            assert!(matches!(cache.lookup(&root, &name), Lookup::Negative), "{len}");
            assert_eq!(cache.peek(root.id(), &name), Peek::Negative, "{len}");
            let (names, at) = (cache.names(), cache.pos(root.id()).unwrap());
            assert!(matches!(cache.step(at, &name), Step::Absent), "{len}");
            assert_eq!(cache.down(&names, at, &names.hash(&name)), Err(Stuck::Absent), "{len}");
            assert_eq!(cache.look(&names, at, &names.hash(&name), &mut Attr::default()), Err(Stuck::Absent));
            cache.prefetch(&root, &name);
            let guard = cache.lock_name(&root, &name);
            for room in [Room::Name, Room::Node, Room::Dir] {
                assert_eq!(guard.reserve(room).unwrap_err(), CacheError::Name, "{len}");
            }
            if !resident {
                // The answer counts, and is not kept.
                assert_eq!(guard.note_found(&fresh(9, S_IFREG)).unwrap().ino(), 9);
            }
            guard.note_absent(Ttl::Forever);
            guard.remove(None);
            drop(guard);
            drop(cache.lock_names((&root, &name), (&root, b"x")));
            // No answer is late because of it.
            let asked = cache.lock_name(&root, b"y");
            cache.invalidate(&root, &name);
            if !resident {
                drop(asked.found(&fresh(8, S_IFREG)).unwrap());
                assert!(matches!(cache.peek(root.id(), b"y"), Peek::Hit(..)), "{len}");
            }
            cache.invalidate(&root, b"y");
            assert!(!cache.name_changed(sb, 1, &name));
            cache.tell_of_name(&root, &name);
        }
        assert_eq!(cache.counters(), before);
        assert_eq!(told.0.load(Ordering::Relaxed), 0);
        for (name, ino) in [(&[b'x'; 255][..], 2), (b"x", 3)] {
            assert!(matches!(cache.peek(root.id(), name), Peek::Hit(_, attr) if attr.ino == ino));
        }
        drop(root);
        assert_eq!(cache.drop_superblock(sb), 0);
    }
}
