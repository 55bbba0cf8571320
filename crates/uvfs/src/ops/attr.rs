//! Changing attributes: owner, group, mode, times, size.
//!
//! All in the inode's turn ([`super::turns`]), so that the mode that is stored follows from the
//! mode that was seen; where there is an access control list, it follows too. Drivers are told the outcome: mode bits are already what must be stored,
//! and set-id bits that have to go are gone.
//! Trusted callers have checked permissions; what a change of owner does to set-id bits is done
//! for them too, since a FUSE kernel leaves it to the server (FUSE_HANDLE_KILLPRIV_V2).

use crate::driver::{Driver, Inode};
use crate::ops::is_dir;
use crate::permission;
use crate::powers::{Capability, Who};
use crate::types::{Access, Attr, Errno, FileFlags, FlagsForm, Op, Result, SetAttr, SetTime, Time, mode};
use crate::vfs::Vfs;

/// Longest file in bytes: offsets are signed.
pub(crate) const MAX_FILE: u64 = i64::MAX as u64;

/// Mode bits besides the type.
const BITS: u32 = 0o7777;
const SET_ID: u32 = mode::S_ISUID | mode::S_ISGID;

/// What else is known of a change.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct How {
    /// The file is open for writing: its size may be changed without asking again.
    pub(crate) opened: bool,
    /// `chown`, even where neither owner nor group is given: set-id bits go.
    pub(crate) chown: bool,
}

/// Whether a file of this type may have flags.
fn has_flags(inode: &Inode<'_>) -> bool {
    matches!(inode.fmt(), mode::S_IFREG | mode::S_IFDIR)
}

impl Vfs {
    /// Changes attributes, and answers with what they are afterwards.
    ///
    /// # Errors
    /// EPERM (not the owner; no member of the new group; times other than now), EACCES (size or
    /// times without write permission), EISDIR and EINVAL (size of a directory or of something
    /// else that has none), EFBIG, EROFS, and what the driver answers.
    pub fn setattr(&self, op: &Op, inode: &Inode<'_>, set: &SetAttr) -> Result<Attr> {
        self.change(op, inode, set, How::default())
    }

    /// Changes owner and group where they are given. Set-id bits of what is no directory go, also where neither is: that is
    /// then for who may change the mode, and anybody's where there are none.
    ///
    /// # Errors
    /// As [`Vfs::setattr`].
    pub fn chown(&self, op: &Op, inode: &Inode<'_>, uid: Option<u32>, gid: Option<u32>) -> Result<Attr> {
        let set = SetAttr { uid, gid, ..SetAttr::default() };
        self.change(op, inode, &set, How { chown: true, opened: false })
    }

    /// When a file was made; none where that is not known.
    ///
    /// # Errors
    /// What the driver answers.
    pub fn birth(&self, op: &Op, inode: &Inode<'_>) -> Result<Option<Time>> {
        let sup = self.sup(inode)?;
        if sup.features.births { sup.driver.birth(op, inode) } else { Ok(None) }
    }

    /// The flags of a file (ioctl_iflags(2)).
    ///
    /// # Errors
    /// ENOTTY of anything but regular files and directories, and where there are none; what the driver answers.
    pub fn file_flags(&self, op: &Op, inode: &Inode<'_>, form: FlagsForm) -> Result<FileFlags> {
        if !has_flags(inode) {
            return Err(Errno::NOTTY);
        }
        self.sup(inode)?.driver.file_flags(op, inode, form)
    }

    /// Sets the flags of a file, which is for its owner. It takes the inode's turn, as every change of attributes.
    ///
    /// # Errors
    /// As [`Vfs::file_flags`]; EROFS, EPERM.
    pub fn set_file_flags(&self, op: &Op, inode: &Inode<'_>, flags: &FileFlags) -> Result<()> {
        if !has_flags(inode) {
            return Err(Errno::NOTTY);
        }
        let sup = self.sup(inode)?;
        sup.writable()?;
        let _turn = self.turns.take(inode.id());
        if !permission::owns(op, &self.attr_now(op, inode)?) {
            return Err(Errno::PERM);
        }
        sup.driver.set_file_flags(op, inode, flags)
    }

    /// [`Vfs::setattr`], told what else is known.
    pub(crate) fn change(&self, op: &Op, inode: &Inode<'_>, set: &SetAttr, how: How) -> Result<Attr> {
        if set.size.is_some() && is_dir(inode) {
            return Err(Errno::ISDIR);
        }
        if set.size.is_some() && inode.fmt() != mode::S_IFREG {
            return Err(Errno::INVAL);
        }
        let sup = self.sup(inode)?;
        sup.writable()?;
        let _turn = self.turns.take(inode.id());
        let attr = self.attr_now(op, inode)?;
        if !op.trusted {
            self.check(op, inode, &attr, set, how)?;
        }
        if set.size.is_some_and(|size| size > MAX_FILE) {
            return Err(Errno::FBIG);
        }
        // What else has to go from the mode, a file system that works in the caller's name sees to itself: it knows
        // the mode, and here it may have been another's chmod ago.
        let mode = match set.mode {
            mode if sup.features.passes_through => mode.map(|mode| mode & BITS),
            _ => new_mode(op, &attr, set, how),
        };
        op.certain()?;
        let set = SetAttr { mode, kill_suidgid: false, opened: set.opened || how.opened, ..*set };
        self.set_with_list(op, &sup, inode, &attr, &set)?;
        self.attr_now(op, inode)
    }

    /// Permissions, in the kernel's order.
    fn check(&self, op: &Op, inode: &Inode<'_>, attr: &Attr, set: &SetAttr, how: How) -> Result<()> {
        let owner = op.cred.uid == attr.uid;
        let may_give = || op.has(Capability::Chown);
        if set.size.is_some() && !how.opened && !set.opened {
            self.require(op, inode, attr, Access::WRITE)?;
        }
        if set.uid.is_some_and(|uid| !(owner && uid == attr.uid || may_give())) {
            return Err(Errno::PERM);
        }
        let own_group = |gid| owner && (gid == attr.gid || op.in_group(gid));
        if set.gid.is_some_and(|gid| !(own_group(gid) || may_give())) {
            return Err(Errno::PERM);
        }
        // A chown of nothing is anybody's, and giving files away CAP_CHOWN's; unless it takes set-id bits away.
        let chown = how.chown || set.uid.is_some() || set.gid.is_some();
        if set.mode.is_some() || (chown && new_mode(op, attr, set, how).is_some()) {
            permission::require_owner(op, attr)?;
        }
        match (set.atime, set.mtime) {
            (None, None) => Ok(()),
            // The times of a truncation are the writer's.
            _ if set.size.is_some() => Ok(()),
            // Both to now: who may write may also touch.
            (Some(SetTime::Now), Some(SetTime::Now)) if !permission::owns(op, attr) => {
                self.require(op, inode, attr, Access::WRITE)
            }
            _ => permission::require_owner(op, attr),
        }
    }

    /// Takes set-id bits away before data is changed by who may not keep them. One look where
    /// there are none, which is nearly always. `always`: it is known already that the caller may not.
    pub(crate) fn kill_privileges(
        &self,
        op: &Op,
        driver: &dyn Driver,
        inode: &Inode<'_>,
        always: bool,
    ) -> Result<()> {
        let left = |attr: &Attr| permission::without_privileges(op, attr.mode, attr.gid);
        let attr = inode.attr();
        // Where the work is done in the caller's name, they go there.
        if left(&attr) == attr.mode || self.passes_through(inode) {
            return Ok(());
        }
        if !always && op.has(Capability::Fsetid) {
            return Ok(());
        }
        op.certain()?;
        let _turn = self.turns.take(inode.id());
        let attr = inode.attr();
        let mode = left(&attr);
        if mode == attr.mode {
            return Ok(());
        }
        driver.setattr(op, inode, &SetAttr { mode: Some(mode & BITS), ..SetAttr::default() })
    }
}

/// The permission bits that shall be stored; none where they stay.
fn new_mode(op: &Op, attr: &Attr, set: &SetAttr, how: How) -> Option<u32> {
    let gid = set.gid.unwrap_or(attr.gid);
    let mut mode = set.mode.map_or(attr.mode & BITS, |mode| mode & BITS);
    // A trusted caller saw to it itself: only it knows the supplementary groups.
    if set.mode.is_some() && mode & mode::S_ISGID != 0 && !op.trusted && !permission::keeps_sgid(op, gid) {
        mode &= !mode::S_ISGID;
    }
    let chown = how.chown || set.uid.is_some() || set.gid.is_some();
    let unprivileged = || mode & SET_ID != 0 && !op.trusted && !op.has(Capability::Fsetid);
    if (chown && !attr.is_dir())
        || attr.is_reg() && (set.kill_suidgid || set.size.is_some() && unprivileged())
    {
        mode = permission::without_privileges(op, mode, attr.gid);
    }
    (set.mode.is_some() || mode != attr.mode & BITS).then_some(mode)
}
