//! Rule 18: a chunk of slots belongs to one superblock at a time, also after it was given back.

use std::collections::HashSet;
use std::sync::Arc;

use uvfs_cache::attr::mode::{S_IFDIR, S_IFREG};
use uvfs_cache::machinery::{Fresh, SbOptions};
use uvfs_cache::{Attr, Cache, Config, Room, SbId, Ttl};

/// More than two chunks' worth.
const NAMES: u64 = 3000;

fn fresh(ino: u64, fmt: u32) -> Fresh {
    let attr = Attr { ino, mode: fmt | 0o755, nlink: 1, ..Attr::default() };
    Fresh { attr, private: ino, ttl: Ttl::Forever }
}

fn superblock(cache: &Cache) -> SbId {
    let sb = cache
        .add_superblock(SbOptions { resident: true, watched: false, on_evict: Box::new(|_, _| {}) })
        .unwrap();
    drop(cache.make_root(sb, &fresh(1, S_IFDIR)).unwrap());
    sb
}

/// Makes the files of one number of a superblock: their ids.
fn fill(cache: &Cache, sb: SbId, of: impl Iterator<Item = u64>) -> Vec<u64> {
    let root = cache.root(sb).unwrap();
    let one = |i: u64| {
        let guard = cache.lock_name(&root, format!("f{i}").as_bytes());
        let room = guard.reserve(Room::Node).unwrap();
        guard.create(room, &fresh(10 + i, S_IFREG)).id().as_u64()
    };
    of.map(one).collect()
}

fn empty(cache: &Cache, sb: SbId) {
    let root = cache.root(sb).unwrap();
    (0..NAMES).for_each(|i| cache.lock_name(&root, format!("f{i}").as_bytes()).remove(None));
}

/// A chunk that one superblock gave back goes to one other, never to two; and none is lost. Planted bugs:
/// rule18-a-chunk-is-handed-out-twice, rule18-a-chunk-stays-with-its-first-owner, rule18-chunks-are-not-returned.
#[test]
fn rule18_a_chunk_that_was_given_back_goes_to_one_superblock() {
    // Room for two superblocks' files, and no more than a few chunks beyond.
    let cache: Arc<Cache> = Cache::new(Config { max_inodes: 10 << 10, ..Config::default() }).unwrap();
    let sbs = [(); 3].map(|()| superblock(&cache));
    for round in 0..6 {
        let [gives, one, other] = [0, 1, 2].map(|i| sbs[(round + i) % 3]);
        fill(&cache, gives, 0..NAMES);
        empty(&cache, gives);
        assert!(cache.trim(gives) > 0);
        // By turns, so that the two and the first one take chunks one after the other.
        let mut ids = [Vec::new(), Vec::new(), Vec::new()];
        for i in 0..NAMES / 100 {
            for (ids, sb) in ids.iter_mut().zip([one, gives, other]).filter(|(_, sb)| *sb != gives || i < 4) {
                ids.extend(fill(&cache, sb, i * 100..(i + 1) * 100));
            }
        }
        let slots: HashSet<u32> = ids.iter().flatten().map(|id| *id as u32).collect();
        assert_eq!(slots.len(), ids.iter().flatten().count(), "a slot is two files'");
        for (ids, sb) in ids.iter().zip([one, gives, other]) {
            let mut found = HashSet::new();
            cache.inodes_of(sb, &mut |inode| found.insert(inode.id().as_u64()));
            assert!(found.remove(&cache.root(sb).unwrap().id().as_u64()));
            assert_eq!(found, ids.iter().copied().collect(), "round {round}: another superblock's slots");
        }
        for sb in sbs {
            empty(&cache, sb);
            cache.trim(sb);
        }
    }
}
