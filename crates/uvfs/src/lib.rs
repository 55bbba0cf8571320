//! The Linux VFS's lookup machinery, for file systems in user space.
//!
//! A [`Vfs`] is a tree of mounted [`Driver`]s over one cache of names and inodes. Front ends, such as a FUSE
//! server, call its operations on inodes. Programs that work with paths make a [`Context`]. A lookup of what is
//! cached takes no lock and stores nothing shared.
//!
//! ```
//! use std::sync::Arc;
//! use uvfs::{Answer, Attr, Cred, Driver, Errno, Features, Inode, NewInode, Op, Result, StatFs, Vfs, mode};
//!
//! struct Hello;
//! fn node(ino: u64, mode: u32) -> NewInode {
//!     NewInode { attr: Attr { ino, mode, nlink: 1, ..Attr::default() }, ..NewInode::default() }
//! }
//! impl Driver for Hello {
//!     fn name(&self) -> &'static str { "hello" }
//!     fn features(&self) -> Features { Features { read_only: true, ..Features::default() } }
//!     fn root(&self, _: &Op) -> Result<NewInode> { Ok(node(1, mode::S_IFDIR | 0o755)) }
//!     fn statfs(&self, _: &Op) -> Result<StatFs> { Ok(StatFs::default()) }
//!     fn lookup(&self, _: &Op, _dir: &Inode<'_>, name: &[u8]) -> Result<Answer> {
//!         if name == b"world" { Ok(Answer::Found(node(2, mode::S_IFREG | 0o444))) } else { Err(Errno::NOENT) }
//!     }
//! }
//!
//! let vfs = Vfs::new(Default::default(), Arc::new(Hello))?;
//! let me = vfs.context(Cred::user(1000, 1000));
//! assert!(me.stat(b"/world")?.is_reg());
//! assert_eq!(me.unlink(b"/world"), Err(Errno::ROFS));
//! # Ok::<(), Errno>(())
//! ```
//!
//! `types` has the vocabulary that all modules share, and `driver` the trait that file systems implement. `ops`
//! changes names and inodes; `namei` walks paths. Errors are the kernel's errnos, in the kernel's order.
#![deny(unsafe_code)]

pub mod acl;
pub mod counters;
mod counting_driver;
pub mod driver;
mod driver_answer;
mod groups_and_capabilities;
mod inode_pin;
mod mount_table;
mod namei;
mod ops;
mod permission;
pub mod types;
mod vfs;

pub use acl::{Acl, AclEntry, AclKind, AclTag};
pub use counters::counters;
pub use counting_driver::Counted;
pub use driver::{Driver, Inode};
pub use groups_and_capabilities::{Ask, Capability, Has, Powers};
pub use mount_table::CONTROL_NAME;
pub use namei::bailout::{Bail, BailCounts};
pub use namei::context::{Context, Entry};
pub use namei::open_handle::Handle;
pub use permission::Protected;
pub use types::*;
#[doc(hidden)]
pub use uvfs_cache::machinery::{Leaf, Next, NodeReclaim, Overdraft, Steps};
pub use uvfs_cache::{Counters as CacheCounters, InodeId, Listener, NodeHolder, SbId};
pub use vfs::{Vfs, VfsConfig};
