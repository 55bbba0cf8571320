//! File data that the cache does not hold: pages, extended attributes, access control lists, a link's target.
//!
//! An inode with any such data has one [`Node`], in a table whose addresses never change. The inode's
//! private value is the node's index plus one, or 0 if it has no node (an empty file).
//! A holder of a reference to the inode may use its node: `evict` frees nodes, and runs
//! only when no reference is left. The mapping's mutex protects the pages, and `extra` protects the
//! rest. Neither is held while the other is taken.

use std::collections::BTreeMap;
use std::sync::Arc;

use parking_lot::{RwLock, RwLockReadGuard, RwLockWriteGuard};
use uvfs::acl::{Acl, AclKind};
use uvfs::driver::Inode;
use uvfs::types::{Attr, Errno, Result};
use uvfs_cache::machinery::mapping::{Mapping, PAGE_SIZE};
use uvfs_sync::lock_order::{Class, Held, Noted};

use super::Tmpfs;
use super::passthrough::Home;

/// An inode's data.
#[derive(Debug, Default)]
pub(super) struct Node {
    /// Pages by their index in the file; links and nodes without data have none.
    pub(super) mapping: Mapping,
    /// Data that few inodes have.
    extra: RwLock<Option<Box<Extra>>>,
    /// Whether the contents are the mapping's.
    pub(super) home: Home,
}

const _: () = assert!(size_of::<Node>() == 56);

impl Node {
    /// Data that few inodes have, for reading.
    pub(super) fn extra(&self) -> Noted<RwLockReadGuard<'_, Option<Box<Extra>>>> {
        Held::new(Class::File).with(|| self.extra.read())
    }

    /// Data that few inodes have, for writing.
    pub(super) fn extra_mut(&self) -> Noted<RwLockWriteGuard<'_, Option<Box<Extra>>>> {
        Held::new(Class::File).with(|| self.extra.write())
    }
}

/// Data that few inodes have.
#[derive(Debug, Default)]
pub(super) struct Extra {
    /// A symbolic link's target.
    pub(super) target: Box<[u8]>,
    /// Extended attributes.
    pub(super) xattrs: BTreeMap<Box<[u8]>, Box<[u8]>>,
    /// Access control lists, by their kind.
    pub(super) acls: [Option<Arc<Acl>>; 2],
    /// The inode has never had a name, and may be given one.
    pub(super) linkable: bool,
}

impl Tmpfs {
    /// The inode's node, if it has one.
    pub(super) fn node(&self, inode: &Inode<'_>) -> Option<&Node> {
        self.node_at(inode.private())
    }

    /// The inode's node; makes one if it has none.
    ///
    /// # Errors
    /// ENOSPC if the table is full (2^32 files).
    pub(super) fn node_or_new(&self, inode: &Inode<'_>) -> Result<&Node> {
        let private = inode.init_private(|| self.nodes.alloc().map_or(0, |(index, _)| u64::from(index) + 1));
        self.node_at(private).ok_or(Errno::NOSPC)
    }

    /// Makes the node of a new inode that starts with this data. Returns the private value.
    ///
    /// # Errors
    /// ENOSPC.
    pub(super) fn new_node(&self, extra: Extra) -> Result<u64> {
        let charge = extra.charge();
        if !self.bytes.take(charge) {
            return Err(Errno::NOSPC);
        }
        let Some((index, node)) = self.nodes.alloc() else {
            self.bytes.give(charge);
            return Err(Errno::NOSPC);
        };
        *node.extra_mut() = Some(Box::new(extra));
        Ok(u64::from(index) + 1)
    }

    fn node_at(&self, private: u64) -> Option<&Node> {
        u32::try_from(private.checked_sub(1)?).ok().and_then(|index| self.nodes.get(index))
    }

    /// Frees an inode's node and gives back what it counted, when the cache drops the inode. The tree exists only in
    /// the cache, so the inode is gone whatever its link count (an unmount drops inodes that still have names).
    pub(super) fn forget(&self, attr: &Attr, private: u64) {
        if let (Some(node), Some(index)) = (self.node_at(private), private.checked_sub(1)) {
            if let (true, Some(pool)) = (node.home.is_moved(), self.bytes.pool()) {
                pool.remove(index as u32);
            }
            node.home.clear();
            let pages = node.mapping.lock(&self.memory).clear();
            let extra = node.extra_mut().take();
            self.bytes.give(pages * PAGE_SIZE as u64 + extra.map_or(0, |extra| extra.charge()));
            self.nodes.free(index as u32);
        }
        let names = if attr.is_dir() { 1 } else { u64::from(attr.nlink.max(1)) };
        self.inodes.give(names);
    }
}

impl Extra {
    /// The bytes that this data counts against the size.
    fn charge(&self) -> u64 {
        let xattrs: u64 = self.xattrs.iter().map(|(name, value)| super::xattr::charge(name, value)).sum();
        let acls: u64 = AclKind::ALL.into_iter().map(|kind| self.acl_charge(kind)).sum();
        self.target.len() as u64 + xattrs + acls
    }

    /// The bytes that a list counts, if there is one.
    pub(super) fn acl_charge(&self, kind: AclKind) -> u64 {
        self.acls[kind as usize].as_ref().map_or(0, |acl| super::acl::charge(kind, acl))
    }

    /// Bytes of all names of extended attributes and lists, each with a nul.
    pub(super) fn listed(&self) -> usize {
        let lists = AclKind::ALL.into_iter().filter(|kind| self.acls[*kind as usize].is_some());
        let lists: usize = lists.map(|kind| kind.xattr().len() + 1).sum();
        lists + self.xattrs.keys().map(|name| name.len() + 1).sum::<usize>()
    }
}

#[cfg(all(test, debug_assertions))]
mod tests {
    use std::panic::{AssertUnwindSafe, catch_unwind};

    use uvfs_cache::machinery::mapping::Memory;

    use super::*;

    /// Rule 19: neither of a node's locks is taken while the other one is held. Planted bugs:
    /// rule19-extra-is-not-noted, rule19-extra-under-the-pages.
    #[test]
    fn rule19_a_nodes_locks_are_taken_one_at_a_time() {
        let (node, memory) = (Node::default(), Memory::reserve(64).unwrap());
        let panics = |f: &dyn Fn()| catch_unwind(AssertUnwindSafe(f)).is_err();
        let looks = || drop(node.extra());
        let changes = || drop(node.extra_mut());
        for extra in [&looks as &dyn Fn(), &changes] {
            extra();
            assert!(panics(&|| {
                let _pages = node.mapping.lock(&memory);
                extra();
            }));
        }
        assert!(panics(&|| {
            let _extra = node.extra();
            drop(node.mapping.lock(&memory));
        }));
        assert!(panics(&|| {
            let _extra = node.extra_mut();
            drop(node.mapping.lock(&memory));
        }));
    }
}
