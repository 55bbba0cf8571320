//! Access control lists: at most two per inode, counted against the size as extended attributes are.
//!
//! The VFS decides the meaning of a list, and whether a caller may set it. This file stores it together with mode and
//! flag, under the node's `extra` lock. A reader may still see list and mode from two different moments; the VFS
//! checks for that.

use std::sync::Arc;

use uvfs::acl::{Acl, AclKind};
use uvfs::driver::Inode;
use uvfs::types::{Attr, Errno, Make, Op, Result};

use super::Tmpfs;
use super::node::Extra;
use super::xattr::{self, LIST_MAX};

/// The bytes of a list that count against the size.
pub(super) fn charge(kind: AclKind, acl: &Acl) -> u64 {
    xattr::charge(kind.xattr(), &[]) + acl.xattr_len() as u64
}

/// The data of a new inode besides its attributes, if any.
pub(super) fn extra_of(make: &Make<'_>, linkable: bool) -> Option<Extra> {
    let acls = [make.acl.cloned(), make.default_acl.cloned()];
    let some = linkable || make.target.is_some() || acls.iter().any(Option::is_some);
    some.then(|| Extra { target: make.target.unwrap_or_default().into(), acls, linkable, ..Extra::default() })
}

impl Tmpfs {
    pub(super) fn get_acl(&self, inode: &Inode<'_>, kind: AclKind) -> Option<Arc<Acl>> {
        self.with_extra(inode, |extra| extra.acls[kind as usize].clone()).flatten()
    }

    pub(super) fn put_acl(
        &self,
        op: &Op,
        inode: &Inode<'_>,
        kind: AclKind,
        acl: Option<Arc<Acl>>,
        mode: Option<u32>,
    ) -> Result<()> {
        let listed = acl.is_some();
        let update = |attr: &mut Attr| {
            attr.acl = if kind == AclKind::Access { listed } else { attr.acl };
            attr.mode = mode.map_or(attr.mode, |mode| attr.fmt() | mode & 0o7777);
            attr.ctime = op.now;
        };
        // An inode without a node has no list to remove.
        let node = if listed { Some(self.node_or_new(inode)?) } else { self.node(inode) };
        let Some(node) = node else {
            inode.update(update);
            return Ok(());
        };
        let mut extra = node.extra_mut();
        let (had, names) = extra.as_ref().map_or((0, 0), |extra| (extra.acl_charge(kind), extra.listed()));
        let has = acl.as_ref().map_or(0, |acl| charge(kind, acl));
        if has != 0 && had == 0 && names + kind.xattr().len() + 1 > LIST_MAX {
            return Err(Errno::NOSPC);
        }
        // Bytes are taken before anything changes and given back afterwards, so the count is never too low.
        if !self.bytes.take(has.saturating_sub(had)) {
            return Err(Errno::NOSPC);
        }
        if listed || had != 0 {
            extra.get_or_insert_default().acls[kind as usize] = acl;
        }
        self.bytes.give(had.saturating_sub(has));
        inode.update(update);
        Ok(())
    }
}
