//! Plain types of the cache's interface: ids, configuration, errors, drivers' answers.

use std::fmt;
use std::time::Duration;

use rustix::io::Errno;

use crate::inodes::attr::Attr;

/// Names an inode in its present generation: `generation << 32 | index`. The cache recognises a stale id
/// (the inode is gone, and the slot may serve another one) and never misreads it. So a front end can use it
/// as its node id without a table.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct InodeId(u64);

impl InodeId {
    pub(crate) const fn new(index: u32, generation: u32) -> Self {
        Self((generation as u64) << 32 | index as u64)
    }
    /// From the number that [`InodeId::as_u64`] returned.
    pub const fn from_u64(value: u64) -> Self {
        Self(value)
    }
    /// As a number.
    pub const fn as_u64(self) -> u64 {
        self.0
    }
    pub(crate) const fn index(self) -> u32 {
        self.0 as u32
    }
    pub(crate) const fn generation(self) -> u32 {
        (self.0 >> 32) as u32
    }
}

impl fmt::Debug for InodeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.index(), self.generation())
    }
}

/// Names a superblock of a cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SbId(pub(crate) u16);

/// Sizes of a cache.
#[derive(Clone, Debug)]
pub struct Config {
    /// Inodes (and names) that address space is reserved for; halved until the system grants it.
    pub max_inodes: u32,
    /// The most negative entries that are kept. 0: as many as there are positive names, but at least 8,192
    /// and at most 65,536. A memory limit bounds them too: to as many entries with names of up to 40 bytes
    /// as fit into a tenth of it.
    pub max_negative: u32,
    /// Ask the system for huge pages. They halve the time of a lookup among millions of names, and cost a
    /// few MiB more memory with few names.
    pub huge_pages: bool,
    /// Bytes that may be committed; 0: no limit. See `Cache::set_memory_limit`.
    pub memory_limit: u64,
    /// Bytes that the data of each inode of a [`NodeCache`](crate::NodeCache) own on the heap, as the embedder
    /// estimates them, with the allocator's share. They count in the limit. 0: they are not counted.
    pub data_bytes: u32,
    /// Bits of an inode's id, 40 to 64, for front ends that keep something in the upper bits of a number. 32 are the
    /// slot's, the others count how often it was used. A slot that has used them up is lost: with 56 bits after 16
    /// million inodes.
    pub id_bits: u8,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            max_inodes: 1 << 27,
            max_negative: 0,
            huge_pages: false,
            memory_limit: 0,
            data_bytes: 0,
            id_bits: 64,
        }
    }
}

/// Why the cache could not do something.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CacheError {
    /// No slot, or no address space, is left (ENOMEM).
    NoMemory,
    /// The directory is being removed, or has been (ENOENT).
    Dying,
    /// The inode's generation is over (ESTALE).
    Stale,
    /// A name is empty, or longer than 255 bytes (ENAMETOOLONG).
    Name,
    /// A superblock's root is no directory (ENOTDIR).
    NotDirectory,
}

impl fmt::Display for CacheError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NoMemory => "the cache is full",
            Self::Dying => "the directory is being removed",
            Self::Stale => "the inode is gone",
            Self::Name => "a name is empty or too long",
            Self::NotDirectory => "a superblock's root is no directory",
        })
    }
}

impl std::error::Error for CacheError {}

impl From<CacheError> for Errno {
    fn from(error: CacheError) -> Self {
        match error {
            CacheError::NoMemory => Self::NOMEM,
            CacheError::Dying => Self::NOENT,
            CacheError::Stale => Self::STALE,
            CacheError::Name => Self::NAMETOOLONG,
            CacheError::NotDirectory => Self::NOTDIR,
        }
    }
}

/// The directory has entries, or entries being made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NotEmpty;

/// Called with the attributes and the driver's value of an inode that leaves the cache. The hook may run
/// with name locks and the rename mutex held, if the cache evicted to make room for a change. The hook must
/// take neither, nor wait for a thread that does. It runs with no other lock of the cache. Its own
/// allocations never evict.
pub type EvictHook = Box<dyn Fn(&Attr, u64) + Send + Sync>;

/// Properties of a superblock.
pub struct SbOptions {
    /// The cache is the whole truth: every directory is complete, listings come from the cache, nothing is
    /// evicted.
    pub resident: bool,
    /// The driver reports every change that is made behind the cache ([`Cache::name_changed`] and the like).
    /// Its answers with [`Ttl::Forever`] hold until then.
    ///
    /// [`Cache::name_changed`]: crate::Cache::name_changed
    pub watched: bool,
    /// Called when the last reference to an inode is gone. `nlink` 0 means gone for good.
    pub on_evict: EvictHook,
}

impl fmt::Debug for SbOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SbOptions")
            .field("resident", &self.resident)
            .field("watched", &self.watched)
            .finish_non_exhaustive()
    }
}

/// How long an answer is trusted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Ttl {
    /// Until the cache is notified of a change.
    #[default]
    Forever,
    /// For this long, in whole milliseconds and at most about 12 days. Zero: the driver is asked each time.
    For(Duration),
}

impl Ttl {
    /// The answer is not cached.
    pub const ZERO: Self = Self::For(Duration::ZERO);
}

/// An inode as its driver describes it.
#[derive(Clone, Copy, Debug)]
pub struct Fresh {
    /// Attributes; `ino` identifies the inode within its superblock.
    pub attr: Attr,
    /// The driver's own value.
    pub private: u64,
    /// How long name and attributes are trusted.
    pub ttl: Ttl,
}

/// Contents of a reservation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Room {
    /// A name only (link, rename).
    Name,
    /// A name and an inode.
    Node,
    /// A name and a directory.
    Dir,
}

/// Figures of a cache, counted now.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Inodes in use.
    pub inodes: u64,
    /// Names in use, negative ones included.
    pub dentries: u64,
    /// Negative names in use.
    pub negative: u64,
    /// Bytes of the hash tables' lines.
    pub hash_bytes: u64,
    /// Bytes committed for all that is cached: chunks of inodes, names, targets and hash lines as a whole.
    pub bytes: u64,
    /// The most that `bytes` may be; 0: no limit.
    pub limit: u64,
    /// The part of `limit` that the cache keeps to: less while the system is short of memory.
    pub watermark: u64,
    /// Names evicted.
    pub evicted: u64,
    /// Names among `evicted` that went before an allocation needed their place: see `Cache::balance`.
    pub evicted_ahead: u64,
    /// Hash chains that were found too long.
    pub long_chains: u64,
    /// Re-keys of a hash table that were begun.
    pub rekeys: u64,
    /// Inodes whose references are counted per thread because they are used often.
    pub spread: u64,
}
