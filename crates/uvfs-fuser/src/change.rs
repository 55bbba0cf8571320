//! Changes of names: the table's locks are held across the back end's call, and the change is published afterwards.
//!
//! Each method reserves memory first, then calls the closure, which asks the back end. If the closure fails, nothing
//! has changed. A server whose back end answers later holds the locks itself ([`OwnedNode::lock_name`]).
//! Order: the rename lock, then name locks, two of them together, then uses and moves of paths ([`crate::paths`]).

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

/// The part of a name in a change that the back end refused.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Part {
    /// The name that a rename takes away.
    Source,
    /// The name that is removed or replaced.
    Target,
}

/// The back end has refused to remove, replace or rename a name. If others changed the name, its error contradicts what
/// the table knows; then the table asks about it again. A rename's ENOENT may be about either name, for the directory
/// of the second may be gone.
fn note_refused<T: Send + Sync + 'static>(lock: &mut NameLock<T>, part: Part, error: Errno) {
    let node = node_of(lock);
    let is_dir = node.as_ref().map(|node| node.attr().is_dir());
    let is = |errno: Errno| error.code() == errno.code();
    let target = part == Part::Target;
    let wrong = if is(Errno::ENOENT) {
        node.is_some()
    } else if is(Errno::EISDIR) {
        // The target is a directory, the source is not.
        is_dir != Some(target)
    } else if is(Errno::ENOTDIR) {
        is_dir != Some(!target)
    } else {
        target && node.is_none() && is_occupied(error)
    };
    if wrong {
        lock.dir().invalidate(lock.name());
    }
}

/// Whether an error says that there is something under a name, or in a directory.
fn is_occupied(error: Errno) -> bool {
    [Errno::EEXIST.code(), Errno::ENOTEMPTY.code()].contains(&error.code())
}

/// The directory that a change removes or replaces, after [`NameLock::begin_removal`].
struct Removed<T: Send + Sync + 'static> {
    node: Option<OwnedNode<T>>,
    /// The table has entries in it, and the back end had none: others removed them.
    stale: bool,
}

impl<T: Send + Sync + 'static> Removed<T> {
    fn begin(nodes: &Nodes<T>, lock: &mut NameLock<T>) -> Self {
        let node = nodes.subject(lock);
        let stale = node.as_ref().is_some_and(|node| lock.begin_removal(node).is_err());
        Self { node, stale }
    }

    /// The back end has refused.
    fn note_refused(&self, lock: &mut NameLock<T>, error: Errno) {
        note_refused(lock, Part::Target, error);
        if let Some(node) = self.node.as_ref().filter(|node| !self.stale && node.attr().is_dir())
            && is_occupied(error)
        {
            // Others have made entries in it, so it is not complete. Any name will do.
            node.invalidate(lock.name());
        }
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
    /// The node that a change of a name is about. If an entry has expired, only a back end without numbers leaves no
    /// doubt.
    fn subject(&self, lock: &mut NameLock<T>) -> Option<OwnedNode<T>> {
        if self.is_by_name() { lock.previous() } else { node_of(lock) }
    }

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
                let node = lock.create(self.answer(|| None, made)).map_err(errno)?;
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
        let answer = self.answer(|| lock.previous(), (attr, data));
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
                let attr = self.answer_of(&node, attr).inspect_err(|_| dir.invalidate(lock.name()))?;
                lock.link(&node, self.name_ttl()).map_err(errno)?;
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
        let removed = Removed::begin(self, &mut lock);
        let gone = lock.previous().into_iter().collect();
        // Until the table has removed the name, too.
        let mut moving = None;
        let done = pending.ask(|| {
            moving = Some(self.begin_move(&[&dir], gone));
            remove(&dir)
        });
        if let Err(error) = done {
            removed.note_refused(&mut lock, error);
            return Err(error);
        }
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
        // If the name has expired, its node is moved all the same: its children keep their paths. The name stays
        // expired, so the next lookup asks whether that was right.
        let mut moved = from_lock.previous();
        if moved.as_ref().is_some_and(|node| node.attr().is_dir() && to_dir.is_below(node)) {
            if self.subject(&mut from_lock).is_some() {
                return Err(Errno::EINVAL);
            }
            moved = None;
        }
        let plain = (flags - RenameFlags::RENAME_NOREPLACE).is_empty();
        self.reserve(&mut to_lock, Room::Name)?;
        let replaced =
            if plain { Removed::begin(self, &mut to_lock) } else { Removed { node: None, stale: false } };
        let nodes = moved.clone().into_iter().chain(to_lock.previous()).collect();
        // Until the table has the new names, too.
        let mut moving = None;
        let ask = || {
            moving = Some(self.begin_move(&[&from_dir, &to_dir], nodes));
            rename(&from_dir, &to_dir)
        };
        if let Err(error) = from_pending.ask(|| to_pending.ask(ask)) {
            note_refused(&mut from_lock, Part::Source, error);
            replaced.note_refused(&mut to_lock, error);
            return Err(error);
        }
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::attr::host_attr;
    use crate::lookup::LookedUp;
    use crate::nodes::NodesOptions;
    use uvfs_cache::Ttl;

    const ROOT: INodeNo = INodeNo::ROOT;

    fn found(number: u64, path: &str) -> Result<(FileAttr, ()), Errno> {
        Ok((host_attr(number, &std::fs::symlink_metadata(path)?), ()))
    }

    fn table() -> Nodes<()> {
        let (name_ttl, listing_ttl) = (Ttl::Forever, Ttl::Forever);
        let options =
            NodesOptions { name_ttl, listing_ttl, attr_ttl: Ttl::Forever, ..NodesOptions::default() };
        Nodes::new(options, |_| found(1, "/")).unwrap()
    }

    /// A name that leads to a host file's attributes.
    fn know(nodes: &Nodes<()>, name: &str, number: u64, path: &str) -> OwnedNode<()> {
        match nodes.start_lookup(ROOT, OsStr::new(name)).unwrap() {
            LookedUp::Ask(question) => question.answer(found(number, path)).unwrap().node().clone(),
            other => panic!("{other:?}"),
        }
    }

    fn is_known(nodes: &Nodes<()>, dir: INodeNo, name: &str) -> bool {
        !matches!(nodes.start_lookup(dir, OsStr::new(name)).unwrap(), LookedUp::Ask(_))
    }

    #[test]
    fn a_name_that_the_back_end_does_not_find_is_asked_about_again() {
        let nodes = table();
        know(&nodes, "x", 2, "/dev/null");
        nodes.remove(ROOT, OsStr::new("x"), |_| Err(Errno::EACCES)).unwrap_err();
        assert!(is_known(&nodes, ROOT, "x"));
        nodes.remove(ROOT, OsStr::new("x"), |_| Err(Errno::ENOENT)).unwrap_err();
        assert!(!is_known(&nodes, ROOT, "x"));
        for name in ["x", "y"] {
            know(&nodes, name, 2, "/dev/null");
        }
        let (x, y) = ((ROOT, OsStr::new("x")), (ROOT, OsStr::new("y")));
        nodes.rename(x, y, RenameFlags::empty(), |_, _| Err(Errno::ENOENT)).unwrap_err();
        assert!(!is_known(&nodes, ROOT, "x") && !is_known(&nodes, ROOT, "y"));
    }

    #[test]
    fn a_type_that_the_back_end_contradicts_is_asked_about_again() {
        let nodes = table();
        know(&nodes, "file", 2, "/dev/null");
        know(&nodes, "dir", 3, "/");
        let remove = |name: &str, error| {
            nodes.remove(ROOT, OsStr::new(name), |_| Err(error)).unwrap_err();
            is_known(&nodes, ROOT, name)
        };
        assert!(remove("file", Errno::ENOTDIR) && remove("dir", Errno::EISDIR));
        assert!(!remove("file", Errno::EISDIR) && !remove("dir", Errno::ENOTDIR));
        know(&nodes, "file", 2, "/dev/null");
        know(&nodes, "dir", 3, "/");
        let rename = |from: &str, to: &str, error| {
            let (from, to) = (OsStr::new(from), OsStr::new(to));
            nodes.rename((ROOT, from), (ROOT, to), RenameFlags::empty(), |_, _| Err(error)).unwrap_err();
            [from, to].map(|name| is_known(&nodes, ROOT, name.to_str().unwrap()))
        };
        assert_eq!(rename("file", "dir", Errno::EISDIR), [true, true]);
        assert_eq!(rename("dir", "file", Errno::ENOTDIR), [true, true]);
        assert_eq!(rename("dir", "file", Errno::EISDIR), [false, false]);
    }

    #[test]
    fn a_new_file_with_the_number_of_a_removed_one_is_another_node() {
        let nodes = table();
        let open = |_: &OwnedNode<()>| found(5, "/dev/null").map(|(attr, data)| (attr, data, ()));
        let old = nodes.create(ROOT, OsStr::new("x"), open).unwrap().0.node().clone();
        nodes.remove(ROOT, OsStr::new("x"), |_| Ok(())).unwrap();
        let new = nodes.create(ROOT, OsStr::new("y"), open).unwrap().0.node().clone();
        assert!(new != old);
        assert_eq!(nodes.path(&new).unwrap().to_str(), Some("y"));
    }

    #[test]
    fn without_numbers_a_made_file_is_new_and_one_that_is_opened_again_is_not() {
        let nodes = Nodes::new(NodesOptions::default(), |_| found(0, "/")).unwrap();
        let name = OsStr::new("x");
        let open = |_: &OwnedNode<()>| found(0, "/dev/null").map(|(attr, data)| (attr, data, ()));
        let node = nodes.create(ROOT, name, open).unwrap().0.node().clone();
        assert!(*nodes.create(ROOT, name, open).unwrap().0.node() == node);
        nodes.remove(ROOT, name, |_| Ok(())).unwrap();
        let new = nodes.create(ROOT, name, open).unwrap().0.node().clone();
        assert!(new != node);
        let number = nodes.number_of(&new);
        let attr = |path: &str| Ok(found(0, path)?.0);
        let other = nodes.link(number, ROOT, OsStr::new("y"), |_, _| attr("/dev/null")).unwrap();
        assert!(*other.node() == new);
        // The linked file is another one by now: the table asks about the name.
        let error = nodes.link(number, ROOT, OsStr::new("z"), |_, _| attr("/")).unwrap_err();
        assert_eq!(error.code(), Errno::ESTALE.code());
        assert!(!is_known(&nodes, ROOT, "z"));
    }

    #[test]
    fn without_numbers_an_expired_name_is_moved_and_keeps_its_children() {
        let options = NodesOptions { name_ttl: Ttl::ZERO, ..NodesOptions::default() };
        let nodes = Nodes::new(options, |_| found(0, "/")).unwrap();
        let (from, to) = (OsStr::new("from"), OsStr::new("to"));
        let dir = nodes.make(ROOT, from, FileType::Directory, |_| found(0, "/")).unwrap();
        let number = nodes.number_of(dir.node());
        let file =
            nodes.make(number, OsStr::new("x"), FileType::CharDevice, |_| found(0, "/dev/null")).unwrap();
        nodes.rename((ROOT, from), (ROOT, to), RenameFlags::empty(), |_, _| Ok(())).unwrap();
        assert_eq!(nodes.path(file.node()).unwrap().to_str(), Some("to/x"));
        assert!(know(&nodes, "to", 0, "/") == *dir.node());
    }

    #[test]
    fn a_directory_that_is_not_empty_is_not_known_to_be() {
        let nodes = table();
        let dir = know(&nodes, "dir", 3, "/");
        dir.add_lookups(1);
        assert!(dir.begin_listing().complete(Ttl::Forever));
        let number = nodes.number_of(&dir);
        assert!(is_known(&nodes, number, "new"));
        nodes.remove(ROOT, OsStr::new("dir"), |_| Err(Errno::ENOTEMPTY)).unwrap_err();
        assert!(is_known(&nodes, ROOT, "dir") && !is_known(&nodes, number, "new"));
        // A target that was not known to exist.
        assert!(nodes.node(ROOT).unwrap().begin_listing().complete(Ttl::Forever));
        let (from, to) = ((ROOT, OsStr::new("dir")), (ROOT, OsStr::new("late")));
        assert!(is_known(&nodes, ROOT, "late"));
        let flags = RenameFlags::RENAME_NOREPLACE;
        nodes.rename(from, to, flags, |_, _| Err(Errno::EEXIST)).unwrap_err();
        assert!(!is_known(&nodes, ROOT, "late"));
    }
}
