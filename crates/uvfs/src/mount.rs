//! Superblocks and where they are mounted.
//!
//! The table is an immutable snapshot behind an [`ArcSwap`]: readers load it and store nothing
//! shared; a mount or an unmount builds the next one under `writer`. A directory's id says
//! nothing about mounts, so walks first ask `filter`, one word with a bit set for each mount
//! point's and each mounted root's hash: the usual component pays one load and never sees the
//! table.
//!
//! A superblock's last user (table or operation) drops it: root and mount point are let go, the
//! cache gives up what it has of it. Children are mounted after their parents and stand before
//! them in the table, so that they also go first.
//! May call the cache; must not call a driver while `writer` is held.

use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use arc_swap::{ArcSwap, Guard};
use parking_lot::Mutex;
use uvfs_cache::{Cache, InodeId, SbId, SbOptions};

use crate::driver::{Driver, Inode};
use crate::ops::{cache_errno, fresh};
use crate::pin::Pin;
use crate::types::{Errno, Features, Op, Result, Ttl};

/// One mounted file system.
pub(crate) struct Super {
    /// The cache's name for it.
    pub(crate) id: SbId,
    /// Who answers for it.
    pub(crate) driver: Arc<dyn Driver>,
    /// What the driver said it is like.
    pub(crate) features: Features,
    cache: Arc<Cache>,
    root: Option<Pin>,
    point: Option<Pin>,
}

impl Super {
    /// Registers `driver` with the cache and makes its root.
    pub(crate) fn new<'c>(
        cache: &'c Arc<Cache>,
        op: &Op,
        driver: Arc<dyn Driver>,
    ) -> Result<(Self, Inode<'c>)> {
        let features = driver.features();
        let new = driver.root(op)?;
        if !new.attr.is_dir() {
            return Err(Errno::NOTDIR);
        }
        let evicting = Arc::clone(&driver);
        let id = cache
            .add_superblock(SbOptions {
                resident: features.resident,
                on_evict: Box::new(move |attr, private| evicting.evict(attr, private)),
            })
            .map_err(|e| cache_errno(e, features))?;
        let mut sup = Self { id, driver, features, cache: Arc::clone(cache), root: None, point: None };
        let root = cache.make_root(id, &fresh(features, &new)).map_err(|e| cache_errno(e, features))?;
        sup.root = Some(Pin::new(cache, root.clone()));
        Ok((sup, root))
    }

    /// The cache that it is in.
    pub(crate) fn cache(&self) -> &Arc<Cache> {
        &self.cache
    }

    /// The root directory's id.
    fn root_id(&self) -> Option<InodeId> {
        self.root.as_ref().map(Pin::id)
    }

    /// The id of the directory that the root covers; none for the first file system.
    fn point_id(&self) -> Option<InodeId> {
        self.point.as_ref().map(Pin::id)
    }

    /// How long what its driver says may be believed.
    pub(crate) fn ttl(&self) -> Ttl {
        if self.features.resident { Ttl::Forever } else { self.driver.ttl() }
    }

    /// EROFS where the file system takes no changes.
    pub(crate) fn writable(&self) -> Result<()> {
        if self.features.read_only { Err(Errno::ROFS) } else { Ok(()) }
    }
}

impl Drop for Super {
    fn drop(&mut self) {
        self.root = None;
        self.cache.drop_superblock(self.id);
    }
}

/// A superblock that an operation uses: it outlives a concurrent unmount.
pub(crate) struct SuperRef {
    table: Guard<Arc<Table>>,
    index: usize,
}

impl Deref for SuperRef {
    type Target = Super;

    fn deref(&self) -> &Super {
        &self.table.supers[self.index]
    }
}

/// One state of the mounts; newest first.
struct Table {
    supers: Vec<Arc<Super>>,
}

impl Table {
    /// One bit for each id that a walk must not pass without looking here.
    fn filter(&self) -> u64 {
        let covered = self.supers.iter().filter_map(|s| Some((s.point_id()?, s.root_id()?)));
        covered.fold(0, |bits, (point, root)| bits | bit(point) | bit(root))
    }
}

/// The filter's bit of an id: the top six bits of a multiplicative hash.
fn bit(id: InodeId) -> u64 {
    1 << (id.as_u64().wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 58)
}

/// All mounts of a [`Vfs`](crate::Vfs).
pub(crate) struct Mounts {
    table: ArcSwap<Table>,
    filter: AtomicU64,
    writer: Mutex<()>,
}

impl Mounts {
    /// The mounts of a new Vfs.
    pub(crate) fn new(root: Super) -> Self {
        Self {
            table: ArcSwap::from_pointee(Table { supers: vec![Arc::new(root)] }),
            filter: AtomicU64::new(0),
            writer: Mutex::new(()),
        }
    }

    /// The superblock with this id; ESTALE once it is unmounted.
    pub(crate) fn super_of(&self, sb: SbId) -> Result<SuperRef> {
        let table = self.table.load();
        let index = table.supers.iter().position(|s| s.id == sb).ok_or(Errno::STALE)?;
        Ok(SuperRef { table, index })
    }

    /// Every superblock that can give memory back.
    pub(crate) fn evictable(&self) -> Vec<SbId> {
        self.table.load().supers.iter().filter(|s| !s.features.resident).map(|s| s.id).collect()
    }

    /// The root of what is mounted on `id`: of the last mount, where mounts are stacked.
    #[inline]
    pub(crate) fn mounted_on(&self, id: InodeId) -> Option<InodeId> {
        if self.may_know(id) { self.look_up(id) } else { None }
    }

    #[cold]
    fn look_up(&self, id: InodeId) -> Option<InodeId> {
        let table = self.table.load();
        let mut top = None;
        while let Some(s) = table.supers.iter().find(|s| s.point_id() == Some(top.unwrap_or(id))) {
            top = s.root_id();
        }
        top
    }

    /// The directory that the mounted root `id` covers: the lowest, where mounts are stacked.
    pub(crate) fn point_of(&self, id: InodeId) -> Option<InodeId> {
        if !self.may_know(id) {
            return None;
        }
        let table = self.table.load();
        let mut lowest = None;
        while let Some(s) = table.supers.iter().find(|s| s.root_id() == Some(lowest.unwrap_or(id))) {
            match s.point_id() {
                Some(point) => lowest = Some(point),
                None => break,
            }
        }
        lowest
    }

    /// Pairs with the release in [`Mounts::publish`]: who sees the bit sees the table. Who does
    /// not see it yet walks as if the mount were still to come.
    #[inline]
    fn may_know(&self, id: InodeId) -> bool {
        self.filter.load(Ordering::Acquire) & bit(id) != 0
    }

    /// Mounts `sup` on `at`; the caller keeps `at` from being removed meanwhile.
    pub(crate) fn insert(&self, mut sup: Super, at: Pin) {
        let _writer = self.writer.lock();
        sup.point = Some(at);
        let old = self.table.load_full();
        let mut supers = Vec::with_capacity(old.supers.len() + 1);
        supers.push(Arc::new(sup));
        supers.extend(old.supers.iter().cloned());
        self.publish(Table { supers });
    }

    /// Unmounts what has the root `root`: EINVAL where that is no mounted root (or the first
    /// file system's), EBUSY where something is mounted further inside.
    pub(crate) fn remove(&self, root: &Inode<'_>) -> Result<()> {
        let gone;
        {
            let _writer = self.writer.lock();
            let old = self.table.load_full();
            let mounted = |s: &&Arc<Super>| s.root_id() == Some(root.id()) && s.point.is_some();
            let sup = old.supers.iter().find(mounted).ok_or(Errno::INVAL)?;
            let inside = |s: &Arc<Super>| s.point.as_ref().is_some_and(|p| p.inode().sb() == sup.id);
            if old.supers.iter().any(inside) {
                return Err(Errno::BUSY);
            }
            gone = Arc::clone(sup);
            let supers = old.supers.iter().filter(|s| s.id != gone.id).cloned().collect();
            self.publish(Table { supers });
        }
        // Evicts, and so calls the driver: not under the writer's lock.
        drop(gone);
        Ok(())
    }

    fn publish(&self, table: Table) {
        let filter = table.filter();
        self.table.store(Arc::new(table));
        self.filter.store(filter, Ordering::Release);
    }

    /// How many file systems are mounted.
    pub(crate) fn count(&self) -> usize {
        self.table.load().supers.len()
    }
}

/// Only the fields that say something.
impl std::fmt::Debug for Mounts {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let table = self.table.load();
        f.debug_list().entries(table.supers.iter().map(|s| s.driver.name())).finish()
    }
}
