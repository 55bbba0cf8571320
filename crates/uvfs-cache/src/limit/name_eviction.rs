//! Which names go when memory is short.
//!
//! Eviction is second chance in arena order (design rule 17). Each name has a byte of its own, outside
//! everything that a sequence guards. Eviction is *armed* once three quarters of the limit are committed.
//! From then on a hit sets its name's byte, and the shrinker clears it when its hand passes. That costs at
//! most one store per name and round, and none while memory is no concern.
//!
//! The hand evicts a name that was not used since its last pass, together with its inode. If anything else
//! holds the inode (an open file, a mount, a kernel, children), inode and name stay. But a file with
//! several links loses the name. New names start unused, so a walk over everything evicts its own names,
//! not those in repeated use.
//!
//! Each superblock has three hands: for names, for negative entries, and for inodes that only a kernel
//! holds. A thread takes the next span of 64 slots from a hand, so that threads do not meet in one span. To evict,
//! it goes through a chunk of its own span by span, so that threads seldom meet in one directory. Of
//! the cache's locks, callers hold at most name locks and the rename mutex.

use uvfs_sync::primitives::Ordering;

use crate::cache::Cache;
use crate::inodes::attr::mode;
use crate::names::dentry::NameWords;
use crate::names::invalidate::Seen;
use crate::names::publish::Aftermath;
use crate::superblock::Hand;
use crate::types::SbId;

/// Pieces of a slab that are searched if all have been searched a moment ago.
pub(crate) const GLANCE: u64 = 512;
/// Names that the hand looks ahead.
const FORESEEN: u32 = 8;
/// Pieces of a slab that are searched for negative entries when their number is at the bound: 4096 slots.
const NEGATIVE_SPANS: u64 = 64;

// For this project's own crates: see `machinery`.
#[doc(hidden)]
impl Cache {
    /// Evict up to `max` names of a superblock that nobody needs and that were not used lately; returns how
    /// many went. It makes at most two rounds, and the first may find only used names. Nothing in a
    /// resident superblock is evicted.
    pub fn evict_unused(&self, sb: SbId, max: usize) -> usize {
        self.evict_within(sb, max, u64::MAX)
    }

    /// [`Cache::evict_unused`], searching at most `spans` pieces of the slab.
    pub(crate) fn evict_within(&self, sb: SbId, max: usize, spans: u64) -> usize {
        let superblock = self.superblock(sb);
        if superblock.is_resident() {
            return 0;
        }
        let mut evicted = 0;
        for _ in 0..(2 * superblock.dentries().spans()).min(spans) {
            if evicted >= max {
                break;
            }
            let Some((from, to)) = superblock.next_span(Hand::Shrinker) else { break };
            let gone = (from..to).filter(|dentry| {
                // Only in this piece: the next one is another thread's, and may not be committed.
                if dentry + FORESEEN < to {
                    self.foresee(*dentry);
                }
                self.second_chance(sb, *dentry)
            });
            evicted += gone.take(max - evicted).count();
        }
        evicted
    }

    /// Prefetch for the names that the hand reaches next: their eviction touches lines anywhere in two
    /// tables. Only hints: whatever a slot says now, nothing relies on it.
    fn foresee(&self, dentry: u32) {
        self.dentries.prefetch(dentry + 2 * FORESEEN);
        let (far, near) = (self.dentries.get(dentry + FORESEEN), self.dentries.get(dentry + FORESEEN / 2));
        self.dentries.names().prefetch(far.hash.load(Ordering::Relaxed));
        self.inodes.prefetch(far.inode.load(Ordering::Relaxed));
        self.inodes.prefetch_private(far.inode.load(Ordering::Relaxed));
        let number = &self.inodes.private(near.inode.load(Ordering::Relaxed)).hash;
        self.inodes.prefetch_number(number.load(Ordering::Relaxed));
    }

    /// The hand passes a name; returns whether it went.
    pub(crate) fn second_chance(&self, sb: SbId, dentry: u32) -> bool {
        if self.dentries.used().take(dentry) {
            self.end_entries_over(dentry);
            return false;
        }
        self.evict_at(sb, dentry)
    }

    /// To be called when a name's mark was cleared. A walk by a prefix entry does not mark the links on its way, so all
    /// entries over a link end here. The next walk over it marks it again, and costs a hit nothing. The slot is read
    /// without a lock: if it has changed, entries of another link end. If an entry is noted meanwhile and stays, the
    /// link may look unused for one round of the hand.
    fn end_entries_over(&self, dentry: u32) {
        let d = self.dentries.get(dentry);
        if d.fmt() == mode::S_IFLNK {
            let inode = d.inode.load(Ordering::Relaxed);
            self.prefixes.changes.end_entries(self.inodes.private(inode));
        }
    }

    /// Evict the name in a slot if nobody needs it: a negative one, or a leaf whose inode only the name
    /// holds. Returns whether it went. A name that cannot go costs two or three loads.
    pub(crate) fn evict_at(&self, sb: SbId, dentry: u32) -> bool {
        let d = self.dentries.get(dentry);
        if d.len() == 0 {
            return false;
        }
        let inode = d.inode.load(Ordering::Relaxed);
        if inode != 0 && !self.may_end(inode) {
            return false;
        }
        let went = match self.see(dentry) {
            Some(seen) if seen.inode != 0 => self.evict_one(sb, &seen),
            Some(seen) => self.evict_negative(sb, &seen),
            None => false,
        };
        if went {
            self.limit.count_eviction();
        }
        went
    }

    /// Whether the name may be the only holder of the inode. The caller checks again once it holds the
    /// bucket.
    fn may_end(&self, inode: u32) -> bool {
        let refs = &self.inodes.private(inode).refs;
        refs.is_spread() || refs.count() == 1 || self.has_more_names(inode)
    }

    fn evict_one(&self, sb: SbId, seen: &Seen) -> bool {
        let refs = &self.inodes.private(seen.inode).refs;
        if refs.is_spread() {
            // Many threads used it a moment ago; perhaps none does now.
            self.inodes.gather(seen.inode);
        }
        if refs.count() != 1 && !self.has_more_names(seen.inode) {
            return false;
        }
        let words = NameWords::new(&seen.name[..seen.len]);
        let mut after = Aftermath::default();
        let (mut locked, _) = self.lock_names_bucket([(seen.parent, &words)], false);
        let Some(dentry) = self.find_seen(&locked, sb, seen, &words) else { return false };
        let inode = self.dentries.get(dentry).inode.load(Ordering::Relaxed);
        if inode == 0 {
            return false;
        }
        // A name that leads to an inode holds its directory, and nobody else takes it out while its bucket is locked.
        // So the directory lives, and needs no reference of ours: other threads evict its names too, and each
        // reference would move its line.
        let Some(state) = self.inodes.dir_state(seen.parent) else { return false };
        // The deciding step: from exactly one reference (the name's) to dead, or not at all. A thread that
        // came by index a moment ago and holds a reference keeps the inode, and so we keep the name.
        // Children, also new ones, hold their directory. Its dying word is not used here: a directory that
        // lives on must never look removed to a holder.
        let sole = self.inodes.private(inode).refs.kill_sole();
        if !sole && !self.has_more_names(inode) {
            return false;
        }
        self.kill(&mut locked, 0, dentry, &mut after);
        // See the module's head.
        state.evicted();
        drop(locked);
        if sole {
            // Its reference is spent already.
            self.end_inode(after.take_inode());
        }
        self.finish(after);
        true
    }

    /// The names of a file with several names hold it for each other. Then only the name goes, and the last
    /// name takes the inode along.
    fn has_more_names(&self, inode: u32) -> bool {
        let attr = self.inodes.get(inode).copy(|| self.inodes.private(inode));
        !attr.is_dir() && attr.nlink > 1
    }

    /// Remove negative entries that were not used lately, cyclically in arena order: at least `max`, or as
    /// many as [`NEGATIVE_SPANS`] pieces have. Returns how many went.
    pub(crate) fn sweep_negatives(&self, sb: SbId, max: usize) -> usize {
        let superblock = self.superblock(sb);
        let mut gone = 0;
        for _ in 0..superblock.dentries().spans().min(NEGATIVE_SPANS) {
            if gone >= max {
                break;
            }
            let Some((from, to)) = superblock.next_span(Hand::Negatives) else { break };
            // All of a piece that was begun: the hand does not return to it soon.
            gone += (from..to)
                .filter(|dentry| self.is_negative(*dentry) && self.second_chance(sb, *dentry))
                .count();
        }
        gone
    }

    /// Whether the slot looks like a negative entry, read without a lock.
    fn is_negative(&self, dentry: u32) -> bool {
        let d = self.dentries.get(dentry);
        d.inode.load(Ordering::Relaxed) == 0 && d.len() != 0
    }

    fn evict_negative(&self, sb: SbId, seen: &Seen) -> bool {
        let words = NameWords::new(&seen.name[..seen.len]);
        let (mut locked, _) = self.lock_names_bucket([(seen.parent, &words)], false);
        let mut after = Aftermath::default();
        let found = self.find_seen(&locked, sb, seen, &words);
        let negative = found.filter(|dentry| self.dentries.get(*dentry).inode.load(Ordering::Relaxed) == 0);
        if let Some(dentry) = negative {
            self.kill(&mut locked, 0, dentry, &mut after);
        }
        drop(locked);
        self.finish(after);
        negative.is_some()
    }
}

/// A slot that was read without a lock may belong to another superblock by the time it is looked for.
#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::inodes::attr::Attr;
    use crate::inodes::inode_ref::InodeRef;
    use crate::lookup::ref_lookup::Lookup;
    use crate::types::{Config, Fresh, SbOptions, Ttl};
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU64, Ordering as Std};

    fn fresh(ino: u64, fmt: u32, nlink: u32) -> Fresh {
        let attr = Attr { ino, mode: fmt | 0o755, nlink, ..Attr::default() };
        Fresh { attr, private: 0, ttl: Ttl::Forever }
    }

    fn superblock(cache: &Cache) -> SbId {
        let sb = cache
            .add_superblock(SbOptions { resident: false, watched: false, on_evict: Box::new(|_, _| {}) })
            .unwrap();
        drop(cache.make_root(sb, &fresh(1, mode::S_IFDIR, 2)).unwrap());
        sb
    }

    fn visit<'c>(cache: &'c Cache, dir: &InodeRef<'c>, name: &[u8], fresh: &Fresh) -> InodeRef<'c> {
        match cache.lookup(dir, name) {
            Lookup::Miss(guard) => guard.found(fresh).unwrap(),
            Lookup::Hit(inode, _) => inode,
            other => panic!("{other:?}"),
        }
    }

    /// Two threads shrink `one`. The first has read a slot and not yet locked its bucket. The second takes
    /// everything that `one` has and returns the chunks. Another superblock gets them, with a directory in
    /// the place of the old one and the same name in it. The first continues: the name that it would evict
    /// is the other superblock's.
    fn changed_superblocks(negative: bool) {
        {
            let cache = Cache::new(Config { max_inodes: 1 << 16, ..Config::default() }).unwrap();
            let (one, two) = (superblock(&cache), superblock(&cache));
            let root = cache.root(one).unwrap();
            let dirs: Vec<_> = (0..3000u64)
                .map(|i| visit(&cache, &root, format!("d{i}").as_bytes(), &fresh(10 + i, mode::S_IFDIR, 2)))
                .collect();
            // It lies in a chunk that will be returned.
            let dir = &dirs[2500];
            let put = |dir: &InodeRef<'_>, ino: u64| match (negative, cache.lookup(dir, b"name")) {
                (true, Lookup::Miss(guard)) => guard.absent(Ttl::Forever),
                (false, Lookup::Miss(guard)) => drop(guard.found(&fresh(ino, mode::S_IFREG, 1)).unwrap()),
                (_, other) => panic!("{other:?}"),
            };
            put(dir, 50_000);
            let slot = cache
                .dentries_of(one)
                .find(|slot| cache.see(*slot).is_some_and(|seen| &seen.name[..seen.len] == b"name"));
            // The first thread: `evict_at`, up to the look at the slot.
            let seen = cache.see(slot.unwrap()).unwrap();
            // The second thread, and the allocations of the other superblock.
            let index = dir.index();
            drop(dirs);
            while cache.evict_unused(one, 1 << 20) > 0 {}
            assert!(cache.trim(one) > 0);
            let other = cache.root(two).unwrap();
            let mut kept = Vec::new();
            let dir = loop {
                let i = kept.len() as u64;
                let dir = visit(&cache, &other, format!("e{i}").as_bytes(), &fresh(10 + i, mode::S_IFDIR, 2));
                if dir.index() == index {
                    break dir;
                }
                kept.push(dir);
                assert!(kept.len() < 20_000, "the slot was never reused");
            };
            // The slot of the old inode now belongs to some inode.
            for i in 0..20_000u64 {
                if negative || cache.inodes.private(seen.inode).refs.count() == 1 {
                    break;
                }
                drop(visit(
                    &cache,
                    &other,
                    format!("f{i}").as_bytes(),
                    &fresh(100_000 + i, mode::S_IFREG, 1),
                ));
            }
            put(&dir, 60_000);
            let before =
                (cache.superblock(one).dentries().in_use(), cache.superblock(two).dentries().in_use());
            // The first thread continues.
            let went = if negative { cache.evict_negative(one, &seen) } else { cache.evict_one(one, &seen) };
            let after =
                (cache.superblock(one).dentries().in_use(), cache.superblock(two).dentries().in_use());
            assert!(!went, "a name of the other superblock went; negative: {negative}");
            assert_eq!(after, before, "negative: {negative}");
        }
    }

    #[test]
    fn a_negative_slot_that_changed_superblocks_is_not_freed_to_the_old_one() {
        changed_superblocks(true);
    }

    #[test]
    fn a_positive_slot_that_changed_superblocks_is_not_freed_to_the_old_one() {
        changed_superblocks(false);
    }

    /// The chunk that a thread goes through may become another superblock's, name by name.
    #[test]
    fn rule18_nothing_is_evicted_from_another_superblocks_chunk() {
        let cache = Cache::new(Config { max_inodes: 1 << 16, ..Config::default() }).unwrap();
        let (one, two) = (superblock(&cache), superblock(&cache));
        let root = cache.root(two).unwrap();
        drop(visit(&cache, &root, b"file", &fresh(5, mode::S_IFREG, 1)));
        match cache.lookup(&root, b"absent") {
            Lookup::Miss(guard) => guard.absent(Ttl::Forever),
            other => panic!("{other:?}"),
        }
        let slots: Vec<u32> = cache.dentries_of(two).filter(|slot| cache.see(*slot).is_some()).collect();
        assert_eq!(slots.len(), 2);
        assert!(slots.iter().all(|slot| !cache.evict_at(one, *slot)), "through the other superblock");
        assert!(slots.iter().all(|slot| cache.evict_at(two, *slot)));
    }

    /// A hook may use the cache, but its use of the cache does not evict and call hooks in turn.
    #[test]
    fn a_hook_that_uses_the_cache_does_not_recurse_without_bound() {
        static DEPTH: AtomicU64 = AtomicU64::new(0);
        static MOST: AtomicU64 = AtomicU64::new(0);
        static NEXT: AtomicU64 = AtomicU64::new(1 << 40);
        static CACHE: std::sync::OnceLock<Arc<Cache>> = std::sync::OnceLock::new();
        let config = Config { max_inodes: 1 << 16, memory_limit: 1 << 20, ..Config::default() };
        let cache = Cache::new(config).unwrap();
        let _ = CACHE.set(cache.clone());
        let sb = SbId(0);
        let on_evict = Box::new(move |_: &Attr, _: u64| {
            let depth = DEPTH.fetch_add(1, Std::Relaxed) + 1;
            MOST.fetch_max(depth, Std::Relaxed);
            // Far from the stack's end.
            if depth < 200 {
                let cache = CACHE.get().unwrap();
                let root = cache.root(sb).unwrap();
                let i = NEXT.fetch_add(1, Std::Relaxed);
                if let Lookup::Miss(guard) = cache.lookup(&root, format!("{i}").as_bytes()) {
                    // The cache makes no room for it.
                    let _ = guard.found(&fresh(i, mode::S_IFREG, 1));
                }
            }
            DEPTH.fetch_sub(1, Std::Relaxed);
        });
        assert_eq!(
            cache.add_superblock(SbOptions { resident: false, watched: false, on_evict }).unwrap(),
            sb
        );
        drop(cache.make_root(sb, &fresh(1, mode::S_IFDIR, 2)).unwrap());
        let root = cache.root(sb).unwrap();
        for i in 0..20_000u64 {
            drop(visit(&cache, &root, format!("{i}").as_bytes(), &fresh(i + 2, mode::S_IFREG, 1)));
        }
        let most = MOST.load(Std::Relaxed);
        assert!(most < 10, "{most} calls of the hook inside each other");
    }
}

/// Rule 17, counted: while eviction runs, hits store to a name's use byte at most once between two visits
/// of the hand.
#[cfg(all(test, not(loom)))]
mod hand_tests {
    use std::sync::Arc;
    use std::sync::atomic::AtomicBool;

    use crate::cache::Cache;
    use crate::inodes::attr::{Attr, mode};
    use crate::lookup::ref_lookup::Lookup;
    use crate::types::{Config, Fresh, InodeId, SbId, SbOptions, Ttl};
    use crate::walk::fast_hit::Peek;

    use super::Ordering;
    use crate::names::used_bytes::noted;

    /// A cache with eviction armed, and a name in constant use.
    struct Armed {
        cache: Arc<Cache>,
        sb: SbId,
        root: InodeId,
        hot: u32,
    }

    const HOT: &[u8] = b"hot";

    fn fresh(ino: u64, fmt: u32) -> Fresh {
        let attr = Attr { ino, mode: fmt | 0o755, nlink: 1, ..Attr::default() };
        Fresh { attr, private: 0, ttl: Ttl::Forever }
    }

    impl Armed {
        fn new() -> Self {
            let config = Config { max_inodes: 1 << 20, memory_limit: 4 << 20, ..Config::default() };
            let cache = Cache::new(config).unwrap();
            let sb = cache
                .add_superblock(SbOptions { resident: false, watched: false, on_evict: Box::new(|_, _| {}) })
                .unwrap();
            let root = cache.make_root(sb, &fresh(1, mode::S_IFDIR)).unwrap().id();
            let mut armed = Self { cache, sb, root, hot: 0 };
            armed.look(HOT, 2);
            armed.hot = (1..1024)
                .find(|slot| armed.cache.see(*slot).is_some_and(|seen| &seen.name[..seen.len] == HOT))
                .unwrap();
            // Until a name is evicted.
            let mut at = 10;
            while armed.cache.counters().evicted == 0 {
                at = armed.stream(at, 1000);
                armed.hit(1);
            }
            armed
        }

        fn look(&self, name: &[u8], ino: u64) {
            let root = self.cache.get(self.root).unwrap();
            match self.cache.lookup(&root, name) {
                Lookup::Miss(guard) => drop(guard.found(&fresh(ino, mode::S_IFREG)).unwrap()),
                Lookup::Hit(..) => {}
                other => panic!("{other:?}"),
            }
        }

        /// Look up names that were never there before; returns the next number.
        fn stream(&self, from: u64, count: u64) -> u64 {
            (from..from + count).for_each(|i| self.look(format!("{i:012}").as_bytes(), i));
            from + count
        }

        fn hit(&self, times: usize) {
            for _ in 0..times {
                assert!(
                    matches!(self.cache.peek(self.root, HOT), Peek::Hit(..)),
                    "a name in use was evicted"
                );
            }
        }

        /// Let the hand pass every name once.
        fn pass(&self) {
            let before = noted::count(self.hot, 0);
            while noted::count(self.hot, 0) == before {
                assert!(self.cache.evict_within(self.sb, usize::MAX, 1) < usize::MAX);
            }
        }
    }

    #[test]
    fn rule17_a_hit_stores_once_between_two_visits_of_the_hand() {
        let armed = Armed::new();
        let mut next = 1 << 32;
        armed.hit(1);
        for _ in 0..20 {
            let before = noted::count(armed.hot, 1);
            armed.hit(1000);
            assert_eq!(noted::count(armed.hot, 1), before, "it is noted already");
            armed.pass();
            armed.hit(1000);
            assert_eq!(noted::count(armed.hot, 1), before + 1, "once after the hand came by");
            next = armed.stream(next, 100);
        }
    }

    /// One thread streams, and so evicts; another one hits. Each store of a hit but the first follows a
    /// visit of the hand.
    #[test]
    fn rule17_hits_beside_eviction_store_no_oftener_than_the_hand_comes_by() {
        let armed = Armed::new();
        let done = AtomicBool::new(false);
        let (stored, visits) = std::thread::scope(|scope| {
            let (armed, done) = (&armed, &done);
            let hitting = scope.spawn(move || {
                while !done.load(Ordering::Relaxed) {
                    // While this thread waits for a processor, the name may go.
                    let _ = armed.cache.peek(armed.root, HOT);
                }
                noted::count(armed.hot, 1)
            });
            let before = (armed.cache.counters().evicted, noted::count(armed.hot, 0));
            armed.stream(1 << 32, 100_000);
            assert!(armed.cache.counters().evicted > before.0 + 50_000);
            done.store(true, Ordering::Relaxed);
            (hitting.join().unwrap(), noted::count(armed.hot, 0) - before.1)
        });
        assert!(stored <= visits + 1, "{stored} stores, and the hand came by {visits} times");
    }
}
