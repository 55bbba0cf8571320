//! Access control lists in operations: permissions that a list decides, the extended attributes that represent
//! lists, the effect of a mode change on a list, and the lists that a new node inherits.
//!
//! The driver owns the list. The VFS asks for it only if mode bits leave the question open ([`Verdict::List`]),
//! with no lock held; [`Attr::acl`] says without a call that there is none. Changes are made with the inode lock
//! held; one call of the driver changes list and mode. The rules and the order of errors are the kernel's;
//! [`crate::acl`] says what lists mean.

use std::sync::Arc;

use crate::acl::{Acl, AclEntry, AclKind};
use crate::driver::Inode;
use crate::groups_and_capabilities::Who;
use crate::mount_table::SuperRef;
use crate::permission::{self, Verdict, overrides, verdict};
use crate::types::{Access, Attr, Errno, Op, Perm, Result, SetAttr, mode};
use crate::vfs::Vfs;

/// The permission bits that reflect a list.
const RWX: u32 = 0o777;
/// The number of looks at mode and list, while others change them, after which the last look counts.
const LOOKS: u32 = 4;

/// The mode and lists that a new node gets from its directory.
pub(super) struct Inherited {
    /// Type and permission bits, umask applied.
    pub(super) mode: u32,
    pub(super) acl: Option<Arc<Acl>>,
    pub(super) default: Option<Arc<Acl>>,
}

/// The permissions without a list.
fn bare(perm: Perm) -> Perm {
    Perm { mode: perm.mode & !Perm::ACL, ..perm }
}

impl Vfs {
    /// The permission `want` for an inode that has these attributes; EACCES. A trusted operation always has it.
    pub(crate) fn require(&self, op: &Op, inode: &Inode<'_>, attr: &Attr, want: Access) -> Result<()> {
        if op.trusted {
            return Ok(());
        }
        let granted = match verdict(op, attr.into(), want) {
            Verdict::Granted => true,
            Verdict::Denied => false,
            Verdict::List => {
                self.granted_by_list(op, inode, attr.into(), want)?
                    || !op.is_known() && overrides(op, attr.mode, want)
            }
        };
        // A group may have been denied what others may do.
        op.certain()?;
        if granted { Ok(()) } else { Err(Errno::ACCESS) }
    }

    #[cold]
    fn granted_by_list(&self, op: &Op, inode: &Inode<'_>, mut perm: Perm, want: Access) -> Result<bool> {
        let sup = self.sup(inode)?;
        for look in 1..=LOOKS {
            match verdict(op, perm, want) {
                Verdict::Granted => return Ok(true),
                Verdict::Denied => return Ok(false),
                Verdict::List => {}
            }
            let list = sup.acls()?.acl(op, inode, AclKind::Access)?;
            let now = Perm::from(&inode.attr());
            match list {
                // Mode, owner and list must be of one moment.
                Some(list) if now == perm || look == LOOKS => {
                    return Ok(list.allows_who(op, perm.uid, perm.gid, want));
                }
                // If attributes say only that there may be a list, each answer to any caller may say so again. Such
                // a bit is then ignored, and the group's bits are its permissions. (Otherwise the attributes have
                // changed too.)
                None if sup.features.passes_through && (bare(now) == bare(perm) || look == LOOKS) => {
                    return Ok(verdict(op, bare(now), want) == Verdict::Granted);
                }
                _ => {}
            }
            perm = now;
        }
        // The attributes say that there is a list, but there is none. The group's bits are a mask, so nobody gets
        // permissions from them.
        Ok(false)
    }

    /// Whether only the driver's list can decide on the permission to search a directory.
    pub(crate) fn search_needs_list(&self, op: &Op, dir: &Inode<'_>) -> bool {
        !op.trusted && verdict(op, (&dir.attr()).into(), Access::EXEC) == Verdict::List
    }

    /// The list, if there is one. The driver is not asked for an access list that is known to be absent.
    fn acl_of(
        &self,
        op: &Op,
        sup: &SuperRef,
        inode: &Inode<'_>,
        attr: &Attr,
        kind: AclKind,
    ) -> Result<Option<Arc<Acl>>> {
        match kind {
            AclKind::Access if !attr.acl => Ok(None),
            AclKind::Default if !attr.is_dir() => Ok(None),
            AclKind::Access | AclKind::Default => sup.acls()?.acl(op, inode, kind),
        }
    }

    /// EOPNOTSUPP if the inode cannot have lists.
    fn require_lists(sup: &SuperRef, inode: &Inode<'_>) -> Result<()> {
        if sup.features.acl && !sup.features.passes_through && inode.fmt() != mode::S_IFLNK {
            Ok(())
        } else {
            Err(Errno::OPNOTSUPP)
        }
    }

    /// A list as an extended attribute's value. No permission is needed.
    ///
    /// # Errors
    /// EOPNOTSUPP, ENODATA, and the driver's errors.
    pub(super) fn get_list(&self, op: &Op, inode: &Inode<'_>, kind: AclKind) -> Result<Vec<u8>> {
        let sup = self.sup(inode)?;
        Self::require_lists(&sup, inode)?;
        let list = self.acl_of(op, &sup, inode, &self.attr_now(op, inode)?, kind)?;
        list.map(|list| list.to_xattr()).ok_or(Errno::NODATA)
    }

    /// The names of the extended attributes that represent lists, each followed by a nul.
    pub(super) fn list_names(&self, op: &Op, sup: &SuperRef, inode: &Inode<'_>) -> Result<Vec<u8>> {
        let mut names = Vec::new();
        if Self::require_lists(sup, inode).is_err() {
            return Ok(names);
        }
        let attr = self.attr_now(op, inode)?;
        for kind in AclKind::ALL {
            if self.acl_of(op, sup, inode, &attr, kind)?.is_some() {
                names.extend_from_slice(kind.xattr());
                names.push(0);
            }
        }
        Ok(names)
    }

    /// Sets or removes a list. An access list changes the mode, and a list that says no more than the mode is not
    /// kept. The set-group-id bit is cleared if the caller is not a member of the group.
    ///
    /// # Errors
    /// EROFS, EOPNOTSUPP, EACCES (a default list on a non-directory), EPERM (not the owner), EINVAL, and the
    /// driver's errors.
    pub(super) fn set_list(
        &self,
        op: &Op,
        inode: &Inode<'_>,
        kind: AclKind,
        entries: Option<Vec<AclEntry>>,
    ) -> Result<()> {
        let sup = self.sup(inode)?;
        Self::require_lists(&sup, inode)?;
        if kind == AclKind::Default && inode.fmt() != mode::S_IFDIR {
            return if entries.is_some() { Err(Errno::ACCESS) } else { Ok(()) };
        }
        let _locked = self.inode_locks.take(inode.id());
        let attr = self.attr_now(op, inode)?;
        permission::require_owner(op, &attr)?;
        let list = entries.map(Acl::new).transpose()?;
        if kind == AclKind::Default {
            return sup.acls()?.set_acl(op, inode, kind, list.map(Arc::new), None);
        }
        let mut mode = attr.mode & (RWX | mode::S_ISUID | mode::S_ISGID | mode::S_ISVTX);
        if let Some(list) = &list {
            mode = mode & !RWX | list.mode();
        }
        // Trusted callers too: no front end's kernel does this for the VFS.
        if !permission::keeps_sgid(op, attr.gid) {
            mode &= !mode::S_ISGID;
        }
        let list = list.filter(|list| !list.is_minimal()).map(Arc::new);
        sup.acls()?.set_acl(op, inode, kind, list, Some(mode))
    }

    /// Changes attributes through the driver, with the inode lock held. A change of mode also changes the list.
    pub(super) fn set_with_list(
        &self,
        op: &Op,
        sup: &SuperRef,
        inode: &Inode<'_>,
        attr: &Attr,
        set: &SetAttr,
    ) -> Result<()> {
        // A driver that calls in the caller's name changes list and mode in one step.
        let lists = attr.acl && !sup.features.passes_through;
        let Some(mode) = set.mode.filter(|mode| lists && (mode ^ attr.mode) & RWX != 0) else {
            return sup.driver.setattr(op, inode, set);
        };
        let Some(list) = sup.acls()?.acl(op, inode, AclKind::Access)? else {
            return sup.driver.setattr(op, inode, set);
        };
        let rest = SetAttr { mode: None, ..*set };
        if rest.changes_anything() {
            sup.driver.setattr(op, inode, &rest)?;
        }
        sup.acls()?.set_acl(op, inode, AclKind::Access, Some(Arc::new(list.with_mode(mode))), Some(mode))
    }

    /// Mode and lists of a new node in `dir` with this mode. A driver that calls in the caller's name decides
    /// itself whether a default list or the umask applies.
    pub(super) fn inherited(&self, op: &Op, sup: &SuperRef, dir: &Inode<'_>, mode: u32) -> Result<Inherited> {
        let fmt = mode & mode::S_IFMT;
        if fmt == mode::S_IFLNK || sup.features.passes_through {
            return Ok(Inherited { mode, acl: None, default: None });
        }
        let default = if sup.features.acl { sup.acls()?.acl(op, dir, AclKind::Default)? } else { None };
        let Some(default) = default else {
            return Ok(Inherited { mode: mode & !(op.umask & RWX), acl: None, default: None });
        };
        let (bits, acl) = default.inherited(mode & RWX);
        let default = (fmt == mode::S_IFDIR).then_some(default);
        Ok(Inherited { mode: mode & !RWX | bits, acl: acl.map(Arc::new), default })
    }
}
