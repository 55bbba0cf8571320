//! Extended attributes: a small map per inode, counted against the size.
//!
//! The VFS decides which names may be used on which inodes, and by whom. It also checks the lengths of names
//! and values. The node's `extra` lock protects the map.

use uvfs::driver::Inode;
use uvfs::types::{Errno, Op, Result, XattrFlags};

use super::Tmpfs;
use super::node::Extra;

/// Most bytes of all names of an inode, each with a nul (`XATTR_LIST_MAX`): more could be set but
/// never listed.
pub(super) const LIST_MAX: usize = 65536;
/// The bytes that an attribute counts besides its name and value, for the map entry.
const OVERHEAD: u64 = 64;

/// The bytes that an attribute counts against the size.
pub(super) fn charge(name: &[u8], value: &[u8]) -> u64 {
    OVERHEAD + (name.len() + value.len()) as u64
}

impl Tmpfs {
    pub(super) fn get_xattr(&self, inode: &Inode<'_>, name: &[u8]) -> Result<Vec<u8>> {
        self.with_extra(inode, |extra| extra.xattrs.get(name).map(|value| value.to_vec()))
            .flatten()
            .ok_or(Errno::NODATA)
    }

    pub(super) fn list_xattrs(&self, inode: &Inode<'_>) -> Vec<u8> {
        let list =
            |extra: &Extra| extra.xattrs.keys().flat_map(|name| name.iter().copied().chain([0])).collect();
        self.with_extra(inode, list).unwrap_or_default()
    }

    pub(super) fn set_xattr(
        &self,
        op: &Op,
        inode: &Inode<'_>,
        name: &[u8],
        value: &[u8],
        flags: XattrFlags,
    ) -> Result<()> {
        let node = self.node_or_new(inode)?;
        let mut extra = node.extra_mut();
        let old = extra.as_ref().and_then(|extra| extra.xattrs.get(name)).map(|old| charge(name, old));
        match old {
            Some(_) if flags.contains(XattrFlags::CREATE) => return Err(Errno::EXIST),
            None if flags.contains(XattrFlags::REPLACE) => return Err(Errno::NODATA),
            None if extra.as_ref().map_or(0, |e| e.listed()) + name.len() + 1 > LIST_MAX => {
                return Err(Errno::NOSPC);
            }
            None | Some(_) => {}
        }
        // Bytes are taken before anything changes and given back afterwards, so the count is never too low.
        let (old, new) = (old.unwrap_or(0), charge(name, value));
        if !self.bytes.take(new.saturating_sub(old)) {
            return Err(Errno::NOSPC);
        }
        extra.get_or_insert_default().xattrs.insert(name.into(), value.into());
        self.bytes.give(old.saturating_sub(new));
        inode.update(|attr| attr.ctime = op.now);
        Ok(())
    }

    pub(super) fn remove_xattr(&self, op: &Op, inode: &Inode<'_>, name: &[u8]) -> Result<()> {
        let node = self.node(inode).ok_or(Errno::NODATA)?;
        let mut extra = node.extra_mut();
        let value = extra.as_mut().and_then(|extra| extra.xattrs.remove(name)).ok_or(Errno::NODATA)?;
        self.bytes.give(charge(name, &value));
        inode.update(|attr| attr.ctime = op.now);
        Ok(())
    }

    /// Runs `look` on the inode's data, if it has any.
    pub(super) fn with_extra<R>(&self, inode: &Inode<'_>, look: impl FnOnce(&Extra) -> R) -> Option<R> {
        self.node(inode)?.extra().as_deref().map(look)
    }
}
