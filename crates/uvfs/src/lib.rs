//! The Linux VFS's lookup machinery for programs that are file systems in user space.
//!
//! A [`Vfs`] is a tree of mounted [`Driver`]s over one cache of names and inodes. Front ends
//! (a FUSE server, say) call its operations on inodes; programs that want paths make a
//! [`Context`]. What is cached is looked up without locks and without storing anything shared.
//!
//! `types` has the words that all share, `driver` the one door to file systems; `ops` changes
//! names and inodes, `namei` walks paths. Errors are the kernel's errnos, in the kernel's order.
#![deny(unsafe_code)]

pub mod driver;
mod mount;
mod namei;
mod ops;
mod permission;
mod pin;
pub mod types;
mod vfs;

pub use driver::{Driver, Inode};
pub use namei::bailout::{Bail, BailCounts, bail_counts};
pub use namei::context::{Context, Entry};
pub use namei::handle::Handle;
pub use permission::Protected;
pub use types::*;
pub use uvfs_cache::InodeId;
pub use vfs::{Vfs, VfsConfig};
