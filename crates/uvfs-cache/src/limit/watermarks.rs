//! The watermarks below the limit, and one step of the thread that keeps them.
//!
//! A thread that needs a slot and finds none evicts a few names itself ([`crate::limit::make_room`]). That
//! needs no helper, but the lookup waits for the search. So some slots are kept free ahead of need. If
//! fewer than the *low* watermark are free, the cache wakes the balancing thread, its *watcher*
//! ([`crate::limit::memory_waiters`]). Each of that thread's calls of [`Cache::balance`] is one small step, until
//! the *high* watermark is reached. Free slots are those without an inode or a name, and those of chunks
//! that the limit still allows. The watermarks are a thirty-second and a sixteenth of the names that the
//! limit has room for (up to twice that if it has room for fewer than 32,768).
//!
//! The limit itself may be lowered for a while ([`Cache::lower_watermarks`]), because the system is short
//! of memory. Allocations obey the lowered limit at once; memory committed above it is returned step by
//! step.
//!
//! The figures are atomics and may be out of date when they are used; the result is a step too many or too
//! few. Callers of [`Cache::balance`] hold no lock of the cache. `took` and `run_short` may run under name
//! locks and the rename mutex.

use std::task::Waker;

use uvfs_sync::primitives::Ordering;
use uvfs_sync::slab::{CHUNK, Slab};

use crate::cache::Cache;
use crate::inodes::inode_slots::INODE_CHUNK;
use crate::limit::held_by_kernel::Leaf;
use crate::limit::limit_state::NONE;
use crate::limit::make_room::Making;
use crate::limit::name_eviction::GLANCE;
use crate::limit::order_of_kinds::NamesGone;
use crate::names::dentry_slots::DENTRY_CHUNK;
use crate::types::SbId;

/// A thread that takes every so-many-th slot checks whether enough are free.
const LOOK_EVERY: u32 = 64;
/// This many names that a kernel has forgotten are enough for a step.
const LITTLE: u64 = 64;
/// The most names that one step tries to evict.
const STEP: u64 = 256;
/// The least high watermark, unless that is more than an eighth of all names. A few threads that list
/// directories take about that many while a watcher wakes.
const HIGH_MIN: u64 = 2048;
/// Result of one step of [`Cache::balance`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Balance {
    /// The superblock that the step searched.
    pub sb: SbId,
    /// Names that have to go before the high watermark is reached; 0: nothing to do.
    pub missing: u64,
    /// Names evicted.
    pub evicted: u64,
    /// Names among `evicted` that a kernel was asked to forget before.
    pub forgotten: u64,
    /// Recent steps evicted nothing, but not every name has been looked at since.
    pub more: bool,
    /// Whether memory was returned to the system.
    pub returned: bool,
}

// For this project's own crates: see `machinery`.
#[doc(hidden)]
impl Cache {
    /// Wake `waker` when memory runs short, or when less of it may be used than before, until
    /// [`Cache::unwatch_pressure`]. A watcher begins with a look ([`Cache::balance`]): it is not notified
    /// of earlier events.
    pub fn watch_pressure(&self, waker: Waker) {
        self.limit.pressure.watch(waker);
    }

    /// The end of [`Cache::watch_pressure`].
    pub fn unwatch_pressure(&self, waker: &Waker) {
        self.limit.pressure.unwatch(waker);
    }

    /// Use only this many sixteenths of the limit (16: all of it; at least 1) until the next call.
    pub fn lower_watermarks(&self, sixteenths: u32) {
        self.limit.lower(sixteenths);
        self.arm();
    }

    /// [`Cache::set_memory_limit`] for callers that must not wait. If a watcher exists, it gives up the
    /// memory above the limit later. Allocations obey the new limit at once.
    pub fn ask_memory_limit(&self, bytes: u64) {
        if self.limit.pressure.is_watched() {
            self.limit.set(bytes);
            self.arm();
            self.limit.pressure.rise();
        } else {
            self.set_memory_limit(bytes);
        }
    }

    /// [`Cache::shrink_to`] for callers that must not wait, in the same way.
    pub fn ask_shrink(&self, bytes: u64) {
        if self.limit.pressure.is_watched() {
            self.limit.watermarks.goal.store(bytes, Ordering::Relaxed);
            self.limit.pressure.rise();
        } else {
            self.shrink_to(bytes);
        }
    }

    /// One step towards the watermarks, made by a watcher's thread ([`Cache::watch_pressure`]). It evicts
    /// at most some thousand names, and looks at some tens of thousands. If nothing went, the caller may
    /// ask the kernel to forget names ([`Cache::held_by_kernel`]), and should pause before it calls again.
    pub fn balance(&self) -> Balance {
        self.balance_after(&[])
    }

    /// [`Cache::balance`] for a caller that has asked a kernel to forget `named`. The names among them that
    /// it has forgotten go first, so nobody needs to search for them among all that it still holds.
    pub fn balance_after(&self, named: &[Leaf]) -> Balance {
        // Before the look: from here on a thread that runs short wakes us again.
        self.limit.pressure.hear();
        self.arm();
        let sb = SbId(self.limit.watermarks.short.load(Ordering::Relaxed) as u16);
        let mut done = Balance { sb, missing: 0, evicted: 0, forgotten: 0, more: false, returned: false };
        if self.superblocks().next().is_none() {
            return done;
        }
        let goal = self.limit.watermarks.goal.load(Ordering::Relaxed);
        let (committed, above) = (self.committed(), self.above());
        // An evict hook that needs memory must not make room in its turn.
        let _making = Making::begin();
        if above > 0 {
            done.missing = (above / name_bytes()).max(1);
            done.forgotten = self.evict_forgotten(named);
            done.evicted = done.forgotten + self.give_back(sb, above, done.forgotten >= LITTLE) as u64;
            done.returned = self.committed() < committed;
        } else {
            self.reached(goal);
            done.missing = self.missing(sb);
            done.forgotten = if done.missing > 0 { self.evict_forgotten(named) } else { 0 };
            done.evicted = done.forgotten;
            if done.forgotten < done.missing.min(LITTLE) {
                done.evicted += self.evict_within(sb, done.missing.min(STEP) as usize, GLANCE) as u64;
            }
        }
        self.limit.watermarks.ahead.add(done.evicted);
        done.more = done.missing > 0 && self.go_on(&done, above > 0);
        done
    }

    /// Evict the names in `named` that the kernel has forgotten and nobody else holds; returns how many
    /// went. By now the kernel has looked up again the ones that are in constant use.
    fn evict_forgotten(&self, named: &[Leaf]) -> u64 {
        named.iter().filter(|leaf| self.evict_at(leaf.sb, leaf.dentry)).count() as u64
    }

    /// Whether another step may find what this one did not.
    fn go_on(&self, done: &Balance, anywhere: bool) -> bool {
        let barren = &self.limit.watermarks.barren;
        if done.evicted > 0 || done.returned {
            barren.store(0, Ordering::Relaxed);
            return true;
        }
        let superblock = self.superblock(done.sb);
        // Two rounds: the first may find only used names.
        let looked = barren.fetch_add(GLANCE, Ordering::Relaxed) + GLANCE;
        if looked < 2 * superblock.dentries().spans() && !superblock.is_resident() {
            return true;
        }
        barren.store(0, Ordering::Relaxed);
        if !anywhere {
            return false;
        }
        // Continue with the next superblock, until all have been searched.
        let next = self.next_after(done.sb);
        self.limit.watermarks.short.store(u32::from(next.0), Ordering::Relaxed);
        next.0 > done.sb.0
    }

    /// The watcher calls this if the goal of [`Cache::ask_shrink`] cannot be reached.
    pub fn give_up_shrinking(&self) {
        self.limit.watermarks.goal.store(NONE, Ordering::Relaxed);
    }

    /// All names that [`Cache::balance`] has evicted.
    pub(crate) fn evicted_ahead(&self) -> u64 {
        self.limit.watermarks.ahead.get()
    }

    /// A slot of this superblock was taken. Now and then this checks how many are left, and wakes the
    /// watcher if there are few.
    #[inline]
    pub(crate) fn took(&self, sb: SbId, slot: u32) {
        if slot.is_multiple_of(LOOK_EVERY) && self.limit.bytes() != 0 {
            self.look_at_room(sb);
        }
    }

    #[cold]
    fn look_at_room(&self, sb: SbId) {
        if self.above() > 0 || self.missing(sb) > self.high() / 2 {
            self.run_short(sb);
        }
    }

    /// Whether as much is free as a watcher would keep free; always true without a limit. A preload stops
    /// when this is false, so that nothing is evicted for entries that nobody has asked for.
    pub fn has_spare_room(&self, sb: SbId) -> bool {
        let ceiling = self.limit.ceiling();
        ceiling == 0 || (self.committed() <= ceiling && self.missing(sb) == 0)
    }

    /// A superblock is short of memory, or nearly so.
    pub(crate) fn run_short(&self, sb: SbId) {
        if !self.superblock(sb).is_resident() {
            self.limit.watermarks.short.store(u32::from(sb.0), Ordering::Relaxed);
        }
        self.limit.pressure.rise();
    }

    fn reached(&self, goal: u64) {
        // Unless another goal was set meanwhile.
        let _ = self.limit.watermarks.goal.compare_exchange(goal, NONE, Ordering::Relaxed, Ordering::Relaxed);
    }

    /// Bytes that are committed and should not be. Hash lines grow without asking, so a little more than
    /// the limit is no reason to empty chunks.
    fn above(&self) -> u64 {
        let (ceiling, goal) = (self.limit.ceiling(), self.limit.watermarks.goal.load(Ordering::Relaxed));
        let bytes = if ceiling == 0 { goal } else { goal.min(ceiling + ceiling / 64) };
        self.committed().saturating_sub(bytes)
    }

    /// The high watermark, in names.
    fn high(&self) -> u64 {
        let names = self.limit.ceiling() / name_bytes();
        (names / 16).max(HIGH_MIN.min(names / 8))
    }

    /// Names of a superblock that would have to go to reach the high watermark.
    fn missing(&self, sb: SbId) -> u64 {
        let superblock = self.superblock(sb);
        if superblock.is_resident() || self.limit.ceiling() == 0 {
            return 0;
        }
        let free = |slab: &Slab| (slab.chunk_count() as u64 * u64::from(CHUNK)).saturating_sub(slab.in_use());
        let free = free(superblock.inodes()).min(free(superblock.dentries()));
        // Blocks keep memory beyond their share only until a name needs it.
        let fresh =
            (self.limit.ceiling() + self.limit.buffers_beyond_share()).saturating_sub(self.committed());
        let fresh = fresh / (INODE_CHUNK + DENTRY_CHUNK);
        self.high().saturating_sub(free + fresh * u64::from(CHUNK))
    }

    /// Give up some of the `above` bytes in excess, in the [order of kinds](crate::limit::order_of_kinds); returns how
    /// many names went. Names go that were not used lately. If that returns no memory, a chunk is emptied, whose
    /// slots nobody gets meanwhile. `forgotten`: a kernel gives names up in arena order, and so whole chunks with
    /// them; then no search is needed.
    fn give_back(&self, sb: SbId, above: u64, forgotten: bool) -> usize {
        let before = self.committed();
        self.give_in_order(before.saturating_sub(above), || {
            let mut evicted = if forgotten { 0 } else { self.evict_within(sb, 8 * STEP as usize, GLANCE) };
            self.trim(sb);
            if !forgotten && self.committed() >= before && !self.superblock(sb).is_resident() {
                evicted += self.empty_next_chunk(sb);
            }
            self.dentries.settle();
            self.inodes.settle();
            NamesGone { evicted, then_blocks: !forgotten && evicted == 0 && self.committed() >= before }
        })
    }

    /// Empty the chunk that the hand is at, since the hand has passed the earlier ones. Returns how many
    /// names went.
    pub(crate) fn empty_next_chunk(&self, sb: SbId) -> usize {
        let Some(chunk) = self.superblock(sb).chunk_at_hand() else { return 0 };
        let _room = self.limit.lock_eviction();
        self.empty_chunk(sb, chunk)
    }

    /// The next superblock whose names may go, cyclically.
    fn next_after(&self, sb: SbId) -> SbId {
        let evicting = |sb: &SbId| !self.superblock(*sb).is_resident();
        let (upto, after): (Vec<_>, Vec<_>) =
            self.superblocks().filter(evicting).partition(|other| other.0 <= sb.0);
        after.into_iter().chain(upto).next().unwrap_or(sb)
    }
}

/// Bytes of a name and its inode, without the hash's share.
const fn name_bytes() -> u64 {
    (INODE_CHUNK + DENTRY_CHUNK) / CHUNK as u64
}
