//! Dentry and inode cache with lock-free hits, for programs that are file systems in user space.
//!
//! An embedder (a FUSE, NFS or 9P server) keeps one [`Cache`], adds a superblock for each file system that it
//! serves, and looks names up: [`Cache::lookup`] says hit, negative, or miss; a miss is a ticket
//! ([`NameGuard`]) that is completed with what the back end says. A hit stores nothing that
//! another thread reads; [`Cache::peek`] does not even take a reference.
//!
//! | module | what it holds |
//! |---|---|
//! | [`attr`] | attributes and their packing |
//! | `inode`, `dentry` | the published and private halves |
//! | `dir`, `dir_index` | children, revision, completeness; entries in order |
//! | `walk` | lookups without references |
//! | `lookup`, `guard` | lookups with references; the right to a name |
//! | `owned` | references that borrow no cache |
//! | `change`, `answer` | publishing changes; drivers' answers |
//! | `stale`, `listener` | changes made behind the cache; who else is told |
//! | `inodes` | inodes by number; all inodes of a superblock |
//! | `symlink` | targets of links |
//! | [`prefix`] | directories by path |
//! | `readdir`, `sweep` | listing; forgetting |
//! | `shrink`, `watermark`, `pressure` | the memory limit; room ahead of need; who waits for memory |
//! | `beside` | what drivers keep for each inode, in the limit too |
//! | [`mapping`] | page index to page |
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

/// The byte table of docs/architecture.md: what a file with a name up to 23 bytes costs, hash and
/// directory list included. The hash's share is its worst measured one.
#[cfg(not(loom))]
const _: () = {
    const HASH: usize = 14;
    const LISTED: usize = 12;
    let inode = size_of::<inode::Published>() + size_of::<inode::Private>();
    let dentry = size_of::<dentry::Published>() + size_of::<dentry::Private>();
    assert!(inode + dentry + HASH + LISTED <= 256);
    assert!(dentry::INLINE >= 23);
};
