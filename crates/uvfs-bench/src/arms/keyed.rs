//! A directory tree in a map: implements the walk's operations on top of a key lookup.

use uvfs_cache::Attr;

use crate::names::key::BorrowedKey;
use crate::names::tree::NameTree;
use crate::names::{DirPerm, Miss, NameTable};

/// Finds a key.
pub trait Get {
    /// Calls `read` on the value, if the key exists, and returns its result.
    fn get<R>(&self, key: BorrowedKey<'_>, read: impl FnOnce(&Attr) -> R) -> Option<R>;
}

/// A view of a map as a tree of names.
#[derive(Debug)]
pub struct Keyed<G>(pub G);

/// A directory: the attributes that the walk needs.
#[derive(Clone, Copy, Debug)]
pub struct Dir {
    ino: u64,
    perm: DirPerm,
}

impl Dir {
    #[inline]
    fn of(attr: &Attr) -> Self {
        Self { ino: attr.ino, perm: DirPerm { mode: attr.mode, uid: attr.uid, gid: attr.gid } }
    }
}

impl Dir {
    /// The key of a name in this directory.
    #[inline]
    pub fn key(self, name: &[u8]) -> BorrowedKey<'_> {
        BorrowedKey { parent: self.ino, name }
    }
}

impl<G: Get> NameTable for Keyed<G> {
    type At = Dir;

    #[inline]
    fn root(&self) -> Result<Dir, Miss> {
        Ok(Dir::of(&NameTree::root()))
    }

    #[inline]
    fn down(&self, at: Dir, name: &[u8]) -> Result<Dir, Miss> {
        let dir = self.0.get(at.key(name), Dir::of);
        dir.filter(|dir| dir.ino != 0).ok_or(Miss::Absent)
    }

    #[inline]
    fn look(&self, at: Dir, name: &[u8], attr: &mut Attr) -> Result<(), Miss> {
        let found = self.0.get(at.key(name), |found| *attr = *found);
        // An entry without an inode means that the name does not exist.
        found.filter(|()| attr.ino != 0).ok_or(Miss::Absent)
    }

    #[inline]
    fn perm(&self, at: Dir) -> DirPerm {
        at.perm
    }
}
