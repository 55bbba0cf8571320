//! Dentry and inode cache with lock-free hits, for programs that are file systems in user space.
//!
//! An embedder (a FUSE, NFS or 9P server) keeps one [`NodeCache`] and adds a superblock for each file system that it
//! serves. Each inode has data of the embedder's own type. [`OwnedNode::lookup`] answers hit, negative, or miss. A
//! miss is a lookup [`Ticket`]: the caller completes it with the back end's answer.
//!
//! ```
//! use std::time::Duration;
//! use uvfs_cache::attr::mode::{S_IFDIR, S_IFREG};
//! use uvfs_cache::{Attr, Config, NodeAnswer, NodeCache, NodeLookup, Ttl};
//!
//! // A back end whose objects have handles; here they stand in the inode's data.
//! struct Handle(String);
//! let believe = Ttl::For(Duration::from_secs(5));
//! let answer = |ino, mode, handle: &str| NodeAnswer {
//!     attr: Attr { ino, mode, nlink: 1, ..Attr::default() },
//!     name_ttl: believe,
//!     attr_ttl: believe,
//!     data: Handle(handle.into()),
//! };
//!
//! let cache = NodeCache::new(Config { memory_limit: 64 << 20, ..Config::default() })?;
//! let superblock = cache.add_superblock(false, answer(1, S_IFDIR | 0o755, "top"))?;
//! let root = superblock.root();
//! let file = match root.blocking_lookup(b"motd")? {
//!     NodeLookup::Hit(node) => node,
//!     NodeLookup::Negative => panic!("nobody said so"),
//!     // Here the server asks its back end. Others who want this name wait for the ticket.
//!     NodeLookup::Miss(ticket) => ticket.found(answer(7, S_IFREG | 0o644, "top/motd"))?,
//! };
//! assert_eq!((&file.data().0[..], file.path()?), ("top/motd", Some(b"motd".to_vec())));
//! assert!(matches!(root.blocking_lookup(b"motd")?, NodeLookup::Hit(node) if node == file));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! In a task, `root.lookup(name).await` waits without a thread. Handles and tickets are `Send` and `'static`. A future
//! that is dropped no longer waits. A ticket that is dropped frees its name for the others that wait for it. The fast
//! path is [`NodeCache::peek`] and [`NodeRef`]. `peek` looks a name up and takes no reference. It stores nothing that
//! another thread reads, except that it marks the name as used above three quarters of the memory limit. A `NodeRef`
//! is a reference to an inode. It borrows the cache, so it does not raise the cache's own reference count.
//!
//! A [`NodeCache`] is built on the machinery, [`Cache`]. The `uvfs` crate uses it, and gives it to its drivers: they
//! report changes to it, and see inodes as [`InodeRef`]s.
//!
//! | folder | contents |
//! |---|---|
//! | `embed` | [`NodeCache`] and its handles |
//! | `inodes` | attributes and their packing ([`attr`]), the two halves, references, `nlookup`, inodes by number |
//! | `names` | dentries, changes of names, invalidation |
//! | `lookup` | lookups with references; the lookup ticket and its name lock; drivers' answers; negative entries |
//! | `walk` | lookups without references, the hit, directories by path, link targets |
//! | `dirs` | children, revision, completeness; entries in order; listings |
//! | `limit` | the memory limit: making room, watermarks, threads that wait, external bytes |
//! | `coherence` | changes behind the cache, expiry, listeners |
//! | `file_pages` | page index to page |
//! | `buffers` | blocks of a device, by number |
#![deny(unsafe_code)]

mod buffers;
mod cache;
mod chunk_floors;
#[cfg(all(test, not(loom)))]
mod chunk_owner_tests;
mod coherence;
mod dirs;
mod embed;
mod file_pages;
mod inodes;
mod limit;
#[cfg(all(test, debug_assertions, not(loom)))]
mod lock_order_tests;
mod lookup;
#[cfg(all(test, loom))]
mod loom_tests;
#[doc(hidden)]
pub mod machinery;
mod names;
mod superblock;
mod types;
mod walk;

pub use cache::Cache;
pub use coherence::late_attributes::Asked;
pub use coherence::listeners::Listener;
pub use embed::{
    KeyTooLong, NameLock, NamePlace, NodeAnswer, NodeCache, NodeKey, NodeKeys, NodeKnown, NodeListing,
    NodeLookup, NodeRef, NodeSuperblock, OwnedNode, OwnedRenameLock, Ticket,
};
pub use inodes::attr;
#[doc(no_inline)]
pub use inodes::attr::{Attr, Time};
pub use inodes::inode_ref::InodeRef;
pub use limit::balancer::Balancer;
pub use limit::forget_requests::NodeHolder;
pub use limit::holder_call::HolderCall;
pub use lookup::name_locks::Pending;
pub use names::path_of_inode::Moving;
#[doc(no_inline)]
pub use rustix::io::Errno;
pub use types::{CacheError, Config, Counters, InodeId, NotEmpty, Room, SbId, Ttl};
pub use walk::fast_hit::Peek;

/// The byte table of docs/architecture.md: the cost of a file with a name of up to 23 bytes, hash and
/// directory list included. The hash's share is the worst that was measured.
#[cfg(not(loom))]
const _: () = {
    use inodes::inode;
    use names::dentry;
    const HASH: usize = 14;
    const LISTED: usize = 12;
    let inode = size_of::<inode::Published>() + size_of::<inode::Private>();
    let dentry = size_of::<dentry::Published>() + size_of::<dentry::Private>();
    assert!(inode + dentry + HASH + LISTED <= 256);
    assert!(dentry::INLINE >= 23);
};
