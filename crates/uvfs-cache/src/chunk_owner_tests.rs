//! Design rule 18 under a storm. Superblocks with and without eviction fill directories, forget them and
//! return chunks; others end. All share one cache and the same indices. Meanwhile a checker looks at every
//! slot.
//!
//! The slot of a name in use lies in a chunk of its directory's superblock. A negative entry whose
//! directory is gone lies in a chunk of the superblock that made it. An inode lies in a chunk of its own
//! superblock.

use std::collections::HashMap;
use std::sync::Arc;

use uvfs_sync::primitives::{AtomicBool, AtomicU64, Mutex, Ordering};

use crate::inodes::attr::mode::{S_IFDIR, S_IFREG};
use crate::lookup::ref_lookup::Known;
use crate::machinery::{Fresh, Lookup, SbOptions};
use crate::names::dentry::NameWords;
use crate::{Attr, Cache, Config, InodeId, InodeRef, Peek, Room, SbId, Ttl};

const SLOTS: u32 = 1 << 15;
/// Enough that a superblock's directories fill more than one chunk.
const DIRS: u64 = 1300;
const ROUNDS: usize = if cfg!(debug_assertions) { 24 } else { 100 };
const NAMES: [&[u8]; 2] = [b"one name", b"another name that is long enough to have a tail of its own"];

struct Storm {
    cache: Arc<Cache>,
    /// The superblock of each directory that ever existed.
    made: Mutex<HashMap<InodeId, SbId>>,
    /// Names and inodes that the checker has looked at.
    names: AtomicU64,
    orphans: AtomicU64,
    inodes: AtomicU64,
}

fn fresh(ino: u64, fmt: u32) -> Fresh {
    let attr = Attr { ino, mode: fmt | 0o755, nlink: 1, ..Attr::default() };
    Fresh { attr, private: 0, ttl: Ttl::Forever }
}

fn dir_name(i: u64) -> Vec<u8> {
    format!("{i}").into_bytes()
}

impl Storm {
    fn new() -> Self {
        let config = Config { max_inodes: SLOTS, ..Config::default() };
        let cache = Cache::new(config).unwrap();
        let zero = AtomicU64::default;
        Self { cache, made: Mutex::new(HashMap::new()), names: zero(), orphans: zero(), inodes: zero() }
    }

    fn superblock(&self, resident: bool) -> SbId {
        let options = SbOptions { resident, watched: false, on_evict: Box::new(|_, _| {}) };
        let sb = self.cache.add_superblock(options).unwrap();
        let root = self.cache.make_root(sb, &fresh(1, S_IFDIR)).unwrap();
        self.note(&root);
        sb
    }

    /// Record a directory's superblock before anybody makes a name in it.
    fn note(&self, dir: &InodeRef<'_>) {
        self.made.lock().insert(dir.id(), dir.sb());
    }

    /// Look up absent names in many directories of a superblock that evicts; then all of these directories
    /// go.
    fn come_and_go(&self, sb: SbId, round: usize) {
        let root = self.cache.root(sb).unwrap();
        for i in 0..DIRS {
            let dir = match self.cache.lookup(&root, &dir_name(i)) {
                Lookup::Miss(guard) => guard.found(&fresh(10 + i, S_IFDIR)),
                Lookup::Hit(dir, _) => Ok(dir),
                other => panic!("{other:?}"),
            };
            // The slots may be used up for the moment.
            let Ok(dir) = dir else { continue };
            self.note(&dir);
            for (n, name) in NAMES.iter().enumerate() {
                match self.cache.lookup(&dir, name) {
                    Lookup::Miss(guard) if (n + round).is_multiple_of(3) => {
                        let _ = guard.found(&fresh(100_000 + i, S_IFREG));
                    }
                    Lookup::Miss(guard) => guard.absent(Ttl::Forever),
                    _ => {}
                }
            }
        }
        if round.is_multiple_of(2) {
            self.cache.evict_unused(sb, 200);
            self.cache.sweep_negatives(sb, 50);
        }
        for i in 0..DIRS {
            if let Known::Hit(dir) = self.cache.find(&root, &dir_name(i)) {
                NAMES
                    .iter()
                    .filter(|name| matches!(self.cache.peek(dir.id(), name), Peek::Hit(..)))
                    .for_each(|name| self.cache.invalidate(&dir, name));
            }
            self.cache.invalidate(&root, &dir_name(i));
        }
        self.cache.trim(sb);
    }

    /// Make files in many directories of a resident superblock, in several ways; none may be lost. Then all
    /// go.
    fn stay(&self, sb: SbId) {
        let root = self.cache.root(sb).unwrap();
        let mut made = Vec::new();
        for i in 0..DIRS {
            let guard = self.cache.lock_name(&root, &dir_name(i));
            let Ok(room) = guard.reserve(Room::Dir) else { continue };
            let dir = guard.create(room, &fresh(10 + i, S_IFDIR));
            self.note(&dir);
            let there = NAMES.map(|name| self.make_file(&dir, name, i));
            self.cache.invalidate(&dir, b"never there");
            made.push((i, dir, there));
        }
        for (i, dir, there) in &made {
            for name in NAMES.iter().zip(there).filter_map(|(name, there)| there.then_some(name)) {
                assert!(matches!(self.cache.peek(dir.id(), name), Peek::Hit(..)), "a file of {i} was lost");
                self.cache.lock_name(dir, name).remove(None);
            }
        }
        for (i, dir, _) in made {
            let guard = self.cache.lock_name(&root, &dir_name(i));
            let death = dir.begin_death().expect("an empty directory can be removed");
            guard.remove(Some(death));
        }
        self.cache.trim(sb);
    }

    /// Make a file under a name that another superblock may have called absent: created there, or renamed
    /// to it.
    fn make_file(&self, dir: &InodeRef<'_>, name: &[u8], i: u64) -> bool {
        let first: &[u8] = if i.is_multiple_of(2) { name } else { b"first name" };
        {
            let guard = self.cache.lock_name(dir, first);
            let Ok(room) = guard.reserve(Room::Node) else { return false };
            guard.create(room, &fresh(100_000 + i, S_IFREG));
        }
        if first == name {
            return true;
        }
        let (from, to) = self.cache.lock_names((dir, first), (dir, name));
        let Ok(room) = to.reserve(Room::Name) else {
            from.remove(None);
            return false;
        };
        self.cache.rename(&from, &to, room, None);
        true
    }

    /// Check every slot once.
    fn check(&self) {
        for slot in 1..SLOTS {
            self.check_name(slot);
            self.check_inode(slot);
        }
    }

    fn check_name(&self, slot: u32) {
        let cache = &self.cache;
        let Some(seen) = cache.see(slot) else { return };
        let words = NameWords::new(&seen.name[..seen.len]);
        let (locked, _) = cache.lock_names_bucket([(seen.parent, &words)], false);
        if cache.find_locked(&locked, 0, seen.parent, &words) != Some(slot) {
            return;
        }
        // In use, and it stays so.
        let owner = cache.dentries.owner(slot).map(|id| SbId(id as u16));
        let parent = cache.inodes.private(seen.parent);
        let of = if cache.dentries.get(slot).inode.load(Ordering::Relaxed) != 0 {
            // The dentry holds its directory.
            Some(parent.sb_id())
        } else {
            let generation = cache.dentries.private(slot).parent_generation.load(Ordering::Relaxed);
            self.orphans.fetch_add(u64::from(parent.refs.generation() != generation), Ordering::Relaxed);
            self.made.lock().get(&InodeId::new(seen.parent, generation)).copied()
        };
        drop(locked);
        assert_eq!(owner, of, "slot {slot} of {:?}", String::from_utf8_lossy(words.name()));
        self.names.fetch_add(1, Ordering::Relaxed);
    }

    fn check_inode(&self, slot: u32) {
        let private = self.cache.inodes.private(slot);
        if !private.refs.is_live() {
            return;
        }
        if let Some(inode) = self.cache.get(InodeId::new(slot, private.refs.generation())) {
            assert_eq!(self.cache.inodes.owner(slot), Some(u32::from(inode.sb().0)), "inode {slot}");
            self.inodes.fetch_add(1, Ordering::Relaxed);
        }
    }
}

#[test]
fn rule18_every_slot_in_use_lies_in_a_chunk_of_its_superblock() {
    let storm = Storm::new();
    let (evicting, other, resident) =
        (storm.superblock(false), storm.superblock(false), storm.superblock(true));
    let (done, checked) = (AtomicBool::new(false), AtomicBool::new(false));
    std::thread::scope(|scope| {
        let storm = &storm;
        let checker = scope.spawn(|| {
            while !done.load(Ordering::Acquire) {
                storm.check();
                checked.store(true, Ordering::Release);
            }
        });
        let rounds = |f: fn(&Storm, SbId, usize), sb: SbId| {
            scope.spawn(move || (0..ROUNDS).for_each(|round| f(storm, sb, round)))
        };
        let threads = [
            rounds(Storm::come_and_go, evicting),
            rounds(Storm::come_and_go, other),
            rounds(|storm, sb, _| storm.stay(sb), resident),
            rounds(
                |storm, _, round| {
                    let sb = storm.superblock(round.is_multiple_of(2));
                    if round.is_multiple_of(2) {
                        storm.stay(sb)
                    } else {
                        storm.come_and_go(sb, round)
                    }
                    // The checker may hold a directory of it at this moment: it comes by an index that was another's.
                    // Below, when it has ended, nothing may be held.
                    storm.cache.drop_superblock(sb);
                },
                evicting,
            ),
        ];
        let ended: Vec<_> = threads.into_iter().map(|thread| thread.join()).collect();
        done.store(true, Ordering::Release);
        checker.join().unwrap();
        ended.into_iter().for_each(Result::unwrap);
    });
    storm.check();
    let looked = [&storm.names, &storm.orphans, &storm.inodes].map(|n| n.load(Ordering::Relaxed));
    assert!(checked.load(Ordering::Acquire) && looked.iter().all(|n| *n > 0), "{looked:?}");
    let ended: Vec<_> = storm.cache.superblocks().collect();
    ended.into_iter().for_each(|sb| assert_eq!(storm.cache.drop_superblock(sb), 0));
    let c = storm.cache.counters();
    assert_eq!((c.inodes, c.dentries, c.negative), (0, 0, 0));
    // Everything but the first chunks, which are never returned.
    assert_eq!((storm.cache.inodes.chunks_out(), storm.cache.dentries.chunks_out()), (1, 1));
}
