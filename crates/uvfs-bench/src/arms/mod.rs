//! Tables that are compared: uvfs, the kernel's ways, and the maps that a program would take instead.
//!
//! A [`Table`] is filled once from a [`Tree`] and then shared by all threads. Each thread has a
//! [`Local`] (where a table wants threads to be registered, or a copy for each), and each operation a view
//! of it ([`Names`]). A map only says how it finds a key (`keyed::Get`); the walk above is the
//! same for all ([`keyed`]).
//!
//! Every map has the same keys (parent and name, inline), the same hasher and the same values (the
//! attributes, inline). To add one: a file with a `Table`, and a line in [`registry`]. [`inodes`] are no tables of names but
//! of inodes by number.

pub mod dashmap;
pub mod hashbrown;
pub mod inodes;
pub mod kernel;
pub mod keyed;
pub mod moka;
pub mod null;
pub mod papaya;
pub mod parking_lot;
pub mod prefix;
pub mod registry;
pub mod scc;
pub mod shared;
pub mod std_rwlock;
pub mod urcu;
pub mod uvfs;

use anyhow::Result;

use crate::names::Names;
use crate::names::tree::Tree;

/// A table that holds a tree.
pub trait Table: Send + Sync + Sized {
    /// One thread's part.
    type Local<'t>: Local
    where
        Self: 't;

    /// Holds this tree, for so many threads.
    ///
    /// # Errors
    /// A sentence where that cannot be.
    fn build(tree: &Tree, threads: usize) -> Result<Self>;

    /// The part of thread `thread` (counted from 0), made by that thread.
    fn local(&self, thread: usize) -> Self::Local<'_>;

    /// Renames an entry within the directory whose inode number is `dir`, while others look names up.
    ///
    /// # Errors
    /// Where there is no such name, or where this table cannot be changed while it is read.
    fn rename(&self, dir: u64, old: &[u8], new: &[u8]) -> Result<()>;
}

/// One thread's part of a table.
pub trait Local {
    /// One operation's view.
    type View<'l>: Names
    where
        Self: 'l;

    /// Begins an operation.
    fn pin(&self) -> Self::View<'_>;
}
