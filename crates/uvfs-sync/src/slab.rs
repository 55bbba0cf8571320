//! Which slots of an arena are in use.
//!
//! A [`Pool`] hands out chunks of [`CHUNK`] slots; a [`Slab`] is one user of the pool (a
//! superblock) and owns whole chunks, so that everything of one superblock can be enumerated in
//! arena order and be given back chunk by chunk. Allocation and freeing go through a magazine per
//! thread shard (one uncontended mutex), which is filled from and flushed to the chunks' bitmaps.
//!
//! Lives: a slot's life is kept in the slot itself. A chunk whose memory was given back reads as
//! life 0, so the chunk remembers a *floor*, the highest life it ever had; a new life is one above
//! the larger of the two ([`next_life`]). A slot whose life would wrap is never handed out again.
//!
//! Lock order: magazine, then partial list, then chunk, then pool. Nothing else is locked inside.

use crossbeam_utils::CachePadded;

use crate::primitives::{AtomicU32, Mutex, Ordering, SHARDS, Tally, shard};
use crate::segvec::SegVec;

/// Slots in a chunk.
pub const CHUNK: u32 = if cfg!(loom) { 64 } else { 1024 };
/// Slots that are looked at together by who walks through a slab ([`Slab::span`]).
pub const SPAN: u32 = 64;
const WORDS: usize = CHUNK as usize / 64;
const MAGAZINE: usize = if cfg!(loom) { 8 } else { 32 };
/// To add to a count that wraps.
const ONE_LESS: u64 = 1u64.wrapping_neg();

/// The life that follows `life` in a chunk with this floor; `None`: the slot must be retired.
#[inline]
pub fn next_life(life: u32, floor: u32) -> Option<u32> {
    life.max(floor).checked_add(1)
}

#[derive(Debug, Default)]
struct Chunk {
    state: Mutex<ChunkState>,
    floor: AtomicU32,
}

#[derive(Debug, Default)]
struct ChunkState {
    used: [u64; WORDS],
    live: u32,
    /// Whether the chunk stands in its owner's partial list.
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
    spare: Mutex<Spare>,
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
        Self { chunks: SegVec::new(), spare: Mutex::new(Spare::default()), out: AtomicU32::new(0), capacity }
    }

    /// Chunks that are handed out: their memory is, or may at any time be, committed. Exact once who
    /// is changing it is done.
    pub fn chunks_out(&self) -> u32 {
        self.out.load(Ordering::Relaxed)
    }

    fn chunk(&self, id: u32) -> &Chunk {
        // Chunk ids come from `next_chunk`, which has built the segment.
        self.chunks.get(id).expect("a chunk that was handed out")
    }

    fn next_chunk(&self, may_grow: &dyn Fn() -> bool) -> Option<u32> {
        let id = {
            let mut spare = self.spare.lock();
            // Asked under the mutex, which counts: two who ask at once cannot both get the last one.
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
        Some(id)
    }

    /// The life floor of the chunk that `index` lies in.
    pub fn floor(&self, index: u32) -> u32 {
        self.chunks.get(index / CHUNK).map_or(0, |c| c.floor.load(Ordering::Relaxed))
    }
}

/// One user's slots of a [`Pool`].
#[derive(Debug)]
pub struct Slab {
    magazines: [CachePadded<Magazine>; SHARDS],
    owned: Mutex<Owned>,
}

/// Free slots of the threads of a shard.
#[derive(Debug, Default)]
struct Magazine {
    free: Mutex<Vec<u32>>,
    /// Slots that were handed out here less those that came back here (it may be below 0). Stored to under `free`.
    out: Tally,
}

#[derive(Debug, Default)]
struct Owned {
    /// All chunks, in arena order.
    all: Vec<u32>,
    /// Chunks with free slots, the lowest last: slots are taken from low chunks, so that high ones become empty.
    partial: Vec<u32>,
    /// Chunks from which no slot is handed out, because they shall become empty.
    draining: Vec<u32>,
}

impl Owned {
    /// A chunk has free slots.
    fn list(&mut self, id: u32) {
        let at = self.partial.partition_point(|other| *other > id);
        self.partial.insert(at, id);
    }
}

impl Default for Slab {
    fn default() -> Self {
        Self::new()
    }
}

impl Slab {
    /// A slab that owns nothing yet.
    pub fn new() -> Self {
        Self {
            magazines: std::array::from_fn(|_| CachePadded::default()),
            owned: Mutex::new(Owned::default()),
        }
    }

    /// A free slot's index, or `None` when the pool is used up.
    #[inline]
    pub fn alloc(&self, pool: &Pool) -> Option<u32> {
        self.alloc_within(pool, &|| true)
    }

    /// [`Slab::alloc`] by who has a limit: where it takes another chunk of the pool, `may_grow` is
    /// asked first, with mutexes of the pool held (it may load, no more).
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
                // Not one more for a magazine that has some.
                match if magazine.is_empty() { pool.next_chunk(may_grow) } else { None } {
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
            // All that is wanted in one hold of the chunk.
            let mut state = pool.chunk(id).state.lock();
            state.take_into(id * CHUNK, MAGAZINE - magazine.len(), magazine);
            if magazine.len() < MAGAZINE {
                state.listed = false;
                owned.partial.pop();
            }
        }
        // Popping from the end hands slots out in rising order: neighbours in time are
        // neighbours in memory.
        magazine.reverse();
    }

    /// Give a slot back. The caller has made it dead.
    pub fn free(&self, pool: &Pool, index: u32) {
        let magazine = &self.magazines[shard()];
        let mut free = magazine.free.lock();
        magazine.out.add(ONE_LESS);
        free.push(index);
        if free.len() >= 2 * MAGAZINE {
            let mut flush = [0; MAGAZINE];
            flush.copy_from_slice(&free[..MAGAZINE]);
            free.drain(..MAGAZINE);
            drop(free);
            self.flush(pool, &flush);
        }
    }

    /// A slot that was handed out is not used, and never comes back.
    #[cold]
    pub fn retire(&self) {
        let magazine = &self.magazines[shard()];
        let _free = magazine.free.lock();
        magazine.out.add(ONE_LESS);
    }

    fn flush(&self, pool: &Pool, indices: &[u32]) {
        let mut owned = self.owned.lock();
        // What was freed together was most often taken together: one hold of a chunk for all of its slots.
        for slots in indices.chunk_by(|a, b| a / CHUNK == b / CHUNK) {
            let id = slots[0] / CHUNK;
            let mut state = pool.chunk(id).state.lock();
            slots.iter().for_each(|index| state.give(index % CHUNK));
            if !state.listed {
                state.listed = true;
                owned.list(id);
            }
        }
    }

    /// Return chunks without a used slot to the pool. For each, `highest(first, last + 1)` says the
    /// highest life that the chunk's slots had (`None` keeps the chunk), and then `give_back` of the
    /// same slots gives the memory back; an error keeps the chunk. Returns the number of chunks
    /// given back. O(chunks owned).
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
                // Raised before anything goes: giving back may fail half-way, with lives zeroed.
                let floor = chunk.floor.load(Ordering::Relaxed).max(highest);
                chunk.floor.store(floor, Ordering::Relaxed);
                if give_back(id * CHUNK, (id + 1) * CHUNK).is_ok() {
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
    /// are freed, and [`Slab::trim`] can give it back. False: it is not ours, or that is so already.
    pub fn begin_drain(&self, pool: &Pool, first: u32) -> bool {
        let id = first / CHUNK;
        let mut owned = self.owned.lock();
        // Slot 0 is always in use.
        if id == 0 || owned.all.binary_search(&id).is_err() || owned.draining.contains(&id) {
            return false;
        }
        // As if it were listed: who frees a slot need not list it.
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
    /// around: who walks on with rising turns comes by every slot. `None` where nothing is owned.
    pub fn span(&self, turn: u64) -> Option<(u32, u32)> {
        const SPANS: u64 = (CHUNK / SPAN) as u64;
        let owned = self.owned.lock();
        let chunks = owned.all.len() as u64;
        let id = owned.all[(turn / SPANS).checked_rem(chunks)? as usize];
        let first = id * CHUNK + (turn % SPANS) as u32 * SPAN;
        Some((first.max(1), first + SPAN))
    }

    /// Pieces that [`Slab::span`] goes through before it comes around.
    pub fn spans(&self) -> u64 {
        self.chunk_count() as u64 * u64::from(CHUNK / SPAN)
    }

    /// Indices of all chunks owned, in arena order: `(first slot, last slot + 1)`. Slots in them
    /// may be free; who enumerates looks at each slot's own life or count.
    pub fn chunks(&self) -> Vec<(u32, u32)> {
        let ids = self.owned.lock().all.clone();
        ids.into_iter().map(|id| (id * CHUNK, (id + 1) * CHUNK)).collect()
    }

    /// Whether the chunk of this slot is owned. Stays so while the slot is in use.
    pub fn owns(&self, index: u32) -> bool {
        self.owned.lock().all.binary_search(&(index / CHUNK)).is_ok()
    }

    /// Chunks owned.
    pub fn chunk_count(&self) -> usize {
        self.owned.lock().all.len()
    }

    /// Slots that are handed out; exact once who takes and frees them is done. O(shards).
    pub fn in_use(&self) -> u64 {
        let sum = self.magazines.iter().fold(0, |n: u64, magazine| n.wrapping_add(magazine.out.get()));
        // One thread's freeing of a slot may be seen without another's taking of it.
        (sum as i64).max(0) as u64
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn slots_are_handed_out_once_and_zero_never() {
        let pool = Pool::new(4 * CHUNK);
        let slab = Slab::new();
        let mut seen = HashSet::new();
        while let Some(i) = slab.alloc(&pool) {
            assert_ne!(i, 0);
            assert!(seen.insert(i));
        }
        assert_eq!(seen.len() as u32, 4 * CHUNK - 1);
        for &i in &seen {
            slab.free(&pool, i);
        }
        let again: HashSet<u32> = std::iter::from_fn(|| slab.alloc(&pool)).collect();
        assert_eq!(again, seen);
    }

    #[test]
    fn chunks_belong_to_one_slab_and_go_back_whole() {
        let pool = Pool::new(4 * CHUNK);
        let (a, b) = (Slab::new(), Slab::new());
        let first: Vec<u32> = (0..CHUNK + 10).map(|_| a.alloc(&pool).unwrap()).collect();
        let other = b.alloc(&pool).unwrap();
        assert!(first.iter().all(|i| i / CHUNK != other / CHUNK));
        for i in first {
            a.free(&pool, i);
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

    /// Rule 1: memory that could be given back in part only has lost lives all the same.
    #[test]
    fn rule1_a_floor_rises_even_if_giving_back_fails() {
        let pool = Pool::new(4 * CHUNK);
        let a = Slab::new();
        let slots: Vec<u32> = (0..CHUNK + 10).map(|_| a.alloc(&pool).unwrap()).collect();
        slots.into_iter().for_each(|i| a.free(&pool, i));
        let refused = |_, _| Err(std::io::Error::from_raw_os_error(libc::EAGAIN));
        assert_eq!(a.trim(&pool, |_, _| None, refused), 0);
        assert_eq!(pool.floor(CHUNK), 0);
        assert_eq!(a.trim(&pool, |_, _| Some(7), refused), 0);
        assert_eq!(pool.floor(CHUNK), 7);
    }

    /// Rule 1: lives only rise, over a chunk that was given back too, and never wrap.
    #[test]
    fn rule1_a_life_restarts_above_every_life_the_chunk_had() {
        assert_eq!(next_life(0, 0), Some(1));
        assert_eq!(next_life(0, 41), Some(42));
        assert_eq!(next_life(50, 41), Some(51));
        assert_eq!(next_life(u32::MAX, 0), None);
    }
}
