//! Name lookup, and questions about an inode that do not change it.
//!
//! A hit takes one reference and nothing else. A miss makes one driver call, however many threads miss at once: the
//! first takes the name lock and asks, the others wait and look again. If the driver's answers depend on the
//! caller, nobody waits for another caller's answer, and no answer is kept. [`Vfs::child`] does not check the
//! directory's permission: path walks have done so.

use std::time::Duration;

use uvfs_cache::CacheError;
use uvfs_cache::machinery::{Known, Lookup, NameGuard};

use crate::counters;
use crate::driver::Inode;
use crate::driver_answer::{believed_ttl, cache_errno, fresh};
use crate::mount_table::SuperRef;
use crate::ops::name_and_type::check_name;
use crate::types::{Answer, Attr, Cached, Errno, Found, NAME_MAX, NewInode, Op, Result, StatFs, Ttl, mode};
use crate::vfs::Vfs;

impl Vfs {
    /// [`Vfs::lookup`] as far as the cache knows. `None` if the driver must be asked, or is being
    /// asked. Never blocks, and does not use the time of `op`.
    pub fn lookup_cached<'v>(&'v self, op: &Op, dir: &Inode<'v>, name: &[u8]) -> Option<Result<Found<'v>>> {
        Some(self.peek(op, dir, name)?.map(|cached| match cached {
            Cached::Node(inode) => {
                let attr = inode.attr();
                Found::Node(inode, attr)
            }
            Cached::Absent(ttl) => Found::Absent(ttl),
        }))
    }

    /// [`Vfs::lookup_cached`] without the attributes, for callers that read them later or not at all.
    pub fn peek<'v>(&'v self, op: &Op, dir: &Inode<'v>, name: &[u8]) -> Option<Result<Cached<'v>>> {
        if (!op.trusted && dir.expired())
            || self.search_needs_list(op, dir)
            || !matches!(check_name(name), Ok(()) if name != b"." && name != b"..")
        {
            return None;
        }
        if let Err(errno) = self.search(op, dir) {
            return Some(Err(errno));
        }
        // If a root is gone or expired, the full lookup decides.
        let root = |id| self.cache.get(id).filter(|root| !root.expired());
        if let Some(control) = self.control_at(dir, name) {
            return Some(Ok(Cached::Node(root(control)?)));
        }
        let Some(id) = self.cache.peek_id(dir.id(), name)? else {
            counters::hit();
            return Some(Ok(Cached::Absent(self.ttl(dir))));
        };
        let inode = match self.mounts.mounted_on(id) {
            Some(mounted) => root(mounted)?,
            // If it is gone since, the full lookup finds out what the name leads to now.
            None => self.cache.get(id)?,
        };
        counters::hit();
        Some(Ok(Cached::Node(inode)))
    }

    /// The inode that `name` leads to in `dir`; `.` and `..` included. May wait for the driver.
    ///
    /// # Errors
    /// ENOTDIR, EACCES (no search permission), ENAMETOOLONG, EINVAL (a slash or nul in the name), ENOENT if `dir`
    /// is removed, ENOMEM, and the driver's errors. A missing name is not an error but [`Found::Absent`].
    pub fn lookup<'v>(&'v self, op: &Op, dir: &Inode<'v>, name: &[u8]) -> Result<Found<'v>> {
        self.search(op, dir)?;
        check_name(name)?;
        let inode = match name {
            b"." => dir.clone(),
            b".." => self.parent(dir, self.root().id())?,
            _ => return self.child(op, dir, name),
        };
        let attr = self.attr_now(op, &inode)?;
        Ok(Found::Node(inode, attr))
    }

    /// The inode that an ordinary name leads to, in a directory that the caller may search.
    pub(crate) fn child<'v>(&'v self, op: &Op, dir: &Inode<'v>, name: &[u8]) -> Result<Found<'v>> {
        if name.len() > NAME_MAX {
            return Err(Errno::NAMETOOLONG);
        }
        if let Some(root) = self.control_at(dir, name) {
            let root = self.cross(self.inode(root)?);
            let attr = self.attr_now(op, &root)?;
            return Ok(Found::Node(root, attr));
        }
        loop {
            match self.cache.lookup(dir, name) {
                Lookup::Hit(inode, attr) => {
                    counters::hit();
                    return self.landed(op, inode, attr);
                }
                Lookup::Negative => {
                    counters::hit();
                    return Ok(Found::Absent(self.ttl(dir)));
                }
                Lookup::Miss(_) if dir.is_dead() => return Err(Errno::NOENT),
                Lookup::Miss(guard) => return self.ask(op, dir, guard),
                Lookup::Busy(pending) => {
                    counters::name_wait();
                    match pending.wait() {
                        Ok(()) => {}
                        Err(Errno::NOENT) => return Ok(Found::Absent(Ttl::For(Duration::ZERO))),
                        Err(errno) => return Err(errno),
                    }
                }
            }
        }
    }

    /// Asks the driver for a name that the cache does not know.
    fn ask<'v>(&'v self, op: &Op, dir: &Inode<'v>, guard: NameGuard<'v>) -> Result<Found<'v>> {
        let sup = self.sup(dir)?;
        if sup.features.resident {
            return Ok(Found::Absent(Ttl::Forever));
        }
        check_name(guard.name())?;
        counters::miss();
        if sup.features.lookup_depends_on_cred {
            let name = guard.name().to_vec();
            // Other callers that wait for the name ask for themselves.
            drop(guard);
            return self.ask_privately(op, dir, &name);
        }
        let (errno, reply) = match sup.driver.lookup(op, guard.dir(), guard.name()) {
            Ok(Answer::Found(new)) => match self.publish(&sup, &guard, &new) {
                Ok(inode) => {
                    drop(guard);
                    // The driver's attributes may be late by now, and the cache knows. If nothing is kept, they are
                    // all there is.
                    let kept = believed_ttl(sup.features, new.ttl) != Ttl::ZERO;
                    let attr = if kept { self.attr_now(op, &inode)? } else { new.attr };
                    return self.landed(op, inode, attr);
                }
                Err(errno) => (errno, Err(errno)),
            },
            Ok(Answer::Absent(ttl)) => {
                guard.absent(believed_ttl(sup.features, ttl));
                return Ok(Found::Absent(ttl));
            }
            Err(Errno::NOENT) => (Errno::NOENT, Ok(Found::Absent(Ttl::For(Duration::ZERO)))),
            Err(errno) => (errno, Err(errno)),
        };
        // Callers that wait for this answer get the same.
        guard.fail(errno);
        reply
    }

    /// Asks for this caller only. The name lock is not held meanwhile, and the answer is not kept.
    fn ask_privately<'v>(&'v self, op: &Op, dir: &Inode<'v>, name: &[u8]) -> Result<Found<'v>> {
        let sup = self.sup(dir)?;
        // Before the driver is asked: a change during its call makes the answer late.
        let scan = self.cache.begin_scan(dir);
        match sup.driver.lookup(op, dir, name) {
            Ok(Answer::Found(new)) => {
                let found = scan.found(name, &fresh(sup.features, &new));
                let inode = self.told(&sup, &new, found)?;
                self.landed(op, inode, new.attr)
            }
            Ok(Answer::Absent(_)) | Err(Errno::NOENT) => Ok(Found::Absent(Ttl::For(Duration::ZERO))),
            Err(errno) => Err(errno),
        }
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

    /// A lookup's inode, or the root mounted on it. Attributes just fetched are returned even if they may not be
    /// kept.
    fn landed<'v>(&'v self, op: &Op, inode: Inode<'v>, attr: Attr) -> Result<Found<'v>> {
        let inode = match self.mounts.mounted_on(inode.id()).and_then(|root| self.cache.get(root)) {
            Some(root) => root,
            None => return Ok(Found::Node(inode, attr)),
        };
        let attr = self.attr_now(op, &inode)?;
        Ok(Found::Node(inode, attr))
    }

    /// The target of a symbolic link; EINVAL of anything else.
    pub fn readlink(&self, op: &Op, inode: &Inode<'_>) -> Result<Vec<u8>> {
        if inode.fmt() != mode::S_IFLNK {
            return Err(Errno::INVAL);
        }
        let sup = self.sup(inode)?;
        let target = sup.driver.readlink(op, inode)?;
        if sup.features.fixed_links || sup.driver.link_is_fixed(inode) {
            inode.keep_target(&target, sup.features.timeless_links);
        }
        Ok(target)
    }

    /// Statistics of the inode's file system.
    pub fn statfs(&self, op: &Op, inode: &Inode<'_>) -> Result<StatFs> {
        self.sup(inode)?.driver.statfs(op)
    }
}
