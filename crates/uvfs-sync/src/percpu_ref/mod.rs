//! References to objects that many threads use at once, counted per thread. (Not per processor: user space
//! does not know how long a thread stays on one.)
//!
//! A file that two threads open and close has one count, whose line goes from core to core. An object that
//! is used often ([`often`]) gets one of a few *places* (per-thread reference slots). References to it are
//! then counted in each thread's own line of that place: gets in one word, puts in another, with plain
//! loads and stores. The object's [`LockRef`] keeps a bias, so its count cannot reach 0. Before the object
//! may be freed it is *gathered*: the place is closed, every thread that is counting has finished, and the
//! sum is added to the word.
//!
//! A thread counts in a section that it marks by bit 0 of the word that it is about to change:
//!
//! ```text
//! thread                                  gathering thread (holds the table's mutex)
//! word = n | 1                            owner[place] = 0
//! light barrier                           heavy barrier
//! owner[place] == id ?                    until bit 0 of every thread's word is clear: wait
//!   word = n + 2, counted                 add the sum to the count, take the bias and *spread* away
//!   word = n, not counted
//! ```
//!
//! One of the two sees the other. If the close comes first, the thread finds the place closed and uses the
//! object's word, whose bias is still there. If the mark comes first, the gathering thread waits for it and
//! includes its count. Words are never reset (only their thread stores to them): a place remembers the sum
//! at its last closing.
//!
//! Why the object is not freed meanwhile: a count is spread only while a holder *vouches* for the object
//! with a reference of its own (a name's). The holder withdraws that, in the word, before it gathers and
//! drops the reference ([`LockRef::unanchor`]). Spreading and withdrawing are steps of one word, so no
//! spread comes after.
//!
//! Why not otherwise: every open and close of a lone file writes the root of a tree of counters (SNZI).
//! Epochs (Refcache) delay the end of a file and need every thread to come by. Handles kept per thread must
//! be called back, by this same protocol. This design costs about a tenth of a shared count and leaves the
//! end of a file where it is.
//!
//! The table's mutex is a leaf. A gathering thread holds no lock, because it waits for threads that may
//! have been preempted in their section (a few instructions). Get and put cost a thread-local, two stores
//! and a light barrier; spreading is cheap; gathering costs one heavy barrier and a look at each thread's
//! line. Not for a forked child or a signal handler.

#[cfg(all(test, loom))]
mod loom_tests;

use std::cell::Cell;
use std::io;

use crossbeam_utils::CachePadded;

use crate::arena::Arena;
use crate::barrier;
use crate::lockref::LockRef;
use crate::primitives::{AtomicU32, AtomicU64, Mutex, Ordering};
use crate::slot;
use crate::thread_number::{self, LANES};

/// Objects whose references are counted per thread at one time: as many as a program reads repeatedly (for
/// example, the files of a sysfs directory).
pub const PLACES: usize = if cfg!(loom) { 1 } else { 512 };

/// Places that are considered for reuse when all are taken.
const LOOKS: usize = if cfg!(loom) { 1 } else { 8 };

/// The thread is counting in this word.
const INSIDE: u64 = 1;
/// One get or put.
const ONE: u64 = 2;

slot! {
/// A thread's words: gets and puts of each place.
#[derive(Debug)]
#[repr(C, align(128))]
struct Line {
    words: [AtomicU64; 2 * PLACES],
}
}

/// The counted objects: those of one arena, by index.
pub trait CountedObjects {
    /// The object's count.
    fn refs(&self, index: u32) -> &LockRef;

    /// A word of the object, for its [`Place`]; 0 in the beginning, and nobody else stores to it.
    fn place(&self, index: u32) -> &AtomicU32;
}

/// An object's per-thread reference slot; a hint, which every use checks. 0 is none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Place(u32);

impl Place {
    /// As read from the object's word.
    #[inline]
    pub fn of(word: &AtomicU32) -> Self {
        Self(word.load(Ordering::Relaxed))
    }

    /// Whether there is none.
    #[inline]
    pub fn is_none(self) -> bool {
        self.0 == 0
    }

    fn slot(self) -> Option<usize> {
        (self.0 as usize).checked_sub(1).filter(|slot| *slot < PLACES)
    }
}

/// A place, as the allocating thread knows it.
#[derive(Debug, Default)]
struct Entry {
    /// Gets less puts of all threads when it was last closed.
    base: u64,
    /// Gets of all threads at the last look.
    seen: u64,
}

#[derive(Debug)]
struct Table {
    entries: [Entry; PLACES],
    /// The place to look at next when all are taken.
    hand: usize,
}

/// The places of one arena's objects. An object's id is `generation << 32 | index`, never 0.
#[derive(Debug)]
pub struct PercpuRefs {
    /// The owner of each place; 0: it is closed.
    owners: CachePadded<[AtomicU64; PLACES]>,
    lines: Arena<Line>,
    table: Mutex<Table>,
}

impl PercpuRefs {
    /// All places are closed. Reserves address space for all threads that may come.
    ///
    /// # Errors
    /// ENOMEM.
    pub fn new() -> io::Result<Self> {
        barrier::prepare();
        let lines = Arena::reserve(LANES)?;
        // No thread counts in another one's line.
        if lines.capacity() < LANES {
            return Err(io::Error::from_raw_os_error(libc::ENOMEM));
        }
        Ok(Self {
            owners: CachePadded::new(std::array::from_fn(|_| AtomicU64::new(0))),
            lines,
            table: Mutex::new(Table { entries: std::array::from_fn(|_| Entry::default()), hand: 0 }),
        })
    }

    /// Take a reference to the object `id`. False: not counted here; use its word, and call
    /// [`PercpuRefs::elsewhere`].
    #[inline]
    pub fn get(&self, place: Place, id: u64) -> bool {
        thread_number::known().is_some_and(|lane| self.count::<0>(lane, place, id))
    }

    /// Drop a reference, wherever it was taken. False: as for `get`.
    #[inline]
    pub fn put(&self, place: Place, id: u64) -> bool {
        thread_number::known().is_some_and(|lane| self.count::<1>(lane, place, id))
    }

    /// A reference to the object at `index` is counted in its word although it has a place, or had one a
    /// moment ago. Either its references are being gathered, or the thread has no line (it gets one now, if
    /// it can). Many references that are taken in one way and dropped in the other make the word's count
    /// stray. It is gathered before that can matter.
    #[cold]
    pub fn elsewhere(&self, objects: &impl CountedObjects, index: u32) {
        thread_number::mine();
        if objects.refs(index).has_strayed() {
            self.gather(objects, index);
        }
    }

    /// Count one get (0) or put (1) of the thread with number `lane`.
    #[inline]
    fn count<const PUT: usize>(&self, lane: u32, place: Place, id: u64) -> bool {
        let Some(slot) = place.slot() else { return false };
        let word = &self.lines.get(lane).words[2 * slot + PUT];
        let old = word.load(Ordering::Relaxed);
        word.store(old | INSIDE, Ordering::Relaxed);
        // Between marking that we count and checking whether we may: paired with the one in `close`.
        barrier::light();
        // Acquire: the object is in the generation of `id`, as it was filled.
        let open = self.owners[slot].load(Ordering::Acquire) == id;
        // Release: all use of a reference happens before the sum that drops it.
        word.store(if open { old.wrapping_add(ONE) } else { old }, Ordering::Release);
        open
    }

    /// Count the references of `id` per thread from now on, if a holder vouches for it and a place is
    /// available. The caller holds a reference. Does nothing if another thread is at the table.
    #[cold]
    pub fn spread(&self, objects: &impl CountedObjects, id: u64) {
        let Some(mut table) = self.table.try_lock() else { return };
        let index = id as u32;
        if !objects.refs(index).may_spread() {
            return;
        }
        let Some(slot) = self.free_place(&mut table, objects) else { return };
        if objects.refs(index).spread((id >> 32) as u32) {
            // A thread that gathers it waits for the table. Release: `count` says what it is for.
            self.owners[slot].store(id, Ordering::Release);
            objects.place(index).store(slot as u32 + 1, Ordering::Relaxed);
        }
    }

    /// A closed place. If all are taken, this looks at some of them and closes one that nobody has used
    /// since the last look.
    fn free_place(&self, table: &mut Table, objects: &impl CountedObjects) -> Option<usize> {
        if let Some(slot) = self.owners.iter().position(|owner| owner.load(Ordering::Relaxed) == 0) {
            return Some(slot);
        }
        for _ in 0..LOOKS {
            let slot = table.hand;
            table.hand = (slot + 1) % PLACES;
            let gets = self.sum(slot, 0, |word| word.load(Ordering::Relaxed));
            if std::mem::replace(&mut table.entries[slot].seen, gets) == gets {
                self.close(table, slot, objects);
                return Some(slot);
            }
        }
        None
    }

    /// Bring all references of the object at `index` back into its word. After [`LockRef::unanchor`] it
    /// stays so; otherwise it may be spread again at once. The caller holds no lock.
    #[cold]
    pub fn gather(&self, objects: &impl CountedObjects, index: u32) {
        let mut table = self.table.lock();
        // Stable under the mutex; the place of another generation or object is not ours.
        if let Some(slot) = Place::of(objects.place(index)).slot()
            && self.owners[slot].load(Ordering::Relaxed) as u32 == index
        {
            self.close(&mut table, slot, objects);
        }
    }

    /// Close an open place. Its object is alive: the holder that vouches for it cannot withdraw that and
    /// then pass the table's mutex, which the caller holds.
    fn close(&self, table: &mut Table, slot: usize, objects: &impl CountedObjects) {
        let id = self.owners[slot].load(Ordering::Relaxed);
        let index = id as u32;
        self.owners[slot].store(0, Ordering::Relaxed);
        objects.place(index).store(0, Ordering::Relaxed);
        // Paired with the one in `count`: a thread that is not seen inside below sees the place closed.
        barrier::heavy();
        let sum = self.sum(slot, 0, outside).wrapping_sub(self.sum(slot, 1, outside));
        let base = std::mem::replace(&mut table.entries[slot].base, sum);
        objects.refs(index).gather((sum.wrapping_sub(base) as i64) / ONE as i64);
    }

    /// Objects whose references are counted per thread now.
    pub fn in_use(&self) -> u64 {
        self.owners.iter().filter(|owner| owner.load(Ordering::Relaxed) != 0).count() as u64
    }

    /// The sum of all threads' words of one kind, as `read`.
    fn sum(&self, slot: usize, put: usize, read: impl Fn(&AtomicU64) -> u64) -> u64 {
        let words = (0..thread_number::used())
            .map(|lane| read(&self.lines.get(lane).words[2 * slot + put]) & !INSIDE);
        words.fold(0, u64::wrapping_add)
    }
}

/// The word once its thread is not inside. The thread may have been preempted there.
fn outside(word: &AtomicU64) -> u64 {
    let mut looks = 0;
    loop {
        // Acquire: sees what the thread did with the references that it dropped.
        let now = word.load(Ordering::Acquire);
        if now & INSIDE == 0 {
            return now;
        }
        looks += 1;
        pause(looks);
    }
}

#[cfg(loom)]
fn pause(_looks: u32) {
    crate::primitives::spin_loop();
}

#[cfg(not(loom))]
fn pause(looks: u32) {
    if looks < 100 {
        crate::primitives::spin_loop();
    } else {
        std::thread::sleep(std::time::Duration::from_micros(50));
    }
}

/// References that a thread takes to one object before they should be spread.
const OFTEN: u32 = 64;
/// Weight of a reference that was taken at the same time as another thread's.
const CONTENDED: u32 = 8;
/// Objects that a thread watches, one per remainder of the id. A power of two, and as many as there are
/// places: fewer would forget the first of a round of files before it comes again.
const WATCHED: usize = 512;

thread_local! {
    /// Objects to which this thread takes references, and how often it did lately.
    static WATCH: [Cell<(u64, u32)>; WATCHED] = const { [const { Cell::new((0, 0)) }; WATCHED] };
}

/// This thread took a reference to `id` in its word, `contended` by others or not. True: it does so often,
/// and its references should be spread. That applies to a single thread too: its own line is cheaper than
/// the word. Other threads may also use the words beside it in the same cache line, which nobody can see.
#[inline]
pub fn often(id: u64, contended: bool) -> bool {
    if cfg!(loom) {
        // A model must run the same way each time; spreading has models of its own.
        return false;
    }
    let note = |watch: &[Cell<(u64, u32)>; WATCHED]| {
        let cell = &watch[id as usize % WATCHED];
        let (last, score) = cell.get();
        if last != id {
            cell.set(if score == 0 { (id, 1) } else { (last, score - 1) });
            return false;
        }
        let score = score + if contended { CONTENDED } else { 1 };
        cell.set((id, if score >= OFTEN { 0 } else { score }));
        score >= OFTEN
    };
    WATCH.try_with(note).unwrap_or(false)
}
