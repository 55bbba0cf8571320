//! Extended attributes: which names may be used on which nodes and by whom; drivers only store.
//!
//! The namespaces' rules are those of xattr(7). `user.` is for regular files and directories, with the permissions
//! of the data. `trusted.` is for root only, and invisible to others. Root sets `security.`, and all read it.
//! Access control lists have names of their own, with rules in [`super::acl_checks`]. A driver that passes calls through
//! to another file system handles those names and unknown ones, and that file system checks them. These functions
//! return whole values: a too small buffer (ERANGE) is the front end's concern.

use crate::acl::{AclKind, parse};
use crate::driver::Inode;
use crate::groups_and_capabilities::{Capability, Who};
use crate::permission;
use crate::types::{Access, Errno, Op, Result, XattrFlags, mode};
use crate::vfs::Vfs;

/// Longest name, in bytes (`XATTR_NAME_MAX`).
const NAME_MAX: usize = 255;
/// Longest value, in bytes (`XATTR_SIZE_MAX`).
const SIZE_MAX: usize = 65536;

/// The part of a name up to its first dot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Space {
    User,
    Trusted,
    Security,
    /// The file system's own namespace; only access control lists are supported.
    System,
    /// An unsupported namespace.
    Other,
}

/// The namespace of a name, and whether it can be used: EOPNOTSUPP for an unsupported namespace, EINVAL for a
/// namespace alone. Those errors come after the permissions. ERANGE, for a name that is empty or too long, comes
/// before.
fn space(name: &[u8]) -> Result<(Space, Result<()>)> {
    if name.is_empty() || name.len() > NAME_MAX {
        return Err(Errno::RANGE);
    }
    for (prefix, space) in
        [(&b"user."[..], Space::User), (b"trusted.", Space::Trusted), (b"security.", Space::Security)]
    {
        match name.strip_prefix(prefix) {
            Some(rest) if rest.is_empty() || rest.contains(&0) => return Ok((space, Err(Errno::INVAL))),
            Some(_) => return Ok((space, Ok(()))),
            None => {}
        }
    }
    let space = if name.starts_with(b"system.") { Space::System } else { Space::Other };
    Ok((space, Err(Errno::OPNOTSUPP)))
}

/// Whether `user.` names may exist on this type.
fn holds_user_names(inode: &Inode<'_>) -> bool {
    matches!(inode.fmt(), mode::S_IFREG | mode::S_IFDIR)
}

impl Vfs {
    /// The value of an extended attribute.
    ///
    /// # Errors
    /// ENODATA (no such attribute, or none that the caller may see), EACCES, ERANGE (the name's length), EOPNOTSUPP
    /// (the namespace), EINVAL, and the driver's errors.
    pub fn getxattr(&self, op: &Op, inode: &Inode<'_>, name: &[u8]) -> Result<Vec<u8>> {
        if let Some(kind) = self.own_list(inode, name) {
            return self.get_list(op, inode, kind);
        }
        let (space, usable) = space(name)?;
        if matches!(space, Space::System | Space::Other) && self.passes_through(inode) {
            return self.sup(inode)?.driver.getxattr(op, inode, name);
        }
        match space {
            Space::User if !holds_user_names(inode) => return Err(Errno::NODATA),
            Space::User | Space::Other => self.permit(op, inode, Access::READ)?,
            Space::Trusted if !(op.trusted || op.has(Capability::SysAdmin)) => return Err(Errno::NODATA),
            Space::Trusted | Space::Security | Space::System => {}
        }
        usable?;
        self.sup(inode)?.driver.getxattr(op, inode, name)
    }

    /// Sets an extended attribute. The names of access control lists are for the inode's owner. For them an empty
    /// value removes the list, and `flags` have no effect.
    ///
    /// # Errors
    /// EEXIST and ENODATA (`flags`), E2BIG (the value), EPERM (`user.` on other types, or on another's sticky
    /// directory; `trusted.` and `security.` by anyone but root), EACCES, EROFS, ERANGE, EOPNOTSUPP, EINVAL,
    /// ENOSPC, and the driver's errors.
    pub fn setxattr(
        &self,
        op: &Op,
        inode: &Inode<'_>,
        name: &[u8],
        value: &[u8],
        flags: XattrFlags,
    ) -> Result<()> {
        if value.len() > SIZE_MAX {
            return Err(Errno::TOOBIG);
        }
        if let Some(kind) = self.own_list(inode, name) {
            self.sup(inode)?.writable()?;
            return self.set_list(op, inode, kind, parse(value)?);
        }
        self.may_change(op, inode, name)?;
        let _locked = self.inode_locks.take(inode.id());
        self.sup(inode)?.driver.setxattr(op, inode, name, value, flags)
    }

    /// Removes an extended attribute. Errors as [`Vfs::setxattr`]; ENODATA if there is none (except for an access
    /// control list).
    pub fn removexattr(&self, op: &Op, inode: &Inode<'_>, name: &[u8]) -> Result<()> {
        if let Some(kind) = self.own_list(inode, name) {
            self.sup(inode)?.writable()?;
            return self.set_list(op, inode, kind, None);
        }
        self.may_change(op, inode, name)?;
        let _locked = self.inode_locks.take(inode.id());
        self.sup(inode)?.driver.removexattr(op, inode, name)
    }

    /// All names that the caller may see, each followed by a nul.
    pub fn listxattr(&self, op: &Op, inode: &Inode<'_>) -> Result<Vec<u8>> {
        let sup = self.sup(inode)?;
        let mut names = self.list_names(op, &sup, inode)?;
        names.extend(sup.driver.listxattr(op, inode)?);
        // A FUSE kernel passes the list on unchanged, so trust does not make these names visible.
        let is_trusted = |name: &[u8]| name.starts_with(b"trusted.");
        if !names.split(|&b| b == 0).any(is_trusted) || op.has(Capability::SysAdmin) {
            return Ok(names);
        }
        let visible = names.split_inclusive(|&b| b == 0).filter(|name| !is_trusted(name));
        Ok(visible.flatten().copied().collect())
    }

    /// The access control list that a name means, if the VFS checks it.
    fn own_list(&self, inode: &Inode<'_>, name: &[u8]) -> Option<AclKind> {
        AclKind::of_xattr(name).filter(|_| !self.passes_through(inode))
    }

    fn may_change(&self, op: &Op, inode: &Inode<'_>, name: &[u8]) -> Result<()> {
        let (space, usable) = space(name)?;
        self.sup(inode)?.writable()?;
        if matches!(space, Space::System | Space::Other) && self.passes_through(inode) {
            return Ok(());
        }
        match space {
            Space::User if !holds_user_names(inode) => return Err(Errno::PERM),
            Space::User => {
                let attr = self.attr_now(op, inode)?;
                if attr.is_dir() && attr.mode & mode::S_ISVTX != 0 {
                    permission::require_owner(op, &attr)?;
                }
                self.permit(op, inode, Access::WRITE)?;
            }
            Space::Other => self.permit(op, inode, Access::WRITE)?,
            Space::System => {}
            Space::Trusted | Space::Security if op.trusted || op.has(Capability::SysAdmin) => {}
            Space::Trusted | Space::Security => return Err(Errno::PERM),
        }
        usable
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_fall_into_namespaces() {
        let long = |n: usize| [b"user.".as_slice(), &vec![b'x'; n - 5]].concat();
        for (name, want) in [
            (b"user.a".to_vec(), Ok((Space::User, Ok(())))),
            (b"trusted.a".to_vec(), Ok((Space::Trusted, Ok(())))),
            (b"security.selinux".to_vec(), Ok((Space::Security, Ok(())))),
            (b"user.".to_vec(), Ok((Space::User, Err(Errno::INVAL)))),
            (b"user.a\0b".to_vec(), Ok((Space::User, Err(Errno::INVAL)))),
            (b"users.a".to_vec(), Ok((Space::Other, Err(Errno::OPNOTSUPP)))),
            (b"system.other".to_vec(), Ok((Space::System, Err(Errno::OPNOTSUPP)))),
            (b"plain".to_vec(), Ok((Space::Other, Err(Errno::OPNOTSUPP)))),
            (Vec::new(), Err(Errno::RANGE)),
            (long(255), Ok((Space::User, Ok(())))),
            (long(256), Err(Errno::RANGE)),
        ] {
            assert_eq!(space(&name), want, "{}", String::from_utf8_lossy(&name));
        }
    }
}
