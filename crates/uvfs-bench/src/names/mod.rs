//! The interface between the lookup workloads and their arms: names, attributes, paths, the walk.
//!
//! [`NameTable`] is the seam: a table that finds one name in one directory. [`walk`] and
//! [`namei`] run above it and are the same code for every table. So a difference between two
//! arms is a difference between two tables. [`tree`] says which files exist and in which order
//! they are visited. Plain values and traits: nothing here is shared or locked.

pub mod aging;
pub mod key;
pub mod namei;
pub mod paths;
pub mod tree;
pub mod walk;

use uvfs_cache::Attr;

use crate::names::namei::{Failure, Walker};
use crate::names::paths::Path;

/// Permissions of a directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DirPerm {
    /// Mode bits.
    pub mode: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
}

/// Why a lookup failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Miss {
    /// There is no such name.
    Absent,
    /// Something moved during the lookup: walk again.
    Moved,
}

/// One table as one operation sees it. Made when the operation begins and dropped when it ends, so it may
/// hold the guard, the lock or the read section that the table's documentation requires.
pub trait NameTable {
    /// A directory that the walk has reached.
    type At: Copy;

    /// Where paths start.
    ///
    /// # Errors
    /// [`Miss::Moved`] while the root is being changed.
    fn root(&self) -> Result<Self::At, Miss>;

    /// Enters the directory that `name` names.
    ///
    /// # Errors
    /// See [`Miss`].
    fn down(&self, at: Self::At, name: &[u8]) -> Result<Self::At, Miss>;

    /// Copies the attributes of what `name` names to `attr`.
    ///
    /// # Errors
    /// See [`Miss`].
    fn look(&self, at: Self::At, name: &[u8], attr: &mut Attr) -> Result<(), Miss>;

    /// Copies the attributes of what a whole path names: name after name, unless the table has a shorter way. Only
    /// the bare table calls this; under namei it is [`NameTable::stat`].
    ///
    /// # Errors
    /// See [`Miss`].
    #[inline]
    fn whole(&self, path: Path<'_>, attr: &mut Attr) -> Result<(), Miss>
    where
        Self: Sized,
    {
        walk::walk(self, path, attr)
    }

    /// [`namei::stat`], unless the table has a shorter way to the same result.
    ///
    /// # Errors
    /// See [`Failure`].
    #[inline]
    fn stat(&self, cred: Walker, path: &[u8], attr: &mut Attr) -> Result<(), Failure>
    where
        Self: Sized,
    {
        namei::stat(self, cred, path, attr)
    }

    /// Permissions of a directory, as of the time when the walk reached it.
    fn perm(&self, at: Self::At) -> DirPerm;
}
