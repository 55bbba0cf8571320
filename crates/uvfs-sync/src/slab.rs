//! The slots of an arena that are in use.
//!
//! A [`Pool`] hands out chunks of [`CHUNK`] slots. A [`Slab`] is one user of the pool (a superblock) and
//! owns whole chunks, so that everything of one superblock can be enumerated in arena order and returned
//! chunk by chunk. Allocation and freeing go through a magazine per thread shard (one uncontended mutex),
//! which is filled from and flushed to the chunks' bitmaps.
//!
//! A chunk belongs to one slab, and a slot is always freed to the owner of its chunk (design rule 18). The
//! chunk records its owner, so callers free by the slot alone ([`Pool::free`]) and cannot name a wrong
//! slab.
//!
//! Generations: the slot itself has its generation. A chunk whose memory was given back reads as generation
//! 0, so the chunk remembers a *floor*, the highest generation it ever had. A new generation is one above
//! the larger of the two ([`next_generation`]). A slot whose generation would wrap is never handed out
//! again.
//!
//! Lock order: magazine, then partial list, then chunk, then pool. Nothing else is locked inside.

use crossbeam_utils::CachePadded;

use crate::lock_order::{Class, Ordered};
use crate::primitives::{AtomicBool, AtomicU32, Ordering, SHARDS, Tally, shard};
use crate::segvec::SegVec;

/// Slots in a chunk.
pub const CHUNK: u32 = if cfg!(any(loom, miri)) { 64 } else { 1024 };
/// Slots that a walk through a slab visits together ([`Slab::span`]).
pub const SPAN: u32 = 64;
const WORDS: usize = CHUNK as usize / 64;
const MAGAZINE: usize = if cfg!(loom) { 8 } else { 32 };
/// Minus one, for a count that wraps.
const ONE_LESS: u64 = 1u64.wrapping_neg();

/// The generation that follows `generation` in a chunk with this floor; `None`: the slot must be retired.
#[inline]
pub fn next_generation(generation: u32, floor: u32) -> Option<u32> {
    generation.max(floor).checked_add(1)
}

#[derive(Debug, Default)]
struct Chunk {
    state: Ordered<ChunkState, { Class::Chunk as u8 }>,
    floor: AtomicU32,
    /// The owner's id plus one; 0: the pool. See [`Pool::owner`].
    owner: AtomicU32,
}

#[derive(Debug, Default)]
struct ChunkState {
    used: [u64; WORDS],
    live: u32,
    /// Whether the chunk is in its owner's partial list.
    listed: bool,
}

impl ChunkState {
    /// Take up to `wanted` free slots in rising order; the chunk's first slot has the index `first`.
    fn take_into(&mut self, first: u32, wanted: usize, out: &mut Vec<u32>) {
        let mut left = wanted;
        for (word, used) in (0u32..).zip(&mut self.used) {
            while left > 0 && *used != u64::MAX {
                let bit = used.trailing_ones();
                *used |= 1 << bit;
                out.push(first + word * 64 + bit);
                left -= 1;
            }
        }
        self.live += (wanted - left) as u32;
    }

    fn give(&mut self, slot: u32) {
        let (word, bit) = ((slot / 64) as usize, slot % 64);
        debug_assert_ne!(self.used[word] & 1 << bit, 0, "slot freed twice");
        self.used[word] &= !(1 << bit);
        self.live -= 1;
    }
}

/// The chunks of one index space.
#[derive(Debug)]
pub struct Pool {
    chunks: SegVec<Chunk>,
    spare: Ordered<Spare, { Class::Pool as u8 }>,
    /// Chunks that slabs own. Changed under `spare`.
    out: AtomicU32,
    capacity: u32,
}

#[derive(Debug, Default)]
struct Spare {
    free: Vec<u32>,
    next: u32,
}

impl Pool {
    /// A pool over `capacity` slots. Slot 0 is never handed out.
    pub fn new(capacity: u32) -> Self {
        Self {
            chunks: SegVec::new(),
            spare: Ordered::new(Spare::default()),
            out: AtomicU32::new(0),
            capacity,
        }
    }

    /// Chunks that are handed out: their memory is committed, or may be at any time. Exact once concurrent
    /// changes are done.
    pub fn chunks_out(&self) -> u32 {
        self.out.load(Ordering::Relaxed)
    }

    fn chunk(&self, id: u32) -> &Chunk {
        // Chunk ids come from `next_chunk`, which has built the segment.
        self.chunks.get(id).expect("a chunk that was handed out")
    }

    /// A free chunk, which from now on belongs to the slab `owner`.
    fn next_chunk(&self, owner: u32, may_grow: &dyn Fn() -> bool) -> Option<u32> {
        let id = {
            let mut spare = self.spare.lock();
            // Asked under the mutex that guards the count, so two threads that ask at once cannot both get
            // the last one.
            if !may_grow() {
                return None;
            }
            let id = match spare.free.pop() {
                Some(id) => id,
                None if spare.next < self.capacity.div_ceil(CHUNK) => {
                    spare.next += 1;
                    spare.next - 1
                }
                None => return None,
            };
            self.out.fetch_add(1, Ordering::Relaxed);
            id
        };
        let chunk = self.chunks.get_or_grow(id)?;
        let mut state = chunk.state.lock();
        *state = ChunkState::default();
        if id == 0 {
            // Index 0 means "none" everywhere.
            state.used[0] = 1;
        }
        // The last chunk may reach beyond the arena.
        for slot in self.capacity.saturating_sub(id * CHUNK).min(CHUNK)..CHUNK {
            state.used[(slot / 64) as usize] |= 1 << (slot % 64);
        }
        drop(state);
        chunk.owner.store(owner + 1, Ordering::Relaxed);
        Some(id)
    }

    /// The id of the slab that owns the chunk of this slot; `None`: no slab does.
    ///
    /// Stable while the slot is in use. The owner changes only when [`Slab::trim`] returns the chunk, which
    /// must be without a used slot, and when the pool hands it out again. A relaxed load sees the owner. It
    /// was stored before the slot was handed out, and the caller's way to the slot (a bucket's lock, its
    /// own allocation) orders that before this load. The next store comes after the slot was freed: the
    /// mutexes of the magazine and of the chunk order this load before it.
    #[inline]
    pub fn owner(&self, index: u32) -> Option<u32> {
        self.chunks.get(index / CHUNK)?.owner.load(Ordering::Relaxed).checked_sub(1)
    }

    /// Give a slot back to the slab that owns its chunk; the caller has made the slot dead. `slab_of` finds
    /// the slab of an id. A slot that no slab owns, or a slab that does not own it, is a bug of the caller:
    /// the slot is then lost rather than handed out twice. True: the slab has ended and the slot's chunk is
    /// empty, so [`Slab::trim`] should be called.
    #[inline]
    pub fn free<'s>(&self, index: u32, slab_of: impl FnOnce(u32) -> &'s Slab) -> bool {
        let Some(owner) = self.owner(index) else {
            debug_assert!(false, "slot {index} belongs to no slab");
            return false;
        };
        let slab = slab_of(owner);
        if slab.id != owner {
            debug_assert!(false, "slot {index} of slab {owner} freed to slab {}", slab.id);
            return false;
        }
        slab.take_back(self, index)
    }

    /// The generation floor of the chunk of `index`.
    pub fn floor(&self, index: u32) -> u32 {
        self.chunks.get(index / CHUNK).map_or(0, |c| c.floor.load(Ordering::Relaxed))
    }
}

/// One user's slots of a [`Pool`].
#[derive(Debug)]
pub struct Slab {
    /// This slab's id within the pool.
    id: u32,
    /// Nobody allocates any more: slots that come back go straight to their chunks.
    ended: AtomicBool,
    magazines: [CachePadded<Magazine>; SHARDS],
    owned: Ordered<Owned, { Class::ChunkList as u8 }>,
}

/// Free slots of the threads of a shard.
#[derive(Debug, Default)]
struct Magazine {
    free: Ordered<Vec<u32>, { Class::Magazine as u8 }>,
    /// Slots handed out here, less those that came back here (it may be below 0). Stored to under `free`.
    out: Tally,
}

#[derive(Debug, Default)]
struct Owned {
    /// All chunks, in arena order.
    all: Vec<u32>,
    /// Chunks with free slots, the lowest last: slots are taken from low chunks, so that high ones become
    /// empty.
    partial: Vec<u32>,
    /// Chunks that hand out no slot, because they are to become empty.
    draining: Vec<u32>,
}

impl Owned {
    /// Record that a chunk has free slots.
    fn list(&mut self, id: u32) {
        let at = self.partial.partition_point(|other| *other > id);
        self.partial.insert(at, id);
    }
}

impl Slab {
    /// A slab that owns nothing yet. No other slab of its pool has this id, which is below `u32::MAX`.
    pub fn new(id: u32) -> Self {
        Self {
            id,
            ended: AtomicBool::new(false),
            magazines: std::array::from_fn(|_| CachePadded::default()),
            owned: Ordered::new(Owned::default()),
        }
    }

    /// A free slot's index, or `None` when the pool is used up.
    #[inline]
    pub fn alloc(&self, pool: &Pool) -> Option<u32> {
        self.alloc_within(pool, &|| true)
    }

    /// [`Slab::alloc`] with a limit. Before it takes another chunk of the pool, `may_grow` is asked, with
    /// mutexes of the pool held (it may load, no more).
    #[inline]
    pub fn alloc_within(&self, pool: &Pool, may_grow: &dyn Fn() -> bool) -> Option<u32> {
        let magazine = &self.magazines[shard()];
        let mut free = magazine.free.lock();
        if free.is_empty() {
            self.refill(pool, &mut free, may_grow);
        }
        let index = free.pop()?;
        magazine.out.add(1);
        Some(index)
    }

    #[cold]
    fn refill(&self, pool: &Pool, magazine: &mut Vec<u32>, may_grow: &dyn Fn() -> bool) {
        let mut owned = self.owned.lock();
        while magazine.len() < MAGAZINE {
            let Some(&id) = owned.partial.last() else {
                // No new chunk for a magazine that has some slots.
                match if magazine.is_empty() { pool.next_chunk(self.id, may_grow) } else { None } {
                    Some(id) => {
                        pool.chunk(id).state.lock().listed = true;
                        let at = owned.all.partition_point(|other| *other < id);
                        owned.all.insert(at, id);
                        owned.list(id);
                        continue;
                    }
                    None => break,
                }
            };
            // All the slots that are wanted, in one hold of the chunk.
            let mut state = pool.chunk(id).state.lock();
            state.take_into(id * CHUNK, MAGAZINE - magazine.len(), magazine);
            if magazine.len() < MAGAZINE {
                state.listed = false;
                owned.partial.pop();
            }
        }
        // Popping from the end hands slots out in rising order: neighbours in time are neighbours in
        // memory.
        magazine.reverse();
    }

    /// See [`Pool::free`].
    #[inline]
    fn take_back(&self, pool: &Pool, index: u32) -> bool {
        let magazine = &self.magazines[shard()];
        let mut free = magazine.free.lock();
        magazine.out.add(ONE_LESS);
        // Under the magazine's mutex. If `end` came first, this load sees it. If not, the trim after it
        // finds the slot in the magazine.
        if self.ended.load(Ordering::Relaxed) {
            drop(free);
            return self.flush(pool, &[index]);
        }
        free.push(index);
        if free.len() >= 2 * MAGAZINE {
            let mut flush = [0; MAGAZINE];
            flush.copy_from_slice(&free[..MAGAZINE]);
            free.drain(..MAGAZINE);
            drop(free);
            self.flush(pool, &flush);
        }
        false
    }

    /// [`Slab::trim`] once nobody allocates any more. Slots that are freed later make their chunk
    /// returnable at once ([`Pool::free`] tells).
    pub fn end(
        &self,
        pool: &Pool,
        highest: impl FnMut(u32, u32) -> Option<u32>,
        give_back: impl FnMut(u32, u32) -> std::io::Result<()>,
    ) -> usize {
        // First: a slot that comes back before this is in a magazine, where the trim finds it.
        self.ended.store(true, Ordering::Relaxed);
        self.trim(pool, highest, give_back)
    }

    /// After [`Slab::end`]: slots are handed out again. No slot is in use, and the caller has the slab alone.
    pub fn begin_anew(&self) {
        // Relaxed: the caller's way to the slab orders this before the next allocation.
        self.ended.store(false, Ordering::Relaxed);
    }

    /// A slot that was handed out is not used, and never comes back.
    #[cold]
    pub fn retire(&self) {
        let magazine = &self.magazines[shard()];
        let _free = magazine.free.lock();
        magazine.out.add(ONE_LESS);
    }

    /// Return slots to their chunks; returns whether one of these is empty now.
    fn flush(&self, pool: &Pool, indices: &[u32]) -> bool {
        let mut owned = self.owned.lock();
        let mut empty = false;
        // Slots that were freed together were most often taken together: one hold of a chunk for all of its
        // slots.
        for slots in indices.chunk_by(|a, b| a / CHUNK == b / CHUNK) {
            let id = slots[0] / CHUNK;
            let mut state = pool.chunk(id).state.lock();
            slots.iter().for_each(|index| state.give(index % CHUNK));
            empty |= state.live == 0;
            if !state.listed {
                state.listed = true;
                owned.list(id);
            }
        }
        empty
    }

    /// Return chunks without a used slot to the pool. For each, `highest(first, last + 1)` returns the
    /// highest generation that the chunk's slots had (`None` keeps the chunk). Then `give_back` of the same
    /// slots returns the memory; an error keeps the chunk. Returns the number of chunks returned. O(chunks
    /// owned).
    pub fn trim(
        &self,
        pool: &Pool,
        mut highest: impl FnMut(u32, u32) -> Option<u32>,
        mut give_back: impl FnMut(u32, u32) -> std::io::Result<()>,
    ) -> usize {
        for magazine in &self.magazines {
            let slots = std::mem::take(&mut *magazine.free.lock());
            self.flush(pool, &slots);
        }
        let mut owned = self.owned.lock();
        let mut given = Vec::new();
        for &id in owned.partial.iter().chain(&owned.draining) {
            let chunk = pool.chunk(id);
            let state = chunk.state.lock();
            // Chunk 0 keeps slot 0 marked as used and stays.
            if state.live == 0
                && id != 0
                && let Some(highest) = highest(id * CHUNK, (id + 1) * CHUNK)
            {
                // Raised before anything goes: giving back may fail half-way, with generations zeroed.
                let floor = chunk.floor.load(Ordering::Relaxed).max(highest);
                chunk.floor.store(floor, Ordering::Relaxed);
                if give_back(id * CHUNK, (id + 1) * CHUNK).is_ok() {
                    // Before the pool has it: the next owner's store comes after this one.
                    chunk.owner.store(0, Ordering::Relaxed);
                    given.push(id);
                }
            }
        }
        given.sort_unstable();
        owned.partial.retain(|id| given.binary_search(id).is_err());
        owned.draining.retain(|id| given.binary_search(id).is_err());
        owned.all.retain(|id| given.binary_search(id).is_err());
        drop(owned);
        let mut spare = pool.spare.lock();
        spare.free.extend(&given);
        pool.out.fetch_sub(given.len() as u32, Ordering::Relaxed);
        given.len()
    }

    /// Hand out no slot of the chunk that begins at `first` for now, so that it becomes empty as its slots
    /// are freed, and [`Slab::trim`] can return it. False: the chunk is not ours, or is drained already.
    pub fn begin_drain(&self, pool: &Pool, first: u32) -> bool {
        let id = first / CHUNK;
        let mut owned = self.owned.lock();
        // Slot 0 is always in use.
        if id == 0 || owned.all.binary_search(&id).is_err() || owned.draining.contains(&id) {
            return false;
        }
        // As if it were listed: a thread that frees a slot need not list it.
        pool.chunk(id).state.lock().listed = true;
        owned.partial.retain(|listed| *listed != id);
        owned.draining.push(id);
        true
    }

    /// The chunk's slots may be handed out again, if it is still here.
    pub fn end_drain(&self, first: u32) {
        let id = first / CHUNK;
        let mut owned = self.owned.lock();
        let Some(at) = owned.draining.iter().position(|draining| *draining == id) else { return };
        owned.draining.swap_remove(at);
        owned.list(id);
    }

    /// The `turn`-th piece of [`SPAN`] slots `(first, last + 1)` of those owned, in arena order and
    /// cyclically: a walk with rising turns visits every slot. `None` if nothing is owned.
    pub fn span(&self, turn: u64) -> Option<(u32, u32)> {
        const SPANS: u64 = (CHUNK / SPAN) as u64;
        let owned = self.owned.lock();
        let chunks = owned.all.len() as u64;
        let id = owned.all[(turn / SPANS).checked_rem(chunks)? as usize];
        let first = id * CHUNK + (turn % SPANS) as u32 * SPAN;
        Some((first.max(1), first + SPAN))
    }

    /// Number of pieces that [`Slab::span`] goes through before it repeats.
    pub fn spans(&self) -> u64 {
        self.chunk_count() as u64 * u64::from(CHUNK / SPAN)
    }

    /// Indices of all chunks owned, in arena order: `(first slot, last slot + 1)`. Slots in them may be
    /// free; an enumeration checks each slot's own generation or count.
    pub fn chunks(&self) -> Vec<(u32, u32)> {
        let ids = self.owned.lock().all.clone();
        ids.into_iter().map(|id| (id * CHUNK, (id + 1) * CHUNK)).collect()
    }

    /// Chunks owned.
    pub fn chunk_count(&self) -> usize {
        self.owned.lock().all.len()
    }

    /// Slots that are handed out; exact once concurrent changes are done. O(shards).
    pub fn in_use(&self) -> u64 {
        let sum = self.magazines.iter().fold(0, |n: u64, magazine| n.wrapping_add(magazine.out.get()));
        // This may see one thread's freeing of a slot without another's taking of it.
        (sum as i64).max(0) as u64
    }
}

/// Rule 18 of slabs.
#[cfg(all(test, loom))]
mod loom_tests {
    use super::*;
    use crate::primitives::Arc;
    use loom::thread::spawn;

    /// Two slabs of one pool of two chunks. The first chunk is never returned.
    struct Shared {
        pool: Pool,
        slabs: [Slab; 2],
    }

    impl Shared {
        fn new() -> Self {
            Self { pool: Pool::new(2 * CHUNK), slabs: [Slab::new(0), Slab::new(1)] }
        }

        fn alloc(&self, id: usize) -> Option<u32> {
            self.slabs[id].alloc(&self.pool)
        }

        fn trim(&self, id: usize) -> usize {
            self.slabs[id].trim(&self.pool, |_, _| Some(0), |_, _| Ok(()))
        }

        fn free(&self, slot: u32) {
            self.pool.free(slot, |owner| &self.slabs[owner as usize]);
        }

        /// Take all slots that a slab can get; they must come from its own chunks only.
        fn all_of(&self, id: usize) -> Vec<u32> {
            let slots: Vec<u32> = std::iter::from_fn(|| self.alloc(id)).collect();
            for slot in &slots {
                assert_eq!(self.pool.owner(*slot), Some(id as u32), "slot {slot} handed out by another slab");
            }
            slots
        }
    }

    /// Rule 18: a slot that one thread frees, while its slab is trimmed and another slab allocates, goes
    /// back to its own slab. Planted bug: rule18-freed-to-the-slab-at-hand.
    #[test]
    fn loom_rule18_a_slot_goes_back_to_the_owner_of_its_chunk() {
        loom::model(|| {
            let s = Arc::new(Shared::new());
            // The second slab owns the first chunk, with no slot free; the first slab owns the other one.
            let first: Vec<u32> = (1..CHUNK).map(|_| s.alloc(1).unwrap()).collect();
            let slot = s.alloc(0).unwrap();
            assert_eq!((slot / CHUNK, s.alloc(1)), (1, None));
            let t = s.clone();
            let kills = spawn(move || t.free(slot));
            let trimmed = s.trim(0);
            let taken = s.alloc(1);
            kills.join().unwrap();
            assert_eq!(taken.is_some(), trimmed == 1, "a chunk in use was returned");
            if let Some(taken) = taken {
                assert_eq!(s.pool.owner(taken), Some(1));
            }
            let mut slots = s.all_of(1);
            slots.extend(s.all_of(0));
            slots.extend(first.into_iter().chain(taken));
            slots.sort_unstable();
            slots.dedup();
            assert_eq!(slots.len() as u32, 2 * CHUNK - 1, "a slot was lost or handed out twice");
        });
    }

    /// Rule 18: a chunk that is returned while another slab looks for one belongs to the slab that gets it.
    /// Planted bug: rule18-owner-cleared-after-the-pool-has-it.
    #[test]
    fn loom_rule18_a_chunk_has_one_owner() {
        loom::model(|| {
            let s = Arc::new(Shared::new());
            assert!((1..CHUNK).all(|_| s.alloc(1).is_some()));
            let slot = s.alloc(0).unwrap();
            s.free(slot);
            let t = s.clone();
            let taken = spawn(move || t.alloc(1));
            s.trim(0);
            if let Some(taken) = taken.join().unwrap() {
                assert_eq!((taken / CHUNK, s.pool.owner(taken)), (1, Some(1)));
                s.free(taken);
                assert_eq!(s.slabs[1].in_use(), u64::from(CHUNK - 1));
            }
        });
    }

    /// Rule 18: a slot that comes back to a slab during its end does not keep its chunk. Planted bugs:
    /// rule18-the-end-is-not-seen, rule18-the-end-comes-after-its-trim.
    #[test]
    fn loom_rule18_no_chunk_stays_with_a_slab_that_has_ended() {
        loom::model(|| {
            let s = Arc::new(Shared::new());
            assert!((1..CHUNK).all(|_| s.alloc(1).is_some()));
            let slot = s.alloc(0).unwrap();
            let t = s.clone();
            let kills = spawn(move || {
                if t.pool.free(slot, |owner| &t.slabs[owner as usize]) {
                    t.trim(0);
                }
            });
            s.slabs[0].end(&s.pool, |_, _| Some(0), |_, _| Ok(()));
            kills.join().unwrap();
            assert_eq!((s.slabs[0].chunk_count(), s.pool.chunks_out()), (0, 1));
        });
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn slots_are_handed_out_once_and_zero_never() {
        let pool = Pool::new(4 * CHUNK);
        let slab = Slab::new(0);
        let mut seen = HashSet::new();
        while let Some(i) = slab.alloc(&pool) {
            assert_ne!(i, 0);
            assert!(seen.insert(i));
        }
        assert_eq!(seen.len() as u32, 4 * CHUNK - 1);
        for &i in &seen {
            pool.free(i, |_| &slab);
        }
        let again: HashSet<u32> = std::iter::from_fn(|| slab.alloc(&pool)).collect();
        assert_eq!(again, seen);
    }

    #[test]
    fn chunks_belong_to_one_slab_and_go_back_whole() {
        let pool = Pool::new(4 * CHUNK);
        let (a, b) = (Slab::new(0), Slab::new(1));
        let first: Vec<u32> = (0..CHUNK + 10).map(|_| a.alloc(&pool).unwrap()).collect();
        let other = b.alloc(&pool).unwrap();
        assert!(first.iter().all(|i| i / CHUNK != other / CHUNK));
        for i in first {
            pool.free(i, |_| &a);
        }
        let mut retired = Vec::new();
        assert_eq!(
            a.trim(
                &pool,
                |_, _| Some(41),
                |from, to| {
                    retired.push((from, to));
                    Ok(())
                }
            ),
            1
        );
        assert_eq!(retired, [(CHUNK, 2 * CHUNK)]);
        assert_eq!(pool.floor(CHUNK), 41);
    }

    /// Rule 18: a slot is freed by itself. A wrong slab for it, or a second free, corrupts nothing.
    #[test]
    fn rule18_a_slot_is_freed_to_the_owner_of_its_chunk_only() {
        let pool = Pool::new(4 * CHUNK);
        let (a, b) = (Slab::new(0), Slab::new(1));
        let (of_a, of_b) = (a.alloc(&pool).unwrap(), b.alloc(&pool).unwrap());
        assert_eq!((pool.owner(of_a), pool.owner(of_b), pool.owner(3 * CHUNK)), (Some(0), Some(1), None));
        let refused = |slot: u32, slab: &Slab| {
            let free = std::panic::AssertUnwindSafe(|| pool.free(slot, |_| slab));
            std::panic::catch_unwind(free).is_err() || !cfg!(debug_assertions)
        };
        assert!(refused(of_b, &a) && refused(of_a, &b) && refused(3 * CHUNK, &a) && refused(u32::MAX, &b));
        assert_eq!((a.in_use(), b.in_use()), (1, 1));
        pool.free(of_b, |owner| [&a, &b][owner as usize]);
        assert_eq!((a.in_use(), b.in_use()), (1, 0));
        assert_eq!(b.trim(&pool, |_, _| Some(1), |_, _| Ok(())), 1);
        assert_eq!(pool.owner(of_b), None);
        assert_eq!(a.chunk_count(), 1);
    }

    /// Rule 18: a slot that is freed to an ended slab goes to its chunk at once, and the last slot's free
    /// returns true.
    #[test]
    fn rule18_a_slab_that_has_ended_keeps_nothing() {
        let pool = Pool::new(4 * CHUNK);
        let (keep, slab) = (Slab::new(0), Slab::new(1));
        let _first = keep.alloc(&pool).unwrap();
        let slots = [slab.alloc(&pool).unwrap(), slab.alloc(&pool).unwrap()];
        let trim = || slab.trim(&pool, |_, _| Some(1), |_, _| Ok(()));
        assert_eq!(slab.end(&pool, |_, _| Some(1), |_, _| Ok(())), 0);
        assert!(!pool.free(slots[0], |_| &slab));
        assert!(pool.free(slots[1], |_| &slab));
        assert_eq!((trim(), slab.chunk_count(), pool.chunks_out()), (1, 0, 1));
    }

    /// Rule 1: memory that could be given back only in part has lost generations all the same.
    #[test]
    fn rule1_a_floor_rises_even_if_giving_back_fails() {
        let pool = Pool::new(4 * CHUNK);
        let a = Slab::new(0);
        let slots: Vec<u32> = (0..CHUNK + 10).map(|_| a.alloc(&pool).unwrap()).collect();
        for slot in slots {
            pool.free(slot, |_| &a);
        }
        let refused = |_, _| Err(std::io::Error::from_raw_os_error(libc::EAGAIN));
        assert_eq!(a.trim(&pool, |_, _| None, refused), 0);
        assert_eq!(pool.floor(CHUNK), 0);
        assert_eq!(a.trim(&pool, |_, _| Some(7), refused), 0);
        assert_eq!(pool.floor(CHUNK), 7);
    }

    /// Rule 1: generations only rise, also over a chunk that was given back, and never wrap.
    #[test]
    fn rule1_a_generation_restarts_above_all_that_the_chunk_had() {
        assert_eq!(next_generation(0, 0), Some(1));
        assert_eq!(next_generation(0, 41), Some(42));
        assert_eq!(next_generation(50, 41), Some(51));
        assert_eq!(next_generation(u32::MAX, 0), None);
    }
}
