//! Inodes by number, and all inodes of a superblock.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use uvfs_cache::attr::mode::{S_IFDIR, S_IFREG};
use uvfs_cache::machinery::prefix::{Question, Way};
use uvfs_cache::machinery::{Fresh, Lookup, SbOptions};
use uvfs_cache::{Attr, Cache, Config, InodeRef, SbId, Ttl};

struct World {
    cache: Arc<Cache>,
    sb: SbId,
    ended: Arc<AtomicU64>,
}

/// Redundant, so that a copy of two inodes or two moments shows.
fn attr_of(ino: u64, fmt: u32) -> Attr {
    Attr { ino, mode: fmt | 0o644, nlink: 1, size: ino * 3, uid: ino as u32, ..Attr::default() }
}

fn fresh(ino: u64) -> Fresh {
    Fresh { attr: attr_of(ino, S_IFREG), private: ino, ttl: Ttl::Forever }
}

impl World {
    fn new(resident: bool) -> Self {
        Self::with(Config { max_inodes: 1 << 14, ..Config::default() }, resident)
    }

    fn with(config: Config, resident: bool) -> Self {
        let cache = Cache::new(config).unwrap();
        let ended = Arc::new(AtomicU64::new(0));
        let count = Arc::clone(&ended);
        let on_evict = Box::new(move |_: &Attr, _| {
            count.fetch_add(1, Ordering::Relaxed);
        });
        let sb = cache.add_superblock(SbOptions { resident, watched: false, on_evict }).unwrap();
        let root = Fresh { attr: attr_of(1, S_IFDIR), ..fresh(1) };
        drop(cache.make_root(sb, &root).unwrap());
        Self { cache, sb, ended }
    }

    fn iget(&self, ino: u64) -> InodeRef<'_> {
        let asked = self.cache.ask(self.sb);
        self.cache.iget(self.sb, asked, &fresh(ino)).unwrap().0
    }

    fn peek(&self, ino: u64) -> Option<Attr> {
        let mut attr = Attr::default();
        self.cache.ipeek(self.sb, ino, S_IFREG, &mut attr).map(|_| attr)
    }
}

#[test]
fn an_inode_is_found_by_its_number_while_somebody_holds_it() {
    let w = World::new(false);
    assert!(w.cache.ilookup(w.sb, 7, S_IFREG).is_none() && w.peek(7).is_none());
    let one = w.iget(7);
    let (again, current) = w.cache.iget(w.sb, w.cache.ask(w.sb), &fresh(7)).unwrap();
    assert!(current && again.id() == one.id(), "one number, one inode");
    assert_eq!(w.cache.ilookup(w.sb, 7, S_IFREG).unwrap().id(), one.id());
    assert_eq!(w.peek(7), Some(attr_of(7, S_IFREG)));
    assert!(w.cache.ilookup(w.sb, 7, S_IFDIR).is_none(), "a number that came back as something else");
    drop((one, again));
    assert!(w.cache.ilookup(w.sb, 7, S_IFREG).is_none() && w.peek(7).is_none());
    assert_eq!(w.ended.load(Ordering::Relaxed), 1);
}

/// Rule 1, with so few bits that slots are used up: their ids do not come again. Planted bug: rule1-an-id-outgrows-its-bits.
#[test]
fn rule1_an_id_of_few_bits_is_never_given_twice() {
    let w = World::with(Config { max_inodes: 1 << 14, id_bits: 40, ..Config::default() }, false);
    let mut given = HashSet::new();
    for ino in 2..50_002 {
        let id = w.iget(ino).id().as_u64();
        assert!(id < 1 << 40 && given.insert(id), "{id:#x}");
    }
}

#[test]
fn numbers_of_two_superblocks_are_two() {
    let w = World::new(false);
    let other = w
        .cache
        .add_superblock(SbOptions { resident: false, watched: false, on_evict: Box::new(|_, _| {}) })
        .unwrap();
    let held: Vec<_> = (2..2000).map(|ino| w.iget(ino)).collect();
    assert!((2..2000).all(|ino| w.cache.ilookup(other, ino, S_IFREG).is_none()));
    let theirs = w.cache.iget(other, w.cache.ask(other), &fresh(5)).unwrap().0;
    assert_ne!(theirs.id(), held[3].id());
    assert_eq!(w.cache.ilookup(other, 5, S_IFREG).unwrap().id(), theirs.id());
}

#[test]
fn attributes_are_believed_for_their_time() {
    let w = World::new(false);
    let short = Fresh { ttl: Ttl::For(Duration::from_millis(1)), ..fresh(7) };
    let (inode, current) = w.cache.iget(w.sb, w.cache.ask(w.sb), &short).unwrap();
    assert!(current);
    w.cache.advance_clock(5);
    assert!(w.peek(7).is_none(), "expired");
    assert!(w.cache.ilookup(w.sb, 7, S_IFREG).is_some_and(|found| found.expired()));
    drop(inode);
}

#[test]
fn rule10_an_answer_from_before_a_change_is_not_believed() {
    let w = World::new(false);
    let asked = w.cache.ask(w.sb);
    assert!(w.cache.changed(w.sb, 7, S_IFREG).is_none());
    let (inode, current) = w.cache.iget(w.sb, asked, &fresh(7)).unwrap();
    assert!(!current && inode.expired(), "cached before anybody is asked again");
    assert!(w.peek(7).is_none());
    let (_, current) = w.cache.iget(w.sb, w.cache.ask(w.sb), &fresh(7)).unwrap();
    assert!(current && !inode.expired());
    // A known inode keeps what is newer.
    let asked = w.cache.ask(w.sb);
    w.cache.changed(w.sb, 7, S_IFREG).unwrap().update(|attr| attr.gid = 9);
    assert!(!w.cache.iget(w.sb, asked, &fresh(7)).unwrap().1);
    assert_eq!(inode.attr().gid, 9);
}

#[test]
fn a_name_and_a_number_lead_to_one_inode() {
    let w = World::new(false);
    let root = w.cache.root(w.sb).unwrap();
    let Lookup::Miss(guard) = w.cache.lookup(&root, b"a") else { panic!("known") };
    let named = guard.found(&fresh(7)).unwrap();
    assert_eq!(w.iget(7).id(), named.id());
    drop(named);
    assert_eq!(w.ended.load(Ordering::Relaxed), 0, "its name holds it");
    assert!(w.peek(7).is_some());
}

/// Threads make, find and end inodes of the same few numbers. Every inode that is found is whole and has the number.
/// A number has one inode at a time, and each inode that began ended once.
#[test]
fn numbers_storm() {
    let w = World::new(false);
    let wrong = AtomicU64::new(0);
    std::thread::scope(|scope| {
        for thread in 0..4u64 {
            let (w, wrong) = (&w, &wrong);
            scope.spawn(move || {
                for i in 0..4000 {
                    let ino = 2 + (i * 7 + thread * 3) % 5;
                    if let Some(attr) = w.peek(ino)
                        && attr != attr_of(ino, S_IFREG)
                    {
                        wrong.fetch_add(1, Ordering::Relaxed);
                    }
                    let before = w.cache.ilookup(w.sb, ino, S_IFREG);
                    let inode = w.iget(ino);
                    let same = before.is_none_or(|before| before.id() == inode.id());
                    if !same || inode.attr() != attr_of(ino, S_IFREG) || inode.private() != ino {
                        wrong.fetch_add(1, Ordering::Relaxed);
                    }
                }
            });
        }
    });
    assert_eq!(wrong.load(Ordering::Relaxed), 0);
    assert_eq!(w.cache.counters().inodes, 1, "the root");
    assert!(w.ended.load(Ordering::Relaxed) > 0);
    assert!((2..7).all(|ino| w.peek(ino).is_none()));
}

/// Beside threads that make and end inodes: what stays is seen once in each pass, everything that is seen is finished and
/// held, and nothing twice.
fn enumeration(resident: bool) {
    const STAY: u64 = 3000;
    let w = World::new(resident);
    let stay: Vec<_> = (2..STAY).map(|ino| w.iget(ino)).collect();
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for thread in 1..=2u64 {
            let (w, over) = (&w, &over);
            scope.spawn(move || {
                let mut i = 0;
                while !over.load(Ordering::Relaxed) {
                    let some: Vec<_> = (0..i % 90).map(|n| w.iget(1_000_000 * thread + n)).collect();
                    i += 1;
                    drop(some);
                }
            });
        }
        let passes: Vec<HashMap<u64, (u64, bool)>> = (0..20)
            .map(|_| {
                let mut seen = HashMap::new();
                let shown = w.cache.inodes_of(w.sb, &mut |inode| {
                    let (ino, attr) = (inode.ino(), inode.attr());
                    let fmt = if ino == 1 { S_IFDIR } else { S_IFREG };
                    let whole = attr == attr_of(ino, fmt) && inode.sb() == w.sb;
                    seen.insert(inode.id().as_u64(), (ino, whole));
                    true
                });
                assert_eq!(shown, seen.len() as u64, "an inode twice");
                seen
            })
            .collect();
        over.store(true, Ordering::Relaxed);
        for seen in passes {
            assert!(seen.values().all(|(_, whole)| *whole));
            assert!(stay.iter().all(|inode| seen.contains_key(&inode.id().as_u64())), "one was missed");
        }
    });
    drop(stay);
    assert_eq!(w.cache.counters().inodes, 1, "a reference is left");
    assert_eq!(w.cache.inodes_of(w.sb, &mut |_| true), 1);
    assert_eq!(w.cache.inodes_of(w.sb, &mut |_| false), 1);
}

#[test]
fn all_inodes_are_enumerated_beside_others_that_come_and_go() {
    enumeration(false);
    enumeration(true);
}

#[test]
fn who_enumerates_may_end_what_it_is_shown() {
    let w = World::new(false);
    let mut held: HashMap<_, _> =
        (2..1500).map(|ino| w.iget(ino).into_owned()).map(|owned| (owned.id(), owned)).collect();
    let count = held.len();
    let mut ended = 0;
    w.cache.inodes_of(w.sb, &mut |inode| {
        if !inode.is_root() {
            // The last one but the enumeration's.
            drop(w.cache.adopt(held.remove(&inode.id()).unwrap()));
            ended += 1;
        }
        true
    });
    assert_eq!((ended, w.cache.counters().inodes), (count, 1));
    assert!((2..1500).all(|ino| w.peek(ino).is_none()));
}

/// Rule 16: a directory that a cached path passes is found by its number, as any other. (A flag of it stands beside the
/// superblock's number.) Planted bug: rule16-flags-count-as-the-superblock.
#[test]
fn rule16_a_passed_directory_is_found_by_number() {
    let w = World::new(false);
    let root = w.cache.root(w.sb).unwrap();
    let dir = |parent: &InodeRef<'_>, name: &[u8], ino| {
        let Lookup::Miss(ticket) = w.cache.lookup(parent, name) else { panic!("not cached yet") };
        ticket.found(&Fresh { attr: attr_of(ino, S_IFDIR), ..fresh(ino) }).unwrap().id()
    };
    let first = dir(&root, b"first", 2);
    let second = dir(&w.cache.get(first).unwrap(), b"second", 3);
    let pos = |id| w.cache.pos(id).unwrap();
    let ask = || Question::new(&w.cache, (root.id(), root.id()), 1, 0, b"first/second").unwrap();
    // A path is kept at its second walk.
    for _ in 0..2 {
        let mut way = Way::new(pos(root.id()));
        way.add(pos(first));
        way.add(pos(second));
        w.cache.note_prefix(&ask(), &way);
    }
    assert_eq!(w.cache.prefix(&ask()).map(|(at, _)| at.id()), Some(second), "the path is cached");
    let mut attr = Attr::default();
    for (id, ino) in [(first, 2), (second, 3)] {
        assert_eq!(w.cache.ilookup(w.sb, ino, S_IFDIR).map(|inode| inode.id()), Some(id), "inode {ino}");
        assert_eq!(w.cache.ipeek(w.sb, ino, S_IFDIR, &mut attr), Some(id), "inode {ino}");
    }
    assert!(w.cache.inode_changed(w.sb, 2, S_IFDIR, false));
    assert!(w.cache.prefix(&ask()).is_none());
}
