//! The limit on the cache's memory, and the shrinker that keeps it.
//!
//! The limit applies to committed memory ([`Cache::committed`]): whole arena chunks in use, lines of the
//! hash tables, long names, link targets, directory state, block buffers and external bytes. A thread that
//! needs a chunk asks [`Cache::may_grow`] first. If the limit forbids it, the thread evicts a few names
//! instead ([`Cache::make_room`]) and takes their slots. So allocating threads keep the limit, in small
//! steps, and no hit waits for it. A balancing thread may do most of that work ahead of them
//! ([`crate::limit::watermarks`]).
//!
//! After a full search that found nothing to evict, searches are short: 32,768 names each. That lasts four
//! times as long as the full search took, but at most 100 ms. The period ends early if an inode goes or a
//! kernel forgets one. In a large cache, a name that is released in another way may be found a little late.
//!
//! Of the cache's locks, callers hold at most name locks and the rename mutex.

use std::cell::Cell;
use std::sync::Arc;
use std::time::Instant;

use uvfs_sync::slab::{CHUNK, SPAN};

use crate::cache::Cache;
use crate::inodes::inode_slots::INODE_CHUNK;
use crate::limit::external_bytes::ExternalBytes;
use crate::limit::memory_waiters::{Overdraft, beyond};
use crate::limit::name_eviction::GLANCE;
use crate::limit::order_of_kinds::NamesGone;
use crate::names::dentry_slots::DENTRY_CHUNK;
use crate::types::{CacheError, SbId};

/// Names that a thread evicts when it needs a slot: the slots that are left over serve the next ones.
const STEP: usize = SPAN as usize;
/// How often all chunks are gone through while other threads take the slots that become free.
const ROUNDS: usize = 16;

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

// For this project's own crates: see `machinery`.
#[doc(hidden)]
impl Cache {
    /// Bytes committed: chunks in use, hash lines, long names, link targets, directories, paths, block
    /// buffers, and drivers' external bytes ([`Cache::external_bytes`]). A chunk counts as a whole from its first
    /// slot on. O(1).
    pub fn committed(&self) -> u64 {
        self.inodes.bytes()
            + self.dentries.bytes()
            + self.buffer_bytes()
            + self.limit.external().bytes()
            + self.limit.side().map_or(0, |side| side.committed())
            + self.prefixes.bytes()
    }

    /// The most that [`Cache::committed`] may be; 0: no limit.
    pub fn memory_limit(&self) -> u64 {
        self.limit.bytes()
    }

    /// Give up what nobody needs until no more than `bytes` are committed, and return the memory to the
    /// system. Returns whether that was reached. O(names).
    pub fn shrink_to(&self, bytes: u64) -> bool {
        self.give_in_order(bytes, || NamesGone { evicted: self.shrink_names(bytes), then_blocks: true });
        self.arm();
        self.committed() <= bytes
    }

    /// Evict names to make room for `bytes` of blocks; returns whether that succeeded. Refused within a
    /// hook, and for a moment after it was seen that no name can go.
    pub(crate) fn names_give(&self, bytes: u64) -> bool {
        let limit = self.limit.ceiling();
        if limit == 0 || self.limit.pressure.is_barren() {
            return false;
        }
        let Some(_making) = Making::begin() else { return false };
        let (begin, wanted) = (Instant::now(), limit.saturating_sub(bytes));
        // Paths are found by their names too.
        if self.committed() > wanted {
            self.prefixes.give();
        }
        let before = self.limit.evicted();
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
        if !done && self.limit.evicted() == before {
            self.limit.pressure.barren_since(begin);
        }
        done
    }

    fn names_give_a_little(&self, sb: SbId) {
        let before = self.committed();
        self.evict_within(sb, STEP, GLANCE);
        self.trim(sb);
        if self.committed() >= before && !self.superblock(sb).is_resident() {
            self.empty_next_chunk(sb);
        }
        self.dentries.settle();
        self.inodes.settle();
    }

    /// Evict names until no more than `bytes` are committed in all, or none can go; returns how many went.
    fn shrink_names(&self, bytes: u64) -> usize {
        let mut all = 0;
        while self.committed() > bytes {
            let mut evicted = 0;
            for sb in self.superblocks() {
                evicted += self.evict_unused(sb, 8 * CHUNK as usize);
                self.trim(sb);
            }
            self.dentries.settle();
            self.inodes.settle();
            all += evicted;
            if evicted == 0 {
                break;
            }
        }
        all
    }

    /// Whether `bytes` more may be committed. To be asked before each chunk, because it also decides when
    /// uses are noted. A slab may hold its mutexes. The call takes at most the list of devices, a leaf,
    /// when noting of uses begins or ends.
    pub(crate) fn may_grow(&self, bytes: u64) -> bool {
        let limit = self.limit.ceiling();
        if limit == 0 {
            return true;
        }
        self.arm();
        self.committed() + bytes <= limit + beyond(limit)
    }

    /// See [`Limit::arm`](crate::limit::limit_state::Limit).
    pub(super) fn arm(&self) {
        self.limit.arm(|| self.committed());
    }

    /// Whether more is committed than allowed: nodes of a device's tree grow without asking.
    pub(crate) fn is_over(&self) -> bool {
        let limit = self.limit.ceiling();
        limit != 0 && self.committed() > limit
    }

    /// The committed bytes have grown without a question to [`Cache::may_grow`].
    pub(crate) fn grew_unasked(&self) {
        self.arm();
        if self.is_over() {
            self.limit.pressure.rise();
        }
    }

    /// Attempt something that needs memory. While there is none, attempt it again whenever a kernel has
    /// forgotten something, until `deadline`. `attempt` returns `None` if there is no memory. The caller
    /// holds no lock.
    pub fn with_patience<T>(&self, deadline: Instant, attempt: impl FnMut() -> Option<T>) -> Option<T> {
        self.limit.pressure.with_patience(deadline, attempt)
    }

    /// The calling thread may have 4% more memory than the limit allows while this lives. It is for a
    /// thread that must not wait because whatever would return memory waits for it. Use it only once that
    /// is seen to be so.
    pub fn overdraw(&self) -> Overdraft {
        Overdraft::begin()
    }

    /// The external bytes of this cache. The caller may keep the figure longer than the cache.
    pub fn external_bytes(&self) -> Arc<ExternalBytes> {
        Arc::clone(self.limit.external())
    }

    /// Bytes of the limit that block buffers have committed.
    pub fn buffer_bytes(&self) -> u64 {
        self.limit.devices().bytes()
    }

    /// A name was used. While eviction is not armed this is one load of a line that nobody writes. Returns whether the
    /// name is marked now.
    #[inline(always)]
    pub(crate) fn used(&self, dentry: u32) -> bool {
        let armed = self.limit.is_armed();
        if armed {
            self.dentries.used().note(dentry);
        }
        armed
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
        if self.limit.buffers_have_much()
            && self.limit.buffers_give(DENTRY_CHUNK + INODE_CHUNK) != 0
            && let Some(slot) = alloc()
        {
            return Some(slot);
        }
        if self.limit.pressure.is_barren() {
            // No full search: names that were released are found here, or soon.
            return if self.evict_within(sb, STEP, GLANCE) == 0 { None } else { alloc() };
        }
        if let Some(slot) = self.few_names(sb, alloc) {
            return Some(slot);
        }
        // One thread at a time: slots that others free in a chunk which a thread empties are nobody's until
        // it is done.
        let _room = self.limit.lock_eviction();
        for _ in 0..ROUNDS {
            let (begin, before) = (Instant::now(), self.limit.evicted());
            let slot =
                alloc().or_else(|| self.few_names(sb, alloc)).or_else(|| self.return_chunks(sb, alloc));
            if slot.is_some() {
                return slot;
            }
            // Otherwise other threads were faster to take the slots.
            if self.limit.evicted() == before {
                self.limit.pressure.barren_since(begin);
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
            if self.superblock(sb).is_resident() {
                continue;
            }
            for chunk in self.superblock(sb).dentries().chunks() {
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
        let slab = self.superblock(sb).dentries();
        // Another thread is emptying it.
        if !self.dentries.begin_drain(slab, from) {
            return 0;
        }
        let evicted = (from.max(1)..to).filter(|dentry| self.evict_at(sb, *dentry)).count();
        self.trim(sb);
        slab.end_drain(from);
        evicted
    }

    /// Return chunks without a used slot to the system; returns how many. A chunk's memory then reads as
    /// zero. So its floor remembers more than every generation and every sequence in it. A reader that
    /// slept through all of it finds neither again.
    pub fn trim(&self, sb: SbId) -> usize {
        self.return_chunks_of(sb, false)
    }

    /// [`Cache::trim`]; `end`: of a superblock in which nobody allocates any more.
    pub(crate) fn return_chunks_of(&self, sb: SbId, end: bool) -> usize {
        let superblock = self.superblock(sb);
        let inodes = self.inodes.return_chunks(superblock.inodes(), end);
        let dentries = self.dentries.return_chunks(superblock.dentries(), end);
        self.limit.side().into_iter().for_each(|side| side.trim());
        inodes + dentries
    }

    /// The last slot of a chunk came back, and the chunk's superblock has ended. (Without an owner the
    /// chunk has been returned since.)
    #[cold]
    pub(crate) fn trim_ended(&self, owner: Option<u32>) {
        if let Some(id) = owner {
            self.trim(SbId(id as u16));
        }
    }
}

impl Cache {
    /// Set the limit (bytes; 0: none). If more is committed, this gives up what nobody needs and returns
    /// its memory to the system. Memory in use may still exceed the limit afterwards.
    pub fn set_memory_limit(&self, bytes: u64) {
        self.limit.set(bytes);
        self.arm();
        if bytes != 0 {
            self.shrink_to(bytes);
        }
    }
}
