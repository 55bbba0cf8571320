//! The cache against a reference model: random changes of names on a resident superblock, every
//! result compared, and nothing left over at the end.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use proptest::prelude::*;
use uvfs_cache::attr::mode::{S_IFDIR, S_IFREG};
use uvfs_cache::machinery::{Fresh, Known, SbOptions};
use uvfs_cache::{Attr, Cache, Config, InodeId, InodeRef, Peek, Room, SbId, Ttl};

fn attr(ino: u64, dir: bool) -> Attr {
    Attr { ino, mode: if dir { S_IFDIR | 0o755 } else { S_IFREG | 0o644 }, nlink: 1, ..Attr::default() }
}

fn fresh(ino: u64, dir: bool) -> Fresh {
    Fresh { attr: attr(ino, dir), private: ino, ttl: Ttl::Forever }
}

struct World {
    cache: Arc<Cache>,
    sb: SbId,
    evicted: Arc<AtomicU64>,
}

impl World {
    fn new() -> Self {
        let cache =
            Cache::new(Config { max_inodes: 1 << 20, max_negative: 64, ..Config::default() }).unwrap();
        let evicted = Arc::new(AtomicU64::new(0));
        let count = evicted.clone();
        let on_evict = Box::new(move |_: &Attr, _: u64| {
            count.fetch_add(1, Ordering::Relaxed);
        });
        let sb = cache.add_superblock(SbOptions { resident: true, watched: false, on_evict }).unwrap();
        cache.make_root(sb, &fresh(1, true)).unwrap();
        Self { cache, sb, evicted }
    }
    fn root(&self) -> InodeRef<'_> {
        self.cache.root(self.sb).unwrap()
    }
}

fn create(dir: &InodeRef<'_>, name: &[u8], ino: u64, is_dir: bool) -> InodeId {
    let guard = dir.cache().lock_name(dir, name);
    assert!(matches!(guard.find(), Known::Negative));
    let room = guard.reserve(if is_dir { Room::Dir } else { Room::Node }).unwrap();
    guard.create(room, &fresh(ino, is_dir)).id()
}

fn list(dir: &InodeRef<'_>) -> BTreeMap<Vec<u8>, u64> {
    let mut names = BTreeMap::new();
    dir.cache().read_dir(dir, 0, &mut |name, ino, _, _| {
        assert!(names.insert(name.to_vec(), ino).is_none(), "listed twice");
        true
    });
    names
}

/// A pool of names of all kinds of lengths: inline, with a short tail, with a long one.
fn name(pick: u8) -> Vec<u8> {
    let lengths = [1, 7, 8, 16, 17, 31, 32, 33, 39, 40, 41, 64, 96, 97, 200, 255];
    let len = lengths[pick as usize % lengths.len()];
    (0..len).map(|i| b'a' + ((pick as usize / 16 + i) % 26) as u8).collect()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

    #[test]
    fn names_behave_like_a_map(ops in prop::collection::vec((0u8..6, any::<u8>(), any::<u8>()), 0..300)) {
        let w = World::new();
        let root = w.root();
        let dirs: Vec<InodeRef> =
            (0..2).map(|i| w.cache.get(create(&root, &[b'0' + i], 10 + u64::from(i), true)).unwrap()).collect();
        let mut model: [BTreeMap<Vec<u8>, u64>; 2] = Default::default();
        for (i, (op, a, b)) in ops.into_iter().enumerate() {
            let (da, db) = ((a % 2) as usize, (b % 2) as usize);
            let (na, nb) = (name(a / 2 % 48), name(b / 2 % 48));
            let here = model[da].get(&na).copied();
            match op {
                0 | 1 if here.is_none() => {
                    create(&dirs[da], &na, 100 + i as u64, false);
                    model[da].insert(na, 100 + i as u64);
                }
                2 if here.is_some() => {
                    w.cache.lock_name(&dirs[da], &na).remove(None);
                    model[da].remove(&na);
                }
                3 if here.is_some() && (da, &na) != (db, &nb) => {
                    let (from, to) = w.cache.lock_names((&dirs[da], &na), (&dirs[db], &nb));
                    let room = to.reserve(Room::Name).unwrap();
                    w.cache.rename(&from, &to, room, None);
                    let moved = model[da].remove(&na).unwrap();
                    model[db].insert(nb, moved);
                }
                4 if here.is_some() && model[db].contains_key(&nb) => {
                    let (from, to) = w.cache.lock_names((&dirs[da], &na), (&dirs[db], &nb));
                    w.cache.exchange(&from, &to);
                    let (x, y) = (model[da][&na], model[db][&nb]);
                    model[da].insert(na, y);
                    model[db].insert(nb, x);
                }
                _ => match (w.cache.peek(dirs[da].id(), &na), here) {
                    (Peek::Hit(_, attr), Some(ino)) => prop_assert_eq!(attr.ino, ino),
                    (Peek::Negative, None) => {}
                    other => prop_assert!(false, "{:?}", other),
                },
            }
        }
        for (dir, model) in dirs.iter().zip(&model) {
            prop_assert_eq!(&list(dir), model);
            for (n, ino) in model {
                prop_assert!(matches!(w.cache.peek(dir.id(), n), Peek::Hit(_, a) if a.ino == *ino));
            }
        }
        drop(dirs);
        drop(root);
        let made = w.cache.counters().inodes + w.evicted.load(Ordering::Relaxed);
        prop_assert_eq!(w.cache.drop_superblock(w.sb), 0);
        prop_assert_eq!(w.evicted.load(Ordering::Relaxed), made);
        prop_assert_eq!(w.cache.counters().dentries, 0);
    }
}

#[test]
fn many_names_are_all_found_and_all_gone() {
    let w = World::new();
    let root = w.root();
    let n = 100_000u64;
    for i in 0..n {
        create(&root, format!("file-{i}").as_bytes(), 100 + i, false);
    }
    assert_eq!(list(&root).len() as u64, n);
    for i in 0..n {
        let found = w.cache.peek(root.id(), format!("file-{i}").as_bytes());
        assert!(matches!(found, Peek::Hit(_, a) if a.ino == 100 + i), "{i}: {found:?}");
    }
    assert_eq!(w.cache.counters().long_chains, 0);
    for i in 0..n {
        w.cache.lock_name(&root, format!("file-{i}").as_bytes()).remove(None);
        assert_eq!(w.cache.peek(root.id(), format!("file-{i}").as_bytes()), Peek::Negative);
    }
    assert_eq!(w.cache.counters().inodes, 1);
    assert!(w.cache.trim(w.sb) > 100);
    let again = create(&root, b"again", 7, false);
    assert!(w.cache.attr(again).is_some());
}

/// Rule 1: an id of a generation that is over is recognised, also after its memory was given back.
#[test]
fn rule1_a_stale_id_is_recognised_for_ever() {
    let w = World::new();
    let root = w.root();
    let mut stale = Vec::new();
    for round in 0..4 {
        let ids: Vec<InodeId> =
            (0..5000).map(|i| create(&root, format!("{i}").as_bytes(), 100 + i, false)).collect();
        for id in &stale {
            assert!(!ids.contains(id), "an id came back");
            assert!(w.cache.get(*id).is_none() && w.cache.attr(*id).is_none());
            assert_eq!(w.cache.peek(*id, b"x"), Peek::Stale);
        }
        for i in 0..5000 {
            w.cache.lock_name(&root, format!("{i}").as_bytes()).remove(None);
        }
        if round % 2 == 0 {
            assert!(w.cache.trim(w.sb) > 0);
        }
        stale.extend(ids);
    }
}

#[test]
fn a_removed_file_lives_as_long_as_somebody_holds_it() {
    let w = World::new();
    let root = w.root();
    let id = create(&root, b"f", 5, false);
    let held = w.cache.get(id).unwrap();
    held.add_lookups(3);
    w.cache.lock_name(&root, b"f").remove(None);
    assert_eq!(w.cache.peek(root.id(), b"f"), Peek::Negative);
    assert_eq!(held.attr().ino, 5);
    drop(held);
    w.cache.forget_lookups(id, 2);
    assert!(w.cache.get(id).is_some());
    w.cache.forget_lookups(id, 5);
    assert!(w.cache.get(id).is_none());
    w.cache.forget_lookups(id, 1);
    assert_eq!(w.evicted.load(Ordering::Relaxed), 1);
}
