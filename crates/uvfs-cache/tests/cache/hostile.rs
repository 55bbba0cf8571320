//! Rule 6: names that were chosen to collide.

use uvfs_cache::attr::mode::{S_IFDIR, S_IFREG};
use uvfs_cache::{Attr, Cache, Config, Fresh, Life, Lookup, Peek, SbOptions};

fn fresh(ino: u64, fmt: u32) -> Fresh {
    let attr = Attr { ino, mode: fmt | 0o755, nlink: 1, ..Attr::default() };
    Fresh { attr, private: ino, life: Life::Forever }
}

/// Without the key all of these have the same hash (which a unit test of the hash shows). Broken if the key
/// does not part them: then chains get too long, are counted, and the key is changed in vain.
#[test]
fn rule6_names_that_collide_without_the_key_make_no_long_chains() {
    let cache = Cache::new(Config { max_inodes: 1 << 20, ..Config::default() }).unwrap();
    let sb = cache.add_superblock(SbOptions { resident: false, on_evict: Box::new(|_, _| {}) }).unwrap();
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
