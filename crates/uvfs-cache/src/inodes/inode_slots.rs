//! All inode slots of a cache: the two halves, the number table, link targets, directory states.
//!
//! The arenas are type-stable: a slot is memory for an inode from the first use on, whatever its generation
//! says. So readers need no lock to look at one, and check the generation or the sequence afterwards. The
//! number table has its bucket locks, the pool and the slabs theirs. Both are leaves, but an allocation may
//! call `may_grow` within a slab's locks.
//!
//! Only this folder touches the fields. The part knows no cache: a method that needs a superblock's slab
//! gets it from the caller, and one that must not exceed the memory limit asks `may_grow`.

use std::io;

use uvfs_sync::arena::Arena;
use uvfs_sync::blhash::{BlHash, HashKey, Objects};
use uvfs_sync::percpu_ref::PercpuRefs;
use uvfs_sync::primitives::{Ordering, fence};
use uvfs_sync::segvec::SegVec;
use uvfs_sync::slab::{CHUNK, Pool, Slab, next_generation};

use super::inode::{Private, Published, RESIDENT};
use super::link_target_slots::Targets;
use crate::chunk_floors::{above_floor, begins_chunk, floor_of};
use crate::dirs::dir_state::DirState;
use crate::types::{Fresh, SbId};

/// Bytes of a chunk of inodes.
pub(crate) const INODE_CHUNK: u64 = CHUNK as u64 * (size_of::<Published>() + size_of::<Private>()) as u64;

/// See the module's head.
pub(crate) struct Inodes {
    published: Arena<Published>,
    private: Arena<Private>,
    pub(super) percpu: PercpuRefs,
    pool: Pool,
    targets: Targets,
    pub(super) numbers: BlHash,
    /// Slots that both halves have.
    slots: u32,
    /// The highest generation that an id has room for.
    last_generation: u32,
    dirs: SegVec<DirState>,
}

impl Inodes {
    /// Reserve address space for `capacity` inodes, or fewer if the system does not grant it. Ids have `id_bits` bits.
    pub(crate) fn new(capacity: u32, id_bits: u8) -> io::Result<Self> {
        let published = Arena::reserve(capacity)?;
        let private = Arena::reserve(published.capacity())?;
        let slots = published.capacity().min(private.capacity());
        Ok(Self {
            percpu: PercpuRefs::new()?,
            pool: Pool::new(slots),
            targets: Targets::new(slots)?,
            numbers: BlHash::new(slots)?,
            slots,
            last_generation: u32::MAX >> (64 - id_bits.clamp(40, 64)),
            dirs: SegVec::new(),
            published,
            private,
        })
    }

    pub(crate) fn advise_huge_pages(&self) {
        self.published.advise_huge_pages();
        self.private.advise_huge_pages();
        self.numbers.advise_huge_pages();
    }

    /// The published half in a slot.
    #[inline(always)]
    pub(crate) fn get(&self, index: u32) -> &Published {
        self.published.get(index)
    }

    /// The private half in a slot.
    #[inline(always)]
    pub(crate) fn private(&self, index: u32) -> &Private {
        self.private.get(index)
    }

    /// Prefetch a published half.
    #[inline(always)]
    pub(crate) fn prefetch(&self, index: u32) {
        self.published.prefetch(index);
    }

    /// Prefetch a private half.
    #[inline(always)]
    pub(crate) fn prefetch_private(&self, index: u32) {
        self.private.prefetch(index);
    }

    /// Prefetch the line of the number table that has this hash.
    pub(crate) fn prefetch_number(&self, hash: u32) {
        self.numbers.prefetch(hash);
    }

    /// Prefetch the line of the number table that an inode's number is searched in.
    pub(crate) fn prefetch_number_of(&self, sb: SbId, ino: u64) {
        self.numbers.prefetch(number_hash(sb, ino, self.numbers.view().key()) as u32);
    }

    /// Whether this slot exists. Ask it of every index that comes from outside: an arena maps an index out
    /// of range to another slot.
    #[inline(always)]
    pub(crate) fn is_slot(&self, index: u32) -> bool {
        index < self.slots
    }

    /// Targets of symbolic links.
    #[inline]
    pub(crate) fn targets(&self) -> &Targets {
        &self.targets
    }

    #[inline]
    fn dir_state_at(&self, dir: u32) -> Option<&DirState> {
        self.dirs.get(dir.checked_sub(1)?)
    }

    /// The directory state of an inode that is (or was) a directory.
    #[inline]
    pub(crate) fn dir_state(&self, inode: u32) -> Option<&DirState> {
        self.dir_state_at(self.private(inode).dir.load(Ordering::Relaxed))
    }

    /// Take a slot. `None`: none is left, or a chunk is needed and `may_grow` refuses it.
    pub(crate) fn take(&self, slab: &Slab, may_grow: &dyn Fn() -> bool) -> Option<u32> {
        loop {
            let index = slab.alloc_within(&self.pool, may_grow)?;
            let generation = self.get(index).generation();
            if generation == 0 && begins_chunk(index, slab) {
                self.published.populate(index, index + CHUNK);
                self.private.populate(index, index + CHUNK);
            }
            let floor = self.pool.floor(index);
            if next_generation(generation, floor).is_some_and(|next| next <= self.last_generation) {
                above_floor(&self.get(index).seq, || floor);
                return Some(index);
            }
            // Its next generation would wrap, or has no room in an id: the slot is never used again (rule 1).
            slab.retire();
        }
    }

    /// Take a directory state; returns its index + 1. `None` as of [`Inodes::take`].
    pub(crate) fn take_dir(&self, may_grow: &dyn Fn(u64) -> bool) -> Option<u32> {
        self.dirs.alloc_within(may_grow).map(|(i, _)| i + 1)
    }

    /// Fill both halves of an inode to which nobody can get a reference yet; returns its generation. Its
    /// attributes are trusted until `deadline`. `of_sb` are the superblock's flags.
    pub(crate) fn fill(
        &self,
        (sb, of_sb): (SbId, u32),
        index: u32,
        dir: u32,
        fresh: &Fresh,
        flags: u32,
        deadline: u32,
    ) -> u32 {
        let (published, private) = (self.get(index), self.private(index));
        let old = published.generation();
        // `take` has checked that there is a next generation.
        let generation = next_generation(old, self.pool.floor(index)).unwrap_or(u32::MAX);
        // Readers of the slot's last generation may still be looking: rule 3.
        fence(Ordering::Release);
        private.nlookup.store(0, Ordering::Relaxed);
        private.value.store(fresh.private, Ordering::Relaxed);
        private.alias.store(0, Ordering::Relaxed);
        private.set_sb(sb, of_sb);
        private.dir.store(dir, Ordering::Relaxed);
        private.deadline.store(deadline, Ordering::Relaxed);
        if let Some(state) = self.dir_state_at(dir) {
            state.reset(of_sb & RESIDENT != 0);
        }
        published.fill(private, generation, &fresh.attr, flags);
        generation
    }

    /// Give a slot back to the slab that owns it; whether its chunk may be returned now ([`Pool::free`]).
    pub(crate) fn free<'s>(&self, index: u32, slab_of: impl FnOnce(u32) -> &'s Slab) -> bool {
        self.pool.free(index, slab_of)
    }

    /// Give a directory state back; 0: none.
    pub(crate) fn free_dir(&self, dir: u32) {
        if dir != 0 {
            self.dirs.free(dir - 1);
        }
    }

    /// The slab that owns a slot's chunk.
    pub(crate) fn owner(&self, index: u32) -> Option<u32> {
        self.pool.owner(index)
    }

    /// Return a slab's chunks without a used slot to the system, and unused memory of targets and of the
    /// number table; returns how many chunks. A chunk's memory then reads as zero. So its floor remembers
    /// more than every generation and every sequence in it. A reader that slept through all of it finds
    /// neither again. `end`: nobody allocates from the slab any more.
    pub(crate) fn return_chunks(&self, slab: &Slab, end: bool) -> usize {
        let highest = |from, to| {
            let slots = (from..to).map(|i| self.get(i));
            floor_of(slots.map(|s| (s.generation(), &s.seq)))
        };
        let give_back = |from, to| {
            self.published.give_back(from, to)?;
            self.private.give_back(from, to)
        };
        let chunks = if end {
            slab.end(&self.pool, highest, give_back)
        } else {
            slab.trim(&self.pool, highest, give_back)
        };
        self.targets.trim();
        self.numbers.trim();
        chunks
    }

    /// Bytes committed.
    pub(crate) fn bytes(&self) -> u64 {
        u64::from(self.pool.chunks_out()) * INODE_CHUNK
            + self.numbers.bytes()
            + self.targets.bytes()
            + self.dirs.bytes()
    }

    /// Directory states that there is memory for.
    pub(crate) fn dir_states(&self) -> u64 {
        self.dirs.bytes() / size_of::<DirState>() as u64
    }

    /// Bytes of the number table's lines.
    pub(crate) fn hash_bytes(&self) -> u64 {
        self.numbers.bytes()
    }

    /// Chains of the number table that were found too long, and re-keys that were begun.
    pub(crate) fn long_chains(&self) -> (u64, u64) {
        self.numbers.long_chains()
    }

    /// After a change of the number table: continue its growth or re-keying.
    pub(crate) fn maintain(&self) {
        self.numbers.maintain(&Numbers(self));
    }

    /// Complete the number table's growth or re-keying.
    pub(crate) fn settle(&self) {
        self.numbers.settle(&Numbers(self));
    }

    /// Chunks in use.
    #[cfg(all(test, not(loom)))]
    pub(crate) fn chunks_out(&self) -> u32 {
        self.pool.chunks_out()
    }
}

/// The number table's questions about inodes, under their bucket's lock.
struct Numbers<'a>(&'a Inodes);

/// Keyed hash of an inode number within its superblock.
pub(crate) fn number_hash(sb: SbId, ino: u64, key: HashKey) -> u64 {
    let product = u128::from(ino ^ key.0) * u128::from(key.1 | 1);
    let h = product as u64 ^ (product >> 64) as u64 ^ u64::from(sb.0) << 17;
    let product = u128::from(h ^ key.1) * u128::from(key.0 | 1);
    product as u64 ^ (product >> 64) as u64
}

impl Objects for Numbers<'_> {
    fn stored_hash(&self, index: u32) -> u32 {
        self.0.private(index).hash.load(Ordering::Relaxed)
    }
    fn rehash(&self, index: u32, key: HashKey) -> u64 {
        number_hash(self.0.private(index).sb_id(), self.0.get(index).ino(), key)
    }
    fn store_hash(&self, index: u32, hash: u32) {
        self.0.private(index).hash.store(hash, Ordering::Relaxed);
    }
    fn prefetch(&self, index: u32) {
        self.0.prefetch_private(index);
    }
}
