//! Access control lists in operations: permissions that a list decides, the extended attributes that
//! stand for lists, what a change of mode does to one, what a new node inherits.
//!
//! A list is its driver's. It is asked for only where mode bits leave the question open
//! ([`Verdict::List`]), with nothing held; [`Attr::acl`] says without asking that there is none. Changes are
//! made in the inode's turn, list and mode by one call of the driver. The rules are the
//! kernel's, the order of errors too; what lists mean stands in [`crate::acl`].

use std::sync::Arc;

use crate::acl::{Acl, AclEntry, AclKind};
use crate::driver::Inode;
use crate::mount::SuperRef;
use crate::permission::{self, Verdict, overrides, verdict};
use crate::powers::Who;
use crate::types::{Access, Attr, Errno, Op, Perm, Result, SetAttr, mode};
use crate::vfs::Vfs;

/// Permission bits that a list shows in.
const RWX: u32 = 0o777;
/// Looks at mode and list, while others change them, before what was seen last counts.
const LOOKS: u32 = 4;

/// What a new node gets of its directory's default list.
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
    /// The permission to do `want` with an inode that has these attributes; EACCES. A trusted operation has it.
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
        // A group may have been denied what others are not.
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
            let list = sup.driver.acl(op, inode, AclKind::Access)?;
            let now = Perm::from(&inode.attr());
            match list {
                // Mode, owner and list shall be of one moment.
                Some(list) if now == perm || look == LOOKS => {
                    return Ok(list.allows_who(op, perm.uid, perm.gid, want));
                }
                // Where attributes only say that there may be one, each answer to anybody may say so again: none is
                // believed, and the group's bits are its permissions. (Elsewhere the attributes have changed, too.)
                None if sup.features.passes_through && (bare(now) == bare(perm) || look == LOOKS) => {
                    return Ok(verdict(op, bare(now), want) == Verdict::Granted);
                }
                _ => {}
            }
            perm = now;
        }
        // Attributes that speak of a list, and none. The group's bits are a mask, and nobody's permissions.
        Ok(false)
    }

    /// Whether the permission to search a directory is a question that its driver has to be asked.
    pub(crate) fn search_needs_list(&self, op: &Op, dir: &Inode<'_>) -> bool {
        !op.trusted && verdict(op, (&dir.attr()).into(), Access::EXEC) == Verdict::List
    }

    /// The list, where there is one; nobody is asked for an access list that is known not to be there.
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
            AclKind::Access | AclKind::Default => sup.driver.acl(op, inode, kind),
        }
    }

    /// EOPNOTSUPP where an inode cannot have lists.
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
    /// EOPNOTSUPP, ENODATA, and what the driver answers.
    pub(super) fn get_list(&self, op: &Op, inode: &Inode<'_>, kind: AclKind) -> Result<Vec<u8>> {
        let sup = self.sup(inode)?;
        Self::require_lists(&sup, inode)?;
        let list = self.acl_of(op, &sup, inode, &self.attr_now(op, inode)?, kind)?;
        list.map(|list| list.to_xattr()).ok_or(Errno::NODATA)
    }

    /// The names of the extended attributes that lists show as, each followed by a nul.
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

    /// Sets a list, or removes it. An access list changes the mode, and no list is kept that says no more than
    /// that; set-group-id goes where the caller is no member of the group.
    ///
    /// # Errors
    /// EROFS, EOPNOTSUPP, EACCES (a default list on what is no directory), EPERM (not the owner), EINVAL, and
    /// what the driver answers.
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
        let _turn = self.inode_locks.take(inode.id());
        let attr = self.attr_now(op, inode)?;
        permission::require_owner(op, &attr)?;
        let list = entries.map(Acl::new).transpose()?;
        if kind == AclKind::Default {
            return sup.driver.set_acl(op, inode, kind, list.map(Arc::new), None);
        }
        let mut mode = attr.mode & (RWX | mode::S_ISUID | mode::S_ISGID | mode::S_ISVTX);
        if let Some(list) = &list {
            mode = mode & !RWX | list.mode();
        }
        // Trusted or not: no front end's kernel does this for us.
        if !permission::keeps_sgid(op, attr.gid) {
            mode &= !mode::S_ISGID;
        }
        let list = list.filter(|list| !list.is_minimal()).map(Arc::new);
        sup.driver.set_acl(op, inode, kind, list, Some(mode))
    }

    /// Changes attributes at the driver, in the inode's turn; a change of mode is one of the list too.
    pub(super) fn set_with_list(
        &self,
        op: &Op,
        sup: &SuperRef,
        inode: &Inode<'_>,
        attr: &Attr,
        set: &SetAttr,
    ) -> Result<()> {
        // A file system that works in the caller's name changes list and mode in one.
        let lists = attr.acl && !sup.features.passes_through;
        let Some(mode) = set.mode.filter(|mode| lists && (mode ^ attr.mode) & RWX != 0) else {
            return sup.driver.setattr(op, inode, set);
        };
        let Some(list) = sup.driver.acl(op, inode, AclKind::Access)? else {
            return sup.driver.setattr(op, inode, set);
        };
        let rest = SetAttr { mode: None, ..*set };
        if rest.changes_anything() {
            sup.driver.setattr(op, inode, &rest)?;
        }
        sup.driver.set_acl(op, inode, AclKind::Access, Some(Arc::new(list.with_mode(mode))), Some(mode))
    }

    /// Mode and lists of what is made in `dir` with this mode. A file system that works in the caller's name knows itself
    /// whether there is a default list or the umask applies.
    pub(super) fn inherited(&self, op: &Op, sup: &SuperRef, dir: &Inode<'_>, mode: u32) -> Result<Inherited> {
        let fmt = mode & mode::S_IFMT;
        if fmt == mode::S_IFLNK || sup.features.passes_through {
            return Ok(Inherited { mode, acl: None, default: None });
        }
        let default = if sup.features.acl { sup.driver.acl(op, dir, AclKind::Default)? } else { None };
        let Some(default) = default else {
            return Ok(Inherited { mode: mode & !(op.umask & RWX), acl: None, default: None });
        };
        let (bits, acl) = default.inherited(mode & RWX);
        let default = (fmt == mode::S_IFDIR).then_some(default);
        Ok(Inherited { mode: mode & !RWX | bits, acl: acl.map(Arc::new), default })
    }
}
