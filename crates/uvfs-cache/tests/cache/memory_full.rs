//! Things that the memory limit must not do: refuse while something could be given up, never end, be exceeded.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

use uvfs_cache::attr::mode::{S_IFDIR, S_IFREG};
use uvfs_cache::machinery::{Fresh, Lookup, SbOptions};
use uvfs_cache::{Attr, Cache, CacheError, Config, InodeRef, SbId, Ttl};

const MIB: u64 = 1 << 20;

fn fresh(ino: u64, fmt: u32) -> Fresh {
    let attr = Attr { ino, mode: fmt | 0o755, nlink: 1, ..Attr::default() };
    Fresh { attr, private: ino, ttl: Ttl::Forever }
}

fn superblock(cache: &Cache) -> SbId {
    let sb = cache
        .add_superblock(SbOptions { resident: false, watched: false, on_evict: Box::new(|_, _| {}) })
        .unwrap();
    drop(cache.make_root(sb, &fresh(1, S_IFDIR)).unwrap());
    sb
}

fn limited(bytes: u64) -> (Arc<Cache>, SbId) {
    let config = Config { max_inodes: 1 << 20, memory_limit: bytes, ..Config::default() };
    let cache = Cache::new(config).unwrap();
    let sb = superblock(&cache);
    (cache, sb)
}

fn name(i: u64, len: usize) -> Vec<u8> {
    format!("{i:0len$}").into_bytes()
}

fn visit<'c>(
    cache: &'c Cache,
    dir: &InodeRef<'c>,
    name: &[u8],
    fresh: &Fresh,
) -> Result<InodeRef<'c>, CacheError> {
    match cache.lookup(dir, name) {
        Lookup::Hit(inode, _) => Ok(inode),
        Lookup::Miss(guard) => guard.found(fresh),
        Lookup::Busy(pending) => {
            let _ = pending.wait();
            visit(cache, dir, name, fresh)
        }
        Lookup::Negative => panic!("nobody said so"),
    }
}

/// A cache full of short names, none of them held; then one name that needs a tail.
#[test]
fn a_name_of_another_length_finds_room_in_a_full_cache() {
    for (mib, len) in [(2, 60), (4, 60), (2, 200), (8, 200)] {
        let (cache, sb) = limited(mib * MIB);
        let root = cache.root(sb).unwrap();
        for i in 0..50_000 {
            drop(visit(&cache, &root, &name(i, 12), &fresh(i + 2, S_IFREG)).unwrap());
        }
        let before = cache.counters();
        let got = visit(&cache, &root, &name(1, len), &fresh(1_000_000, S_IFREG)).map(drop);
        let after = cache.counters();
        assert_eq!(got, Ok(()), "{mib} MiB, {len} bytes: before {before:?}, after {after:?}");
    }
}

/// The same, and what it does to the rest: to make room for one name, not all others need to go.
#[test]
fn room_for_one_long_name_does_not_cost_the_whole_cache() {
    let (cache, sb) = limited(8 * MIB);
    let root = cache.root(sb).unwrap();
    for i in 0..100_000 {
        drop(visit(&cache, &root, &name(i, 12), &fresh(i + 2, S_IFREG)).unwrap());
    }
    let before = cache.counters().dentries;
    let got = visit(&cache, &root, &name(1, 60), &fresh(1_000_000, S_IFREG)).map(drop);
    let after = cache.counters().dentries;
    assert!(after > before / 2, "{got:?}: {before} names before, {after} after");
}

/// A cache full of negative entries; then a name that exists needs an inode.
#[test]
fn an_inode_finds_room_in_a_cache_full_of_negative_names() {
    let config = Config { max_inodes: 1 << 20, memory_limit: 2 * MIB, ..Config::default() };
    let cache = Cache::new(config).unwrap();
    let sb = superblock(&cache);
    let root = cache.root(sb).unwrap();
    for i in 0..60_000 {
        match cache.lookup(&root, &name(i, 12)) {
            Lookup::Miss(guard) => guard.absent(Ttl::Forever),
            other => panic!("{other:?}"),
        }
    }
    let before = cache.counters();
    for i in 0..5000 {
        let got = visit(&cache, &root, &name(100_000 + i, 12), &fresh(i + 2, S_IFREG)).map(drop);
        assert_eq!(got, Ok(()), "{i}: before {before:?}, after {:?}", cache.counters());
    }
}

/// A thread that needs a tail comes to an end, although others bring short names back as fast as it evicts them.
#[test]
fn who_needs_a_tail_is_not_kept_evicting_for_ever() {
    let (cache, sb) = limited(4 * MIB);
    {
        let root = cache.root(sb).unwrap();
        for i in 0..100_000 {
            drop(visit(&cache, &root, &name(i, 12), &fresh(i + 2, S_IFREG)).unwrap());
        }
    }
    let stop = Arc::new(AtomicBool::new(false));
    let (done, ended) = mpsc::channel();
    let others: Vec<_> = (0..2u64)
        .map(|t| {
            let (cache, stop) = (cache.clone(), stop.clone());
            std::thread::spawn(move || {
                let root = cache.root(sb).unwrap();
                let mut i = t * 50_000;
                while !stop.load(Ordering::Relaxed) {
                    drop(visit(&cache, &root, &name(i % 100_000, 12), &fresh(i % 100_000 + 2, S_IFREG)));
                    i += 1;
                }
            })
        })
        .collect();
    let one = cache.clone();
    std::thread::spawn(move || {
        let root = one.root(sb).unwrap();
        let _ = done.send(visit(&one, &root, &name(1, 200), &fresh(1_000_000, S_IFREG)).map(drop));
    });
    let got = ended.recv_timeout(Duration::from_secs(20));
    stop.store(true, Ordering::Relaxed);
    others.into_iter().for_each(|t| t.join().unwrap());
    assert_eq!(got, Ok(Ok(())), "one lookup of one name, 20 seconds");
}

/// Directories take memory that nobody asks the limit for.
#[test]
fn directories_stay_within_the_limit() {
    for limit in (64..128).step_by(9).map(|i| i * MIB / 16) {
        let (cache, sb) = limited(limit);
        let root = cache.root(sb).unwrap();
        let mut most = 0;
        for i in 0..limit / 150 {
            if visit(&cache, &root, &name(i, 12), &fresh(i + 2, S_IFDIR)).is_err() {
                break;
            }
            most = most.max(cache.committed());
        }
        assert!(most <= limit + limit / 20, "{most} bytes of {limit}");
    }
}

/// Free slots that lie in another thread's magazine are as good as others.
#[test]
fn a_slot_that_another_thread_freed_is_room() {
    let (cache, sb) = limited(4 * MIB);
    let root = cache.root(sb).unwrap();
    let mut held = Vec::new();
    loop {
        let i = held.len() as u64;
        match visit(&cache, &root, &name(i, 12), &fresh(i + 2, S_IFREG)) {
            Ok(inode) => held.push(inode),
            Err(_) => break,
        }
    }
    // Names and inodes go, and nothing but free slots is left of them.
    for _ in 0..50 {
        let inode = held.pop().unwrap();
        cache.invalidate(&root, &name(inode.ino() - 2, 12));
    }
    let free = cache.counters();
    let got = std::thread::scope(|s| {
        let other = s.spawn(|| {
            let root = cache.root(sb).unwrap();
            visit(&cache, &root, b"other", &fresh(1_000_000, S_IFREG)).map(drop)
        });
        other.join().unwrap()
    });
    assert_eq!(got, Ok(()), "{free:?}");
}

/// Most is held, the rest is plenty for all threads: nobody is refused.
#[test]
fn several_threads_are_not_refused_while_enough_is_unused() {
    let (cache, sb) = limited(8 * MIB);
    let root = cache.root(sb).unwrap();
    let mut held = Vec::new();
    loop {
        let i = held.len() as u64;
        match visit(&cache, &root, &name(i, 12), &fresh(i + 2, S_IFREG)) {
            Ok(inode) => held.push(inode),
            Err(_) => break,
        }
    }
    // 2000 of more than 30,000, all in one place, can be evicted.
    let all = held.len();
    held.drain(all - 3000..all - 1000);
    let refused = AtomicUsize::new(0);
    let asked = AtomicUsize::new(0);
    std::thread::scope(|s| {
        for t in 0..4u64 {
            let (cache, refused, asked) = (&cache, &refused, &asked);
            s.spawn(move || {
                let root = cache.root(sb).unwrap();
                for i in 0..5000 {
                    let i = 1_000_000 * (t + 1) + i;
                    asked.fetch_add(1, Ordering::Relaxed);
                    // Patiently, because names that are let go of may be found a little late.
                    let deadline = Instant::now() + Duration::from_secs(10);
                    let visit = || visit(cache, &root, &name(i, 12), &fresh(i, S_IFREG)).map(drop).ok();
                    if cache.with_patience(deadline, visit).is_none() {
                        refused.fetch_add(1, Ordering::Relaxed);
                    }
                }
            });
        }
    });
    assert_eq!(refused.into_inner(), 0, "of {asked:?}; {all} slots, 2000 of them unused");
}
