//! The [`Vfs`]: a cache, the file systems mounted in it, and the files that are open.
//!
//! Operations are methods of `Vfs` and stand in `ops/` (on inodes) and `namei/` (on paths);
//! here is what they share: how it is made, and the door from an inode to its superblock.
//! Nothing here is locked: the cache, the mount table and the table of open files protect
//! themselves. Any thread may call anything.

use std::sync::Arc;
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};
use uvfs_cache::{Cache, InodeId, Known, Room};

use crate::driver::{Driver, Inode};
use crate::mount::{CONTROL_NAME, Mounts, Super, SuperRef};
use crate::namei::who::Numbers;
use crate::ops::file::Files;
use crate::ops::turns::Turns;
use crate::ops::{cache_errno, require_dir};
use crate::permission::Protected;
use crate::pin::Pin;
use crate::types::{Cred, Errno, Op, Result, Time, Ttl};

/// How a [`Vfs`] is set up.
#[derive(Clone, Debug, Default)]
pub struct VfsConfig {
    /// Limits of the cache.
    pub cache: uvfs_cache::Config,
    /// The `fs.protected_*` rules.
    pub protected: Protected,
}

/// A tree of mounted file systems over one cache. Shared as an `Arc`; every method may be
/// called from any thread.
pub struct Vfs {
    // Open files first: they are dropped first, and hold inodes of the superblocks after them.
    pub(crate) files: Files,
    pub(crate) turns: Turns,
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
    /// ENOMEM where the cache's memory cannot be reserved, ENOTDIR where the driver's root is no
    /// directory, and whatever the driver answers when asked for it.
    pub fn new(config: VfsConfig, root_driver: Arc<dyn Driver>) -> Result<Arc<Self>> {
        let cache = Cache::new(config.cache).map_err(|_| Errno::NOMEM)?;
        let op = Op { trusted: true, ..op_of(Cred::root()) };
        let (sup, root) = Super::new(&cache, &op, root_driver)?;
        let root = Pin::new(&cache, root);
        Ok(Arc::new(Self {
            files: Files::new(),
            turns: Turns::new(),
            who: Numbers::default(),
            protected: config.protected,
            root,
            mounts: Mounts::new(sup),
            cache,
        }))
    }

    /// The cache, for its counters and for who knows of changes from elsewhere.
    pub fn cache(&self) -> &Cache {
        &self.cache
    }

    /// The root directory: of the file system mounted last on `/`.
    pub fn root(&self) -> Inode<'_> {
        self.cross(self.root.inode().clone())
    }

    /// An operation of `cred`, now, whose permissions are checked here; no umask.
    pub fn op(&self, cred: &Cred) -> Op {
        op_of(cred.clone())
    }

    /// The inode with this id, referenced. ESTALE where it is gone.
    pub fn inode(&self, id: InodeId) -> Result<Inode<'_>> {
        self.cache.get(id).ok_or(Errno::STALE)
    }

    /// Whether calls on this inode may wait for something slow: its driver says so.
    pub fn may_block(&self, inode: &Inode<'_>) -> bool {
        self.sup(inode).is_ok_and(|s| s.features.may_block && s.driver.may_block(inode))
    }

    /// Whether a front end must come here for each read and write: see
    /// [`Features::direct_io`](crate::Features::direct_io).
    pub fn direct_io(&self, inode: &Inode<'_>) -> bool {
        self.sup(inode).is_ok_and(|s| s.features.direct_io)
    }

    /// Whether changes of this inode by others are told of: see [`Features::watched`](crate::Features::watched).
    pub fn watched(&self, inode: &Inode<'_>) -> bool {
        self.sup(inode).is_ok_and(|s| s.features.watched)
    }

    /// Whether calls are made on another file system in the caller's name: see
    /// [`Features::passes_through`](crate::Features::passes_through).
    pub fn passes_through(&self, inode: &Inode<'_>) -> bool {
        self.sup(inode).is_ok_and(|s| s.features.passes_through)
    }

    /// Whether others may change the inode's file system, or one mounted inside, and nobody tells of it.
    pub fn changes_unseen(&self, inode: &Inode<'_>) -> bool {
        self.sup(inode)
            .is_ok_and(|s| s.features.passes_through && (!s.features.watched || s.features.others_inside))
    }

    /// Whether a front end's kernel may read and write open files by itself: see [`Features::lends`](crate::Features::lends).
    pub fn lends(&self, inode: &Inode<'_>) -> bool {
        self.sup(inode).is_ok_and(|s| s.features.lends)
    }

    /// Whether it has done so with this one: see [`Driver::was_lent`].
    pub fn was_lent(&self, inode: &Inode<'_>) -> bool {
        self.sup(inode).is_ok_and(|s| s.features.lends && s.driver.was_lent(inode))
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

    /// Whether the cache is all that there is of each file system, the control directory excepted: see
    /// [`Features::resident`](crate::Features::resident).
    pub fn is_all_resident(&self) -> bool {
        self.mounts.is_all_resident()
    }

    /// Whether what is said of any file system holds for ever, the control directory excepted: nobody changes it but through this
    /// VFS, and it need not be asked for again.
    pub fn is_all_lasting(&self) -> bool {
        self.mounts.is_all_lasting()
    }

    /// How long a front end may let its own kernel believe what it is told of this inode.
    pub fn ttl(&self, inode: &Inode<'_>) -> Ttl {
        self.sup(inode).map_or(Ttl::For(Duration::ZERO), |s| s.ttl())
    }

    /// Mounts `driver` on the directory `at` (on top of what is mounted there already).
    ///
    /// # Errors
    /// ENOTDIR where `at` or the driver's root is no directory, ENOENT where `at` is removed,
    /// ENOMEM, and what the driver answers when asked for its root.
    pub fn mount(&self, at: &Inode<'_>, driver: Arc<dyn Driver>) -> Result<()> {
        let op = Op { trusted: true, ..op_of(Cred::root()) };
        let at = self.cross(self.inode(at.id())?);
        require_dir(&at)?;
        let (sup, _root) = Super::new(&self.cache, &op, driver)?;
        // A directory with room reserved is not empty, so it cannot be removed before the mount
        // shows. If the removal comes first, the reservation fails; if the mount does, the
        // removal looks at the mounts after it has seen the directory empty, and gives up.
        let guard = self.cache.lock_name(&at, b".");
        let room = guard.reserve(Room::Name).map_err(|e| cache_errno(e, sup.features))?;
        self.mounts.insert(sup, Pin::new(&self.cache, at.clone()));
        drop(room);
        Ok(())
    }

    /// Puts the root of `driver` into the root directory under [`CONTROL_NAME`], for
    /// good: found by that name, listed only where `listed`, whatever the root's own driver has of
    /// that name. The name cannot be made, renamed or removed, and `..` leads back to the root. Its
    /// walks take references; all others are what they were.
    ///
    /// # Errors
    /// EEXIST where there is one already, or where the root's driver is resident and has the name;
    /// ENOTDIR where the driver's root is no directory, ENOMEM, and what the driver answers.
    pub fn mount_control(&self, driver: Arc<dyn Driver>, listed: bool) -> Result<()> {
        let op = Op { trusted: true, ..op_of(Cred::root()) };
        let root = self.root();
        let (sup, _control) = Super::new(&self.cache, &op, driver)?;
        // With the right to the name: nobody makes it meanwhile, and no answer about it is awaited.
        let guard = self.cache.lock_name(&root, CONTROL_NAME);
        let resident = self.sup(&root)?.features.resident;
        if resident && matches!(guard.find(), Known::Hit(_)) {
            return Err(Errno::EXIST);
        }
        self.mounts.insert_control(sup, Pin::new(&self.cache, root.clone()), listed)?;
        drop(guard);
        if !resident {
            // What the driver said of the name before.
            self.cache.invalidate(&root, CONTROL_NAME);
        }
        Ok(())
    }

    /// Takes the file system away whose root `root` is. What is open or referenced stays
    /// usable for reading of attributes only: every call that needs the driver says ESTALE, but
    /// open files work until they are released.
    ///
    /// # Errors
    /// EINVAL where `root` is no mounted root, EBUSY where something is mounted inside.
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
    let t = clock_gettime(ClockId::Realtime);
    Time::new(t.tv_sec, u32::try_from(t.tv_nsec).unwrap_or(0))
}
