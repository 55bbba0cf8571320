//! All dentry slots of a cache: the two halves, tails of long names, the name table, use bytes.
//!
//! The arenas are type-stable, as those of the inodes are ([`crate::inodes::inode_slots`]). A dentry changes
//! under the lock of its bucket in the name table, inside its sequence. Pool, slabs and tails have their
//! own locks, the last in the lock order. Under them a slab may call `may_grow`, which locks at most the
//! list of devices.
//!
//! Only this folder touches the fields. This module does not depend on `Cache`: the caller passes in the
//! superblock's slab, and `may_grow`, the check of the memory limit.

use std::io;

use uvfs_sync::arena::Arena;
use uvfs_sync::blhash::{BlHash, HashKey, Objects};
use uvfs_sync::primitives::{Ordering, Statistic};
use uvfs_sync::slab::{CHUNK, Pool, Slab};

use super::dentry::{NameWords, Private, Published, Tails};
use super::used_bytes::{Used, Visited};
use crate::chunk_floors::{above_floor, begins_chunk, floor_of};

/// Bytes of a chunk of dentries, with their use bytes.
pub(crate) const DENTRY_CHUNK: u64 =
    CHUNK as u64 * (size_of::<Published>() + size_of::<Private>() + size_of::<Visited>()) as u64;

/// See the module's head.
pub(crate) struct Dentries {
    published: Arena<Published>,
    private: Arena<Private>,
    pool: Pool,
    tails: Tails,
    names: BlHash,
    used: Used,
    negatives: Statistic,
    /// The configured bound on negative entries; 0: none is configured.
    max_negative: u64,
}

impl Dentries {
    /// Reserve address space for `capacity` names, or fewer if the system does not grant it.
    pub(crate) fn new(capacity: u32, max_negative: u32) -> io::Result<Self> {
        let published = Arena::reserve(capacity)?;
        let private = Arena::reserve(published.capacity())?;
        let slots = published.capacity().min(private.capacity());
        Ok(Self {
            pool: Pool::new(slots),
            tails: Tails::new(slots)?,
            names: BlHash::new(slots)?,
            used: Used::new(slots)?,
            negatives: Statistic::new(),
            max_negative: u64::from(max_negative),
            published,
            private,
        })
    }

    pub(crate) fn advise_huge_pages(&self) {
        self.published.advise_huge_pages();
        self.private.advise_huge_pages();
        self.names.advise_huge_pages();
    }

    /// The published half in a slot.
    #[inline(always)]
    pub(crate) fn get(&self, dentry: u32) -> &Published {
        self.published.get(dentry)
    }

    /// The private half in a slot.
    #[inline(always)]
    pub(crate) fn private(&self, dentry: u32) -> &Private {
        self.private.get(dentry)
    }

    /// Prefetch a published half.
    #[inline(always)]
    pub(crate) fn prefetch(&self, dentry: u32) {
        self.published.prefetch(dentry);
    }

    /// Tails of long names.
    #[inline(always)]
    pub(crate) fn tails(&self) -> &Tails {
        &self.tails
    }

    /// The name table. Only this folder locks its buckets.
    #[inline(always)]
    pub(crate) fn names(&self) -> &BlHash {
        &self.names
    }

    /// Which names were used since the shrinker's hand last passed.
    #[inline(always)]
    pub(crate) fn used(&self) -> &Used {
        &self.used
    }

    /// Take a slot. `None`: none is left, or a chunk is needed and `may_grow` refuses it.
    pub(crate) fn take(&self, slab: &Slab, may_grow: &dyn Fn() -> bool) -> Option<u32> {
        let dentry = slab.alloc_within(&self.pool, may_grow)?;
        let seq = &self.get(dentry).seq;
        if seq.raw().load(Ordering::Relaxed) == 0 && begins_chunk(dentry, slab) {
            self.published.populate(dentry, dentry + CHUNK);
            self.private.populate(dentry, dentry + CHUNK);
        }
        above_floor(seq, || self.pool.floor(dentry));
        self.used.begin(dentry);
        Some(dentry)
    }

    /// Keep the tail of a name; 0 if it needs none. `None` as of [`Dentries::take`].
    pub(crate) fn take_tail(&self, name: &NameWords<'_>, may_grow: &dyn Fn(u64) -> bool) -> Option<u32> {
        self.tails.alloc(name, may_grow)
    }

    /// Free a tail whose dentry's sequence has moved, or that was never published; 0: none.
    pub(crate) fn free_tail(&self, tail: u32) {
        self.tails.free(tail);
    }

    /// Give a slot back to the slab that owns it; whether its chunk may be returned now ([`Pool::free`]).
    pub(crate) fn free<'s>(&self, dentry: u32, slab_of: impl FnOnce(u32) -> &'s Slab) -> bool {
        self.pool.free(dentry, slab_of)
    }

    /// The slab that owns a slot's chunk.
    pub(crate) fn owner(&self, dentry: u32) -> Option<u32> {
        self.pool.owner(dentry)
    }

    /// Hand out no slot of a chunk for now ([`Slab::begin_drain`]).
    pub(crate) fn begin_drain(&self, slab: &Slab, first: u32) -> bool {
        slab.begin_drain(&self.pool, first)
    }

    /// Return a slab's chunks without a used slot to the system, and unused memory of tails and of the name
    /// table; returns how many chunks. `end`: nobody allocates from the slab any more.
    pub(crate) fn return_chunks(&self, slab: &Slab, end: bool) -> usize {
        let highest = |from, to| floor_of((from..to).map(|i| (0, &self.get(i).seq)));
        let give_back = |from, to| {
            self.published.give_back(from, to)?;
            self.private.give_back(from, to)
        };
        let chunks = if end {
            slab.end(&self.pool, highest, give_back)
        } else {
            slab.trim(&self.pool, highest, give_back)
        };
        self.tails.trim();
        self.names.trim();
        chunks
    }

    /// Negative entries now.
    pub(crate) fn negatives(&self) -> u64 {
        self.negatives.get()
    }

    /// Count a negative entry in, before it can be found: a thread that finds it may count it out.
    pub(crate) fn count_negative(&self) {
        self.negatives.add(1);
    }

    /// Count a negative entry out.
    pub(crate) fn uncount_negative(&self) {
        self.negatives.sub(1);
    }

    /// The configured bound on negative entries; 0: none is configured.
    pub(crate) fn max_negative(&self) -> u64 {
        self.max_negative
    }

    /// Bytes committed.
    pub(crate) fn bytes(&self) -> u64 {
        u64::from(self.pool.chunks_out()) * DENTRY_CHUNK + self.names.bytes() + self.tails.bytes()
    }

    /// After a change of the name table: continue its growth or re-keying.
    pub(crate) fn maintain(&self) {
        self.names.maintain(&Names(self));
    }

    /// Complete the name table's growth or re-keying.
    pub(crate) fn settle(&self) {
        self.names.settle(&Names(self));
    }

    /// Chunks in use.
    #[cfg(all(test, not(loom)))]
    pub(crate) fn chunks_out(&self) -> u32 {
        self.pool.chunks_out()
    }
}

/// The name table's questions about dentries, under their bucket's lock.
struct Names<'a>(&'a Dentries);

impl Objects for Names<'_> {
    fn stored_hash(&self, index: u32) -> u32 {
        self.0.get(index).hash.load(Ordering::Relaxed)
    }
    fn rehash(&self, index: u32, key: HashKey) -> u64 {
        self.0.get(index).hash_again(key, &self.0.tails)
    }
    fn store_hash(&self, index: u32, hash: u32) {
        self.0.get(index).hash.store(hash, Ordering::Relaxed);
    }
    fn prefetch(&self, index: u32) {
        self.0.published.prefetch(index);
    }
}
