//! Operations on inodes. A front end calls them once it has turned a path into a directory and a name, and path
//! operations end in them.
//!
//! Each takes the name lock, looks the name up, checks, asks the driver, and publishes. Publishing cannot fail,
//! because memory was reserved before the driver was asked. The order of checks is the kernel's, since errors are
//! compared with it. Order of locks: rename mutex of the superblock, name locks, one inode lock ([`inode_locks`]).
//! No lock of the cache is held while a driver runs. No operation here knows of paths.
//!
//! | file | contents |
//! |---|---|
//! | `lookup` | LOOKUP, getattr, access, readlink, statfs |
//! | `create` | mknod, mkdir, symlink, link |
//! | `remove` | unlink, rmdir |
//! | `rename` | rename and exchange |
//! | `setattr` | owner, group, mode, times, size |
//! | `xattr` | extended attributes |
//! | `acl_checks` | access control lists in operations |
//! | `readdir` | listings |
//! | `open_read_write` | opening a file; reading and writing by handle |
//! | `file_io` | reading and writing an open file, whoever owns it |
//! | `driver_file` | the driver's side of an open file |
//! | `handle_table` | the table of handles for front ends |
//! | `inode_locks` | the inode lock |
//! | `control_dir` | the name `.uvfs` |
//! | `checks` | checks that operations share |

pub(crate) mod acl_checks;
pub(crate) mod checks;
pub(crate) mod control_dir;
pub(crate) mod create;
pub(crate) mod driver_file;
pub(crate) mod file_io;
pub(crate) mod handle_table;
pub(crate) mod inode_locks;
pub(crate) mod lookup;
pub(crate) mod open_read_write;
pub(crate) mod readdir;
pub(crate) mod remove;
pub(crate) mod rename;
pub(crate) mod setattr;
pub(crate) mod xattr;

use uvfs_cache::machinery::Known;
use uvfs_cache::{CacheError, InodeId, NameGuard};

use crate::counters;
use crate::driver::Inode;
use crate::driver_answer::{believed_ttl, cache_errno, fresh};
use crate::groups_and_capabilities::Who;
use crate::mount_table::SuperRef;
use crate::ops::checks::require_dir;
use crate::permission;
use crate::types::{Access, Answer, Attr, Errno, NewInode, Op, Perm, Result, mode};
use crate::vfs::Vfs;

impl Vfs {
    /// The attributes, fetched again if their TTL has passed.
    pub(crate) fn attr_now(&self, op: &Op, inode: &Inode<'_>) -> Result<Attr> {
        if !inode.expired() {
            return Ok(inode.attr());
        }
        let sup = self.sup(inode)?;
        let asked = inode.revision();
        let attr = sup.driver.getattr(op, inode)?;
        if attr.fmt() != inode.fmt() || attr.ino != inode.ino() {
            return Err(Errno::STALE);
        }
        // A late answer is returned too: it does not overwrite changes made meanwhile.
        inode.refresh_unless_changed(asked, &attr, believed_ttl(sup.features, sup.ttl()));
        Ok(attr)
    }

    /// The attributes as the driver sees them now, whatever the cache has. For a file that is [lent](Vfs::lend) for
    /// writing, whose changes nobody reports. The cache stores nothing of the answer.
    ///
    /// # Errors
    /// The driver's errors.
    pub fn look(&self, op: &Op, inode: &Inode<'_>) -> Result<Attr> {
        self.sup(inode)?.driver.getattr(op, inode)
    }

    /// The permission `want` for an inode: EROFS before EACCES.
    pub(crate) fn permit(&self, op: &Op, inode: &Inode<'_>, want: Access) -> Result<()> {
        if want.contains(Access::WRITE)
            && matches!(inode.fmt(), mode::S_IFREG | mode::S_IFDIR | mode::S_IFLNK)
        {
            self.sup(inode)?.writable()?;
        }
        if op.trusted {
            return Ok(());
        }
        self.require(op, inode, &self.attr_now(op, inode)?, want)
    }

    /// The permission to look names up in a directory; ENOTDIR if it is not a directory.
    pub(crate) fn search(&self, op: &Op, dir: &Inode<'_>) -> Result<()> {
        require_dir(dir)?;
        if op.trusted || op.is_root() {
            return Ok(());
        }
        self.require(op, dir, &self.attr_now(op, dir)?, Access::EXEC)
    }

    /// The permission to add a name to a directory, and the attributes that granted it; ENOENT if the directory is
    /// removed.
    pub(crate) fn may_add(&self, op: &Op, dir: &Inode<'_>) -> Result<Perm> {
        let want = Access::WRITE | Access::EXEC;
        if dir.is_dead() {
            return Err(Errno::NOENT);
        }
        if !dir.expired() {
            let perm = dir.perm();
            // If the caller's rights must be asked for, the user id alone does not decide.
            if op.trusted || op.is_known() && permission::granted(&op.cred, perm, want) {
                return Ok(perm);
            }
        }
        let attr = self.attr_now(op, dir)?;
        self.require(op, dir, &attr, want)?;
        Ok((&attr).into())
    }

    /// The permission to remove the name of `victim` from `dir`.
    pub(crate) fn may_remove(&self, op: &Op, dir: &Inode<'_>, victim: &Inode<'_>) -> Result<()> {
        // Root may do so in any directory, sticky or not.
        if op.trusted || (op.is_root() && !dir.expired()) {
            return Ok(());
        }
        let attr = self.attr_now(op, dir)?;
        self.require(op, dir, &attr, Access::WRITE | Access::EXEC)?;
        if attr.mode & mode::S_ISVTX == 0 {
            return Ok(());
        }
        permission::require_unstuck(op, &attr, &self.attr_now(op, victim)?)
    }

    /// The inode that a locked name leads to; the driver is asked if the cache does not know.
    pub(crate) fn find<'v>(
        &'v self,
        op: &Op,
        sup: &SuperRef,
        guard: &NameGuard<'v>,
    ) -> Result<Option<Inode<'v>>> {
        if let Some(root) = self.control_at(guard.dir(), guard.name()) {
            return self.inode(root).map(Some);
        }
        match guard.find() {
            Known::Hit(inode) => return Ok(Some(inode)),
            Known::Negative => return Ok(None),
            Known::Unknown if sup.features.resident => return Ok(None),
            Known::Unknown => {}
        }
        counters::miss();
        match sup.driver.lookup(op, guard.dir(), guard.name()) {
            Ok(Answer::Found(new)) => self.publish(sup, guard, &new).map(Some),
            Ok(Answer::Absent(ttl)) => {
                guard.note_absent(believed_ttl(sup.features, ttl));
                Ok(None)
            }
            Err(Errno::NOENT) => Ok(None),
            Err(errno) => Err(errno),
        }
    }

    /// Makes the inode that a driver found. If there is no memory even after eviction, the driver is told that its
    /// value will not be kept.
    pub(crate) fn publish<'v>(
        &'v self,
        sup: &SuperRef,
        guard: &NameGuard<'v>,
        new: &NewInode,
    ) -> Result<Inode<'v>> {
        self.told(sup, new, guard.note_found(&fresh(sup.features, new)))
    }

    /// Tells the driver whether the cache kept its answer.
    fn told<'v>(
        &self,
        sup: &SuperRef,
        new: &NewInode,
        found: std::result::Result<Inode<'v>, CacheError>,
    ) -> Result<Inode<'v>> {
        match found {
            Ok(inode) => {
                sup.driver.published(&inode, new.private);
                Ok(inode)
            }
            Err(e) => {
                sup.driver.evict(&new.attr, new.private);
                Err(cache_errno(e, sup.features))
            }
        }
    }

    /// Goes from a mount point to the root mounted there.
    pub(crate) fn cross<'v>(&'v self, inode: Inode<'v>) -> Inode<'v> {
        match self.mounts.mounted_on(inode.id()).and_then(|root| self.cache.get(root)) {
            Some(root) => root,
            None => inode,
        }
    }

    /// `..` of a directory. Leaves the mount if it is a mounted root, and stays at `root`. ENOENT if the directory
    /// is removed.
    pub(crate) fn parent<'v>(&'v self, dir: &Inode<'v>, root: InodeId) -> Result<Inode<'v>> {
        if dir.id() == root {
            return Ok(dir.clone());
        }
        if let Some(up) = self.mounts.hidden_in(dir.id()) {
            return Ok(self.cross(self.inode(up)?));
        }
        let mut below = dir.clone();
        // Mounts may be stacked, so this goes one mount at a time: `root` may be in the middle.
        while let Some(point) = self.mounts.point_of(below.id()) {
            if point == root {
                return Ok(dir.clone());
            }
            below = self.inode(point)?;
        }
        let up = self.cache.parent_of(&below).ok_or(Errno::NOENT)?;
        Ok(self.cross(up))
    }
}
