//! Dentry and inode cache with lock-free hits, for programs that are file systems in user space.
//!
//! An embedder (a FUSE, NFS or 9P server) keeps one [`Cache`] and adds a superblock for each file system
//! that it serves. [`Cache::lookup`] answers hit, negative, or miss. A miss is a lookup ticket
//! ([`NameGuard`]): the caller completes it with the back end's answer. A hit stores nothing that another
//! thread reads. [`Cache::peek`] does not even take a reference.
//!
//! | folder | contents |
//! |---|---|
//! | `inodes` | attributes and their packing ([`attr`]), the two halves, references, inodes by number |
//! | `names` | dentries, changes of names, invalidation |
//! | `lookup` | lookups with references; the lookup ticket and its name lock; drivers' answers |
//! | `walk` | lookups without references, the hit, directories by path, link targets |
//! | `dirs` | children, revision, completeness; entries in order; listings |
//! | `limit` | the memory limit: making room, watermarks, threads that wait, external bytes |
//! | `coherence` | changes behind the cache, expiry, listeners |
//! | `mapping` | page index to page |
//! | `buffers` | blocks of a device, by number |
#![deny(unsafe_code)]

mod buffers;
mod cache;
mod chunks;
mod coherence;
mod dirs;
pub mod embed;
mod inodes;
mod limit;
mod lookup;
#[cfg(all(test, loom))]
mod loom_tests;
#[doc(hidden)]
pub mod machinery;
mod mapping;
mod names;
#[cfg(all(test, debug_assertions, not(loom)))]
mod order_tests;
#[cfg(all(test, not(loom)))]
mod owner_tests;
mod superblock;
mod types;
mod walk;

pub use cache::Cache;
pub use coherence::changed_numbers::Asked;
pub use coherence::listeners::Listener;
pub use dirs::listing::{DirScan, DirSink};
pub use inodes::attr;
#[doc(no_inline)]
pub use inodes::attr::{Attr, Time};
pub use inodes::inode_ref::{Death, InodeRef};
pub use lookup::by_name::Lookup;
pub use lookup::name_locks::Pending;
pub use lookup::ticket::NameGuard;
pub use names::change::{RenameLock, Reserved};
#[doc(no_inline)]
pub use rustix::io::Errno;
pub use types::{
    CacheError, Config, Counters, EvictHook, Fresh, InodeId, NotEmpty, Room, SbId, SbOptions, Ttl,
};
pub use walk::hit::Peek;

/// The byte table of docs/architecture.md: the cost of a file with a name of up to 23 bytes, hash and
/// directory list included. The hash's share is the worst that was measured.
#[cfg(not(loom))]
const _: () = {
    use inodes::halves;
    use names::dentry;
    const HASH: usize = 14;
    const LISTED: usize = 12;
    let inode = size_of::<halves::Published>() + size_of::<halves::Private>();
    let dentry = size_of::<dentry::Published>() + size_of::<dentry::Private>();
    assert!(inode + dentry + HASH + LISTED <= 256);
    assert!(dentry::INLINE >= 23);
};
