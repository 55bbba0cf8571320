//! New names: mknod, mkdir, symlink, link; and files that have no name yet.
//!
//! The order of errors is the kernel's: the directory cannot be searched, the name exists (before any check of
//! permissions), read-only, no write permission, the driver's errors. Memory is reserved before the driver is
//! asked, so that publishing cannot fail.

use uvfs_cache::Room;

use crate::driver::Inode;
use crate::driver_answer::{believed_ttl, cache_errno, fresh};
use crate::groups_and_capabilities::{Capability, Who};
use crate::mount_table::SuperRef;
use crate::ops::acl_checks::Inherited;
use crate::ops::driver_file::DriverFile;
use crate::ops::name_and_type::{check_name, is_dir, require_dir};
use crate::ops::open_read_write::Opening;
use crate::permission;
use crate::types::{Access, Attr, Errno, Make, Op, PATH_MAX, Perm, Result, Ttl, mode};
use crate::vfs::Vfs;

/// Mode bits without the type.
const BITS: u32 = 0o7777;

/// The node to make; owner and group follow from the caller and the directory.
#[derive(Clone, Copy)]
struct Wanted<'a> {
    mode: u32,
    rdev: u32,
    target: Option<&'a [u8]>,
    /// For a regular file that is opened in the same step.
    open: Option<Access>,
}

/// The node that was made, and its open file if one was wanted.
pub(crate) struct Made<'v> {
    pub inode: Inode<'v>,
    attr: Attr,
    pub file: Option<DriverFile>,
}

impl Vfs {
    /// Makes a regular file, device node, FIFO or socket. `mode` has type bits (none means a regular file) and
    /// permission bits. The operation's umask or the directory's default access control list clears some of them.
    ///
    /// # Errors
    /// EEXIST, EPERM (a directory; a device by anyone but root), EINVAL (a symbolic link or an unknown type),
    /// ENOTDIR, EACCES, EROFS, ENOENT (the directory is removed), ENOSPC or ENOMEM (the cache is full),
    /// ENAMETOOLONG, and the driver's errors.
    pub fn mknod<'v>(
        &'v self,
        op: &Op,
        dir: &Inode<'v>,
        name: &[u8],
        mode: u32,
        rdev: u32,
    ) -> Result<(Inode<'v>, Attr)> {
        let (fmt, rdev) = match mode & mode::S_IFMT {
            0 | mode::S_IFREG => (mode::S_IFREG, 0),
            mode::S_IFDIR => return Err(Errno::PERM),
            fmt @ (mode::S_IFCHR | mode::S_IFBLK) => (fmt, rdev),
            fmt @ (mode::S_IFIFO | mode::S_IFSOCK) => (fmt, 0),
            _ => return Err(Errno::INVAL),
        };
        let wanted = Wanted { mode: fmt | mode & BITS, rdev, target: None, open: None };
        self.make(op, dir, name, wanted).map(|made| (made.inode, made.attr))
    }

    /// Makes a regular file and opens it. The creator's access is not checked against the new mode.
    ///
    /// # Errors
    /// As [`Vfs::mknod`]. If the driver needs two steps, a file that was made and could not be opened (ENFILE, say)
    /// stays.
    pub fn create<'v>(
        &'v self,
        op: &Op,
        dir: &Inode<'v>,
        name: &[u8],
        mode: u32,
        access: Access,
    ) -> Result<(Inode<'v>, Attr, u64)> {
        let made = self.make_file(op, dir, name, mode, access)?;
        let fh = self.handle_of(&made.inode, made.file);
        Ok((made.inode, made.attr, fh))
    }

    /// [`Vfs::create`] for an owner of its own.
    pub(crate) fn make_file<'v>(
        &'v self,
        op: &Op,
        dir: &Inode<'v>,
        name: &[u8],
        mode: u32,
        access: Access,
    ) -> Result<Made<'v>> {
        let mode = mode::S_IFREG | mode & BITS;
        self.make(op, dir, name, Wanted { mode, rdev: 0, target: None, open: Some(access) })
    }

    /// Makes a directory. Errors as [`Vfs::mknod`], and EMLINK from drivers.
    pub fn mkdir<'v>(
        &'v self,
        op: &Op,
        dir: &Inode<'v>,
        name: &[u8],
        mode: u32,
    ) -> Result<(Inode<'v>, Attr)> {
        // Set-id bits of a directory come from its parent, not from its creator.
        let mode = mode::S_IFDIR | mode & (0o777 | mode::S_ISVTX);
        let wanted = Wanted { mode, rdev: 0, target: None, open: None };
        self.make(op, dir, name, wanted).map(|made| (made.inode, made.attr))
    }

    /// Makes a symbolic link. ENOENT for an empty target, ENAMETOOLONG for one that is longer than the longest
    /// path; other errors as [`Vfs::mknod`].
    pub fn symlink<'v>(
        &'v self,
        op: &Op,
        dir: &Inode<'v>,
        name: &[u8],
        target: &[u8],
    ) -> Result<(Inode<'v>, Attr)> {
        if target.is_empty() {
            return Err(Errno::NOENT);
        }
        if target.len() > PATH_MAX {
            return Err(Errno::NAMETOOLONG);
        }
        let wanted = Wanted { mode: mode::S_IFLNK | 0o777, rdev: 0, target: Some(target), open: None };
        self.make(op, dir, name, wanted).map(|made| (made.inode, made.attr))
    }

    fn make<'v>(&'v self, op: &Op, dir: &Inode<'v>, name: &[u8], wanted: Wanted<'_>) -> Result<Made<'v>> {
        self.search(op, dir)?;
        check_new(name)?;
        self.cache.prefetch(dir, name);
        let sup = self.sup(dir)?;
        let guard = self.cache.lock_name(dir, name);
        if self.find(op, &sup, &guard)?.is_some() {
            return Err(Errno::EXIST);
        }
        sup.writable()?;
        let parent = self.may_add(op, dir)?;
        let fmt = wanted.mode & mode::S_IFMT;
        // The character device 0/0 (a whiteout) stands for no real device and needs no privilege.
        let is_device = fmt == mode::S_IFBLK || fmt == mode::S_IFCHR && wanted.rdev != 0;
        if is_device && !op.trusted && !op.has(Capability::Mknod) {
            return Err(Errno::PERM);
        }
        let (mode, gid) = inherit(op, parent, wanted.mode);
        op.certain()?;
        let Inherited { mode, acl, default } = self.inherited(op, &sup, dir, mode)?;
        let what = if fmt == mode::S_IFDIR { Room::Dir } else { Room::Node };
        let room = guard.reserve(what).map_err(|e| cache_errno(e, sup.features))?;
        let (uid, acl, default_acl) = (op.cred.uid, acl.as_ref(), default.as_ref());
        let Wanted { rdev, target, open, .. } = wanted;
        let make = Make { mode, uid, gid, rdev, target, acl, default_acl };
        let (new, handle) = match open {
            Some(access) => sup.driver.create_open(op, dir, name, &make, access)?,
            None => (sup.driver.create(op, dir, name, &make)?, None),
        };
        let inode = guard.create(room, &fresh(sup.features, &new));
        // The driver's own open may wait long, and other callers may want the name.
        drop(guard);
        if what == Room::Dir {
            self.learn_if_empty(op, &sup, &inode);
        }
        let file = match (open, handle) {
            (Some(access), Some(handle)) => Some(self.driver_file(&sup, access, handle)),
            (Some(access), None) => self.open_permitted(op, &inode, access, Opening::default())?,
            (None, _) => None,
        };
        Ok(Made { inode, attr: new.attr, file })
    }

    /// A new directory of a watched file system is empty, unless the host or others have made something in it. If it
    /// is, the cache knows all its names from then on. So the driver is not asked for each name before it is made.
    /// This is a listing: a name that others make meanwhile is in it, or is reported after its beginning.
    fn learn_if_empty(&self, op: &Op, sup: &SuperRef, dir: &Inode<'_>) {
        if !sup.features.passes_through {
            return;
        }
        let scan = self.cache.begin_scan(dir);
        // After the scan has read the epoch. If the watch has ended before, this is a time. If it ends later, the epoch
        // moves, and the listing expires.
        if sup.driver.ttl() == Ttl::Forever && sup.driver.is_empty(op, dir) == Ok(true) {
            scan.complete();
        }
    }

    /// Makes a regular file without a name (O_TMPFILE) on the file system of `dir`, and opens it whatever its mode.
    /// It ends when it is closed and forgotten, unless it gets a name before, which `linkable` allows. Owner, group
    /// and permissions are those of a file made in `dir`; `dir` does not change.
    ///
    /// # Errors
    /// ENOTDIR, EROFS, EACCES (the caller may not add a name to `dir`), ENOSPC or ENOMEM (the cache is full), and
    /// the driver's errors: EOPNOTSUPP if it has no such files.
    pub fn tmpfile<'v>(
        &'v self,
        op: &Op,
        dir: &Inode<'v>,
        mode: u32,
        access: Access,
        linkable: bool,
    ) -> Result<(Inode<'v>, Attr, u64)> {
        require_dir(dir)?;
        let sup = self.sup(dir)?;
        sup.writable()?;
        let attr = self.attr_now(op, dir)?;
        // Not `may_add`: a removed directory still belongs to a file system.
        self.require(op, dir, &attr, Access::WRITE | Access::EXEC)?;
        let (mode, gid) = inherit(op, (&attr).into(), mode::S_IFREG | mode & BITS);
        op.certain()?;
        let Inherited { mode, acl, .. } = self.inherited(op, &sup, dir, mode)?;
        let asked = self.cache.ask(sup.id);
        let room = self.cache.reserve_nameless(sup.id).map_err(|e| cache_errno(e, sup.features))?;
        let (uid, acl) = (op.cred.uid, acl.as_ref());
        let make = Make { mode, uid, gid, rdev: 0, target: None, acl, default_acl: None };
        let (new, handle) = sup.driver.tmpfile(op, dir, &make, access, linkable)?;
        let inode = self.cache.create_nameless(room, asked, &fresh(sup.features, &new));
        let file = match handle {
            Some(handle) => Some(self.driver_file(&sup, access, handle)),
            None => self.open_permitted(op, &inode, access, Opening::default())?,
        };
        let fh = self.handle_of(&inode, file);
        Ok((inode, new.attr, fh))
    }

    /// Gives `inode` one more name.
    ///
    /// # Errors
    /// EEXIST, EROFS, EXDEV (another file system), EPERM (a directory, or another's file under
    /// `protected_hardlinks`), EACCES, ENOENT (see below), EMLINK, ENOSPC or ENOMEM, and the driver's errors.
    /// ENOENT: the directory is removed, or the inode has no name left, or it never had one and may not get one.
    pub fn link<'v>(&'v self, op: &Op, inode: &Inode<'v>, dir: &Inode<'v>, name: &[u8]) -> Result<Attr> {
        self.search(op, dir)?;
        check_new(name)?;
        let sup = self.sup(dir)?;
        let guard = self.cache.lock_name(dir, name);
        if self.find(op, &sup, &guard)?.is_some() {
            return Err(Errno::EXIST);
        }
        sup.writable()?;
        if inode.sb() != dir.sb() {
            return Err(Errno::XDEV);
        }
        let attr = self.attr_now(op, inode)?;
        let usable = || self.require(op, inode, &attr, Access::READ | Access::WRITE).is_ok();
        permission::may_link(self.protected, op, &attr, usable)?;
        self.may_add(op, dir)?;
        if is_dir(inode) {
            return Err(Errno::PERM);
        }
        let room = guard.reserve(Room::Name).map_err(|e| cache_errno(e, sup.features))?;
        // The inode lock is held. So the last name cannot go between the look at the count and the driver's
        // increment. If it went before, there is nothing left to link to.
        let _locked = self.inode_locks.take(inode.id());
        match inode.attr().nlink {
            0 if !sup.driver.is_linkable(inode) => return Err(Errno::NOENT),
            u32::MAX => return Err(Errno::MLINK),
            _ => {}
        }
        sup.driver.link(op, inode, dir, name)?;
        guard.link(room, inode, believed_ttl(sup.features, sup.ttl()));
        Ok(inode.attr())
    }
}

/// A new name cannot be one that every directory has.
fn check_new(name: &[u8]) -> Result<()> {
    match name {
        b"." | b".." => Err(Errno::EXIST),
        _ => check_name(name),
    }
}

/// Mode and group of a new node in `parent`.
///
/// In a set-group-id directory, new nodes inherit the group, and new directories inherit the bit. A set-group-id
/// executable for a group without the caller is made without the bit. Trusted callers have applied that last rule
/// themselves: only they know the supplementary groups.
pub(super) fn inherit(op: &Op, parent: Perm, mode: u32) -> (u32, u32) {
    const SGID_RUN: u32 = mode::S_ISGID | 0o010;
    if parent.mode & mode::S_ISGID == 0 {
        return (mode, op.cred.gid);
    }
    let mode = if mode & mode::S_IFMT == mode::S_IFDIR {
        mode | mode::S_ISGID
    } else if mode & SGID_RUN == SGID_RUN && !op.trusted && !permission::keeps_sgid(op, parent.gid) {
        mode & !mode::S_ISGID
    } else {
        mode
    };
    (mode, parent.gid)
}
