//! The cache: arenas, hash tables, superblocks.
//!
//! One cache serves all superblocks of a process. Each chunk of its arenas belongs to one superblock. This file
//! creates and destroys caches and superblocks; each other file of the crate has one kind of use.
//! [`crate::walk::lock_free_lookup`] reads without references, [`crate::lookup::ticket`] holds the name locks,
//! [`crate::names::publish`] publishes changes, and [`crate::names::invalidate`] drops entries that may be wrong.
//! [`crate::limit::make_room`] keeps the memory limit, and [`crate::limit::watermarks`] keeps a margin below it.
//!
//! Lock order (docs/locking.md): rename mutex, name locks, eviction lock, directory list, buckets, attribute locks,
//! slabs.

use std::sync::Arc;

use crate::coherence::expiry::{Clock, NEVER};
use crate::coherence::listeners::Listeners;
use crate::inodes::attr::mode;
use crate::inodes::inode_ref::InodeRef;
use crate::inodes::inode_slots::Inodes;
use crate::limit::limit_state::Limit;
use crate::lookup::name_locks::NameLocks;
use crate::names::dentry_slots::Dentries;
use crate::superblock::{Superblock, Superblocks};
use crate::types::{CacheError, Config, Counters, SbId, SbOptions, Ttl};
use crate::walk::prefix_cache::Prefixes;

/// The number of a cache, unique in this process; 0 belongs to no cache.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct CacheNumber(u64);

impl CacheNumber {
    pub(crate) fn next() -> Self {
        use std::sync::atomic::{AtomicU64, Ordering};
        static LAST: AtomicU64 = AtomicU64::new(0);
        Self(LAST.fetch_add(1, Ordering::Relaxed) + 1)
    }
}

/// Dentry and inode cache; see the crate's head.
pub struct Cache {
    pub(crate) number: CacheNumber,
    pub(crate) inodes: Inodes,
    pub(crate) dentries: Dentries,
    pub(crate) prefixes: Prefixes,
    pub(crate) name_locks: NameLocks,
    pub(crate) clock: Clock,
    pub(crate) listeners: Listeners,
    pub(crate) limit: Limit,
    superblocks: Superblocks,
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
    #[doc(hidden)]
    pub fn new(config: Config) -> Result<Arc<Self>, CacheError> {
        Ok(Arc::new(Self::build(config)?))
    }

    /// [`Cache::new`] as a part of something else.
    pub(crate) fn build(config: Config) -> Result<Self, CacheError> {
        let inodes = Inodes::new(config.max_inodes, config.id_bits).map_err(no_memory)?;
        let dentries = Dentries::new(config.max_inodes, config.max_negative).map_err(no_memory)?;
        let cache = Self {
            number: CacheNumber::next(),
            prefixes: Prefixes::new(config.max_inodes).map_err(no_memory)?,
            name_locks: NameLocks::new(),
            clock: Clock::default(),
            listeners: Listeners::default(),
            limit: Limit::new(config.memory_limit),
            superblocks: Superblocks::new(),
            inodes,
            dentries,
        };
        if config.huge_pages {
            cache.inodes.advise_huge_pages();
            cache.dentries.advise_huge_pages();
        }
        Ok(cache)
    }

    /// Add a superblock. It has no root yet.
    ///
    /// # Errors
    /// `NoMemory` after 65,536 superblocks.
    #[doc(hidden)]
    pub fn add_superblock(&self, options: SbOptions) -> Result<SbId, CacheError> {
        self.superblocks.add(options, false)
    }

    /// [`Cache::add_superblock`] of one whose inodes all lead to a name of theirs. No link targets are cached in it.
    pub(crate) fn add_named_superblock(&self, options: SbOptions) -> Result<SbId, CacheError> {
        self.superblocks.add(options, true)
    }

    /// Whether a superblock has ended and nothing of it is left, so [`Cache::reuse_superblock`] may be called.
    pub(crate) fn is_unused(&self, sb: SbId) -> bool {
        // The counts are sums of what threads did, and may be read in the middle. A held inode is always shown.
        self.superblock(sb).is_empty() && self.inodes_of(sb, &mut |_| false) == 0
    }

    /// Let a superblock serve another file system with the same options. The caller has found it unused, and has
    /// it alone.
    pub(crate) fn reuse_superblock(&self, sb: SbId) {
        self.superblock(sb).begin_anew();
    }

    #[inline]
    pub(crate) fn superblock(&self, sb: SbId) -> &Superblock {
        self.superblocks.get(sb)
    }

    /// Whether a reference is to an inode of this cache.
    #[inline]
    pub(crate) fn owns(&self, inode: &InodeRef<'_>) -> bool {
        std::ptr::eq(self, inode.cache())
    }

    #[inline]
    pub(crate) fn sb_of(&self, inode: u32) -> &Superblock {
        self.superblock(self.inodes.private(inode).sb_id())
    }

    /// All superblocks that were ever added; one that has ended is empty.
    pub(crate) fn superblocks(&self) -> impl Iterator<Item = SbId> {
        self.superblocks.ids()
    }

    /// The deadline of an answer that the driver of `sb` gave when it was asked in `epoch`.
    pub(crate) fn deadline(&self, sb: SbId, ttl: Ttl, epoch: u32) -> u32 {
        let superblock = self.superblock(sb);
        if superblock.is_resident() {
            NEVER
        } else if ttl == Ttl::Forever && superblock.is_watched() {
            epoch
        } else {
            self.clock.deadline(ttl)
        }
    }

    /// The superblock whose slabs have this id.
    #[inline]
    pub(crate) fn owner(&self, slab: u32) -> &Superblock {
        self.superblock(SbId(slab as u16))
    }

    /// Current figures. O(superblocks).
    pub fn counters(&self) -> Counters {
        let mut c = Counters {
            negative: self.dentries.negatives(),
            spread: self.inodes.spread(),
            ..Counters::default()
        };
        for sb in self.superblocks().map(|sb| self.superblock(sb)) {
            c.inodes += sb.inodes().in_use();
            c.dentries += sb.dentries().in_use();
        }
        c.hash_bytes = self.dentries.names().bytes() + self.inodes.hash_bytes();
        c.bytes = self.committed();
        (c.limit, c.watermark) = (self.memory_limit(), self.limit.ceiling());
        (c.evicted, c.evicted_ahead) = (self.limit.evicted(), self.evicted_ahead());
        let (a, b) = (self.dentries.names().long_chains(), self.inodes.long_chains());
        c.long_chains = a.0 + b.0;
        c.rekeys = a.1 + b.1;
        c
    }
}

// For this project's own crates: see `machinery`.
#[doc(hidden)]
impl Cache {
    /// Advance the clock that expiry uses; for tests of drivers.
    pub fn advance_clock(&self, ms: u32) {
        self.clock.advance(ms);
    }
}

/// Whether the type bits say directory.
pub(crate) fn is_dir(fmt: u32) -> bool {
    fmt & mode::S_IFMT == mode::S_IFDIR
}
