//! The limit on memory: kept whatever streams through, by giving up what nobody needs and was not used.

use std::collections::HashSet;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use uvfs_cache::attr::mode::{S_IFDIR, S_IFREG};
use uvfs_cache::machinery::{Fresh, Lookup, SbOptions};
use uvfs_cache::{Attr, Cache, CacheError, Config, InodeRef, Peek, Room, SbId, Ttl};

const MIB: u64 = 1 << 20;

fn fresh(ino: u64, fmt: u32) -> Fresh {
    let attr = Attr { ino, mode: fmt | 0o755, nlink: 1, ..Attr::default() };
    Fresh { attr, private: ino, ttl: Ttl::Forever }
}

fn superblock(cache: &Cache, resident: bool) -> SbId {
    let sb =
        cache.add_superblock(SbOptions { resident, watched: false, on_evict: Box::new(|_, _| {}) }).unwrap();
    drop(cache.make_root(sb, &fresh(1, S_IFDIR)).unwrap());
    sb
}

fn limited(bytes: u64) -> (Arc<Cache>, SbId) {
    let config = Config { max_inodes: 1 << 20, memory_limit: bytes, ..Config::default() };
    let cache = Cache::new(config).unwrap();
    let sb = superblock(&cache, false);
    (cache, sb)
}

fn name(i: u64, len: usize) -> Vec<u8> {
    format!("{i:0len$}").into_bytes()
}

/// As a server does: what the cache does not know is asked for, and kept.
fn visit<'c>(
    cache: &'c Cache,
    dir: &InodeRef<'c>,
    name: &[u8],
    ino: u64,
) -> Result<InodeRef<'c>, CacheError> {
    match cache.lookup(dir, name) {
        Lookup::Hit(inode, attr) => {
            assert_eq!(attr.ino, ino);
            Ok(inode)
        }
        Lookup::Miss(guard) => guard.found(&fresh(ino, S_IFREG)),
        Lookup::Busy(pending) => {
            // Whatever comes of it, it is looked for again.
            let _ = pending.wait();
            visit(cache, dir, name, ino)
        }
        Lookup::Negative => panic!("nobody said so"),
    }
}

fn within(cache: &Cache) {
    let (bytes, limit) = (cache.committed(), cache.memory_limit());
    assert!(bytes <= limit + limit / 64, "{bytes} bytes of {limit}");
}

#[test]
fn what_streams_through_stays_within_the_limit() {
    for len in [12, 60, 200] {
        let (cache, sb) = limited(8 * MIB);
        let root = cache.root(sb).unwrap();
        for i in 0..100_000 {
            drop(visit(&cache, &root, &name(i, len), i + 2).unwrap());
            if i % 100 == 0 {
                within(&cache);
            }
        }
        let counters = cache.counters();
        assert!(counters.inodes > 10_000, "the limit is made use of: {counters:?}");
        drop(root);
        assert_eq!(cache.drop_superblock(sb), 0);
    }
}

/// With more threads than processors, the one that splits buckets is often not running.
#[test]
fn many_threads_stay_within_the_limit() {
    const NAMES: u64 = 12_000;
    let (cache, sb) = limited(16 * MIB);
    thread::scope(|threads| {
        for thread in 0..16 {
            let cache = &cache;
            threads.spawn(move || {
                let root = cache.root(sb).unwrap();
                for i in thread * NAMES..(thread + 1) * NAMES {
                    drop(visit(cache, &root, &name(i, 12), i + 2).unwrap());
                    if i % 64 == 0 {
                        within(cache);
                    }
                }
            });
        }
    });
    let counters = cache.counters();
    assert!(counters.evicted > 50_000 && counters.inodes > 50_000, "the limit is made use of: {counters:?}");
}

/// Rule 17: what is used between two visits of the hand stays.
#[test]
fn rule17_what_is_used_again_and_again_stays() {
    let (cache, sb) = limited(8 * MIB);
    let root = cache.root(sb).unwrap();
    let hot = |i: u64| name(1_000_000 + i, 12);
    for i in 0..1000 {
        drop(visit(&cache, &root, &hot(i), 1_000_000 + i).unwrap());
    }
    let mut lost = 0;
    for i in 0..100_000 {
        drop(visit(&cache, &root, &name(i, 12), i + 2).unwrap());
        let again = i % 1000;
        if !matches!(cache.peek(root.id(), &hot(again)), Peek::Hit(..)) {
            lost += 1;
            drop(visit(&cache, &root, &hot(again), 1_000_000 + again).unwrap());
        }
    }
    // One round of the hand is more than twenty thousand names; each of the thousand is used every
    // thousand. Before the first round it may not have been noted.
    assert!(lost <= 1000, "{lost} of 100,000 looks at names in use found them gone");
}

#[test]
fn a_directory_whose_child_was_evicted_is_not_complete() {
    let (cache, sb) = limited(4 * MIB);
    let root = cache.root(sb).unwrap();
    let scan = cache.begin_scan(&root);
    drop(scan.found(b"a", &fresh(2, S_IFREG)).unwrap());
    assert!(scan.complete());
    assert_eq!(cache.peek(root.id(), b"b"), Peek::Negative);
    while cache.evict_unused(sb, 1) > 0 {}
    assert_eq!(cache.peek(root.id(), b"a"), Peek::Miss);
    assert_eq!(cache.peek(root.id(), b"b"), Peek::Miss);
}

#[test]
fn what_is_held_stays_and_then_there_is_no_memory() {
    let (cache, sb) = limited(4 * MIB);
    let root = cache.root(sb).unwrap();
    let mut held = Vec::new();
    let error = loop {
        let i = held.len() as u64;
        match visit(&cache, &root, &name(i, 12), i + 2) {
            Ok(inode) => held.push(inode),
            Err(error) => break error,
        }
    };
    assert_eq!(error, CacheError::NoMemory);
    within(&cache);
    let kept: HashSet<u64> = held.iter().map(|inode| inode.ino()).collect();
    assert_eq!(kept.len(), held.len());
    assert!(held.iter().all(|inode| !inode.is_dead()));
    // One that is let go of makes room for one.
    drop(held.pop());
    let i = 2_000_000;
    let patiently = |i: u64| {
        let deadline = Instant::now() + Duration::from_secs(60);
        cache.with_patience(deadline, || visit(&cache, &root, &name(i, 12), i).ok()).unwrap()
    };
    held.push(patiently(i));
    assert_eq!(visit(&cache, &root, &name(i + 1, 12), i + 1).unwrap_err(), CacheError::NoMemory);
    drop(held);
    drop(patiently(i + 1));
}

#[test]
fn a_lower_limit_gives_memory_back() {
    let (cache, sb) = limited(48 * MIB);
    let root = cache.root(sb).unwrap();
    for i in 0..120_000 {
        drop(visit(&cache, &root, &name(i, 50), i + 2).unwrap());
    }
    let before = cache.committed();
    assert!(before > 25 * MIB, "{before}");
    // Less than the hash tables alone take up by now.
    cache.set_memory_limit(2 * MIB);
    within(&cache);
    for i in 0..120_000 {
        drop(visit(&cache, &root, &name(i, 50), i + 2).unwrap());
    }
    within(&cache);
    cache.set_memory_limit(0);
    for i in 0..120_000 {
        drop(visit(&cache, &root, &name(i, 50), i + 2).unwrap());
    }
    assert!(cache.committed() > 25 * MIB);
}

/// Slots belong to a superblock: who needs some while another one has all the memory gets chunks of it.
#[test]
fn one_superblock_makes_room_for_another() {
    let (cache, first) = limited(8 * MIB);
    let second = superblock(&cache, false);
    for sb in [first, second, first] {
        let root = cache.root(sb).unwrap();
        for i in 0..40_000 {
            drop(visit(&cache, &root, &name(i, 12), i + 2).unwrap());
        }
        within(&cache);
    }
}

/// The cache never gives up objects that only it knows: there is no room then.
#[test]
fn a_resident_superblock_fills_up() {
    let (cache, other) = limited(4 * MIB);
    let resident = superblock(&cache, true);
    let root = cache.root(other).unwrap();
    for i in 0..30_000 {
        drop(visit(&cache, &root, &name(i, 12), i + 2).unwrap());
    }
    let dir = cache.root(resident).unwrap();
    let make = |i: u64| {
        let guard = cache.lock_name(&dir, &name(i, 12));
        let room = guard.reserve(Room::Node)?;
        drop(guard.create(room, &fresh(i + 2, S_IFREG)));
        Ok(())
    };
    let full = (0..).find(|i| make(*i) == Err(CacheError::NoMemory)).unwrap();
    assert!(full > 5000, "room was made by the other one: {full}");
    within(&cache);
    assert!((0..full).all(|i| matches!(cache.peek(dir.id(), &name(i, 12)), Peek::Hit(..))));
}

/// Several who allocate at once share the work, and keep the limit together.
#[test]
fn the_limit_holds_with_several_threads() {
    let (cache, sb) = limited(8 * MIB);
    std::thread::scope(|s| {
        for t in 0..4u64 {
            let cache = &cache;
            s.spawn(move || {
                let root = cache.root(sb).unwrap();
                for i in 0..30_000 {
                    let i = (i * 7 + t * 15_000) % 60_000;
                    drop(visit(cache, &root, &name(i, 12), i + 2).unwrap());
                    if i % 64 == 0 {
                        within(cache);
                    }
                }
            });
        }
    });
    assert_eq!(cache.drop_superblock(sb), 0);
}
