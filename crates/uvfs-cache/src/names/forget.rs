//! Forgetting: invalidation, eviction in arena order, the end of a superblock.
//!
//! When an existing name is forgotten, its directory's version moves (its revision, unless the name was
//! only evicted) and its *complete* flag goes. Both happen in the same hold of the bucket, after the name.
//! No miss is proven while the bucket is locked, so a reader that misses the name sees the flag gone (rule
//! 9). An answer that is published after the hold sees the revision moved (rule 10). A listing that still
//! saw the name began before. An inode that has a holder besides its name stays; a directory with children
//! stays (they hold it).
//!
//! Callers hold no lock. A dentry is read from its slot without a lock, so the code looks for it again by
//! its name, under its bucket's lock.

use uvfs_sync::blhash::Locked;
use uvfs_sync::primitives::Ordering;

use crate::cache::Cache;
use crate::inodes::inode_ref::InodeRef;
use crate::names::change::Aftermath;
use crate::names::dentry::NameWords;
use crate::superblock::Hand;
use crate::types::{InodeId, SbId};

/// Pieces of a slab that are searched for negative entries when their number is at the bound: 4096 slots.
const NEGATIVE_SPANS: u64 = 64;

/// A dentry as read from its slot without a lock.
pub(crate) struct Seen {
    slot: u32,
    pub(crate) parent: u32,
    pub(crate) inode: u32,
    pub(crate) name: [u8; 256],
    pub(crate) len: usize,
}

impl Cache {
    /// Forget a name whose cached entry may be wrong. Answers on their way are late from now on. The inode
    /// lives on without this name if another holder has it.
    pub fn invalidate(&self, dir: &InodeRef<'_>, name: &[u8]) {
        self.forget_name(dir, name);
    }

    /// Forget all names in a directory whose cached entries may be wrong. O(names of the superblock).
    pub fn invalidate_children(&self, dir: &InodeRef<'_>) {
        for dentry in self.dentries_of(dir.sb()) {
            if let Some(seen) = self.see(dentry).filter(|seen| seen.parent == dir.index()) {
                self.forget_name(dir, &seen.name[..seen.len]);
            }
        }
    }

    /// Forget all names of a superblock. O(names).
    pub fn invalidate_all(&self, sb: SbId) {
        for dentry in self.dentries_of(sb) {
            let Some(seen) = self.see(dentry) else { continue };
            if let Some(dir) = self.get_index(seen.parent).filter(|dir| dir.sb() == sb) {
                self.forget_name(&dir, &seen.name[..seen.len]);
            }
        }
    }

    pub(crate) fn forget_name(&self, dir: &InodeRef<'_>, name: &[u8]) {
        let words = NameWords::new(name);
        if words.is_none() {
            return;
        }
        let mut after = Aftermath::default();
        let (mut locked, _) = self.lock_names_bucket([(dir.index(), &words)], false);
        self.kill_any(&mut locked, 0, dir.index(), &words, &mut after);
        if let Some(state) = dir.dir_state() {
            state.moved_incomplete();
        }
        drop(locked);
        self.finish(after);
    }

    /// Forget the cached name of a directory, unless it is the one to keep.
    pub(crate) fn forget_other_name(&self, inode: &InodeRef<'_>, keep: Option<(&InodeRef<'_>, &[u8])>) {
        let alias = self.inodes.private(inode.index()).alias.load(Ordering::Acquire);
        let Some(seen) = self.see(alias) else { return };
        let same =
            keep.is_some_and(|(dir, name)| seen.parent == dir.index() && &seen.name[..seen.len] == name);
        if seen.inode == inode.index()
            && !same
            && let Some(parent) = self.get_index(seen.parent)
        {
            self.forget_name(&parent, &seen.name[..seen.len]);
        }
    }

    fn get_index(&self, inode: u32) -> Option<InodeRef<'_>> {
        self.get(InodeId::new(inode, self.inodes.private(inode).refs.generation()))
    }

    pub(crate) fn see(&self, dentry: u32) -> Option<Seen> {
        let d = self.dentries.get(dentry);
        let mut s = Seen { slot: dentry, parent: 0, inode: 0, name: [0; 256], len: 0 };
        let seq = d.seq.begin()?;
        s.parent = d.parent.load(Ordering::Relaxed);
        s.inode = d.inode.load(Ordering::Relaxed);
        s.len = d.copy_name(&mut s.name, self.dentries.tails());
        (d.seq.check(seq) && s.len != 0).then_some(s)
    }

    fn dentries_of(&self, sb: SbId) -> impl Iterator<Item = u32> {
        self.superblock(sb).dentries().chunks().into_iter().flat_map(|(from, to)| from.max(1)..to)
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
            self.evictions.add(1);
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
        let Some(dir) = self.get_index(seen.parent) else { return false };
        let Some(state) = dir.dir_state() else { return false };
        let words = NameWords::new(&seen.name[..seen.len]);
        let mut after = Aftermath::default();
        let (mut locked, _) = self.lock_names_bucket([(dir.index(), &words)], false);
        let Some(dentry) = self.find_seen(&locked, sb, seen, &words) else { return false };
        let inode = self.dentries.get(dentry).inode.load(Ordering::Relaxed);
        if inode == 0 {
            return false;
        }
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

    /// The slot, if it is still as it was seen; under the bucket's lock. Meanwhile its chunk, and the
    /// parent's, may have been returned and taken by other superblocks. Then the same name may exist in the
    /// directory that has the parent's index now. A slot that is found is in use, so its superblock does
    /// not change.
    fn find_seen(&self, locked: &Locked<'_, 1>, sb: SbId, seen: &Seen, words: &NameWords<'_>) -> Option<u32> {
        let found = self.find_locked(locked, 0, seen.parent, words);
        let owned = |dentry| self.dentries.owner(dentry) == Some(u32::from(sb.0));
        found.filter(|dentry| *dentry == seen.slot && owned(*dentry))
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

    /// End a superblock: every name goes, the root reference is dropped, memory returns to the system.
    /// Returns the number of inodes that are held at that moment: 0 unless references leaked, files are open, or
    /// an evictor of another superblock holds a directory for a moment. (It read the directory's index from a
    /// slot that has changed hands, and lets go when it finds that out.) An inode that is held ends with its last
    /// reference. Nobody else may use the superblock meanwhile.
    pub fn drop_superblock(&self, sb: SbId) -> usize {
        let superblock = self.superblock(sb);
        for dentry in self.dentries_of(sb) {
            let Some(seen) = self.see(dentry) else { continue };
            let words = NameWords::new(&seen.name[..seen.len]);
            let (mut locked, _) = self.lock_names_bucket([(seen.parent, &words)], false);
            let mut after = Aftermath::default();
            if let Some(dentry) = self.find_seen(&locked, sb, &seen, &words) {
                self.kill(&mut locked, 0, dentry, &mut after);
            }
            drop(locked);
            self.finish(after);
        }
        if let Some(root) = superblock.take_root() {
            self.put_name(root.index());
        }
        self.dentries.maintain();
        // Slots that are freed after this trim return their chunk at once: of inodes that are still held, and of
        // negative entries that another superblock is killing now.
        self.return_chunks_of(sb, true);
        superblock.inodes().in_use() as usize
    }

    /// Return chunks without a used slot to the system; returns how many. A chunk's memory then reads as
    /// zero. So its floor remembers more than every generation and every sequence in it. A reader that
    /// slept through all of it finds neither again.
    pub fn trim(&self, sb: SbId) -> usize {
        self.return_chunks_of(sb, false)
    }

    /// [`Cache::trim`]; `end`: of a superblock in which nobody allocates any more.
    fn return_chunks_of(&self, sb: SbId, end: bool) -> usize {
        let superblock = self.superblock(sb);
        let inodes = self.inodes.return_chunks(superblock.inodes(), end);
        let dentries = self.dentries.return_chunks(superblock.dentries(), end);
        inodes + dentries
    }
}

/// A slot that was read without a lock may belong to another superblock by the time it is looked for.
#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::inodes::attr::{Attr, mode};
    use crate::lookup::by_name::Lookup;
    use crate::types::{Config, Fresh, SbOptions, Ttl};
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU64, Ordering as Std};

    fn fresh(ino: u64, fmt: u32, nlink: u32) -> Fresh {
        let attr = Attr { ino, mode: fmt | 0o755, nlink, ..Attr::default() };
        Fresh { attr, private: 0, ttl: Ttl::Forever }
    }

    fn superblock(cache: &Cache) -> SbId {
        let sb = cache.add_superblock(SbOptions { resident: false, on_evict: Box::new(|_, _| {}) }).unwrap();
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
        assert_eq!(cache.add_superblock(SbOptions { resident: false, on_evict }).unwrap(), sb);
        drop(cache.make_root(sb, &fresh(1, mode::S_IFDIR, 2)).unwrap());
        let root = cache.root(sb).unwrap();
        for i in 0..20_000u64 {
            drop(visit(&cache, &root, format!("{i}").as_bytes(), &fresh(i + 2, mode::S_IFREG, 1)));
        }
        let most = MOST.load(Std::Relaxed);
        assert!(most < 10, "{most} calls of the hook inside each other");
    }
}
