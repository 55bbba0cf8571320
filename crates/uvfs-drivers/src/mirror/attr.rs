//! Attributes: reading them, changing them, and updating the cache afterwards.
//!
//! After a change the mirror reads the file's attributes from the host. The cache stores them unless it has stored
//! others since the read began; then the mirror reads again. So after two changes at the same time, the answer that
//! is stored last is right for both.

use std::os::fd::AsFd;

use rustix::fs::{
    AtFlags, Gid, Mode, OFlags, Timespec, Timestamps, UTIME_NOW, UTIME_OMIT, Uid, chmodat, chownat, fstatvfs,
    ftruncate, utimensat,
};
use uvfs::Inode;
use uvfs::types::{Access, Attr, Errno, Op, Result, SetAttr, SetTime, StatFs, Time, mode};

use super::Mirror;
use super::file::{Opened, again};
use super::identity;
use super::node::Node;
use super::owners::Judge;
use super::reach::{At, Links};

/// How often the host is asked again for attributes that change all the time.
const TRIES: u32 = 4;

impl Mirror {
    /// The host's attributes, as those of the inode with this number. They do not tell whether there is an access
    /// control list. So `acl` says that there may be one for every file that can have one, until somebody asks
    /// ([`Mirror::list_of`]).
    pub(super) fn shown(&self, number: u64, attr: Attr) -> Attr {
        Attr { ino: number, acl: self.lists && attr.fmt() != mode::S_IFLNK, ..attr }
    }

    /// The attributes now.
    pub(super) fn attr_of(&self, inode: &Inode<'_>) -> Result<Attr> {
        let node = self.node(inode)?;
        if node.covered() {
            return Ok(inode.attr());
        }
        // Wherever it is by now: it may have been moved out of the source, or have no name any more.
        if let Some(open) = node.find_open(|_| true) {
            return Ok(self.shown(node.number, self.attr_at(&open.fd)?));
        }
        let seen = match self.reach(&node) {
            Ok(at) => self.attr_at(&at),
            Err(Errno::STALE) if inode.attr().nlink == 0 || inode.is_dead() => return Ok(inode.attr()),
            Err(errno) => Err(errno),
        };
        Ok(self.shown(node.number, seen?))
    }

    /// When the file was made, as far as the host knows. It is asked each time, because some file systems can change
    /// that time.
    pub(super) fn birth_of(&self, inode: &Inode<'_>) -> Result<Option<Time>> {
        let node = self.node(inode)?;
        if node.covered() {
            return Ok(None);
        }
        if let Some(open) = node.find_open(|_| true) {
            return identity::birth_of(&open.fd);
        }
        match self.reach(&node) {
            Ok(at) => identity::birth_of(&at),
            Err(Errno::STALE) if inode.attr().nlink == 0 || inode.is_dead() => Ok(None),
            Err(errno) => Err(errno),
        }
    }

    /// Updates an inode's attributes in the cache after a change; `fd` is its file.
    pub(super) fn settle(&self, inode: &Inode<'_>, fd: impl AsFd) {
        // Answers that were asked for before the change are late.
        inode.update(|_| ());
        for _ in 0..TRIES {
            let asked = inode.revision();
            let Ok(attr) = self.attr_at(&fd) else { break };
            let attr = self.shown(inode.ino(), attr);
            if inode.refresh_unless_changed(asked, &attr, self.believed()) {
                return;
            }
        }
        // The next caller that needs them asks again.
        inode.mark_stale();
        if let Some(place) = self.table.of(inode.ino()).and_then(|node| node.place()) {
            self.mark_name_stale(&place.dir, &place.name);
        }
    }

    /// A truncation may have to wait for another process's lease. Then it no longer counts as an operation (see
    /// [`Mirror::open_file`]).
    pub(super) fn set_attr(&self, op: &Op, inode: &Inode<'_>, set: &SetAttr) -> Result<()> {
        let turn = self.budget.turn();
        let (node, at) = self.reach_inode(inode)?;
        let outcome = match self.apply(op, &node, &at, set, OFlags::NONBLOCK) {
            Err(Errno::AGAIN) if set.size.is_some() => {
                let _of_the_way = (self.budget.permit()?, self.budget.permit()?);
                drop(turn);
                let outcome = self.apply(op, &node, &at, set, OFlags::empty());
                self.settle(inode, &at);
                return outcome;
            }
            outcome => outcome,
        };
        self.settle(inode, &at);
        outcome
    }

    /// `how`: the flags to open a file with that is truncated.
    fn apply(&self, op: &Op, node: &Node, target: &At<'_>, set: &SetAttr, how: OFlags) -> Result<()> {
        let (uid, gid) = self.given(set)?;
        let judge = self.judge_change(op, node, target, set)?;
        let mode = set.mode.map(|mode| self.mode_for(target, mode & 0o7777)).transpose()?;
        let _acting = judge.act()?;
        if let Some(size) = set.size {
            self.truncate(node, target, size, set.opened, how)?;
        }
        let owner = (uid.map(Uid::from_raw), gid.map(Gid::from_raw));
        // A change of nothing is a chown of neither owner nor group: the host decides whether it removes set-id bits.
        if owner != (None, None) || !set.changes_anything() {
            chownat(target, c"", owner.0, owner.1, AtFlags::EMPTY_PATH)?;
        }
        if let Some(mode) = mode {
            chmodat(&*self.links, Links::name(target), Mode::from_raw_mode(mode), AtFlags::empty())?;
        }
        // A truncation has set its times.
        let mtime = set.mtime.filter(|&time| set.size.is_none() || time != SetTime::Now);
        if set.atime.is_some() || mtime.is_some() {
            let times = Timestamps { last_access: timespec(set.atime), last_modification: timespec(mtime) };
            utimensat(target, c"", &times, AtFlags::EMPTY_PATH)?;
        }
        Ok(())
    }

    fn judge_change<'m>(
        &'m self,
        op: &'m Op,
        node: &Node,
        target: &At<'_>,
        set: &SetAttr,
    ) -> Result<Judge<'m>> {
        let mut judge = self.judge(op);
        let writable = |open: &Opened| open.access.contains(Access::WRITE);
        if set.size.is_some() && !(set.opened && node.find_open(writable).is_some()) {
            judge.may(target, Access::WRITE)?;
        }
        let times = set.atime.is_some() || set.mtime.is_some();
        if set.mode.is_some() || times {
            let owns = judge.owns(&[target.as_fd()])?;
            if times && !owns {
                // A writer may set the times to the present; the host decides whether it does.
                let _ = judge.may(target, Access::WRITE);
            }
        }
        Ok(judge)
    }

    /// Truncates or extends a file. A caller that has it `opened` for writing may do so, even if its mode has
    /// changed.
    fn truncate(&self, node: &Node, target: &At<'_>, size: u64, opened: bool, how: OFlags) -> Result<()> {
        let writable = |open: &Opened| open.access.contains(Access::WRITE);
        if opened && let Some(open) = node.find_open(writable) {
            return ftruncate(&open.fd, size);
        }
        ftruncate(again(|| self.links.open(target, OFlags::WRONLY | how))?, size)
    }
}

fn timespec(time: Option<SetTime>) -> Timespec {
    match time {
        None => Timespec { tv_sec: 0, tv_nsec: UTIME_OMIT },
        Some(SetTime::Now) => Timespec { tv_sec: 0, tv_nsec: UTIME_NOW },
        Some(SetTime::At(time)) => Timespec { tv_sec: time.sec(), tv_nsec: time.nsec().into() },
    }
}

/// Figures of the file system that a directory is on.
pub(super) fn figures(dir: impl AsFd) -> Result<StatFs> {
    let figures = fstatvfs(dir)?;
    let unit = if figures.f_frsize == 0 { figures.f_bsize } else { figures.f_frsize };
    Ok(StatFs {
        bsize: u32::try_from(unit).unwrap_or(u32::MAX),
        blocks: figures.f_blocks,
        bfree: figures.f_bfree,
        bavail: figures.f_bavail,
        files: figures.f_files,
        ffree: figures.f_ffree,
        namelen: u32::try_from(figures.f_namemax).unwrap_or(255),
    })
}
