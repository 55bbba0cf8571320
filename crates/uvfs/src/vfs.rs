//! The [`Vfs`]: a cache, the file systems mounted in it, and the open files.
//!
//! Operations are methods of `Vfs`, defined in `ops/` (on inodes) and `namei/` (on paths). This module has what
//! they share: construction, and the way from an inode to its superblock. It has no lock of its own: the cache, the
//! mount table and the table of open files protect themselves. Any thread may call anything.

use std::sync::Arc;
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};
use uvfs_cache::machinery::Known;
use uvfs_cache::{Cache, InodeId, Room};

use crate::driver::{Driver, Inode};
use crate::driver_answer::cache_errno;
use crate::inode_pin::Pin;
use crate::mount_table::{CONTROL_NAME, Mounts, Super, SuperRef};
use crate::namei::cred_numbers::Numbers;
use crate::ops::handle_table::Files;
use crate::ops::inode_locks::InodeLocks;
use crate::ops::name_and_type::require_dir;
use crate::permission::Protected;
use crate::types::{Cred, Errno, Op, Result, Time, Ttl};

/// Configuration of a [`Vfs`].
#[derive(Clone, Debug, Default)]
pub struct VfsConfig {
    /// Limits of the cache.
    pub cache: uvfs_cache::Config,
    /// The `fs.protected_*` rules.
    pub protected: Protected,
}

/// A tree of mounted file systems over one cache. Shared as an `Arc`; any thread may call any method.
pub struct Vfs {
    // Open files come first, to be dropped first: they hold inodes of the superblocks after them.
    pub(crate) files: Files,
    pub(crate) inode_locks: InodeLocks,
    pub(crate) who: Numbers,
    pub(crate) protected: Protected,
    root: Pin,
    pub(crate) mounts: Mounts,
    pub(crate) cache: Arc<Cache>,
}

impl std::fmt::Debug for Vfs {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Vfs").field("mounts", &self.mounts).finish_non_exhaustive()
    }
}

impl Vfs {
    /// A tree with `root_driver`'s root at `/`.
    ///
    /// # Errors
    /// ENOMEM if the cache's memory cannot be reserved. ENOTDIR if the driver's root is not a directory. The
    /// driver's error if it cannot give its root.
    pub fn new(config: VfsConfig, root_driver: Arc<dyn Driver>) -> Result<Arc<Self>> {
        let cache = Cache::new(config.cache).map_err(|_| Errno::NOMEM)?;
        let op = Op { trusted: true, ..op_of(Cred::root()) };
        let (sup, root) = Super::new(&cache, &op, root_driver)?;
        let root = Pin::new(&cache, root);
        Ok(Arc::new(Self {
            files: Files::new(),
            inode_locks: InodeLocks::new(),
            who: Numbers::default(),
            protected: config.protected,
            root,
            mounts: Mounts::new(sup),
            cache,
        }))
    }

    /// The cache: for its counters, and for callers that report changes from elsewhere.
    pub fn cache(&self) -> &Cache {
        &self.cache
    }

    /// The root directory of the file system that was mounted last on `/`.
    pub fn root(&self) -> Inode<'_> {
        self.cross(self.root.inode().clone())
    }

    /// An operation of `cred`, with the current time and no umask, whose permissions the VFS checks.
    pub fn op(&self, cred: &Cred) -> Op {
        op_of(cred.clone())
    }

    /// The inode with this id, referenced. ESTALE if it is gone.
    pub fn inode(&self, id: InodeId) -> Result<Inode<'_>> {
        self.cache.get(id).ok_or(Errno::STALE)
    }

    /// Whether the driver says that calls on this inode may wait for something slow.
    pub fn may_block(&self, inode: &Inode<'_>) -> bool {
        self.sup(inode).is_ok_and(|s| s.features.may_block && s.driver.may_block(inode))
    }

    /// Whether a front end must call the VFS for each read and write: see
    /// [`Features::direct_io`](crate::Features::direct_io).
    pub fn direct_io(&self, inode: &Inode<'_>) -> bool {
        self.sup(inode).is_ok_and(|s| s.features.direct_io)
    }

    /// Whether the driver reports others' changes of this inode: see
    /// [`Features::watched`](crate::Features::watched).
    pub fn watched(&self, inode: &Inode<'_>) -> bool {
        self.sup(inode).is_ok_and(|s| s.features.watched)
    }

    /// Whether the driver calls another file system in the caller's name: see
    /// [`Features::passes_through`](crate::Features::passes_through).
    pub fn passes_through(&self, inode: &Inode<'_>) -> bool {
        self.sup(inode).is_ok_and(|s| s.features.passes_through)
    }

    /// Whether others may change the inode's file system, or one mounted inside it, without anyone reporting it.
    pub fn changes_unseen(&self, inode: &Inode<'_>) -> bool {
        self.sup(inode)
            .is_ok_and(|s| s.features.passes_through && (!s.features.watched || s.features.others_inside))
    }

    /// Whether a front end's kernel may read and write open files by itself: see
    /// [`Features::lends`](crate::Features::lends).
    pub fn lends(&self, inode: &Inode<'_>) -> bool {
        self.sup(inode).is_ok_and(|s| s.features.lends)
    }

    /// Whether an open file of this inode was lent: see [`FileLender::was_lent`](crate::driver::FileLender::was_lent).
    pub fn was_lent(&self, inode: &Inode<'_>) -> bool {
        let was_lent = |s: &SuperRef| s.driver.lender().is_some_and(|lender| lender.was_lent(inode));
        self.sup(inode).is_ok_and(|s| s.features.lends && was_lent(&s))
    }

    /// Whether a program may have mapped a lent file of this inode: see
    /// [`FileLender::may_be_mapped`](crate::driver::FileLender::may_be_mapped).
    pub fn may_be_mapped(&self, inode: &Inode<'_>) -> bool {
        let mapped = |s: &SuperRef| s.driver.lender().is_some_and(|lender| lender.may_be_mapped(inode));
        self.sup(inode).is_ok_and(|s| s.features.lends && mapped(&s))
    }

    /// Whether a front end's kernel may change an inode without a report: an open file of it was lent, and its driver
    /// keeps no watch on its own files. Then [`Vfs::look`] knows the attributes, and the cache may not.
    pub fn changes_unreported(&self, inode: &Inode<'_>) -> bool {
        let was_lent = |s: &SuperRef| s.driver.lender().is_some_and(|lender| lender.was_lent(inode));
        self.sup(inode).is_ok_and(|s| s.features.lends && s.features.resident && was_lent(&s))
    }

    /// Whether targets of symbolic links never change: see [`Features::fixed_links`](crate::Features::fixed_links).
    pub fn fixed_links(&self, inode: &Inode<'_>) -> bool {
        self.sup(inode).is_ok_and(|s| s.features.fixed_links)
    }

    /// Whether the inode's file system may know when files were made: see [`Features::births`](crate::Features::births).
    pub fn knows_births(&self, inode: &Inode<'_>) -> bool {
        self.sup(inode).is_ok_and(|s| s.features.births)
    }

    /// Whether the inode's file system keeps access control lists: see [`Features::acl`](crate::Features::acl).
    pub fn keeps_acls(&self, inode: &Inode<'_>) -> bool {
        self.sup(inode).is_ok_and(|s| s.features.acl)
    }

    /// Whether every file system lives entirely in the cache, the control directory excepted: see
    /// [`Features::resident`](crate::Features::resident).
    pub fn is_all_resident(&self) -> bool {
        self.mounts.is_all_resident()
    }

    /// Whether every answer of every file system holds for ever, the control directory excepted. Nobody changes
    /// such a file system except through this VFS, so no driver need be asked again.
    pub fn is_all_lasting(&self) -> bool {
        self.mounts.is_all_lasting()
    }

    /// The name of the driver of an inode's file system; "" once it is unmounted.
    pub fn driver_name(&self, inode: &Inode<'_>) -> &'static str {
        self.sup(inode).map_or("", |s| s.driver.name())
    }

    /// How long a front end may let its own kernel trust answers about this inode.
    pub fn ttl(&self, inode: &Inode<'_>) -> Ttl {
        self.sup(inode).map_or(Ttl::For(Duration::ZERO), |s| s.ttl())
    }

    /// Mounts `driver` on the directory `at`, on top of an earlier mount there.
    ///
    /// # Errors
    /// ENOTDIR if `at` or the driver's root is not a directory, ENOENT if `at` is removed, ENOMEM, and the driver's
    /// error if it cannot give its root.
    pub fn mount(&self, at: &Inode<'_>, driver: Arc<dyn Driver>) -> Result<()> {
        let op = Op { trusted: true, ..op_of(Cred::root()) };
        let at = self.cross(self.inode(at.id())?);
        require_dir(&at)?;
        let (sup, _root) = Super::new(&self.cache, &op, driver)?;
        // A directory with a reservation is not empty, so it cannot be removed before the mount shows. If the
        // removal comes first, the reservation fails. If the mount comes first, the removal, which checks the
        // mounts after it found the directory empty, gives up.
        let guard = self.cache.lock_name(&at, b".");
        let room = guard.reserve(Room::Name).map_err(|e| cache_errno(e, sup.features))?;
        self.mounts.insert(sup, Pin::new(&self.cache, at.clone()));
        drop(room);
        Ok(())
    }

    /// Puts the root of `driver` into the root directory under [`CONTROL_NAME`], for good. Lookups of that name
    /// find it, whatever the root's own driver has under the name. Listings show it only if `listed`. Nobody can
    /// make, rename or remove the name, and `..` leads back to the root. Walks into it take references; other walks
    /// are unaffected.
    ///
    /// # Errors
    /// EEXIST if there is one already, or if the root's driver is resident and has the name. ENOTDIR if the
    /// driver's root is not a directory, ENOMEM, and the driver's errors.
    pub fn mount_control(&self, driver: Arc<dyn Driver>, listed: bool) -> Result<()> {
        let op = Op { trusted: true, ..op_of(Cred::root()) };
        let root = self.root();
        let (sup, _control) = Super::new(&self.cache, &op, driver)?;
        // The name lock is held: nobody makes the name meanwhile, and no lookup of it is under way.
        let guard = self.cache.lock_name(&root, CONTROL_NAME);
        let resident = self.sup(&root)?.features.resident;
        if resident && matches!(guard.find(), Known::Hit(_)) {
            return Err(Errno::EXIST);
        }
        self.mounts.insert_control(sup, Pin::new(&self.cache, root.clone()), listed)?;
        drop(guard);
        if !resident {
            // Drops the driver's earlier answers about the name.
            self.cache.invalidate(&root, CONTROL_NAME);
        }
        Ok(())
    }

    /// Unmounts the file system whose root is `root`. Inodes that are open or referenced still give their
    /// attributes, but every call that needs the driver answers ESTALE. Open files work until they are released.
    ///
    /// # Errors
    /// EINVAL if `root` is not a mounted root, EBUSY if something is mounted inside.
    pub fn unmount(&self, root: &Inode<'_>) -> Result<()> {
        self.mounts.remove(root)?;
        self.files.forget(root.sb());
        Ok(())
    }

    /// How many file systems are mounted, the first one included.
    pub fn mount_count(&self) -> usize {
        self.mounts.count()
    }

    /// The superblock of an inode; ESTALE once it is unmounted.
    pub(crate) fn sup(&self, inode: &Inode<'_>) -> Result<SuperRef> {
        self.mounts.super_of(inode.sb())
    }
}

fn op_of(cred: Cred) -> Op {
    Op { cred, now: now(), trusted: false, powers: Default::default(), umask: 0 }
}

/// CLOCK_REALTIME.
pub(crate) fn now() -> Time {
    time_of(ClockId::Realtime)
}

/// CLOCK_REALTIME_COARSE: some milliseconds late, and a tenth of the cost.
#[cold]
pub(crate) fn now_coarse() -> Time {
    time_of(ClockId::RealtimeCoarse)
}

fn time_of(clock: ClockId) -> Time {
    let t = clock_gettime(clock);
    Time::new(t.tv_sec, u32::try_from(t.tv_nsec).unwrap_or(0))
}
