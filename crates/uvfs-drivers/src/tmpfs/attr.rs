//! Changing attributes, size included.

use uvfs::driver::Inode;
use uvfs::types::{Attr, Errno, Op, Result, SetAttr, SetTime, mode};

use super::Tmpfs;
use super::file_data::{MAX_SIZE, PAGE_BLOCKS};
use super::node::Node;

/// Mode bits besides the type.
const BITS: u32 = 0o7777;

impl Tmpfs {
    pub(super) fn set_attr(&self, op: &Op, inode: &Inode<'_>, set: &SetAttr) -> Result<()> {
        if let Some(done) = self.set_attr_moved(op, inode, set) {
            return done;
        }
        let Some(size) = set.size else {
            inode.update(|attr| apply(attr, op, set));
            // It may have moved just before.
            return self.set_attr_moved(op, inode, set).unwrap_or(Ok(()));
        };
        if inode.fmt() != mode::S_IFREG {
            return Err(Errno::INVAL);
        }
        if size > MAX_SIZE {
            return Err(Errno::FBIG);
        }
        match self.node(inode) {
            // A file without a node is empty. If another thread makes a node and writes meanwhile, that write is
            // ordered after this change.
            None if size == 0 => inode.update(|attr| resized(attr, op, set)),
            _ => return self.resize(op, inode, self.node_or_new(inode)?, size, set),
        }
        Ok(())
    }

    /// The new size is published before pages are freed. So a reader that finds a hole in their place
    /// also finds the file shorter. Setting the size that a file already has frees what was allocated
    /// beyond it.
    fn resize(&self, op: &Op, inode: &Inode<'_>, node: &Node, size: u64, set: &SetAttr) -> Result<()> {
        let mut writer = node.mapping.lock(&self.memory);
        if node.home.is_moved() {
            // It moved after the first look.
            drop(writer);
            return self.set_attr_moved(op, inode, set).unwrap_or(Err(Errno::STALE));
        }
        let old = inode.update(|attr| {
            let old = attr.size;
            attr.size = size;
            resized(attr, op, set);
            old
        });
        if size <= old {
            let removed = self.cut(&mut writer, size);
            if removed != 0 {
                inode.update(|attr| attr.blocks -= removed * PAGE_BLOCKS);
            }
        }
        Ok(())
    }
}

/// Sets the times of a size change (even to the same size), and the other requested attributes.
pub(super) fn resized(attr: &mut Attr, op: &Op, set: &SetAttr) {
    attr.mtime = op.now;
    apply(attr, op, set);
}

/// Sets everything but the size.
pub(super) fn apply(attr: &mut Attr, op: &Op, set: &SetAttr) {
    let time = |set: SetTime| match set {
        SetTime::Now => op.now,
        SetTime::At(time) => time,
    };
    if let Some(mode) = set.mode {
        attr.mode = attr.fmt() | mode & BITS;
    }
    attr.uid = set.uid.unwrap_or(attr.uid);
    attr.gid = set.gid.unwrap_or(attr.gid);
    attr.atime = set.atime.map_or(attr.atime, time);
    attr.mtime = set.mtime.map_or(attr.mtime, time);
    attr.ctime = op.now;
}
