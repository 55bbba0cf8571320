//! File systems for uvfs. Drivers are independent of each other and of the path walk.
//!
//! - [`mod@ext4`]: ext2, ext3 and ext4 images, read-only.
//! - [`generated`]: a tree of any size computed from a seed, with faults on demand.
//! - [`kernfs`]: a program's own state as files, as sysfs shows the kernel's.
//! - [`mirror`]: a directory of the host.
//! - [`tmpfs`]: files in memory; the cache is the directory tree.
//!
//! [`watch`] reports changes of a host's file system, to mirrors and to other programs.

pub mod ext4;
pub mod generated;
pub mod kernfs;
pub mod mirror;
pub mod tmpfs;
pub mod watch;

/// The README's example, compiled and run.
#[cfg(doctest)]
#[doc = include_str!("../../../README.md")]
pub struct Readme;
