//! Inodes as a server has them: held, and held with a lookup counted.

use std::fmt;
use std::ops::Deref;

use uvfs_cache::Attr;

use crate::store::{InodeStore, Node};

/// An inode, which stays in the store while this exists. It derefs to the server's data.
pub struct StoredInode<T: Send + Sync + 'static>(pub(crate) Node<T>);

impl<T: Send + Sync + 'static> StoredInode<T> {
    /// The number.
    pub fn number(&self) -> u64 {
        self.0.attr().ino
    }

    /// The server's data.
    pub fn data(&self) -> &T {
        &self.0.data().data
    }

    /// The cached attributes, trusted or not. The type never changes.
    pub fn attr(&self) -> Attr {
        self.0.attr()
    }

    /// The cached attributes; `None`: the back end must be asked ([`InodeStore::attr`]).
    pub fn trusted_attr(&self) -> Option<Attr> {
        self.0.trusted_attr()
    }

    /// Lookups that the client has not forgotten.
    pub fn lookups(&self) -> u64 {
        self.0.lookups()
    }
}

impl<T: Send + Sync + 'static> Deref for StoredInode<T> {
    type Target = T;

    fn deref(&self) -> &T {
        self.data()
    }
}

impl<T: Send + Sync + 'static> Clone for StoredInode<T> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<T: Send + Sync + 'static> fmt::Debug for StoredInode<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "StoredInode({})", self.number())
    }
}

/// An inode with one lookup counted, for one reply to the client: an entry of lookup, mkdir, create or readdirplus.
///
/// The count comes before the reply. Otherwise the client could forget the inode before the count, and it would stay for
/// ever. If this is dropped without [`CountedInode::give`], for instance because a later step failed, the count is taken
/// back.
#[must_use = "the lookup is taken back"]
pub struct CountedInode<'s, T: Send + Sync + 'static> {
    store: &'s InodeStore<T>,
    inode: StoredInode<T>,
    given: bool,
}

impl<'s, T: Send + Sync + 'static> CountedInode<'s, T> {
    pub(crate) fn new(store: &'s InodeStore<T>, node: Node<T>) -> Self {
        // The root stays anyway.
        if !node.is_root() {
            node.add_lookups(1);
        }
        Self { store, inode: StoredInode(node), given: false }
    }

    /// The client has the lookup from now on, and forgets it with [`InodeStore::forget`]. Returns the number.
    pub fn give(mut self) -> u64 {
        self.given = true;
        self.inode.number()
    }
}

impl<T: Send + Sync + 'static> Deref for CountedInode<'_, T> {
    type Target = StoredInode<T>;

    fn deref(&self) -> &StoredInode<T> {
        &self.inode
    }
}

impl<T: Send + Sync + 'static> Drop for CountedInode<'_, T> {
    fn drop(&mut self) {
        if !self.given {
            // By number: another file may have taken it over, and the lookups with it.
            self.store.forget(self.inode.number(), 1);
        }
    }
}

impl<T: Send + Sync + 'static> fmt::Debug for CountedInode<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "CountedInode({})", self.inode.number())
    }
}
