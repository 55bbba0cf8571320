//! The table of handles for front ends.
//!
//! A handle is a number that names an [`OpenFile`], which owns one reference to the inode and the driver's side of the
//! file. The table is sharded; a shard's lock protects only its maps and is never held while a driver runs. An
//! operation borrows the open file as an `Arc`. A concurrent release removes the handle at once, and the driver's
//! `release` waits until the last operation is done. The library's own [`Handle`](crate::Handle) owns its file and has
//! no entry here.
//!
//! Threads that open files of one superblock at the same time must not share a counter. Each shard has a [`Base`]
//! for each superblock, which counts that shard's open files, and an open file's reference to its inode may be
//! counted per thread. A base goes when the superblock is unmounted, or with the last open file after that. An
//! operation by number costs one read lock of the shard and one count; an entry and its removal cost the write lock
//! and an allocation. Files opened by different threads are in different shards.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use foldhash::fast::FixedState;
use parking_lot::RwLock;
use uvfs_cache::SbId;
use uvfs_cache::machinery::{Borrowed, OwnedId};

use crate::driver::Inode;
use crate::mount_table::Super;
use crate::ops::driver_file::{Base, DriverFile};
use crate::types::{Errno, Result};

/// A power of two.
const SHARDS: u64 = 64;

/// An entry of the table. Its last user drops it, and that releases the file in the driver.
pub(crate) struct OpenFile {
    pub(crate) file: DriverFile,
    /// Returned in `drop`.
    inode: OwnedId,
}

impl OpenFile {
    pub(crate) fn new(file: DriverFile, inode: &Inode<'_>) -> Self {
        Self { file, inode: inode.clone().into_owned() }
    }

    pub(crate) fn inode(&self) -> Borrowed<'_> {
        self.file.base.cache.inode_of(&self.inode)
    }
}

impl Drop for OpenFile {
    fn drop(&mut self) {
        self.file.release(&self.inode());
        drop(self.file.base.cache.adopt(std::mem::take(&mut self.inode)));
    }
}

#[derive(Default)]
struct Shard {
    open: std::collections::HashMap<u64, Arc<OpenFile>, FixedState>,
    last: u64,
    /// Only of mounted superblocks.
    bases: Vec<(SbId, Arc<Base>)>,
}

impl Shard {
    fn known(&self, sb: SbId) -> Option<Arc<Base>> {
        self.bases.iter().find(|(id, _)| *id == sb).map(|(_, base)| Arc::clone(base))
    }
}

/// A shard on cache lines of its own.
#[derive(Default)]
#[repr(align(128))]
struct Padded(RwLock<Shard>);

/// The table of open files.
pub(crate) struct Files {
    shards: Box<[Padded]>,
}

impl Files {
    pub(crate) fn new() -> Self {
        Self { shards: (0..SHARDS).map(|_| Padded::default()).collect() }
    }

    fn shard(&self, fh: u64) -> &RwLock<Shard> {
        &self.shards[(fh % SHARDS) as usize].0
    }

    /// The calling thread's shard.
    fn mine(&self) -> u64 {
        thread_number() as u64 % SHARDS
    }

    /// The parts of a mounted superblock, if the calling thread's shard has them.
    pub(crate) fn known(&self, sb: SbId) -> Option<Arc<Base>> {
        self.shard(self.mine()).read().known(sb)
    }

    /// The parts of `sup` for open files of the calling thread.
    pub(crate) fn base(&self, sup: &Super, mounted: impl FnOnce() -> bool) -> Arc<Base> {
        let shard = self.shard(self.mine());
        if let Some(base) = shard.read().known(sup.id) {
            return base;
        }
        let mut shard = shard.write();
        if let Some(base) = shard.known(sup.id) {
            return base;
        }
        let base = Base::new(sup);
        // Checked under the shard's lock. An unmount removes the superblock from the mounts, and then takes this
        // lock. If the unmount comes first, this check sees it. If this check comes first, the unmount removes the
        // base again.
        if mounted() {
            shard.bases.push((sup.id, Arc::clone(&base)));
        }
        base
    }

    /// A handle for `file`; never 0.
    pub(crate) fn insert(&self, file: OpenFile) -> u64 {
        let number = self.mine();
        let file = Arc::new(file);
        let mut shard = self.shard(number).write();
        shard.last += 1;
        let fh = shard.last * SHARDS + number;
        shard.open.insert(fh, file);
        fh
    }

    /// After an unmount: from now on only open files keep the superblock's driver.
    pub(crate) fn forget(&self, sb: SbId) {
        for shard in &self.shards {
            // Dropped outside the lock: this may be the driver's last user.
            let _gone: Vec<_> = shard.0.write().bases.extract_if(.., |(id, _)| *id == sb).collect();
        }
    }

    pub(crate) fn get(&self, fh: u64) -> Result<Arc<OpenFile>> {
        self.shard(fh).read().open.get(&fh).cloned().ok_or(Errno::BADF)
    }

    pub(crate) fn remove(&self, fh: u64) -> Option<Arc<OpenFile>> {
        self.shard(fh).write().open.remove(&fh)
    }
}

/// A number for each thread, in the order of first opens: it spreads threads over the shards.
fn thread_number() -> usize {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    thread_local! {
        static MINE: usize = NEXT.fetch_add(1, Ordering::Relaxed);
    }
    MINE.try_with(|n| *n).unwrap_or(0)
}
