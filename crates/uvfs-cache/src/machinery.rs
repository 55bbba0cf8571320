//! Parts for this project's own crates: lookups, name locks and changes with handles that borrow the cache, walk
//! internals, the memory limit's hooks for a front end, references that do not borrow the cache, pages and blocks.
//!
//! Nothing here is documented or promised to stay. The methods that belong to it are marked `#[doc(hidden)]`, beside
//! the code that they use. Embedders have [`NodeCache`](crate::NodeCache) for all of it.

pub use crate::dirs::listing::{DirScan, DirSink};
pub use crate::inodes::inode::Perm;
pub use crate::inodes::inode_ref::Death;
pub use crate::inodes::link_target_slots::TARGET_MAX;
pub use crate::inodes::owned_id::{Borrowed, OwnedId};
pub use crate::limit::balancer::{Next, Steps};
pub use crate::limit::external_bytes::ExternalBytes;
pub use crate::limit::forget_requests::NodeReclaim;
pub use crate::limit::held_by_kernel::{HeldByKernel, Leaf};
pub use crate::limit::memory_waiters::Overdraft;
pub use crate::limit::watermarks::Balance;
pub use crate::lookup::ref_lookup::{Known, Lookup};
pub use crate::lookup::ticket::NameGuard;
pub use crate::names::rename::RenameLock;
pub use crate::names::reservation::Reserved;
pub use crate::types::{EvictHook, Fresh, SbOptions};
pub use crate::walk::fast_hit::Stuck;
pub use crate::walk::lock_free_lookup::{Child, NameHash, Names, Retry, Step};
pub use crate::walk::position::Pos;
pub use crate::walk::prefix_passed_links::{Followed, PassedLink};

/// Blocks of a device, by number.
pub mod buffers {
    pub use crate::buffers::*;
}

/// Page index to page.
pub mod mapping {
    pub use crate::file_pages::*;
}

/// Directories by path.
pub mod prefix {
    pub use crate::walk::prefix_cache::*;
}
