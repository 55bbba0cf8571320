//! Listing a resident directory from the cache, and learning that another one is wholly cached.
//!
//! Entries are copied out a batch at a time under the directory's index mutex; the reader gets them
//! with nothing held. A dentry in the list is in use: it is taken out of the list, under the same
//! mutex, before it changes hands (see [`crate::names`]). A name that is replaced keeps its place in the list, and the
//! one dentry gives way to the other in one hold of the mutex: who lists sees one of them.
//!
//! A listing from a driver ([`DirScan`]) is an answer about many names, asked for before the right to any of them is had. So each
//! entry is judged by what the scan remembers from before the driver was asked, and not by what is so when
//! the entry comes to be cached (rule 10). If a name is removed after the scan began, the directory's revision has moved and
//! the entry is late. If it is removed after its entry was cached, the removal finds the entry.

use uvfs_sync::primitives::{AtomicBool, Ordering, spin_loop};

use crate::by_number::Asked;
use crate::cache::Cache;
use crate::clock::NEVER;
use crate::dir::DirState;
use crate::dir_index::FIRST_COOKIE;
use crate::inode_ref::InodeRef;
use crate::lookup::Known;
use crate::types::{CacheError, Fresh};

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

/// A question to a driver about names of a directory, asked without the right to them: a listing, which may make the
/// directory complete, or a lookup during which others may ask for the same name.
#[derive(Debug)]
pub struct DirScan<'c> {
    dir: InodeRef<'c>,
    /// Of the directory, before the driver is asked. An eviction moves it too, but not the revision in it: what was
    /// evicted meanwhile may be cached again, but the directory is not complete.
    version: u64,
    /// That time, for attributes.
    asked: Asked,
    /// In which completeness holds.
    epoch: u32,
    /// An entry was told and not cached.
    partial: AtomicBool,
}

impl<'c> DirScan<'c> {
    /// The driver says that there is a name in the directory, and what it leads to. Cached unless something in the directory
    /// was removed, renamed or invalidated since the scan began, or the inode has changed since; returned always. A name that
    /// is cached already, and leads to the same inode, stays as it is. An entry that is not cached keeps [`DirScan::complete`]
    /// from making the directory complete.
    ///
    /// An entry about which the driver's listing tells only the name is asked for by [`Cache::lookup`] instead.
    /// Waits for whoever has the right to the name, so the caller holds no right to a name.
    ///
    /// # Errors
    /// `NoMemory`, as of [`crate::NameGuard::found`].
    pub fn found(&self, name: &[u8], fresh: &Fresh) -> Result<InodeRef<'c>, CacheError> {
        let cache = self.dir.cache();
        let same = |inode: &InodeRef<'_>| (inode.ino(), inode.fmt()) == (fresh.attr.ino, fresh.attr.fmt());
        if let Known::Hit(inode) = cache.find(&self.dir, name)
            && same(&inode)
        {
            return Ok(inode);
        }
        let mut guard = cache.lock_name(&self.dir, name);
        // Not of now: the driver was asked when the scan began.
        (guard.revision, guard.asked) = (DirState::revision_of(self.version), self.asked);
        let known = guard.find();
        if let Known::Hit(inode) = &known
            && same(inode)
        {
            return Ok(inode.clone());
        }
        let kept = guard.keep(fresh);
        if !matches!(kept, Ok((_, true))) {
            self.partial.store(true, Ordering::Relaxed);
            // The cache is wrong about the name. (Where it says nothing, there is no need to make the other entries late.)
            if !guard.is_late() && !matches!(known, Known::Unknown) {
                cache.forget_name(&self.dir, name);
            }
        }
        Ok(kept?.0)
    }

    /// Every entry was told, by [`DirScan::found`] or (also of an entry that has gone) as the answer to a lookup. True if the directory
    /// is complete now; false if an entry was not cached, or something in it moved since the scan began (rule 10).
    pub fn complete(self) -> bool {
        !self.partial.load(Ordering::Relaxed)
            && self.dir.dir_state().is_some_and(|d| d.set_complete(self.version, self.epoch))
            && self.dir.cache().clock.stands(self.epoch)
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

    /// To be called before a driver is asked for the names in a directory; each entry is then told by [`DirScan::found`].
    pub fn begin_scan<'c>(&'c self, dir: &InodeRef<'c>) -> DirScan<'c> {
        // Before the version: see `DirState::set_complete`.
        let asked = self.ask_below(dir);
        let watched = self.sb_of(dir.index()).watched.load(Ordering::Relaxed);
        let version = dir.dir_state().map_or(0, |d| d.version());
        let epoch = if watched { asked.epoch } else { NEVER };
        DirScan { dir: dir.clone(), version, asked, epoch, partial: AtomicBool::new(false) }
    }
}
