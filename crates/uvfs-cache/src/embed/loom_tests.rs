//! Model checks of the embedder's handles: data dropped once, tickets that are cancelled, paths, keys.
//!
//! The data stand in loom's cells, so a use that is not ordered before the take is found. Each test names the bugs of
//! ci/planted-bugs.sh that make it fail.

use std::sync::atomic::{AtomicI64, Ordering as Std};

use super::*;
use crate::Attr;
use crate::inodes::attr::mode::{S_IFDIR, S_IFREG};
use crate::loom_tests::{bounded_model, model, roomy, slow_model};
use crate::names::dentry::NameWords;
use crate::types::Ttl;

/// Counts itself while it lives. (Not a word of loom's: it adds no order of its own.)
#[derive(Debug)]
struct Value {
    ino: u64,
    alive: Arc<AtomicI64>,
}

impl Drop for Value {
    fn drop(&mut self) {
        assert!(self.alive.fetch_sub(1, Std::Relaxed) > 0, "dropped twice");
    }
}

type Node = OwnedNode<Value>;

struct World {
    alive: Arc<AtomicI64>,
    cache: NodeCache<Value>,
    sb: NodeSuperblock<Value>,
}

impl World {
    fn new() -> Arc<Self> {
        let alive = Arc::new(AtomicI64::new(0));
        let cache = NodeCache::new(Config { max_inodes: 6, max_negative: 2, ..Config::default() }).unwrap();
        let sb = cache.add_superblock(false, answer(&alive, 1, S_IFDIR)).unwrap();
        Arc::new(Self { alive, cache, sb })
    }

    fn answer(&self, ino: u64, fmt: u32) -> NodeAnswer<Value> {
        answer(&self.alive, ino, fmt)
    }

    fn found(&self, dir: &Node, name: &[u8], ino: u64, fmt: u32) -> Node {
        match dir.try_lookup(name).unwrap() {
            NodeLookup::Miss(ticket) => ticket.found(self.answer(ino, fmt)).unwrap(),
            other => panic!("{other:?}"),
        }
    }

    fn spawn<R: Send + 'static>(
        self: &Arc<Self>,
        f: impl FnOnce(&Self) -> R + Send + 'static,
    ) -> loom::thread::JoinHandle<R> {
        let world = self.clone();
        roomy(move || f(&world))
    }

    fn alive(&self) -> i64 {
        self.alive.load(Std::Relaxed)
    }
}

fn answer(alive: &Arc<AtomicI64>, ino: u64, fmt: u32) -> NodeAnswer<Value> {
    alive.fetch_add(1, Std::Relaxed);
    let attr = Attr { ino, mode: fmt | 0o755, nlink: 1, ..Attr::default() };
    let data = Value { ino, alive: alive.clone() };
    NodeAnswer { attr, name_ttl: Ttl::Forever, attr_ttl: Ttl::Forever, data }
}

/// Rule 2: data that a handle reads are taken out after the handle's put, once. Planted bugs:
/// rule2-put-without-release-of-data, rule2-put-without-acquire-of-data.
#[test]
fn loom_rule2_data_is_dropped_once_after_its_last_use() {
    model(|| {
        let w = World::new();
        let root = w.sb.root();
        let held = w.found(&root, b"a", 5, S_IFREG);
        let reader = w.spawn(move |_| {
            assert_eq!(held.data().ino, 5);
            drop(held);
        });
        root.invalidate(b"a");
        reader.join().unwrap();
        assert_eq!(w.alive(), 1, "the root's");
    });
}

/// Rule 2: two answers make one inode. One value is its data, and the other is dropped. Planted bugs:
/// rule2-data-of-a-lost-race-stays, rule2-data-is-taken-from-its-inode.
#[test]
fn loom_rule2_data_of_a_lost_race_is_dropped() {
    bounded_model(1, || {
        let w = World::new();
        let other = w.spawn(|w| w.sb.found_number(w.sb.ask(), w.answer(5, S_IFREG)).unwrap().0);
        let mine = w.sb.found_number(w.sb.ask(), w.answer(5, S_IFREG)).unwrap().0;
        assert!(other.join().unwrap() == mine && mine.data().ino == 5);
        assert_eq!(w.alive(), 2, "the root's and this one");
    });
}

/// Rule 17: an inode that a handle was made of is not evicted, and its data stay. Planted bug:
/// rule17-eviction-spares-no-handle.
#[test]
fn loom_rule17_an_evicted_inode_has_no_handle() {
    model(|| {
        let w = World::new();
        let id = w.found(&w.sb.root(), b"a", 5, S_IFREG).id();
        let reader = w.spawn(move |w| {
            let node = w.cache.node(id)?;
            assert_eq!(node.data().ino, 5);
            Some(node)
        });
        let cache = &w.cache.0.cache;
        let dentry = cache.inodes.private(id.index()).alias.load(uvfs_sync::primitives::Ordering::Relaxed);
        let went = cache.evict_at(w.sb.id(), dentry);
        let node = reader.join().unwrap();
        assert!(!went || node.is_none(), "evicted beside a handle");
        if let Some(node) = node {
            assert_eq!(node.data().ino, 5);
        }
        assert_eq!(w.alive(), if went { 1 } else { 2 });
    });
}

/// Rule 13: a ticket that is cancelled wakes those that wait for its name, also those that come beside one that gives
/// up. Planted bugs: rule13-a-cancelled-ticket-keeps-its-name, rule13-a-waiter-is-taken-for-gone.
#[test]
fn loom_rule13_a_cancelled_ticket_wakes_its_waiters() {
    model(|| {
        let w = World::new();
        let root = w.sb.root();
        let Ok(NodeLookup::Miss(ticket)) = root.try_lookup(b"a") else { panic!("nobody asks") };
        let waits = root.try_lookup(b"a").unwrap_err();
        let gives_up = root.try_lookup(b"a").unwrap_err();
        let canceller = w.spawn(move |_| drop(ticket));
        let giver = w.spawn(move |_| drop(gives_up));
        assert_eq!(waits.wait(), Ok(()));
        let ticket = loop {
            match root.try_lookup(b"a") {
                Ok(NodeLookup::Miss(ticket)) => break ticket,
                Ok(other) => panic!("{other:?}"),
                Err(pending) => assert_eq!(pending.wait(), Ok(())),
            }
        };
        canceller.join().unwrap();
        giver.join().unwrap();
        ticket.absent(Ttl::Forever);
    });
}

/// Rule 12: a path is one that the file had. Its name changes, then its directory's. Planted bug:
/// rule12-a-path-is-not-checked-at-its-end.
#[test]
fn loom_rule12_a_path_is_of_one_moment() {
    slow_model(|| {
        let w = World::new();
        let root = w.sb.root();
        let dir = w.found(&root, b"d", 2, S_IFDIR);
        let file = w.found(&dir, b"f", 5, S_IFREG);
        // The bare stores of a rename in the same directory: its locks part writers, and this is the only one.
        let rename = |node: &Node, parent: &Node, to: &[u8]| {
            let (cache, index) = (&w.cache.0.cache, node.id().index());
            let alias = &cache.inodes.private(index).alias;
            let d = cache.dentries.get(alias.load(uvfs_sync::primitives::Ordering::Relaxed));
            d.seq.write(|| d.set_name(parent.id().index(), &NameWords::new(to), 0));
        };
        let (read, held) = (file.clone(), file.clone());
        let reader = w.spawn(move |_| read.path());
        rename(&held, &dir, b"g");
        rename(&dir, &root, b"e");
        if let Ok(path) = reader.join().unwrap() {
            let path = path.expect("it has a name all the while");
            assert!([&b"d/f"[..], b"d/g", b"e/g"].contains(&&path[..]), "{path:?} was never its path");
        }
    });
}

/// Rule 16: once a number belongs to another inode, it does not lead to the old one, and an answer about it beside the
/// change leaves one inode. Planted bug: rule16-a-replaced-number-stays.
#[test]
fn loom_rule16_a_replaced_number_leads_to_one_inode() {
    bounded_model(1, || {
        let w = World::new();
        let (old, _) = w.sb.found_number(w.sb.ask(), w.answer(5, S_IFREG)).unwrap();
        let other = w.spawn(|w| w.sb.found_number(w.sb.ask(), w.answer(5, S_IFREG)).unwrap().0);
        old.replaced();
        let other = other.join().unwrap();
        let now = w.sb.by_number(5);
        assert!(now == (other != old).then_some(other), "two inodes of one number");
        drop(now);
        drop(old);
        assert_eq!(w.alive(), 1, "the root's");
    });
}

/// Rule 16: a key keeps its number while somebody has it, and leaves the index with its last holder. Planted bug:
/// rule16-a-key-goes-with-its-first-holder.
#[test]
fn loom_rule16_a_key_has_one_number() {
    model(|| {
        let keys = NodeKeys::new(7, Arc::default());
        let held = keys.key(b"k").unwrap();
        let others = keys.clone();
        let other = roomy(move || {
            let key = others.key(b"k").unwrap();
            assert_eq!(others.number(b"k"), Some(key.number()));
            key.number()
        });
        let number = held.number();
        drop(held);
        assert!([7, 8].contains(&other.join().unwrap()) && number == 7);
        assert_eq!(keys.number(b"k"), None, "nobody has it");
    });
}
