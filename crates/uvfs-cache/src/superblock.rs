//! The state of the superblocks of a cache.
//!
//! A superblock is added and never removed; one that has ended is empty. Its two slabs own its chunks of
//! inodes and dentries, and lock themselves. Its hands are counters without a lock: if two threads meet at
//! one, each continues at a piece of its own. Threads that evict take whole chunks and go through them piece by
//! piece, so that two of them seldom come to the names of one directory. The rename mutex is held while a directory moves to another
//! parent (rule 12). It is the first in the lock order.
//!
//! This module knows nothing of the cache. It costs two loads to find a superblock by its id.

use std::sync::OnceLock;

use crossbeam_utils::CachePadded;
use uvfs_sync::primitives::{AtomicU64, Mutex, MutexGuard, Ordering, SHARDS, shard};
use uvfs_sync::segvec::SegVec;
use uvfs_sync::slab::{CHUNK, SPAN, Slab};

use crate::coherence::late_attributes::Changes;
use crate::inodes::attr::Attr;
use crate::inodes::inode::{NAMED, RESIDENT};
use crate::types::{CacheError, EvictHook, InodeId, SbId, SbOptions};

/// Pieces of a chunk.
const PIECES: u64 = (CHUNK / SPAN) as u64;

/// A search that goes through a superblock's names piece by piece, and continues where it stopped.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Hand {
    /// For a name to evict.
    Shrinker,
    /// For inodes that the kernel should forget.
    Kernel,
    /// For negative entries.
    Negatives,
}

/// The state of one superblock.
pub(crate) struct Superblock {
    resident: bool,
    /// Each of its inodes leads to a name of it.
    named: bool,
    /// Its driver's answers hold until the epoch moves.
    watched: bool,
    on_evict: EvictHook,
    changes: Changes,
    inodes: Slab,
    dentries: Slab,
    /// The piece at which each [`Hand`] continues.
    hands: [AtomicU64; 3],
    /// The piece at which the threads of each shard continue to evict; a multiple of [`PIECES`]: in another chunk.
    evicting: [CachePadded<AtomicU64>; SHARDS],
    renames: Mutex<()>,
    root: AtomicU64,
}

impl Superblock {
    fn new(id: u16, options: SbOptions) -> Self {
        Self {
            changes: Changes::new(options.resident),
            resident: options.resident,
            named: false,
            watched: options.watched,
            on_evict: options.on_evict,
            inodes: Slab::new(u32::from(id)),
            dentries: Slab::new(u32::from(id)),
            hands: std::array::from_fn(|_| AtomicU64::new(0)),
            evicting: std::array::from_fn(|_| CachePadded::new(AtomicU64::new(0))),
            renames: Mutex::new(()),
            root: AtomicU64::new(0),
        }
    }

    /// Whether the cache is the whole truth: no driver is asked, and nothing is evicted.
    #[inline]
    pub(crate) fn is_resident(&self) -> bool {
        self.resident
    }

    /// Whether the driver notifies the cache of changes; its answers hold until the epoch moves.
    #[inline]
    pub(crate) fn is_watched(&self) -> bool {
        self.watched
    }

    /// The flags that its inodes have beside its number.
    #[inline]
    pub(crate) fn inode_flags(&self) -> u32 {
        (if self.resident { RESIDENT } else { 0 }) | if self.named { NAMED } else { 0 }
    }

    /// Whether it has ended and nothing of it is left.
    pub(crate) fn is_empty(&self) -> bool {
        self.root.load(Ordering::Relaxed) == 0 && self.inodes.in_use() == 0 && self.dentries.in_use() == 0
    }

    /// It serves another file system: ended, empty, and the caller's alone.
    pub(crate) fn begin_anew(&self) {
        self.inodes.begin_anew();
        self.dentries.begin_anew();
    }

    /// Numbers of changed inodes.
    #[inline]
    pub(crate) fn changes(&self) -> &Changes {
        &self.changes
    }

    /// The slab of its inodes.
    #[inline]
    pub(crate) fn inodes(&self) -> &Slab {
        &self.inodes
    }

    /// The slab of its dentries.
    #[inline]
    pub(crate) fn dentries(&self) -> &Slab {
        &self.dentries
    }

    /// Call the evict hook. The driver may take its time, or use the cache.
    pub(crate) fn notify_eviction(&self, attr: &Attr, value: u64) {
        (self.on_evict)(attr, value);
    }

    /// The next piece of its dentries for a search; `None` if it has none.
    pub(crate) fn next_span(&self, hand: Hand) -> Option<(u32, u32)> {
        let at = &self.hands[hand as usize];
        let turn = match hand {
            Hand::Shrinker => self.next_turn(at),
            Hand::Kernel | Hand::Negatives => at.fetch_add(1, Ordering::Relaxed),
        };
        self.dentries.span(turn)
    }

    /// Load and store are two steps: if two threads of a shard meet here, both may look at one piece.
    fn next_turn(&self, hand: &AtomicU64) -> u64 {
        if PIECES == 1 {
            return hand.fetch_add(1, Ordering::Relaxed);
        }
        let evicting = &self.evicting[shard()];
        let next = evicting.load(Ordering::Relaxed);
        let turn = if next.is_multiple_of(PIECES) { hand.fetch_add(PIECES, Ordering::Relaxed) } else { next };
        evicting.store(turn + 1, Ordering::Relaxed);
        turn
    }

    /// The chunk of dentries that the next thread will evict from; `None` if it has none.
    pub(crate) fn chunk_at_hand(&self) -> Option<(u32, u32)> {
        let chunks = self.dentries.chunks();
        let turn = self.hands[Hand::Shrinker as usize].load(Ordering::Relaxed) / PIECES;
        let at = turn.checked_rem(chunks.len() as u64)?;
        Some(chunks[at as usize])
    }

    /// Lock the rename mutex.
    pub(crate) fn lock_renames(&self) -> MutexGuard<'_, ()> {
        self.renames.lock()
    }

    /// The id of the root; one that names no inode if there is none.
    pub(crate) fn root(&self) -> InodeId {
        InodeId::from_u64(self.root.load(Ordering::Relaxed))
    }

    /// The root was made. A second root would leave the first one's reference to nobody.
    pub(crate) fn set_root(&self, root: InodeId) {
        let old = self.root.swap(root.as_u64(), Ordering::Relaxed);
        assert_eq!(old, 0, "a superblock has one root");
    }

    /// Take the root away; `None` if there is none.
    pub(crate) fn take_root(&self) -> Option<InodeId> {
        let root = InodeId::from_u64(self.root.swap(0, Ordering::Relaxed));
        (root.as_u64() != 0).then_some(root)
    }
}

/// All superblocks of a cache.
pub(crate) struct Superblocks(SegVec<OnceLock<Superblock>>);

impl Superblocks {
    pub(crate) fn new() -> Self {
        Self(SegVec::new())
    }

    /// Add a superblock; `named`: each of its inodes leads to a name of it, also after link targets are asked for.
    ///
    /// # Errors
    /// `NoMemory` after 65,536 superblocks.
    pub(crate) fn add(&self, options: SbOptions, named: bool) -> Result<SbId, CacheError> {
        let (id, place) = self.0.alloc().ok_or(CacheError::NoMemory)?;
        let id = u16::try_from(id).map_err(|_| CacheError::NoMemory)?;
        let superblock = Superblock { named, ..Superblock::new(id, options) };
        place.set(superblock).map_err(|_| CacheError::NoMemory)?;
        Ok(SbId(id))
    }

    #[inline]
    pub(crate) fn get(&self, sb: SbId) -> &Superblock {
        // Only `add` makes an SbId, and no superblock is ever removed.
        self.0.get(u32::from(sb.0)).and_then(OnceLock::get).expect("a superblock of this cache")
    }

    /// All superblocks that were ever added.
    pub(crate) fn ids(&self) -> impl Iterator<Item = SbId> {
        let made = |id: u16| self.0.get(u32::from(id)).and_then(OnceLock::get).is_some();
        (0..=u16::MAX).take_while(move |id| made(*id)).map(SbId)
    }
}
