//! File systems for uvfs. Drivers are independent of each other and of the path walk.
//!
//! - [`mod@ext4`]: ext2, ext3 and ext4 images, read-only.
//! - [`generated`]: a tree of any size computed from a seed, with faults on demand.
//! - [`kernfs`]: a program's own state as files, as sysfs shows the kernel's.
//! - [`mirror`]: a directory of the host.
//! - [`tmpfs`]: files in memory; the cache is the directory tree.

pub mod ext4;
pub mod generated;
pub mod kernfs;
pub mod mirror;
pub mod tmpfs;

/// The README's example, compiled and run.
#[cfg(doctest)]
#[doc = include_str!("../../../README.md")]
pub struct Readme;
