//! Dentry and inode cache with lock-free hits, for programs that are file systems in user space.
//!
//! An embedder (a FUSE, NFS or 9P server) keeps one [`Cache`] and adds a superblock for each file system
//! that it serves. [`Cache::lookup`] answers hit, negative, or miss. A miss is a lookup ticket
//! ([`NameGuard`]): the caller completes it with the back end's answer. A hit stores nothing that another
//! thread reads. [`Cache::peek`] does not even take a reference.
//!
//! | module | contents |
//! |---|---|
//! | [`attr`] | attributes and their packing |
//! | `inode`, `dentry` | the published and private halves |
//! | `dir`, `dir_index` | children, revision, completeness; entries in order |
//! | `walk`, `hit` | lookups without references |
//! | `lookup`, `guard` | lookups with references; name locks |
//! | `owned` | references that do not borrow the cache |
//! | `names`, `answer` | changes of names; drivers' answers |
//! | `stale`, `listener` | changes behind the cache; listeners |
//! | `by_number` | lookups by inode number; all inodes of a superblock |
//! | `symlink` | cached link targets |
//! | [`prefix`] | directories by path |
//! | `readdir`, `sweep` | listings; forgetting |
//! | `shrink`, `watermark`, `pressure` | the memory limit; eviction ahead of need; threads that wait for memory |
//! | `external_bytes` | memory that drivers keep for each inode and that counts towards the limit |
//! | [`mapping`] | page index to page |
//! | [`buffers`] | blocks of a device, by number |
//! | [`buffers`] | blocks of a device, by number |
#![deny(unsafe_code)]

pub mod attr;
pub mod buffers;
pub mod mapping;

mod answer;
mod by_number;
mod cache;
mod changed_numbers;
mod clock;
mod dentry;
mod dir;
mod dir_index;
mod external_bytes;
mod guard;
mod hit;
mod inode;
mod inode_ref;
mod listener;
mod lookup;
#[cfg(all(test, loom))]
mod loom_tests;
mod names;
#[cfg(all(test, debug_assertions, not(loom)))]
mod order_tests;
mod owned;
#[cfg(all(test, not(loom)))]
mod owner_tests;
pub mod prefix;
mod pressure;
mod readdir;
mod shrink;
mod stale;
mod sweep;
mod symlink;
mod types;
mod walk;
mod watermark;

pub use attr::{Attr, Time};
pub use by_number::Asked;
pub use cache::Cache;
pub use external_bytes::ExternalBytes;
pub use guard::{NameGuard, Pending};
pub use hit::{Peek, Stuck};
pub use inode::Perm;
pub use inode_ref::{Death, InodeRef};
pub use listener::Listener;
pub use lookup::{Known, Lookup};
pub use names::{RenameLock, Reserved};
pub use owned::{Borrowed, OwnedId};
pub use pressure::{Held, Leaf, Overdraft};
pub use readdir::{DirScan, DirSink};
pub use symlink::TARGET_MAX;
pub use types::{
    CacheError, Config, Counters, EvictHook, Fresh, InodeId, NotEmpty, Room, SbId, SbOptions, Ttl,
};
pub use walk::{Child, NameHash, Names, Pos, Retry, Step};
pub use watermark::Balance;

/// The byte table of docs/architecture.md: the cost of a file with a name of up to 23 bytes, hash and
/// directory list included. The hash's share is the worst that was measured.
#[cfg(not(loom))]
const _: () = {
    const HASH: usize = 14;
    const LISTED: usize = 12;
    let inode = size_of::<inode::Published>() + size_of::<inode::Private>();
    let dentry = size_of::<dentry::Published>() + size_of::<dentry::Private>();
    assert!(inode + dentry + HASH + LISTED <= 256);
    assert!(dentry::INLINE >= 23);
};
