//! The limit on the cache's memory, and the shrinker that keeps it.
//!
//! The memory count is the committed memory: whole arena chunks in use, and lines of the hash tables. A thread
//! that needs a chunk asks [`Cache::may_grow`] first. If the limit forbids it, the thread evicts a few
//! names instead ([`Cache::make_room`]) and takes their slots. So allocating threads keep the limit, in
//! small steps, and no hit waits for it. A watcher's thread may do most of that work ahead of them
//! ([`crate::watermark`]).
//!
//! Eviction is second chance in arena order (design rule 17). Each name has a byte of its own, outside
//! everything that a sequence guards. A hit sets it while eviction is *armed*, and the shrinker clears it
//! when the hand passes. That costs at most one store per name and round, and none while memory is no
//! concern. A name that was not used since the hand last passed goes, with its inode if nothing else holds
//! the inode. An inode that is held (open, mounted on, known to a kernel) or has children stays. New names
//! start unused, so a walk over everything evicts its own names, not those in repeated use.
//!
//! A thread that looked at every name and found none to evict has spent some time on it. For four times as
//! long, but at most a tenth of a second, further searches look only at some tens of thousands of names.
//! The period ends early if an inode goes or a kernel forgets one. In a large cache, a name that is
//! released in another way may be found a little late.
//!
//! The hands advance by pieces of a slab, one piece per shrinking thread, so that several do not meet. Of
//! the cache's locks, callers hold at most name locks and the rename mutex.

use std::cell::Cell;
use std::time::Instant;

use uvfs_sync::primitives::{AtomicU8, Ordering};
use uvfs_sync::slab::{CHUNK, SPAN};
use uvfs_sync::slot;

use crate::cache::{Cache, Names, Numbers};
use crate::pressure::beyond;
use crate::types::{CacheError, SbId};
use crate::{dentry, inode};

slot! {
    /// Whether a name was used since the shrinker's hand last passed.
    #[derive(Debug)]
    pub(crate) struct Visited { used: AtomicU8 }
}

/// Names that a thread evicts when it needs a slot: the slots that are left over serve the next ones.
const STEP: usize = SPAN as usize;
/// Pieces of a slab that are searched if all have been searched a moment ago.
pub(crate) const GLANCE: u64 = 512;
/// Names that the hand looks ahead.
const FORESEEN: u32 = 8;
/// How often all chunks are gone through while other threads take the slots that become free.
const ROUNDS: usize = 16;

/// Bytes of a chunk of slots of this size.
const fn chunk(slot: usize) -> u64 {
    CHUNK as u64 * slot as u64
}

pub(crate) const INODE_CHUNK: u64 = chunk(size_of::<inode::Published>() + size_of::<inode::Private>());
pub(crate) const DENTRY_CHUNK: u64 =
    chunk(size_of::<dentry::Published>() + size_of::<dentry::Private>() + size_of::<Visited>());

/// While this exists, this thread makes room.
pub(crate) struct Making;

thread_local! {
    static MAKING: Cell<bool> = const { Cell::new(false) };
}

impl Making {
    /// `None`: it makes room already.
    pub(crate) fn begin() -> Option<Self> {
        // A model's threads share one thread of the system; none of them needs room.
        (cfg!(loom) || !MAKING.replace(true)).then_some(Self)
    }
}

impl Drop for Making {
    fn drop(&mut self) {
        MAKING.set(false);
    }
}

impl Cache {
    /// Bytes committed: chunks in use, hash lines, long names, link targets, directories, block buffers,
    /// and drivers' external bytes ([`Cache::external_bytes`]). A chunk counts as a whole from its first
    /// slot on. O(1).
    pub fn committed(&self) -> u64 {
        u64::from(self.inode_pool.chunks_out()) * INODE_CHUNK
            + u64::from(self.dentry_pool.chunks_out()) * DENTRY_CHUNK
            + self.names.bytes()
            + self.numbers.bytes()
            + self.tails.bytes()
            + self.targets.bytes()
            + self.dirs.bytes()
            + self.buffers.bytes()
            + self.external.bytes()
            + self.prefixes.bytes()
    }

    /// The most that [`Cache::committed`] may be; 0: no limit.
    pub fn memory_limit(&self) -> u64 {
        self.limit.load(Ordering::Relaxed)
    }

    /// Set the limit (bytes; 0: none). If more is committed, this gives up what nobody needs and returns
    /// its memory to the system. Memory in use may still exceed the limit afterwards.
    pub fn set_memory_limit(&self, bytes: u64) {
        self.limit.store(bytes, Ordering::Relaxed);
        self.arm();
        if bytes != 0 {
            self.shrink_to(bytes);
        }
    }

    /// Give up what nobody needs until no more than `bytes` are committed, and return the memory to the
    /// system. Returns whether that was reached. O(names).
    pub fn shrink_to(&self, bytes: u64) -> bool {
        // Paths are found by their names too.
        if self.committed() > bytes {
            self.prefixes.give();
        }
        // Blocks first, down to a quarter: names are asked for again one by one.
        let over = self.committed().saturating_sub(bytes);
        self.buffers_give(over.min(self.buffers.bytes().saturating_sub(bytes / 4)));
        self.shrink_names(bytes);
        self.buffers_give(self.committed().saturating_sub(bytes));
        self.arm();
        self.committed() <= bytes
    }

    /// Evict names to make room for `bytes` of blocks; returns whether that succeeded. Refused within a
    /// hook, and for a moment after it was seen that no name can go.
    pub(crate) fn names_give(&self, bytes: u64) -> bool {
        let limit = self.ceiling();
        if limit == 0 || self.pressure.is_barren() {
            return false;
        }
        let Some(_making) = Making::begin() else { return false };
        let (begin, wanted) = (Instant::now(), limit.saturating_sub(bytes));
        let before = self.evictions.get();
        // A few names at a time, and the names of one chunk if that returns no memory. Names that are
        // evenly spread keep nearly all of it, and evicting most of them would return little.
        for _ in 0..ROUNDS {
            if self.committed() <= wanted {
                break;
            }
            for sb in self.superblocks() {
                self.names_give_a_little(sb);
            }
        }
        let done = self.committed() <= wanted;
        // Names that went without returning memory are free slots for other names.
        if !done && self.evictions.get() == before {
            self.pressure.barren_since(begin);
        }
        done
    }

    fn names_give_a_little(&self, sb: SbId) {
        let before = self.committed();
        self.evict_within(sb, STEP, GLANCE);
        self.trim(sb);
        if self.committed() >= before && !self.superblock(sb).resident {
            self.empty_next_chunk(sb);
        }
        self.names.settle(&Names(self));
        self.numbers.settle(&Numbers(self));
    }

    /// Evict names until no more than `bytes` are committed in all, or none can go.
    fn shrink_names(&self, bytes: u64) {
        while self.committed() > bytes {
            let mut evicted = 0;
            for sb in self.superblocks() {
                evicted += self.evict_unused(sb, 8 * CHUNK as usize);
                self.trim(sb);
            }
            self.names.settle(&Names(self));
            self.numbers.settle(&Numbers(self));
            if evicted == 0 {
                break;
            }
        }
    }

    /// Whether `bytes` more may be committed. To be asked before each chunk, because it also decides when
    /// uses are noted. A slab may hold its mutexes. The call takes at most the list of devices, a leaf,
    /// when noting of uses begins or ends.
    pub(crate) fn may_grow(&self, bytes: u64) -> bool {
        let limit = self.ceiling();
        if limit == 0 {
            return true;
        }
        self.arm();
        self.committed() + bytes <= limit + beyond(limit)
    }

    /// Note uses from three quarters of the limit on, so that something is known when the limit is reached.
    pub(crate) fn arm(&self) {
        let limit = self.ceiling();
        let armed = limit != 0 && self.committed() > limit / 4 * 3;
        if self.armed.load(Ordering::Relaxed) != armed {
            self.armed.store(armed, Ordering::Relaxed);
            self.buffers.arm(&self.armed);
        }
    }

    /// A name was used. While eviction is not armed this is one load of a line that nobody writes.
    #[inline(always)]
    pub(crate) fn used(&self, dentry: u32) {
        if self.armed.load(Ordering::Relaxed) {
            self.note_use(dentry);
        }
    }

    #[cold]
    fn note_use(&self, dentry: u32) {
        let used = &self.visited.get(dentry).used;
        // Load, then store: a name in constant use is stored to once a round.
        if used.load(Ordering::Relaxed) == 0 {
            used.store(1, Ordering::Relaxed);
            #[cfg(all(test, not(loom)))]
            tests::note(dentry, 1);
        }
    }

    /// A name begins in this slot, unused.
    pub(crate) fn unused(&self, dentry: u32) {
        let used = &self.visited.get(dentry).used;
        if used.load(Ordering::Relaxed) != 0 {
            used.store(0, Ordering::Relaxed);
        }
    }

    /// Take a slot by `alloc`. It returns `None` if it needs memory beyond the limit; then room is made,
    /// and it is called again.
    ///
    /// # Errors
    /// `NoMemory`: nothing can be given up that would make room.
    #[inline]
    pub(crate) fn with_room<T>(&self, sb: SbId, alloc: impl Fn() -> Option<T>) -> Result<T, CacheError> {
        match alloc() {
            Some(slot) => Ok(slot),
            None => self.make_room(sb, &alloc).ok_or(CacheError::NoMemory),
        }
    }

    /// `alloc` after giving something up. Most often the slots of a few names suffice. If not, the free
    /// slots are of another kind, another superblock's, or in other threads' magazines. Then chunk after
    /// chunk is emptied and returned, and any slab can have its memory.
    #[cold]
    fn make_room<T>(&self, sb: SbId, alloc: &dyn Fn() -> Option<T>) -> Option<T> {
        self.run_short(sb);
        // Paths are found by their names too, and no name has to go for this memory.
        if self.prefixes.give()
            && let Some(slot) = alloc()
        {
            return Some(slot);
        }
        // Not for a hook that a thread calls while it makes room: that could go on without end.
        let _making = Making::begin()?;
        if self.buffers_have_much()
            && self.buffers_give(DENTRY_CHUNK + INODE_CHUNK) != 0
            && let Some(slot) = alloc()
        {
            return Some(slot);
        }
        if self.pressure.is_barren() {
            // No full search: names that were released are found here, or soon.
            return if self.evict_within(sb, STEP, GLANCE) == 0 { None } else { alloc() };
        }
        if let Some(slot) = self.few_names(sb, alloc) {
            return Some(slot);
        }
        // One thread at a time: slots that others free in a chunk which a thread empties are nobody's until
        // it is done.
        let _room = self.room.lock();
        for _ in 0..ROUNDS {
            let (begin, before) = (Instant::now(), self.evictions.get());
            let slot =
                alloc().or_else(|| self.few_names(sb, alloc)).or_else(|| self.return_chunks(sb, alloc));
            if slot.is_some() {
                return slot;
            }
            // Otherwise other threads were faster to take the slots.
            if self.evictions.get() == before {
                self.pressure.barren_since(begin);
                break;
            }
        }
        None
    }

    /// `alloc` with the slots of a few names of its superblock.
    fn few_names<T>(&self, sb: SbId, alloc: &dyn Fn() -> Option<T>) -> Option<T> {
        (0..2).find_map(|_| if self.evict_unused(sb, STEP) == 0 { None } else { alloc() })
    }

    /// Empty chunks of names and return them, our own superblock's first, until `alloc` succeeds.
    fn return_chunks<T>(&self, sb: SbId, alloc: &dyn Fn() -> Option<T>) -> Option<T> {
        for sb in std::iter::once(sb).chain(self.superblocks().filter(|other| *other != sb)) {
            // This empties magazines.
            self.trim(sb);
            if let Some(slot) = alloc() {
                return Some(slot);
            }
            if self.superblock(sb).resident {
                continue;
            }
            for chunk in self.superblock(sb).dentries.chunks() {
                self.empty_chunk(sb, chunk);
                if let Some(slot) = alloc() {
                    return Some(slot);
                }
            }
        }
        None
    }

    /// Evict the names of a chunk that can go, recently used or not, and return what has become empty.
    /// Returns how many went.
    pub(crate) fn empty_chunk(&self, sb: SbId, (from, to): (u32, u32)) -> usize {
        let slab = &self.superblock(sb).dentries;
        // Another thread is emptying it.
        if !slab.begin_drain(&self.dentry_pool, from) {
            return 0;
        }
        let evicted = (from.max(1)..to).filter(|dentry| self.evict_at(sb, *dentry)).count();
        self.trim(sb);
        slab.end_drain(from);
        evicted
    }

    /// Evict up to `max` names of a superblock that nobody needs and that were not used lately; returns how
    /// many went. It makes at most two rounds, and the first may find only used names. Nothing in a
    /// resident superblock is evicted.
    pub fn evict_unused(&self, sb: SbId, max: usize) -> usize {
        self.evict_within(sb, max, u64::MAX)
    }

    /// [`Cache::evict_unused`], searching at most `spans` pieces of the slab.
    pub(crate) fn evict_within(&self, sb: SbId, max: usize, spans: u64) -> usize {
        let superblock = self.superblock(sb);
        if superblock.resident {
            return 0;
        }
        let mut evicted = 0;
        for _ in 0..(2 * superblock.dentries.spans()).min(spans) {
            if evicted >= max {
                break;
            }
            let turn = superblock.hand.fetch_add(1, Ordering::Relaxed);
            let Some((from, to)) = superblock.dentries.span(turn) else { break };
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
        let (far, near) = (self.dentries.get(dentry + FORESEEN), self.dentries.get(dentry + FORESEEN / 2));
        self.names.prefetch(far.hash.load(Ordering::Relaxed));
        self.inodes.prefetch(far.inode.load(Ordering::Relaxed));
        self.inodes_private.prefetch(far.inode.load(Ordering::Relaxed));
        let number = &self.inodes_private.get(near.inode.load(Ordering::Relaxed)).hash;
        self.numbers.prefetch(number.load(Ordering::Relaxed));
    }

    /// The hand passes a name; returns whether it went.
    pub(crate) fn second_chance(&self, sb: SbId, dentry: u32) -> bool {
        let used = &self.visited.get(dentry).used;
        if used.load(Ordering::Relaxed) != 0 {
            used.store(0, Ordering::Relaxed);
            #[cfg(all(test, not(loom)))]
            tests::note(dentry, 0);
            return false;
        }
        self.evict_at(sb, dentry)
    }
}

/// Rule 17, counted: while eviction runs, hits store to a name's use byte at most once between two visits
/// of the hand.
#[cfg(all(test, not(loom)))]
mod tests {
    use std::cell::RefCell;
    use std::collections::HashMap;
    use std::sync::Arc;
    use std::sync::atomic::AtomicBool;

    use crate::attr::{Attr, mode};
    use crate::cache::Cache;
    use crate::hit::Peek;
    use crate::lookup::Lookup;
    use crate::types::{Config, Fresh, InodeId, SbId, SbOptions, Ttl};

    use super::Ordering;

    thread_local! {
        /// This thread's stores to the use byte of a name, by the stored value.
        static NOTED: RefCell<HashMap<(u32, u8), u64>> = RefCell::default();
    }

    pub(super) fn note(dentry: u32, stored: u8) {
        NOTED.with_borrow_mut(|noted| *noted.entry((dentry, stored)).or_default() += 1);
    }

    fn noted(dentry: u32, stored: u8) -> u64 {
        NOTED.with_borrow(|noted| noted.get(&(dentry, stored)).copied().unwrap_or_default())
    }

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
            let sb =
                cache.add_superblock(SbOptions { resident: false, on_evict: Box::new(|_, _| {}) }).unwrap();
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
            let before = noted(self.hot, 0);
            while noted(self.hot, 0) == before {
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
            let before = noted(armed.hot, 1);
            armed.hit(1000);
            assert_eq!(noted(armed.hot, 1), before, "it is noted already");
            armed.pass();
            armed.hit(1000);
            assert_eq!(noted(armed.hot, 1), before + 1, "once after the hand came by");
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
                noted(armed.hot, 1)
            });
            let before = (armed.cache.counters().evicted, noted(armed.hot, 0));
            armed.stream(1 << 32, 100_000);
            assert!(armed.cache.counters().evicted > before.0 + 50_000);
            done.store(true, Ordering::Relaxed);
            (hitting.join().unwrap(), noted(armed.hot, 0) - before.1)
        });
        assert!(stored <= visits + 1, "{stored} stores, and the hand came by {visits} times");
    }
}
