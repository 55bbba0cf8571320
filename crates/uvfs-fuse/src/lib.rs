//! The FUSE front end of uvfs: shows a [`Vfs`](uvfs::Vfs) to the kernel as a mounted file system.
//!
//! [`mount()`] attaches a VFS to a directory. Its threads answer the kernel until the VFS is unmounted, by
//! [`Mounted::unmount`], by umount(8), or by the end of the process.
//!
//! A program that does nothing but serve:
//!
//! ```no_run
//! use std::path::Path;
//! use std::sync::Arc;
//!
//! fn serve(driver: Arc<dyn uvfs::Driver>, dir: &Path) -> Result<(), Box<dyn std::error::Error>> {
//!     let vfs = uvfs::Vfs::new(uvfs::VfsConfig::default(), driver)?;
//!     let mounted = uvfs_fuse::mount(vfs, dir, &uvfs_fuse::Options::default())?;
//!     Ok(mounted.serve_until_signal()?)
//! }
//! ```
//!
//! Each folder is one idea:
//!
//! - `mount` begins and ends mounts: options, the table of mounts, sessions.
//! - `transport` moves requests and answers: `/dev/fuse` and the rings of io_uring.
//! - `wire` decodes requests and encodes answers. It knows no device.
//! - `limit` keeps the mount within its memory limit, by one thread.
//! - `frontend` calls the VFS.
//! - `notify` tells the kernel of changes that the kernel did not make.
//! - `threads` has the reading threads, and the pool for requests that wait for a driver.
//!
//! Mounting needs root, or fusermount3 from Debian's package `fuse3`.

mod frontend;
#[doc(hidden)]
pub mod fuzz;
mod limit;
mod mount;
mod notify;
mod threads;
mod transport;
mod wire;

pub use frontend::passthrough::Passthrough;
pub use frontend::request_counters::{Lookups, Requests};
pub use limit::memory_shortage::Shortages;
pub use mount::attach_device::{mount_point, unmount};
pub use mount::error::MountError;
pub use mount::mounted::{Mounted, Unmounted, mount};
pub use mount::mountinfo::{Listed, ServerState, listed};
pub use mount::options::{Atime, Options, Permissions, TransportKind};
pub use mount::remount::{MountedAt, mounted_at, remount};
pub use notify::Notices;
pub use transport::dev_fuse::Transport;
pub use wire::latency_histograms::{BOUNDS as LATENCY_BOUNDS, Latency, RequestKind};
