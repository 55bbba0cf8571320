//! Inodes by number: uvfs's cache, and the kernel's inode hash and superblock list, before and after the changes of the
//! thread "vfs: inode cache conversion to hash-bl" (linux-fsdevel, October 2023).
//!
//! `icache` measures an [`Inodes`]. [`links`] is the kernel's part of it alone; `tree` runs it beside the same
//! calls of uvfs.

pub mod kernel;
pub mod links;
pub mod uvfs;

use anyhow::Result;
use uvfs_cache::Attr;
use uvfs_cache::attr::mode::S_IFREG;

use crate::arms::inodes::links::HashHeads;

/// The number of the first permanent inode.
pub const FIRST: u64 = 1000;

/// An inode cache with some permanent inodes, each of which is held.
pub trait Inodes: Send + Sync + Sized + 'static {
    /// With `files` permanent inodes, numbered from [`FIRST`]. `heads` is for the kernel's hash.
    ///
    /// # Errors
    /// If there is no memory.
    fn new(files: u64, heads: HashHeads) -> Result<Self>;

    /// Copies the attributes of an inode, by its number; false if there is none.
    fn stat(&self, ino: u64, attr: &mut Attr) -> bool;

    /// Takes a reference by number and drops it; false if there is no such inode.
    fn get(&self, ino: u64) -> bool;

    /// Makes an inode under an unused number and ends it.
    ///
    /// # Errors
    /// If there is no memory, or the number is in use.
    fn make_and_end(&self, ino: u64) -> Result<()>;

    /// Makes an inode under an unused number and drops it, so that it is unused. A cache that keeps unused inodes ends
    /// the oldest, so that their number stays the same.
    ///
    /// # Errors
    /// If there is no memory, or the number is in use.
    fn pass_through(&self, ino: u64) -> Result<()>;

    /// Visits every inode; each is held while `f` sees its number.
    fn each(&self, f: &mut dyn FnMut(u64));
}

/// The attributes of an inode.
pub fn attr_of(ino: u64) -> Attr {
    Attr { ino, mode: S_IFREG | 0o644, nlink: 1, size: ino.wrapping_mul(3), ..Attr::default() }
}
