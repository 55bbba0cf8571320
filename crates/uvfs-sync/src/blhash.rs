//! The bit-locked hash: index in a table of one-line buckets, found without a lock.
//!
//! A bucket is one cache line: a header (sequence, *split level*, waiters and lock bits), eight
//! plus two one-byte tags, ten 32-bit indices, and a link to an overflow line of the same shape,
//! which belongs to the head's sequence. The table grows by linear hashing: one bucket is split
//! at a time, so an insert never pays for more than one bucket, however large the table is.
//!
//! **What protects what.** Tags, indices and links of a chain are written under the head's lock
//! bit. A reader takes nothing: candidates it finds are checked by the caller against the object
//! itself (a dentry's own sequence), so a torn tag or a moved index costs a retry, never a wrong
//! hit. A *miss* is believed only if the header did not move over the whole scan.
//!
//! **Level** (design rule 5). A bucket at level *l* holds exactly the entries whose hash agrees
//! with the bucket's number in the low *l* bits. Reader and locker check that with the level they
//! read from the bucket itself; the table's own idea of its size is only a hint. Without that
//! check a reader that computed its bucket before a split finds nothing in it afterwards: a false
//! ENOENT.
//!
//! **Re-key** (rule 6). Hashes are keyed with random bits. A chain over [`LONG_CHAIN`] lines is
//! counted and starts a move of all entries into a second table under a new key, a few buckets
//! with each insert and remove. While that goes on, readers look into the old table first, then
//! into the new one: entries move only in that direction, and both buckets are locked while one does.
//!
//! Nothing is allocated or first touched under a bucket's lock. Lock order: buckets by table
//! (old before new), then by number; inside: nothing of this crate.

use crossbeam_utils::CachePadded;

use crate::arena::{Arena, Slot};
use crate::bitlock::{self, LOCK, WAIT};
use crate::primitives::{
    AtomicBool, AtomicU32, AtomicU64, Mutex, Ordering, SHARDS, fence, shard, spin_loop,
};
use crate::slab::{Pool, Slab};

const SLOTS: usize = 10;
/// Entries a bucket holds on the average before one is split.
const LOAD: u64 = 6;
/// Lines of a chain beyond which the table is re-keyed.
pub const LONG_CHAIN: usize = if cfg!(loom) { 1 } else { 8 };
const LEVEL_SHIFT: u32 = 2;
const LEVEL_MASK: u64 = 0x3f << LEVEL_SHIFT;
const SEQ_ONE: u64 = 1 << 8;
const START_LEVEL: u32 = if cfg!(loom) { 0 } else { 6 };
/// Buckets of the old table that an insert or remove moves along while a re-key goes on.
const MOVE_STEP: u32 = 2;

/// One cache line of a chain. The header is used in heads only.
#[derive(Debug)]
#[repr(C, align(64))]
struct Line {
    /// `LOCK`, `WAIT`, level + 1 (0: this bucket does not exist yet), sequence.
    header: AtomicU64,
    /// Tags of slots 0 to 7, one byte each.
    tags: AtomicU64,
    /// Tags of slots 8 and 9.
    more_tags: AtomicU32,
    next: AtomicU32,
    slots: [AtomicU32; SLOTS],
}

impl Line {
    /// One bit for each slot whose tag is (probably) `tag`: a borrow in the byte-wise comparison
    /// can add a slot, never hide one.
    #[inline]
    fn candidates(&self, tag: u8) -> u32 {
        const ONES: u64 = 0x0101_0101_0101_0101;
        let zero_bytes = |x: u64| x.wrapping_sub(ONES) & !x & (ONES << 7);
        let low = zero_bytes(self.tags.load(Ordering::Relaxed) ^ (u64::from(tag) * ONES));
        let high = u64::from(self.more_tags.load(Ordering::Relaxed)) ^ (u64::from(tag) * 0x0101);
        let high = zero_bytes(high | !0xffff) & 0x8080;
        // Gather bit 7 of each byte into one bit a slot.
        let low = ((low >> 7).wrapping_mul(0x0102_0408_1020_4080) >> 56) as u32;
        low | ((high >> 7 & 1) as u32) << 8 | ((high >> 15 & 1) as u32) << 9
    }

    fn tag(&self, slot: usize) -> u8 {
        match slot {
            0..8 => (self.tags.load(Ordering::Relaxed) >> (8 * slot)) as u8,
            _ => (self.more_tags.load(Ordering::Relaxed) >> (8 * (slot - 8))) as u8,
        }
    }

    /// Under the head's lock: plain load and store do.
    fn set_tag(&self, slot: usize, tag: u8) {
        if slot < 8 {
            let shift = 8 * slot;
            let rest = self.tags.load(Ordering::Relaxed) & !(0xff << shift);
            self.tags.store(rest | u64::from(tag) << shift, Ordering::Relaxed);
        } else {
            let shift = 8 * (slot - 8);
            let rest = self.more_tags.load(Ordering::Relaxed) & !(0xff << shift);
            self.more_tags.store(rest | u32::from(tag) << shift, Ordering::Relaxed);
        }
    }

    fn clear_from(&self, slot: usize) {
        for i in slot..SLOTS {
            self.slots[i].store(0, Ordering::Relaxed);
            self.set_tag(i, 0);
        }
    }
}

#[cfg(not(loom))]
const _: () = assert!(size_of::<Line>() == 64);

// SAFETY: atomics only, all-zero is an empty line of a bucket that does not exist, no drop.
unsafe impl Slot for Line {
    #[cfg(loom)]
    fn zero() -> Self {
        Self {
            header: AtomicU64::new(0),
            tags: AtomicU64::new(0),
            more_tags: AtomicU32::new(0),
            next: AtomicU32::new(0),
            slots: std::array::from_fn(|_| AtomicU32::new(0)),
        }
    }
}

/// The random key of one table; what a name is hashed with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Key(pub u64, pub u64);

/// A name's hashes: under the current table's key and, while a re-key goes on, under the next
/// one's. Made by [`BlHash::hashes`]; valid while the epoch lasts.
#[derive(Clone, Copy, Debug)]
pub struct Hashes {
    epoch: u32,
    hash: [u64; 2],
}

/// What the table must be able to ask about an object that it holds the index of. Called under
/// the lock of the object's bucket, so it must not lock or block.
pub trait Objects {
    /// Low 32 bits of the object's hash in the table where it is now.
    fn stored_hash(&self, index: u32) -> u32;
    /// The object's whole hash under another key.
    fn rehash(&self, index: u32, key: Key) -> u64;
    /// The object moves to a table where these are the low 32 bits of its hash.
    fn store_hash(&self, index: u32, hash: u32);
}

/// Result of a scan without locks.
#[derive(Debug, PartialEq, Eq)]
pub enum Scan<R, M> {
    /// The caller's closure accepted a candidate.
    Hit(R),
    /// Certain: no bucket that could hold it moved during the scan. Carries what `on_miss` read
    /// between the two looks at the buckets' sequences.
    Miss(M),
    /// Something moved; look again (or take the lock after a few times).
    Moved,
}

#[derive(Debug)]
struct Table {
    heads: Arena<Line>,
    /// `(level, buckets split at this level)` packed; a hint for readers, the truth for the
    /// splitter. Only grows while the table is in use.
    size: AtomicU64,
    /// The key's two words; written only while the table is not in use.
    key: [AtomicU64; 2],
}

impl Table {
    fn new(buckets: u32) -> std::io::Result<Self> {
        let table = Self {
            heads: Arena::reserve(buckets)?,
            size: AtomicU64::new(0),
            key: [AtomicU64::new(0), AtomicU64::new(0)],
        };
        Ok(table)
    }

    /// Make the table empty and usable under a new key. Nobody uses it.
    fn start(&self, key: Key) {
        self.key[0].store(key.0, Ordering::Relaxed);
        self.key[1].store(key.1, Ordering::Relaxed);
        for b in 0..1u32 << START_LEVEL {
            let head = self.heads.get(b);
            // The sequence goes on from where it was, so that a reader who slept through the
            // table's last use cannot take this one's header for the one it read.
            let seq = head.header.load(Ordering::Relaxed) & !(LEVEL_MASK | WAIT | LOCK);
            let header = seq + SEQ_ONE + (u64::from(START_LEVEL + 1) << LEVEL_SHIFT);
            head.header.store(header, Ordering::Release);
        }
        self.size.store(u64::from(START_LEVEL) << 32, Ordering::Release);
    }

    fn key(&self) -> Key {
        Key(self.key[0].load(Ordering::Relaxed), self.key[1].load(Ordering::Relaxed))
    }

    fn level_and_split(&self) -> (u32, u32) {
        let size = self.size.load(Ordering::Acquire);
        ((size >> 32) as u32, size as u32)
    }

    fn buckets(&self) -> u64 {
        let (level, split) = self.level_and_split();
        (1u64 << level) + u64::from(split)
    }

    /// Where the hash probably lives.
    #[inline]
    fn guess(&self, hash: u64) -> u32 {
        let (level, split) = self.level_and_split();
        let low = hash as u32 & mask(level);
        if low < split { hash as u32 & mask(level + 1) } else { low }
    }

    /// Lock the buckets that the hashes belong to, in rising order; one lock if they are the same.
    /// False, with nothing locked: `valid` says that the table is not the one to look in any more.
    fn lock(&self, hashes: &[u64], buckets: &mut [u32], emptied: bool, valid: impl Fn() -> bool) -> bool {
        loop {
            for (bucket, hash) in buckets.iter_mut().zip(hashes) {
                *bucket = self.guess(*hash);
            }
            let (low, high) = (buckets.iter().min().copied(), buckets.iter().max().copied());
            let (Some(low), Some(high)) = (low, high) else { return false };
            bitlock::lock(&self.heads.get(low).header);
            if high != low {
                bitlock::lock(&self.heads.get(high).header);
            }
            // A split may have come between the guess and the lock: then the level differs and
            // our entries are elsewhere.
            let right = |(bucket, hash): (&u32, &u64)| {
                belongs(self.heads.get(*bucket).header.load(Ordering::Relaxed), *hash, *bucket, emptied)
            };
            let valid = valid();
            if valid && buckets.iter().zip(hashes).all(right) {
                // Readers that see any of our stores must see the lock bits too (rule 3).
                fence(Ordering::Release);
                return true;
            }
            if high != low {
                bitlock::unlock(&self.heads.get(high).header);
            }
            bitlock::unlock(&self.heads.get(low).header);
            if !valid {
                return false;
            }
            spin_loop();
        }
    }

    fn unlock(&self, bucket: u32) {
        bitlock::unlock_with(&self.heads.get(bucket).header, |w| w.wrapping_add(SEQ_ONE));
    }
}

#[inline]
fn mask(level: u32) -> u32 {
    ((1u64 << level) - 1) as u32
}

/// Whether a bucket with this header holds what has this hash. `emptied`: the table is the old one
/// of a re-key, which does not split any more, and whose buckets get level 0 when they are emptied.
#[inline]
fn belongs(header: u64, hash: u64, bucket: u32, emptied: bool) -> bool {
    match ((header & LEVEL_MASK) >> LEVEL_SHIFT) as u32 {
        0 => emptied,
        level => hash as u32 & mask(level - 1) == bucket,
    }
}

/// The table that is current in an epoch; the other one is its successor while a re-key goes on.
#[inline]
fn current_of(epoch: u32) -> usize {
    (epoch >> 1 & 1) as usize
}

#[inline]
fn is_moving(epoch: u32) -> bool {
    epoch & 1 != 0
}

#[inline]
fn tag_of(hash: u64) -> u8 {
    (hash >> 56) as u8
}

/// The hash table. `u32` indices of objects in; the objects themselves are the caller's.
#[derive(Debug)]
pub struct BlHash {
    tables: [Table; 2],
    overflow: Arena<Line>,
    overflow_pool: Pool,
    overflow_slab: Slab,
    /// Odd while a re-key goes on; the next bit says which table is current.
    epoch: AtomicU32,
    want_rekey: AtomicBool,
    grow: Mutex<Grower>,
    counts: [CachePadded<AtomicU64>; SHARDS],
    long_chains: AtomicU64,
    rekeys: AtomicU64,
}

/// State of the one thread that splits or moves buckets.
#[derive(Debug, Default)]
struct Grower {
    /// Next bucket of the old table to move.
    cursor: u32,
    /// Kept between splits, so that none of them allocates under a lock.
    entries: Vec<(u32, u8)>,
    lines: Vec<u32>,
}

/// Locked buckets of `N` hashes, in both tables while a re-key goes on. Dropping it unlocks and
/// moves the buckets' sequences.
#[derive(Debug)]
pub struct Locked<'a, const N: usize> {
    hash: &'a BlHash,
    epoch: u32,
    /// How many of the tables are locked (the old one first).
    tables: usize,
    buckets: [[u32; N]; 2],
    /// Overflow lines at hand; freed ones end up here too, and go back after the unlock.
    spare: [u32; N],
}

impl<const N: usize> Locked<'_, N> {
    fn table(&self, step: usize) -> &Table {
        &self.hash.tables[(current_of(self.epoch) + step) & 1]
    }

    /// Insert an object under the `which`-th hash. It has been filled before; this publishes it.
    ///
    /// # Errors
    /// [`Full`]: nothing was changed; lock again with a spare.
    pub fn insert(&mut self, which: usize, h: &Hashes, index: u32) -> Result<(), Full> {
        let step = self.tables - 1;
        let head = self.table(step).heads.get(self.buckets[step][which]);
        let mut spare = self.spare[which];
        let done = self.hash.put(head, index, tag_of(h.hash[step]), &mut spare);
        self.spare[which] = spare;
        if !done {
            return Err(Full);
        }
        self.hash.counts[shard()].fetch_add(1, Ordering::Relaxed);
        Ok(())
    }

    /// Remove an object that is there under the `which`-th hash. False: it is not.
    pub fn remove(&mut self, which: usize, index: u32) -> bool {
        for step in 0..self.tables {
            let head = self.table(step).heads.get(self.buckets[step][which]);
            let mut freed = 0;
            if self.hash.take(head, index, |line| freed = line) {
                if freed != 0 {
                    self.keep(freed);
                }
                self.hash.counts[shard()].fetch_sub(1, Ordering::Relaxed);
                return true;
            }
        }
        false
    }

    fn keep(&mut self, line: u32) {
        match self.spare.iter_mut().find(|s| **s == 0) {
            Some(s) => *s = line,
            // Taking the slab's locks under a bucket's is allowed (they are last in the order);
            // it is only avoided where it can be.
            None => self.hash.free_line(line),
        }
    }

    /// The indices in the `which`-th bucket, both tables.
    pub fn for_each(&self, which: usize, mut f: impl FnMut(u32)) {
        for step in 0..self.tables {
            let mut line = self.table(step).heads.get(self.buckets[step][which]);
            loop {
                for slot in &line.slots {
                    let index = slot.load(Ordering::Relaxed);
                    if index != 0 {
                        f(index);
                    }
                }
                match line.next.load(Ordering::Relaxed) {
                    0 => break,
                    next => line = self.hash.overflow.get(next),
                }
            }
        }
    }
}

impl<const N: usize> Drop for Locked<'_, N> {
    fn drop(&mut self) {
        for step in (0..self.tables).rev() {
            let mut last = None;
            // At most two, and equal ones were locked once.
            for &bucket in &self.buckets[step] {
                if last != Some(bucket) {
                    self.table(step).unlock(bucket);
                }
                last = Some(bucket);
            }
        }
        for line in self.spare {
            if line != 0 {
                self.hash.free_line(line);
            }
        }
    }
}

/// There is no room in the chain: lock again with a spare line.
#[derive(Debug)]
pub struct Full;

impl BlHash {
    /// A table for up to about `capacity` objects, keyed with random bits from the system.
    ///
    /// # Errors
    /// ENOMEM where not even a small reservation fits; an error of `getrandom(2)`.
    pub fn new(capacity: u32) -> std::io::Result<Self> {
        let buckets = (capacity / LOAD as u32).max(2 << START_LEVEL).next_power_of_two();
        let overflow = Arena::reserve((buckets / 2).max(if cfg!(loom) { 4 } else { 4096 }))?;
        let this = Self {
            tables: [Table::new(buckets)?, Table::new(buckets)?],
            overflow_pool: Pool::new(overflow.capacity()),
            overflow,
            overflow_slab: Slab::new(),
            epoch: AtomicU32::new(0),
            want_rekey: AtomicBool::new(false),
            grow: Mutex::new(Grower::default()),
            counts: std::array::from_fn(|_| CachePadded::new(AtomicU64::new(0))),
            long_chains: AtomicU64::new(0),
            rekeys: AtomicU64::new(0),
        };
        this.tables[0].start(random_key()?);
        Ok(this)
    }

    /// Hash something with the key(s) in force. `f` is called once, or twice during a re-key.
    #[inline]
    pub fn hashes(&self, f: impl Fn(Key) -> u64) -> Hashes {
        let epoch = self.epoch.load(Ordering::Acquire);
        let current = current_of(epoch);
        let first = f(self.tables[current].key());
        let second = if !is_moving(epoch) { 0 } else { f(self.tables[1 - current].key()) };
        Hashes { epoch, hash: [first, second] }
    }

    /// Whether the keys changed since.
    #[inline]
    pub fn is_current(&self, h: &Hashes) -> bool {
        self.epoch.load(Ordering::Acquire) == h.epoch
    }

    /// Derive hashes of the same epoch (mixing a parent into a name's hash).
    #[inline]
    pub fn derive(h: &Hashes, f: impl Fn(u64) -> u64) -> Hashes {
        Hashes { epoch: h.epoch, hash: [f(h.hash[0]), f(h.hash[1])] }
    }

    /// The low 32 bits to keep in an object that is inserted under these hashes.
    pub fn to_store(h: &Hashes) -> u32 {
        h.hash[usize::from(is_moving(h.epoch))] as u32
    }

    /// Look for an object without storing anything. `accept` is shown each index whose tag fits
    /// and decides; `on_miss` runs after the scan and before the sequences are looked at again.
    #[inline]
    pub fn scan<R, M>(
        &self,
        h: &Hashes,
        mut accept: impl FnMut(u32) -> Option<R>,
        on_miss: impl FnOnce() -> M,
    ) -> Scan<R, M> {
        let current = current_of(h.epoch);
        let moving = is_moving(h.epoch);
        let (hit, first) = self.scan_table(&self.tables[current], h.hash[0], moving, &mut accept);
        if let Some(r) = hit {
            return Scan::Hit(r);
        }
        let mut second = None;
        if moving {
            // Old first, then new: what was not in the old one when we looked has been moved
            // before, and the new one has it by now, or it is gone.
            let next = &self.tables[1 - current];
            let (hit, header) = self.scan_table(next, h.hash[1], false, &mut accept);
            if let Some(r) = hit {
                return Scan::Hit(r);
            }
            second = Some((next, header));
        }
        let m = on_miss();
        // Pairs with the release fence in `Table::lock`: if any load above saw a store made under
        // a bucket's lock, one of these sees the lock bit or the moved sequence.
        fence(Ordering::Acquire);
        let still = |table: &Table, seen: Option<(u32, u64)>| match seen {
            Some((bucket, header)) => {
                table.heads.get(bucket).header.load(Ordering::Relaxed) & !WAIT == header
            }
            None => false,
        };
        if still(&self.tables[current], first)
            && second.is_none_or(|(table, seen)| still(table, seen))
            && self.is_current(h)
        {
            Scan::Miss(m)
        } else {
            Scan::Moved
        }
    }

    /// Scan one table's chain; with what was seen of its header if that may prove a miss.
    #[inline]
    fn scan_table<R>(
        &self,
        table: &Table,
        hash: u64,
        emptied: bool,
        accept: &mut impl FnMut(u32) -> Option<R>,
    ) -> (Option<R>, Option<(u32, u64)>) {
        let bucket = table.guess(hash);
        let head = table.heads.get(bucket);
        let header = head.header.load(Ordering::Acquire);
        let proof =
            (header & LOCK == 0 && belongs(header, hash, bucket, emptied)).then_some((bucket, header & !WAIT));
        let tag = tag_of(hash);
        let mut line = head;
        // A link read from a line that is being recycled may lead anywhere, even in a circle:
        // the walk is bounded and the header check decides.
        for _ in 0..1 << 16 {
            let mut candidates = line.candidates(tag);
            while candidates != 0 {
                let i = candidates.trailing_zeros() as usize;
                candidates &= candidates - 1;
                // Acquire: pairs with the release store of `put`, so that the object is seen as
                // it was filled before it was published (rule 16).
                let index = line.slots[i].load(Ordering::Acquire);
                if index != 0
                    && let Some(r) = accept(index)
                {
                    return (Some(r), None);
                }
            }
            let next = line.next.load(Ordering::Acquire);
            if next == 0 {
                return (None, proof);
            }
            line = self.overflow.get(next);
        }
        (None, None)
    }

    /// Lock the buckets of one hash, or of two in order (rule 12). With `spare`, overflow lines are
    /// at hand, as [`Full`] asks for. `None`: the keys changed, hash again (both with one epoch).
    pub fn lock<const N: usize>(&self, hashes: [&Hashes; N], spare: bool) -> Option<Locked<'_, N>> {
        let epoch = hashes[0].epoch;
        if hashes.iter().any(|h| h.epoch != epoch) {
            return None;
        }
        let tables = 1 + usize::from(is_moving(epoch));
        let mut locked = Locked { hash: self, epoch, tables: 0, buckets: [[0; N]; 2], spare: [0; N] };
        if spare {
            for s in &mut locked.spare {
                *s = self.new_line().unwrap_or(0);
            }
        }
        for step in 0..tables {
            let table = &self.tables[(current_of(epoch) + step) & 1];
            let hash = hashes.map(|h| h.hash[step]);
            // A re-key that began or ended before we have the locks has changed where entries
            // belong; one that begins after visits our buckets only when we let go of them.
            let emptied = step + 1 < tables;
            let valid = || self.epoch.load(Ordering::Acquire) == epoch;
            if !table.lock(&hash, &mut locked.buckets[step], emptied, valid) {
                return None;
            }
            locked.tables += 1;
        }
        Some(locked)
    }

    fn new_line(&self) -> Option<u32> {
        let index = self.overflow_slab.alloc(&self.overflow_pool)?;
        let line = self.overflow.get(index);
        // First touched here, not under a lock. A reader may still be in the line's last chain:
        // it sees empty slots, and that chain's head has moved.
        fence(Ordering::Release);
        line.next.store(0, Ordering::Relaxed);
        line.clear_from(0);
        Some(index)
    }

    fn free_line(&self, index: u32) {
        self.overflow_slab.free(&self.overflow_pool, index);
    }

    /// Objects in the table (approximately, while it changes).
    pub fn len(&self) -> u64 {
        self.counts.iter().fold(0u64, |n, c| n.wrapping_add(c.load(Ordering::Relaxed)))
    }

    /// Whether [`BlHash::len`] is 0.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Bytes of bucket and overflow lines that are in use.
    pub fn bytes(&self) -> u64 {
        let epoch = self.epoch.load(Ordering::Relaxed);
        let current = current_of(epoch);
        let mut lines = self.tables[current].buckets();
        if is_moving(epoch) {
            lines += self.tables[1 - current].buckets();
        }
        (lines + self.overflow_slab.chunk_count() as u64 * u64::from(crate::slab::CHUNK)) * 64
    }

    /// `(chains that were found too long, re-keys begun)`.
    pub fn long_chains(&self) -> (u64, u64) {
        (self.long_chains.load(Ordering::Relaxed), self.rekeys.load(Ordering::Relaxed))
    }

    /// After an insert or remove, with nothing locked: split a bucket or move some along, if that
    /// is due. O(1) buckets.
    pub fn maintain(&self, objects: &impl Objects) {
        let moving = is_moving(self.epoch.load(Ordering::Relaxed));
        let wanted = self.want_rekey.load(Ordering::Relaxed);
        if !moving && !wanted && !self.counts[shard()].load(Ordering::Relaxed).is_multiple_of(LOAD) {
            return;
        }
        let Some(mut grower) = self.grow.try_lock() else { return };
        let mut epoch = self.epoch.load(Ordering::Acquire);
        if wanted && !is_moving(epoch) {
            self.start_rekey(&mut grower, epoch);
        }
        if is_moving(epoch) {
            self.move_step(&mut grower, epoch, objects);
        }
        epoch = self.epoch.load(Ordering::Acquire);
        let target = (current_of(epoch) + usize::from(is_moving(epoch))) & 1;
        // Two, so that a table that fell behind (the mutex was taken) catches up.
        for _ in 0..2 {
            if self.len() <= self.tables[target].buckets() * LOAD
                || !self.split(&mut grower, &self.tables[target], objects)
            {
                break;
            }
        }
    }

    /// Split the next bucket in turn. False when the reservation is used up.
    fn split(&self, grower: &mut Grower, table: &Table, objects: &impl Objects) -> bool {
        let (level, split) = table.level_and_split();
        let old = split;
        let new = split + (1u32 << level);
        if new >= table.heads.capacity() || level >= 30 {
            return false;
        }
        // First touch of the new bucket's page, before anything is locked.
        table.heads.get(new).header.fetch_or(0, Ordering::Relaxed);
        let head = table.heads.get(old);
        loop {
            bitlock::lock(&head.header);
            if self.gather(head, grower) {
                break;
            }
            bitlock::unlock(&head.header);
            grower.reserve_more();
        }
        fence(Ordering::Release);
        let new_head = table.heads.get(new);
        // Nobody locks a bucket of level 0 for longer than it takes to see that.
        bitlock::lock(&new_head.header);
        fence(Ordering::Release);
        let mut lines = std::mem::take(&mut grower.lines);
        let high = 1u32 << level;
        let goes = |e: &(u32, u8)| objects.stored_hash(e.0) & high != 0;
        self.refill(head, grower.entries.iter().filter(|e| !goes(e)), &mut lines);
        self.refill(new_head, grower.entries.iter().filter(|e| goes(e)), &mut lines);
        let with_level =
            |w: u64| (w & !LEVEL_MASK).wrapping_add(SEQ_ONE) | u64::from(level + 2) << LEVEL_SHIFT;
        // New before old: who is sent on by the old bucket's level finds the new one in order.
        bitlock::unlock_with(&new_head.header, with_level);
        bitlock::unlock_with(&head.header, with_level);
        let size = if split + 1 == 1 << level {
            u64::from(level + 1) << 32
        } else {
            u64::from(level) << 32 | u64::from(split + 1)
        };
        table.size.store(size, Ordering::Release);
        for line in lines.drain(..) {
            self.free_line(line);
        }
        grower.lines = lines;
        true
    }

    /// Read a locked chain into `grower`. False when its vectors are too small (they may not
    /// grow under a lock).
    fn gather(&self, head: &Line, grower: &mut Grower) -> bool {
        grower.entries.clear();
        grower.lines.clear();
        let mut line = head;
        loop {
            if grower.entries.capacity() - grower.entries.len() < SLOTS
                || grower.lines.capacity() == grower.lines.len()
            {
                return false;
            }
            for i in 0..SLOTS {
                let index = line.slots[i].load(Ordering::Relaxed);
                if index != 0 {
                    grower.entries.push((index, line.tag(i)));
                }
            }
            let next = line.next.load(Ordering::Relaxed);
            if next == 0 {
                return true;
            }
            grower.lines.push(next);
            line = self.overflow.get(next);
        }
    }

    /// Write a locked chain anew with these entries, taking overflow lines from `lines`. A chain
    /// of k lines split in two needs at most k - 1 overflow lines in all, so they suffice.
    fn refill<'e>(&self, head: &Line, entries: impl Iterator<Item = &'e (u32, u8)>, lines: &mut Vec<u32>) {
        let mut line = head;
        let mut at = 0;
        head.next.store(0, Ordering::Relaxed);
        for &(index, tag) in entries {
            if at == SLOTS {
                let Some(next) = lines.pop() else {
                    debug_assert!(false, "a split chain needs no more lines than it had");
                    return;
                };
                let fresh = self.overflow.get(next);
                fresh.next.store(0, Ordering::Relaxed);
                fresh.clear_from(0);
                line.next.store(next, Ordering::Release);
                line = fresh;
                at = 0;
            }
            line.set_tag(at, tag);
            line.slots[at].store(index, Ordering::Release);
            at += 1;
        }
        line.clear_from(at);
    }

    /// Begin to move all entries under a new key.
    #[cold]
    fn start_rekey(&self, grower: &mut Grower, epoch: u32) {
        self.want_rekey.store(false, Ordering::Relaxed);
        // Without a new key the old one must do: chains are long, not wrong.
        let Ok(key) = random_key() else { return };
        grower.cursor = 0;
        self.tables[1 - current_of(epoch)].start(key);
        self.rekeys.fetch_add(1, Ordering::Relaxed);
        self.epoch.store(epoch + 1, Ordering::Release);
    }

    /// Move a few buckets from the old table to the new one; end the re-key after the last.
    fn move_step(&self, grower: &mut Grower, epoch: u32, objects: &impl Objects) {
        let from = &self.tables[current_of(epoch)];
        let to = &self.tables[1 - current_of(epoch)];
        for _ in 0..MOVE_STEP {
            if u64::from(grower.cursor) >= from.buckets() {
                // Every bucket was emptied under its lock after the epoch became odd, and inserts
                // since then went to the new table: nothing is left in the old one. Who still
                // looks there finds that the epoch has moved.
                self.epoch.store(epoch.wrapping_add(1), Ordering::Release);
                return;
            }
            if !self.move_bucket(from, grower.cursor, to, objects) {
                return;
            }
            grower.cursor += 1;
        }
    }

    /// Move all entries of one bucket; false when there is no memory for it now.
    fn move_bucket(&self, from: &Table, bucket: u32, to: &Table, objects: &impl Objects) -> bool {
        let head = from.heads.get(bucket);
        let mut spare = 0;
        loop {
            if spare == 0 {
                match self.new_line() {
                    Some(line) => spare = line,
                    None => return false,
                }
            }
            bitlock::lock(&head.header);
            fence(Ordering::Release);
            let entry = first_entry(head, &self.overflow);
            let mut freed = 0;
            if let Some(index) = entry {
                let hash = objects.rehash(index, to.key());
                let mut target = [0];
                // The new table stays valid: only this thread, holding the grower, ends a re-key.
                to.lock(&[hash], &mut target, false, || true);
                if self.put(to.heads.get(target[0]), index, tag_of(hash), &mut spare) {
                    self.take(head, index, |line| freed = line);
                    objects.store_hash(index, hash as u32);
                }
                to.unlock(target[0]);
            }
            if entry.is_some() {
                from.unlock(bucket);
            } else {
                let emptied = |w: u64| (w & !LEVEL_MASK).wrapping_add(SEQ_ONE);
                bitlock::unlock_with(&head.header, emptied);
            }
            if freed != 0 {
                self.free_line(freed);
            }
            if entry.is_none() {
                self.free_line(spare);
                return true;
            }
        }
    }

    /// Put an index into a locked chain. False: full, and `spare` is 0. A spare that was used is
    /// set to 0.
    fn put(&self, head: &Line, index: u32, tag: u8, spare: &mut u32) -> bool {
        let mut line = head;
        let mut length = 1;
        loop {
            for i in 0..SLOTS {
                if line.slots[i].load(Ordering::Relaxed) == 0 {
                    line.set_tag(i, tag);
                    // Release: publishes the object; pairs with the acquire load in `scan_table`.
                    line.slots[i].store(index, Ordering::Release);
                    return true;
                }
            }
            let next = line.next.load(Ordering::Relaxed);
            if next == 0 {
                break;
            }
            line = self.overflow.get(next);
            length += 1;
        }
        if *spare == 0 {
            return false;
        }
        let fresh = self.overflow.get(*spare);
        fresh.set_tag(0, tag);
        fresh.slots[0].store(index, Ordering::Relaxed);
        line.next.store(*spare, Ordering::Release);
        *spare = 0;
        if length >= LONG_CHAIN {
            self.long_chains.fetch_add(1, Ordering::Relaxed);
            self.want_rekey.store(true, Ordering::Relaxed);
        }
        true
    }

    /// Take an index out of a locked chain, filling the hole from the chain's end so that chains
    /// stay as short as they can be. An overflow line that becomes empty goes to `freed`.
    fn take(&self, head: &Line, index: u32, freed: impl FnOnce(u32)) -> bool {
        let mut found = None;
        let (mut line, mut before) = (head, None);
        loop {
            for i in 0..SLOTS {
                if line.slots[i].load(Ordering::Relaxed) == index {
                    found = Some((line, i));
                }
            }
            let next = line.next.load(Ordering::Relaxed);
            if next == 0 {
                break;
            }
            before = Some((line, next));
            line = self.overflow.get(next);
        }
        let Some((hole, i)) = found else { return false };
        // `line` is the last one now. Its last entry moves into the hole: stored there before it
        // is cleared here; readers that miss it in between find the header locked.
        let Some(last) = (0..SLOTS).rev().find(|&j| line.slots[j].load(Ordering::Relaxed) != 0) else {
            return false;
        };
        let moved = line.slots[last].load(Ordering::Relaxed);
        if moved != index {
            hole.set_tag(i, line.tag(last));
            hole.slots[i].store(moved, Ordering::Release);
        }
        line.slots[last].store(0, Ordering::Relaxed);
        line.set_tag(last, 0);
        if last == 0
            && let Some((prev, this)) = before
        {
            prev.next.store(0, Ordering::Release);
            freed(this);
        }
        true
    }
}

fn first_entry(head: &Line, overflow: &Arena<Line>) -> Option<u32> {
    let mut line = head;
    loop {
        if let Some(index) = line.slots.iter().map(|s| s.load(Ordering::Relaxed)).find(|i| *i != 0) {
            return Some(index);
        }
        match line.next.load(Ordering::Relaxed) {
            0 => return None,
            next => line = overflow.get(next),
        }
    }
}

impl Grower {
    fn reserve_more(&mut self) {
        self.entries.reserve(self.entries.capacity().max(4 * SLOTS));
        self.lines.reserve(self.lines.capacity().max(4));
    }
}

fn random_key() -> std::io::Result<Key> {
    let mut bytes = [0u8; 16];
    getrandom::fill(&mut bytes).map_err(|e| std::io::Error::other(e.to_string()))?;
    let word = |r: std::ops::Range<usize>| bytes[r].iter().fold(0u64, |w, b| w << 8 | u64::from(*b));
    Ok(Key(word(0..8), word(8..16)))
}
