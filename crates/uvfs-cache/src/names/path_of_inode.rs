//! Names back: from an inode to its name, its path, all its names.
//!
//! Only for superblocks that are *named*: each inode's `alias` is a dentry of it (elsewhere only directories have
//! one). Nothing is locked. A reader takes the dentry's sequence, reads inode, parent and name, takes a
//! reference to the parent, and checks the sequence. The dentry holds its parent, so if the sequence stands,
//! the reference is to that parent.
//!
//! The race of a path against renames: a reader keeps the sequence of every dentry on the way, and checks
//! them all once it has reached the root. If a rename comes before the reader reads that dentry, the reader
//! finds the new name. If it comes later, the last check finds the sequence moved, and the reader starts over.
//! If all stand, all names were as read at the moment between the last read and the first check.
//!
//! A name costs a few loads, a path that times its depth. If an alias leads to a name that has gone, the file is
//! searched for by its other names, once: O(names of the superblock). The result of the search is kept.

use uvfs_sync::primitives::{Ordering, spin_loop};

use crate::cache::{Cache, is_dir};
use crate::inodes::inode_ref::InodeRef;

/// How often a path is read again while directories move.
const TRIES: u32 = if cfg!(loom) { 2 } else { 64 };

/// An alias that a search has found to lead nowhere, while it looks once more.
const CHECKING: u32 = u32::MAX;

/// A name of an inode, as it was at a moment.
pub(crate) struct Back<'c> {
    pub(crate) parent: InodeRef<'c>,
    pub(crate) name: Vec<u8>,
    dentry: u32,
    seq: u32,
}

/// Directories on the way moved each time that the path was read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Moving;

impl std::fmt::Display for Moving {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("directories on the way are being moved")
    }
}

impl std::error::Error for Moving {}

impl Cache {
    /// The name in a dentry slot, if it leads to this inode. `Err`: something moved.
    fn back_at<'c>(&'c self, dentry: u32, inode: &InodeRef<'c>) -> Result<Option<Back<'c>>, Moving> {
        let d = self.dentries.get(dentry);
        let seq = d.seq.begin().ok_or(Moving)?;
        if dentry == 0 || d.inode.load(Ordering::Relaxed) != inode.index() {
            // Known of one moment too: a dentry that changes its inode is written inside its sequence.
            return if d.seq.check(seq) { Ok(None) } else { Err(Moving) };
        }
        let mut name = [0; 256];
        let len = d.copy_name(&mut name, self.dentries.tails());
        let parent = d.parent.load(Ordering::Relaxed);
        if !d.seq.check(seq) {
            return Err(Moving);
        }
        let parent = self.get_index(parent).ok_or(Moving)?;
        if !d.seq.check(seq) {
            return Err(Moving);
        }
        Ok((len != 0).then(|| Back { parent, name: name[..len].to_vec(), dentry, seq }))
    }

    /// A name of an inode and the directory that has it; `None`: it has none in the cache.
    pub(crate) fn name_back<'c>(&'c self, inode: &InodeRef<'c>) -> Option<Back<'c>> {
        let private = inode.private_half();
        if inode.is_root() || !private.is_named() {
            return None;
        }
        loop {
            // Pairs with the release of the writer that named the inode: that dentry is filled.
            let alias = private.alias.load(Ordering::Acquire);
            let back = if alias == CHECKING { Ok(None) } else { self.back_at(alias, inode) };
            match back {
                Ok(Some(back)) => return Some(back),
                // An exchange leads the inode to its other dentry before this one's sequence is even again.
                Ok(None) if private.alias.load(Ordering::Relaxed) == alias => {
                    if let Ok(back) = self.search_name(inode, alias) {
                        return back;
                    }
                }
                // Each is another thread's progress.
                Ok(None) | Err(Moving) => {}
            }
            spin_loop();
        }
    }

    /// Another name of a file whose alias has lost its name. `Err`: the alias has changed meanwhile.
    ///
    /// A search that finds none is not repeated: it leaves 0 as the alias, until the inode is named. The race
    /// with a thread that names it in the slot of the old alias: that thread fills the dentry, then stores the
    /// same alias. If its store comes first, [`CHECKING`] replaces it, and the second look finds the dentry filled.
    /// If ours comes first, its own stands. Meanwhile other readers search for themselves.
    #[cold]
    fn search_name<'c>(&'c self, inode: &InodeRef<'c>, alias: u32) -> Result<Option<Back<'c>>, Moving> {
        // A driver that counts links says so when the last name goes, and its open files pay for no search.
        if alias == 0 || is_dir(inode.fmt()) || inode.attr().nlink == 0 {
            return Ok(None);
        }
        let found = self.backs(inode).next();
        if alias == CHECKING {
            return Ok(found);
        }
        let word = &inode.private_half().alias;
        let exchange = |from, to| {
            let changed = word.compare_exchange(from, to, Ordering::AcqRel, Ordering::Relaxed);
            changed.map_err(|_| Moving)
        };
        if let Some(back) = found {
            // If another thread has named the inode since, that name stays its alias.
            let _ = exchange(alias, back.dentry);
            return Ok(Some(back));
        }
        exchange(alias, CHECKING)?;
        if matches!(self.back_at(alias, inode), Ok(None)) {
            return exchange(CHECKING, 0).map(|_| None);
        }
        exchange(CHECKING, alias)?;
        Err(Moving)
    }

    /// All names of an inode. O(names of the superblock).
    pub(crate) fn backs<'c>(&'c self, inode: &InodeRef<'c>) -> impl Iterator<Item = Back<'c>> {
        let index = inode.index();
        let leads = move |dentry: &u32| self.dentries.get(*dentry).inode.load(Ordering::Relaxed) == index;
        self.dentries_of(inode.sb()).filter(leads).filter_map(move |dentry| {
            loop {
                match self.back_at(dentry, inode) {
                    Ok(back) => return back,
                    Err(Moving) => spin_loop(),
                }
            }
        })
    }

    /// The path of an inode below its superblock's root, as it was at one moment, without a leading slash.
    /// `Ok(None)`: it has no name, or a directory on the way has none. O(depth).
    ///
    /// # Errors
    /// [`Moving`], after a number of attempts.
    pub(crate) fn path_back(&self, inode: &InodeRef<'_>) -> Result<Option<Vec<u8>>, Moving> {
        let Some(inode) = self.get(inode.id()) else { return Ok(None) };
        for _ in 0..TRIES {
            let mut way: Vec<Back<'_>> = Vec::new();
            let mut at = inode.clone();
            // Brent's algorithm, as in `Cache::is_below`: directories that moved behind the cache may form a loop.
            let (mut mark, mut next_mark) = (None, 1);
            let whole = loop {
                if at.is_root() {
                    break true;
                }
                if mark == Some(at.id()) {
                    break false;
                }
                if way.len() == next_mark {
                    (mark, next_mark) = (Some(at.id()), next_mark * 2);
                }
                let Some(back) = self.name_back(&at) else { break false };
                at = back.parent.clone();
                way.push(back);
            };
            if way.iter().all(|back| self.dentries.get(back.dentry).seq.check(back.seq)) {
                let names = way.iter().rev().map(|back| &back.name[..]);
                return Ok(whole.then(|| names.collect::<Vec<_>>().join(&b'/')));
            }
            spin_loop();
        }
        Err(Moving)
    }
}
