//! Changes of names: the table's locks are held across the back end's call, and the change is published afterwards.
//!
//! Each method reserves memory first, then calls the closure, which asks the back end. If the closure fails, nothing
//! has changed. A server whose back end answers later holds the locks itself ([`OwnedNode::lock_name`]).
//! Order: the rename lock, then name locks, two of them together.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;

use fuser::{Errno, FileAttr, FileType, INodeNo, RenameFlags};
use uvfs_cache::{NameLock, NodeKnown, OwnedNode, Room};

use crate::entry::NodeEntry;
use crate::nodes::{Nodes, errno};

/// A name lock's node, if the name is cached.
fn node_of<T: Send + Sync + 'static>(lock: &mut NameLock<T>) -> Option<OwnedNode<T>> {
    match lock.known() {
        NodeKnown::Hit(node) => Some(node),
        NodeKnown::Negative | NodeKnown::Unknown => None,
    }
}

/// Others made this name before: its absence is no longer trusted.
fn note_exists<T: Send + Sync + 'static>(mut lock: NameLock<T>, error: Errno) -> Errno {
    if error.code() == Errno::EEXIST.code() && node_of(&mut lock).is_none() {
        lock.dir().invalidate(lock.name());
    }
    error
}

/// The directory that a change removes or replaces, after [`NameLock::begin_removal`].
struct Removed<T: Send + Sync + 'static> {
    node: Option<OwnedNode<T>>,
    /// The table has entries in it, and the back end had none: others removed them.
    stale: bool,
}

impl<T: Send + Sync + 'static> Removed<T> {
    fn begin(lock: &mut NameLock<T>) -> Self {
        let node = node_of(lock);
        let stale = node.as_ref().is_some_and(|node| lock.begin_removal(node).is_err());
        Self { node, stale }
    }

    /// The back end has removed or replaced it. Returns whether the table may publish that as an ordinary removal.
    fn end(&self, nodes: &Nodes<T>) -> bool {
        if let Some(node) = &self.node {
            if self.stale {
                node.replaced();
            } else {
                nodes.attr_changed(node);
            }
        }
        !self.stale
    }
}

impl<T: Send + Sync + 'static> Nodes<T> {
    fn reserve(&self, lock: &mut NameLock<T>, room: Room) -> Result<(), Errno> {
        self.with_patience(|| lock.reserve(room).map_err(errno))
    }

    /// mkdir, mknod, symlink, or a create that fails if the name exists. `make` has the back end make it in this
    /// directory, and describes the new inode. An inode that had its number in the table is another one from now on.
    ///
    /// # Errors
    /// ESTALE, ENOENT: the directory is gone. ENOMEM. Those of `make`.
    pub fn make(
        &self,
        parent: INodeNo,
        name: &OsStr,
        kind: FileType,
        make: impl FnOnce(&OwnedNode<T>) -> Result<(FileAttr, T), Errno>,
    ) -> Result<NodeEntry<T>, Errno> {
        let dir = self.node(parent)?;
        let mut pending = self.pending(&dir);
        let mut lock = dir.blocking_lock_name(name.as_bytes());
        let room = if kind == FileType::Directory { Room::Dir } else { Room::Node };
        self.reserve(&mut lock, room)?;
        match pending.ask(|| make(&dir)) {
            Ok(made) => {
                let node = lock.create(self.answer(made)).map_err(errno)?;
                self.attr_changed(&dir);
                Ok(NodeEntry::new(self, node))
            }
            Err(error) => Err(note_exists(lock, error)),
        }
    }

    /// A create that may also open a file that exists. `open` returns something of the server's besides, for instance
    /// the open file.
    ///
    /// # Errors
    /// As [`Nodes::make`].
    pub fn create<R>(
        &self,
        parent: INodeNo,
        name: &OsStr,
        open: impl FnOnce(&OwnedNode<T>) -> Result<(FileAttr, T, R), Errno>,
    ) -> Result<(NodeEntry<T>, R), Errno> {
        let dir = self.node(parent)?;
        let mut pending = self.pending(&dir);
        let mut lock = dir.blocking_lock_name(name.as_bytes());
        self.reserve(&mut lock, Room::Node)?;
        let (attr, data, opened) = match pending.ask(|| open(&dir)) {
            Ok(opened) => opened,
            Err(error) => return Err(note_exists(lock, error)),
        };
        let answer = self.answer((attr, data));
        let known = self
            .superblock()
            .by_number(answer.attr.ino)
            .filter(|node| node.attr().fmt() == answer.attr.fmt());
        let node = match known {
            // Without a name it was removed, and the back end gave its number to the new file.
            Some(node) if node.name().is_some() => lock.found(answer),
            _ => lock.create(answer),
        };
        self.attr_changed(&dir);
        Ok((NodeEntry::new(self, node.map_err(errno)?), opened))
    }

    /// Another name for a node. `link` has the back end make it in this directory, and returns the node's attributes.
    ///
    /// # Errors
    /// As [`Nodes::make`].
    pub fn link(
        &self,
        ino: INodeNo,
        parent: INodeNo,
        name: &OsStr,
        link: impl FnOnce(&OwnedNode<T>, &OwnedNode<T>) -> Result<FileAttr, Errno>,
    ) -> Result<NodeEntry<T>, Errno> {
        let (node, dir) = (self.node(ino)?, self.node(parent)?);
        let mut pending = self.pending(&dir);
        let mut lock = dir.blocking_lock_name(name.as_bytes());
        self.reserve(&mut lock, Room::Name)?;
        let revision = node.revision();
        match pending.ask(|| link(&node, &dir)) {
            Ok(attr) => {
                lock.link(&node, self.options().name_ttl).map_err(errno)?;
                self.store_attr(&node, revision, &attr);
                self.attr_changed(&dir);
                Ok(NodeEntry::new(self, node))
            }
            Err(error) => Err(note_exists(lock, error)),
        }
    }

    /// unlink and rmdir. `remove` has the back end remove the name from this directory.
    ///
    /// # Errors
    /// ESTALE: the directory is gone. Those of `remove`.
    pub fn remove(
        &self,
        parent: INodeNo,
        name: &OsStr,
        remove: impl FnOnce(&OwnedNode<T>) -> Result<(), Errno>,
    ) -> Result<(), Errno> {
        let dir = self.node(parent)?;
        let mut pending = self.pending(&dir);
        let mut lock = dir.blocking_lock_name(name.as_bytes());
        let removed = Removed::begin(&mut lock);
        pending.ask(|| remove(&dir))?;
        if removed.end(self) {
            lock.remove();
        } else {
            dir.invalidate(name.as_bytes());
        }
        self.attr_changed(&dir);
        Ok(())
    }

    /// rename. `rename` has the back end rename from the first directory to the second. After an exchange or a
    /// whiteout, the table asks about both names again.
    ///
    /// # Errors
    /// ESTALE, ENOENT: a directory is gone. EINVAL: a directory would come below itself. ENOMEM. Those of `rename`.
    pub fn rename(
        &self,
        from: (INodeNo, &OsStr),
        to: (INodeNo, &OsStr),
        flags: RenameFlags,
        rename: impl FnOnce(&OwnedNode<T>, &OwnedNode<T>) -> Result<(), Errno>,
    ) -> Result<(), Errno> {
        let (from_dir, to_dir) = (self.node(from.0)?, self.node(to.0)?);
        let _renames = (from_dir != to_dir).then(|| self.superblock().blocking_lock_renames());
        let (mut from_pending, mut to_pending) = (self.pending(&from_dir), self.pending(&to_dir));
        let places = ((&from_dir, from.1.as_bytes()), (&to_dir, to.1.as_bytes()));
        let (mut from_lock, mut to_lock) = self.superblock().cache().blocking_lock_names(places.0, places.1);
        let moved = node_of(&mut from_lock);
        if moved.as_ref().is_some_and(|node| node.attr().is_dir() && to_dir.is_below(node)) {
            return Err(Errno::EINVAL);
        }
        let plain = (flags - RenameFlags::RENAME_NOREPLACE).is_empty();
        self.reserve(&mut to_lock, Room::Name)?;
        let replaced =
            if plain { Removed::begin(&mut to_lock) } else { Removed { node: None, stale: false } };
        from_pending.ask(|| to_pending.ask(|| rename(&from_dir, &to_dir)))?;
        if replaced.end(self) && plain && moved.is_some() {
            self.superblock().cache().rename(from_lock, to_lock).map_err(errno)?;
        } else {
            from_dir.invalidate(from.1.as_bytes());
            to_dir.invalidate(to.1.as_bytes());
        }
        for node in [Some(&from_dir), Some(&to_dir), moved.as_ref()].into_iter().flatten() {
            self.attr_changed(node);
        }
        Ok(())
    }
}
