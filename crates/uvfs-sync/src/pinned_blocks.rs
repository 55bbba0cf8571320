//! Blocks of a device as memory that is recycled: read in place while pinned, or copied without a pin.
//!
//! A block's slot has three parts in separate arenas: its *bytes*; its published *generation*, the only
//! other thing that a copy without a pin reads; and a private *word* of pins and generation. Each word has
//! a cache line, and only pins and evictions change it. Beside them stands a *note*, for something that a
//! user has found out about the bytes (for example, that a checksum is right). The note is 0 when the block
//! begins, and ends with it. Generations are odd while the block is there and even while the slot is free,
//! and never recur. So the holder of a [`BlockId`] can tell whether the slot still has that block. Memory
//! of words and generations is never given back; that of bytes may be, while the slot is free.
//!
//! Protection: only [`Blocks::fill`] stores bytes. It owns the free slot from the exchange that marks it until the
//! store that announces the block. [`Blocks::give_back`] claims free slots in the same way. A pin is counted by an
//! exchange that expects the generation; [`Blocks::kill`] is an exchange that expects the generation and no pin. If
//! the pin comes first, `kill` sees it, and the block stays. If `kill` comes first, the generation has moved, and
//! there is no pin.
//!
//! *A copy against a recycling.* The bytes are stored after a release fence, and the published generation
//! has moved before it. If the copy saw one of those stores, its acquire fence makes it see the moved
//! generation, and it is refused. If it saw none, it has the old block's bytes.
//!
//! *The last pin against the next block.* The end of a pin releases and `kill` acquires: what was read
//! under the pin was read before the next block's bytes are stored.
//!
//! *A note against a recycling.* A note is made under a pin, so it is stored before the block ends, and the
//! next `fill` clears it. It is stored with release: a reader without a pin that loads the next block's
//! note sees the moved generation and is refused.
//!
//! Cost: a pin and its end are a read-modify-write each, of a line that others may want; a copy stores
//! nothing.

use std::io;
use std::num::NonZeroU64;
#[cfg(not(loom))]
use std::ops::Deref;

use crate::arena::Arena;
use crate::page_frames::{copy_in, copy_out};
use crate::primitives::{AtomicU8, AtomicU64, Ordering, fence};
use crate::slot;
#[cfg(not(loom))]
use crate::sys::Reservation;

/// Bits of a slot's index in a [`BlockId`].
pub const INDEX_BITS: u32 = 28;
/// Slots of an arena, slot 0 included, which is never used.
pub const MAX_SLOTS: u32 = 1 << INDEX_BITS;
/// Smallest block, in bytes.
pub const MIN_SIZE: usize = if cfg!(loom) { 16 } else { 512 };
/// Largest block, in bytes.
pub const MAX_SIZE: usize = 64 << 10;

/// Pins of a block, in the low bits of its word.
const COUNT: u64 = (1 << INDEX_BITS) - 1;
/// Beside an even generation: the slot is being filled, or its memory given back.
const FILLING: u64 = COUNT;
/// From this generation on no block begins.
const LAST_GENERATION: u64 = (1 << (64 - INDEX_BITS)) - 2;

/// One block in its slot: generation above index. Never 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct BlockId(NonZeroU64);

impl BlockId {
    /// The generation of a present block is odd.
    #[inline]
    const fn new(index: u32, generation: u64) -> Option<Self> {
        Self::from_word(generation << INDEX_BITS | index as u64)
    }

    /// As one word.
    #[inline]
    pub const fn to_word(self) -> u64 {
        self.0.get()
    }

    /// From the word that [`BlockId::to_word`] returned; `None` from a 0.
    #[inline]
    pub const fn from_word(word: u64) -> Option<Self> {
        match NonZeroU64::new(word) {
            Some(word) if word.get() >> INDEX_BITS & 1 == 1 => Some(Self(word)),
            _ => None,
        }
    }

    /// From a word that [`BlockId::to_word`] returned, or 0, without a check. Another word may make an id
    /// of a slot without a block. A copy from it then proceeds as if there were a block, but it can be
    /// neither pinned nor killed.
    #[inline(always)]
    pub const fn from_own_word(word: u64) -> Option<Self> {
        match NonZeroU64::new(word) {
            Some(word) => Some(Self(word)),
            None => None,
        }
    }

    /// Its slot.
    #[inline]
    pub const fn index(self) -> u32 {
        (self.0.get() & (MAX_SLOTS as u64 - 1)) as u32
    }

    /// Its slot, with bits of the generation above it. Users of the slot mask these away: no mask is longer
    /// than [`INDEX_BITS`].
    #[inline(always)]
    const fn place(self) -> u32 {
        self.0.get() as u32
    }

    #[inline]
    const fn generation(self) -> u64 {
        self.0.get() >> INDEX_BITS
    }
}

slot! {
    /// Generation above pins.
    #[derive(Debug)]
    #[repr(align(64))]
    struct Word { word: AtomicU64 }
}

slot! {
    /// The generation, for readers that do not pin.
    #[derive(Debug)]
    struct Published { generation: AtomicU64 }
}

slot! {
    /// A user's finding about the bytes.
    #[derive(Debug)]
    struct Note { note: AtomicU64 }
}

slot! {
    /// Whether the block was used since the hand last passed.
    #[derive(Debug)]
    struct Mark { used: AtomicU8 }
}

/// An arena of blocks of one size.
#[derive(Debug)]
pub struct Blocks {
    #[cfg(not(loom))]
    memory: Reservation,
    #[cfg(loom)]
    memory: Vec<AtomicU64>,
    words: Arena<Word>,
    generations: Arena<Published>,
    notes: Arena<Note>,
    marks: Arena<Mark>,
    /// Binary logarithm of a block's size.
    shift: u32,
    slots: u32,
    /// Number of slots of the memory, less one; the number is a power of two.
    mask: u32,
}

impl Blocks {
    /// Address space for `blocks` blocks, or for as many as fit: on ENOMEM half of it is tried, and so on.
    /// Nothing is committed.
    ///
    /// # Errors
    /// EINVAL for a size that is no power of two or not within [`MIN_SIZE`] and [`MAX_SIZE`]; ENOMEM if
    /// next to nothing can be reserved.
    pub fn reserve(size: usize, blocks: u32) -> io::Result<Self> {
        if !size.is_power_of_two() || !(MIN_SIZE..=MAX_SIZE).contains(&size) {
            return Err(io::Error::from_raw_os_error(libc::EINVAL));
        }
        let mut wanted = blocks.saturating_add(1).clamp(2, MAX_SLOTS);
        loop {
            match Self::exactly(size, wanted) {
                Ok(blocks) => return Ok(blocks),
                Err(_) if wanted > 64 => wanted /= 2,
                Err(error) => return Err(error),
            }
        }
    }

    fn exactly(size: usize, slots: u32) -> io::Result<Self> {
        let all = slots.next_power_of_two() as usize;
        #[cfg(not(loom))]
        let memory = {
            let bytes = all.checked_mul(size).ok_or_else(|| io::Error::from_raw_os_error(libc::ENOMEM))?;
            // Half of the address space that is left, as for pages.
            Reservation::new(bytes, 2)?
        };
        #[cfg(loom)]
        let memory = (0..all * size / 8).map(|_| AtomicU64::new(0)).collect();
        let (words, generations) = (Arena::reserve(slots)?, Arena::reserve(slots)?);
        let (notes, marks) = (Arena::reserve(slots)?, Arena::reserve(slots)?);
        // All have the same mask: an index out of range is the same slot in each of them.
        if [words.capacity(), generations.capacity(), notes.capacity(), marks.capacity()] != [slots; 4] {
            return Err(io::Error::from_raw_os_error(libc::ENOMEM));
        }
        let (shift, mask) = (size.trailing_zeros(), (all - 1) as u32);
        Ok(Self { memory, words, generations, notes, marks, shift, slots, mask })
    }

    /// Number of slots; 1 is the first usable one.
    pub fn slots(&self) -> u32 {
        self.slots
    }

    /// Bytes of a block.
    #[inline]
    pub fn size(&self) -> usize {
        1 << self.shift
    }

    /// Bytes that a slot in use commits beside its block.
    pub const fn overhead() -> usize {
        size_of::<Word>() + size_of::<Published>() + size_of::<Note>() + size_of::<Mark>()
    }

    /// Begin a block in a free slot, pinned once, with these bytes and zeroes after them. `None`, and
    /// nothing happened: the slot is not free, is out of generations, or there are too many bytes.
    pub fn fill(&self, index: u32, bytes: &[u8]) -> Option<Pinned<'_>> {
        if index == 0 || index >= self.slots || bytes.len() > self.size() {
            return None;
        }
        let word = &self.words.get(index).word;
        let free = word.load(Ordering::Relaxed);
        let generation = free >> INDEX_BITS;
        if free & COUNT != 0 || generation & 1 == 1 || generation >= LAST_GENERATION {
            return None;
        }
        // Acquire: pairs with `kill`'s release; all use of the last block in the slot is over.
        word.compare_exchange(free, free | FILLING, Ordering::Acquire, Ordering::Relaxed).ok()?;
        // The published generation moved before: a reader that sees one of these stores sees that.
        fence(Ordering::Release);
        let words = self.words_of(index);
        copy_in(words, 0, bytes);
        self.wipe(words, bytes.len());
        let note = &self.notes.get(index).note;
        // Not touched if nobody makes notes.
        if note.load(Ordering::Relaxed) != 0 {
            note.store(0, Ordering::Relaxed);
        }
        let generation = generation + 1;
        self.generations.get(index).generation.store(generation, Ordering::Relaxed);
        // Release: a thread that pins sees the bytes.
        word.store(generation << INDEX_BITS | 1, Ordering::Release);
        Some(Pinned { blocks: self, id: BlockId::new(index, generation)? })
    }

    fn wipe(&self, words: &[AtomicU64], from: usize) {
        let zeroes = [0; 64];
        let mut at = from;
        while at < self.size() {
            let n = (self.size() - at).min(zeroes.len());
            copy_in(words, at, &zeroes[..n]);
            at += n;
        }
    }

    /// Pin a block, so that it stays. `None`: it is gone (or has 2^28 pins).
    #[inline(always)]
    pub fn pin(&self, id: BlockId) -> Option<Pinned<'_>> {
        let word = &self.words.get(id.place()).word;
        let mut old = word.load(Ordering::Relaxed);
        loop {
            // An even generation belongs to no block (`BlockId::from_own_word`).
            if old >> INDEX_BITS != id.generation() || id.generation() & 1 == 0 || old & COUNT == COUNT {
                return None;
            }
            // Acquire: pairs with `fill`'s release.
            match word.compare_exchange_weak(old, old + 1, Ordering::Acquire, Ordering::Relaxed) {
                Ok(_) => return Some(Pinned { blocks: self, id }),
                Err(now) => old = now,
            }
        }
    }

    /// Copy bytes out without a pin; they must lie within the block. `false`: the block is gone, and the
    /// contents of `out` mean nothing.
    #[inline(always)]
    #[must_use]
    pub fn read(&self, id: BlockId, offset: usize, out: &mut [u8]) -> bool {
        copy_out(self.words_from(id.place(), offset / 8), offset % 8, out);
        // Pairs with the fence of `fill`: see the module's head.
        fence(Ordering::Acquire);
        self.generations.get(id.place()).generation.load(Ordering::Relaxed) == id.generation()
    }

    /// As [`Blocks::read`]; returns the block's note ([`Pinned::set_note`]), or `None` if the block is
    /// gone.
    #[inline(always)]
    pub fn read_noted(&self, id: BlockId, offset: usize, out: &mut [u8]) -> Option<u64> {
        // Before the fence in `read`, which pairs with the release of the store of the note.
        let note = self.notes.get(id.index()).note.load(Ordering::Relaxed);
        self.read(id, offset, out).then_some(note)
    }

    /// Whether the block is still there. It may go at once.
    #[inline(always)]
    pub fn is_there(&self, id: BlockId) -> bool {
        self.generations.get(id.place()).generation.load(Ordering::Relaxed) == id.generation()
    }

    /// End a block that nobody has pinned. Its slot is then the caller's, to fill or to give back. `false`:
    /// the block is pinned, or gone already.
    #[must_use]
    pub fn kill(&self, id: BlockId) -> bool {
        if id.generation() & 1 == 0 {
            // It belongs to no block (`BlockId::from_own_word`).
            return false;
        }
        let (there, gone) = (id.generation() << INDEX_BITS, (id.generation() + 1) << INDEX_BITS);
        let word = &self.words.get(id.index()).word;
        // Acquire: pairs with the release of a pin's end; what was read under it was read before the slot
        // is filled again. Release: pairs with `fill`.
        if word.compare_exchange(there, gone, Ordering::AcqRel, Ordering::Relaxed).is_err() {
            return false;
        }
        self.generations.get(id.index()).generation.store(id.generation() + 1, Ordering::Relaxed);
        true
    }

    /// Whether the block is pinned, as far as can be told.
    pub fn is_pinned(&self, id: BlockId) -> bool {
        let word = self.words.get(id.index()).word.load(Ordering::Relaxed);
        word >> INDEX_BITS == id.generation() && word & COUNT != 0
    }

    /// The block was used. A load, and a store only if none was made since the hand last passed.
    #[inline]
    pub fn mark(&self, id: BlockId) {
        let used = &self.marks.get(id.index()).used;
        if used.load(Ordering::Relaxed) == 0 {
            used.store(1, Ordering::Relaxed);
        }
    }

    /// Whether the block in this slot was used since the last call.
    pub fn take_mark(&self, index: u32) -> bool {
        let used = &self.marks.get(index).used;
        let was = used.load(Ordering::Relaxed) != 0;
        if was {
            used.store(0, Ordering::Relaxed);
        }
        was
    }

    /// Return the bytes of slots `from..to`, all of which are free, to the system. Whole pages only. Two
    /// exchanges per slot.
    ///
    /// # Errors
    /// EBUSY if one of them is not free; or the error of madvise(2). The memory is still there then.
    pub fn give_back(&self, from: u32, to: u32) -> io::Result<()> {
        // Slot 0, and slots behind the last one, are never filled.
        let slots = from.max(1)..to.min(self.slots);
        let claimed = slots.clone().take_while(|index| self.claim(*index)).count() as u32;
        let all = slots.len() as u32;
        let given = if claimed < all {
            Err(io::Error::from_raw_os_error(libc::EBUSY))
        } else {
            self.drop_bytes((from as usize) << self.shift, (to as usize) << self.shift)
        };
        slots.take(claimed as usize).for_each(|index| self.unclaim(index));
        given
    }

    /// Keep a free slot from being filled, so that nobody pins it: the bytes of a pinned block are a slice,
    /// which must not change. False: it is not free. If the claim comes first, `fill` is refused. If a
    /// block comes first, the claim is refused.
    fn claim(&self, index: u32) -> bool {
        let word = &self.words.get(index).word;
        let free = word.load(Ordering::Relaxed);
        // Acquire: pairs with `kill`'s release; what was read under the last block's pins was read before
        // the bytes go.
        free & COUNT == 0
            && free >> INDEX_BITS & 1 == 0
            && word.compare_exchange(free, free | FILLING, Ordering::Acquire, Ordering::Relaxed).is_ok()
    }

    fn unclaim(&self, index: u32) {
        let word = &self.words.get(index).word;
        // Nobody else stores to a claimed slot's word. Release: the next `fill` stores bytes after they
        // went.
        word.store(word.load(Ordering::Relaxed) & !COUNT, Ordering::Release);
    }

    #[cfg(not(loom))]
    fn drop_bytes(&self, from: usize, to: usize) -> io::Result<()> {
        self.memory.give_back(from, to)
    }

    /// The effect of giving back, without pages.
    #[cfg(loom)]
    fn drop_bytes(&self, from: usize, to: usize) -> io::Result<()> {
        self.memory[from / 8..to / 8].iter().for_each(|word| word.store(0, Ordering::Relaxed));
        Ok(())
    }

    #[inline]
    fn words_of(&self, index: u32) -> &[AtomicU64] {
        self.words_from(index, 0)
    }

    /// A block's words from word `first` on.
    #[inline(always)]
    fn words_from(&self, index: u32, first: usize) -> &[AtomicU64] {
        let (at, len) = (((index & self.mask) as usize) << self.shift, self.size() / 8);
        assert!(first <= len, "a word of another block");
        #[cfg(not(loom))]
        // SAFETY: the reservation spans mask + 1 blocks and is aligned to a page. Its bytes are zero or
        // were stored as such words, of which every value is valid. first is not above len. The slice
        // borrows from self, which owns the mapping. (The block's offset is added last: a reader waits for
        // that alone.)
        return unsafe {
            let words = self.memory.base().cast::<AtomicU64>().as_ptr().add(first).byte_add(at);
            std::slice::from_raw_parts(words, len - first)
        };
        #[cfg(loom)]
        return &self.memory[at / 8 + first..at / 8 + len];
    }
}

/// A pinned block: it stays where it is as long as this lives.
#[derive(Debug)]
pub struct Pinned<'b> {
    blocks: &'b Blocks,
    id: BlockId,
}

impl Pinned<'_> {
    /// The block's id.
    #[inline]
    pub fn id(&self) -> BlockId {
        self.id
    }

    /// The note about these bytes since the block began; 0 at first. If several threads store notes at a
    /// time, one of them stays.
    #[inline]
    pub fn note(&self) -> u64 {
        self.blocks.notes.get(self.id.index()).note.load(Ordering::Relaxed)
    }

    /// Store a note about the bytes. Its user defines the meaning.
    pub fn set_note(&self, note: u64) {
        // Release: pairs with the fence of `read`. A copy of the slot's earlier contents finds the
        // generation moved.
        self.blocks.notes.get(self.id.index()).note.store(note, Ordering::Release);
    }

    /// Copy bytes out; they must lie within the block.
    pub fn copy(&self, offset: usize, out: &mut [u8]) {
        copy_out(self.blocks.words_of(self.id.index()), offset, out);
    }
}

/// (Not under loom, whose atomics are no plain bytes.)
#[cfg(not(loom))]
impl Deref for Pinned<'_> {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        let words = self.blocks.words_of(self.id.place());
        // SAFETY: the words are plain bytes of that length. Nobody stores to them while the block is
        // pinned: only `fill` stores bytes, and the generation with which this pin was counted keeps it
        // out. Earlier stores happened before the pin (it acquires). Other threads only read.
        unsafe { std::slice::from_raw_parts(words.as_ptr().cast(), self.blocks.size()) }
    }
}

impl Drop for Pinned<'_> {
    #[inline]
    fn drop(&mut self) {
        // Release: pairs with `kill`. A subtraction without a check: the pin keeps the generation where it
        // is.
        self.blocks.words.get(self.id.index()).word.fetch_sub(1, Ordering::Release);
    }
}

#[cfg(all(test, loom))]
mod loom_tests {
    use super::*;
    use crate::primitives::Arc;
    use loom::thread::spawn;

    fn check(f: impl Fn() + Send + Sync + 'static) {
        let mut model = loom::model::Builder::new();
        model.preemption_bound = Some(3);
        model.check(f);
    }

    /// A slot with a block whose bytes are all 1.
    fn one() -> (Arc<Blocks>, BlockId) {
        let blocks = Arc::new(Blocks::reserve(MIN_SIZE, 1).unwrap());
        let id = blocks.fill(1, &[1; MIN_SIZE]).unwrap().id();
        (blocks, id)
    }

    /// End the block if possible, and put a block of 2s in its place.
    fn recycle(blocks: &Blocks, id: BlockId) -> bool {
        let gone = blocks.kill(id);
        if gone {
            drop(blocks.fill(1, &[2; MIN_SIZE]).unwrap());
        }
        gone
    }

    /// Rule 2: a pin and an eviction; one of them comes first. A `kill` that ignores pins, or a pin that
    /// ignores the generation, makes this fail.
    #[test]
    fn loom_blocks_a_pinned_block_is_not_evicted_and_an_evicted_one_not_pinned() {
        check(|| {
            let (blocks, id) = one();
            let other = blocks.clone();
            let t = spawn(move || recycle(&other, id));
            if let Some(pinned) = blocks.pin(id) {
                let mut got = [0; MIN_SIZE];
                pinned.copy(0, &mut got);
                assert_eq!(got, [1; MIN_SIZE], "recycled under a pin");
            }
            t.join().unwrap();
        });
    }

    /// Rule 2: the pins of two threads are both counted and both released.
    #[test]
    fn loom_blocks_pins_are_counted() {
        check(|| {
            let (blocks, id) = one();
            let other = blocks.clone();
            let t = spawn(move || drop(other.pin(id).unwrap()));
            let pinned = blocks.pin(id).unwrap();
            assert!(!blocks.kill(id), "evicted under a pin");
            drop(pinned);
            t.join().unwrap();
            assert!(blocks.kill(id), "a pin was lost");
        });
    }

    /// Rule 3: a copy without a pin is the old block's, or refused. Each of the two fences is needed.
    #[test]
    fn loom_blocks_a_copy_of_a_recycled_block_is_refused() {
        check(|| {
            let (blocks, id) = one();
            let other = blocks.clone();
            let t = spawn(move || assert!(recycle(&other, id)));
            let mut got = [0; 8];
            if blocks.read(id, 0, &mut got) {
                assert_eq!(got, [1; 8], "another block's bytes");
            }
            t.join().unwrap();
        });
    }

    /// Rule 3: a note belongs to the block for which it was made. The next block begins without a note, and
    /// a copy of the old block does not get the new one's note. A `fill` that leaves the note, or a relaxed
    /// store of it, makes this fail.
    #[test]
    fn loom_blocks_a_note_goes_with_its_block() {
        check(|| {
            let (blocks, id) = one();
            blocks.pin(id).unwrap().set_note(1);
            let (other, third) = (blocks.clone(), blocks.clone());
            let t = spawn(move || assert!(recycle(&other, id)));
            let reader = spawn(move || {
                if let Some(note) = third.read_noted(id, 0, &mut []) {
                    assert!(note < 2, "the next block's note");
                }
            });
            // Not the thread that filled it: no fence of `fill` stands before this store.
            if let Some(next) = blocks.pin(BlockId::new(1, 3).unwrap()) {
                assert_eq!(next.note(), 0, "the last block's note");
                next.set_note(2);
            }
            t.join().unwrap();
            reader.join().unwrap();
        });
    }

    /// Rule 2: bytes go only while nobody has them pinned: of a fill and a giving back one comes first.
    /// Planted bug: blocks-give-back-claims-nothing.
    #[test]
    fn loom_blocks_bytes_are_given_back_under_no_pin() {
        check(|| {
            let (blocks, id) = one();
            let other = blocks.clone();
            let t = spawn(move || {
                if other.kill(id) {
                    let next = other.fill(1, &[2; MIN_SIZE]);
                    next.inspect(|pinned| {
                        let mut got = [0; MIN_SIZE];
                        pinned.copy(0, &mut got);
                        assert_eq!(got, [2; MIN_SIZE], "given back under a pin");
                    });
                }
            });
            if let Some(pinned) = blocks.pin(id) {
                assert!(blocks.give_back(0, 2).is_err(), "given back under our pin");
                let mut got = [0; MIN_SIZE];
                pinned.copy(0, &mut got);
                assert_eq!(got, [1; MIN_SIZE]);
            } else {
                let _ = blocks.give_back(0, 2);
            }
            t.join().unwrap();
        });
    }

    /// Rule 16: a thread that pins by an id which reached it without synchronisation sees the block whole.
    /// A relaxed end of `fill`, or a relaxed pin, makes this fail.
    #[test]
    fn loom_blocks_a_block_is_whole_before_it_can_be_pinned() {
        check(|| {
            let blocks = Arc::new(Blocks::reserve(MIN_SIZE, 1).unwrap());
            let other = blocks.clone();
            // The reader is the spawned thread: it comes after, and may see old values of everything that
            // it was not notified of.
            let t = spawn(move || {
                if let Some(pinned) = other.pin(BlockId::new(1, 1).unwrap()) {
                    let mut got = [0; MIN_SIZE];
                    pinned.copy(0, &mut got);
                    assert_eq!(got, [1; MIN_SIZE], "half a block");
                }
            });
            drop(blocks.fill(1, &[1; MIN_SIZE]).unwrap());
            t.join().unwrap();
        });
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use std::sync::Arc;

    #[test]
    fn sizes_are_powers_of_two_within_limits() {
        for size in [0, 1, 256, 513, 1000, 4097, 128 << 10] {
            assert_eq!(Blocks::reserve(size, 4).unwrap_err().raw_os_error(), Some(libc::EINVAL), "{size}");
        }
        for size in [512, 4096, 64 << 10] {
            assert_eq!(Blocks::reserve(size, 4).unwrap().size(), size);
        }
    }

    #[test]
    fn a_block_is_there_until_it_is_killed_and_never_again() {
        let blocks = Blocks::reserve(512, 4).unwrap();
        let pinned = blocks.fill(1, b"abc").unwrap();
        let id = pinned.id();
        assert_eq!((&pinned[..4], pinned.len()), (&b"abc\0"[..], 512));
        assert!(blocks.fill(1, b"").is_none(), "in use");
        assert!(!blocks.kill(id), "pinned");
        let second = blocks.pin(id).unwrap();
        drop(pinned);
        assert!(!blocks.kill(id), "pinned again");
        drop(second);
        assert!(blocks.kill(id) && !blocks.kill(id));
        let mut out = [0; 3];
        assert!(blocks.pin(id).is_none() && !blocks.read(id, 0, &mut out));
        let next = blocks.fill(1, b"x").unwrap();
        assert_eq!(&next[..3], b"x\0\0", "bytes of the last block remain");
        assert_eq!(blocks.read_noted(id, 0, &mut out), None);
        assert!(blocks.pin(id).is_none() && !blocks.read(id, 0, &mut out));
        assert!(blocks.read(next.id(), 0, &mut out) && out == *b"x\0\0");
        assert_eq!((next.note(), blocks.read_noted(next.id(), 0, &mut out)), (0, Some(0)));
        next.set_note(7);
        assert_eq!((next.note(), blocks.read_noted(next.id(), 0, &mut out)), (7, Some(7)));
        assert_eq!(BlockId::from_word(next.id().to_word()), Some(next.id()));
        assert_eq!(BlockId::from_word(0), None);
    }

    #[test]
    fn slots_that_are_not_there_are_refused() {
        let blocks = Blocks::reserve(512, 4).unwrap();
        assert!(blocks.fill(0, b"").is_none() && blocks.fill(blocks.slots(), b"").is_none());
        assert!(blocks.fill(1, &[0; 513]).is_none());
        assert!(blocks.pin(BlockId::new(3, 1).unwrap()).is_none());
        assert!(blocks.pin(BlockId::new(u32::MAX >> 4, 7).unwrap()).is_none());
    }

    /// Planted bugs: blocks-give-back-ignores-blocks, blocks-give-back-takes-the-free-ones,
    /// blocks-give-back-keeps-its-claims.
    #[test]
    fn bytes_are_given_back_only_where_no_block_is() {
        let blocks = Blocks::reserve(4096, 8).unwrap();
        let refused =
            |from, to| blocks.give_back(from, to).is_err_and(|e| e.raw_os_error() == Some(libc::EBUSY));
        let pinned: Vec<_> = (1..4).map(|slot| blocks.fill(slot, &[7; 4096]).unwrap()).collect();
        assert!((1..4).all(|slot| refused(slot, slot + 1)) && refused(0, u32::MAX));
        assert!(pinned.iter().all(|block| block.iter().all(|byte| *byte == 7)));
        let ids: Vec<_> = pinned.into_iter().map(|block| block.id()).collect();
        assert!(refused(0, 9), "unpinned blocks are still there");
        assert!(ids.iter().all(|id| blocks.read(*id, 0, &mut [0; 8])));
        assert!(blocks.kill(ids[0]) && blocks.kill(ids[2]));
        assert!(refused(1, 3) && refused(2, 4));
        // A refusal changed nothing: the free slots can be filled.
        let again = [1, 3].map(|slot| blocks.fill(slot, b"x").unwrap().id());
        assert!([again[0], ids[1], again[1]].into_iter().all(|id| blocks.kill(id)));
        blocks.give_back(0, u32::MAX).unwrap();
        blocks.give_back(5, 2).unwrap();
        let next = blocks.fill(2, b"").unwrap();
        assert!(next.id() != ids[1] && next.iter().all(|byte| *byte == 0));
    }

    /// A thread returns bytes that it does not own: a pinned block is unaffected.
    #[test]
    fn a_pinned_block_keeps_its_bytes_if_another_thread_returns_them() {
        let rounds: u64 = if cfg!(miri) { 30 } else { 20_000 };
        let blocks = Arc::new(Blocks::reserve(4096, 2).unwrap());
        let done = Arc::new(AtomicU64::new(0));
        let thief = {
            let (blocks, done) = (blocks.clone(), done.clone());
            std::thread::spawn(move || {
                while done.load(Ordering::Relaxed) == 0 {
                    let _ = blocks.give_back(1, 2);
                }
            })
        };
        for _ in 0..rounds {
            // Refused while the slot is being given back.
            let Some(pinned) = blocks.fill(1, &[7; 4096]) else { continue };
            assert!(pinned.iter().all(|byte| *byte == 7));
            let id = pinned.id();
            drop(pinned);
            assert!(blocks.kill(id));
        }
        done.store(1, Ordering::Relaxed);
        thief.join().unwrap();
    }

    /// Each block is full of its number; a pinned block, or an accepted copy, has the bytes of one block.
    #[test]
    fn bytes_are_one_blocks_under_a_storm_of_recycling() {
        const SLOTS: u32 = 4;
        let rounds: u64 = if cfg!(miri) { 30 } else { 20_000 };
        let blocks = Arc::new(Blocks::reserve(512, SLOTS).unwrap());
        let ids: Arc<Vec<AtomicU64>> = Arc::new((0..=SLOTS).map(|_| AtomicU64::new(0)).collect());
        let writer = {
            let (blocks, ids) = (blocks.clone(), ids.clone());
            std::thread::spawn(move || {
                for round in 0..rounds {
                    let slot = 1 + (round % u64::from(SLOTS)) as u32;
                    let old = BlockId::from_word(ids[slot as usize].load(Ordering::Relaxed));
                    if old.is_some_and(|id| !blocks.kill(id)) {
                        continue;
                    }
                    let new = blocks.fill(slot, &[round as u8; 512]).unwrap().id();
                    ids[slot as usize].store(new.to_word(), Ordering::Release);
                }
            })
        };
        let readers: Vec<_> = (0..2)
            .map(|_| {
                let (blocks, ids) = (blocks.clone(), ids.clone());
                std::thread::spawn(move || {
                    let mut out = [0; 512];
                    for round in 0..rounds {
                        let word = ids[1 + (round % u64::from(SLOTS)) as usize].load(Ordering::Acquire);
                        let Some(id) = BlockId::from_word(word) else { continue };
                        if let Some(pinned) = blocks.pin(id) {
                            let first = pinned[0];
                            assert!(pinned.iter().all(|byte| *byte == first));
                        }
                        if blocks.read(id, 0, &mut out) {
                            assert!(out.iter().all(|byte| *byte == out[0]));
                        }
                    }
                })
            })
            .collect();
        writer.join().unwrap();
        readers.into_iter().for_each(|r| r.join().unwrap());
    }
}
