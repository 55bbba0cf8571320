//! The trees, how they are dealt to threads, and their names.

use std::ffi::CStr;

use crate::harness::WorkerSeat;

/// `trees` trees of `dirs` directories of `files` files each.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct TreeShape {
    /// Trees.
    pub trees: u64,
    /// Directories of a tree.
    pub dirs: u64,
    /// Files of a directory.
    pub files: u64,
}

impl TreeShape {
    /// Operations of a directory: itself and its files.
    pub fn per_dir(self) -> u64 {
        self.files + 1
    }

    /// Inodes of a tree, its top included.
    pub fn per_tree(self) -> u64 {
        1 + self.dirs * self.per_dir()
    }

    /// Inodes of all trees.
    pub fn inodes(self) -> u64 {
        self.trees * self.per_tree()
    }

    /// Files of all trees.
    pub fn all_files(self) -> u64 {
        self.trees * self.dirs * self.files
    }

    /// The directory of a file that is counted over all trees, and its number there.
    pub fn file(self, number: u64) -> (Unit, u64) {
        let (dir, file) = (number / self.files, number % self.files);
        (Unit { tree: dir / self.dirs, dir: dir % self.dirs }, file)
    }

    /// The directories of the trees dealt to a seat, in order.
    pub fn dealt(self, seat: WorkerSeat) -> Units {
        Units { shape: self, step: seat.of as u64, tree: seat.index as u64, dir: 0 }
    }
}

/// One directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unit {
    /// Its tree.
    pub tree: u64,
    /// Its index in the tree.
    pub dir: u64,
}

/// Directories that remain to be done.
#[derive(Clone, Copy, Debug)]
pub struct Units {
    shape: TreeShape,
    step: u64,
    tree: u64,
    dir: u64,
}

impl Units {
    /// Whether none remains.
    pub fn is_empty(&self) -> bool {
        self.tree >= self.shape.trees
    }
}

impl Iterator for Units {
    type Item = Unit;

    fn next(&mut self) -> Option<Unit> {
        if self.is_empty() {
            return None;
        }
        let unit = Unit { tree: self.tree, dir: self.dir };
        self.dir += 1;
        if self.dir == self.shape.dirs {
            (self.tree, self.dir) = (self.tree + self.step, 0);
        }
        Some(unit)
    }
}

/// Digits of a name.
const DIGITS: usize = 8;

/// A letter and eight digits, and a nul for system calls.
#[derive(Clone, Copy, Debug)]
pub struct EntryName([u8; DIGITS + 2]);

impl EntryName {
    /// The name with this letter and number.
    pub fn new(letter: u8, number: u64) -> Self {
        let mut name = Self([0; DIGITS + 2]);
        name.0[0] = letter;
        name.set(number);
        name
    }

    /// Changes the number.
    #[inline]
    pub fn set(&mut self, mut number: u64) {
        for digit in self.0[1..=DIGITS].iter_mut().rev() {
            *digit = b'0' + (number % 10) as u8;
            number /= 10;
        }
    }

    /// The name without the nul.
    #[inline]
    pub fn bytes(&self) -> &[u8] {
        &self.0[..=DIGITS]
    }

    /// The name with the nul.
    #[inline]
    pub fn c(&self) -> &CStr {
        CStr::from_bytes_with_nul(&self.0).unwrap_or_default()
    }
}

/// The top of a tree.
pub fn top(tree: u64) -> EntryName {
    EntryName::new(b't', tree)
}

/// A directory of a tree.
pub fn dir(dir: u64) -> EntryName {
    EntryName::new(b'd', dir)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn every_directory_is_dealt_once() {
        let shape = TreeShape { trees: 7, dirs: 3, files: 5 };
        for of in 1..=7 {
            let dealt: Vec<Unit> = (0..of).flat_map(|index| shape.dealt(WorkerSeat { index, of })).collect();
            let different: HashSet<_> = dealt.iter().map(|unit| (unit.tree, unit.dir)).collect();
            assert_eq!((dealt.len(), different.len()), (21, 21));
        }
        assert_eq!((shape.per_dir(), shape.per_tree(), shape.inodes()), (6, 19, 133));
        let files: HashSet<_> =
            (0..shape.all_files()).map(|n| shape.file(n)).map(|(u, file)| (u.tree, u.dir, file)).collect();
        assert_eq!(files.len(), 105);
        assert!(files.iter().all(|(tree, dir, file)| *tree < 7 && *dir < 3 && *file < 5));
    }

    #[test]
    fn names_are_letters_and_digits() {
        let mut name = EntryName::new(b'f', 0);
        assert_eq!((name.bytes(), name.c()), (&b"f00000000"[..], c"f00000000"));
        name.set(10_203);
        assert_eq!((name.bytes(), name.c()), (&b"f00010203"[..], c"f00010203"));
    }
}
