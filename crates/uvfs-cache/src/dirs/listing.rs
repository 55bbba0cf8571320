//! Listing a resident directory from the cache, and learning that another directory is wholly cached.
//!
//! Entries are copied out a batch at a time under the directory's index mutex; the sink gets them with
//! nothing held. A dentry in the list is in use: a writer takes it out of the list, under the same mutex,
//! before the slot changes hands (see [`crate::names::publish`]). A replaced name keeps its place in the list. Its
//! dentry gives way to the new one in one hold of the mutex, so a listing sees one of them.
//!
//! A listing from a driver ([`DirScan`]) is an answer about many names, requested before any of their name
//! locks is held. So each entry is judged by the state from before the driver was asked, not by the state
//! when the entry is cached (rule 10). If a name is removed after the scan began, the directory's revision
//! has moved and the entry is late. If it is removed after its entry was cached, the removal finds the
//! entry.

use uvfs_sync::primitives::{AtomicBool, Ordering, spin_loop};

use crate::cache::Cache;
use crate::coherence::expiry::NEVER;
use crate::coherence::late_attributes::Asked;
use crate::dirs::cookies::FIRST_COOKIE;
use crate::dirs::dir_state::DirState;
use crate::inodes::inode_ref::InodeRef;
use crate::lookup::ref_lookup::Known;
use crate::lookup::ticket::NameGuard;
use crate::types::{CacheError, Fresh, Ttl};

const BATCH: usize = 64;

/// Receives one entry of a listing: name, inode number, type bits, cookie to resume from. False stops the
/// listing.
pub type DirSink<'a> = &'a mut dyn FnMut(&[u8], u64, u32, u64) -> bool;

/// An entry that was copied out; its name is the next `len` bytes of the batch's names.
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

/// A question to a driver about names of a directory, asked without their name locks. It is a listing,
/// which may make the directory complete, or a lookup during which others may ask for the same name.
#[derive(Debug)]
pub struct DirScan<'c> {
    dir: InodeRef<'c>,
    /// The directory's version before the driver is asked. An eviction moves the version too, but not the
    /// revision in it. So an entry that was evicted meanwhile may be cached again, but the directory does
    /// not become complete.
    version: u64,
    /// The epoch and the notes of that moment, for attributes.
    asked: Asked,
    /// The epoch in which completeness holds.
    epoch: u32,
    /// An entry was reported and not cached.
    partial: AtomicBool,
}

impl<'c> DirScan<'c> {
    /// The driver's answer: this name is in the directory and leads to this inode. Always returned. Cached
    /// unless something in the directory was removed, renamed or invalidated since the scan began, or the
    /// inode has changed since. A name that is cached already and leads to the same inode stays as it is.
    /// An entry that is not cached keeps [`DirScan::complete`] from making the directory complete.
    ///
    /// If the driver's listing gives only the name, use [`Cache::lookup`] for that entry instead. Waits for
    /// the holder of the name lock, so the caller holds no name lock.
    ///
    /// # Errors
    /// `NoMemory`, as of [`crate::machinery::NameGuard::found`].
    pub fn found(&self, name: &[u8], fresh: &Fresh) -> Result<InodeRef<'c>, CacheError> {
        let cache = self.dir.cache();
        let same = |inode: &InodeRef<'_>| (inode.ino(), inode.fmt()) == (fresh.attr.ino, fresh.attr.fmt());
        if let Known::Hit(inode) = cache.find(&self.dir, name)
            && same(&inode)
        {
            return Ok(inode);
        }
        let guard = cache.lock_name(&self.dir, name);
        self.answered(guard, same, |guard| guard.keep(fresh))
    }

    /// The rest of [`DirScan::found`], with the name's lock. `same` recognises the answer's inode; `keep` takes
    /// the answer, and says whether the name is cached.
    pub(crate) fn answered(
        &self,
        mut guard: NameGuard<'c>,
        same: impl Fn(&InodeRef<'_>) -> bool,
        keep: impl FnOnce(&NameGuard<'c>) -> Result<(InodeRef<'c>, bool), CacheError>,
    ) -> Result<InodeRef<'c>, CacheError> {
        // Not the present ones: the driver was asked when the scan began.
        (guard.revision, guard.asked) = (DirState::revision_of(self.version), self.asked);
        let known = guard.find();
        if let Known::Hit(inode) = &known
            && same(inode)
        {
            return Ok(inode.clone());
        }
        let kept = keep(&guard);
        if !matches!(kept, Ok((_, true))) {
            self.partial.store(true, Ordering::Relaxed);
            // The cache is wrong about the name. (If the cache knows nothing of it, the other entries need
            // not become late.)
            if !guard.is_late() && !matches!(known, Known::Unknown) {
                guard.cache.invalidate(&self.dir, guard.name());
            }
        }
        Ok(kept?.0)
    }

    /// Every entry was reported, by [`DirScan::found`] or (also an entry that has gone) as the answer to a
    /// lookup. True if the directory is complete now. False if an entry was not cached, or something in the
    /// directory moved since the scan began (rule 10).
    pub fn complete(self) -> bool {
        self.complete_until(self.epoch) && self.dir.cache().clock.stands(self.epoch)
    }

    fn complete_until(&self, until: u32) -> bool {
        !self.partial.load(Ordering::Relaxed)
            && self.dir.dir_state().is_some_and(|d| d.set_complete(self.version, until))
    }

    /// [`DirScan::complete`] for a listing that is trusted for `ttl` from now.
    pub(crate) fn complete_for(self, ttl: Ttl) -> bool {
        match ttl {
            Ttl::Forever => self.complete(),
            // An epoch that moved meanwhile ends every older answer.
            Ttl::For(_) if self.asked.epoch != self.dir.cache().clock.epoch() => false,
            Ttl::For(_) => self.complete_until(self.dir.cache().clock.deadline(ttl)),
        }
    }

    /// The scan without a borrow of the cache, but for its directory, whose reference the caller keeps.
    pub(crate) fn park(&self) -> ParkedScan {
        ParkedScan { version: self.version, asked: self.asked, epoch: self.epoch }
    }

    /// Whether an entry was reported and not cached.
    pub(crate) fn is_partial(&self) -> bool {
        self.partial.load(Ordering::Relaxed)
    }
}

/// See [`DirScan::park`].
#[derive(Clone, Copy, Debug)]
pub(crate) struct ParkedScan {
    version: u64,
    asked: Asked,
    epoch: u32,
}

impl ParkedScan {
    /// The scan again, of the same directory. Whether entries were not cached is forgotten.
    pub(crate) fn resume<'c>(self, dir: &InodeRef<'c>) -> DirScan<'c> {
        let Self { version, asked, epoch } = self;
        DirScan { dir: dir.clone(), version, asked, epoch, partial: AtomicBool::new(false) }
    }
}

// For this project's own crates: see `machinery`.
#[doc(hidden)]
impl Cache {
    /// Hand out the entries of a resident directory after `cookie` (0: from the start), the latest first.
    /// An entry that exists all the while is handed out exactly once, whatever happens to others. So is a
    /// name that renames replace. An entry that is made after the start is not handed out, so a listing
    /// ends. O(log n) to resume. `sink` is called with nothing held.
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
                let len = d.copy_name(&mut name, self.dentries.tails());
                let fmt = d.fmt();
                // The dentry holds its inode as long as the sequence stands.
                let ino = self.inodes.get(d.inode.load(Ordering::Relaxed)).ino();
                let parent = d.parent.load(Ordering::Relaxed);
                let hash = d.hash.load(Ordering::Relaxed);
                if d.seq.check(seq) {
                    if parent == dir && len != 0 {
                        batch.names.extend_from_slice(&name[..len]);
                        batch.entries.push(Listed { len, ino, fmt, next });
                        // A program that lists a directory most often looks at its entries next.
                        self.dentries.names().prefetch(hash);
                    }
                    return;
                }
            }
            // Its writer holds a bucket's lock for a few stores, and waits for nobody.
            spin_loop();
        }
    }

    /// Call this before asking a driver for the names in a directory; then report each entry to
    /// [`DirScan::found`].
    pub fn begin_scan<'c>(&'c self, dir: &InodeRef<'c>) -> DirScan<'c> {
        // Before the version: see `DirState::set_complete`.
        let asked = self.ask_below(dir);
        let watched = self.sb_of(dir.index()).is_watched();
        let version = dir.dir_state().map_or(0, |d| d.version());
        let epoch = if watched { asked.epoch } else { NEVER };
        DirScan { dir: dir.clone(), version, asked, epoch, partial: AtomicBool::new(false) }
    }
}
