//! Changing attributes: owner, group, mode, times, size.
//!
//! Every change holds the inode lock ([`super::inode_locks`]), so that the stored mode, and an access control list,
//! follow from the mode that was read. Drivers get the outcome: the mode bits to store, with set-id bits already
//! cleared. Trusted callers have checked permissions. A change of owner clears set-id bits for them too, because a
//! FUSE kernel leaves that to the server (FUSE_HANDLE_KILLPRIV_V2).

use crate::driver::Inode;
use crate::groups_and_capabilities::{Capability, Who};
use crate::ops::name_and_type::is_dir;
use crate::permission;
use crate::types::{Access, Attr, Errno, FileFlags, FlagsForm, Op, Result, SetAttr, SetTime, mode};
use crate::vfs::Vfs;

/// Longest file in bytes: offsets are signed.
pub(crate) const MAX_FILE: u64 = i64::MAX as u64;

/// Mode bits without the type.
pub(super) const BITS: u32 = 0o7777;
const SET_ID: u32 = mode::S_ISUID | mode::S_ISGID;

/// Further facts about a change.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct How {
    /// The file is open for writing: its size may change without another check.
    pub(crate) opened: bool,
    /// `chown`, even with neither owner nor group: set-id bits are cleared.
    pub(crate) chown: bool,
}

/// Whether a file of this type may have flags.
fn has_flags(inode: &Inode<'_>) -> bool {
    matches!(inode.fmt(), mode::S_IFREG | mode::S_IFDIR)
}

impl Vfs {
    /// Changes attributes, and returns the attributes afterwards.
    ///
    /// # Errors
    /// EPERM (not the owner; no member of the new group; times other than now). EACCES (size or times without write
    /// permission). EISDIR and EINVAL (size of a directory or of another node without one). EFBIG, EROFS, and the
    /// driver's errors.
    pub fn setattr(&self, op: &Op, inode: &Inode<'_>, set: &SetAttr) -> Result<Attr> {
        self.change(op, inode, set, How::default())
    }

    /// Changes owner and group, each if given. Clears set-id bits of anything but a directory, even if neither is
    /// given. In that case the caller must be allowed to change the mode, unless there are no set-id bits.
    ///
    /// # Errors
    /// As [`Vfs::setattr`].
    pub fn chown(&self, op: &Op, inode: &Inode<'_>, uid: Option<u32>, gid: Option<u32>) -> Result<Attr> {
        let set = SetAttr { uid, gid, ..SetAttr::default() };
        self.change(op, inode, &set, How { chown: true, opened: false })
    }

    /// The flags of a file (ioctl_iflags(2)).
    ///
    /// # Errors
    /// ENOTTY of anything but regular files and directories, and if there are none; the driver's errors.
    pub fn file_flags(&self, op: &Op, inode: &Inode<'_>, form: FlagsForm) -> Result<FileFlags> {
        if !has_flags(inode) {
            return Err(Errno::NOTTY);
        }
        self.sup(inode)?.driver.file_flags(op, inode, form)
    }

    /// Sets the flags of a file, which is for its owner. It holds the inode lock, as every change of attributes does.
    ///
    /// # Errors
    /// As [`Vfs::file_flags`]; EROFS, EPERM.
    pub fn set_file_flags(&self, op: &Op, inode: &Inode<'_>, flags: &FileFlags) -> Result<()> {
        if !has_flags(inode) {
            return Err(Errno::NOTTY);
        }
        let sup = self.sup(inode)?;
        sup.writable()?;
        let _locked = self.inode_locks.take(inode.id());
        if !permission::owns(op, &self.attr_now(op, inode)?) {
            return Err(Errno::PERM);
        }
        sup.driver.set_file_flags(op, inode, flags)
    }

    /// [`Vfs::setattr`] with further facts about the change.
    pub(crate) fn change(&self, op: &Op, inode: &Inode<'_>, set: &SetAttr, how: How) -> Result<Attr> {
        if set.size.is_some() && is_dir(inode) {
            return Err(Errno::ISDIR);
        }
        if set.size.is_some() && inode.fmt() != mode::S_IFREG {
            return Err(Errno::INVAL);
        }
        let sup = self.sup(inode)?;
        sup.writable()?;
        let _locked = self.inode_locks.take(inode.id());
        let attr = self.attr_now(op, inode)?;
        if !op.trusted {
            self.check(op, inode, &attr, set, how)?;
        }
        if set.size.is_some_and(|size| size > MAX_FILE) {
            return Err(Errno::FBIG);
        }
        // A driver that calls in the caller's name clears mode bits itself. It knows the mode; the cached mode may
        // precede another user's chmod.
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
        // A chown that changes nothing is allowed to everyone, and giving files away needs CAP_CHOWN. If it clears
        // set-id bits, it needs the owner's rights.
        let chown = how.chown || set.uid.is_some() || set.gid.is_some();
        if set.mode.is_some() || (chown && new_mode(op, attr, set, how).is_some()) {
            permission::require_owner(op, attr)?;
        }
        match (set.atime, set.mtime) {
            (None, None) => Ok(()),
            // The writer may set the times of a truncation.
            _ if set.size.is_some() => Ok(()),
            // Both times to now: write permission suffices.
            (Some(SetTime::Now), Some(SetTime::Now)) if !permission::owns(op, attr) => {
                self.require(op, inode, attr, Access::WRITE)
            }
            _ => permission::require_owner(op, attr),
        }
    }
}

/// The permission bits to store; `None` if they stay.
fn new_mode(op: &Op, attr: &Attr, set: &SetAttr, how: How) -> Option<u32> {
    let gid = set.gid.unwrap_or(attr.gid);
    let mut mode = set.mode.map_or(attr.mode & BITS, |mode| mode & BITS);
    // A trusted caller has done this itself: only it knows the supplementary groups.
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
