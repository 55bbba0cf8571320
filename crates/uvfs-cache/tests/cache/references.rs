//! References that are counted per thread: the end of an inode comes with its last reference,
//! whoever took and dropped the others, and whatever else happens meanwhile.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, mpsc};

use uvfs_cache::attr::mode::{S_IFDIR, S_IFREG};
use uvfs_cache::machinery::{Fresh, Lookup, OwnedId, SbOptions};
use uvfs_cache::{Attr, Cache, Config, InodeId, InodeRef, Room, SbId, Ttl};

struct World {
    cache: Arc<Cache>,
    sb: SbId,
    /// Inodes that ended.
    ended: Arc<AtomicU64>,
}

fn fresh(ino: u64, fmt: u32) -> Fresh {
    let attr = Attr { ino, mode: fmt | 0o755, nlink: 1, ..Attr::default() };
    Fresh { attr, private: ino, ttl: Ttl::Forever }
}

impl World {
    fn new(resident: bool) -> Self {
        let cache =
            Cache::new(Config { max_inodes: 1 << 12, max_negative: 64, ..Config::default() }).unwrap();
        let ended = Arc::new(AtomicU64::new(0));
        let count = Arc::clone(&ended);
        let on_evict = Box::new(move |_: &Attr, _| {
            count.fetch_add(1, Ordering::Relaxed);
        });
        let sb = cache.add_superblock(SbOptions { resident, watched: false, on_evict }).unwrap();
        drop(cache.make_root(sb, &fresh(1, S_IFDIR)).unwrap());
        Self { cache, sb, ended }
    }

    fn root(&self) -> InodeRef<'_> {
        self.cache.root(self.sb).unwrap()
    }

    fn create(&self, name: &[u8], ino: u64) -> InodeId {
        let guard = self.cache.lock_name(&self.root(), name);
        let room = guard.reserve(Room::Node).unwrap();
        guard.create(room, &fresh(ino, S_IFREG)).id()
    }

    fn remove(&self, name: &[u8]) {
        self.cache.lock_name(&self.root(), name).remove(None);
    }

    /// Uses an inode until its references are counted per thread.
    fn heat(&self, id: InodeId) {
        let before = self.cache.counters().spread;
        for _ in 0..1000 {
            drop(self.cache.get(id));
            if self.cache.counters().spread > before {
                return;
            }
        }
        panic!("not spread");
    }

    fn ended(&self) -> u64 {
        self.ended.load(Ordering::Relaxed)
    }

    /// Nothing is left over, and nothing was lost.
    fn check(&self, created: u64) {
        assert_eq!((self.ended(), self.cache.counters().inodes), (created, 1));
        assert_eq!(self.cache.drop_superblock(self.sb), 0);
        assert_eq!((self.ended(), self.cache.counters().spread), (created + 1, 0));
    }
}

#[test]
fn rule2_a_file_that_is_used_often_ends_with_its_last_reference() {
    let w = World::new(true);
    let id = w.create(b"f", 5);
    let early = w.cache.get(id).unwrap();
    w.heat(id);
    let late = w.cache.get(id).unwrap();
    let another = late.clone();
    let forgotten = late.clone().into_owned();
    w.remove(b"f");
    assert_eq!(w.cache.counters().spread, 0);
    for last in [early, late, another] {
        assert_eq!(last.attr().ino, 5);
        assert_eq!(w.ended(), 0);
        drop(last);
    }
    assert_eq!(w.ended(), 0);
    drop(w.cache.adopt(forgotten));
    assert_eq!(w.ended(), 1);
    assert!(w.cache.get(id).is_none());
    w.check(1);
}

/// Planted bug: rule2-anybodys-reference-is-adopted.
#[test]
fn rule2_a_reference_is_given_back_by_its_owner_only() {
    let (w, other) = (World::new(true), World::new(true));
    // The same index and generation in either cache.
    let ids = [&w, &other].map(|w| w.create(b"f", 5));
    assert_eq!(ids[0], ids[1]);
    for stranger in
        [|w: &World| w.cache.get(w.root().id()).unwrap().into_owned(), |_: &World| OwnedId::default()]
    {
        let owned = stranger(&w);
        let adopt = AssertUnwindSafe(|| drop(other.cache.adopt(owned)));
        assert!(catch_unwind(adopt).is_err());
    }
    let owned = w.cache.get(ids[0]).unwrap().into_owned();
    assert!(catch_unwind(AssertUnwindSafe(|| other.cache.inode_of(&owned).id())).is_err());
    // A look counts nothing, and what is made of it is a reference of its own.
    let another = w.cache.inode_of(&owned).clone();
    w.remove(b"f");
    drop(another);
    assert_eq!(w.ended(), 0);
    drop(w.cache.adopt(owned));
    assert_eq!(w.ended(), 1);
    other.remove(b"f");
    assert_eq!(other.ended(), 1);
}

#[test]
fn an_unlinked_file_that_is_open_is_not_spread_again() {
    let w = World::new(true);
    let id = w.create(b"f", 5);
    w.heat(id);
    let open = w.cache.get(id).unwrap();
    w.remove(b"f");
    for _ in 0..1000 {
        drop(w.cache.get(id).unwrap());
    }
    assert_eq!(w.cache.counters().spread, 0);
    drop(open);
    w.check(1);
}

#[test]
fn references_are_dropped_by_threads_that_did_not_take_them() {
    let w = World::new(true);
    let id = w.create(b"f", 5);
    std::thread::scope(|s| {
        for _ in 0..4 {
            let (give, take) = mpsc::sync_channel(16);
            let cache = &w.cache;
            s.spawn(move || {
                for _ in 0..20_000 {
                    give.send(cache.get(id).unwrap()).unwrap();
                }
            });
            s.spawn(move || take.into_iter().for_each(drop));
        }
    });
    assert_eq!(w.cache.counters().spread, 1);
    w.remove(b"f");
    w.check(1);
}

#[test]
fn threads_come_and_go() {
    let w = World::new(true);
    let id = w.create(b"f", 5);
    w.heat(id);
    let kept: Vec<InodeRef<'_>> = std::thread::scope(|s| {
        let use_and_keep = || {
            for _ in 0..50 {
                drop(w.cache.get(id).unwrap());
            }
            w.cache.get(id).unwrap()
        };
        let threads: Vec<_> = (0..200).map(|_| s.spawn(use_and_keep)).collect();
        threads.into_iter().map(|t| t.join().unwrap()).collect()
    });
    w.remove(b"f");
    assert_eq!(w.ended(), 0);
    drop(kept);
    w.check(1);
}

/// More files than can be spread at one time, used, removed and made again all the while.
#[test]
fn names_end_while_their_files_are_used() {
    const FILES: u64 = 48;
    let w = World::new(true);
    let name = |i: u64| format!("f{i}").into_bytes();
    let ids: Vec<AtomicU64> =
        (0..FILES).map(|i| AtomicU64::new(w.create(&name(i), i + 10).as_u64())).collect();
    let done = AtomicBool::new(false);
    let mut created = FILES;
    std::thread::scope(|s| {
        for thread in 0..4u64 {
            let (w, ids, done) = (&w, &ids, &done);
            s.spawn(move || {
                let mut held = Vec::new();
                let mut i = thread;
                while !done.load(Ordering::Relaxed) {
                    // Stays at one file for a while, then goes to the next one.
                    i += 1;
                    let at = (i / 200 + thread * 7) % FILES;
                    let id = InodeId::from_u64(ids[at as usize].load(Ordering::Relaxed));
                    if let Some(inode) = w.cache.get(id) {
                        assert_eq!(inode.ino(), at + 10, "another inode's reference");
                        held.push(inode.clone());
                    }
                    if held.len() > 20 {
                        held.clear();
                    }
                }
            });
        }
        for round in 0..20_000 {
            let at = round * 5 % FILES;
            w.remove(&name(at));
            ids[at as usize].store(w.create(&name(at), at + 10).as_u64(), Ordering::Relaxed);
            created += 1;
        }
        done.store(true, Ordering::Relaxed);
    });
    assert_eq!(w.ended(), created - FILES);
    for i in 0..FILES {
        w.remove(&name(i));
    }
    w.check(created);
}

#[test]
fn what_was_used_often_is_evicted_when_nobody_uses_it_any_more() {
    let w = World::new(false);
    let root = w.root();
    let Lookup::Miss(guard) = w.cache.lookup(&root, b"f") else { panic!("known already") };
    let id = guard.found(&fresh(5, S_IFREG)).unwrap().id();
    w.heat(id);
    let held = w.cache.get(id).unwrap();
    assert_eq!(w.cache.evict_unused(w.sb, 10), 0);
    assert_eq!(w.cache.counters().spread, 0);
    w.heat(id);
    drop(held);
    assert_eq!(w.cache.evict_unused(w.sb, 10), 1);
    assert!(w.cache.get(id).is_none());
    drop(root);
    w.check(1);
}

#[test]
fn a_root_that_was_used_often_goes_with_its_superblock() {
    let w = World::new(true);
    w.heat(w.root().id());
    w.check(0);
}

/// The place of an object that nobody uses any more goes to one that is used.
#[test]
fn places_are_given_on() {
    let w = World::new(true);
    let ids: Vec<InodeId> = (0..700).map(|i| w.create(format!("f{i}").as_bytes(), i + 10)).collect();
    for id in &ids {
        for _ in 0..20_000 {
            drop(w.cache.get(*id));
        }
    }
    let spread = w.cache.counters().spread;
    assert!((2..=512).contains(&spread), "{spread}");
    // The last one has got a place, all taken as they were: its count does not move any more.
    let last = *ids.last().unwrap();
    w.remove(b"f699");
    assert_eq!(w.cache.counters().spread, spread - 1);
    assert!(w.cache.get(last).is_none());
}
