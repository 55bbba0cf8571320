//! Rename: both name locks, one look at both names, the checks in the kernel's order, the driver, and one change of
//! the cache.
//!
//! If a directory moves to another parent, the superblock's rename mutex comes first. Then no other move can make
//! the new parent a descendant of the moving directory. Only the name locks tell whether a directory moves. So the
//! first attempt goes without the mutex; if a directory turns up, all locks are released and taken again in order.
//! Renames of files never take the mutex.

use uvfs_cache::Room;
use uvfs_cache::machinery::NameGuard;

use crate::driver::{Inode, Rename};
use crate::driver_answer::{cache_errno, fresh};
use crate::mount_table::SuperRef;
use crate::ops::create::inherit;
use crate::ops::name_and_type::{check_name, is_dir};
use crate::types::{Access, Errno, Make, Op, RenameFlags, Result, mode};
use crate::vfs::Vfs;

/// One side of a rename.
#[derive(Clone, Copy)]
pub(crate) struct Side<'a, 'v> {
    /// The directory.
    pub(crate) dir: &'a Inode<'v>,
    /// The name in it.
    pub(crate) name: &'a [u8],
    /// Whether the path had a trailing slash, which only a directory's may.
    pub(crate) slash: bool,
}

/// The arguments of a rename.
#[derive(Clone, Copy)]
struct Request<'a, 'v> {
    op: &'a Op,
    from: Side<'a, 'v>,
    to: Side<'a, 'v>,
    flags: RenameFlags,
}

/// The outcome of an attempt.
enum Attempt {
    Done,
    /// A directory moves: the rename mutex is needed first.
    NeedsMutex,
}

impl<'v> Request<'_, 'v> {
    fn exchange(&self) -> bool {
        self.flags.contains(RenameFlags::EXCHANGE)
    }

    /// Whether the parent changes.
    fn moves(&self) -> bool {
        self.from.dir.id() != self.to.dir.id()
    }

    /// A trailing slash on either name requires a directory: as the source, and in an exchange also as the target.
    fn check_slashes(&self, source: &Inode<'v>, target: Option<&Inode<'v>>) -> Result<()> {
        let swapped_file = target.filter(|t| self.exchange() && !is_dir(t)).is_some();
        if swapped_file && self.to.slash {
            return Err(Errno::NOTDIR);
        }
        if !is_dir(source) && (self.from.slash || (self.to.slash && !self.exchange())) {
            return Err(Errno::NOTDIR);
        }
        Ok(())
    }
}

impl Vfs {
    /// Renames; replaces the inode of the new name unless `flags` say otherwise.
    ///
    /// # Errors
    /// ENOENT, EEXIST (NOREPLACE), EINVAL (flags that exclude each other; a directory into itself; no whiteouts), EXDEV, EBUSY (`.`, `..`, mount
    /// points), ENOTDIR, EISDIR, ENOTEMPTY, EACCES, EPERM (sticky), EROFS, ENOSPC or ENOMEM, and the driver's
    /// errors.
    pub fn rename<'v>(
        &'v self,
        op: &Op,
        from_dir: &Inode<'v>,
        from_name: &[u8],
        to_dir: &Inode<'v>,
        to_name: &[u8],
        flags: RenameFlags,
    ) -> Result<()> {
        let from = Side { dir: from_dir, name: from_name, slash: false };
        self.rename_path(op, from, Side { dir: to_dir, name: to_name, slash: false }, flags)
    }

    /// [`Vfs::rename`] for paths that may have trailing slashes.
    pub(crate) fn rename_path<'v>(
        &'v self,
        op: &Op,
        from: Side<'_, 'v>,
        to: Side<'_, 'v>,
        flags: RenameFlags,
    ) -> Result<()> {
        flags.check()?;
        self.search(op, from.dir)?;
        self.search(op, to.dir)?;
        if from.dir.sb() != to.dir.sb() {
            return Err(Errno::XDEV);
        }
        if matches!(from.name, b"." | b"..") {
            return Err(Errno::BUSY);
        }
        if matches!(to.name, b"." | b"..") {
            let exclusive = flags.contains(RenameFlags::NOREPLACE);
            return Err(if exclusive { Errno::EXIST } else { Errno::BUSY });
        }
        let sup = self.sup(from.dir)?;
        sup.writable()?;
        check_name(from.name)?;
        let rq = Request { op, from, to, flags };
        if let Err(errno) = check_name(to.name) {
            // A missing old name is reported first.
            return self.one_name(&sup, rq).and(Err(errno));
        }
        if !rq.moves() && from.name == to.name {
            return self.rename_to_itself(&sup, rq);
        }
        match self.attempt_rename(&sup, rq, false)? {
            Attempt::Done => Ok(()),
            Attempt::NeedsMutex => {
                let _mutex = self.cache.lock_renames(sup.id);
                self.attempt_rename(&sup, rq, true).map(|_| ())
            }
        }
    }

    /// The inode of the old name alone.
    fn one_name<'v>(&'v self, sup: &SuperRef, rq: Request<'_, 'v>) -> Result<Inode<'v>> {
        let guard = self.cache.lock_name(rq.from.dir, rq.from.name);
        self.find(rq.op, sup, &guard)?.ok_or(Errno::NOENT)
    }

    /// Both sides are one name, whose lock cannot be taken twice. Nothing happens if it exists.
    fn rename_to_itself<'v>(&'v self, sup: &SuperRef, rq: Request<'_, 'v>) -> Result<()> {
        let source = self.one_name(sup, rq)?;
        if rq.flags.contains(RenameFlags::NOREPLACE) {
            return Err(Errno::EXIST);
        }
        let slash = rq.from.slash || rq.to.slash;
        if slash && !is_dir(&source) { Err(Errno::NOTDIR) } else { Ok(()) }
    }

    fn attempt_rename<'v>(&'v self, sup: &SuperRef, rq: Request<'_, 'v>, mutex: bool) -> Result<Attempt> {
        let (from, to) = self.cache.lock_names((rq.from.dir, rq.from.name), (rq.to.dir, rq.to.name));
        let source = self.find(rq.op, sup, &from)?.ok_or(Errno::NOENT)?;
        let target = self.find(rq.op, sup, &to)?;
        let target = target.as_ref();
        match target {
            Some(_) if rq.flags.contains(RenameFlags::NOREPLACE) => return Err(Errno::EXIST),
            None if rq.exchange() => return Err(Errno::NOENT),
            _ => {}
        }
        rq.check_slashes(&source, target)?;
        if rq.moves() && (is_dir(&source) || target.is_some_and(is_dir)) {
            if !mutex {
                return Ok(Attempt::NeedsMutex);
            }
            self.refuse_loops(rq, &source, target)?;
        }
        if target.is_some_and(|t| t.id() == source.id()) {
            return Ok(Attempt::Done);
        }
        self.check_rename(rq, &source, target)?;
        self.do_rename(sup, rq, (&from, &to), &source, target)?;
        Ok(Attempt::Done)
    }

    /// A directory cannot move below itself, nor replace one of its ancestors.
    fn refuse_loops(
        &self,
        rq: Request<'_, '_>,
        source: &Inode<'_>,
        target: Option<&Inode<'_>>,
    ) -> Result<()> {
        if is_dir(source) && self.cache.is_below(rq.to.dir, source) {
            return Err(Errno::INVAL);
        }
        match target {
            Some(target) if is_dir(target) && self.cache.is_below(rq.from.dir, target) => {
                Err(if rq.exchange() { Errno::INVAL } else { Errno::NOTEMPTY })
            }
            _ => Ok(()),
        }
    }

    /// Permissions, types and mount points.
    fn check_rename(
        &self,
        rq: Request<'_, '_>,
        source: &Inode<'_>,
        target: Option<&Inode<'_>>,
    ) -> Result<()> {
        self.may_remove(rq.op, rq.from.dir, source)?;
        match target {
            None => {
                self.may_add(rq.op, rq.to.dir)?;
            }
            Some(target) => {
                self.may_remove(rq.op, rq.to.dir, target)?;
                if !rq.exchange() {
                    match (is_dir(source), is_dir(target)) {
                        (true, false) => return Err(Errno::NOTDIR),
                        (false, true) => return Err(Errno::ISDIR),
                        _ => {}
                    }
                }
            }
        }
        if rq.moves() {
            // A move to another parent writes the directory's `..`.
            let swapped = target.filter(|_| rq.exchange());
            for dir in [Some(source), swapped].into_iter().flatten().filter(|i| is_dir(i)) {
                self.permit(rq.op, dir, Access::WRITE)?;
            }
        }
        let is_point = |inode: &Inode<'_>| self.mounts.is_busy(inode.id());
        if is_point(source) || target.is_some_and(is_point) {
            return Err(Errno::BUSY);
        }
        Ok(())
    }

    fn do_rename<'v>(
        &'v self,
        sup: &SuperRef,
        rq: Request<'_, 'v>,
        (from, to): (&NameGuard<'v>, &NameGuard<'v>),
        source: &Inode<'v>,
        target: Option<&Inode<'v>>,
    ) -> Result<()> {
        let change = Rename {
            from_dir: rq.from.dir,
            from_name: rq.from.name,
            inode: source,
            to_dir: rq.to.dir,
            to_name: rq.to.name,
            target,
            exchange: rq.exchange(),
        };
        if rq.exchange() {
            sup.driver.rename(rq.op, &change)?;
            self.cache.exchange(from, to);
            return Ok(());
        }
        let room = to.reserve(Room::Name).map_err(|e| cache_errno(e, sup.features))?;
        let death = target.filter(|t| is_dir(t)).map(|t| self.begin_death(rq.op, sup, t)).transpose()?;
        // A replaced file loses a name, so its inode lock is held, as in unlink.
        let locked = target.filter(|t| !is_dir(t)).map(|t| self.inode_locks.take(t.id()));
        if rq.flags.contains(RenameFlags::WHITEOUT) {
            return self.leave_whiteout(sup, (rq, &change), (from, to), |cache| {
                cache.rename(from, to, room, death);
                drop(locked);
            });
        }
        sup.driver.rename(rq.op, &change)?;
        self.cache.rename(from, to, room, death);
        drop(locked);
        Ok(())
    }

    /// Renames, and publishes what took the old name, or has it looked up. `publish` is the rename in the cache: for a moment
    /// after it a lookup that takes no right to the name may find the old one absent.
    fn leave_whiteout(
        &self,
        sup: &SuperRef,
        (rq, change): (Request<'_, '_>, &Rename<'_>),
        (from, _): (&NameGuard<'_>, &NameGuard<'_>),
        publish: impl FnOnce(&uvfs_cache::Cache),
    ) -> Result<()> {
        let room = from.reserve(Room::Node).map_err(|e| cache_errno(e, sup.features))?;
        let (mode, gid) = inherit(rq.op, rq.from.dir.perm(), mode::S_IFCHR);
        let uid = rq.op.cred.uid;
        let make = Make { mode, uid, gid, rdev: 0, target: None, acl: None, default_acl: None };
        let whiteout = sup.driver.rename_whiteout(rq.op, change, &make)?;
        publish(&self.cache);
        match whiteout {
            Some(new) => drop(from.create(room, &fresh(sup.features, &new))),
            None => self.cache.invalidate(rq.from.dir, rq.from.name),
        }
        Ok(())
    }
}
