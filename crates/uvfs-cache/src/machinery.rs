//! Parts for this project's own crates: walk internals, the memory limit's hooks for a front end, references that
//! do not borrow the cache, pages and blocks.
//!
//! Nothing here is documented or promised to stay. The methods that belong to it stand in `impl` blocks marked
//! `#[doc(hidden)]`, beside the code that they use.

pub use crate::inodes::inode::Perm;
pub use crate::inodes::link_target_slots::TARGET_MAX;
pub use crate::inodes::owned_id::{Borrowed, OwnedId};
pub use crate::limit::balancer::{Next, Steps};
pub use crate::limit::external_bytes::ExternalBytes;
pub use crate::limit::forget_requests::NodeReclaim;
pub use crate::limit::held_by_kernel::{HeldByKernel, Leaf};
pub use crate::limit::memory_waiters::Overdraft;
pub use crate::limit::watermarks::Balance;
pub use crate::lookup::ref_lookup::Known;
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
