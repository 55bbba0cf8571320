//! Parts for this project's own crates: walk internals, the memory limit's hooks for a front end, references that
//! do not borrow the cache, pages and blocks.
//!
//! Nothing here is documented or promised to stay. The methods that belong to it stand in `impl` blocks marked
//! `#[doc(hidden)]`, beside the code that they use.

pub use crate::inodes::halves::Perm;
pub use crate::inodes::owned::{Borrowed, OwnedId};
pub use crate::inodes::symlink_targets::TARGET_MAX;
pub use crate::limit::balancer::{Next, Steps};
pub use crate::limit::external_bytes::ExternalBytes;
pub use crate::limit::forget_requests::NodeReclaim;
pub use crate::limit::held_by_kernel::{HeldByKernel, Leaf};
pub use crate::limit::pressure::Overdraft;
pub use crate::limit::watermarks::Balance;
pub use crate::lookup::by_name::Known;
pub use crate::walk::hit::Stuck;
pub use crate::walk::passed_links::{Followed, PassedLink};
pub use crate::walk::position::Pos;
pub use crate::walk::step::{Child, NameHash, Names, Retry, Step};

/// Blocks of a device, by number.
pub mod buffers {
    pub use crate::buffers::*;
}

/// Page index to page.
pub mod mapping {
    pub use crate::mapping::*;
}

/// Directories by path.
pub mod prefix {
    pub use crate::walk::prefix::*;
}
