//! Inodes by number: uvfs's cache, and the kernel's inode hash and superblock list before and after the changes of the
//! thread "vfs: inode cache conversion to hash-bl" (linux-fsdevel, October 2023).
//!
//! An [`Inodes`] is what `icache` measures. [`links`] is the kernel's part of it alone, which `tree` puts beside the same
//! calls of uvfs.

pub mod kernel;
pub mod links;
pub mod uvfs;

use anyhow::Result;
use uvfs_cache::Attr;
use uvfs_cache::attr::mode::S_IFREG;

/// The number of the first inode that stays.
pub const FIRST: u64 = 1000;

/// An inode cache with some inodes that stay, each of which somebody holds.
pub trait Inodes: Send + Sync + Sized + 'static {
    /// With `files` inodes from [`FIRST`] on.
    ///
    /// # Errors
    /// Where there is no memory.
    fn new(files: u64) -> Result<Self>;

    /// Attributes of an inode by its number; whether there is one.
    fn stat(&self, ino: u64, attr: &mut Attr) -> bool;

    /// A reference is taken by number and dropped; whether there was an inode.
    fn get(&self, ino: u64) -> bool;

    /// An inode is made under a number that nobody has, and ends.
    ///
    /// # Errors
    /// Where there is no memory, or the number is known.
    fn make_and_end(&self, ino: u64) -> Result<()>;

    /// Every inode, each held while `f` sees its number.
    fn each(&self, f: &mut dyn FnMut(u64));
}

/// The attributes of an inode.
pub fn attr_of(ino: u64) -> Attr {
    Attr { ino, mode: S_IFREG | 0o644, nlink: 1, size: ino.wrapping_mul(3), ..Attr::default() }
}
