//! Names and blocks under one memory limit: each finds room where the other has filled it.

use std::io;
use std::sync::Arc;

use uvfs_cache::attr::mode::{S_IFDIR, S_IFREG};
use uvfs_cache::machinery::buffers::{BlockSource, Device};
use uvfs_cache::machinery::{Fresh, Lookup, SbOptions};
use uvfs_cache::{Attr, Cache, Config, InodeRef, SbId, Ttl};

const LIMIT: u64 = 8 << 20;
/// With what is not asked for beforehand: a hash table's lines for a chunk of names.
const BOUND: u64 = LIMIT + (64 << 10);
const SIZE: usize = 4096;

/// Every block is there, and full of its number's lowest byte.
struct Endless;

impl BlockSource for Endless {
    fn read_at(&self, offset: u64, out: &mut [u8]) -> io::Result<usize> {
        for (number, block) in (offset / SIZE as u64..).zip(out.chunks_mut(SIZE)) {
            block.fill(number as u8);
        }
        Ok(out.len())
    }
}

fn fresh(ino: u64, fmt: u32) -> Fresh {
    let attr = Attr { ino, mode: fmt | 0o755, nlink: 1, ..Attr::default() };
    Fresh { attr, private: ino, ttl: Ttl::Forever }
}

fn world() -> (Arc<Cache>, SbId, Arc<Device>) {
    let config = Config { max_inodes: 1 << 20, memory_limit: LIMIT, ..Config::default() };
    let cache = Cache::new(config).unwrap();
    let sb = cache
        .add_superblock(SbOptions { resident: false, watched: false, on_evict: Box::new(|_, _| {}) })
        .unwrap();
    drop(cache.make_root(sb, &fresh(1, S_IFDIR)).unwrap());
    let device = Device::new(&cache, Arc::new(Endless), SIZE).unwrap();
    (cache, sb, device)
}

fn visit(cache: &Cache, root: &InodeRef<'_>, n: u64) {
    match cache.lookup(root, format!("{n:012}").as_bytes()) {
        Lookup::Hit(..) => {}
        Lookup::Miss(guard) => drop(guard.found(&fresh(n + 2, S_IFREG)).unwrap()),
        _ => panic!("nobody else is here"),
    }
}

fn names(cache: &Cache, sb: SbId, of: std::ops::Range<u64>) {
    let root = cache.root(sb).unwrap();
    for n in of {
        visit(cache, &root, n);
        assert!(cache.committed() <= BOUND, "{} at name {n}", cache.committed());
    }
}

fn blocks(cache: &Cache, device: &Device, of: std::ops::Range<u64>) {
    for n in of {
        let buffer = device.get(n * 3).unwrap();
        assert!(buffer.iter().all(|byte| *byte == (n * 3) as u8), "block {n}");
        assert!(cache.committed() <= BOUND, "{} at block {n}", cache.committed());
    }
}

#[test]
fn names_find_room_where_blocks_have_filled_the_limit() {
    let (cache, sb, device) = world();
    blocks(&cache, &device, 0..10_000);
    let before = cache.buffer_bytes();
    assert!(before > LIMIT / 2, "{before}");
    names(&cache, sb, 0..50_000);
    assert!(cache.buffer_bytes() <= LIMIT / 4 + (1 << 20), "{}", cache.buffer_bytes());
    assert!(cache.counters().dentries > 10_000, "{:?}", cache.counters());
}

#[test]
fn blocks_find_room_where_names_have_filled_the_limit() {
    let (cache, sb, device) = world();
    names(&cache, sb, 0..100_000);
    assert!(cache.buffer_bytes() < LIMIT / 8);
    blocks(&cache, &device, 0..10_000);
    assert!(cache.buffer_bytes() > LIMIT / 16, "{}", cache.buffer_bytes());
    names(&cache, sb, 0..100);
}

/// A few names stay where blocks fill the limit, whoever works ahead of allocations.
#[test]
fn blocks_that_fill_the_limit_do_not_cost_the_names() {
    let (cache, sb, device) = world();
    names(&cache, sb, 0..2_000);
    blocks(&cache, &device, 0..10_000);
    let before = cache.counters().dentries;
    for _ in 0..100 {
        assert_eq!(cache.balance().evicted, 0);
    }
    assert_eq!(cache.counters().dentries, before);
    // A lower limit is kept by blocks first.
    cache.lower_watermarks(8);
    for _ in 0..100 {
        cache.balance();
    }
    assert!(cache.committed() <= LIMIT / 2 + LIMIT / 32, "{}", cache.committed());
    assert_eq!(cache.counters().dentries, before);
}

/// Both at once, by several threads; nobody is refused.
#[test]
fn both_live_with_each_other() {
    let (cache, sb, device) = world();
    std::thread::scope(|scope| {
        for thread in 0..2_u64 {
            let (cache, device) = (&cache, &device);
            scope.spawn(move || {
                let root = cache.root(sb).unwrap();
                (0..30_000).for_each(|n| visit(cache, &root, n * 2 + thread));
            });
            scope.spawn(move || {
                for n in (0..6_000).map(|n| n * 5 + thread) {
                    assert_eq!(device.get(n).unwrap()[SIZE - 1], n as u8);
                }
            });
        }
    });
    assert!(cache.committed() <= LIMIT + LIMIT / 16, "{}", cache.committed());
}
