//! The marks below the limit: free slots ahead of need, a lowered limit, and what is given up later.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Wake, Waker};

use uvfs_cache::attr::mode::{S_IFDIR, S_IFREG};
use uvfs_cache::machinery::{Fresh, Lookup, SbOptions};
use uvfs_cache::{Attr, Cache, Config, InodeRef, SbId, Ttl};

const MIB: u64 = 1 << 20;

/// Counts how often it was woken.
#[derive(Default)]
struct Woken(AtomicU64);

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

impl Woken {
    /// Whether it was, since the last time.
    fn take(&self) -> bool {
        self.0.swap(0, Ordering::Relaxed) != 0
    }
}

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

fn limited(bytes: u64) -> (Arc<Cache>, SbId, Arc<Woken>) {
    let config = Config { max_inodes: 1 << 20, memory_limit: bytes, ..Config::default() };
    let cache = Cache::new(config).unwrap();
    let sb = superblock(&cache, false);
    let woken = Arc::new(Woken::default());
    cache.watch_pressure(Waker::from(Arc::clone(&woken)));
    (cache, sb, woken)
}

fn visit<'c>(cache: &'c Cache, dir: &InodeRef<'c>, i: u64) -> Option<InodeRef<'c>> {
    match cache.lookup(dir, format!("{i:012}").as_bytes()) {
        Lookup::Hit(inode, _) => Some(inode),
        Lookup::Miss(guard) => guard.found(&fresh(i + 2, S_IFREG)).ok(),
        other => panic!("{other:?}"),
    }
}

fn fill(cache: &Cache, sb: SbId, names: std::ops::Range<u64>) {
    let root = cache.root(sb).unwrap();
    names.for_each(|i| drop(visit(cache, &root, i).unwrap()));
}

/// However small it is: nothing but 0 is no limit.
#[test]
fn a_limit_of_a_few_bytes_is_one() {
    for bytes in [1, 15, 16] {
        let (cache, sb, _) = limited(0);
        let root = cache.root(sb).unwrap();
        cache.ask_memory_limit(bytes);
        assert!(cache.counters().watermark > 0);
        let held: Vec<_> = (0..5000).map_while(|i| visit(&cache, &root, i)).collect();
        assert!(held.len() < 5000, "no limit: {bytes}");
    }
}

/// Steps until there is nothing to do or nothing helps; how many.
fn balance(cache: &Cache) -> u64 {
    let mut steps = 0;
    loop {
        steps += 1;
        let done = cache.balance();
        if done.missing == 0 || done.evicted == 0 && !done.returned && !done.more {
            return steps;
        }
        assert!(steps < 1_000_000, "{done:?} without end");
    }
}

/// Broken if slots run out although somebody steps whenever he is woken: then who allocates evicts.
#[test]
fn who_allocates_need_not_evict_where_somebody_does_it_ahead() {
    let (cache, sb, woken) = limited(8 * MIB);
    let root = cache.root(sb).unwrap();
    for i in 0..100_000 {
        drop(visit(&cache, &root, i).unwrap());
        if woken.take() {
            balance(&cache);
        }
    }
    let counters = cache.counters();
    assert!(counters.evicted > 50_000, "{counters:?}");
    assert_eq!(counters.evicted, counters.evicted_ahead);
    assert!(counters.bytes <= counters.limit + counters.limit / 20, "{counters:?}");
    assert!(counters.inodes > 20_000, "the limit is made use of: {counters:?}");
}

/// And without anybody, it is who allocates.
#[test]
fn the_limit_does_not_depend_on_who_watches() {
    let (cache, sb, woken) = limited(8 * MIB);
    fill(&cache, sb, 0..100_000);
    assert!(woken.take());
    let counters = cache.counters();
    assert!(counters.evicted > 50_000 && counters.evicted_ahead == 0, "{counters:?}");
    assert!(counters.bytes <= counters.limit + counters.limit / 20, "{counters:?}");
}

#[test]
fn who_watches_is_woken_once_until_he_looks() {
    let (cache, sb, woken) = limited(4 * MIB);
    fill(&cache, sb, 0..1000);
    assert!(!woken.take(), "there is room");
    fill(&cache, sb, 1000..40_000);
    assert_eq!(woken.0.load(Ordering::Relaxed), 1);
    cache.balance();
    fill(&cache, sb, 40_000..80_000);
    assert_eq!(woken.0.load(Ordering::Relaxed), 2);
    cache.balance();
    let waker = Waker::from(Arc::clone(&woken));
    cache.unwatch_pressure(&waker);
    fill(&cache, sb, 80_000..120_000);
    assert_eq!(woken.0.load(Ordering::Relaxed), 2);
}

#[test]
fn a_lowered_mark_is_kept_to_and_raised_again() {
    let (cache, sb, _) = limited(16 * MIB);
    fill(&cache, sb, 0..100_000);
    let full = cache.committed();
    assert!(full > 14 * MIB);
    cache.lower_watermarks(8);
    assert_eq!(cache.counters().watermark, 8 * MIB);
    assert_eq!((cache.committed(), cache.memory_limit()), (full, 16 * MIB), "nothing has happened yet");
    balance(&cache);
    let slack = 8 * MIB / 64;
    assert!(cache.committed() <= 8 * MIB + slack, "{}", cache.committed());
    fill(&cache, sb, 100_000..200_000);
    assert!(cache.committed() <= 8 * MIB + slack, "{}", cache.committed());
    cache.lower_watermarks(16);
    fill(&cache, sb, 200_000..300_000);
    assert!(cache.committed() > 14 * MIB && cache.committed() <= 17 * MIB);
}

#[test]
fn a_lower_limit_is_reached_by_whoever_watches() {
    let (cache, sb, woken) = limited(16 * MIB);
    fill(&cache, sb, 0..100_000);
    let (full, evicted) = (cache.committed(), cache.counters().evicted);
    woken.take();
    balance(&cache);
    cache.ask_memory_limit(5 * MIB);
    assert!(woken.take());
    assert_eq!(cache.memory_limit(), 5 * MIB);
    assert!(cache.committed() > full / 2 && cache.counters().evicted >= evicted);
    balance(&cache);
    assert!(cache.committed() <= 5 * MIB + 5 * MIB / 64, "{}", cache.committed());
    cache.ask_memory_limit(0);
    cache.ask_shrink(3 * MIB);
    balance(&cache);
    assert!(cache.committed() <= 3 * MIB, "{}", cache.committed());
    assert_eq!(cache.balance().missing, 0);
    fill(&cache, sb, 0..100_000);
    assert!(cache.committed() > full / 2, "no limit, and the goal was for once");
}

/// Without anybody who watches, who asks does it himself.
#[test]
fn a_lower_limit_is_reached_without_anybody_who_watches() {
    let (cache, sb, woken) = limited(32 * MIB);
    fill(&cache, sb, 0..100_000);
    cache.unwatch_pressure(&Waker::from(Arc::clone(&woken)));
    cache.ask_shrink(12 * MIB);
    assert!(cache.committed() <= 12 * MIB);
    cache.ask_memory_limit(8 * MIB);
    assert!(cache.committed() <= 8 * MIB);
}

/// Broken if a step is made again and again where nothing can go.
#[test]
fn what_cannot_be_reached_ends() {
    let (cache, sb, _) = limited(8 * MIB);
    let root = cache.root(sb).unwrap();
    let held: Vec<_> = (0..).map_while(|i| visit(&cache, &root, i)).collect();
    assert!(held.len() > 10_000);
    balance(&cache);
    assert_eq!(cache.counters().evicted, 0);
    cache.ask_memory_limit(4 * MIB);
    balance(&cache);
    cache.ask_shrink(0);
    balance(&cache);
    cache.give_up_shrinking();
    cache.ask_memory_limit(0);
    assert_eq!(cache.balance().missing, 0);
    assert!(held.iter().all(|inode| !inode.is_dead()));
}

/// A resident superblock has nothing to give: its allocations wake nobody for ever.
#[test]
fn a_resident_superblock_is_left_alone() {
    let (cache, _, _) = limited(4 * MIB);
    let sb = superblock(&cache, true);
    let root = cache.root(sb).unwrap();
    for i in 0.. {
        let name = format!("{i}");
        let guard = cache.lock_name(&root, name.as_bytes());
        let Ok(room) = guard.reserve(uvfs_cache::Room::Node) else { break };
        drop(guard.create(room, &fresh(i + 2, S_IFREG)));
    }
    let before = cache.counters();
    balance(&cache);
    cache.ask_shrink(0);
    balance(&cache);
    assert_eq!(cache.counters().inodes, before.inodes);
}

/// Inodes that a kernel was asked to forget, and has forgotten, go in the next step; those that it still holds stay.
#[test]
fn what_was_named_and_forgotten_goes_first_without_a_search() {
    let (cache, sb, _) = limited(4 * MIB);
    let root = cache.root(sb).unwrap();
    let mut known = Vec::new();
    while cache.balance().missing == 0 {
        let inode = visit(&cache, &root, known.len() as u64).unwrap();
        inode.add_lookups(1);
        known.push(inode.id());
    }
    let held = cache.held_by_kernel(sb, 200, u64::MAX);
    assert!(held.leaves.len() >= 200 && held.evictable == 0, "{held:?}");
    assert_eq!(cache.balance_after(&held.leaves).evicted, 0, "the kernel holds all");
    for leaf in &held.leaves[..100] {
        cache.forget_lookups(leaf.id, 1);
    }
    let done = cache.balance_after(&held.leaves);
    assert_eq!((done.forgotten, done.evicted), (100, 100), "{done:?}");
    let alive = |id| cache.get(id).is_some();
    assert!(held.leaves[..100].iter().all(|leaf| !alive(leaf.id)));
    assert_eq!(known.iter().filter(|id| alive(**id)).count(), known.len() - 100);
    // Named once more, in the slots of others by then: nothing that is held goes.
    assert_eq!(cache.balance_after(&held.leaves).evicted, 0);
    known.iter().for_each(|id| cache.forget_lookups(*id, 1));
}

/// Several who allocate, and one who works ahead of them.
#[test]
fn the_limit_holds_with_several_threads_and_one_that_watches() {
    let (cache, sb, woken) = limited(8 * MIB);
    let left = AtomicU64::new(4);
    std::thread::scope(|s| {
        for t in 0..4u64 {
            let (cache, left) = (&cache, &left);
            s.spawn(move || {
                let root = cache.root(sb).unwrap();
                for i in t * 100_000..t * 100_000 + 30_000 {
                    drop(visit(cache, &root, i).unwrap());
                }
                left.fetch_sub(1, Ordering::Relaxed);
            });
        }
        while left.load(Ordering::Relaxed) != 0 {
            if woken.take() {
                balance(&cache);
            }
            let (bytes, limit) = (cache.committed(), cache.memory_limit());
            assert!(bytes <= limit + limit / 20, "{bytes} bytes of {limit}");
            std::thread::yield_now();
        }
    });
    assert_eq!(cache.drop_superblock(sb), 0);
}
