//! Updates the views' caches after a change.
//!
//! Called after the change, with nothing held, before the change returns to its caller. A cached name is
//! dropped; cached attributes are replaced. An answer that a view has in flight at that time is late by
//! the cache's rule: the directory's revision has moved, or the inode's number is noted as changed.
//! If a directory is not cached, nothing below it is cached or in flight, because a lookup of a name
//! holds its directory.
//!
//! Two changes of one inode may arrive here in the opposite order. So the stored attributes are not those of a
//! change, but the tree's at the moment of the store, under the inode's lock: the last store
//! has seen both changes. For that, the tree lock is taken inside the inode's lock. No cache is called with the tree
//! lock held.
//!
//! Front ends are notified last, so that a cache lookup made because of it finds the new state. They note it and
//! notify their kernels from a thread of their own: a change made by an attribute's call waits for nothing.

use std::sync::Arc;

use uvfs::types::mode;
use uvfs_cache::InodeRef;

use super::mounted_views::ViewCaches;
use super::node_handle::NodeTree;
use super::tree_operations::Engine;

impl Engine {
    pub(super) fn each_view(&self, tell: impl Fn(&ViewCaches)) {
        let views: Vec<Arc<ViewCaches>> = {
            let mut views = self.views.lock();
            if views.is_empty() {
                return;
            }
            views.retain(|view| view.strong_count() != 0);
            views.iter().filter_map(std::sync::Weak::upgrade).collect()
        };
        views.iter().for_each(|view| tell(view));
    }

    /// Reports that `name` in `dir` changed, and with it the directory's times and link count.
    pub(super) fn push_name(&self, dir: u64, name: &[u8]) {
        self.each_view(|view| {
            view.each_cache(|cache, sb| {
                if let Some(dir) = cache.changed(sb, dir, mode::S_IFDIR) {
                    cache.invalidate(&dir, name);
                    self.mend(&dir);
                    cache.tell_of_name(&dir, name);
                }
            });
        });
    }

    /// Reports that the attributes of a node changed.
    pub(super) fn push_attr(&self, ino: u64, fmt: u32) {
        self.each_view(|view| {
            view.each_cache(|cache, sb| {
                if let Some(inode) = cache.changed(sb, ino, fmt) {
                    self.mend(&inode);
                    cache.tell_of_attr(&inode);
                }
            });
        });
    }

    /// Makes the caches forget the texts of links to nodes, and keep no others: called once, after the first move.
    /// O(cached inodes).
    pub(super) fn forget_targets(&self) {
        self.each_view(|view| {
            view.each_cache(|cache, sb| {
                cache.inodes_of(sb, &mut |inode| {
                    if inode.fmt() == mode::S_IFLNK && self.leads_to_a_node(inode.ino()) {
                        inode.forget_target();
                    }
                    true
                });
            });
        });
    }

    /// Replaces a cache's attributes with the tree's.
    pub(super) fn mend(&self, inode: &InodeRef<'_>) {
        let ino = inode.ino();
        inode.update(|cached| match self.attr(ino) {
            Some(attr) => *cached = attr,
            None => cached.nlink = 0,
        });
    }
}
