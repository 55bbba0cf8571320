//! The bit-locked hash: indices in a table of one-line buckets, found without a lock.
//!
//! A bucket is one cache line: a header (sequence, *split level*, waiters and lock bits), eight plus two
//! one-byte tags, ten 32-bit indices, and a link. The link leads to an overflow line of the same shape,
//! which the head's sequence covers too. The table grows by linear hashing: one bucket is split at a time,
//! so an insert pays for one bucket, however large the table is. It pays for up to 32 if the thread that split
//! the last one was preempted for long.
//!
//! **Protection.** Tags, indices and links of a chain are written under the head's lock bit. A reader takes no lock.
//! The caller checks each candidate against the object itself (a dentry's own sequence), so a torn tag or a moved
//! index costs a retry, never a wrong hit. A *miss* counts only if the header did not move over the whole scan.
//!
//! **Level** (design rule 5). A bucket at level *l* holds exactly the entries whose hash agrees with the
//! bucket's number in the low *l* bits. Readers and lockers check that with the level that they read from
//! the bucket itself; the table's own idea of its size is only a hint. Without that check a reader that
//! computed its bucket before a split would find nothing in it afterwards: a false ENOENT.
//!
//! **Re-key** (rule 6). Hashes are keyed with random bits. A chain over [`LONG_CHAIN`] lines is counted and
//! starts a move of all entries into a second table under a new key, a few buckets with each insert and
//! remove. Meanwhile readers look into the old table first, then into the new one. Entries move only in
//! that direction, and both buckets are locked while one does.
//!
//! **Shrinking** is a re-key too: the remaining entries of a table that has become too large move into the
//! other one, which begins small. The buckets of an ended table become *gone*. After that nobody holds
//! their locks or can take one, and their memory is given back. When the table is used again its sequences
//! begin anew. A reader that remembers a sequence of the last use remembers its epoch too.
//!
//! Nothing is allocated or first touched under a bucket's lock. Lock order: buckets by table (old before
//! new), then by number. No lock of this crate is taken inside.

mod bucket_line;
mod first_slots;
mod grow_and_rekey;
mod locked_bucket;
#[cfg(all(test, loom))]
mod loom_tests;
mod split_level;
mod table;
#[cfg(all(test, not(loom)))]
mod tests;

use crossbeam_utils::CachePadded;

use self::bucket_line::Line;
use self::grow_and_rekey::Grower;
use self::split_level::bucket_of;
use self::table::{Looked, START_LEVEL, Table, current_of, is_moving, tag_of};
use crate::arena::{self, Arena};
use crate::primitives::{AtomicBool, AtomicU32, Mutex, Ordering, SHARDS, Statistic, fence};
use crate::slab::{Pool, Slab};

pub use self::first_slots::Glance;
pub use self::locked_bucket::{Locked, NeedsSpare};
pub use self::table::Seen;

/// Average number of entries per bucket before one is split.
const LOAD: u64 = 6;
/// Chain length in lines beyond which the table is re-keyed.
pub const LONG_CHAIN: usize = 8;

/// The random key of one table, with which names are hashed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HashKey(pub u64, pub u64);

/// A name's hashes: under the current table's key and, during a re-key, under the next one's. Made by
/// [`BlHash::hashes`]; valid while the epoch lasts.
#[derive(Clone, Copy, Debug)]
pub struct Hashes {
    epoch: u32,
    hash: [u64; 2],
}

/// The current table as it was when a look (or a whole walk) began: the place to look first. Its size is a
/// hint, like the table's own size word.
#[derive(Clone, Copy, Debug)]
pub struct View<'a> {
    heads: arena::SlotView<'a, Line>,
    key: HashKey,
    mask: u32,
    split: u32,
    epoch: u32,
}

impl<'a> View<'a> {
    /// The key to hash with.
    #[inline(always)]
    pub fn key(&self) -> HashKey {
        self.key
    }

    /// The epoch, for [`BlHash::rules_out`].
    #[inline(always)]
    pub fn epoch(&self) -> u32 {
        self.epoch
    }

    /// The indices (or 0) in the first slots of the hash's bucket whose tag fits: nearly all hits are
    /// there. An entry that is not among them may still exist: see [`BlHash::rules_out`].
    #[inline(always)]
    pub fn glance(&self, hash: u64) -> Glance<'a> {
        let bucket = bucket_of(hash, self.mask, self.split);
        Glance::new(self.heads.get(bucket), bucket, tag_of(hash))
    }
}

/// The table's questions about an object whose index it holds. Called under the lock of the object's
/// bucket, so implementations must not lock or block.
pub trait Objects {
    /// Low 32 bits of the object's hash in its present table.
    fn stored_hash(&self, index: u32) -> u32;
    /// The object's whole hash under another key.
    fn rehash(&self, index: u32, key: HashKey) -> u64;
    /// The object moves to a table in which these are the low 32 bits of its hash.
    fn store_hash(&self, index: u32, hash: u32);
    /// The stored hash is needed soon. A hint: it only brings the index's object nearer.
    fn prefetch(&self, index: u32) {
        let _ = index;
    }
}

/// Result of a scan without locks.
#[derive(Debug, PartialEq, Eq)]
pub enum Scan<R, M> {
    /// The caller's closure accepted a candidate.
    Hit(R),
    /// Certain: no bucket that could hold it moved during the scan. Carries the value that `on_miss` read
    /// between the two looks at the buckets' sequences.
    Miss(M),
    /// Something moved; look again (or take the lock after a few times).
    Moved,
}

/// Entries that the threads of one shard have inserted, less those that they removed.
#[derive(Debug, Default)]
struct Count {
    entries: Statistic,
    /// The value of `entries` when this shard last checked the table's growth.
    looked: Statistic,
}

impl Count {
    /// Whether enough entries came or went since the last check to make one worthwhile. An insert and a
    /// remove that alternate do not trigger it each time.
    fn is_due(&self) -> bool {
        let (now, looked) = (self.entries.get(), self.looked.get());
        if now == looked || !now.is_multiple_of(LOAD) {
            return false;
        }
        self.looked.add(now.wrapping_sub(looked));
        true
    }
}

/// The hash table. It holds `u32` indices of objects; the caller owns the objects.
#[derive(Debug)]
pub struct BlHash {
    tables: [Table; 2],
    overflow: Arena<Line>,
    overflow_pool: Pool,
    overflow_slab: Slab,
    /// Odd during a re-key; the next bit tells which table is current.
    epoch: AtomicU32,
    want_rekey: AtomicBool,
    /// Buckets of the unused table whose memory was not given back yet.
    left: AtomicU32,
    /// Buckets that the entries need and the current table lacks, if the thread that splits was not running.
    owed: AtomicU32,
    /// Not in a line with the fields that each look reads.
    grow: CachePadded<Mutex<Grower>>,
    counts: [CachePadded<Count>; SHARDS],
    long_chains: Statistic,
    rekeys: Statistic,
}

impl BlHash {
    /// A table for up to about `capacity` objects, keyed with random bits from the system.
    ///
    /// # Errors
    /// ENOMEM if not even a small reservation fits; an error of `getrandom(2)`.
    pub fn new(capacity: u32) -> std::io::Result<Self> {
        let buckets = (capacity / LOAD as u32).max(2 << START_LEVEL).next_power_of_two();
        let overflow = Arena::reserve((buckets / 2).max(if cfg!(loom) { 4 } else { 4096 }))?;
        let this = Self {
            tables: [Table::new(buckets)?, Table::new(buckets)?],
            overflow_pool: Pool::new(overflow.capacity()),
            overflow,
            overflow_slab: Slab::new(0),
            epoch: AtomicU32::new(0),
            want_rekey: AtomicBool::new(false),
            left: AtomicU32::new(0),
            owed: AtomicU32::new(0),
            grow: CachePadded::new(Mutex::new(Grower::default())),
            counts: std::array::from_fn(|_| CachePadded::default()),
            long_chains: Statistic::new(),
            rekeys: Statistic::new(),
        };
        this.tables[0].start(random_key(0)?);
        Ok(this)
    }

    /// Ask for huge pages for buckets and overflow lines.
    pub fn advise_huge_pages(&self) {
        self.tables.iter().for_each(|table| table.heads.advise_huge_pages());
        self.overflow.advise_huge_pages();
    }

    /// Hash something with the key(s) in force. `f` is called once, or twice during a re-key.
    #[inline(always)]
    pub fn hashes(&self, f: impl Fn(HashKey) -> u64) -> Hashes {
        // Acquire: the epoch's keys are seen.
        let epoch = self.epoch.load(Ordering::Acquire);
        let current = current_of(epoch);
        let hash = f(self.tables[current].key());
        let next = if is_moving(epoch) { f(self.tables[1 - current].key()) } else { 0 };
        Hashes { epoch, hash: [hash, next] }
    }

    /// Whether the keys are still the same. Relaxed, because it is asked after a bucket's header was read
    /// with acquire, or its lock taken. If our entries were moved away, that happened under that lock and
    /// in a later epoch, which this load then sees. If they were not, the old epoch's place is as good.
    #[inline]
    fn is_current(&self, epoch: u32) -> bool {
        self.epoch.load(Ordering::Relaxed) == epoch
    }

    /// Derive hashes of the same epoch (to mix a parent into a name's hash).
    #[inline]
    pub fn derive(h: &Hashes, f: impl Fn(u64) -> u64) -> Hashes {
        Hashes { epoch: h.epoch, hash: [f(h.hash[0]), f(h.hash[1])] }
    }

    /// The low 32 bits to keep in an object that is inserted under these hashes.
    pub fn to_store(h: &Hashes) -> u32 {
        h.hash[usize::from(is_moving(h.epoch))] as u32
    }

    /// Look for an object without storing anything. `accept` is called with each index whose tag fits, and
    /// decides. `on_miss` runs after the scan and before the sequences are looked at again.
    ///
    /// [`View::glance`] is the short path for most hits.
    pub fn scan<R, M>(
        &self,
        h: &Hashes,
        mut accept: impl FnMut(u32) -> Option<R>,
        on_miss: impl FnOnce() -> M,
    ) -> Scan<R, M> {
        let old = self.tables[current_of(h.epoch)].look(h.hash[0]);
        if let Some(r) = self.scan_chain(&old, &mut accept) {
            return Scan::Hit(r);
        }
        let moving = is_moving(h.epoch);
        let mut new = None;
        if moving {
            // Old first, then new: an entry that was not in the old table when we looked was moved before.
            // The new table has it by now, or it is gone.
            let looked = self.tables[1 - current_of(h.epoch)].look(h.hash[1]);
            if let Some(r) = self.scan_chain(&looked, &mut accept) {
                return Scan::Hit(r);
            }
            new = Some(looked);
        }
        let m = on_miss();
        // Pairs with the release fence in `Table::lock`: if any load above saw a store made under a
        // bucket's lock, one of these loads sees the lock bit or the moved sequence.
        fence(Ordering::Acquire);
        let proven = old.proves(h.hash[0], moving)
            && old.stands()
            && new.is_none_or(|new| new.proves(h.hash[1], false) && new.stands());
        if proven && self.is_current(h.epoch) { Scan::Miss(m) } else { Scan::Moved }
    }

    fn scan_chain<R>(&self, at: &Looked<'_>, accept: &mut impl FnMut(u32) -> Option<R>) -> Option<R> {
        let mut line = at.head;
        // A link read from a line that is being recycled may lead anywhere, even in a circle: the walk is
        // bounded and the header check decides.
        for _ in 0..1 << 16 {
            for (_, index) in line.candidates(at.tag) {
                if let Some(r) = accept(index) {
                    return Some(r);
                }
            }
            match line.next.load(Ordering::Acquire) {
                0 => break,
                next => line = self.overflow.get(next),
            }
        }
        None
    }

    /// The object with these low bits of its hash is likely to be looked for soon. A hint, which stores
    /// nothing.
    #[inline]
    pub fn prefetch(&self, hash: u32) {
        let table = &self.tables[current_of(self.epoch.load(Ordering::Relaxed))];
        let (mask, split) = table.mask_and_split();
        table.heads.prefetch(bucket_of(u64::from(hash), mask, split));
    }

    /// The current table, to look in.
    #[inline(always)]
    pub fn view(&self) -> View<'_> {
        // Acquire: the epoch's keys are seen.
        let epoch = self.epoch.load(Ordering::Acquire);
        let table = &self.tables[current_of(epoch)];
        let (mask, split) = table.mask_and_split();
        View { heads: table.heads.view(), key: table.key(), mask, split, epoch }
    }

    /// Whether a glance that found nothing proves absence. Call it after the glance, and after reading
    /// everything that must be of the same moment. If it does not: `scan`.
    #[inline]
    pub fn rules_out(&self, epoch: u32, hash: u64, seen: Seen) -> bool {
        let looked = self.tables[current_of(epoch)].again(seen);
        let elsewhere = looked.head.last_marks(tag_of(hash)) != 0
            || looked.head.next.load(Ordering::Relaxed) != 0
            || is_moving(epoch);
        // As in `scan`.
        fence(Ordering::Acquire);
        !elsewhere && looked.proves(hash, false) && looked.stands() && self.is_current(epoch)
    }

    /// Lock the buckets of one hash, or of two in order (rule 12). With `spare`, overflow lines are at
    /// hand, as [`NeedsSpare`] asks for. `None`: the keys changed, or the hashes have different epochs; hash
    /// again (both with one epoch).
    pub fn lock<const N: usize>(&self, hashes: [&Hashes; N], spare: bool) -> Option<Locked<'_, N>> {
        let epoch = hashes[0].epoch;
        if hashes.iter().any(|h| h.epoch != epoch) {
            return None;
        }
        let tables = 1 + usize::from(is_moving(epoch));
        let mut locked = Locked {
            hash: self,
            epoch,
            tables: 0,
            buckets: [[0; N]; 2],
            tags: std::array::from_fn(|step| std::array::from_fn(|i| tag_of(hashes[i].hash[step]))),
            spare: [0; N],
        };
        if spare {
            for s in &mut locked.spare {
                *s = self.new_line().unwrap_or(0);
            }
        }
        for step in 0..tables {
            let table = &self.tables[(current_of(epoch) + step) & 1];
            let hash = std::array::from_fn(|i| hashes[i].hash[step]);
            // A re-key that began or ended before we have the locks has changed where entries belong. One
            // that begins later visits our buckets only after we release them.
            let emptied = step + 1 < tables;
            let valid = || self.is_current(epoch);
            if !table.lock(&hash, &mut locked.buckets[step], emptied, valid) {
                return None;
            }
            locked.tables += 1;
        }
        Some(locked)
    }

    pub(super) fn new_line(&self) -> Option<u32> {
        let index = self.overflow_slab.alloc(&self.overflow_pool)?;
        let line = self.overflow.get(index);
        // First touched here, not under a lock. A reader may still be in the line's last chain: it sees
        // empty slots, and that chain's head has moved.
        fence(Ordering::Release);
        line.next.store(0, Ordering::Relaxed);
        line.clear_from(0);
        Some(index)
    }

    /// Return chunks of unused overflow lines to the system. A reader that still looks at such a line finds
    /// it empty, and the chain's head moved.
    pub fn trim(&self) {
        self.overflow_slab.trim(
            &self.overflow_pool,
            |_, _| Some(0),
            |from, to| self.overflow.give_back(from, to),
        );
    }

    pub(super) fn free_line(&self, index: u32) {
        self.overflow_pool.free(index, |_| &self.overflow_slab);
    }

    /// Objects in the table (approximate while it changes).
    pub fn len(&self) -> u64 {
        let sum = self.counts.iter().fold(0u64, |n, c| n.wrapping_add(c.entries.get()));
        // The removal of an entry may be seen without its insert.
        sum.cast_signed().max(0).cast_unsigned()
    }

    /// Whether [`BlHash::len`] is 0.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Bytes of bucket and overflow lines that are in use, or were used and are not returned yet, and of buckets that
    /// the entries have a claim to. The last are counted ahead because they are made without a question when the
    /// thread that splits runs again.
    pub fn bytes(&self) -> u64 {
        let epoch = self.epoch.load(Ordering::Relaxed);
        let current = current_of(epoch);
        let mut lines = self.tables[current].buckets();
        lines += if is_moving(epoch) {
            self.tables[1 - current].buckets()
        } else {
            u64::from(self.left.load(Ordering::Relaxed)) + u64::from(self.owed.load(Ordering::Relaxed))
        };
        (lines + u64::from(self.overflow_pool.chunks_out()) * u64::from(crate::slab::CHUNK)) * 64
    }

    /// `(chains that were found too long, re-keys begun)`.
    pub fn long_chains(&self) -> (u64, u64) {
        (self.long_chains.get(), self.rekeys.get())
    }
}

/// The key of a table that is put to use for the `nth` time. Under the model checker it follows from `nth`:
/// a model must run the same way each time, and no two keys may be the same.
fn random_key(nth: u64) -> std::io::Result<HashKey> {
    if cfg!(loom) {
        let factor = 2 * nth + 1;
        let word = |first: u64| first.wrapping_mul(factor);
        return Ok(HashKey(word(0x9e37_79b9_7f4a_7c15), word(0xd1b5_4a32_d192_ed03)));
    }
    let mut bytes = [0u8; 16];
    getrandom::fill(&mut bytes).map_err(|e| std::io::Error::other(e.to_string()))?;
    let word = |r: std::ops::Range<usize>| bytes[r].iter().fold(0u64, |w, b| w << 8 | u64::from(*b));
    Ok(HashKey(word(0..8), word(8..16)))
}
