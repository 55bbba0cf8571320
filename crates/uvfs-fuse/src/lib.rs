//! The FUSE front end of uvfs: shows a [`Vfs`](uvfs::Vfs) to the kernel as a mounted file system.
//!
//! [`mount()`] attaches a VFS to a directory and answers the kernel from threads of its own until it
//! is unmounted, by [`Mounted::unmount`], by umount(8), or by the end of the process.
//!
//! Inside, `dev` has the connection to the kernel, `wire` takes requests apart and puts answers together, in
//! the terms of `transport`; `frontend` takes them to the VFS, and `pool` keeps those that wait for a
//! driver off the threads that read. `balance` keeps the memory limit, from one thread; `notify` tells the kernel of changes that it
//! did not make, in `messages`. Needs root, or fusermount3 from Debian's package `fuse3`.

mod abort;
mod balance;
mod bell;
mod dev;
mod device;
mod error;
mod frontend;
#[doc(hidden)]
pub mod fuzz;
mod leaders;
mod mark;
mod messages;
mod mounted;
mod mountinfo;
mod notify;
mod options;
mod pending;
mod pool;
mod psi;
mod readers;
mod reclaim;
mod remount;
mod shares;
mod transport;
mod uring;
mod wire;

pub use dev::Transport;
pub use device::unmount;
pub use error::MountError;
pub use mounted::{Lookups, Mounted, Notices, Passthrough, Requests, Shortages, Unmounted, mount};
pub use mountinfo::{Listed, listed};
pub use options::{Atime, Options, Permissions, TransportKind};
pub use remount::{MountedAt, mounted_at, remount};
