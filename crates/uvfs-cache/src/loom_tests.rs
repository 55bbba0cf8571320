//! Model checks of the cache's protocols, named after the rules of docs/locking.md that they prove.
//!
//! Small worlds: three inodes, two threads, one operation each. Each test names the bugs of
//! ci/planted-bugs.sh that make it fail.
//!
//! A thread that only reads is the spawned one. It runs after the change and may read old values of
//! everything that it was not notified of, so it covers every order. If it ran first, it would only ever
//! see the beginning: loom looks for races with the last access to a word, and a writer that loads before
//! it stores hides the reader's access. Steps that a reader makes before the change are made before it is
//! spawned, if that loses no race. A whole `peek` beside a removal and a new creation has too many orders
//! to run; its halves have few.

mod exchange;
mod hit;
mod links;
mod listing;
mod numbers;
mod prefixes;
mod references;
mod stale;

use std::sync::Arc;
use std::time::Duration;

use uvfs_sync::primitives::{AtomicU32, Ordering};

use crate::inodes::attr::mode::{S_IFDIR, S_IFLNK, S_IFREG};
use crate::machinery::{Child, Known, Pos, Step, TARGET_MAX};
use crate::machinery::{EvictHook, Fresh, Lookup, NameGuard, SbOptions};
use crate::names::dentry::NameWords;
use crate::walk::lock_free_lookup::Match;
use crate::walk::prefix_cache::{Question, Way};
use crate::{Attr, Cache, Config, InodeId, InodeRef, Peek, Room, SbId, Time, Ttl};

pub(crate) fn model(f: impl Fn() + Send + Sync + 'static) {
    bounded_model(2, f);
}

/// A model that runs for many seconds with two preemptions. `ci/loom.sh --quick` gives it one: its planted bugs are
/// still found.
pub(crate) fn slow_model(f: impl Fn() + Send + Sync + 'static) {
    bounded_model(if std::env::var_os("LOOM_QUICK").is_some() { 1 } else { 2 }, f);
}

/// A model of whole operations, which have too many orders for two preemptions.
pub(crate) fn bounded_model(preemptions: usize, f: impl Fn() + Send + Sync + 'static) {
    let mut b = loom::model::Builder::new();
    if b.preemption_bound.is_none() {
        b.preemption_bound = Some(preemptions);
    }
    b.max_branches = 50_000;
    let f = Arc::new(f);
    b.check(move || {
        let f = f.clone();
        // loom's own thread has a small stack, and a cache is built on the stack.
        roomy(move || f()).join().unwrap();
    });
}

pub(crate) fn roomy<R: Send + 'static>(
    f: impl FnOnce() -> R + Send + 'static,
) -> loom::thread::JoinHandle<R> {
    loom::thread::Builder::new().stack_size(1 << 16).spawn(f).unwrap()
}

fn fresh(ino: u64, dir: bool) -> Fresh {
    let mode = if dir { S_IFDIR | 0o755 } else { S_IFREG | 0o644 };
    // The attributes are redundant, so that a copy of two moments shows.
    let attr = Attr { ino, mode, nlink: 1, size: ino, ..Attr::default() };
    Fresh { attr, private: ino, ttl: Ttl::Forever }
}

#[derive(Clone)]
struct World {
    cache: Arc<Cache>,
    sb: SbId,
}

impl World {
    fn new(resident: bool) -> Self {
        Self::with_hook(resident, Box::new(|_, _| {}))
    }
    fn with_hook(resident: bool, on_evict: EvictHook) -> Self {
        Self::of(4, resident, on_evict)
    }
    /// One of the `max_inodes` slots is never handed out.
    fn of(max_inodes: u32, resident: bool, on_evict: EvictHook) -> Self {
        Self::with(max_inodes, SbOptions { resident, watched: false, on_evict })
    }
    fn with(max_inodes: u32, options: SbOptions) -> Self {
        let cache = Cache::new(Config { max_inodes, max_negative: 2, ..Config::default() }).unwrap();
        let sb = cache.add_superblock(options).unwrap();
        drop(cache.make_root(sb, &fresh(1, true)).unwrap());
        Self { cache, sb }
    }
    fn root(&self) -> InodeRef<'_> {
        self.cache.root(self.sb).unwrap()
    }
    fn root_id(&self) -> InodeId {
        self.root().id()
    }
    fn create(&self, name: &[u8], ino: u64, dir: bool) -> InodeId {
        let root = self.root();
        self.create_at(&root, name, ino, dir)
    }
    fn create_at(&self, dir: &InodeRef<'_>, name: &[u8], ino: u64, is_dir: bool) -> InodeId {
        let guard = self.cache.lock_name(dir, name);
        let room = guard.reserve(if is_dir { Room::Dir } else { Room::Node }).unwrap();
        guard.create(room, &fresh(ino, is_dir)).id()
    }
    /// A symbolic link "a"; its target is cached unless it is empty.
    fn link(&self, target: &[u8]) -> (Pos, Child) {
        let root = self.root();
        let guard = self.cache.lock_name(&root, b"a");
        let room = guard.reserve(Room::Node).unwrap();
        let attr = Attr { mode: S_IFLNK | 0o777, ..fresh(5, false).attr };
        let link = guard.create(room, &Fresh { attr, ..fresh(5, false) });
        if !target.is_empty() {
            link.keep_target(target, true);
        }
        let at = self.at();
        (at, self.child(at, b"a"))
    }
    fn remove(&self, name: &[u8]) {
        let root = self.root();
        self.cache.lock_name(&root, name).remove(None);
    }
    /// A question of caller 1 without mounts.
    fn ask(&self, start: Pos, text: &[u8]) -> Question {
        Question::new(&self.cache, (start.id(), start.id()), 1, 0, text).unwrap()
    }
    fn note(&self, start: Pos, text: &[u8], at: Pos) {
        let mut way = Way::new(start);
        way.add(at);
        self.cache.note_prefix(&self.ask(start, text), &way);
    }
    fn prefix(&self, start: Pos, text: &[u8]) -> Option<Pos> {
        self.cache.prefix(&self.ask(start, text)).map(|(at, _)| at)
    }
    fn rename(&self, from: &[u8], to: &[u8]) {
        let root = self.root();
        let (a, b) = self.cache.lock_names((&root, from), (&root, to));
        let room = b.reserve(Room::Name).unwrap();
        self.cache.rename(&a, &b, room, None);
    }
    fn exchange(&self, a: &[u8], b: &[u8]) {
        let root = self.root();
        let (a, b) = self.cache.lock_names((&root, a), (&root, b));
        self.cache.exchange(&a, &b);
    }
    fn peek(&self, root: InodeId, name: &[u8]) -> Peek {
        self.cache.peek(root, name)
    }
    fn at(&self) -> Pos {
        self.cache.pos(self.root_id()).unwrap()
    }
    fn step(&self, at: Pos, name: &[u8]) -> Step {
        self.cache.step(at, name)
    }
    fn child(&self, at: Pos, name: &[u8]) -> Child {
        match self.step(at, name) {
            Step::Found(child) => child,
            other => panic!("not found: {other:?}"),
        }
    }
    /// The dentry of a name, positive or negative.
    fn dentry(&self, dir: &InodeRef<'_>, name: &[u8]) -> u32 {
        let words = NameWords::new(name);
        let (locked, _) = self.cache.lock_names_bucket([(dir.index(), &words)], false);
        self.cache.find_locked(&locked, 0, dir.index(), &words).unwrap()
    }
    /// Run `read` in another thread while this one runs `change`.
    fn during<R: Send + 'static>(
        &self,
        read: impl FnOnce(World) -> R + Send + 'static,
        change: impl FnOnce(&World),
    ) -> R {
        let reader = self.spawn(read);
        change(self);
        reader.join().unwrap()
    }
    fn spawn<R: Send + 'static>(
        &self,
        f: impl FnOnce(World) -> R + Send + 'static,
    ) -> loom::thread::JoinHandle<R> {
        let world = self.clone();
        roomy(move || f(world))
    }
}

fn whole(attr: &Attr) {
    assert_eq!(attr.ino, attr.size, "torn: {attr:?}");
}

fn miss<'c>(lookup: Lookup<'c>) -> NameGuard<'c> {
    match lookup {
        Lookup::Miss(guard) => guard,
        other => panic!("not a miss: {other:?}"),
    }
}

/// Rule 1: an id whose slot serves another generation is recognised. Planted bug:
/// rule1-attr-ignores-generation.
#[test]
fn loom_rule1_an_id_never_reads_another_generation() {
    slow_model(|| {
        let w = World::new(true);
        let id = w.create(b"a", 5, false);
        let read = w.during(
            move |w| w.cache.attr(id),
            |w| {
                w.remove(b"a");
                w.create(b"b", 6, false);
            },
        );
        if let Some(attr) = read {
            whole(&attr);
            assert_eq!(attr.ino, 5, "another generation's attributes");
        }
        assert!(w.cache.attr(id).is_none() && w.cache.get(id).is_none());
    });
}

/// Rule 1: a walk does not take the next inode in a directory's slot for that directory, even if that inode
/// is a file whose size stands in the place of the walk sequence. Planted bugs:
/// rule1-stamp-ignores-generation, rule1-stamp-without-fence.
#[test]
fn loom_rule1_a_position_does_not_outlive_its_directory() {
    model(|| {
        let w = World::new(true);
        let id = w.create(b"d", 5, true);
        let inside = w.cache.pos(id).unwrap();
        let size = u64::from(w.cache.inodes.get(id.index()).stamp().halves().1) << 32;
        let (ended, stands) = w.during(
            move |w| {
                let word = w.cache.inodes.get(id.index()).mode_and_flags();
                (word & S_IFDIR == 0, w.cache.check(inside))
            },
            |w| {
                let (published, private) =
                    (w.cache.inodes.get(id.index()), w.cache.inodes.private(id.index()));
                published.clear();
                let file = Attr { size, ..fresh(6, false).attr };
                published.fill(private, id.generation() + 1, &file, 0);
            },
        );
        assert!(!(ended && stands), "the position of an ended directory still stands");
    });
}

/// Rule 4: a length or index read from a name that is being rewritten does no harm. Planted bug:
/// rule4-length-read-twice.
#[test]
fn loom_rule4_a_name_that_changes_length_is_not_misread() {
    model(|| {
        let w = World::new(true);
        let (short, long) = ([b's'; 3], [b'l'; 44]);
        w.create(&short, 5, false);
        let dentry = w.child(w.at(), &short).dentry;
        let seen = w.during(move |w| w.cache.see(dentry), |w| w.rename(&short, &long));
        if let Some(seen) = seen {
            let name = &seen.name[..seen.len];
            assert!(name == short || name == long, "a name of two moments");
        }
    });
}

/// Rule 3: a name is not matched with the tail of another name that had the slot. Planted bug:
/// rule3-tail-without-fence.
#[test]
fn loom_rule3_a_recycled_tail_is_not_matched() {
    model(|| {
        let w = World::new(true);
        let (old, new) = ([[b'h'; 32], [b'x'; 32]].concat(), [[b'g'; 32], [b'y'; 32]].concat());
        let never = [[b'h'; 32], [b'y'; 32]].concat();
        w.create(&old, 5, false);
        let root = w.root_id();
        let dentry = w.child(w.at(), &old).dentry;
        let matched = w.during(
            move |w| {
                w.cache.matches(dentry, root.index(), root.generation(), &NameWords::new(&never)).is_some()
            },
            |w| {
                w.remove(&old);
                // In a thread of its own, with no fence in between but the tail's.
                let new = new.clone();
                w.spawn(move |w| w.cache.dentries.take_tail(&NameWords::new(&new), &|_| true).unwrap())
                    .join()
                    .unwrap();
            },
        );
        assert!(!matched, "matched a name that never existed");
    });
}

/// Rule 3: expired attributes do not take the deadline of the slot's next inode. Planted bug:
/// rule3-inode-without-fence.
#[test]
fn loom_rule3_a_recycled_inode_lends_no_deadline() {
    slow_model(|| {
        let w = World::new(false);
        let root = w.root();
        let short = Fresh { ttl: Ttl::For(Duration::from_millis(1)), ..fresh(5, false) };
        let id = miss(w.cache.lookup(&root, b"a")).found(&short).unwrap().id();
        w.cache.advance_clock(5);
        let attr = w.during(
            move |w| w.cache.attr(id),
            |w| {
                w.cache.invalidate(&root, b"a");
                // In a thread of its own, with no fence in between but the filler's.
                w.spawn(move |w| {
                    let (index, dir) = w.cache.alloc_node(w.sb, false).unwrap();
                    assert_eq!(index, id.index(), "not recycled");
                    w.cache.fill_slot(w.sb, index, dir, &fresh(5, false), 0, w.cache.clock.epoch());
                })
                .join()
                .unwrap();
            },
        );
        assert_eq!(attr, None, "expired");
    });
}

/// Rule 7: a hit copies one moment's truth, even if the name is removed and the inode's slot is recycled
/// meanwhile. Planted bugs: rule7-name-not-checked.
#[test]
fn loom_rule7_a_hit_is_one_moments_truth() {
    model(|| {
        let w = World::new(true);
        w.create(b"a", 5, false);
        let at = w.at();
        let child = w.child(at, b"a");
        let hit = w.during(
            move |w| w.cache.child_attr(at, &child),
            |w| {
                w.remove(b"a");
                w.create(b"b", 6, false);
            },
        );
        if let Ok((_, attr)) = hit {
            whole(&attr);
            assert_eq!(attr.ino, 5, "another file's attributes under this name");
        }
    });
}

/// Rule 7: attributes that change under an unchanged name are copied before or after the change. Planted
/// bug: rule7-copy-not-checked.
#[test]
fn loom_rule7_attributes_are_of_one_moment() {
    model(|| {
        let w = World::new(true);
        let id = w.create(b"a", 5, false);
        let at = w.at();
        let child = w.child(at, b"a");
        let hit = w.during(
            move |w| w.cache.child_attr(at, &child),
            |w| {
                w.cache.get(id).unwrap().update(|a| {
                    a.uid = 9;
                    a.gid = 9;
                });
            },
        );
        if let Ok((_, attr)) = hit {
            assert_eq!(attr.uid, attr.gid, "owner and group of two moments");
        }
    });
}

/// Rule 7: a name that is found leads to its own inode, even if its dentry is recycled meanwhile. Planted
/// bugs: rule7-dentry-not-checked, rule3-seq-write-without-fence (and its like).
#[test]
fn loom_rule7_a_name_leads_to_its_own_inode() {
    slow_model(|| {
        let w = World::new(true);
        w.create(b"a", 5, false);
        w.create(b"b", 6, false);
        let at = w.at();
        let own = w.child(at, b"a");
        let (dentry, inode) = (own.dentry, own.inode);
        let other = w.root();
        let found = w.during(
            move |w| {
                let found =
                    w.cache.matches(dentry, at.id().index(), at.id().generation(), &NameWords::new(b"a"));
                matches!(found, Some(Match::Positive(c)) if c.inode != inode)
            },
            |w| {
                let b = w.cache.get(w.cache.child_attr(at, &w.child(at, b"b")).unwrap().0).unwrap();
                let guard = w.cache.lock_name(&other, b"c");
                let a = w.cache.lock_name(&other, b"a");
                a.remove(None);
                guard.link(guard.reserve(Room::Name).unwrap(), &b, Ttl::Forever);
            },
        );
        assert!(!found, "the name led to another file");
    });
}

/// Rule 7: the whole hit, beside a removal.
#[test]
fn loom_rule7_a_hit_beside_a_removal() {
    model(|| {
        let w = World::new(true);
        w.create(b"a", 5, false);
        let root = w.root_id();
        match w.during(move |w| w.peek(root, b"a"), |w| w.remove(b"a")) {
            Peek::Hit(_, attr) => {
                whole(&attr);
                assert_eq!(attr.ino, 5);
            }
            Peek::Negative | Peek::Miss => {}
            Peek::Stale => panic!("the root is no directory"),
        }
    });
}

/// Rule 7: a hit reads the inode's index once. A reader that reads it again after the checks may find it
/// unlinked, and then copies something that is no inode. A kernel patch that took no references for `stat`
/// was withdrawn for this fault. Planted bugs: rule7-index-read-again-to-copy,
/// rule7-index-read-again-for-the-id.
#[test]
fn loom_rule7_the_index_is_read_once() {
    model(|| {
        let w = World::new(true);
        let id = w.create(b"a", 5, false);
        let at = w.at();
        let child = w.child(at, b"a");
        let hit = w.during(move |w| w.cache.child_attr(at, &child), |w| w.remove(b"a"));
        if let Ok((seen, attr)) = hit {
            assert_eq!((seen, attr.ino, attr.fmt()), (id, 5, S_IFREG), "an unlinked name's inode");
        }
        assert_eq!(w.peek(at.id(), b"a"), Peek::Negative);
    });
}

/// Rule 3: a link's target is not copied from a slot that another link's target has taken. Planted bugs:
/// rule3-target-without-fence, rule7-target-not-checked.
#[test]
fn loom_rule3_a_recycled_target_is_not_copied() {
    model(|| {
        let w = World::new(true);
        let (at, child) = w.link(b"own");
        let read = w.during(
            move |w| {
                let mut out = [0; TARGET_MAX];
                let read = w.cache.child_target(at, &child, || Time::new(0, 0), &mut out);
                read.map(|found| found.map(|found| out[..found.len].to_vec()))
            },
            |w| {
                w.remove(b"a");
                // In a thread of its own, with no fence in between but the filler's.
                w.spawn(|w| w.cache.inodes.targets().fill(b"other", true, &|| true).unwrap()).join().unwrap();
            },
        );
        if let Ok(found) = read {
            assert_eq!(found.as_deref(), Some(&b"own"[..]));
        }
    });
}

/// Rule 16: a target that is seen as cached is complete. Planted bug: rule16-target-relaxed.
#[test]
fn loom_rule16_a_target_is_filled_before_it_is_kept() {
    model(|| {
        let w = World::new(true);
        let (at, child) = w.link(b"");
        let read = w.during(
            move |w| {
                let mut out = [0; TARGET_MAX];
                let read = w.cache.child_target(at, &child, || Time::new(0, 0), &mut out);
                read.map(|found| found.map(|found| out[..found.len].to_vec()))
            },
            |w| {
                w.cache
                    .child_attr(at, &child)
                    .map(|(id, _)| w.cache.get(id).unwrap().keep_target(b"own", true))
                    .unwrap()
            },
        );
        if let Some(target) = read.unwrap() {
            assert_eq!(target, b"own");
        }
    });
}

/// Rule 8: permissions that a walk reads are of one moment, if its position still stands. Planted bug:
/// rule8-permissions-leave-the-walk-sequence.
#[test]
fn loom_rule8_a_walk_sees_permissions_of_one_moment() {
    model(|| {
        let w = World::new(true);
        let at = w.at();
        let (perm, stands) = w.during(
            move |w| (w.cache.perm(at), w.cache.check(at)),
            |w| {
                w.root().update(|a| {
                    a.uid = 9;
                    a.gid = 9;
                });
            },
        );
        assert!(!stands || perm.uid == perm.gid, "owner and group of two moments");
    });
}

/// Rule 8: a directory that is renamed away while a walk goes through it stops the walk. Planted bug:
/// rule8-rename-leaves-the-walk-sequence.
#[test]
fn loom_rule8_a_walk_notices_that_its_directory_moved() {
    model(|| {
        let w = World::new(true);
        w.create(b"d", 5, true);
        let at = w.at();
        let inside = w.cache.enter(at, &w.child(at, b"d")).unwrap();
        let (moved, stands) = w.during(
            move |w| (matches!(w.step(at, b"e"), Step::Found(_)), w.cache.check(inside)),
            |w| w.rename(b"d", b"e"),
        );
        assert!(!(moved && stands), "the walk continues although the directory was renamed");
        assert!(!w.cache.check(inside));
    });
}

/// Rule 8: `..` of a position that stands is the parent at that moment. Planted bug:
/// rule8-parent-not-checked.
#[test]
fn loom_rule8_dot_dot_is_the_parent_of_the_same_moment() {
    model(|| {
        let w = World::new(true);
        let (x, d) = (w.create(b"x", 5, true), w.create(b"d", 6, true));
        let (inside, root) = (w.cache.pos(d).unwrap(), w.root_id());
        let up = w.during(
            move |w| w.cache.parent(inside),
            |w| {
                let (root, x) = (w.root(), w.cache.get(x).unwrap());
                let (from, to) = w.cache.lock_names((&root, b"d"), (&x, b"d"));
                let room = to.reserve(Room::Name).unwrap();
                w.cache.rename(&from, &to, room, None);
            },
        );
        assert!(up.is_err() || up.is_ok_and(|up| up.id() == root), "the parent of another moment");
        assert_eq!(w.cache.parent(w.cache.pos(d).unwrap()).map(Pos::id), Ok(x));
    });
}

/// Rule 9: an eviction never makes an existing name look absent. Planted bugs:
/// rule9-evicted-before-incomplete, rule9-complete-read-before-the-scan.
#[test]
fn loom_rule9_an_evicted_name_is_unknown_not_absent() {
    model(|| {
        let w = World::new(false);
        let root = w.root();
        let scan = w.cache.begin_scan(&root);
        drop(scan.found(b"a", &fresh(5, false)).unwrap());
        assert!(scan.complete());
        let at = w.at();
        assert!(matches!(w.step(at, b"x"), Step::Absent));
        let step = w.during(move |w| w.step(at, b"a"), |w| assert_eq!(w.cache.evict_unused(w.sb, 1), 1));
        assert!(!matches!(step, Step::Absent), "a false ENOENT");
        assert!(matches!(w.step(at, b"a"), Step::Unknown));
    });
}

/// Rule 9: a reader that sees that a directory is complete sees its entries. Planted bug:
/// rule9-complete-relaxed.
#[test]
fn loom_rule9_a_reader_of_complete_sees_the_entries() {
    model(|| {
        let w = World::new(false);
        let at = w.at();
        let step = w.during(
            move |w| w.step(at, b"a"),
            |w| {
                let root = w.root();
                let scan = w.cache.begin_scan(&root);
                // In a thread of its own, so that no fence but `complete`'s comes after it.
                w.spawn(|w| drop(miss(w.cache.lookup(&w.root(), b"a")).found(&fresh(5, false)).unwrap()))
                    .join()
                    .unwrap();
                assert!(scan.complete());
            },
        );
        assert!(!matches!(step, Step::Absent), "a false ENOENT");
    });
}

/// Rule 9: a negative entry of an ended directory says nothing about the next directory in its slot, even
/// while the entry becomes one of that directory. Planted bug: rule9-negative-ignores-generation.
#[test]
fn loom_rule9_a_negative_entry_dies_with_its_directory() {
    slow_model(|| {
        let w = World::new(false);
        let root = w.root();
        let find = |name: &[u8], ino| miss(w.cache.lookup(&root, name)).found(&fresh(ino, true)).unwrap();
        let old = find(b"d", 5);
        miss(w.cache.lookup(&old, b"x")).absent(Ttl::Forever);
        let negative = w.dentry(&old, b"x");
        w.cache.invalidate(&root, b"d");
        let gone = old.id();
        drop(old);
        let new = find(b"e", 6);
        assert_eq!(
            (new.id().index(), new.id().generation()),
            (gone.index(), gone.generation() + 1),
            "not recycled"
        );
        let id = new.id();
        let at = w.cache.pos(id).unwrap();
        assert!(!matches!(w.step(at, b"x"), Step::Absent));
        let believed = w.during(
            move |w| w.cache.matches(negative, id.index(), id.generation(), &NameWords::new(b"x")).is_some(),
            |w| {
                w.cache.sweep_negatives(w.sb, 1);
                // In a thread of its own: it has passed no fence.
                w.spawn(move |w| {
                    let dir = w.cache.get(id).unwrap();
                    miss(w.cache.lookup(&dir, b"y")).absent(Ttl::Forever);
                })
                .join()
                .unwrap();
            },
        );
        assert!(!believed, "a false ENOENT");
    });
}

/// Rule 10: an answer that was requested before an invalidation is not cached. Planted bugs:
/// rule10-revision-checked-before-the-lock, rule10-invalidate-leaves-the-revision.
#[test]
fn loom_rule10_a_late_answer_is_not_cached() {
    model(|| {
        let w = World::new(false);
        let root = w.root();
        let guard = miss(w.cache.lookup(&root, b"a"));
        let t = w.spawn(|w| w.cache.invalidate(&w.root(), b"a"));
        let inode = guard.found(&fresh(5, false)).unwrap();
        assert_eq!(inode.ino(), 5, "a late answer is still returned");
        t.join().unwrap();
        assert_eq!(w.peek(root.id(), b"a"), Peek::Miss, "a late answer was cached");
    });
}

/// Rule 11: of a create in a directory and the directory's removal, one fails. Planted bug:
/// rule11-enter-ignores-death.
#[test]
fn loom_rule11_no_child_in_a_removed_directory() {
    model(|| {
        let w = World::new(true);
        let id = w.create(b"d", 5, true);
        let t = w.spawn(move |w| {
            let Some(dir) = w.cache.get(id) else { return false };
            let guard = w.cache.lock_name(&dir, b"f");
            match guard.reserve(Room::Node) {
                Ok(room) => {
                    guard.create(room, &fresh(6, false));
                    true
                }
                Err(_) => false,
            }
        });
        let root = w.root();
        let guard = w.cache.lock_name(&root, b"d");
        let Known::Hit(dir) = guard.find() else { panic!("d is there") };
        let removed = dir.begin_death().map(|death| guard.remove(Some(death))).is_ok();
        drop((dir, guard));
        let created = t.join().unwrap();
        assert!(created != removed, "created {created}, removed {removed}");
        assert_eq!(matches!(w.peek(root.id(), b"d"), Peek::Hit(..)), created);
    });
}

/// Rule 12: a name that a rename replaces is never absent, and leads to the old or the new file. Planted
/// bug: rule12-target-goes-in-a-hold-of-its-own.
#[test]
fn loom_rule12_a_replaced_target_is_never_absent() {
    model(|| {
        let w = World::new(true);
        let (a, b) = (w.create(b"a", 5, false), w.create(b"b", 6, false));
        let at = w.at();
        match w.during(move |w| w.step(at, b"b"), |w| w.rename(b"a", b"b")) {
            Step::Found(child) => assert!([a.index(), b.index()].contains(&child.inode)),
            Step::Retry(_) => {}
            other => panic!("the target was absent: {other:?}"),
        }
        assert!(matches!(w.peek(at.id(), b"b"), Peek::Hit(_, a) if a.ino == 5));
        assert_eq!(w.peek(at.id(), b"a"), Peek::Negative);
    });
}

/// Rule 13: of two concurrent misses of one name one asks, and the other is woken when the answer is there.
/// Planted bugs: rule13-nobody-is-told (loom reports the deadlock),
/// rule13-who-comes-second-does-not-look-again.
#[test]
fn loom_rule13_concurrent_misses_ask_once() {
    model(|| {
        let w = World::new(false);
        let asked = Arc::new(uvfs_sync::primitives::Statistic::new());
        let ask = |w: &World, asked: &uvfs_sync::primitives::Statistic| {
            let root = w.root();
            loop {
                match w.cache.lookup(&root, b"a") {
                    Lookup::Hit(..) => panic!("the name does not exist"),
                    Lookup::Negative => return,
                    Lookup::Busy(pending) => pending.wait().unwrap(),
                    Lookup::Miss(guard) => {
                        asked.add(1);
                        guard.absent(Ttl::Forever);
                    }
                }
            }
        };
        let t = {
            let asked = asked.clone();
            w.spawn(move |w| ask(&w, &asked))
        };
        ask(&w, &asked);
        t.join().unwrap();
        assert_eq!(asked.get(), 1, "asked twice");
    });
}

/// Rule 16: a name that is being created is absent or finished, never half made. Planted bug:
/// rule16-published-before-it-is-filled.
#[test]
fn loom_rule16_an_insert_is_finished_before_it_is_seen() {
    model(|| {
        let w = World::new(true);
        let at = w.at();
        let hit = w.during(
            move |w| match w.step(at, b"a") {
                Step::Found(child) => {
                    w.cache.child_attr(at, &child).ok().map(|hit| (hit.1, w.cache.get(hit.0).is_some()))
                }
                Step::Absent | Step::Retry(_) => None,
                Step::Unknown => panic!("the root is complete"),
            },
            |w| {
                w.create(b"a", 5, false);
            },
        );
        if let Some((attr, held)) = hit {
            whole(&attr);
            assert_eq!(attr.ino, 5);
            assert!(held, "found before it had a reference");
        }
    });
}

/// Rule 16: a removed directory is dead when its name is seen to be gone. Planted bug:
/// rule16-dead-after-the-hold.
#[test]
fn loom_rule16_dead_and_unhashed_are_one_moment() {
    model(|| {
        let w = World::new(true);
        let id = w.create(b"d", 5, true);
        let at = w.at();
        let lives = move |w: &World| w.cache.get(id).is_some_and(|dir| !dir.is_dead());
        let (gone, lives) = w.during(
            move |w| (matches!(w.step(at, b"d"), Step::Absent), lives(&w)),
            |w| {
                let (root, dir) = (w.root(), w.cache.get(id).unwrap());
                let guard = w.cache.lock_name(&root, b"d");
                guard.remove(Some(dir.begin_death().unwrap()));
                // Held beyond the other thread's look, so that it sees the removal rather than the end of
                // the generation.
                std::mem::forget(dir);
            },
        );
        assert!(!(gone && lives), "its name is gone, and a holder sees it as not removed");
    });
}

/// Rule 17: a reader that takes a reference by name during an eviction gets a live inode or none. Planted
/// bug: rule17-evicted-though-held.
#[test]
fn loom_rule17_what_is_held_is_not_evicted() {
    model(|| {
        // The evicting thread stores to it and never loads it: see this module's head.
        let gone = Arc::new(AtomicU32::new(0));
        let (evicting, seen) = (gone.clone(), gone);
        let w = World::with_hook(false, Box::new(move |_, _| evicting.store(1, Ordering::Relaxed)));
        let root = w.root();
        drop(miss(w.cache.lookup(&root, b"a")).found(&fresh(5, false)).unwrap());
        let at = w.at();
        let child = w.child(at, b"a");
        w.during(
            move |w| {
                if let Ok(inode) = w.cache.hold_child(&child) {
                    assert_eq!(inode.ino(), 5);
                    assert_eq!(seen.load(Ordering::Relaxed), 0, "an inode ended while it was held");
                }
            },
            |w| {
                w.cache.evict_unused(w.sb, 1);
            },
        );
    });
}

/// Rules 3 and 8: while a prefix entry is rewritten for another text, a reader gets no half of either.
/// Planted bugs: rule8-prefix-without-check, rule8-prefix-ignores-the-text.
#[test]
fn loom_rule8_a_directory_part_that_is_rewritten_is_not_misread() {
    slow_model(|| {
        let w = World::new(true);
        let ids = [w.create(b"d", 5, true), w.create(b"e", 6, true)];
        let [d, e] = ids.map(|id| w.cache.pos(id).unwrap());
        let start = w.at();
        w.note(start, b"d", d);
        // It leads nowhere from now on, and gives way.
        w.cache.get(ids[0]).unwrap().update(|a| a.uid = 9);
        let found = w.during(move |w| w.prefix(start, b"d"), |w| w.note(start, b"e", e));
        assert_eq!(found, None, "found another path's position");
        assert_eq!(w.prefix(start, b"e"), Some(e));
    });
}

/// Rule 8: a prefix entry is not trusted once its directory has left that path. Planted bug:
/// rule8-prefix-without-positions.
#[test]
fn loom_rule8_a_directory_part_does_not_outlive_its_directory() {
    model(|| {
        let w = World::new(true);
        let id = w.create(b"d", 5, true);
        let (start, inside) = (w.at(), w.cache.pos(id).unwrap());
        w.note(start, b"d", inside);
        let (gone, found) = w.during(
            move |w| {
                let gone = matches!(w.step(start, b"d"), Step::Absent);
                (gone, w.prefix(start, b"d"))
            },
            |w| w.remove(b"d"),
        );
        assert!(!(gone && found.is_some()), "the name is absent, but its prefix entry still hits");
        assert_eq!(w.prefix(start, b"d"), None);
    });
}

/// Rule 8: the same for its eviction. A reader that no longer finds the name does not find its prefix entry
/// either. Planted bug: rule8-eviction-leaves-the-walk-sequence.
#[test]
fn loom_rule8_a_directory_part_does_not_outlive_an_eviction() {
    model(|| {
        let w = World::new(false);
        let id = w.create(b"d", 5, true);
        let (start, inside) = (w.at(), w.cache.pos(id).unwrap());
        w.note(start, b"d", inside);
        let (gone, found) = w.during(
            move |w| {
                let gone = matches!(w.step(start, b"d"), Step::Unknown);
                (gone, w.prefix(start, b"d"))
            },
            |w| assert_eq!(w.cache.evict_unused(w.sb, 1), 1),
        );
        assert!(!(gone && found.is_some()), "the name is evicted, but its prefix entry still hits");
    });
}

fn a_listing_proves_nothing_beside(forget: impl Fn(&World) + Send + Sync + 'static) {
    model(move || {
        let w = World::new(false);
        w.create(b"a", 5, false);
        let start = w.at();
        w.during(
            move |w| {
                let root = w.root();
                let scan = w.cache.begin_scan(&root);
                if matches!(w.step(start, b"a"), Step::Found(_)) {
                    scan.complete();
                }
            },
            &forget,
        );
        assert!(
            !matches!(w.step(start, b"a"), Step::Absent),
            "a false ENOENT: the driver still has the name"
        );
    });
}

/// Rule 9: a listing that saw a name before its invalidation does not prove it absent. Planted bug:
/// rule9-invalidate-moves-first.
#[test]
fn loom_rule9_a_listing_beside_an_invalidation_proves_nothing() {
    a_listing_proves_nothing_beside(|w| w.cache.invalidate(&w.root(), b"a"));
}

/// Rule 9: nor does one beside an eviction. Planted bug: rule9-evict-moves-first.
#[test]
fn loom_rule9_a_listing_beside_an_eviction_proves_nothing() {
    a_listing_proves_nothing_beside(|w| {
        w.cache.evict_unused(w.sb, 1);
    });
}
