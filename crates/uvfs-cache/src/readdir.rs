//! Listing a resident directory from the cache, and learning that another one is wholly cached.
//!
//! Entries are copied out a batch at a time under the directory's index mutex; the reader gets them
//! with nothing held. A dentry in the list is in use: it is taken out of the list, under the same
//! mutex, before it changes hands (see [`crate::change`]). A name that is replaced keeps its place in the list, and the
//! one dentry gives way to the other in one hold of the mutex: who lists sees one of them.

use uvfs_sync::primitives::{Ordering, spin_loop};

use crate::cache::Cache;
use crate::clock::NEVER;
use crate::dir_index::FIRST_COOKIE;
use crate::inode_ref::InodeRef;

const BATCH: usize = 64;

/// What a lister is handed: name, inode number, type bits, cookie to go on from. False stops.
pub type DirSink<'a> = &'a mut dyn FnMut(&[u8], u64, u32, u64) -> bool;

/// An entry that was copied out; its name is the next `len` bytes of the batch's.
struct Listed {
    len: usize,
    ino: u64,
    fmt: u32,
    next: u64,
}

/// Entries that were copied out, and their names one after the other.
#[derive(Default)]
struct Batch {
    entries: Vec<Listed>,
    names: Vec<u8>,
}

/// A listing that may make a directory complete.
#[derive(Debug)]
pub struct DirScan<'c> {
    dir: InodeRef<'c>,
    version: u64,
    /// In which the driver is asked.
    epoch: u32,
}

impl DirScan<'_> {
    /// All entries were put into the cache. True if the directory is complete now; false if
    /// something in it moved since the scan began (rule 10).
    pub fn complete(self) -> bool {
        self.dir.dir_state().is_some_and(|d| d.set_complete(self.version, self.epoch))
    }
}

impl Cache {
    /// Hand out the entries of a resident directory after `cookie` (0: from the start), the latest made first.
    /// An entry that exists all the while is handed out exactly once, whatever happens to others, and so
    /// is a name that others replace by renames. What is made after the start is not handed out, so that a listing ends.
    /// O(log n) to resume. `sink` is called with nothing held.
    pub fn read_dir(&self, dir: &InodeRef<'_>, cookie: u64, sink: DirSink<'_>) {
        let Some(state) = dir.dir_state() else { return };
        let mut end = if cookie < FIRST_COOKIE { u64::MAX } else { cookie };
        let mut batch = Batch::default();
        loop {
            batch.entries.clear();
            batch.names.clear();
            {
                let index = state.entries();
                for (cookie, dentry) in index.below(end).take(BATCH) {
                    end = cookie;
                    self.listed(dir.index(), dentry, cookie, &mut batch);
                }
                if batch.entries.is_empty() && index.below(end).next().is_none() {
                    return;
                }
            }
            let mut names = &batch.names[..];
            for e in &batch.entries {
                let (name, rest) = names.split_at(e.len);
                names = rest;
                if !sink(name, e.ino, e.fmt, e.next) {
                    return;
                }
            }
        }
    }

    /// Copy an entry of the list, unless it has just been renamed into another directory.
    fn listed(&self, dir: u32, dentry: u32, next: u64, batch: &mut Batch) {
        let d = self.dentries.get(dentry);
        let mut name = [0; 256];
        loop {
            if let Some(seq) = d.seq.begin() {
                let len = d.copy_name(&mut name, &self.tails);
                let fmt = d.fmt();
                // The dentry holds its inode as long as the sequence stands.
                let ino = self.inodes.get(d.inode.load(Ordering::Relaxed)).ino();
                let parent = d.parent.load(Ordering::Relaxed);
                let hash = d.hash.load(Ordering::Relaxed);
                if d.seq.check(seq) {
                    if parent == dir && len != 0 {
                        batch.names.extend_from_slice(&name[..len]);
                        batch.entries.push(Listed { len, ino, fmt, next });
                        // Who lists a directory most often looks at its entries next.
                        self.names.prefetch(hash);
                    }
                    return;
                }
            }
            // Its writer holds a bucket's lock for a few stores, and waits for nobody.
            spin_loop();
        }
    }

    /// Begin to list a directory from its driver; each entry is then told by
    /// [`crate::NameGuard::found`].
    pub fn begin_scan<'c>(&'c self, dir: &InodeRef<'c>) -> DirScan<'c> {
        let sb = self.sb_of(dir.index());
        // Before the version: see `DirState::set_complete`.
        let epoch = if sb.watched.load(Ordering::Relaxed) { self.clock.asked() } else { NEVER };
        DirScan { epoch, version: dir.dir_state().map_or(0, |d| d.version()), dir: dir.clone() }
    }
}
