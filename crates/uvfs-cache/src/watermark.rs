//! The watermarks below the limit, and what a thread does that keeps them for those who allocate.
//!
//! Who needs a slot and finds none evicts a few names himself ([`crate::shrink`]). That is certain, but it makes a lookup
//! wait for the search. So there are to be free slots: fewer than the *low* watermark of them, and whoever watches is woken
//! ([`crate::pressure`]); each of its calls of [`Cache::balance`] is then one small step, until the *high* watermark is
//! reached. Free are slots without an inode or a name, and chunks that the limit still allows. The
//! watermarks are a thirty-second and a sixteenth of the names that the limit has room for (twice that in small caches).
//!
//! The limit itself may be lowered for a while ([`Cache::lower_watermarks`]), because the system is short of memory. Who
//! allocates goes by the lowered one at once; what is committed above it is returned step by step.
//!
//! Nothing here is locked. All figures may be out of date by the time they are used: what they lead to is a
//! step too many or too few. Whoever comes here holds no lock of the cache.

use uvfs_sync::primitives::{AtomicU32, AtomicU64, Ordering, Stat};
use uvfs_sync::slab::{CHUNK, SPAN, Slab};

use crate::cache::{Cache, Names, Numbers};
use crate::pressure::Leaf;
use crate::shrink::{DENTRY_CHUNK, GLANCE, INODE_CHUNK, Making};
use crate::types::SbId;

/// The whole limit, in the units of [`Cache::lower_watermarks`].
const WHOLE: u32 = 16;
/// One slot in so many tells who takes it to look whether there are enough.
const LOOK_EVERY: u32 = 64;
/// So many names that a kernel has forgotten are enough for a step.
const LITTLE: u64 = 64;
/// Names that one step searches for at the most.
const STEP: u64 = 256;
/// The least that the high watermark is, if it is not an eighth of all then: what a few who list directories take in the
/// time that it takes to wake somebody.
const HIGH_MIN: u64 = 2048;
/// No goal.
const NONE: u64 = u64::MAX;

/// See the module's head.
#[derive(Debug)]
pub(crate) struct Watermarks {
    /// Sixteenths of the limit that may be used now.
    share: AtomicU32,
    /// Bytes to come down to once; [`NONE`].
    goal: AtomicU64,
    /// The superblock that was short last.
    short: AtomicU32,
    /// Names evicted by [`Cache::balance`].
    ahead: Stat,
    /// Pieces that were looked at since one went.
    barren: AtomicU64,
}

impl Default for Watermarks {
    fn default() -> Self {
        let (share, goal) = (AtomicU32::new(WHOLE), AtomicU64::new(NONE));
        Self { share, goal, short: AtomicU32::new(0), ahead: Stat::new(), barren: AtomicU64::new(0) }
    }
}

/// What a step of [`Cache::balance`] came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Balance {
    /// The superblock that was looked at.
    pub sb: SbId,
    /// Names that have to go before the high watermark is reached; 0: nothing is to be done.
    pub missing: u64,
    /// Names that went.
    pub evicted: u64,
    /// Those of them that a kernel was asked to forget before.
    pub forgotten: u64,
    /// Nothing went of late, but not every name has been looked at since.
    pub more: bool,
    /// Whether memory was returned to the system.
    pub returned: bool,
}

impl Cache {
    /// The limit in force: the one that was set, or less while the watermarks are lowered; 0: none.
    pub(crate) fn ceiling(&self) -> u64 {
        match self.memory_limit() {
            0 => 0,
            // Not 0 however small the limit: that would be none.
            limit => {
                (limit / u64::from(WHOLE) * u64::from(self.watermarks.share.load(Ordering::Relaxed))).max(1)
            }
        }
    }

    /// Use only so many sixteenths of the limit (16: all of it; at least 1) until this is said again.
    pub fn lower_watermarks(&self, sixteenths: u32) {
        self.watermarks.share.store(sixteenths.clamp(1, WHOLE), Ordering::Relaxed);
        self.arm();
    }

    /// [`Cache::set_memory_limit`] by who must not wait: where somebody watches the pressure, what is above the
    /// limit is given up by it, later. Who allocates goes by the new limit at once.
    pub fn ask_memory_limit(&self, bytes: u64) {
        if self.pressure.is_watched() {
            self.limit.store(bytes, Ordering::Relaxed);
            self.arm();
            self.pressure.rise();
        } else {
            self.set_memory_limit(bytes);
        }
    }

    /// [`Cache::shrink_to`] by who must not wait: likewise.
    pub fn ask_shrink(&self, bytes: u64) {
        if self.pressure.is_watched() {
            self.watermarks.goal.store(bytes, Ordering::Relaxed);
            self.pressure.rise();
        } else {
            self.shrink_to(bytes);
        }
    }

    /// One step towards the watermarks, by a thread of whoever watches the pressure ([`Cache::watch_pressure`]): at most some
    /// thousand names are evicted, and some tens of thousands looked at. Where nothing went, the
    /// caller may see to it that more can ([`Cache::held_by_kernel`]), and should pause before it comes again.
    pub fn balance(&self) -> Balance {
        self.balance_after(&[])
    }

    /// [`Cache::balance`] by who has had a kernel asked to forget `named`: those of them that it has forgotten go first, so that nobody
    /// needs to search for them among all that it still holds.
    pub fn balance_after(&self, named: &[Leaf]) -> Balance {
        // From here on who runs short wakes us again: before the look.
        self.pressure.hear();
        self.arm();
        let sb = SbId(self.watermarks.short.load(Ordering::Relaxed) as u16);
        let mut done = Balance { sb, missing: 0, evicted: 0, forgotten: 0, more: false, returned: false };
        if self.superblocks().next().is_none() {
            return done;
        }
        let goal = self.watermarks.goal.load(Ordering::Relaxed);
        let (committed, above) = (self.committed(), self.above());
        // A hook that needs memory must not make room in its turn.
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
        self.watermarks.ahead.add(done.evicted);
        done.more = done.missing > 0 && self.go_on(&done, above > 0);
        done
    }

    /// Evict those of `named` that the kernel has forgotten, and that nobody else holds; how many went. What is used all the
    /// time it has asked for again by now.
    fn evict_forgotten(&self, named: &[Leaf]) -> u64 {
        named.iter().filter(|leaf| self.evict_at(leaf.sb, leaf.dentry)).count() as u64
    }

    /// Whether another step may find what this one has not.
    fn go_on(&self, done: &Balance, anywhere: bool) -> bool {
        let barren = &self.watermarks.barren;
        if done.evicted > 0 || done.returned {
            barren.store(0, Ordering::Relaxed);
            return true;
        }
        let superblock = self.superblock(done.sb);
        // Two rounds: the first may only find what was used.
        let looked = barren.fetch_add(GLANCE, Ordering::Relaxed) + GLANCE;
        if looked < 2 * superblock.dentries.spans() && !superblock.resident {
            return true;
        }
        barren.store(0, Ordering::Relaxed);
        if !anywhere {
            return false;
        }
        // The next one, until all have been gone through.
        let next = self.next_after(done.sb);
        self.watermarks.short.store(u32::from(next.0), Ordering::Relaxed);
        next.0 > done.sb.0
    }

    /// What [`Cache::ask_shrink`] asked for cannot be reached, says who has tried.
    pub fn give_up_shrinking(&self) {
        self.watermarks.goal.store(NONE, Ordering::Relaxed);
    }

    /// Names that were evicted by [`Cache::balance`], of all.
    pub(crate) fn evicted_ahead(&self) -> u64 {
        self.watermarks.ahead.get()
    }

    /// A slot of this superblock was taken. Now and then whoever watches is told, if few are left.
    #[inline]
    pub(crate) fn took(&self, sb: SbId, slot: u32) {
        if slot.is_multiple_of(LOOK_EVERY) && self.limit.load(Ordering::Relaxed) != 0 {
            self.look_at_room(sb);
        }
    }

    #[cold]
    fn look_at_room(&self, sb: SbId) {
        if self.above() > 0 || self.missing(sb) > self.high() / 2 {
            self.run_short(sb);
        }
    }

    /// Whether as much is free as whoever balances would see to: who fills the cache before anybody asks stops where it is
    /// not, so that nothing is evicted for it. Always without a limit.
    pub fn has_spare_room(&self, sb: SbId) -> bool {
        let ceiling = self.ceiling();
        ceiling == 0 || (self.committed() <= ceiling && self.missing(sb) == 0)
    }

    /// A superblock is short of memory, or nearly so.
    pub(crate) fn run_short(&self, sb: SbId) {
        if !self.superblock(sb).resident {
            self.watermarks.short.store(u32::from(sb.0), Ordering::Relaxed);
        }
        self.pressure.rise();
    }

    fn reached(&self, goal: u64) {
        // Unless another one was set meanwhile.
        let _ = self.watermarks.goal.compare_exchange(goal, NONE, Ordering::Relaxed, Ordering::Relaxed);
    }

    /// Bytes that are committed and should not be. Hash lines grow without being asked about: a little more than the
    /// limit is no reason to empty chunks.
    fn above(&self) -> u64 {
        let (ceiling, goal) = (self.ceiling(), self.watermarks.goal.load(Ordering::Relaxed));
        let bytes = if ceiling == 0 { goal } else { goal.min(ceiling + ceiling / 64) };
        self.committed().saturating_sub(bytes)
    }

    /// The high watermark, in names.
    fn high(&self) -> u64 {
        let names = self.ceiling() / name_bytes();
        (names / 16).max(HIGH_MIN.min(names / 8))
    }

    /// Names of a superblock that would have to go for the high watermark.
    fn missing(&self, sb: SbId) -> u64 {
        let superblock = self.superblock(sb);
        if superblock.resident || self.ceiling() == 0 {
            return 0;
        }
        let free = |slab: &Slab| (slab.chunk_count() as u64 * u64::from(CHUNK)).saturating_sub(slab.in_use());
        let free = free(&superblock.inodes).min(free(&superblock.dentries));
        // What blocks have beyond their share is theirs only until a name needs it.
        let fresh = (self.ceiling() + self.buffers_beyond_share()).saturating_sub(self.committed());
        let fresh = fresh / (INODE_CHUNK + DENTRY_CHUNK);
        self.high().saturating_sub(free + fresh * u64::from(CHUNK))
    }

    /// Give up some of the `above` bytes that are too many; how many names went. Blocks first, down to a quarter of what
    /// may stay: a name is asked for again one by one. Then names that were not used of late; where that returns nothing, a chunk
    /// is emptied, whose slots nobody gets meanwhile. At last the other blocks. `forgotten`: a kernel gives names up in arena
    /// order, and with them whole chunks, so that nothing else need be searched for.
    fn give_back(&self, sb: SbId, above: u64, forgotten: bool) -> usize {
        let before = self.committed();
        let stay = before.saturating_sub(above);
        self.buffers_give(above.min(self.buffer_bytes().saturating_sub(stay / 4)));
        if self.committed() <= stay {
            return 0;
        }
        let mut evicted = if forgotten { 0 } else { self.evict_within(sb, 8 * STEP as usize, GLANCE) };
        self.trim(sb);
        if !forgotten && self.committed() >= before && !self.superblock(sb).resident {
            evicted += self.empty_next_chunk(sb);
        }
        self.names.settle(&Names(self));
        self.numbers.settle(&Numbers(self));
        if !forgotten && evicted == 0 && self.committed() >= before {
            self.buffers_give(above);
        }
        evicted
    }

    /// Empty the chunk that the hand is at: it has gone through what lies before. How many names went.
    pub(crate) fn empty_next_chunk(&self, sb: SbId) -> usize {
        let superblock = self.superblock(sb);
        let chunks = superblock.dentries.chunks();
        let turn = superblock.hand.load(Ordering::Relaxed) / u64::from(CHUNK / SPAN);
        let Some(at) = turn.checked_rem(chunks.len() as u64) else { return 0 };
        let _room = self.room.lock();
        self.empty_chunk(sb, chunks[at as usize])
    }

    /// The next superblock whose names may go, around.
    fn next_after(&self, sb: SbId) -> SbId {
        let evicting = |sb: &SbId| !self.superblock(*sb).resident;
        let (upto, after): (Vec<_>, Vec<_>) =
            self.superblocks().filter(evicting).partition(|other| other.0 <= sb.0);
        after.into_iter().chain(upto).next().unwrap_or(sb)
    }
}

/// What a name and its inode take up, the hash's share left out.
const fn name_bytes() -> u64 {
    (INODE_CHUNK + DENTRY_CHUNK) / CHUNK as u64
}
