//! The buffer cache: blocks of a device, found by number and read in place.
//!
//! A [`Device`] is anything that can be read at an offset ([`BlockSource`]), in blocks of one size from 512
//! bytes to 64 KiB. [`Device::get`] returns a pinned block, whose bytes stay where they are while the
//! [`Buffer`] lives. [`Device::read`] copies some bytes out and pins nothing. Missing blocks are read from
//! the source. Threads that want the same block at the same time share one read, and a sequential reader
//! gets more blocks at once.
//!
//! | module | contents |
//! |---|---|
//! | `block_tree` | block number to block, read without locks |
//! | [`lookaside`] | leaves that a thread remembers |
//! | `shared_reads` | reads from the source, and waiting for them |
//! | `read_ahead` | how many blocks a read brings |
//! | `block_eviction` | slots, and eviction |
//! | [`memory_share`](self) | the share of the cache's limit |
//!
//! Protection: a device's one mutex protects the shape of the tree, the slots, and the table of reads under way.
//! Misses and evictions take it; it is never held across a read, a wait or a fill. Hits take no lock. A block's entry
//! may be old by the time it is used; then the block's generation refuses it ([`uvfs_sync::pinned_blocks`]). A device has
//! its own memory, so all of it goes with the device. A caller may hold name locks and an inode lock, and no lock
//! that comes later in `docs/locking.md`, because making room for a block may evict names.
//!
//! Cost of a hit: finding the leaf (one comparison if it is the last one), one entry, and two
//! read-modify-writes for a pin or none for a copy.

mod block_eviction;
mod block_tree;
pub mod lookaside;
#[cfg(all(test, loom))]
mod loom_tests;
mod memory_share;
mod read_ahead;
mod shared_reads;
#[cfg(all(test, not(loom)))]
mod tests;
#[cfg(all(test, not(loom)))]
mod tight_tests;

use std::collections::HashMap;
use std::io;
use std::sync::{Arc, Weak};

use uvfs_sync::lock_order::{Class, Ordered};
use uvfs_sync::pinned_blocks::{BlockId, Blocks, MAX_SLOTS};
use uvfs_sync::primitives::{AtomicU8, Ordering, Statistic};

use self::block_eviction::{Parts, Space};
use self::block_tree::Index;
pub use self::block_tree::MAX_BLOCK;
use self::memory_share::Account;
use self::read_ahead::ReadAhead;
use self::shared_reads::Flight;
use crate::cache::Cache;
use crate::limit::devices::Reclaim;

/// A pinned block: it stays where it is while this lives. Derefs to its bytes.
pub use uvfs_sync::pinned_blocks::Pinned as Buffer;
/// Limits on the size of a block.
pub use uvfs_sync::pinned_blocks::{MAX_SIZE, MIN_SIZE};

/// Bytes that blocks may take if the cache has no limit and the address space is available.
const UNLIMITED: u64 = 16 << 30;
/// The fewest slots that address space is reserved for. The limit governs their memory.
const LEAST_SLOTS: u64 = 64;

/// The device or file that blocks are read from.
pub trait BlockSource: Send + Sync {
    /// Read bytes from an offset on, as pread(2) does: it may read less than requested, and 0 is the end.
    ///
    /// # Errors
    /// The device's own; `Interrupted` is retried.
    fn read_at(&self, offset: u64, out: &mut [u8]) -> io::Result<usize>;
}

impl BlockSource for std::fs::File {
    fn read_at(&self, offset: u64, out: &mut [u8]) -> io::Result<usize> {
        std::os::unix::fs::FileExt::read_at(self, out, offset)
    }
}

/// The state that the mutex protects.
#[derive(Debug)]
struct State {
    space: Space,
    /// Blocks that are being read.
    flights: HashMap<u64, Arc<Flight>>,
    ahead: ReadAhead,
    account: Account,
    /// Bytes of the tree that are charged.
    nodes: u64,
}

/// Why uses of blocks are noted: slots are nearly used up, or the cache's memory is.
const SHORT: u8 = 1;
const ARMED: u8 = 2;

/// Blocks of one source, of one size.
pub struct Device {
    blocks: Blocks,
    index: Index,
    /// The device's part of its keys in lookasides.
    tag: u64,
    /// Whether uses of blocks are noted ([`SHORT`], [`ARMED`]).
    noting: AtomicU8,
    state: Ordered<State, { Class::Device as u8 }>,
    source: Arc<dyn BlockSource>,
    reads: Statistic,
    read_blocks: Statistic,
}

impl std::fmt::Debug for Device {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Device").field("counters", &self.counters()).finish_non_exhaustive()
    }
}

/// Activity of a device so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DeviceCounters {
    /// Reads of the source.
    pub reads: u64,
    /// Blocks that those reads brought.
    pub read_blocks: u64,
    /// Blocks that were evicted.
    pub evicted: u64,
    /// Bytes committed for blocks and their bookkeeping.
    pub bytes: u64,
}

/// Numbers for devices. Never issued twice.
fn next_device() -> u64 {
    static NEXT: std::sync::atomic::AtomicU64 = std::sync::atomic::AtomicU64::new(1);
    NEXT.fetch_add(1, std::sync::atomic::Ordering::Relaxed)
}

impl Device {
    /// Blocks of `block_size` bytes of a source, within the memory limit of a cache. Reserves address space
    /// for as many as the cache's present limit allows, and commits nothing.
    ///
    /// # Errors
    /// EINVAL if the size is no power of two or not within [`MIN_SIZE`] and [`MAX_SIZE`]; ENOMEM if next to
    /// nothing can be reserved.
    pub fn new(cache: &Arc<Cache>, source: Arc<dyn BlockSource>, block_size: usize) -> io::Result<Arc<Self>> {
        let limit = match cache.memory_limit() {
            0 => UNLIMITED,
            limit => limit,
        };
        let device = Self::alone(source, block_size, limit / block_size.max(MIN_SIZE) as u64)?;
        device.join(cache);
        Ok(device)
    }

    /// Blocks of a source that no limit governs until the device has [joined](Device::join) a cache. Holds
    /// at most `blocks` at a time, or a few more, and at most 16 GiB.
    ///
    /// # Errors
    /// As [`Device::new`].
    pub fn alone(source: Arc<dyn BlockSource>, block_size: usize, blocks: u64) -> io::Result<Arc<Self>> {
        let most = (UNLIMITED / block_size.max(MIN_SIZE) as u64).min(u64::from(MAX_SLOTS));
        let slots = blocks.clamp(LEAST_SLOTS, most);
        Ok(Arc::new(Self::with(source, block_size, slots as u32)?))
    }

    fn with(source: Arc<dyn BlockSource>, size: usize, slots: u32) -> io::Result<Self> {
        let blocks = Blocks::reserve(size, slots)?;
        let index = Index::reserve(blocks.slots())?;
        let state = State {
            space: Space::new(&blocks),
            flights: HashMap::new(),
            ahead: ReadAhead::default(),
            account: Account::default(),
            nodes: 0,
        };
        Ok(Self {
            index,
            tag: lookaside::tag(next_device()),
            noting: AtomicU8::new(0),
            state: Ordered::new(state),
            source,
            reads: Statistic::new(),
            read_blocks: Statistic::new(),
            blocks,
        })
    }

    /// From now on this device's committed bytes count towards the limit of `cache`, and of no other. The
    /// device does not keep the cache alive. Once the cache is gone, only the number of slots limits the
    /// device.
    pub fn join(self: &Arc<Self>, cache: &Arc<Cache>) {
        let mut state = self.state.lock();
        if let Some(before) = state.account.join(cache) {
            before.remove(&**self);
        }
        // Under the mutex: if two caches race, the one that the device joined last is also the one that
        // lists it.
        let listed: Weak<Self> = Arc::downgrade(self);
        cache.limit.add_device(listed, &**self);
        drop(state);
        cache.grew_unasked();
    }

    /// Bytes of a block.
    pub fn block_size(&self) -> usize {
        self.blocks.size()
    }

    /// A block, pinned: it is not evicted, and its bytes stay where they are, while the buffer lives. A
    /// missing block is read; if another thread reads it already, the caller waits for that read.
    ///
    /// # Errors
    /// The source's error for this block, for all threads that waited for that read; the next call asks the
    /// source again. `UnexpectedEof` if the source ends before the block does. EINVAL above [`MAX_BLOCK`].
    /// ENOMEM if every block is pinned, or the limit allows none.
    #[inline(always)]
    pub fn get(&self, block: u64) -> io::Result<Buffer<'_>> {
        if let Some(id) = self.find(block)
            && let Some(buffer) = self.blocks.pin(id)
        {
            self.used(id);
            return Ok(buffer);
        }
        self.miss(block)
    }

    /// Copy from a block, from `offset` bytes into it. A hit stores nothing that other threads read.
    ///
    /// # Errors
    /// As [`Device::get`]; EINVAL if the bytes are not all in the block.
    #[inline(always)]
    pub fn read(&self, block: u64, offset: usize, out: &mut [u8]) -> io::Result<()> {
        let within = offset.checked_add(out.len()).is_some_and(|end| end <= self.blocks.size());
        if within
            && let Some(id) = self.find(block)
            && self.blocks.read(id, offset, out)
        {
            self.used(id);
            return Ok(());
        }
        self.read_missed(block, offset, out, within).map(drop)
    }

    /// As [`Device::read`]; returns the block's note ([`Buffer::set_note`]).
    ///
    /// # Errors
    /// As [`Device::read`].
    #[inline(always)]
    pub fn read_noted(&self, block: u64, offset: usize, out: &mut [u8]) -> io::Result<u64> {
        let within = offset.checked_add(out.len()).is_some_and(|end| end <= self.blocks.size());
        if within
            && let Some(id) = self.find(block)
            && let Some(note) = self.blocks.read_noted(id, offset, out)
        {
            self.used(id);
            return Ok(note);
        }
        self.read_missed(block, offset, out, within)
    }

    /// As [`Device::read`], for an array of `N` bytes: they need not go through memory.
    ///
    /// # Errors
    /// As [`Device::read`].
    #[inline(always)]
    pub fn read_array<const N: usize>(&self, block: u64, offset: usize) -> io::Result<[u8; N]> {
        let within = offset.checked_add(N).is_some_and(|end| end <= self.blocks.size());
        let mut out = [0; N];
        if within
            && let Some(id) = self.find(block)
            && self.blocks.read(id, offset, &mut out)
        {
            self.used(id);
            return Ok(out);
        }
        self.array_missed(block, offset, within)
    }

    /// The identity of a block in memory; it differs each time that the block is read again. The block may
    /// go, or come, at once. The call reads nothing, and does not count as a use.
    #[inline(always)]
    pub fn which(&self, block: u64) -> Option<BlockId> {
        self.find(block).filter(|id| self.blocks.is_there(*id))
    }

    /// Whether a block is in memory, as far as [`Device::which`] can tell.
    #[inline(always)]
    pub fn holds(&self, block: u64) -> bool {
        self.which(block).is_some()
    }

    #[cold]
    fn array_missed<const N: usize>(&self, block: u64, offset: usize, within: bool) -> io::Result<[u8; N]> {
        let mut out = [0; N];
        self.read_missed(block, offset, &mut out, within)?;
        Ok(out)
    }

    #[cold]
    fn read_missed(&self, block: u64, offset: usize, out: &mut [u8], within: bool) -> io::Result<u64> {
        if !within {
            return Err(io::Error::from_raw_os_error(libc::EINVAL));
        }
        let buffer = self.miss(block)?;
        buffer.copy(offset, out);
        Ok(buffer.note())
    }

    /// The block's entry. `None` may be wrong, and an entry may be old.
    #[inline(always)]
    fn find(&self, block: u64) -> Option<BlockId> {
        if block > MAX_BLOCK { None } else { lookaside::find(&self.index, self.tag, block) }
    }

    #[inline(always)]
    fn used(&self, id: BlockId) {
        if self.noting.load(Ordering::Relaxed) != 0 {
            self.blocks.mark(id);
        }
    }

    /// Stores only if that changes something, because hits load it.
    fn set_noting(&self, why: u8, on: bool) {
        let is_on = self.noting.load(Ordering::Relaxed) & why != 0;
        match on {
            true if !is_on => self.noting.fetch_or(why, Ordering::Relaxed),
            false if is_on => self.noting.fetch_and(!why, Ordering::Relaxed),
            _ => 0,
        };
    }

    /// Return memory of unpinned blocks to the system until `bytes` are returned; returns how many were.
    /// O(blocks).
    pub fn give(&self, bytes: u64) -> u64 {
        let mut guard = self.state.lock();
        let state = &mut *guard;
        let given = state.space.reclaim(self.parts(), &mut state.account, bytes);
        self.charge_nodes(state);
        given
    }

    /// Activity so far.
    pub fn counters(&self) -> DeviceCounters {
        let state = self.state.lock();
        DeviceCounters {
            reads: self.reads.get(),
            read_blocks: self.read_blocks.get(),
            evicted: state.space.evicted(),
            bytes: state.account.bytes(),
        }
    }

    fn parts(&self) -> Parts<'_> {
        Parts { blocks: &self.blocks, index: &self.index }
    }

    /// The tree has grown or shrunk.
    fn charge_nodes(&self, state: &mut State) {
        let now = self.index.committed_bytes();
        state.account.add(now.saturating_sub(state.nodes));
        state.account.sub(state.nodes.saturating_sub(now));
        state.nodes = now;
    }
}

impl Reclaim for Device {
    fn reclaim(&self, bytes: u64) -> u64 {
        self.give(bytes)
    }

    fn set_armed(&self, on: bool) {
        self.set_noting(ARMED, on);
    }
}
