//! Superblocks and where they are mounted.
//!
//! Callers that need a superblock load an immutable snapshot of all from an [`ArcSwap`], which costs a store to a
//! line of their own thread. Walks need two things: where a mount point leads, and which directory a mounted root
//! covers. Each is in a [`SmallMap`], read without any store. Before those, walks read `filter`: one word with a
//! bit for the hash of each mount point and each mounted root. So the usual component pays one load. A mount or
//! unmount builds the next snapshot and both maps under `writer`.
//!
//! A *control* file system ([`CONTROL_NAME`]) covers nothing. Its root hangs in another's root directory, under a
//! name that is looked up here instead of in the cache (see `ops/control_dir.rs`), and its `..` leads there. There is
//! at most one, for good.
//!
//! The last user of a superblock (table or operation) drops it. That releases root and mount point, and the cache
//! evicts its inodes. Children are mounted after their parents and precede them in the table, so they are dropped
//! first. May call the cache; must not call a driver while `writer` is held.

#[cfg(test)]
mod tests;

use std::ops::Deref;
use std::sync::{Arc, OnceLock, Weak};

use arc_swap::{ArcSwap, Guard};
use parking_lot::Mutex;
use uvfs_cache::machinery::SbOptions;
use uvfs_cache::{Cache, InodeId, SbId};
use uvfs_sync::primitives::{AtomicBool, AtomicU32, AtomicU64, Ordering, fence};
use uvfs_sync::read_mostly_map::{Busy, SmallMap};

use crate::driver::{AclStore, Driver, Inode};
use crate::driver_answer::{cache_errno, fresh};
use crate::inode_pin::Pin;
use crate::types::{Attr, Errno, Features, Op, Result, Ttl};

/// The name of the control directory, in the root of a [`Vfs`](crate::Vfs) that has one.
pub const CONTROL_NAME: &[u8] = b".uvfs";

/// The driver that learns of evictions. While it is mounted, this holds it: a count that each end of an inode
/// raised and lowered would be a line that all threads write to.
enum Told {
    Mounted(Arc<dyn Driver>),
    /// The cache keeps its superblocks for good, and must not keep their drivers. A user with inodes of an
    /// unmounted driver holds that driver too; otherwise there is no driver to notify.
    Unmounted(Weak<dyn Driver>),
}

impl Told {
    fn evict(&self, attr: &Attr, private: u64) {
        match self {
            Self::Mounted(driver) => driver.evict(attr, private),
            Self::Unmounted(driver) => {
                if let Some(driver) = driver.upgrade() {
                    driver.evict(attr, private);
                }
            }
        }
    }
}

/// One mounted file system.
pub(crate) struct Super {
    /// The cache's name for it.
    pub(crate) id: SbId,
    /// The driver that answers for it.
    pub(crate) driver: Arc<dyn Driver>,
    /// The driver's features.
    pub(crate) features: Features,
    cache: Arc<Cache>,
    root: Option<Pin>,
    point: Option<Pin>,
    /// For a control file system: the directory that contains it.
    hidden_in: Option<Pin>,
    told: Arc<ArcSwap<Told>>,
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
        let told = Arc::new(ArcSwap::from_pointee(Told::Unmounted(Arc::downgrade(&driver))));
        let evicting = Arc::clone(&told);
        let id = cache
            .add_superblock(SbOptions {
                resident: features.resident,
                watched: features.watched,
                on_evict: Box::new(move |attr, private| evicting.load().evict(attr, private)),
            })
            .map_err(|e| cache_errno(e, features))?;
        // Until it is dropped.
        told.store(Arc::new(Told::Mounted(Arc::clone(&driver))));
        let cache_of = Arc::clone(cache);
        let mut sup =
            Self { id, driver, features, cache: cache_of, root: None, point: None, hidden_in: None, told };
        let root = cache.make_root(id, &fresh(features, &new)).map_err(|e| cache_errno(e, features))?;
        sup.root = Some(Pin::new(cache, root.clone()));
        sup.driver.mounted(cache, &root);
        Ok((sup, root))
    }

    /// Its access control lists; EOPNOTSUPP if the driver keeps none.
    pub(crate) fn acls(&self) -> Result<&dyn AclStore> {
        self.driver.acls().ok_or(Errno::OPNOTSUPP)
    }

    /// The cache that it is in.
    pub(crate) fn cache(&self) -> &Arc<Cache> {
        &self.cache
    }

    /// The root directory's id.
    fn root_id(&self) -> Option<InodeId> {
        self.root.as_ref().map(Pin::id)
    }

    /// The id of the directory that the root covers; `None` for the first file system.
    fn point_id(&self) -> Option<InodeId> {
        self.point.as_ref().map(Pin::id)
    }

    /// The TTL of its driver's answers.
    pub(crate) fn ttl(&self) -> Ttl {
        if self.features.resident { Ttl::Forever } else { self.driver.ttl() }
    }

    /// Whether its driver's answers hold until a change through the VFS, and nothing else will ever change them.
    fn is_lasting(&self) -> bool {
        self.ttl() == Ttl::Forever && !self.features.watched && !self.features.others_inside
    }

    /// EROFS if the file system is read-only.
    pub(crate) fn writable(&self) -> Result<()> {
        if self.features.read_only { Err(Errno::ROFS) } else { Ok(()) }
    }
}

impl Drop for Super {
    fn drop(&mut self) {
        self.root = None;
        self.cache.drop_superblock(self.id);
        self.told.store(Arc::new(Told::Unmounted(Arc::downgrade(&self.driver))));
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
    /// One bit for each id at which a walk must look here.
    fn filter(&self) -> u64 {
        self.covered().fold(0, |bits, (point, root)| bits | bit(point) | bit(root))
    }

    /// The mount points and their mounted roots.
    fn covered(&self) -> impl Iterator<Item = (InodeId, InodeId)> + '_ {
        self.supers.iter().filter_map(|s| Some((s.point_id()?, s.root_id()?)))
    }

    /// The root that `id` leads to: that of the last mount, if mounts are stacked.
    fn top(&self, id: InodeId) -> Option<InodeId> {
        let mut top = None;
        while let Some((_, root)) = self.covered().find(|(point, _)| *point == top.unwrap_or(id)) {
            top = Some(root);
        }
        top
    }

    /// The directory that the root `id` covers, which may be a mounted root itself.
    fn point(&self, id: InodeId) -> Option<InodeId> {
        self.covered().find(|(_, root)| *root == id).map(|(point, _)| point)
    }
}

/// The filter's bit of an id: the top six bits of a multiplicative hash.
fn bit(id: InodeId) -> u64 {
    1 << (id.as_u64().wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 58)
}

/// The place of the control file system.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Control {
    /// The directory that contains it.
    pub(crate) dir: InodeId,
    /// Its root.
    pub(crate) root: InodeId,
    /// Whether listings of `dir` show it.
    pub(crate) listed: bool,
}

/// All mounts of a [`Vfs`](crate::Vfs).
pub(crate) struct Mounts {
    table: ArcSwap<Table>,
    filter: AtomicU64,
    /// [`Table::top`] of each mount point.
    tops: SmallMap,
    /// [`Table::point`] of each mounted root.
    points: SmallMap,
    /// The control file system, once there is one.
    control: OnceLock<Control>,
    /// Whether any file system is read-only.
    read_only: AtomicBool,
    /// A sequence: odd while a mount or unmount becomes visible.
    generation: AtomicU32,
    writer: Mutex<()>,
    /// Called by tests while a mount or unmount becomes visible.
    #[cfg(test)]
    amid: OnceLock<fn(&Mounts)>,
}

impl Mounts {
    /// The mounts of a new Vfs.
    pub(crate) fn new(root: Super) -> Self {
        Self {
            read_only: AtomicBool::new(root.features.read_only),
            table: ArcSwap::from_pointee(Table { supers: vec![Arc::new(root)] }),
            filter: AtomicU64::new(0),
            tops: SmallMap::new(),
            points: SmallMap::new(),
            control: OnceLock::new(),
            generation: AtomicU32::new(0),
            writer: Mutex::new(()),
            #[cfg(test)]
            amid: OnceLock::new(),
        }
    }

    /// The superblock with this id; ESTALE once it is unmounted.
    pub(crate) fn super_of(&self, sb: SbId) -> Result<SuperRef> {
        let table = self.table.load();
        let index = table.supers.iter().position(|s| s.id == sb).ok_or(Errno::STALE)?;
        Ok(SuperRef { table, index })
    }

    /// The root mounted on `id`: that of the last mount, if mounts are stacked.
    #[inline]
    pub(crate) fn mounted_on(&self, id: InodeId) -> Option<InodeId> {
        if self.may_know(id) { self.look_up(&self.tops, id, Table::top) } else { None }
    }

    /// The directory that the mounted root `id` covers, which may be a mounted root itself.
    pub(crate) fn point_of(&self, id: InodeId) -> Option<InodeId> {
        if self.may_know(id) { self.look_up(&self.points, id, Table::point) } else { None }
    }

    #[cold]
    fn look_up(
        &self,
        map: &SmallMap,
        id: InodeId,
        in_table: fn(&Table, InodeId) -> Option<InodeId>,
    ) -> Option<InodeId> {
        match map.get(id.as_u64()) {
            Ok(found) => found.map(InodeId::from_u64),
            Err(Busy) => in_table(&self.table.load(), id),
        }
    }

    /// Whether some file system is read-only. If not, callers need not find out which.
    pub(crate) fn any_read_only(&self) -> bool {
        self.read_only.load(Ordering::Acquire)
    }

    /// Pairs with the release in [`Mounts::publish`]. A reader that sees the bit sees the table. A reader that does
    /// not see it yet walks as if the mount were still to come.
    #[inline]
    fn may_know(&self, id: InodeId) -> bool {
        self.filter.load(Ordering::Acquire) & bit(id) != 0
    }

    /// Mounts `sup` on `at`; the caller prevents a concurrent removal of `at`.
    pub(crate) fn insert(&self, mut sup: Super, at: Pin) {
        let _writer = self.writer.lock();
        sup.point = Some(at);
        self.add(sup);
    }

    /// Called with `writer` held.
    fn add(&self, sup: Super) {
        let old = self.table.load_full();
        let mut supers = Vec::with_capacity(old.supers.len() + 1);
        supers.push(Arc::new(sup));
        supers.extend(old.supers.iter().cloned());
        self.publish(Table { supers });
    }

    /// Makes `sup` the control file system in the directory `dir`; EEXIST if there is one already.
    pub(crate) fn insert_control(&self, mut sup: Super, dir: Pin, listed: bool) -> Result<()> {
        let _writer = self.writer.lock();
        let control = Control { dir: dir.id(), root: sup.root_id().ok_or(Errno::NOTDIR)?, listed };
        if self.control.get().is_some() {
            return Err(Errno::EXIST);
        }
        sup.hidden_in = Some(dir);
        self.add(sup);
        // A reader that finds it here finds its superblock in the table.
        self.control.set(control).map_err(|_| Errno::EXIST)
    }

    /// The control file system, if there is one. Costs one load.
    #[inline]
    pub(crate) fn control(&self) -> Option<&Control> {
        self.control.get()
    }

    /// The directory that contains the root `id` of the control file system.
    pub(crate) fn hidden_in(&self, id: InodeId) -> Option<InodeId> {
        self.control().filter(|control| control.root == id).map(|control| control.dir)
    }

    /// Whether `..` of this directory leaves a mount.
    pub(crate) fn is_mounted_root(&self, id: InodeId) -> bool {
        self.point_of(id).is_some() || self.hidden_in(id).is_some()
    }

    /// Whether a directory's name must stay because of a mount.
    pub(crate) fn is_busy(&self, dir: InodeId) -> bool {
        self.mounted_on(dir).is_some() || self.hidden_in(dir).is_some()
    }

    /// Unmounts the file system with the root `root`. EINVAL if that is not a mounted root (or is the first file
    /// system's), EBUSY if something is mounted further inside.
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
        // This evicts and so calls the driver: not under the writer's lock.
        drop(gone);
        Ok(())
    }

    fn publish(&self, table: Table) {
        self.generation.fetch_add(1, Ordering::Relaxed);
        fence(Ordering::Release);
        let filter = table.filter();
        let ids = |found: Option<InodeId>, of: InodeId| Some((of.as_u64(), found?.as_u64()));
        let tops: Vec<_> = table.covered().filter_map(|(point, _)| ids(table.top(point), point)).collect();
        let points: Vec<_> = table.covered().map(|(point, root)| (root.as_u64(), point.as_u64())).collect();
        // The flag is set before the file system can be reached, so no change misses it. Afterwards it stays set, at
        // the cost of needless looks.
        let read_only = table.supers.iter().any(|s| s.features.read_only);
        self.read_only.fetch_or(read_only, Ordering::Release);
        self.table.store(Arc::new(table));
        #[cfg(test)]
        self.amid.get().into_iter().for_each(|look| look(self));
        self.tops.replace(&tops);
        self.points.replace(&points);
        self.filter.store(filter, Ordering::Release);
        self.generation.fetch_add(1, Ordering::Release);
    }

    /// Moves with every mount and unmount; `None` while one is becoming visible. Read it before a walk whose
    /// positions are to be remembered.
    #[inline]
    pub(crate) fn generation(&self) -> Option<u32> {
        let now = self.generation.load(Ordering::Acquire);
        now.is_multiple_of(2).then_some(now)
    }

    /// Whether the mounts are unchanged.
    pub(crate) fn stand(&self, generation: Option<u32>) -> bool {
        // Pairs with the release fence in `publish`: if a reader saw part of a change, it sees the moved
        // generation.
        fence(Ordering::Acquire);
        generation.is_some() && self.generation() == generation
    }

    /// How many file systems are mounted, the control file system not counted.
    pub(crate) fn count(&self) -> usize {
        self.table.load().supers.iter().filter(|s| s.hidden_in.is_none()).count()
    }

    /// Whether all file systems are resident, the control file system excepted.
    pub(crate) fn is_all_resident(&self) -> bool {
        self.table.load().supers.iter().all(|s| s.features.resident || s.hidden_in.is_some())
    }

    /// Whether all answers of every file system hold for ever, the control file system excepted.
    pub(crate) fn is_all_lasting(&self) -> bool {
        self.table.load().supers.iter().all(|s| s.hidden_in.is_some() || s.is_lasting())
    }
}

/// Only the informative fields.
impl std::fmt::Debug for Mounts {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let table = self.table.load();
        f.debug_list().entries(table.supers.iter().map(|s| s.driver.name())).finish()
    }
}
