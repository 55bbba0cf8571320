//! The table of a tree as [`find`](crate::find) searches it.
//!
//! A search runs under the table's lock, so all that it sees is of one moment, and changes wait. The table has no
//! targets of symbolic links, no numbers of devices, and nothing of what is mounted below the tree. The first two are
//! read from the host when an expression asks for them; another file system is never asked, because it may not answer. A directory that something is mounted on, or that could not be
//! read, is reported, unless the expression does not descend into it.

use std::borrow::Cow;
use std::cell::RefCell;
use std::collections::{HashMap, HashSet};
use std::io;
use std::os::fd::{AsFd, BorrowedFd};

use rustix::fs::{FileType, readlinkat};
use rustix::io::Errno;

use super::unread::Unread;
use crate::find::{FileAttributes, FileKind, SearchTree, Timestamp};
use crate::host::{Cover, HostTree};
use crate::table::{FileFacts, NONE, NameTable};

/// A name of the table: the directory that it is in, and the file that it leads to.
#[derive(Clone, Copy)]
pub(super) struct IndexedNode<'t> {
    dir: u32,
    name: &'t [u8],
    file: u32,
}

/// See the module's head.
pub(super) struct SearchedTree<'t> {
    host: &'t HostTree,
    table: &'t NameTable,
    unread: &'t Unread,
    /// Files that something is mounted on, each with the device number of that.
    devices: HashMap<u32, u64>,
    /// The directories among them.
    covered: HashSet<u32>,
    /// Paths of directories that something is mounted on, and that a search went into.
    mounted_on: RefCell<Vec<Vec<u8>>>,
}

impl IndexedNode<'_> {
    pub(super) fn file(&self) -> u32 {
        self.file
    }
}

/// The type in a mode.
pub(super) fn kind_of(mode: u16) -> FileKind {
    match FileType::from_raw_mode(mode.into()) {
        FileType::Directory => FileKind::Directory,
        FileType::Symlink => FileKind::Symlink,
        FileType::Fifo => FileKind::Fifo,
        FileType::Socket => FileKind::Socket,
        FileType::CharacterDevice => FileKind::CharDevice,
        FileType::BlockDevice => FileKind::BlockDevice,
        FileType::RegularFile | FileType::Unknown => FileKind::Regular,
    }
}

/// The attributes that the table has: without the number of a device.
pub(super) fn attributes_of(facts: &FileFacts) -> FileAttributes {
    let time = |(sec, nsec)| Timestamp { sec, nsec };
    FileAttributes {
        mode: u32::from(facts.mode) & 0o7777,
        nlink: facts.nlink.into(),
        uid: facts.uid,
        gid: facts.gid,
        size: facts.size,
        blocks: facts.blocks,
        ino: facts.ino,
        dev: facts.dev,
        rdev: (0, 0),
        mtime: time(facts.mtime),
        ctime: time(facts.ctime),
        atime: None,
    }
}

impl<'t> SearchedTree<'t> {
    pub(super) fn new(
        host: &'t HostTree,
        table: &'t NameTable,
        unread: &'t Unread,
        covers: &[Cover],
    ) -> Self {
        let devices = covers.iter().filter_map(|cover| Some((table.walk(&cover.path)?, cover.dev)));
        let devices: HashMap<_, _> = devices.collect();
        let covered = devices.keys().copied().filter(|file| table.facts(*file).is_dir()).collect();
        Self { host, table, unread, devices, covered, mounted_on: RefCell::default() }
    }

    /// The name at a path below the root.
    pub(super) fn at(&self, path: &'t [u8]) -> Option<IndexedNode<'t>> {
        let file = self.table.walk(path)?;
        let (above, name) = match path.iter().rposition(|byte| *byte == b'/') {
            Some(slash) => (&path[..slash], &path[slash + 1..]),
            None => (&path[..0], path),
        };
        let dir = if path.is_empty() { NONE } else { self.table.walk(above)? };
        Some(IndexedNode { dir, name, file })
    }

    pub(super) fn mounted_on(self) -> Vec<Vec<u8>> {
        self.mounted_on.into_inner()
    }

    pub(super) fn table(&self) -> &'t NameTable {
        self.table
    }

    /// The directories that something is mounted on.
    pub(super) fn covered(&self) -> impl Iterator<Item = u32> {
        self.covered.iter().copied()
    }

    /// The directories that could not be read, or not each name in them.
    pub(super) fn not_all_read(&self) -> impl Iterator<Item = u32> {
        self.unread.places().filter_map(|dir| self.table.dir_of(dir.as_bytes()))
    }

    /// A name of the table by its number.
    pub(super) fn node(&self, at: u32) -> IndexedNode<'t> {
        let (dir, name, file) = self.table.named(at);
        IndexedNode { dir, name, file }
    }

    /// A search goes into a directory. Returns whether the names below it are those that users see; else, and for one of
    /// another file system, the directory is noted.
    pub(super) fn goes_into(&self, node: &IndexedNode<'_>) -> bool {
        let covered = self.covered.contains(&node.file);
        if covered || self.facts(node).dev == 0 {
            self.mounted_on.borrow_mut().extend(self.table.path_in(node.dir, node.name));
        }
        // Users do not see the names below, and the names that they see are not known.
        !covered
    }

    fn facts(&self, node: &IndexedNode<'_>) -> FileFacts {
        self.table.facts(node.file)
    }

    /// Calls `look` with the open directory of a name.
    fn on_host<R>(
        &self,
        node: &IndexedNode<'_>,
        look: impl FnOnce(BorrowedFd<'_>) -> Result<R, Errno>,
    ) -> Result<R, Errno> {
        let dir = (node.dir != NONE).then(|| self.table.handle(node.dir)).flatten();
        let way = || self.table.path_of(node.dir);
        look(self.host.open_handle(dir.ok_or(Errno::NOENT)?, &way)?.as_fd())
    }

    /// The device number of a name, and the number of the device that it is.
    fn devices(&self, node: &IndexedNode<'_>, facts: &FileFacts) -> (u64, u64) {
        let is_device = matches!(kind_of(facts.mode), FileKind::CharDevice | FileKind::BlockDevice);
        // The table has no device number of another file system.
        let foreign = facts.dev == 0;
        let mounted = self.devices.get(&node.file).filter(|_| foreign || facts.is_dir());
        if let Some(dev) = mounted {
            return (*dev, 0);
        }
        let seen =
            (is_device || foreign).then(|| self.on_host(node, |dir| self.host.devices(dir, node.name)));
        seen.and_then(Result::ok).unwrap_or((facts.dev, 0))
    }
}

impl<'t> SearchTree for SearchedTree<'t> {
    type Node = IndexedNode<'t>;
    type Children<'a>
        = Box<dyn Iterator<Item = IndexedNode<'t>> + 'a>
    where
        Self: 'a;

    fn name<'a>(&'a self, node: &'a IndexedNode<'t>) -> &'a [u8] {
        node.name
    }

    fn kind(&self, node: &IndexedNode<'t>) -> FileKind {
        kind_of(self.table.mode(node.file))
    }

    fn attributes(&self, node: &IndexedNode<'t>) -> FileAttributes {
        let facts = self.facts(node);
        let (dev, rdev) = self.devices(node, &facts);
        let rdev = (rustix::fs::major(rdev), rustix::fs::minor(rdev));
        FileAttributes { dev, rdev, ..attributes_of(&facts) }
    }

    fn target<'a>(&'a self, node: &'a IndexedNode<'t>) -> io::Result<Cow<'a, [u8]>> {
        let target = self.on_host(node, |dir| readlinkat(dir, node.name, Vec::new()))?;
        Ok(Cow::Owned(target.into_bytes()))
    }

    fn has_children(&self, node: &IndexedNode<'t>) -> io::Result<bool> {
        if self.covered.contains(&node.file) || self.facts(node).dev == 0 {
            return Err(io::Error::other("something is mounted there"));
        }
        if let Some(errno) = self.table.handle(node.file).and_then(|dir| self.unread.why_not(dir)) {
            return Err(errno.into());
        }
        Ok(self.table.children(node.file).next().is_some())
    }

    fn children<'a>(&'a self, node: &IndexedNode<'t>) -> Self::Children<'a> {
        let shown = self.goes_into(node);
        let dir = node.file;
        let table: &'t NameTable = self.table;
        let names = table.children(dir).take_while(move |_| shown);
        Box::new(names.map(move |(name, file)| IndexedNode { dir, name, file }))
    }

    fn unread(&self, node: &IndexedNode<'t>) -> Vec<(Vec<u8>, io::Error)> {
        if self.unread.is_empty() || self.covered.contains(&node.file) {
            return Vec::new();
        }
        let Some(dir) = self.table.handle(node.file) else { return Vec::new() };
        let itself = self.unread.why_not(dir).map(|errno| (Vec::new(), errno));
        let names = self.unread.names_of(dir).iter().map(|(name, errno)| (name.to_vec(), *errno));
        itself.into_iter().chain(names).map(|(name, errno)| (name, errno.into())).collect()
    }
}
