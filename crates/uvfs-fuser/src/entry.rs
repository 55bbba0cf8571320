//! A node that the kernel is about to be told of, with its lookup counted.
//!
//! The count comes before the reply. Otherwise the kernel could forget the node before the count, and the node would
//! stay for ever. An entry that is dropped without a reply takes the count back.

use std::fmt;

use fuser::{FileAttr, FileHandle, FopenFlags, Generation, ReplyCreate, ReplyEntry};
use uvfs_cache::OwnedNode;

use crate::nodes::Nodes;

/// One lookup of a node, for one reply. Dropped without a reply, it takes the lookup back.
pub struct NodeEntry<T: Send + Sync + 'static> {
    nodes: Nodes<T>,
    node: OwnedNode<T>,
    /// The kernel has the lookup.
    given: bool,
}

impl<T: Send + Sync + 'static> NodeEntry<T> {
    pub(crate) fn new(nodes: &Nodes<T>, node: OwnedNode<T>) -> Self {
        nodes.count_lookup(&node);
        Self { nodes: nodes.clone(), node, given: false }
    }

    /// The node.
    pub fn node(&self) -> &OwnedNode<T> {
        &self.node
    }

    /// The attributes as the kernel gets them.
    pub fn attr(&self) -> FileAttr {
        self.nodes.file_attr(&self.node)
    }

    /// The reply to a lookup, mkdir, mknod, symlink or link.
    pub fn reply(mut self, reply: ReplyEntry) {
        self.give();
        let (attr_ttl, name_ttl) = (self.nodes.attr_ttl(&self.node), self.nodes.options().kernel_ttl);
        reply.entry_with_ttls(&attr_ttl, &name_ttl, &self.attr(), Generation(0));
    }

    /// The reply to a create.
    pub fn created(mut self, reply: ReplyCreate, fh: FileHandle, flags: FopenFlags) {
        self.give();
        reply.created(&self.nodes.attr_ttl(&self.node), &self.attr(), Generation(0), fh, flags);
    }

    /// The kernel has the lookup from now on, and forgets it with [`Nodes::forget`]. For a reply that the caller
    /// makes itself.
    pub fn give(&mut self) {
        self.given = true;
    }
}

impl<T: Send + Sync + 'static> Drop for NodeEntry<T> {
    fn drop(&mut self) {
        if !self.given {
            self.nodes.forget(self.nodes.number_of(&self.node), 1);
        }
    }
}

impl<T: Send + Sync + 'static> fmt::Debug for NodeEntry<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "NodeEntry({:?})", self.node)
    }
}
