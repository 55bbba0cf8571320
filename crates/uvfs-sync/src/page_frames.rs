//! Frames of file data (and of index nodes) as type-stable memory.
//!
//! A frame is an array of atomic words that is only ever reused as a frame of the same arena. Its
//! *generation* stands in separate memory that is never given back, and moves when the frame is freed. So
//! the holder of a [`FrameId`] (index and generation) can tell afterwards whether its copy belonged to that
//! generation. A reader needs no lock and no reference, and never sees a torn word.
//!
//! Protection: a live frame belongs to the thread or object that allocated it. The owner excludes other writers by a
//! lock of its own (partial words are load-and-store); nothing excludes readers. Each shard has a magazine of free
//! frames under its mutex. The other free frames are in `chunks`, under the one mutex behind them (order: magazine,
//! chunks).
//!
//! The race, and its outcomes: a reader copies words while the frame is freed, recycled and written for
//! another owner. Every store into a frame follows a release fence *in the storing thread* that comes after
//! the generation moved. If the reader saw one of those stores, its acquire fence makes it see the moved
//! generation, and it drops the copy. If it saw none, it has the old owner's bytes.
//!
//! Cost: a hit is the words themselves and one load; allocation and freeing an uncontended mutex.

use std::io;

use crossbeam_utils::CachePadded;

use crate::arena::{Arena, Slot};
use crate::lock_order::{Class, Ordered};
use crate::primitives::{AtomicU32, AtomicU64, Ordering, SHARDS, fence, shard};
use crate::sys::PAGE;

/// Words of a page of file data. Two under loom, which counts every access.
pub const PAGE_WORDS: usize = if cfg!(loom) { 2 } else { 512 };
/// Bytes of a page of file data.
pub const PAGE_SIZE: usize = PAGE_WORDS * 8;
/// Pages of file data.
pub type Pages = Frames<PAGE_WORDS>;

/// Bits of an index: an arena has less than 2^30 frames (4 TiB of pages).
pub const INDEX_BITS: u32 = 30;
/// Bits of a generation.
pub const GENERATION_BITS: u32 = 30;

const MAX_SLOTS: u32 = 1 << INDEX_BITS;
const LAST_GENERATION: u32 = (1 << GENERATION_BITS) - 1;

/// Frames that are taken from the system, and given back to it, together.
const CHUNK: u32 = if cfg!(loom) { 4 } else { 64 };
const WHOLE: u64 = u64::MAX >> (64 - CHUNK);
/// Free frames that a shard keeps for itself.
const MAGAZINE: usize = if cfg!(loom) { 4 } else { 32 };
/// Frames beyond the guaranteed capacity: frame 0, and the contents of other shards' magazines.
const SPARE: u32 = 1 + (SHARDS * MAGAZINE) as u32;
/// Wholly free chunks that are kept, so that a program which writes and removes one file repeatedly does
/// not fault its pages in each time.
const IDLE_CHUNKS: usize = 16;
/// In a magazine: the frame was not touched since the system provided its memory.
const CLEAN: u32 = 1 << 31;

/// A frame in one generation. Generations count from 1: all-zero bits are no frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct FrameId {
    index: u32,
    generation: u32,
}

impl FrameId {
    /// Generation above index, in the low 60 bits; never 0.
    #[inline]
    pub const fn to_bits(self) -> u64 {
        (self.generation as u64) << INDEX_BITS | self.index as u64
    }

    /// The inverse of [`FrameId::to_bits`]; higher bits are ignored.
    #[inline]
    pub const fn from_bits(bits: u64) -> Self {
        Self {
            index: bits as u32 & (MAX_SLOTS - 1),
            generation: (bits >> INDEX_BITS) as u32 & LAST_GENERATION,
        }
    }
}

/// A frame by its address, for repeated looks ([`Frames::load_at`]). In any arena but its own it counts as
/// gone.
#[derive(Clone, Copy, Debug)]
pub struct FrameAt {
    address: usize,
    /// How often the frame had been freed.
    freed: u32,
}

impl FrameAt {
    /// In no arena.
    pub const NOWHERE: Self = Self { address: usize::MAX, freed: 0 };
}

#[derive(Debug)]
#[repr(transparent)]
struct Frame<const W: usize>([AtomicU64; W]);

// SAFETY: an array of atomics: valid when all-zero, no drop, aligned to 8.
unsafe impl<const W: usize> Slot for Frame<W> {
    #[cfg(loom)]
    fn zero() -> Self {
        Self(std::array::from_fn(|_| AtomicU64::new(0)))
    }
}

/// How often a frame was freed; its present generation is one more.
#[derive(Debug)]
#[repr(transparent)]
struct Freed(AtomicU32);

// SAFETY: one atomic: valid when all-zero, no drop, aligned to 4.
unsafe impl Slot for Freed {
    #[cfg(loom)]
    fn zero() -> Self {
        Self(AtomicU32::new(0))
    }
}

/// State of [`CHUNK`] neighbouring frames; one bit per frame, or per page of the system.
#[derive(Clone, Copy, Debug, Default)]
struct Chunk {
    /// Free, and in no magazine.
    free: u64,
    /// Out of generations: never handed out again.
    retired: u64,
    /// Frames handed out since the memory came from the system: their words may not be zero.
    dirty: u64,
    /// Pages of the system that these frames have touched.
    touched: u64,
    /// The chunk is in [`Chunks::partial`].
    listed: bool,
}

impl Chunk {
    fn is_idle(&self) -> bool {
        self.free | self.retired == WHOLE && self.touched != 0
    }
}

#[derive(Debug, Default)]
struct Chunks {
    all: Vec<Chunk>,
    /// Chunks that have free frames, and some that had.
    partial: Vec<u32>,
    /// Number of chunks that are wholly free but still hold memory.
    idle: usize,
}

#[derive(Debug, Default)]
struct Magazine {
    slots: [u32; MAGAZINE],
    len: usize,
}

impl Magazine {
    fn pop(&mut self) -> Option<u32> {
        self.len = self.len.checked_sub(1)?;
        Some(self.slots[self.len])
    }

    fn push(&mut self, slot: u32) {
        self.slots[self.len] = slot;
        self.len += 1;
    }
}

/// An arena of frames of `W` words.
#[derive(Debug)]
pub struct Frames<const W: usize> {
    frames: Arena<Frame<W>>,
    generations: Arena<Freed>,
    slots: u32,
    magazines: [CachePadded<Ordered<Magazine, { Class::Magazine as u8 }>>; SHARDS],
    chunks: Ordered<Chunks, { Class::ChunkList as u8 }>,
    /// Pages of the system; changed under `chunks`, read without.
    committed: AtomicU64,
    /// How often giving memory back failed.
    kept: AtomicU64,
}

impl<const W: usize> Frames<W> {
    /// Bytes of a frame.
    pub const SIZE: usize = W * 8;
    /// Chunks are whole pages of the system, or giving one back would take a neighbour's memory.
    const WHOLE_PAGES: () = assert!(cfg!(loom) || (W * 8 * CHUNK as usize).is_multiple_of(PAGE) && W <= 512);

    /// Address space for `frames` frames, or for as many as fit: on ENOMEM half of it is tried, and so on.
    /// Nothing is committed. Some more is reserved than requested: enough that a shard need not look into
    /// others' magazines, and a 64th for frames whose generations are used up.
    ///
    /// # Errors
    /// ENOMEM if not even a thousand frames fit.
    pub fn reserve(frames: u32) -> io::Result<Self> {
        const { Self::WHOLE_PAGES };
        let wanted = frames.saturating_add(frames / 64).saturating_add(SPARE).min(MAX_SLOTS - CHUNK);
        let wanted = wanted.next_multiple_of(CHUNK);
        // Pages of data are what the memory is meant for.
        let arena = if Self::SIZE == PAGE { Arena::reserve_large(wanted)? } else { Arena::reserve(wanted)? };
        let generations = Arena::reserve(arena.capacity())?;
        let slots = arena.capacity().min(generations.capacity());
        Ok(Self {
            frames: arena,
            generations,
            slots: slots - slots % CHUNK,
            magazines: std::array::from_fn(|_| CachePadded::new(Ordered::new(Magazine::default()))),
            chunks: Ordered::new(Chunks::default()),
            committed: AtomicU64::new(0),
            kept: AtomicU64::new(0),
        })
    }

    /// The number of frames that can certainly be in use at a time; a few more may be.
    pub fn capacity(&self) -> u32 {
        self.slots.saturating_sub(SPARE)
    }

    /// Bytes of memory that were touched and not given back. Constant time.
    pub fn committed_bytes(&self) -> u64 {
        self.committed.load(Ordering::Relaxed) * PAGE as u64
    }

    /// How often the system refused to take memory back.
    pub fn give_back_failures(&self) -> u64 {
        self.kept.load(Ordering::Relaxed)
    }

    /// A frame that holds `bytes` at `offset` and zeroes elsewhere; `None` if there is no room. The caller
    /// publishes it with a release store.
    pub fn allocate(&self, offset: usize, bytes: &[u8]) -> Option<FrameId> {
        let (index, clean) = self.take()?;
        // Relaxed: the generation moved before the frame went into the magazine that it came out of.
        let generation = self.generations.get(index).0.load(Ordering::Relaxed) + 1;
        if clean {
            self.touch(index);
        } else if bytes.len() < Self::SIZE {
            self.store_fence();
            for word in &self.frames.get(index).0 {
                word.store(0, Ordering::Relaxed);
            }
        }
        let id = FrameId { index, generation };
        self.write(id, offset, bytes);
        Some(id)
    }

    /// Give a frame back. A thread that still reads it finds out by its generation. Freeing a frame that
    /// the caller no longer owns does nothing.
    pub fn free(&self, id: FrameId) {
        let moved = self.generations.get(id.index).0.compare_exchange(
            id.generation - 1,
            id.generation,
            // Readers do not need release here (they meet the `store_fence` of the next owner). The
            // magazine's mutex carries the moved generation to that owner.
            Ordering::Relaxed,
            Ordering::Relaxed,
        );
        debug_assert!(moved.is_ok(), "a frame was freed twice");
        if moved.is_err() {
            return;
        }
        if id.generation == LAST_GENERATION {
            return self.give_back(&[id.index], true);
        }
        let mut magazine = self.magazines[shard()].lock();
        if magazine.len == MAGAZINE {
            // The oldest half goes, because the frames freed last are in the processor's cache. The
            // magazine stays locked meanwhile, so that a frame is always either in a magazine or in its
            // chunk.
            self.give_back(&magazine.slots[..MAGAZINE / 2], false);
            magazine.slots.copy_within(MAGAZINE / 2.., 0);
            magazine.len = MAGAZINE / 2;
        }
        magazine.push(id.index);
    }

    /// Copy bytes out. `false`: the frame was recycled meanwhile, and the contents of `out` mean nothing.
    #[inline]
    #[must_use]
    pub fn read(&self, id: FrameId, offset: usize, out: &mut [u8]) -> bool {
        copy_out(&self.frames.get(id.index).0, offset, out);
        // Pairs with `store_fence`: see the module's head.
        fence(Ordering::Acquire);
        self.generations.get(id.index).0.load(Ordering::Relaxed) == id.generation - 1
    }

    /// Copy bytes in. The caller owns the frame and excludes other writers.
    #[inline]
    pub fn write(&self, id: FrameId, offset: usize, bytes: &[u8]) {
        self.store_fence();
        copy_in(&self.frames.get(id.index).0, offset, bytes);
    }

    /// Zero `len` bytes. The caller owns the frame and excludes other writers.
    pub fn zero(&self, id: FrameId, offset: usize, len: usize) {
        self.store_fence();
        let zeroes = [0; 64];
        let mut done = 0;
        while done < len {
            let n = (len - done).min(zeroes.len());
            copy_in(&self.frames.get(id.index).0, offset + done, &zeroes[..n]);
            done += n;
        }
    }

    /// One word, of a frame that may be recycled at any time: `None` if it was.
    #[inline]
    pub fn load(&self, id: FrameId, word: usize) -> Option<u64> {
        // Acquire: the object that the word leads to was filled before the word was stored. If the word was
        // stored (with release) for the frame's next owner, the moved generation is seen below.
        let value = self.frames.get(id.index).0[word].load(Ordering::Acquire);
        (self.generations.get(id.index).0.load(Ordering::Relaxed) == id.generation - 1).then_some(value)
    }

    /// The address of a frame.
    #[inline]
    pub fn at(&self, id: FrameId) -> FrameAt {
        FrameAt { address: self.frames.address(id.index), freed: id.generation.wrapping_sub(1) }
    }

    /// As [`Frames::load`], by the frame's address.
    #[inline(always)]
    pub fn load_at(&self, at: FrameAt, word: usize) -> Option<u64> {
        let (frame, index) = self.frames.at(at.address)?;
        // Acquire: as in `load`.
        let value = frame.0[word].load(Ordering::Acquire);
        (self.generations.get(index).0.load(Ordering::Relaxed) == at.freed).then_some(value)
    }

    /// One word of a frame that the caller owns.
    #[inline]
    pub fn own_word(&self, id: FrameId, word: usize) -> u64 {
        self.frames.get(id.index).0[word].load(Ordering::Relaxed)
    }

    /// Publish one word of a frame that the caller owns.
    #[inline]
    pub fn store(&self, id: FrameId, word: usize, value: u64) {
        self.frames.get(id.index).0[word].store(value, Ordering::Release);
    }

    /// Comes before every relaxed store into a frame, in the storing thread. The generation of the frame's
    /// last owner moved before, so a reader that sees the store sees the moved generation.
    #[inline]
    fn store_fence(&self) {
        fence(Ordering::Release);
    }

    /// A free frame, and whether its words are zero because they were never touched.
    fn take(&self) -> Option<(u32, bool)> {
        let mut magazine = self.magazines[shard()].lock();
        if magazine.len == 0 {
            self.refill(&mut magazine);
        }
        magazine.pop().map(|slot| (slot & !CLEAN, slot & CLEAN != 0))
    }

    /// Fill half of an empty magazine from one chunk.
    fn refill(&self, magazine: &mut Magazine) {
        let mut chunks = self.chunks.lock();
        let Some(number) = self.chunk_with_room(&mut chunks) else { return };
        let chunk = &mut chunks.all[number as usize];
        let was_idle = chunk.is_idle();
        for _ in 0..MAGAZINE / 2 {
            let bit = chunk.free.trailing_zeros();
            if bit == u64::BITS {
                break;
            }
            chunk.free &= chunk.free - 1;
            let clean = if chunk.dirty >> bit & 1 == 0 { CLEAN } else { 0 };
            magazine.push((number * CHUNK + bit) | clean);
        }
        chunks.idle -= usize::from(was_idle);
    }

    fn chunk_with_room(&self, chunks: &mut Chunks) -> Option<u32> {
        while let Some(&number) = chunks.partial.last() {
            if chunks.all[number as usize].free != 0 {
                return Some(number);
            }
            chunks.all[number as usize].listed = false;
            chunks.partial.pop();
        }
        let number = chunks.all.len() as u32;
        if number >= self.slots / CHUNK {
            return None;
        }
        // Frame 0 is never an object.
        let retired = u64::from(number == 0);
        chunks.all.push(Chunk { free: WHOLE & !retired, retired, listed: true, ..Chunk::default() });
        chunks.partial.push(number);
        Some(number)
    }

    /// Account for the memory of a frame that is about to be used for the first time.
    fn touch(&self, index: u32) {
        let at = (index % CHUNK) as usize;
        let (first, last) = (at * Self::SIZE / PAGE, ((at + 1) * Self::SIZE - 1) / PAGE);
        let pages = u64::MAX >> (63 - (last - first)) << first;
        let mut chunks = self.chunks.lock();
        let chunk = &mut chunks.all[(index / CHUNK) as usize];
        let new = (pages & !chunk.touched).count_ones();
        chunk.touched |= pages;
        chunk.dirty |= 1 << at;
        self.committed.fetch_add(u64::from(new), Ordering::Relaxed);
    }

    /// Move frames from a magazine to their chunks (or, `retired`, out of use for good).
    fn give_back(&self, slots: &[u32], retired: bool) {
        let mut chunks = self.chunks.lock();
        for &slot in slots {
            let index = slot & !CLEAN;
            let number = index / CHUNK;
            let chunk = &mut chunks.all[number as usize];
            if retired {
                chunk.retired |= 1 << (index % CHUNK);
            } else {
                chunk.free |= 1 << (index % CHUNK);
            }
            let idle = chunk.is_idle();
            if !chunk.listed {
                chunk.listed = true;
                chunks.partial.push(number);
            }
            if idle {
                chunks.idle += 1;
                if chunks.idle > IDLE_CHUNKS {
                    self.return_to_system(&mut chunks, number);
                }
            }
        }
    }

    /// Return a wholly free chunk's memory. The mutex is held meanwhile, so no thread takes its frames, and
    /// none fails for lack of them.
    fn return_to_system(&self, chunks: &mut Chunks, number: u32) {
        if self.frames.give_back(number * CHUNK, (number + 1) * CHUNK).is_err() {
            // Locked memory, for example. It stays counted, and its frames stay dirty.
            self.kept.fetch_add(1, Ordering::Relaxed);
            return;
        }
        let chunk = &mut chunks.all[number as usize];
        self.committed.fetch_sub(u64::from(chunk.touched.count_ones()), Ordering::Relaxed);
        chunk.touched = 0;
        chunk.dirty = 0;
        chunks.idle -= 1;
    }
}

/// Copy out of words, in memory order; relaxed, one load a word.
#[inline]
pub(crate) fn copy_out(words: &[AtomicU64], offset: usize, mut out: &mut [u8]) {
    debug_assert!(offset + out.len() <= words.len() * 8);
    let mut words = words[offset / 8..].iter();
    let skip = offset % 8;
    if skip != 0 && !out.is_empty() {
        let n = out.len().min(8 - skip);
        let (head, rest) = out.split_at_mut(n);
        head.copy_from_slice(&words.next().map_or([0; 8], load_bytes)[skip..skip + n]);
        out = rest;
    }
    // Arrays, not slices of that length: copying a slice is a call for each word.
    let (whole, tail) = out.as_chunks_mut::<8>();
    for (to, word) in whole.iter_mut().zip(words.by_ref()) {
        *to = load_bytes(word);
    }
    if let (false, Some(word)) = (tail.is_empty(), words.next()) {
        tail.copy_from_slice(&load_bytes(word)[..tail.len()]);
    }
}

/// Copy into words; a partial word is loaded, changed and stored, so writers must be excluded.
#[inline]
pub(crate) fn copy_in(words: &[AtomicU64], offset: usize, mut bytes: &[u8]) {
    debug_assert!(offset + bytes.len() <= words.len() * 8);
    let mut words = words[offset / 8..].iter();
    let skip = offset % 8;
    if skip != 0 && !bytes.is_empty() {
        let (head, rest) = bytes.split_at(bytes.len().min(8 - skip));
        words.next().into_iter().for_each(|word| change_bytes(word, skip, head));
        bytes = rest;
    }
    let (whole, tail) = bytes.as_chunks::<8>();
    for (from, word) in whole.iter().zip(words.by_ref()) {
        word.store(u64::from_ne_bytes(*from), Ordering::Relaxed);
    }
    if let (false, Some(word)) = (tail.is_empty(), words.next()) {
        change_bytes(word, 0, tail);
    }
}

#[inline]
fn load_bytes(word: &AtomicU64) -> [u8; 8] {
    word.load(Ordering::Relaxed).to_ne_bytes()
}

fn change_bytes(word: &AtomicU64, at: usize, bytes: &[u8]) {
    let mut all = load_bytes(word);
    all[at..at + bytes.len()].copy_from_slice(bytes);
    word.store(u64::from_ne_bytes(all), Ordering::Relaxed);
}

#[cfg(all(test, loom))]
mod loom_tests {
    use super::*;
    use crate::primitives::{Arc, Mutex};
    use loom::thread::spawn;

    fn check(f: impl Fn() + Send + Sync + 'static) {
        let mut model = loom::model::Builder::new();
        model.preemption_bound = Some(3);
        model.check(f);
    }

    fn one_frame_with(byte: u8) -> (Arc<Pages>, FrameId) {
        let pages = Arc::new(Pages::reserve(2).unwrap());
        let id = pages.allocate(0, &[byte; PAGE_SIZE]).unwrap();
        (pages, id)
    }

    fn read_is_the_old_owners_or_refused(pages: &Pages, id: FrameId) {
        let mut got = [0; 8];
        if pages.read(id, 0, &mut got) {
            assert_eq!(got, [1; 8], "another owner's bytes");
        }
    }

    /// Rule 3: the allocating thread fills the frame. Removing the fence in `read` or the one in
    /// `store_fence` makes this fail.
    #[test]
    fn loom_rule3_stores_into_a_recycled_slot_follow_a_release_fence() {
        check(|| {
            let (pages, id) = one_frame_with(1);
            let other = pages.clone();
            let t = spawn(move || {
                other.free(id);
                let new = other.allocate(0, &[2; PAGE_SIZE]).unwrap();
                assert_eq!(new.index, id.index, "the model must recycle the frame");
            });
            read_is_the_old_owners_or_refused(&pages, id);
            t.join().unwrap();
        });
    }

    /// Rule 3, wiping counts too: an old frame must not look zeroed while it still looks alive.
    #[test]
    fn loom_rule3_wiping_a_recycled_slot_follows_a_release_fence() {
        check(|| {
            let (pages, id) = one_frame_with(1);
            let other = pages.clone();
            let t = spawn(move || {
                other.free(id);
                assert_eq!(other.allocate(0, &[]).unwrap().index, id.index);
            });
            read_is_the_old_owners_or_refused(&pages, id);
            t.join().unwrap();
        });
    }

    /// Rule 3, *in that thread*: a later writer into the frame, under the owner's mutex, is not the thread
    /// that allocated it. Removing the fence in `write` alone makes this fail.
    #[test]
    fn loom_rule3_every_writer_of_a_recycled_slot_has_its_own_fence() {
        check(|| {
            let (pages, id) = one_frame_with(1);
            let owner = Arc::new(Mutex::new(None));
            let (p, o) = (pages.clone(), owner.clone());
            let allocator = spawn(move || {
                p.free(id);
                *o.lock() = p.allocate(0, &[1; PAGE_SIZE]);
            });
            let (p, o) = (pages.clone(), owner.clone());
            let writer = spawn(move || {
                if let Some(new) = *o.lock() {
                    p.write(new, 0, &[2; 8]);
                }
            });
            read_is_the_old_owners_or_refused(&pages, id);
            allocator.join().unwrap();
            writer.join().unwrap();
        });
    }

    /// Rule 4: index and generation come from one word that is loaded once. A node's word that was stored
    /// for its next owner is refused.
    #[test]
    fn loom_rule4_a_word_is_loaded_once_and_belongs_to_its_generation() {
        check(|| {
            let nodes = Arc::new(Frames::<2>::reserve(2).unwrap());
            let id = nodes.allocate(0, &1u64.to_ne_bytes()).unwrap();
            let other = nodes.clone();
            let t = spawn(move || {
                other.free(id);
                let new = other.allocate(0, &[]).unwrap();
                other.store(new, 0, 2);
            });
            if let Some(word) = nodes.load(id, 0) {
                assert_eq!(word, 1, "the next owner's word");
            }
            t.join().unwrap();
        });
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::primitives::{Arc, AtomicBool};

    fn content(pages: &Pages, id: FrameId) -> Vec<u8> {
        let mut out = vec![0xEE; PAGE_SIZE];
        assert!(pages.read(id, 0, &mut out));
        out
    }

    #[test]
    fn copies_of_any_offset_and_length_agree_with_a_plain_buffer() {
        let pages = Pages::reserve(8).unwrap();
        let id = pages.allocate(0, &[]).unwrap();
        let mut model = vec![0u8; PAGE_SIZE];
        let mut x = 1u64;
        let mut next = |n: usize| {
            x = x.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            (x >> 33) as usize % n
        };
        for round in 0..if cfg!(miri) { 20 } else { 5000 } {
            let offset = next(PAGE_SIZE);
            let len = if round % 2 == 0 { next(20) } else { next(PAGE_SIZE) }.min(PAGE_SIZE - offset);
            if round % 5 == 0 {
                pages.zero(id, offset, len);
                model[offset..offset + len].fill(0);
            } else {
                let bytes: Vec<u8> = (0..len).map(|_| next(256) as u8).collect();
                pages.write(id, offset, &bytes);
                model[offset..offset + len].copy_from_slice(&bytes);
            }
            let from = next(PAGE_SIZE);
            let mut out = vec![0; next(40).min(PAGE_SIZE - from)];
            assert!(pages.read(id, from, &mut out));
            assert_eq!(out, model[from..from + out.len()]);
        }
        assert_eq!(content(&pages, id), model);
    }

    #[test]
    fn a_recycled_frame_is_zero_and_its_old_id_is_refused() {
        let pages = Pages::reserve(8).unwrap();
        let old = pages.allocate(0, &[7; PAGE_SIZE]).unwrap();
        assert_eq!(FrameId::from_bits(old.to_bits()), old);
        pages.free(old);
        let new = pages.allocate(4090, b"tail").unwrap();
        assert_eq!(new.index, old.index);
        let mut out = [0; 16];
        assert!(!pages.read(old, 0, &mut out));
        assert!(pages.load(old, 0).is_none());
        let mut expected = vec![0; PAGE_SIZE];
        expected[4090..4094].copy_from_slice(b"tail");
        assert_eq!(content(&pages, new), expected);
    }

    #[test]
    fn the_capacity_is_available_whatever_magazines_hold() {
        let pages = Arc::new(Pages::reserve(200).unwrap());
        assert!(pages.capacity() >= 200);
        let all: Vec<_> = std::iter::from_fn(|| pages.allocate(0, &[])).collect();
        assert!(all.len() >= pages.capacity() as usize && all.len() < pages.slots as usize);
        let mut indices: Vec<u32> = all.iter().map(|id| id.index).collect();
        indices.sort_unstable();
        indices.dedup();
        assert_eq!(indices.len(), all.len(), "a frame was handed out twice");
        assert!(!indices.contains(&0));
        // Each thread frees some frames into its own magazine, and keeps them there.
        let threads: Vec<_> = all
            .chunks(all.len().div_ceil(2 * SHARDS))
            .map(|ids| {
                let (pages, ids) = (pages.clone(), ids.to_vec());
                std::thread::spawn(move || ids.into_iter().for_each(|id| pages.free(id)))
            })
            .collect();
        threads.into_iter().for_each(|t| t.join().unwrap());
        let again = std::iter::from_fn(|| pages.allocate(0, &[])).count();
        assert!(again >= pages.capacity() as usize, "{again} of {}", pages.capacity());
    }

    #[test]
    fn a_frame_whose_generations_are_used_up_is_not_handed_out_again() {
        let pages = Pages::reserve(100).unwrap();
        let id = pages.allocate(0, &[]).unwrap();
        pages.generations.get(id.index).0.store(LAST_GENERATION - 1, Ordering::Relaxed);
        pages.free(FrameId { index: id.index, generation: LAST_GENERATION });
        let all: Vec<_> = std::iter::from_fn(|| pages.allocate(0, &[])).collect();
        assert!(all.iter().all(|other| other.index != id.index));
        assert!(all.len() >= 100, "the spare room makes up for it");
    }

    /// Resident memory of this process in bytes.
    #[cfg(not(miri))]
    fn resident() -> u64 {
        let statm = std::fs::read_to_string("/proc/self/statm").unwrap();
        statm.split(' ').nth(1).unwrap().parse::<u64>().unwrap() * PAGE as u64
    }

    #[test]
    #[cfg(not(miri))]
    fn committed_bytes_match_the_system_and_are_returned() {
        const N: u64 = 16384;
        let pages = Pages::reserve(1 << 20).unwrap();
        let before = resident();
        let ids: Vec<_> = (0..N).map(|i| pages.allocate(0, &i.to_ne_bytes()).unwrap()).collect();
        assert_eq!(pages.committed_bytes(), N * PAGE as u64);
        let grown = resident() - before;
        let committed = pages.committed_bytes();
        // The other tests of this process allocate too: 64 MiB drown them.
        assert!(grown.abs_diff(committed) * 20 < committed, "counted {committed}, the system {grown}");
        ids.iter().for_each(|id| pages.free(*id));
        let kept = (IDLE_CHUNKS as u64 + 2) * u64::from(CHUNK) * PAGE as u64;
        assert!(pages.committed_bytes() <= kept, "{} bytes are kept", pages.committed_bytes());
        assert!(resident() < before + kept + committed / 20);
        // Memory that was given back reads as zero; generations continue.
        for id in &ids {
            assert!(!pages.read(*id, 0, &mut [0; 8]));
        }
        let again: Vec<_> = (0..N).map(|_| pages.allocate(0, &[]).unwrap()).collect();
        assert!(again.iter().all(|id| pages.load(*id, 0) == Some(0)));
        let mut both: Vec<u64> = ids.iter().chain(&again).map(|id| id.to_bits()).collect();
        both.sort_unstable();
        both.dedup();
        assert_eq!(both.len() as u64, 2 * N, "a generation was repeated");
        assert_eq!(pages.give_back_failures(), 0);
    }

    #[test]
    fn small_frames_are_counted_by_the_pages_that_they_touch() {
        let nodes = Frames::<64>::reserve(1 << 12).unwrap();
        assert_eq!(nodes.committed_bytes(), 0);
        // The first frames handed out are 1 to 7 of page 0, then those of page 1.
        let ids: Vec<_> = (0..16).map(|_| nodes.allocate(0, &[]).unwrap()).collect();
        let mut pages: Vec<u32> = ids.iter().map(|id| id.index / 8).collect();
        pages.sort_unstable();
        pages.dedup();
        assert_eq!(nodes.committed_bytes(), (pages.len() * PAGE) as u64);
    }

    /// Owners stamp each frame with its id; an accepted copy is full of that stamp.
    #[test]
    fn a_copy_that_is_accepted_is_the_owners_under_a_storm_of_recycling() {
        let pages = Arc::new(Pages::reserve(64).unwrap());
        let shared: Arc<Vec<AtomicU64>> = Arc::new((0..8).map(|_| AtomicU64::new(0)).collect());
        let stop = Arc::new(AtomicBool::new(false));
        let rounds = if cfg!(miri) { 6 } else { 20_000 };
        let writers: Vec<_> = (0..2)
            .map(|w| {
                let (pages, shared) = (pages.clone(), shared.clone());
                std::thread::spawn(move || {
                    for i in 0..rounds {
                        let Some(id) = pages.allocate(0, &[]) else { panic!("no frame left") };
                        pages.write(id, 0, &id.to_bits().to_ne_bytes().repeat(PAGE_WORDS));
                        let old = shared[(i * 2 + w) % 8].swap(id.to_bits(), Ordering::AcqRel);
                        if old != 0 {
                            pages.free(FrameId::from_bits(old));
                        }
                    }
                })
            })
            .collect();
        let reader = {
            let (pages, shared, stop) = (pages.clone(), shared.clone(), stop.clone());
            std::thread::spawn(move || {
                let (mut accepted, mut out) = (0, vec![0; PAGE_SIZE]);
                while !stop.load(Ordering::Relaxed) || accepted == 0 {
                    for cell in shared.iter() {
                        let bits = cell.load(Ordering::Acquire);
                        if bits != 0 && pages.read(FrameId::from_bits(bits), 0, &mut out) {
                            assert!(out.chunks(8).all(|w| w == bits.to_ne_bytes()));
                            accepted += 1;
                        }
                    }
                }
            })
        };
        writers.into_iter().for_each(|t| t.join().unwrap());
        stop.store(true, Ordering::Relaxed);
        reader.join().unwrap();
    }
}
