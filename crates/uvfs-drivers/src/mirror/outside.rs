//! What changes in the source without coming through the mirror: whoever watches the source says so here.
//!
//! Each call says *look again*, and not what has become of it: calls may come late, twice and in any order. They come
//! after the change, from a thread that is in no call of the mirror. What the cache does not know costs a look into the
//! table of nodes.

use uvfs::Inode;
use uvfs::types::mode;
use uvfs_cache::Life;

use super::Mirror;
use super::identity::FileHandle;

impl Mirror {
    /// A name in the directory with this handle was made, removed, or leads elsewhere now.
    pub fn name_changed(&self, dir: &FileHandle, name: &[u8]) {
        if let Some(node) = self.table.with_handle(dir) {
            self.doubt(&node, name);
            self.expire(node.number, mode::S_IFDIR);
        }
    }

    /// Content or attributes of the file with this handle changed.
    pub fn object_changed(&self, handle: &FileHandle) {
        if let Some(node) = self.table.with_handle(handle) {
            // A name brings the attributes along that it was found with.
            for place in node.place().into_iter().chain(node.other_places()) {
                self.doubt(&place.dir, &place.name);
            }
            self.expire(node.number, node.fmt);
        }
    }

    /// Anything may have changed: every name and every attribute is asked for again. In proportion to what is known.
    pub fn all_suspect(&self) {
        for (number, fmt) in self.table.all() {
            self.expire(number, fmt);
        }
        self.with_cached(self.root_number(), mode::S_IFDIR, |root| root.cache().invalidate_all(root.sb()));
    }

    fn expire(&self, number: u64, fmt: u32) {
        self.with_cached(number, fmt, |inode| inode.refresh(&inode.attr(), Life::Millis(0)));
    }

    /// Does something with the inode of this number, if the cache has one. Answers about it that are on their way are
    /// late from now on.
    pub(super) fn with_cached(&self, number: u64, fmt: u32, act: impl FnOnce(&Inode<'_>)) {
        let Some(mounted) = self.mounted.get() else { return };
        let Some(cache) = mounted.cache.upgrade() else { return };
        let Some(root) = cache.get(mounted.root) else { return };
        if let Some(inode) = cache.changed(root.sb(), number, fmt) {
            act(&inode);
        }
    }
}
