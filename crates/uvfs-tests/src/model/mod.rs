//! A reference file system: small, slow, and meant to be obviously right.
//!
//! Everything is a map; nothing is ever freed; one thread. It follows POSIX and Linux for
//! the operations in [`crate::ops`], permissions included. A lockstep run against a kernel tmpfs
//! tests that the model itself is right.

mod attrs;
pub mod command;
mod files;
mod names;
mod walk;

use std::collections::{BTreeMap, BTreeSet};

use rustix::io::Errno;

use crate::ops::{At, Base, FileOp, SLOTS, TargetPath, TestStep, Who};
use crate::results_agree::{
    CONTENT_LIMIT, Outcome, S_IFDIR, S_IFLNK, S_IFMT, S_IFREG, SeenTime, Side, TreeView, UserView, ViewEntry,
    content_digest,
};

type Ino = u64;
const ROOT: Ino = 1;
const PAGE: u64 = 4096;

const S_ISUID: u32 = 0o4000;
const S_ISGID: u32 = 0o2000;
const S_ISVTX: u32 = 0o1000;
const S_IXGRP: u32 = 0o010;

const EXEC: u32 = 1;
const WRITE: u32 = 2;
const READ: u32 = 4;

/// Why an operation ends early.
enum Stop {
    Errno(Errno),
    NoSlot,
    Unspecified,
}

impl From<Errno> for Stop {
    fn from(e: Errno) -> Self {
        Stop::Errno(e)
    }
}

type Answer<T> = Result<T, Stop>;

fn err<T>(e: Errno) -> Answer<T> {
    Err(Stop::Errno(e))
}

#[derive(Debug)]
enum Kind {
    Dir { entries: BTreeMap<Vec<u8>, Ino>, parent: Ino },
    File { size: u64, pages: BTreeMap<u64, Vec<u8>> },
    Link(Vec<u8>),
    Special,
}

#[derive(Debug)]
struct Node {
    mode: u32,
    nlink: u64,
    uid: u32,
    gid: u32,
    rdev: u64,
    mtime: SeenTime,
    ctime: SeenTime,
    kind: Kind,
    xattrs: BTreeMap<Vec<u8>, Vec<u8>>,
}

impl Node {
    fn is_dir(&self) -> bool {
        self.mode & S_IFMT == S_IFDIR
    }
    fn is_link(&self) -> bool {
        self.mode & S_IFMT == S_IFLNK
    }
    fn is_file(&self) -> bool {
        self.mode & S_IFMT == S_IFREG
    }
}

#[derive(Clone, Copy)]
struct Open {
    ino: Ino,
    pos: u64,
    read: bool,
    write: bool,
    append: bool,
    who: Who,
}

/// Points on which systems differ, and the one that the model follows.
#[derive(Clone, Copy, Debug, Default)]
pub struct Habits {
    /// `fs.protected_hardlinks`: users may link only what is theirs or what they may write.
    pub protected_hardlinks: bool,
    /// Leave `..` in a removed directory unspecified.
    pub dead_dotdot_unspecified: bool,
    /// The opener of a file, not the writer, decides which rights a change of content takes away.
    pub files_keep_credentials: bool,
}

/// The reference file system.
pub struct Model {
    nodes: BTreeMap<Ino, Node>,
    next: Ino,
    cwd: Ino,
    umask: u32,
    slots: [Option<Open>; SLOTS],
    clock: i64,
    habits: Habits,
}

impl Model {
    /// An empty tree whose root belongs to root and has mode 0755.
    pub fn new(habits: Habits) -> Self {
        let mut model = Self {
            nodes: BTreeMap::new(),
            next: ROOT,
            cwd: ROOT,
            umask: 0o022,
            slots: [None; SLOTS],
            clock: 1 << 40,
            habits,
        };
        let kind = Kind::Dir { entries: BTreeMap::new(), parent: ROOT };
        model.insert(S_IFDIR | 0o755, 0, 0, 0, kind);
        model
    }

    fn insert(&mut self, mode: u32, uid: u32, gid: u32, rdev: u64, kind: Kind) -> Ino {
        let ino = self.next;
        self.next += 1;
        let nlink = if mode & S_IFMT == S_IFDIR { 2 } else { 1 };
        let now = self.now();
        let node =
            Node { mode, nlink, uid, gid, rdev, mtime: now, ctime: now, kind, xattrs: BTreeMap::new() };
        self.nodes.insert(ino, node);
        ino
    }

    /// Far in the future, so that it is never mistaken for a time that an operation sets.
    fn now(&self) -> SeenTime {
        (self.clock, 0)
    }

    fn node(&self, ino: Ino) -> &Node {
        &self.nodes[&ino]
    }

    fn node_mut(&mut self, ino: Ino) -> &mut Node {
        self.nodes.get_mut(&ino).expect("nodes are never freed")
    }

    fn entries(&self, dir: Ino) -> &BTreeMap<Vec<u8>, Ino> {
        match &self.node(dir).kind {
            Kind::Dir { entries, .. } => entries,
            _ => panic!("node {dir} is no directory"),
        }
    }

    fn entries_mut(&mut self, dir: Ino) -> &mut BTreeMap<Vec<u8>, Ino> {
        match &mut self.node_mut(dir).kind {
            Kind::Dir { entries, .. } => entries,
            _ => panic!("node {dir} is no directory"),
        }
    }

    fn touch(&mut self, ino: Ino, mtime: bool) {
        let now = self.now();
        let node = self.node_mut(ino);
        node.ctime = now;
        if mtime {
            node.mtime = now;
        }
    }

    fn open_file(&self, slot: usize) -> Answer<Open> {
        self.slots[slot].ok_or(Stop::NoSlot)
    }

    fn base(&self, at: &At) -> Answer<Ino> {
        match at.base {
            Base::Cwd => Ok(self.cwd),
            Base::Slot(s) => Ok(self.open_file(s)?.ino),
        }
    }

    /// The object of an attribute operation.
    fn target(&self, who: Who, target: &TargetPath) -> Answer<Ino> {
        match target {
            TargetPath::Path { at, follow } => self.resolve(who, at, *follow),
            TargetPath::Slot(s) => Ok(self.open_file(*s)?.ino),
        }
    }

    fn view(&self, ino: Ino) -> UserView {
        let n = self.node(ino);
        let size = match &n.kind {
            Kind::File { size, .. } => *size,
            Kind::Link(target) => target.len() as u64,
            _ => 0,
        };
        let (mode, nlink, uid, gid, rdev) = (n.mode, n.nlink, n.uid, n.gid, n.rdev);
        UserView { ino, mode, nlink, uid, gid, rdev, size, mtime: n.mtime, ctime: n.ctime }
    }

    fn run(&mut self, who: Who, op: &FileOp) -> Answer<Outcome> {
        match op {
            FileOp::Open { .. }
            | FileOp::Mkdir { .. }
            | FileOp::Mknod { .. }
            | FileOp::Symlink { .. }
            | FileOp::Link { .. }
            | FileOp::Unlink { .. }
            | FileOp::Rmdir { .. }
            | FileOp::Rename { .. } => self.change_names(who, op).map(|()| Outcome::Done),
            FileOp::Readlink { at } => match &self.node(self.resolve(who, at, false)?).kind {
                Kind::Link(target) => Ok(Outcome::Data(target.clone())),
                _ => err(Errno::INVAL),
            },
            FileOp::Access { at, access } => {
                let ino = self.resolve(who, at, true)?;
                self.need(who, ino, access.bits())?;
                Ok(Outcome::Done)
            }
            FileOp::Readdir { at } => self.readdir(who, at),
            FileOp::Chdir { path } => {
                let ino = self.resolve(who, &At::cwd(path), true)?;
                if !self.node(ino).is_dir() {
                    return err(Errno::NOTDIR);
                }
                self.need(who, ino, EXEC)?;
                self.cwd = ino;
                Ok(Outcome::Done)
            }
            FileOp::Umask { mask } => {
                self.umask = mask.0;
                Ok(Outcome::Done)
            }
            FileOp::Stat { target } => Ok(Outcome::Node(self.view(self.target(who, target)?))),
            FileOp::Chmod { .. } | FileOp::Chown { .. } | FileOp::Utimens { .. } => {
                self.set_attributes(who, op).map(|()| Outcome::Done)
            }
            FileOp::SetXattr { .. }
            | FileOp::GetXattr { .. }
            | FileOp::ListXattr { .. }
            | FileOp::RemoveXattr { .. } => self.xattr(who, op),
            _ => self.file(who, op),
        }
    }

    fn readdir(&mut self, who: Who, at: &At) -> Answer<Outcome> {
        let dir = self.resolve(who, at, true)?;
        if !self.node(dir).is_dir() {
            return err(Errno::NOTDIR);
        }
        self.need(who, dir, READ)?;
        if self.node(dir).nlink == 0 {
            return err(Errno::NOENT);
        }
        let mut names = BTreeSet::from([(b".".to_vec(), S_IFDIR), (b"..".to_vec(), S_IFDIR)]);
        names.extend(
            self.entries(dir).iter().map(|(name, ino)| (name.clone(), self.node(*ino).mode & S_IFMT)),
        );
        Ok(Outcome::Names(names))
    }

    fn add_to_tree(&self, ino: Ino, path: Vec<u8>, tree: &mut TreeView, seen: &mut BTreeMap<Ino, Vec<u8>>) {
        let node = self.node(ino);
        let content = match &node.kind {
            Kind::Link(target) => target.clone(),
            Kind::File { .. } => content_digest(&self.content(ino, 0, CONTENT_LIMIT)),
            _ => Vec::new(),
        };
        let alias = seen.entry(ino).or_insert_with(|| path.clone()).clone();
        // The walk of a host directory cannot read the attributes of links and special files.
        let xattrs = if node.is_dir() || node.is_file() { node.xattrs.clone() } else { BTreeMap::new() };
        tree.insert(path.clone(), ViewEntry { view: self.view(ino), alias, content, xattrs });
        if let Kind::Dir { entries, .. } = &node.kind {
            for (name, child) in entries {
                let below = if path.is_empty() { name.clone() } else { [&path[..], b"/", name].concat() };
                self.add_to_tree(*child, below, tree, seen);
            }
        }
    }
}

impl Side for Model {
    fn apply(&mut self, step: &TestStep) -> Outcome {
        self.clock += 1;
        match self.run(step.who, &step.op) {
            Ok(outcome) => outcome,
            Err(Stop::Errno(e)) => Outcome::Failed(e),
            Err(Stop::NoSlot) => Outcome::NoSlot,
            Err(Stop::Unspecified) => Outcome::Unspecified,
        }
    }

    fn look(&mut self, target: &TargetPath) -> Option<UserView> {
        self.target(Who::Root, target).ok().map(|ino| self.view(ino))
    }

    fn tree(&mut self) -> Result<TreeView, Errno> {
        let mut tree = TreeView::new();
        self.add_to_tree(ROOT, Vec::new(), &mut tree, &mut BTreeMap::from([(ROOT, Vec::new())]));
        Ok(tree)
    }

    fn drop_slot(&mut self, slot: usize) {
        self.slots[slot] = None;
    }
}
