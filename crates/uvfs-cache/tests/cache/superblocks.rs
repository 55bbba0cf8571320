//! Slots of names between superblocks: a negative entry outlives its directory, whose index another superblock may get
//! (design rule 18).

use std::sync::Arc;

use uvfs_cache::attr::mode::{S_IFDIR, S_IFREG};
use uvfs_cache::machinery::{Fresh, Lookup, NameGuard, SbOptions};
use uvfs_cache::{Attr, Cache, Config, InodeId, InodeRef, Peek, Room, SbId, Ttl};

/// Two superblocks in one cache. `old` has a negative entry for each of [`NAMES`] whose directory is gone; `dir`, of `new`,
/// has the index that this directory had.
struct Heirs {
    cache: Arc<Cache>,
    old: SbId,
    new: SbId,
    dir: InodeId,
}

const NAMES: usize = 40;

fn name(i: usize) -> Vec<u8> {
    format!("name {i}").into_bytes()
}

fn fresh(ino: u64, fmt: u32) -> Fresh {
    let attr = Attr { ino, mode: fmt | 0o755, nlink: 1, ..Attr::default() };
    Fresh { attr, private: 0, ttl: Ttl::Forever }
}

fn superblock(cache: &Cache, resident: bool) -> SbId {
    let sb =
        cache.add_superblock(SbOptions { resident, watched: false, on_evict: Box::new(|_, _| {}) }).unwrap();
    drop(cache.make_root(sb, &fresh(1, S_IFDIR)).unwrap());
    sb
}

fn ask<'c>(cache: &'c Cache, dir: &InodeRef<'c>, name: &[u8]) -> NameGuard<'c> {
    match cache.lookup(dir, name) {
        Lookup::Miss(guard) => guard,
        other => panic!("{other:?}"),
    }
}

fn make<'c>(cache: &'c Cache, dir: &InodeRef<'c>, name: &[u8], ino: u64, fmt: u32) -> InodeRef<'c> {
    let guard = cache.lock_name(dir, name);
    let room = guard.reserve(if fmt == S_IFDIR { Room::Dir } else { Room::Node }).unwrap();
    guard.create(room, &fresh(ino, fmt))
}

fn index(inode: &InodeRef<'_>) -> u32 {
    inode.id().as_u64() as u32
}

fn is_there(cache: &Cache, dir: &InodeRef<'_>, name: &[u8]) -> bool {
    matches!(cache.peek(dir.id(), name), Peek::Hit(..))
}

impl Heirs {
    fn new(resident: bool) -> Self {
        let cache = Cache::new(Config { max_inodes: 1 << 16, ..Config::default() }).unwrap();
        let (old, new) = (superblock(&cache, false), superblock(&cache, resident));
        let root = cache.root(old).unwrap();
        let directory = |i: u64| format!("directory {i}").into_bytes();
        let mut gone = Vec::new();
        for i in 0..3000 {
            gone.push(ask(&cache, &root, &directory(i)).found(&fresh(10 + i, S_IFDIR)).unwrap());
        }
        // In a chunk that will be returned.
        let heir = index(&gone[2000]);
        for i in 0..NAMES {
            ask(&cache, &gone[2000], &name(i)).absent(Ttl::Forever);
        }
        drop(gone);
        (0..3000).for_each(|i| cache.invalidate(&root, &directory(i)));
        assert!(cache.trim(old) > 0);
        assert_eq!(cache.counters().negative, NAMES as u64);
        let above = cache.root(new).unwrap();
        let inherited = (0..20_000)
            .map(|i| make(&cache, &above, &directory(i), 10 + i, S_IFDIR))
            .find(|dir| index(dir) == heir)
            .expect("the index comes again");
        let dir = inherited.id();
        drop((root, above, inherited));
        Self { cache, old, new, dir }
    }

    fn dir(&self) -> InodeRef<'_> {
        self.cache.get(self.dir).unwrap()
    }

    /// New names in `dir`, then `loses` of the other superblock: none of them goes.
    fn keeps_its_files(&self, path: &str, loses: &str) {
        let dir = self.dir();
        let file = |i: usize| format!("file {i}").into_bytes();
        (0..200).for_each(|i| drop(make(&self.cache, &dir, &file(i), 100_000 + i as u64, S_IFREG)));
        match loses {
            "evicts" => while self.cache.evict_unused(self.old, usize::MAX) > 0 {},
            _ => assert_eq!(self.cache.drop_superblock(self.old), 0),
        }
        let lost = (0..200).filter(|i| !is_there(&self.cache, &dir, &file(*i))).count();
        assert_eq!(lost, 0, "after {path}, when the other superblock {loses}: files lost");
        // Every slot is counted where it belongs.
        drop(dir);
        assert_eq!((self.cache.drop_superblock(self.old), self.cache.drop_superblock(self.new)), (0, 0));
        let c = self.cache.counters();
        assert_eq!((c.inodes, c.dentries, c.negative), (0, 0, 0), "after {path}");
    }
}

type Path = fn(&Heirs, &InodeRef<'_>);

/// The paths that may kill the negative entries of the directory that had the index before.
const PATHS: [(&str, bool, Path); 7] = [
    ("create", true, |heirs, dir| {
        (0..NAMES).for_each(|i| drop(make(&heirs.cache, dir, &name(i), 50_000 + i as u64, S_IFREG)));
    }),
    ("found", false, |heirs, dir| {
        for i in 0..NAMES {
            drop(ask(&heirs.cache, dir, &name(i)).found(&fresh(50_000 + i as u64, S_IFREG)).unwrap());
        }
    }),
    ("absent", false, |heirs, dir| {
        (0..NAMES).for_each(|i| ask(&heirs.cache, dir, &name(i)).absent(Ttl::Forever));
    }),
    ("link", true, |heirs, dir| {
        let file = make(&heirs.cache, dir, b"first name", 50_000, S_IFREG);
        for i in 0..NAMES {
            let guard = heirs.cache.lock_name(dir, &name(i));
            guard.link(guard.reserve(Room::Name).unwrap(), &file, Ttl::Forever);
        }
    }),
    ("invalidate", true, |heirs, dir| {
        (0..NAMES).for_each(|i| heirs.cache.invalidate(dir, &name(i)));
    }),
    ("rename", true, |heirs, dir| {
        for i in 0..NAMES {
            drop(make(&heirs.cache, dir, b"moved", 50_000 + i as u64, S_IFREG));
            // As the source too: what is not cached is moved onto a name that is.
            for (from, to) in [(&b"moved"[..], &name(i)[..]), (&name((i + 1) % NAMES), b"moved")] {
                let (from, to) = heirs.cache.lock_names((dir, from), (dir, to));
                heirs.cache.rename(&from, &to, to.reserve(Room::Name).unwrap(), None);
            }
            heirs.cache.lock_name(dir, b"moved").remove(None);
        }
    }),
    ("exchange", true, |heirs, dir| {
        for i in 0..NAMES {
            drop(make(&heirs.cache, dir, b"exchanged", 50_000 + i as u64, S_IFREG));
            let (a, b) = heirs.cache.lock_names((dir, b"exchanged"), (dir, &name(i)));
            heirs.cache.exchange(&a, &b);
        }
    }),
];

fn no_file_is_lost(path: &str) {
    let (path, resident, take) = PATHS.iter().find(|(name, ..)| *name == path).unwrap();
    for loses in ["evicts", "ends"] {
        let heirs = Heirs::new(*resident);
        take(&heirs, &heirs.dir());
        heirs.keeps_its_files(path, loses);
    }
}

#[test]
fn rule18_a_create_over_anothers_negative_entry_loses_no_file() {
    no_file_is_lost("create");
}

#[test]
fn rule18_an_answer_over_anothers_negative_entry_loses_no_file() {
    no_file_is_lost("found");
}

#[test]
fn rule18_an_absence_over_anothers_negative_entry_loses_no_file() {
    no_file_is_lost("absent");
}

#[test]
fn rule18_a_link_over_anothers_negative_entry_loses_no_file() {
    no_file_is_lost("link");
}

#[test]
fn rule18_an_invalidation_of_anothers_negative_entry_loses_no_file() {
    no_file_is_lost("invalidate");
}

#[test]
fn rule18_a_rename_over_anothers_negative_entry_loses_no_file() {
    no_file_is_lost("rename");
}

#[test]
fn rule18_an_exchange_with_anothers_negative_entry_loses_no_file() {
    no_file_is_lost("exchange");
}

/// Inodes that are held beyond the end of their superblock keep its memory only until they are let go of.
#[test]
fn rule18_a_superblock_that_has_ended_keeps_no_memory() {
    let cache = Cache::new(Config { max_inodes: 1 << 16, ..Config::default() }).unwrap();
    let kept = superblock(&cache, true);
    // The first chunks are never returned.
    drop(make(&cache, &cache.root(kept).unwrap(), b"file", 2, S_IFREG));
    let chunks = || cache.committed() - cache.counters().hash_bytes;
    let before = chunks();
    let sb = superblock(&cache, false);
    let root = cache.root(sb).unwrap();
    let held: Vec<_> = (0..5000)
        .map(|i| ask(&cache, &root, format!("{i}").as_bytes()).found(&fresh(10 + i, S_IFREG)).unwrap())
        .collect();
    assert_eq!(cache.drop_superblock(sb), 5001);
    assert!(chunks() > before);
    drop((held, root));
    assert_eq!(chunks(), before);
}
