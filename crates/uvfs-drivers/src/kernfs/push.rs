//! Telling the views' caches what has changed.
//!
//! Called after the change, with nothing held, before the change returns to who asked for it. What a
//! cache has of a name is thrown away; attributes are put in the place of the cached ones. An answer that a view
//! has on its way at that time is late by the cache's rule: the directory's revision has moved, or the inode's
//! number is noted as changed. Where a directory is not cached, nothing below it is, nor on its way (who
//! asks for a name holds its directory).
//!
//! Two changes of one inode may come here in the other order than they were made. So what is stored is not what a
//! change was, but what the tree says at the moment of the store, under the inode's lock: the last one to store
//! has seen both. The tree lock is taken inside the inode's for that; nobody calls a cache with the tree
//! lock held.
//!
//! Front ends are told last, so that who asks the cache because of it finds what is true now. They note it and tell their kernels
//! from a thread of their own: a change that is made by a call of an attribute waits for nobody.

use std::sync::Arc;

use uvfs::types::mode;
use uvfs_cache::InodeRef;

use super::engine::Engine;
use super::view::View;

impl Engine {
    pub(super) fn each_view(&self, tell: impl Fn(&View)) {
        let views: Vec<Arc<View>> = {
            let mut views = self.views.lock();
            if views.is_empty() {
                return;
            }
            views.retain(|view| view.strong_count() != 0);
            views.iter().filter_map(std::sync::Weak::upgrade).collect()
        };
        views.iter().for_each(|view| tell(view));
    }

    /// `name` in `dir` leads, or does not lead, where it did; the directory's times and link count are others.
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

    /// The attributes of a node are others.
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

    /// Puts what the tree says in the place of what a cache has.
    pub(super) fn mend(&self, inode: &InodeRef<'_>) {
        let ino = inode.ino();
        inode.update(|cached| match self.attr(ino) {
            Some(attr) => *cached = attr,
            None => cached.nlink = 0,
        });
    }
}
