//! Who may do what: mode bits, owners, groups, sticky directories and the protected-file rules.
//!
//! Pure functions of attributes and credentials; nothing is locked, nothing is read from the
//! cache here. Callers take one consistent [`Attr`] and ask. Each check of an operation grants everything to a
//! trusted one (see [`Op::trusted`]); [`granted`] and [`verdict`] do not
//! know of trust and also serve the lock-free walk.
//!
//! Where a file has an access control list, mode bits still decide for its owner, and whoever they
//! concern while they give its group nothing; else the list has the last word ([`Verdict::List`]), which only its
//! driver knows: see `ops/acl.rs`.
//!
//! Capabilities are those of [`Capability`]. User id 0 has them all, unless a front end says what
//! the caller has ([`crate::Powers`]); that is asked for last, where nothing else decides.

use crate::powers::{Capability, Who};
use crate::types::{Access, Attr, Cred, Errno, Op, Perm, Result, mode};

/// The `fs.protected_*` rules (see proc(5)): they stop a process from being led astray by files
/// that others left in world-writable sticky directories.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Protected {
    /// Do not follow another's trailing symbolic link in a sticky world-writable directory.
    pub symlinks: bool,
    /// Hard links only to files that the caller owns, or could read and write.
    pub hardlinks: bool,
    /// 0: off; 1: no O_CREAT open of another's FIFO in a world-writable sticky directory;
    /// 2: in a group-writable one neither.
    pub fifos: u8,
    /// The same for regular files.
    pub regular: u8,
}

impl Protected {
    /// All rules off, as an unconfigured kernel has them.
    pub const OFF: Self = Self { symlinks: false, hardlinks: false, fifos: 0, regular: 0 };
}

impl Default for Protected {
    /// What distributions set at boot.
    fn default() -> Self {
        Self { symlinks: true, hardlinks: true, fifos: 1, regular: 1 }
    }
}

/// What mode bits and overrides say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    Granted,
    Denied,
    /// There is an access control list that has to be asked.
    List,
}

/// Whether the mode bits, or root's overrides, grant all of `want`. Not where a list has to be asked.
#[inline]
pub(crate) fn granted(who: &impl Who, perm: Perm, want: Access) -> bool {
    // What owner, group and all others may, everybody may: the usual directory needs no look at who asks.
    // A list may say otherwise of some; its bit is none of those wanted.
    let all = perm.mode & perm.mode >> 3 & perm.mode >> 6 & want.bits();
    all | perm.mode & Perm::ACL == want.bits() || verdict(who, perm, want) == Verdict::Granted
}

/// Who decides, and how.
pub(crate) fn verdict(who: &impl Who, perm: Perm, want: Access) -> Verdict {
    let mode = perm.mode;
    let class = if who.uid() == perm.uid {
        mode >> 6
    } else if mode & Perm::ACL != 0 && mode & 0o070 != 0 {
        // Where capabilities have to be asked for, the list is asked first.
        let granted = who.is_known() && overrides(who, mode, want);
        return if granted { Verdict::Granted } else { Verdict::List };
    } else if (mode >> 3 ^ mode) & want.bits() != 0 && who.in_group(perm.gid) {
        mode >> 3
    } else {
        // Or a member of a group that may do as much of it as others.
        mode
    };
    if class & want.bits() == want.bits() || overrides(who, mode, want) {
        Verdict::Granted
    } else {
        Verdict::Denied
    }
}

/// Whether a capability permits what mode bits and lists do not. All directories may be searched then, but what nobody may
/// run is not run.
pub(crate) fn overrides(who: &impl Who, mode: u32, want: Access) -> bool {
    let is_dir = mode & mode::S_IFMT == mode::S_IFDIR;
    let reads = !want.contains(Access::WRITE) && (is_dir || !want.contains(Access::EXEC));
    let runs = is_dir || !want.contains(Access::EXEC) || mode & 0o111 != 0;
    reads && who.has(Capability::DacReadSearch) || runs && who.has(Capability::DacOverride)
}

/// Whether the caller owns the inode, or may do what its owner may.
pub(crate) fn owns(op: &Op, attr: &Attr) -> bool {
    op.trusted || op.cred.uid == attr.uid || op.has(Capability::Fowner)
}

/// EPERM unless [`owns`].
pub(crate) fn require_owner(op: &Op, attr: &Attr) -> Result<()> {
    if owns(op, attr) { Ok(()) } else { Err(Errno::PERM) }
}

/// EPERM where a sticky directory keeps `victim` from everyone but its owner, the directory's
/// owner and root.
pub(crate) fn require_unstuck(op: &Op, dir: &Attr, victim: &Attr) -> Result<()> {
    let sticky = dir.mode & mode::S_ISVTX != 0 && op.cred.uid != dir.uid;
    if sticky && !owns(op, victim) { Err(Errno::PERM) } else { Ok(()) }
}

/// Whether the caller may keep a set-group-id bit for group `gid`.
pub(crate) fn keeps_sgid(op: &Op, gid: u32) -> bool {
    op.in_group(gid) || op.has(Capability::Fsetid)
}

/// The mode that is left once set-id privileges are dropped (write, truncation, chown).
///
/// Set-group-id without group execute once meant mandatory locking: it stays for the group's
/// members, as it does in the kernel. A front end whose requests name no supplementary groups has
/// to find them out for this case.
pub(crate) fn without_privileges(op: &Op, mode: u32, gid: u32) -> u32 {
    let mut left = mode & !mode::S_ISUID;
    if mode & mode::S_ISGID != 0 && (mode & 0o010 != 0 || !keeps_sgid(op, gid)) {
        left &= !mode::S_ISGID;
    }
    left
}

/// EACCES where `fs.protected_symlinks` forbids following the trailing `link` found in `dir`.
pub(crate) fn may_follow(rules: Protected, cred: &Cred, dir: &Attr, link: &Attr) -> Result<()> {
    const SHARED: u32 = mode::S_ISVTX | 0o002;
    if !rules.symlinks || cred.uid == link.uid || dir.mode & SHARED != SHARED || dir.uid == link.uid {
        Ok(())
    } else {
        Err(Errno::ACCESS)
    }
}

/// EPERM where `fs.protected_hardlinks` forbids a new name for `attr`, of whose file `usable` says whether the
/// caller may read and write it.
pub(crate) fn may_link(rules: Protected, op: &Op, attr: &Attr, usable: impl FnOnce() -> bool) -> Result<()> {
    const SGID_RUN: u32 = mode::S_ISGID | 0o010;
    if !rules.hardlinks || owns(op, attr) {
        return Ok(());
    }
    let safe =
        attr.is_reg() && attr.mode & mode::S_ISUID == 0 && attr.mode & SGID_RUN != SGID_RUN && usable();
    if safe { Ok(()) } else { Err(Errno::PERM) }
}

/// EACCES where `fs.protected_fifos` or `fs.protected_regular` forbids an O_CREAT open of the
/// existing `file` in `dir`.
pub(crate) fn may_open_shared(rules: Protected, op: &Op, dir: &Attr, file: &Attr) -> Result<()> {
    let level = match file.fmt() {
        mode::S_IFIFO => rules.fifos,
        mode::S_IFREG => rules.regular,
        _ => 0,
    };
    let sticky = dir.mode & mode::S_ISVTX != 0;
    if level == 0 || op.trusted || !sticky || file.uid == dir.uid || file.uid == op.cred.uid {
        return Ok(());
    }
    let shared = dir.mode & 0o002 != 0 || (level >= 2 && dir.mode & 0o020 != 0);
    if shared { Err(Errno::ACCESS) } else { Ok(()) }
}
