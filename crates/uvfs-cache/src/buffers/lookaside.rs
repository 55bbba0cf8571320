//! The leaves that a thread remembers: the last leaf that it used (the *last leaf*), and 256 others (the
//! *table*).
//!
//! A leaf of the index stands for 64 neighbouring blocks, so few leaves cover a thread's working set.
//! Finding a block costs the same for one leaf as for thousands: there is no list to search. The lookaside
//! remembers the address of a leaf, with its generation, and holds no reference. A leaf that was freed, or
//! became another one, is recognised by its generation when it is used ([`Index::entry`]). A block that was
//! evicted is recognised by its own generation. So nothing has to be flushed, and no thread interrupted,
//! when a device goes, a block is evicted or a thread ends.
//!
//! A key consists of a device's number, which is never issued twice, and the leaf's number. The table is
//! direct-mapped and *steps aside* while it does not pay. Each window of [`WINDOW`] misses needs as many
//! hits, about the point at which the time saved by hits balances the cost of looks. Otherwise the table is
//! skipped for [`PAUSE`] lookups, after the next bad window for twice as many, up to [`PAUSE_MAX`]. Then it
//! gets another window. The last leaf costs one comparison and is always tried.
//!
//! A thread that looks blocks up in a row waits for the loads that lead from a number to its block. So few
//! instructions stand between them. A leaf is remembered by its address, which is checked beside the load
//! and not before it, and the processor predicts which of the two looks finds it.
//!
//! An *isolated* thread ([`isolate`]) goes to the tree each time, and leaves nothing behind here.
//!
//! Everything here belongs to one thread, including the counters ([`thread_counters`]).

use std::cell::Cell;

use uvfs_sync::page_frames::FrameAt;
use uvfs_sync::pinned_blocks::BlockId;
use uvfs_sync::thread_counters::{self, BUFFERS};

use super::block_tree::{Entry, FAN_BITS, Index, NUMBER_BITS};

/// Leaves in the table, beside the last leaf.
const PLACES: usize = if cfg!(loom) { 1 } else { 256 };
/// Looks without a hit after which the table is judged: some of them only filled empty places.
const WINDOW: u32 = 2 * PLACES as u32;
/// Lookups for which the table is skipped at first.
const PAUSE: u32 = 4096;
/// The most lookups for which it is skipped.
const PAUSE_MAX: u32 = 1 << 16;

/// Every so-many-th table hit makes its leaf the last leaf. A thread that alternates between leaves then
/// need not store which, and the processor learns which of the two looks finds what.
const STAY: u64 = 8;

/// Bits of a leaf's number, below the device's in a key.
const LEAF_BITS: u32 = NUMBER_BITS - FAN_BITS;
/// The highest number that a device may have. One more would make [`NOTHING`].
const LAST_DEVICE: u64 = u64::MAX >> LEAF_BITS;
/// A key of no leaf.
const NOTHING: u64 = u64::MAX;

/// Words of a thread's counters.
const LAST: usize = BUFFERS;
const TABLE: usize = BUFFERS + 1;
const MISSES: usize = BUFFERS + 2;
const STALE: usize = BUFFERS + 3;
const BYPASSED: usize = BUFFERS + 4;

/// Activity of the lookasides of all threads since the program began. The counters only grow.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LookasideCounters {
    /// Lookups that hit the last leaf. (The block itself may be missing there.)
    pub last: u64,
    /// Lookups that hit a leaf of the table.
    pub table: u64,
    /// Leaves that were not remembered.
    pub misses: u64,
    /// Leaves that were remembered and had gone.
    pub stale: u64,
    /// Lookups that went to the tree because the table stood aside, or the thread is isolated.
    pub bypassed: u64,
}

/// The present counters. Sums over all threads, not of one moment.
pub fn counters() -> LookasideCounters {
    LookasideCounters::of(&thread_counters::sums())
}

/// This thread's part of [`counters`].
pub fn counters_of_this_thread() -> LookasideCounters {
    LookasideCounters::of(&thread_counters::mine())
}

impl LookasideCounters {
    /// The part of sums of [`thread_counters`] that is the lookasides'.
    pub fn of(sums: &[u64; thread_counters::WORDS]) -> Self {
        Self {
            last: sums[LAST],
            table: sums[TABLE],
            misses: sums[MISSES],
            stale: sums[STALE],
            bypassed: sums[BYPASSED],
        }
    }
}

#[inline]
fn count(word: usize) {
    // loom's threads share one thread of the system.
    if cfg!(not(loom)) {
        thread_counters::count(word);
    }
}

/// Count a hit: a remembered leaf was missed before, and so counted.
#[inline(always)]
fn count_hit(word: usize) {
    if cfg!(not(loom)) {
        thread_counters::count_again(word);
    }
}

/// The device's part of a key; 0 once numbers are used up: such a device is always looked up in its tree.
pub(super) fn tag(device: u64) -> u64 {
    if (1..LAST_DEVICE).contains(&device) { device << LEAF_BITS } else { 0 }
}

/// The key of a block's leaf, unique for each device and leaf.
#[inline(always)]
fn key(tag: u64, block: u64) -> u64 {
    tag | block >> FAN_BITS
}

/// A remembered leaf of a device.
#[derive(Clone, Copy, Debug)]
#[repr(align(32))]
struct Known {
    key: u64,
    leaf: FrameAt,
}

const UNKNOWN: Known = Known { key: NOTHING, leaf: FrameAt::NOWHERE };

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mode {
    On,
    Aside,
    Isolated,
}

/// The lookaside of one thread.
#[derive(Debug)]
pub(super) struct Lookaside {
    last: Cell<Known>,
    mode: Cell<Mode>,
    /// Looks without a hit until the window ends, or lookups until the pause ends.
    left: Cell<u32>,
    /// Hits of the window, which may never end.
    hits: Cell<u64>,
    /// The length of the next pause.
    pause: Cell<u32>,
    table: [Cell<Known>; PLACES],
}

thread_local! {
    // Without a destructor: a thread that ends may still look blocks up.
    static MINE: Lookaside = const { Lookaside::new() };
}

/// Whether this thread works without a lookaside from now on. A thread begins with one.
pub fn isolate(isolated: bool) {
    MINE.with(|mine| mine.isolate(isolated));
}

/// A block's entry, through this thread's lookaside. `None` may be wrong. `block` is at most
/// [`super::MAX_BLOCK`].
#[inline(always)]
pub(super) fn find(index: &Index, tag: u64, block: u64) -> Option<BlockId> {
    if cfg!(loom) {
        // loom's threads would share the lookaside.
        return walk(index, block).1;
    }
    let key = key(tag, block);
    // Nothing more inside `with`, or it becomes a call and its arguments go through memory.
    if let Entry::Is(id) = MINE.with(|mine| mine.last.get()).find(index, key, block) {
        count_hit(LAST);
        return id;
    }
    let (known, is_on) = MINE.with(|mine| (mine.place(tag, block).get(), mine.mode.get() == Mode::On));
    if is_on && let Entry::Is(id) = known.find(index, key, block) {
        count_hit(TABLE);
        MINE.with(|mine| mine.hit(known));
        return id;
    }
    find_missed(index, tag, block)
}

#[inline(never)]
fn find_missed(index: &Index, tag: u64, block: u64) -> Option<BlockId> {
    MINE.with(|mine| mine.find_missed(index, tag, block))
}

/// The leaf, and the entry.
#[inline]
fn walk(index: &Index, block: u64) -> (Option<FrameAt>, Option<BlockId>) {
    let Some(leaf) = index.leaf(block).map(|leaf| index.at(leaf)) else { return (None, None) };
    match index.entry(leaf, block) {
        Entry::Is(id) => (Some(leaf), id),
        Entry::Stale => (None, None),
    }
}

impl Known {
    /// The leaf's answer about a block, if it is the block's leaf.
    #[inline(always)]
    fn find(self, index: &Index, key: u64, block: u64) -> Entry {
        if self.key == key { index.entry(self.leaf, block) } else { Entry::Stale }
    }
}

impl Lookaside {
    pub(super) const fn new() -> Self {
        Self {
            last: Cell::new(UNKNOWN),
            mode: Cell::new(Mode::On),
            left: Cell::new(WINDOW),
            hits: Cell::new(0),
            pause: Cell::new(PAUSE),
            table: [const { Cell::new(UNKNOWN) }; PLACES],
        }
    }

    /// As [`find`], with a given lookaside.
    #[cfg(test)]
    pub(super) fn find(&self, index: &Index, tag: u64, block: u64) -> Option<BlockId> {
        let key = key(tag, block);
        if let Entry::Is(id) = self.last.get().find(index, key, block) {
            return id;
        }
        let known = self.place(tag, block).get();
        if self.mode.get() == Mode::On
            && let Entry::Is(id) = known.find(index, key, block)
        {
            self.hit(known);
            return id;
        }
        self.find_missed(index, tag, block)
    }

    #[inline(always)]
    fn place(&self, tag: u64, block: u64) -> &Cell<Known> {
        // Chosen by the low bits of the leaf and of the device.
        &self.table[((tag >> (LEAF_BITS - FAN_BITS) ^ block) >> FAN_BITS) as usize % PLACES]
    }

    /// A table hit.
    #[inline(always)]
    fn hit(&self, known: Known) {
        let hits = self.hits.get() + 1;
        self.hits.set(hits);
        if hits.is_multiple_of(STAY) {
            self.last.set(known);
        }
    }

    #[inline(always)]
    fn find_missed(&self, index: &Index, tag: u64, block: u64) -> Option<BlockId> {
        if self.mode.get() != Mode::On || tag == 0 {
            return self.find_without(index, tag, block);
        }
        let key = key(tag, block);
        let place = self.place(tag, block);
        count(if place.get().key == key { STALE } else { MISSES });
        let (leaf, id) = walk(index, block);
        if let Some(leaf) = leaf {
            let known = Known { key, leaf };
            place.set(known);
            self.last.set(known);
        }
        self.left.set(self.left.get() - 1);
        if self.left.get() == 0 {
            self.judge();
        }
        id
    }

    /// The table stands aside.
    #[inline]
    fn find_without(&self, index: &Index, tag: u64, block: u64) -> Option<BlockId> {
        count(BYPASSED);
        let (leaf, id) = walk(index, block);
        if self.mode.get() == Mode::Aside && tag != 0 {
            if let Some(leaf) = leaf {
                self.last.set(Known { key: key(tag, block), leaf });
            }
            self.left.set(self.left.get() - 1);
            if self.left.get() == 0 {
                self.mode.set(Mode::On);
                self.left.set(WINDOW);
            }
        }
        id
    }

    /// A window is over: does the table pay?
    #[cold]
    fn judge(&self) {
        if self.hits.replace(0) >= u64::from(WINDOW) {
            self.pause.set(PAUSE);
            self.left.set(WINDOW);
        } else {
            self.mode.set(Mode::Aside);
            self.left.set(self.pause.get());
            self.pause.set((self.pause.get() * 2).min(PAUSE_MAX));
        }
    }

    fn isolate(&self, isolated: bool) {
        self.mode.set(if isolated { Mode::Isolated } else { Mode::On });
        self.left.set(WINDOW);
        self.hits.set(0);
        self.pause.set(PAUSE);
        self.last.set(UNKNOWN);
        self.table.iter().for_each(|place| place.set(UNKNOWN));
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::super::block_tree::MAX_BLOCK;
    use super::*;
    use uvfs_sync::pinned_blocks::Blocks;

    const FAN: u64 = 1 << FAN_BITS;

    /// An index of `n` leaves with one block each, and the blocks' memory.
    fn leaves(n: u32) -> (Index, Blocks) {
        let (index, blocks) = (Index::reserve(n).unwrap(), Blocks::reserve(512, n + 1).unwrap());
        for i in 0..n {
            let id = blocks.fill(i + 1, &[]).unwrap().id();
            index.insert(u64::from(i) * FAN, id).unwrap();
        }
        (index, blocks)
    }

    fn finds(mine: &Lookaside, index: &Index, tag: u64, blocks: impl Iterator<Item = u64>) {
        blocks.for_each(|block| assert!(mine.find(index, tag, block).is_some(), "{block}"));
    }

    #[test]
    fn a_thread_that_stays_within_its_leaves_keeps_them() {
        let (index, _blocks) = leaves(PLACES as u32);
        let mine = Lookaside::new();
        finds(&mine, &index, tag(1), (0..20 * PLACES as u64).map(|i| i % PLACES as u64 * FAN));
        assert_eq!(mine.mode.get(), Mode::On);
        assert!(mine.table.iter().all(|place| place.get().key != NOTHING));
    }

    #[test]
    fn leaves_step_aside_where_they_do_not_pay_and_come_back() {
        const LEAVES: u32 = PLACES as u32 * 3 / 2;
        let (index, _blocks) = leaves(LEAVES);
        let (mine, next) = (Lookaside::new(), Cell::new(0));
        // Cyclically: two leaves compete for half of the places.
        let step = || {
            finds(&mine, &index, tag(1), std::iter::once(u64::from(next.get() % LEAVES) * FAN));
            next.set(next.get() + 1);
        };
        let until_judged =
            || (0..20 * WINDOW).take_while(|_| mine.mode.get() == Mode::On).for_each(|_| step());
        for pause in [PAUSE, 2 * PAUSE] {
            until_judged();
            assert_eq!((mine.mode.get(), mine.left.get()), (Mode::Aside, pause));
            (0..pause).for_each(|_| step());
            assert_eq!((mine.mode.get(), mine.left.get()), (Mode::On, WINDOW));
        }
        // It pays again, and this time for good.
        finds(&mine, &index, tag(1), (0..2 * u64::from(WINDOW)).map(|i| i % 2 * FAN));
        assert_eq!((mine.mode.get(), mine.pause.get()), (Mode::On, 4 * PAUSE));
        (0..20 * WINDOW).take_while(|_| mine.pause.get() != PAUSE).for_each(|_| step());
        assert_eq!((mine.mode.get(), mine.pause.get()), (Mode::On, PAUSE));
    }

    #[test]
    fn an_isolated_thread_leaves_nothing_behind() {
        let (index, _blocks) = leaves(4);
        let mine = Lookaside::new();
        finds(&mine, &index, tag(1), [0, FAN].into_iter());
        mine.isolate(true);
        finds(&mine, &index, tag(1), (0..1000).map(|i| i % 4 * FAN));
        let nothing = |place: &Cell<Known>| place.get().key == NOTHING;
        assert!(nothing(&mine.last) && mine.table.iter().all(nothing));
        mine.isolate(false);
        finds(&mine, &index, tag(1), [0].into_iter());
        assert!(!nothing(&mine.last));
    }

    #[test]
    fn devices_do_not_see_each_others_leaves() {
        let ((one, first), (two, second)) = (leaves(2), leaves(2));
        assert!(first.kill(one.get(0).unwrap()) && second.kill(two.get(FAN).unwrap()));
        two.remove(FAN);
        let mine = Lookaside::new();
        for _ in 0..3 {
            assert_eq!(mine.find(&one, tag(1), FAN), one.get(FAN));
            assert_eq!(mine.find(&two, tag(2), FAN), None);
            // Out of numbers: found, and not remembered.
            assert_eq!(mine.find(&two, tag(LAST_DEVICE), 0), two.get(0));
        }
        assert_eq!((tag(0), tag(LAST_DEVICE)), (0, 0));
        assert!(tag(LAST_DEVICE - 1) | ((1 << LEAF_BITS) - 1) != NOTHING);
    }

    /// A thread remembers leaves of devices that have gone. Planted bug: buffers-device-numbers-come-round.
    #[test]
    fn each_bit_of_a_devices_number_counts() {
        let other = |bit: u32| 1 ^ 1 << bit;
        assert!((1..=LAST_DEVICE.ilog2()).all(|bit| other(bit) < LAST_DEVICE && tag(other(bit)) != tag(1)));
        let keys = [tag(1), tag(2)].map(|tag| [key(tag, 0), key(tag, MAX_BLOCK)]);
        assert!(keys[0][1] < keys[1][0], "{keys:x?}");
    }

    #[test]
    fn a_leaf_that_has_become_another_ones_is_not_used() {
        let (index, blocks) = leaves(3);
        let mine = Lookaside::new();
        let id = mine.find(&index, tag(1), FAN).unwrap();
        index.remove(FAN);
        // The node serves other blocks now.
        index.insert(9 * FAN, index.get(0).unwrap()).unwrap();
        assert_eq!(mine.find(&index, tag(1), FAN), None);
        assert!(blocks.kill(id));
        assert_eq!(mine.find(&index, tag(1), 9 * FAN), index.get(0));
    }
}
