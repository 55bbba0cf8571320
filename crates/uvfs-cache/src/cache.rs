//! The cache: arenas, hash tables, superblocks.
//!
//! One cache serves all superblocks of a process. Each chunk of its arenas belongs to one superblock. This
//! file makes and destroys; each of the crate's other files holds one kind of use. [`crate::walk`] reads
//! without references, [`crate::guard`] holds the name locks, [`crate::names`] publishes and
//! [`crate::sweep`] forgets. [`crate::shrink`] keeps the memory limit, [`crate::watermark`] a margin below
//! it.
//!
//! Lock order (docs/locking.md): rename mutex, name locks, directory list, buckets, attribute locks, slabs.

use std::sync::{Arc, OnceLock};

use uvfs_sync::arena::Arena;
use uvfs_sync::blhash::{BlHash, Key, Objects};
use uvfs_sync::lockref::{Got, LockRef};
use uvfs_sync::order::{self, Class, Ordered};
use uvfs_sync::percpu_ref::{self, PercpuRefs, Place};
use uvfs_sync::primitives::{AtomicBool, AtomicU32, AtomicU64, Mutex, Ordering, Stat, fence};
use uvfs_sync::segvec::SegVec;
use uvfs_sync::seqcount::SeqCount;
use uvfs_sync::slab::{CHUNK, Pool, Slab, next_generation};

use crate::attr::mode;
use crate::buffers::Registry;
use crate::changed_numbers::Changes;
use crate::clock::{Clock, NEVER};
use crate::dentry::{self, NameWords, Tails};
use crate::dir::DirState;
use crate::external_bytes::ExternalBytes;
use crate::guard::NameLocks;
use crate::inode::{self, ROOT};
use crate::inode_ref::InodeRef;
use crate::listener::Listeners;
use crate::owned::CacheNumber;
use crate::prefix::Prefixes;
use crate::pressure::Pressure;
use crate::shrink::{DENTRY_CHUNK, INODE_CHUNK, Visited};
use crate::symlink::Targets;
use crate::types::{CacheError, Config, Counters, EvictHook, Fresh, InodeId, SbId, SbOptions, Ttl};
use crate::watermark::Watermarks;

/// Dentry and inode cache; see the crate's head.
pub struct Cache {
    pub(crate) number: CacheNumber,
    pub(crate) inodes: Arena<inode::Published>,
    pub(crate) inodes_private: Arena<inode::Private>,
    pub(crate) percpu: PercpuRefs,
    pub(crate) inode_pool: Pool,
    pub(crate) dentries: Arena<dentry::Published>,
    pub(crate) dentries_private: Arena<dentry::Private>,
    pub(crate) dentry_pool: Pool,
    pub(crate) tails: Tails,
    pub(crate) targets: Targets,
    pub(crate) names: BlHash,
    pub(crate) numbers: BlHash,
    pub(crate) prefixes: Prefixes,
    /// Slots that both halves of an inode have.
    inode_slots: u32,
    pub(crate) dirs: SegVec<DirState>,
    pub(crate) name_locks: NameLocks,
    pub(crate) clock: Clock,
    pub(crate) negatives: Stat,
    pub(crate) max_negative: u64,
    /// The memory limit in bytes; 0: none.
    pub(crate) limit: AtomicU64,
    /// Whether uses of names are noted, by dentry in `visited`.
    pub(crate) armed: AtomicBool,
    pub(crate) visited: Arena<Visited>,
    /// Eviction lock: held by the thread that empties chunks. Of the cache's locks only name locks and the
    /// rename mutex come before it.
    pub(crate) room: Ordered<(), { Class::Eviction as u8 }>,
    /// Names evicted so far.
    pub(crate) evictions: Stat,
    pub(crate) pressure: Pressure,
    pub(crate) listeners: Listeners,
    pub(crate) watermarks: Watermarks,
    /// Devices whose blocks count towards the limit too.
    pub(crate) buffers: Arc<Registry>,
    /// Memory that drivers keep besides.
    pub(crate) external: Arc<ExternalBytes>,
    superblocks: SegVec<OnceLock<Superblock>>,
}

/// The state of one superblock.
pub(crate) struct Superblock {
    pub(crate) resident: bool,
    /// Its driver's answers hold until the epoch moves.
    pub(crate) watched: AtomicBool,
    pub(crate) on_evict: EvictHook,
    pub(crate) changes: Changes,
    pub(crate) inodes: Slab,
    pub(crate) dentries: Slab,
    /// The shrinker's hand: the piece at which it continues.
    pub(crate) hand: AtomicU64,
    /// The hand of the search for inodes that the kernel should forget.
    pub(crate) kernel_hand: AtomicU64,
    /// The hand of the search for negative entries.
    pub(crate) negative_hand: AtomicU64,
    /// Held while a directory moves to another parent (rule 12).
    pub(crate) renames: Mutex<()>,
    pub(crate) root: AtomicU64,
}

impl std::fmt::Debug for Cache {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Cache").field("counters", &self.counters()).finish_non_exhaustive()
    }
}

fn no_memory(_: std::io::Error) -> CacheError {
    CacheError::NoMemory
}

impl Cache {
    /// An empty cache. Reserves address space and commits next to nothing.
    ///
    /// # Errors
    /// `NoMemory` if the system grants not even a small reservation.
    pub fn new(config: Config) -> Result<Arc<Self>, CacheError> {
        let inodes = Arena::reserve(config.max_inodes).map_err(no_memory)?;
        let inodes_private = Arena::reserve(inodes.capacity()).map_err(no_memory)?;
        let dentries = Arena::reserve(config.max_inodes).map_err(no_memory)?;
        let dentries_private = Arena::reserve(dentries.capacity()).map_err(no_memory)?;
        let dentry_slots = dentries.capacity().min(dentries_private.capacity());
        let inode_slots = inodes.capacity().min(inodes_private.capacity());
        let percpu = PercpuRefs::new().map_err(no_memory)?;
        let cache = Self {
            number: CacheNumber::next(),
            inode_slots,
            percpu,
            inode_pool: Pool::new(inode_slots),
            dentry_pool: Pool::new(dentry_slots),
            tails: Tails::new(dentry_slots).map_err(no_memory)?,
            targets: Targets::new(inode_slots).map_err(no_memory)?,
            names: BlHash::new(dentry_slots).map_err(no_memory)?,
            numbers: BlHash::new(inode_slots).map_err(no_memory)?,
            prefixes: Prefixes::new(inode_slots).map_err(no_memory)?,
            dirs: SegVec::new(),
            name_locks: NameLocks::new(),
            clock: Clock::default(),
            negatives: Stat::new(),
            max_negative: u64::from(config.max_negative),
            limit: AtomicU64::new(config.memory_limit),
            armed: AtomicBool::new(false),
            visited: Arena::reserve(dentry_slots).map_err(no_memory)?,
            evictions: Stat::new(),
            room: Ordered::new(()),
            pressure: Pressure::default(),
            listeners: Listeners::default(),
            watermarks: Watermarks::default(),
            buffers: Arc::default(),
            external: Arc::default(),
            superblocks: SegVec::new(),
            inodes,
            inodes_private,
            dentries,
            dentries_private,
        };
        if config.huge_pages {
            cache.inodes.advise_huge_pages();
            cache.inodes_private.advise_huge_pages();
            cache.dentries.advise_huge_pages();
            cache.dentries_private.advise_huge_pages();
            cache.names.advise_huge_pages();
            cache.numbers.advise_huge_pages();
        }
        Ok(Arc::new(cache))
    }

    /// Add a superblock. It has no root yet.
    ///
    /// # Errors
    /// `NoMemory` after 65,536 superblocks.
    pub fn add_superblock(&self, options: SbOptions) -> Result<SbId, CacheError> {
        let (id, place) = self.superblocks.alloc().ok_or(CacheError::NoMemory)?;
        let id = u16::try_from(id).map_err(|_| CacheError::NoMemory)?;
        let sb = Superblock {
            changes: Changes::new(options.resident),
            resident: options.resident,
            watched: AtomicBool::new(false),
            on_evict: options.on_evict,
            inodes: Slab::new(u32::from(id)),
            dentries: Slab::new(u32::from(id)),
            hand: AtomicU64::new(0),
            kernel_hand: AtomicU64::new(0),
            negative_hand: AtomicU64::new(0),
            renames: Mutex::new(()),
            root: AtomicU64::new(0),
        };
        place.set(sb).map_err(|_| CacheError::NoMemory)?;
        Ok(SbId(id))
    }

    #[inline]
    pub(crate) fn superblock(&self, sb: SbId) -> &Superblock {
        // Only `add_superblock` makes an SbId, and no superblock is ever removed.
        self.superblocks.get(u32::from(sb.0)).and_then(OnceLock::get).expect("a superblock of this cache")
    }

    #[inline]
    pub(crate) fn sb_of(&self, inode: u32) -> &Superblock {
        self.superblock(self.inodes_private.get(inode).sb_id())
    }

    /// All superblocks that were ever added; one that has ended is empty.
    pub(crate) fn superblocks(&self) -> impl Iterator<Item = SbId> {
        let made = |id: u16| self.superblocks.get(u32::from(id)).and_then(OnceLock::get).is_some();
        (0..=u16::MAX).take_while(move |id| made(*id)).map(SbId)
    }

    /// Make the root directory of a superblock, once. The superblock itself holds one reference until
    /// [`Cache::drop_superblock`].
    ///
    /// # Errors
    /// `NoMemory`.
    pub fn make_root(&self, sb: SbId, fresh: &Fresh) -> Result<InodeRef<'_>, CacheError> {
        let (index, dir) = self.alloc_node(sb, true)?;
        let root = self.fill_inode(sb, index, dir, fresh, ROOT, self.clock.epoch());
        let id = root.id();
        // The superblock's own reference takes the place of a name's, and is dropped as one.
        self.superblock(sb).root.store(id.as_u64(), Ordering::Relaxed);
        Ok(root)
    }

    pub(crate) fn alloc_inode(&self, sb: SbId) -> Result<u32, CacheError> {
        let slab = &self.superblock(sb).inodes;
        loop {
            let may_grow = || self.may_grow(INODE_CHUNK);
            let index = self.with_room(sb, || slab.alloc_within(&self.inode_pool, &may_grow))?;
            let generation = self.inodes.get(index).generation();
            if generation == 0 && begins_chunk(index, slab) {
                self.inodes.populate(index, index + CHUNK);
                self.inodes_private.populate(index, index + CHUNK);
            }
            let floor = self.inode_pool.floor(index);
            if next_generation(generation, floor).is_some() {
                above_floor(&self.inodes.get(index).seq, || floor);
                self.took(sb, index);
                return Ok(index);
            }
            // Its next generation would wrap, so the slot is never used again (rule 1).
            slab.retire();
        }
    }

    pub(crate) fn alloc_dentry(&self, sb: SbId) -> Result<u32, CacheError> {
        let slab = &self.superblock(sb).dentries;
        let may_grow = || self.may_grow(DENTRY_CHUNK);
        let index = self.with_room(sb, || slab.alloc_within(&self.dentry_pool, &may_grow))?;
        let seq = &self.dentries.get(index).seq;
        if seq.raw().load(Ordering::Relaxed) == 0 && begins_chunk(index, slab) {
            self.dentries.populate(index, index + CHUNK);
            self.dentries_private.populate(index, index + CHUNK);
        }
        above_floor(seq, || self.dentry_pool.floor(index));
        self.unused(index);
        self.took(sb, index);
        Ok(index)
    }

    /// Memory that a name needs beside its dentry: the tail of a long name, filled; 0 if the name needs
    /// none. Every dentry gets its name after this call.
    ///
    /// # Errors
    /// `NoMemory`; `Name`.
    pub(crate) fn alloc_tail(&self, sb: SbId, words: &NameWords<'_>) -> Result<u32, CacheError> {
        if words.is_none() {
            return Err(CacheError::Name);
        }
        self.with_room(sb, || self.tails.alloc(words, &|bytes| self.may_grow(bytes)))
    }

    pub(crate) fn alloc_dir(&self, sb: SbId) -> Result<u32, CacheError> {
        let alloc = || self.dirs.alloc_within(&|bytes| self.may_grow(bytes)).map(|(i, _)| i + 1);
        self.with_room(sb, alloc)
    }

    /// An inode slot, and a directory state if `dir`.
    pub(crate) fn alloc_node(&self, sb: SbId, dir: bool) -> Result<(u32, u32), CacheError> {
        let index = self.alloc_inode(sb)?;
        match if dir { self.alloc_dir(sb) } else { Ok(0) } {
            Ok(dir) => Ok((index, dir)),
            Err(e) => {
                self.free_inode_slot(index, 0);
                Err(e)
            }
        }
    }

    /// Begin an inode's generation with two references: the returned one, and that of its name, which the
    /// caller makes. `dir` is the directory state, for directories. `epoch` is the one in which the driver
    /// was asked.
    pub(crate) fn fill_inode(
        &self,
        sb: SbId,
        index: u32,
        dir: u32,
        fresh: &Fresh,
        flags: u32,
        epoch: u32,
    ) -> InodeRef<'_> {
        let deadline = self.deadline(sb, fresh.ttl, epoch);
        let generation = self.fill_slot(sb, index, dir, fresh, flags, deadline);
        // Last, as in `start_inode`.
        self.inodes_private.get(index).refs.start_anchored(generation);
        InodeRef::new(self, index, generation)
    }

    /// Last: a thread that gets a reference by this generation finds the inode finished (rule 16).
    pub(crate) fn start_inode(&self, index: u32, generation: u32) -> InodeRef<'_> {
        self.inodes_private.get(index).refs.start(generation);
        InodeRef::new(self, index, generation)
    }

    /// Fill both halves of an inode to which nobody can get a reference yet; returns its generation. Its
    /// attributes are trusted until `deadline`.
    pub(crate) fn fill_slot(
        &self,
        sb: SbId,
        index: u32,
        dir: u32,
        fresh: &Fresh,
        flags: u32,
        deadline: u32,
    ) -> u32 {
        let (published, private) = (self.inodes.get(index), self.inodes_private.get(index));
        let resident = self.superblock(sb).resident;
        let old = published.generation();
        // `alloc_inode` has checked that there is a next generation.
        let generation = next_generation(old, self.inode_pool.floor(index)).unwrap_or(u32::MAX);
        // Readers of the slot's last generation may still be looking: rule 3.
        fence(Ordering::Release);
        private.nlookup.store(0, Ordering::Relaxed);
        private.value.store(fresh.private, Ordering::Relaxed);
        private.alias.store(0, Ordering::Relaxed);
        private.set_sb(sb, resident);
        private.dir.store(dir, Ordering::Relaxed);
        private.deadline.store(deadline, Ordering::Relaxed);
        if let Some(state) = self.dir_state_at(dir) {
            state.reset(resident);
        }
        published.fill(private, generation, &fresh.attr, flags);
        generation
    }

    /// The deadline of an answer that the driver of `sb` gave when it was asked in `epoch`.
    pub(crate) fn deadline(&self, sb: SbId, ttl: Ttl, epoch: u32) -> u32 {
        let superblock = self.superblock(sb);
        if superblock.resident {
            NEVER
        } else if ttl == Ttl::Forever && superblock.watched.load(Ordering::Relaxed) {
            epoch
        } else {
            self.clock.deadline(ttl)
        }
    }

    #[inline]
    fn dir_state_at(&self, dir: u32) -> Option<&DirState> {
        self.dirs.get(dir.checked_sub(1)?)
    }

    /// The directory state of an inode that is (or was) a directory.
    #[inline]
    pub(crate) fn dir_state(&self, inode: u32) -> Option<&DirState> {
        self.dir_state_at(self.inodes_private.get(inode).dir.load(Ordering::Relaxed))
    }

    /// Give an inode slot, and its directory state (0: none), back to the superblock that owns the slot
    /// (design rule 18).
    pub(crate) fn free_inode_slot(&self, index: u32, dir: u32) {
        if self.inode_pool.free(index, |owner| &self.owner(owner).inodes) {
            self.trim_ended(self.inode_pool.owner(index));
        }
        if dir != 0 {
            self.dirs.free(dir - 1);
        }
    }

    /// The only way to give back a dentry slot and its tail (0: none). Both go to the superblock that owns
    /// the slot, which is not always the superblock of the directory at hand (design rule 18). A negative
    /// entry does not hold its directory, so another superblock may have taken the directory's index since.
    pub(crate) fn free_dentry(&self, dentry: u32, tail: u32) {
        self.tails.free(tail);
        if self.dentry_pool.free(dentry, |owner| &self.owner(owner).dentries) {
            self.trim_ended(self.dentry_pool.owner(dentry));
        }
    }

    /// The superblock whose slabs have this id.
    #[inline]
    fn owner(&self, slab: u32) -> &Superblock {
        self.superblock(SbId(slab as u16))
    }

    /// The last slot of a chunk came back, and the chunk's superblock has ended. (Without an owner the
    /// chunk has been returned since.)
    #[cold]
    fn trim_ended(&self, owner: Option<u32>) {
        if let Some(id) = owner {
            self.trim(SbId(id as u16));
        }
    }

    /// Take another reference to an inode to which the caller holds one.
    #[inline]
    pub(crate) fn get_again(&self, index: u32, generation: u32) {
        let private = self.inodes_private.get(index);
        let place = Place::of(&private.place);
        if place.is_none() {
            private.refs.get_held();
        } else if !self.percpu.get(place, InodeId::new(index, generation).as_u64()) {
            self.counted_here(index);
            private.refs.get_held();
        }
    }

    /// Drop a reference; the last one ends the inode's generation. The put is counted where the inode's
    /// references are counted now (in its word or per thread), wherever the reference was taken.
    #[inline]
    pub(crate) fn put_inode(&self, index: u32) {
        let private = self.inodes_private.get(index);
        let place = Place::of(&private.place);
        if place.is_none() {
            if private.refs.put() {
                self.end_inode(index);
            }
            return;
        }
        let id = InodeId::new(index, private.refs.generation());
        if !self.percpu.put(place, id.as_u64()) {
            self.put_here(index);
        }
    }

    /// Drop a reference that could not be counted per thread.
    #[cold]
    #[inline(never)]
    fn put_here(&self, index: u32) {
        self.counted_here(index);
        if self.inodes_private.get(index).refs.put() {
            self.end_inode(index);
        }
    }

    /// Drop the reference of a name (or of a superblock to its root), which vouched for the inode. From now
    /// on all others are counted in the inode's word, so that the last put is noticed. The caller holds no
    /// lock.
    pub(crate) fn put_name(&self, index: u32) {
        order::check(Class::Eviction);
        if let Some(last) = self.inodes_private.get(index).refs.put_anchor() {
            // If nothing is spread, all references are counted in the word, even if the inode has a
            // per-thread reference slot.
            if last {
                self.end_inode(index);
            }
            return;
        }
        if self.inodes_private.get(index).refs.unanchor() {
            self.gather(index);
        }
        self.put_inode(index);
    }

    /// Count all references to an inode in its word, for now.
    pub(crate) fn gather(&self, index: u32) {
        self.percpu.gather(&Inodes(self), index);
    }

    /// A reference is counted in the word of an inode although the inode has a per-thread reference slot.
    #[cold]
    pub(crate) fn counted_here(&self, index: u32) {
        self.percpu.elsewhere(&Inodes(self), index);
    }

    /// Empty a slot that was filled and not started. Nobody can have a reference, and the driver is not
    /// notified.
    pub(crate) fn discard_slot(&self, index: u32) {
        let dir = self.inodes_private.get(index).dir.swap(0, Ordering::Relaxed);
        self.inodes.get(index).clear();
        self.free_inode_slot(index, dir);
    }

    /// The inode is dead, and this thread made it so: take it out of everything and free the slot.
    #[cold]
    #[inline(never)]
    pub(crate) fn end_inode(&self, index: u32) {
        let (published, private) = (self.inodes.get(index), self.inodes_private.get(index));
        let sb = private.sb_id();
        let superblock = self.superblock(sb);
        let attr = published.copy(|| private);
        let value = private.value.load(Ordering::Relaxed);
        if !superblock.resident {
            self.unhash_number(sb, index, attr.ino);
        }
        let dir = private.dir.load(Ordering::Relaxed);
        published.clear();
        private.dir.store(0, Ordering::Relaxed);
        // The sequence has moved, so a reader that copies the target now discards it.
        if attr.is_symlink() {
            self.targets.free(private.alias.swap(0, Ordering::Relaxed));
        }
        self.pressure.not_barren();
        // The driver may take its time, or use the cache.
        order::check(Class::Eviction);
        (superblock.on_evict)(&attr, value);
        self.free_inode_slot(index, dir);
    }

    /// Whether this slot exists. Ask it of every index that comes from outside: an arena maps an index out
    /// of range to another slot.
    #[inline(always)]
    pub(crate) fn is_slot(&self, index: u32) -> bool {
        index < self.inode_slots
    }

    /// A reference from an id; `None` if that generation is over.
    #[inline]
    pub fn get(&self, id: InodeId) -> Option<InodeRef<'_>> {
        if !self.is_slot(id.index()) {
            return None;
        }
        let place = Place::of(&self.inodes_private.get(id.index()).place);
        // If the per-thread reference slot is this generation's, it remains so while the generation lasts.
        let got = !place.is_none() && self.percpu.get(place, id.as_u64()) || self.get_here(id);
        got.then(|| InodeRef::new(self, id.index(), id.generation()))
    }

    /// Take a reference that is counted in the inode's word; false if the generation is over.
    #[inline(never)]
    fn get_here(&self, id: InodeId) -> bool {
        let refs = &self.inodes_private.get(id.index()).refs;
        match refs.get_watched(id.generation()) {
            Got::Dead => false,
            got @ (Got::Yes | Got::Contended) => {
                if percpu_ref::often(id.as_u64(), got == Got::Contended) {
                    self.percpu.spread(&Inodes(self), id.as_u64());
                }
                true
            }
            // The references are being gathered, or this thread has no line.
            Got::Spread => {
                let got = refs.get_generation(id.generation());
                self.counted_here(id.index());
                got
            }
        }
    }

    /// A front end's kernel forgets `n` lookups. Unknown ids, and more than was counted, are ignored: the
    /// kernel may forget what it was never told.
    pub fn forget(&self, id: InodeId, n: u64) {
        let Some(inode) = self.get(id) else { return };
        let nlookup = &self.inodes_private.get(id.index()).nlookup;
        let mut old = nlookup.load(Ordering::Relaxed);
        let new = loop {
            let new = old.saturating_sub(n);
            match nlookup.compare_exchange_weak(old, new, Ordering::AcqRel, Ordering::Relaxed) {
                Ok(_) => break new,
                Err(now) => old = now,
            }
        };
        // Each step to zero returns the one reference that the step from zero took.
        let forgotten = old != 0 && new == 0;
        if forgotten {
            self.put_inode(id.index());
        }
        drop(inode);
        if forgotten {
            self.pressure.ease();
        }
    }

    /// The root of a superblock, if it has one.
    pub fn root(&self, sb: SbId) -> Option<InodeRef<'_>> {
        self.get(InodeId::from_u64(self.superblock(sb).root.load(Ordering::Relaxed)))
    }

    /// Advance the clock that expiry uses; for tests of drivers.
    pub fn advance_clock(&self, ms: u32) {
        self.clock.advance(ms);
    }

    /// Current figures. O(superblocks).
    pub fn counters(&self) -> Counters {
        let mut c =
            Counters { negative: self.negatives.get(), spread: self.percpu.in_use(), ..Counters::default() };
        for sb in self.superblocks().map(|sb| self.superblock(sb)) {
            c.inodes += sb.inodes.in_use();
            c.dentries += sb.dentries.in_use();
        }
        c.hash_bytes = self.names.bytes() + self.numbers.bytes();
        c.bytes = self.committed();
        (c.limit, c.watermark) = (self.memory_limit(), self.ceiling());
        (c.evicted, c.evicted_ahead) = (self.evictions.get(), self.evicted_ahead());
        let (a, b) = (self.names.long_chains(), self.numbers.long_chains());
        c.long_chains = a.0 + b.0;
        c.rekeys = a.1 + b.1;
        c
    }
}

/// Whether an unused slot is the first one taken from a new chunk, in a slab that has other chunks. A user
/// that has filled one chunk is likely to fill another, and the whole chunk counts as committed from here
/// on.
fn begins_chunk(index: u32, slab: &Slab) -> bool {
    index.is_multiple_of(CHUNK) && slab.chunk_count() > 1
}

/// Memory that was given back reads as zero. The slot's sequence then continues above every value that it
/// had (see [`Cache::trim`]).
fn above_floor(seq: &SeqCount, floor: impl Fn() -> u32) {
    if seq.raw().load(Ordering::Relaxed) == 0 {
        seq.raw().store(floor() * 2, Ordering::Relaxed);
    }
}

/// The owner of the references that are counted per thread.
pub(crate) struct Inodes<'a>(pub &'a Cache);

impl percpu_ref::Objects for Inodes<'_> {
    fn refs(&self, index: u32) -> &LockRef {
        &self.0.inodes_private.get(index).refs
    }
    fn place(&self, index: u32) -> &AtomicU32 {
        &self.0.inodes_private.get(index).place
    }
}

/// The name table's questions about dentries, under their bucket's lock.
pub(crate) struct Names<'a>(pub &'a Cache);

impl Objects for Names<'_> {
    fn stored_hash(&self, index: u32) -> u32 {
        self.0.dentries.get(index).hash.load(Ordering::Relaxed)
    }
    fn rehash(&self, index: u32, key: Key) -> u64 {
        self.0.dentries.get(index).hash_again(key, &self.0.tails)
    }
    fn store_hash(&self, index: u32, hash: u32) {
        self.0.dentries.get(index).hash.store(hash, Ordering::Relaxed);
    }
    fn prefetch(&self, index: u32) {
        self.0.dentries.prefetch(index);
    }
}

/// The number table's questions about inodes.
pub(crate) struct Numbers<'a>(pub &'a Cache);

/// Keyed hash of an inode number within its superblock.
pub(crate) fn number_hash(sb: SbId, ino: u64, key: Key) -> u64 {
    let product = u128::from(ino ^ key.0) * u128::from(key.1 | 1);
    let h = product as u64 ^ (product >> 64) as u64 ^ u64::from(sb.0) << 17;
    let product = u128::from(h ^ key.1) * u128::from(key.0 | 1);
    product as u64 ^ (product >> 64) as u64
}

impl Objects for Numbers<'_> {
    fn stored_hash(&self, index: u32) -> u32 {
        self.0.inodes_private.get(index).hash.load(Ordering::Relaxed)
    }
    fn rehash(&self, index: u32, key: Key) -> u64 {
        let sb = self.0.inodes_private.get(index).sb_id();
        number_hash(sb, self.0.inodes.get(index).ino(), key)
    }
    fn store_hash(&self, index: u32, hash: u32) {
        self.0.inodes_private.get(index).hash.store(hash, Ordering::Relaxed);
    }
    fn prefetch(&self, index: u32) {
        self.0.inodes_private.prefetch(index);
    }
}

/// Whether the type bits say directory.
pub(crate) fn is_dir(fmt: u32) -> bool {
    fmt & mode::S_IFMT == mode::S_IFDIR
}
