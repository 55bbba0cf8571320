//! Permission rules: mode bits, owners, groups, sticky directories and the protected-file rules.
//!
//! Pure functions of attributes and credentials; they take no lock and do not read the cache. Callers pass one
//! consistent [`Attr`]. Each check of an operation grants everything to a trusted one (see [`Op::trusted`]).
//! [`granted`] and [`verdict`] do not know of trust, and also serve the lock-free walk.
//!
//! If a file has an access control list, mode bits still decide for its owner, and for everyone else while they
//! give its group nothing. Otherwise the list decides ([`Verdict::List`]), and only its driver knows it: see
//! `ops/acl_checks.rs`.
//!
//! Capabilities are those of [`Capability`]. User id 0 has them all, unless a front end says what the caller has
//! ([`crate::Powers`]). The caller's powers are asked for last, if nothing else decides.

use crate::groups_and_capabilities::{Capability, Who};
use crate::types::{Access, Attr, Cred, Errno, Op, Perm, Result, mode};

/// The `fs.protected_*` rules (see proc(5)). They protect a process from files that other users left in
/// world-writable sticky directories.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Protected {
    /// Do not follow another's trailing symbolic link in a sticky world-writable directory.
    pub symlinks: bool,
    /// Allow hard links only to files that the caller owns, or could read and write.
    pub hardlinks: bool,
    /// 0: off. 1: no O_CREAT open of another's FIFO in a world-writable sticky directory. 2: nor in a
    /// group-writable one.
    pub fifos: u8,
    /// The same for regular files.
    pub regular: u8,
}

impl Protected {
    /// All rules off, as an unconfigured kernel has them.
    pub const OFF: Self = Self { symlinks: false, hardlinks: false, fifos: 0, regular: 0 };
}

impl Default for Protected {
    /// The defaults that distributions set at boot.
    fn default() -> Self {
        Self { symlinks: true, hardlinks: true, fifos: 1, regular: 1 }
    }
}

/// The decision of mode bits and overrides.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    Granted,
    Denied,
    /// An access control list must be asked.
    List,
}

/// Whether the mode bits, or root's overrides, grant all of `want`. False if a list must be asked.
#[inline]
pub(crate) fn granted(who: &impl Who, perm: Perm, want: Access) -> bool {
    // Access that owner, group and others all have, everybody has: the usual directory needs no look at the caller.
    // A list may deny it to some; its bit is none of those in `want`.
    let all = perm.mode & perm.mode >> 3 & perm.mode >> 6 & want.bits();
    all | perm.mode & Perm::ACL == want.bits() || verdict(who, perm, want) == Verdict::Granted
}

/// The decision, or the need for a list.
pub(crate) fn verdict(who: &impl Who, perm: Perm, want: Access) -> Verdict {
    let mode = perm.mode;
    let class = if who.uid() == perm.uid {
        mode >> 6
    } else if mode & Perm::ACL != 0 && mode & 0o070 != 0 {
        // If capabilities must be asked for, the list is asked first.
        let granted = who.is_known() && overrides(who, mode, want);
        return if granted { Verdict::Granted } else { Verdict::List };
    } else if (mode >> 3 ^ mode) & want.bits() != 0 && who.in_group(perm.gid) {
        mode >> 3
    } else {
        // Or the caller is in a group whose bits agree with those of others on `want`.
        mode
    };
    if class & want.bits() == want.bits() || overrides(who, mode, want) {
        Verdict::Granted
    } else {
        Verdict::Denied
    }
}

/// Whether a capability permits what mode bits and lists do not. It permits searching every directory, but not
/// executing a file that nobody may execute.
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

/// EPERM if `dir` is sticky and the caller is none of these: the owner of `victim`, the directory's owner, or root.
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
/// Set-group-id without group execute once meant mandatory locking. It stays for the group's members, as in the
/// kernel. A front end whose requests name no supplementary groups must look them up for this case.
pub(crate) fn without_privileges(op: &Op, mode: u32, gid: u32) -> u32 {
    let mut left = mode & !mode::S_ISUID;
    if mode & mode::S_ISGID != 0 && (mode & 0o010 != 0 || !keeps_sgid(op, gid)) {
        left &= !mode::S_ISGID;
    }
    left
}

/// EACCES if `fs.protected_symlinks` forbids following the trailing `link` found in `dir`.
pub(crate) fn may_follow(rules: Protected, cred: &Cred, dir: Perm, link: &Attr) -> Result<()> {
    const SHARED: u32 = mode::S_ISVTX | 0o002;
    if !rules.symlinks || cred.uid == link.uid || dir.mode & SHARED != SHARED || dir.uid == link.uid {
        Ok(())
    } else {
        Err(Errno::ACCESS)
    }
}

/// EPERM if `fs.protected_hardlinks` forbids a new name for the file with `attr`. `usable` says whether the caller
/// may read and write it.
pub(crate) fn may_link(rules: Protected, op: &Op, attr: &Attr, usable: impl FnOnce() -> bool) -> Result<()> {
    const SGID_RUN: u32 = mode::S_ISGID | 0o010;
    if !rules.hardlinks || owns(op, attr) {
        return Ok(());
    }
    let safe =
        attr.is_reg() && attr.mode & mode::S_ISUID == 0 && attr.mode & SGID_RUN != SGID_RUN && usable();
    if safe { Ok(()) } else { Err(Errno::PERM) }
}

/// EACCES if `fs.protected_fifos` or `fs.protected_regular` forbids an O_CREAT open of the existing `file` in
/// `dir`.
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
