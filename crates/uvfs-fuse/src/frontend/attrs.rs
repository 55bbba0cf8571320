//! Attributes and extended attributes.

use std::time::Duration;

use uvfs::{
    Access, AclKind, Attr, Errno, FileFlags, FlagsForm, Inode, Op, Result, SetAttr, SetTime, XattrFlags, mode,
};

use super::request_counters::Count;
use super::{Core, Frontend, Who};
use crate::transport::{Attributes, Caller, Flagged, NodeId, Reply, Statx, Xattr};

/// Longest value of an extended attribute (`XATTR_SIZE_MAX`) and longest list (`XATTR_LIST_MAX`).
const XATTR_MAX: usize = 65536;

impl Frontend {
    pub(crate) fn getattr(&self, who: Caller, node: NodeId, reply: impl Reply<Attributes>) {
        self.core.tally.add(Count::Getattr, 1);
        match self.core.inode(node) {
            // No driver is asked for what the cache still vouches for.
            Ok(inode) if !self.core.is_written(&inode) && !inode.expired() => {
                reply.send(Ok(self.core.attributes(&inode, inode.attr())))
            }
            Ok(_) => self.answer_anybody(who, node, reply, |core, op, inode| core.attributes_now(op, inode)),
            Err(error) => reply.send(Err(error)),
        }
    }

    /// If the root's driver knows no birth times, the kernel is told so once, and never asks again. It asks only
    /// for callers that want one. Once it has asked, it keeps the birth time as long as it knows the inode.
    pub(crate) fn statx(&self, who: Caller, node: NodeId, reply: impl Reply<Statx>) {
        if !self.core.vfs.knows_births(&self.core.vfs.root()) {
            return reply.send(Err(Errno::NOSYS));
        }
        self.core.tally.add(Count::Getattr, 1);
        self.answer_anybody(who, node, reply, |core, op, inode| {
            // Before the attributes, so that these are as fresh as they can be.
            let birth = core.vfs.birth(op, inode)?;
            Ok(Statx { attributes: core.attributes_now(op, inode)?, birth })
        });
    }

    pub(crate) fn get_flags(&self, who: Caller, node: NodeId, form: FlagsForm, reply: impl Reply<Flagged>) {
        self.answer(who, node, reply, move |core, op, inode| {
            core.vfs.file_flags(op, inode, form).map(Flagged::Told)
        });
    }

    pub(crate) fn set_flags(&self, who: Caller, node: NodeId, flags: FileFlags, reply: impl Reply<Flagged>) {
        self.answer(who, node, reply, move |core, op, inode| {
            core.vfs.set_file_flags(op, inode, &flags).map(|()| Flagged::Set)
        });
    }

    /// `fh`: the open file by which the size is set.
    pub(crate) fn setattr(
        &self,
        who: Caller,
        node: NodeId,
        set: SetAttr,
        fh: Option<u64>,
        reply: impl Reply<Attributes>,
    ) {
        // Only a member of a group may give it a file, or a file of it the set-group-id bit.
        let of_group = set.gid.is_some() || set.mode.is_some_and(|bits| bits & mode::S_ISGID != 0);
        let asks = if of_group { Who::Member(who) } else { Who::Owner(who) };
        self.answer_to(asks, node, reply, move |core, op, inode| {
            // Also one that is open for reading only (O_RDONLY with O_TRUNC), which permits nothing.
            let opened = fh.is_some_and(|fh| !core.checks() || core.vfs.is_open_for(fh, Access::WRITE));
            let set = SetAttr { opened, ..set };
            let unreported = core.changes_unreported(inode);
            let attr = match set.changes_anything() {
                true if opened => core.set(&core.op_by_handle(op, who), inode, set)?,
                true => core.set(op, inode, set)?,
                false => core.set_nothing(&core.op_by_handle(op, who), inode)?,
            };
            let mut attributes = core.attributes_of_changed(inode, attr);
            // The kernel takes this answer as it is, even if the file was lent since.
            if unreported || core.changes_unreported(inode) {
                attributes.ttl = Duration::ZERO;
            }
            Ok(attributes)
        });
    }

    /// access(2), and chdir(2), where the kernel does not check; `mask` is that of access(2). To ENOSYS it does not ask again.
    pub(crate) fn access(&self, who: Caller, node: NodeId, mask: u32, reply: impl Reply<()>) {
        if !self.core.checks() {
            return reply.send(Err(Errno::NOSYS));
        }
        self.answer_anybody(who, node, reply, move |core, op, inode| {
            core.vfs.access(op, inode, Access::from_bits_truncate(mask))
        });
    }

    /// `size` 0 asks how large the value is; ERANGE if it is larger than `size`.
    pub(crate) fn getxattr(
        &self,
        who: Caller,
        node: NodeId,
        name: &[u8],
        size: u32,
        reply: impl Reply<Xattr>,
    ) {
        let name = name.to_vec();
        // These the kernel asks for by itself, at every turn, and anybody may know them.
        let asked_by_kernel = AclKind::of_xattr(&name).is_some() || name == b"security.capability";
        let who = if asked_by_kernel { Who::Anybody(who) } else { Who::Member(who) };
        self.answer_to(who, node, reply, move |core, op, inode| {
            Core::sized(core.xattr(op, inode, &name)?, size)
        });
    }

    /// As [`Frontend::getxattr`], for the list of names.
    pub(crate) fn listxattr(&self, who: Caller, node: NodeId, size: u32, reply: impl Reply<Xattr>) {
        self.answer_anybody(who, node, reply, move |core, op, inode| {
            Core::sized(core.vfs.listxattr(op, inode)?, size)
        });
    }

    /// `flags` are those of setxattr(2). File capabilities are refused: under
    /// FUSE_HANDLE_KILLPRIV_V2 the server must drop them before every change of the data, and to
    /// look for one before every write would cost all files for the sake of few.
    pub(crate) fn setxattr(
        &self,
        who: Caller,
        node: NodeId,
        name: &[u8],
        value: &[u8],
        flags: i32,
        reply: impl Reply<()>,
    ) {
        let flags = u32::try_from(flags).ok().and_then(XattrFlags::from_bits);
        let Some(flags) = flags else {
            return reply.send(Err(Errno::INVAL));
        };
        if name == b"security.capability" {
            return reply.send(Err(Errno::OPNOTSUPP));
        }
        let (name, value) = (name.to_vec(), value.to_vec());
        self.answer(who, node, reply, move |core, op, inode| {
            core.vfs.setxattr(op, inode, &name, &value, flags)
        });
    }

    pub(crate) fn removexattr(&self, who: Caller, node: NodeId, name: &[u8], reply: impl Reply<()>) {
        let name = name.to_vec();
        self.answer(who, node, reply, move |core, op, inode| core.vfs.removexattr(op, inode, &name));
    }
}

impl Core {
    fn attributes_now(&self, op: &Op, inode: &Inode<'_>) -> Result<Attributes> {
        let unreported = self.changes_unreported(inode);
        // In this order: once it is not written any more, the cache is right.
        let attr = match self.is_written(inode) {
            true => self.vfs.look(op, inode)?,
            false => self.vfs.getattr(op, inode)?,
        };
        let mut attributes = self.attributes(inode, attr);
        if unreported {
            attributes.ttl = Duration::ZERO;
        }
        Ok(attributes)
    }

    /// Changes attributes, clearing set-id bits as FUSE_HANDLE_KILLPRIV_V2 asks the server to: by
    /// a change of owner always (directories excepted), by truncation where the kernel says in
    /// FATTR_KILL_SUIDGID that the caller lacks CAP_FSETID.
    ///
    /// A truncation comes without times. It sets them even where the size stays: `: > file` is a
    /// way to touch a file, and that it was an open is not told.
    pub(super) fn set(&self, op: &Op, inode: &Inode<'_>, mut set: SetAttr) -> Result<Attr> {
        let owner = set.uid.is_some() || set.gid.is_some();
        set.kill_suidgid |= owner && inode.fmt() != mode::S_IFDIR;
        if set.size.is_some() {
            set.mtime = set.mtime.or(Some(SetTime::Now));
        }
        self.vfs.setattr(op, inode, &set)
    }

    /// A change that names nothing. It is a chown with neither owner nor group, for which set-id bits go. Or it
    /// goes before a write or fallocate by a caller that may not keep them. The kernel does not say which. The
    /// owner loses them by either. From anybody else only the first would have to be refused: it does nothing, and
    /// what is then written takes the bits by itself. If the kernel writes the file by itself, it is taken for the second.
    fn set_nothing(&self, op: &Op, inode: &Inode<'_>) -> Result<Attr> {
        let op = Op { trusted: false, ..op.clone() };
        match self.vfs.chown(&op, inode, None, None) {
            Err(Errno::PERM) if self.is_before_write(inode) => {
                let set = SetAttr { kill_suidgid: true, ..SetAttr::default() };
                self.vfs.setattr(&Op { trusted: true, ..op }, inode, &set)
            }
            Err(Errno::PERM) => self.vfs.getattr(&op, inode),
            outcome => outcome,
        }
    }

    /// The value of an extended attribute. A kernel that checks access control lists asks for them everywhere
    /// in the mount, and takes any answer but a list or ENODATA for the outcome of the check.
    fn xattr(&self, op: &Op, inode: &Inode<'_>, name: &[u8]) -> Result<Vec<u8>> {
        match self.vfs.getxattr(op, inode, name) {
            Err(Errno::OPNOTSUPP) if self.acls && !self.checks() && AclKind::of_xattr(name).is_some() => {
                Err(Errno::NODATA)
            }
            outcome => outcome,
        }
    }

    /// The size if that was asked for, else the bytes if they fit; E2BIG where no caller could
    /// ask for enough.
    fn sized(bytes: Vec<u8>, size: u32) -> Result<Xattr> {
        if bytes.len() > XATTR_MAX {
            return Err(Errno::TOOBIG);
        }
        match size as usize {
            0 => Ok(Xattr::Size(bytes.len() as u32)),
            size if bytes.len() > size => Err(Errno::RANGE),
            _ => Ok(Xattr::Bytes(bytes)),
        }
    }
}
