//! Rule 18: the cache's figure of committed memory agrees with the system's.
//!
//! One test only, in a program of its own: the system's figure is the process's.

#![cfg(not(loom))]

use std::fs;
use std::io;
use std::sync::Arc;

use uvfs_cache::attr::mode::{S_IFDIR, S_IFLNK, S_IFREG};
use uvfs_cache::machinery::buffers::{BlockSource, Device};
use uvfs_cache::machinery::{Fresh, Lookup, SbOptions};
use uvfs_cache::{Attr, Cache, Config, SbId, Ttl};

/// Enough of each kind that the rest of the process does not matter.
const EACH: u64 = 60_000;
const BLOCK: usize = 4096;

struct Endless;

impl BlockSource for Endless {
    fn read_at(&self, _offset: u64, out: &mut [u8]) -> io::Result<usize> {
        out.fill(7);
        Ok(out.len())
    }
}

/// Bytes of memory that the process has, counted by the kernel page by page; none where it does not say.
fn resident() -> Option<u64> {
    let rollup = fs::read_to_string("/proc/self/smaps_rollup").ok()?;
    let line = rollup.lines().find_map(|line| line.strip_prefix("Rss:"))?;
    line.trim().strip_suffix(" kB")?.trim().parse::<u64>().ok().map(|kib| kib * 1024)
}

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

/// `change` adds the same to both figures, or takes it away. Within 3%, where the rule says 5: so a kind of memory that is
/// missing from the sum shows.
fn agrees(cache: &Cache, what: &str, change: impl FnOnce()) {
    let before = (cache.committed(), resident().unwrap());
    change();
    let (committed, system) = (cache.committed().abs_diff(before.0), resident().unwrap().abs_diff(before.1));
    assert!(committed > 4 << 20, "{what}: too little to tell");
    assert!(
        committed.abs_diff(system) <= system * 3 / 100,
        "{what}: {committed} committed, {system} resident"
    );
}

#[test]
fn rule18_committed_memory_agrees_with_the_system() {
    if resident().is_none() {
        println!("skipped: no /proc/self/smaps_rollup");
        return;
    }
    let cache = Cache::new(Config { max_inodes: 1 << 22, ..Config::default() }).unwrap();
    let sb = superblock(&cache);
    let root = cache.root(sb).unwrap();
    let find = |name: String, ino: u64, fmt: u32| match cache.lookup(&root, name.as_bytes()) {
        Lookup::Miss(guard) => guard.found(&fresh(ino, fmt)).unwrap(),
        other => panic!("{other:?}"),
    };
    let numbers = |first: u64| first * 1_000_000..first * 1_000_000 + EACH;
    agrees(&cache, "files", || numbers(1).for_each(|i| drop(find(format!("{i}"), i, S_IFREG))));
    agrees(&cache, "long names", || numbers(2).for_each(|i| drop(find(format!("{i:060}"), i, S_IFREG))));
    agrees(&cache, "longest names", || numbers(3).for_each(|i| drop(find(format!("{i:0250}"), i, S_IFREG))));
    agrees(&cache, "directories", || numbers(4).for_each(|i| drop(find(format!("{i}"), i, S_IFDIR))));
    agrees(&cache, "links", || {
        numbers(5).for_each(|i| {
            find(format!("{i}"), i, S_IFLNK).keep_target(format!("{i:0100}").as_bytes(), true);
        });
    });
    let device = Device::new(&cache, Arc::new(Endless), BLOCK).unwrap();
    agrees(&cache, "blocks", || (0..10_000).for_each(|n| drop(device.get(n).unwrap())));
    drop((root, device));
    agrees(&cache, "given back", || assert!(cache.shrink_to(8 << 20)));
}
