//! The compared tables: uvfs, the kernel's mechanisms, and the maps that a program would use instead.
//!
//! A [`Table`] is filled once from a [`NameTree`] and then shared by all threads. Each thread has a
//! [`Local`], for tables that register threads or copy data per thread. Each operation has a view of it
//! ([`NameTable`]). A map only implements how it finds a key (`keyed::Get`); the walk above it ([`keyed`]) is the
//! same for all.
//!
//! Every map has the same keys (parent and name, inline), the same hasher and the same values (the
//! attributes, inline). To add one, write a file with a `Table` and add a line to [`registry`]. [`inodes`] are not
//! tables of names: they find inodes by number.

pub mod dashmap;
pub mod hashbrown;
pub mod inodes;
pub mod kernel;
pub mod kernfs;
pub mod keyed;
pub mod lockref;
pub mod null;
pub mod papaya;
pub mod prefix;
pub mod registry;
pub mod std_rwlock;
pub mod urcu;
pub mod uvfs;

use anyhow::Result;

use crate::names::NameTable;
use crate::names::tree::{NameTree, TreeEntry};

/// A table that holds a tree.
pub trait Table: Send + Sync + Sized {
    /// One thread's part.
    type Local<'t>: Local
    where
        Self: 't;

    /// Builds a table of this tree for at most `threads` threads.
    ///
    /// # Errors
    /// A sentence that says why the table cannot be built.
    fn build(tree: &NameTree, threads: usize) -> Result<Self>;

    /// Removes a file. Called before any thread has a part.
    ///
    /// # Errors
    /// If the file is not there.
    fn remove(&mut self, entry: &TreeEntry) -> Result<()>;

    /// Creates a file. Called before any thread has a part.
    ///
    /// # Errors
    /// If there is no memory for it.
    fn create(&mut self, entry: &TreeEntry) -> Result<()>;

    /// The part of thread `thread` (counted from 0). That thread itself makes it.
    fn local(&self, thread: usize) -> Self::Local<'_>;
}

/// A table whose directories change while others read.
pub trait Movable: Table {
    /// Gives the entry `from` of a directory the name `to`, which no entry has, in one step.
    ///
    /// # Errors
    /// If there is no such directory, or no memory.
    fn rename(&self, dir: u64, from: &[u8], to: &[u8]) -> Result<()>;

    /// Sets a directory's mode, type bits included.
    ///
    /// # Errors
    /// If there is no such directory.
    fn chmod(&self, dir: u64, mode: u32) -> Result<()>;
}

/// One thread's part of a table.
pub trait Local {
    /// One operation's view.
    type View<'l>: NameTable
    where
        Self: 'l;

    /// Begins an operation.
    fn pin(&self) -> Self::View<'_>;
}
