//! Changes of names.
//!
//! After a create, link or any other change, [`InodeStore::invalidate`] is enough: the next lookup asks, and answers on
//! their way are late. [`InodeStore::remove`] and [`InodeStore::rename`] hold the names' locks across the back end's
//! call, and keep the paths of what was moved. Order: the rename lock, then name locks, two of them together.

use std::io;

use uvfs_cache::{Errno, NameLock, NodeKnown, Room};

use crate::inode::StoredInode;
use crate::store::{Inner, InodeStore, Node, io_error};

/// A name lock's node, if the name is cached.
fn node_of<T: Send + Sync + 'static>(lock: &mut NameLock<Inner<T>>) -> Option<Node<T>> {
    match lock.known() {
        NodeKnown::Hit(node) => Some(node),
        NodeKnown::Negative | NodeKnown::Unknown => None,
    }
}

/// The file that a change removes or replaces.
struct Removed<T: Send + Sync + 'static> {
    node: Option<Node<T>>,
    /// The store has entries in it, and the back end had none: others removed them.
    stale: bool,
}

impl<T: Send + Sync + 'static> Removed<T> {
    fn begin(lock: &mut NameLock<Inner<T>>) -> Self {
        let node = node_of(lock);
        let stale = node.as_ref().is_some_and(|node| lock.begin_removal(node).is_err());
        Self { node, stale }
    }

    /// The back end has removed or replaced it. Returns whether that may be published as an ordinary removal.
    fn end(&self, store: &InodeStore<T>) -> bool {
        if let Some(node) = &self.node {
            store.note_changed(node);
        }
        !self.stale
    }
}

impl<T: Send + Sync + 'static> InodeStore<T> {
    /// The back end has changed what a name leads to, or others have: the next lookup asks. Call this after the change.
    pub fn invalidate(&self, parent: u64, name: &[u8]) {
        if let Ok(dir) = self.node(parent) {
            dir.invalidate(name);
            self.note_changed(&dir);
        }
    }

    /// unlink and rmdir. `remove` has the back end remove the name from this directory.
    ///
    /// # Errors
    /// EBADF: there is no such directory. Those of `remove`.
    pub fn remove(
        &self,
        parent: u64,
        name: &[u8],
        remove: impl FnOnce(&StoredInode<T>) -> io::Result<()>,
    ) -> io::Result<()> {
        let dir = self.get(parent)?;
        let mut mark = self.waits().enter(dir.0.id());
        let mut lock = dir.0.blocking_lock_name(name);
        let removed = Removed::begin(&mut lock);
        mark.ask(|| remove(&dir))?;
        if removed.end(self) {
            lock.remove();
        } else {
            dir.0.invalidate(name);
        }
        self.note_changed(&dir.0);
        Ok(())
    }

    /// rename, with the flags of renameat2(2). `rename` has the back end rename from the first directory to the second.
    /// After an exchange or a whiteout, both names are asked about again.
    ///
    /// # Errors
    /// EBADF: there is no such directory. EINVAL: a directory would come below itself. ENOENT: a directory is being
    /// removed. ENOMEM. Those of `rename`.
    pub fn rename(
        &self,
        from: (u64, &[u8]),
        to: (u64, &[u8]),
        flags: u32,
        rename: impl FnOnce(&StoredInode<T>, &StoredInode<T>) -> io::Result<()>,
    ) -> io::Result<()> {
        let (from_dir, to_dir) = (self.get(from.0)?, self.get(to.0)?);
        let _renames = (from_dir.0 != to_dir.0).then(|| self.superblock().blocking_lock_renames());
        let (mut from_mark, mut to_mark) =
            (self.waits().enter(from_dir.0.id()), self.waits().enter(to_dir.0.id()));
        let (mut from_lock, mut to_lock) =
            self.cache().blocking_lock_names((&from_dir.0, from.1), (&to_dir.0, to.1));
        let moved = node_of(&mut from_lock);
        if moved.as_ref().is_some_and(|node| node.attr().is_dir() && to_dir.0.is_below(node)) {
            return Err(io_error(Errno::INVAL));
        }
        let plain = flags & !libc::RENAME_NOREPLACE == 0;
        self.with_patience(|| Ok(to_lock.reserve(Room::Name)?))?;
        let replaced =
            if plain { Removed::begin(&mut to_lock) } else { Removed { node: None, stale: false } };
        from_mark.ask(|| to_mark.ask(|| rename(&from_dir, &to_dir)))?;
        if replaced.end(self) && plain && moved.is_some() {
            self.cache().rename(from_lock, to_lock).map_err(io_error)?;
        } else {
            from_dir.0.invalidate(from.1);
            to_dir.0.invalidate(to.1);
        }
        for node in [Some(&from_dir.0), Some(&to_dir.0), moved.as_ref()].into_iter().flatten() {
            self.note_changed(node);
        }
        Ok(())
    }
}
