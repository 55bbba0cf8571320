//! Extended attributes, access control lists among them: the host keeps and checks them.
//!
//! Over a mount the kernel checks access control lists too, before it asks for names and attributes. For a caller of
//! the library the VFS checks them: it asks for the list of each file that may have one. If there is none, the cache
//! keeps that with the attributes.
//!
//! Most files have none, and are asked for some all the same: by a kernel that checks lists, and by `ls -l` for each
//! file. A node of a watched source records that it has none ([`Node::bare`](super::node::Node::bare)), until a
//! change of its attributes is reported.
//!
//! There are no calls for O_PATH descriptors. So the file is named by its descriptor below /proc/self/fd, which leads
//! to that very file, even if it is a symbolic link.

use std::os::fd::AsFd;
use std::sync::Arc;

use rustix::fs::{
    XattrFlags as HostFlags, getxattr, getxattr_query, listxattr, listxattr_query, removexattr, setxattr,
};
use uvfs::types::{Access, Attr, Errno, Op, Result, XattrFlags};
use uvfs::{Acl, AclKind, Inode};

use super::Mirror;
use super::node::Node;
use super::owners::Judge;
use super::reach::{At, proc_path};

/// Most values fit; a larger one is asked for twice.
const USUAL: usize = 256;

/// Attributes that programs ask for of each file that they list, and the kernel of each directory on a walk. Anybody
/// may read them.
fn asked_of_each(name: &[u8]) -> bool {
    matches!(name, b"system.posix_acl_access" | DEFAULT_LIST | b"security.capability" | LABEL)
}

/// Whether a file has none of [`asked_of_each`], nor any other that would be listed. A label may exist and not be
/// listed.
fn has_none(path: &str) -> bool {
    listxattr_query(path) == Ok(0) && getxattr_query(path, LABEL) == Err(Errno::NODATA)
}

/// Whether a file's readers read it, and its writers set it.
fn is_users(name: &[u8]) -> bool {
    name.starts_with(b"user.")
}

const LABEL: &[u8] = b"security.selinux";
/// The list that files inherit from the directory in which they are made.
const DEFAULT_LIST: &[u8] = b"system.posix_acl_default";

/// Whether the file system of this file has access control lists.
pub(super) fn has_lists(fd: impl AsFd) -> bool {
    let got = getxattr_query(proc_path(fd), DEFAULT_LIST);
    matches!(got, Ok(_) | Err(Errno::NODATA | Errno::RANGE))
}

/// Calls `get` with a buffer of the size that `query` returns, until the answer fits.
fn whole(get: impl Fn(&mut [u8]) -> Result<usize>, query: impl Fn() -> Result<usize>) -> Result<Vec<u8>> {
    let mut bytes = vec![0; USUAL];
    loop {
        match get(&mut bytes) {
            Ok(len) => {
                bytes.truncate(len);
                return Ok(bytes);
            }
            // It may have grown between the two.
            Err(Errno::RANGE) => bytes.resize(query()?.max(bytes.len() + 1), 0),
            Err(errno) => return Err(errno),
        }
    }
}

fn value(path: &str, name: &[u8]) -> Result<Vec<u8>> {
    whole(|bytes| getxattr(path, name, bytes), || getxattr_query(path, name))
}

impl Mirror {
    /// Whether files that are made in this directory inherit a list. If they do, no umask applies.
    pub(super) fn has_default_list(&self, dir: &Node, at: &At<'_>) -> bool {
        if !self.lists || self.is_bare(dir) {
            return false;
        }
        let bare = self.bare_now();
        let path = proc_path(at);
        if matches!(getxattr_query(&path, DEFAULT_LIST), Ok(len) if len > 0) {
            return true;
        }
        // Once for many files that are made.
        if let Some(bare) = bare.filter(|_| has_none(&path)) {
            self.mark_bare(dir, &bare);
        }
        false
    }

    /// The access control list of a file. If it has none, the cache notes that.
    pub(super) fn list_of(&self, inode: &Inode<'_>) -> Result<Option<Arc<Acl>>> {
        let _turn = self.budget.turn();
        let asked = inode.revision();
        let (_, at) = self.reach_inode(inode)?;
        let list = match value(&proc_path(&at), AclKind::Access.xattr()) {
            Ok(bytes) => Acl::from_xattr(&bytes)?,
            Err(Errno::NODATA | Errno::OPNOTSUPP) => None,
            Err(errno) => return Err(errno),
        };
        if list.is_none() {
            // Attributes of the same moment or later, unless they have changed since: then the list is asked for once
            // more.
            let attr = Attr { acl: false, ..self.shown(inode.ino(), self.attr_at(&at)?) };
            inode.refresh_unless_changed(asked, &attr, self.believed());
        }
        Ok(list.map(Arc::new))
    }

    /// A file that is not to be changed. An open file is used as it is, without a walk: a kernel asks for
    /// capabilities before the first write to each file.
    fn reach_to_ask(&self, node: &Node, inode: &Inode<'_>) -> Result<At<'_>> {
        match node.find_open(|_| true) {
            Some(open) => Ok(At::Kept(open)),
            None => self.reach_inode(inode).map(|(_, at)| at),
        }
    }

    pub(super) fn get_xattr(&self, op: &Op, inode: &Inode<'_>, name: &[u8]) -> Result<Vec<u8>> {
        let node = self.node(inode)?;
        if node.covered() || self.is_withheld(name) || (asked_of_each(name) && self.is_bare(&node)) {
            return Err(Errno::NODATA);
        }
        let _turn = self.budget.turn();
        let bare = self.bare_now();
        let at = self.reach_to_ask(&node, inode)?;
        let path = proc_path(&at);
        if !asked_of_each(name) {
            let mut judge = self.judge(op);
            if is_users(name) {
                judge.may(&at, Access::READ)?;
            }
            let _acting = judge.act()?;
            return value(&path, name);
        }
        match value(&path, name) {
            Err(Errno::NODATA) => {
                if let Some(bare) = bare.filter(|_| has_none(&path)) {
                    self.mark_bare(&node, &bare);
                }
                Err(Errno::NODATA)
            }
            // The host answers so for some kinds of file only. A kernel that checks lists would take it for a
            // failure.
            Err(Errno::OPNOTSUPP) if self.lists && name.starts_with(b"system.") => Err(Errno::NODATA),
            outcome => outcome,
        }
    }

    pub(super) fn list_xattr(&self, inode: &Inode<'_>) -> Result<Vec<u8>> {
        let node = self.node(inode)?;
        if node.covered() || self.is_bare(&node) {
            return Ok(Vec::new());
        }
        let _turn = self.budget.turn();
        let bare = self.bare_now();
        let at = self.reach_to_ask(&node, inode)?;
        let path = proc_path(&at);
        let names = whole(|bytes| listxattr(&path, bytes), || listxattr_query(&path))?;
        if let Some(bare) = bare.filter(|_| names.is_empty() && has_none(&path)) {
            self.mark_bare(&node, &bare);
        }
        if self.owners.is_none() {
            return Ok(names);
        }
        let kept = names.split_inclusive(|byte| *byte == 0).filter(|name| !self.is_withheld(name));
        Ok(kept.collect::<Vec<_>>().concat())
    }

    /// # Errors
    /// EOPNOTSUPP for an attribute that is not there under other owners, EACCES.
    fn judge_attribute<'m>(&'m self, op: &'m Op, at: &At<'_>, name: &[u8]) -> Result<Judge<'m>> {
        if self.is_withheld(name) {
            return Err(Errno::OPNOTSUPP);
        }
        let mut judge = self.judge(op);
        if is_users(name) {
            judge.may(at, Access::WRITE)?;
        }
        Ok(judge)
    }

    pub(super) fn set_xattr(
        &self,
        op: &Op,
        inode: &Inode<'_>,
        name: &[u8],
        value: &[u8],
        flags: XattrFlags,
    ) -> Result<()> {
        let mut how = HostFlags::empty();
        how.set(HostFlags::CREATE, flags.contains(XattrFlags::CREATE));
        how.set(HostFlags::REPLACE, flags.contains(XattrFlags::REPLACE));
        let (node, at) = self.reach_inode(inode)?;
        let acting = self.judge_attribute(op, &at, name)?.act()?;
        let outcome = setxattr(proc_path(&at), name, value, how);
        drop(acting);
        self.not_bare(&node);
        // A list may have changed the mode.
        self.settle(inode, &at);
        outcome
    }

    pub(super) fn remove_xattr(&self, op: &Op, inode: &Inode<'_>, name: &[u8]) -> Result<()> {
        let (_, at) = self.reach_inode(inode)?;
        let acting = self.judge_attribute(op, &at, name)?.act()?;
        let outcome = removexattr(proc_path(&at), name);
        drop(acting);
        self.settle(inode, &at);
        outcome
    }
}
