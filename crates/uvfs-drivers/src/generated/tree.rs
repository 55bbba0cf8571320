//! The tree as arithmetic: the position, name and attributes of each inode.
//!
//! Directories are numbered level by level, so that parent and children are found by a division and a
//! multiplication: directory `n` has the subdirectories `n * dirs + 1 + i`. Directory `n` is
//! inode `n + 1`. The files follow all directories, `files` for each directory in order. An entry's
//! index is its position in its directory: subdirectories first, then files.
//!
//! Only two things are stored: the level table (at most 65 words), and the changes that a test asked for
//! ([`Tree::change`]). If there are none, a flag lets readers skip them. Every call is O(depth) at most,
//! allocates nothing unless its comment says so, and may be made from any thread.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::RwLock;
use uvfs::types::{Attr, Time, mode};

use super::mixing::{hash, mix};
use super::names::{self, Name, Naming};
use super::spec::{Spec, SpecError};

/// Inode number of the root directory.
pub const ROOT_INO: u64 = 1;

/// First second of the range of times (2000-01-01), and the length of the range (about 25 years).
const TIMES: (i64, u64) = (946_684_800, 788_400_000);
/// The bytes that a directory entry adds to the size of its directory.
const DIR_ENTRY_SIZE: u64 = 32;
/// Permission bits of files if the specification gives none.
const FILE_MODES: [u32; 4] = [0o644, 0o644, 0o755, 0o600];

/// The attribute that is drawn; keeps the draws of one inode independent of each other.
#[derive(Clone, Copy)]
enum Draw {
    Names = 1,
    Mode,
    Uid,
    Gid,
    Size,
    Time,
    Content,
}

/// Added to a version to get an answer that differs from the true one.
const WRONG: u64 = 1 << 63;

/// Whether to give the true answer or one that differs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Truth {
    True,
    Wrong,
}

impl Truth {
    fn twist(self) -> u64 {
        match self {
            Truth::True => 0,
            Truth::Wrong => WRONG,
        }
    }
}

/// The kind of change that [`Tree::change`] makes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// Attributes and file content of the node and of everything below.
    Attributes,
    /// Names of all entries of the directory and of those below: the old names disappear. Inode
    /// numbers stay, as if everything had been renamed.
    Names,
}

#[derive(Clone, Copy, Default)]
struct Version {
    attributes: u64,
    names: u64,
}

/// A deterministic tree of any size.
pub struct Tree {
    spec: Spec,
    /// Number of the first directory of each level.
    levels: Vec<u64>,
    /// Directories in all.
    total_dirs: u64,
    /// Inodes in all.
    total: u64,
    /// Whether `versions` holds anything. Set once, after the first change was entered.
    changed: AtomicBool,
    versions: RwLock<HashMap<u64, Version>>,
}

/// The position of an inode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    Dir { number: u64, level: usize },
    File { dir: u64, index: u64 },
}

impl Tree {
    /// A tree of this shape. Fails if inode numbers or directory cookies would overflow, or if
    /// names are too short to tell the entries apart.
    pub(super) fn new(spec: Spec) -> Result<Self, SpecError> {
        let (levels, total_dirs, total) = number(&spec).ok_or_else(|| {
            SpecError::new(format!(
                "depth={},dirs={},files={} makes more inodes than 64 bits can number; lower one of them",
                spec.depth, spec.dirs, spec.files
            ))
        })?;
        let subdirs = if spec.depth > 0 { spec.dirs } else { 0 };
        let entries = spec.files.checked_add(subdirs).filter(|n| *n <= (i64::MAX as u64) - 3).ok_or_else(|| {
            SpecError::new(format!(
                "dirs={} and files={} make more entries than a directory offset can count (2^63); lower one of them",
                spec.dirs, spec.files
            ))
        })?;
        let code = names::code_len(entries);
        if spec.name.0 < code {
            return Err(SpecError::new(format!(
                "name={}..{} is too short: {entries} entries need names of at least {code} bytes",
                spec.name.0, spec.name.1
            )));
        }
        Ok(Self {
            spec,
            levels,
            total_dirs,
            total,
            changed: AtomicBool::new(false),
            versions: RwLock::new(HashMap::new()),
        })
    }

    /// The specification that this tree is made from.
    pub fn spec(&self) -> &Spec {
        &self.spec
    }

    /// Number of inodes: they are numbered from 1 without gaps.
    pub fn inodes(&self) -> u64 {
        self.total
    }

    /// Whether this is the inode number of a directory.
    pub fn is_dir(&self, ino: u64) -> bool {
        matches!(self.place(ino), Some(Place::Dir { .. }))
    }

    /// Number of entries of a directory; 0 for everything else.
    pub fn entries(&self, ino: u64) -> u64 {
        match self.place(ino) {
            Some(Place::Dir { level, .. }) => self.subdirs(level) + self.spec.files,
            _ => 0,
        }
    }

    /// Inode number of a directory's entry; `None` if there is no such directory or entry.
    pub fn child(&self, dir: u64, index: u64) -> Option<u64> {
        let Some(Place::Dir { number, level }) = self.place(dir) else { return None };
        let subdirs = self.subdirs(level);
        if index < subdirs {
            Some(number * self.spec.dirs + 1 + index + ROOT_INO)
        } else if index - subdirs < self.spec.files {
            Some(ROOT_INO + self.total_dirs + number * self.spec.files + (index - subdirs))
        } else {
            None
        }
    }

    /// The directory of an inode, and its index there; `None` for the root and for numbers without an inode.
    pub fn parent(&self, ino: u64) -> Option<(u64, u64)> {
        match self.place(ino)? {
            Place::Dir { number: 0, .. } => None,
            Place::Dir { number, .. } => {
                Some(((number - 1) / self.spec.dirs + ROOT_INO, (number - 1) % self.spec.dirs))
            }
            Place::File { dir, index } => {
                let parent = dir + ROOT_INO;
                Some((parent, index + self.subdirs(self.level(dir))))
            }
        }
    }

    /// Name of a directory's entry; `None` if there is no such directory or entry.
    pub fn name(&self, dir: u64, index: u64) -> Option<Name> {
        self.child(dir, index)?;
        Some(self.naming(dir, Truth::True).encode(index))
    }

    /// Index of the entry with this name; the inverse of [`Tree::name`].
    pub fn find(&self, dir: u64, name: &[u8]) -> Option<u64> {
        self.is_dir(dir).then(|| self.naming(dir, Truth::True).decode(name))?
    }

    /// Path of an inode from the root, starting with `/`. Allocates the path.
    pub fn path(&self, ino: u64) -> Option<Vec<u8>> {
        self.place(ino)?;
        let mut names = Vec::new();
        let mut at = ino;
        while let Some((dir, index)) = self.parent(at) {
            names.push(self.name(dir, index)?);
            at = dir;
        }
        let mut path = Vec::new();
        for name in names.iter().rev() {
            path.push(b'/');
            path.extend_from_slice(name);
        }
        if path.is_empty() {
            path.push(b'/');
        }
        Some(path)
    }

    /// Attributes of an inode; `None` if there is no such inode.
    pub fn attr(&self, ino: u64) -> Option<Attr> {
        self.attr_as(ino, Truth::True)
    }

    /// Fills `buf` with a file's content from `offset` on. Content is defined at every offset: the caller
    /// decides where the file ends.
    pub fn content(&self, ino: u64, offset: u64, buf: &mut [u8]) {
        self.content_as(ino, offset, buf, Truth::True);
    }

    /// Makes a node and everything below it different from now on, and different from all their earlier
    /// states. Answers that are being computed may still be the old ones.
    pub fn change(&self, ino: u64, what: Change) {
        let mut versions = self.versions.write();
        let version = versions.entry(ino).or_default();
        match what {
            Change::Attributes => version.attributes += 1,
            Change::Names => version.names += 1,
        }
        // The lock's own release publishes it too; a reader that sees the flag takes the lock.
        self.changed.store(true, Ordering::Release);
    }

    pub(super) fn attr_as(&self, ino: u64, truth: Truth) -> Option<Attr> {
        let place = self.place(ino)?;
        let spec = &self.spec;
        let version = self.version(ino).attributes ^ truth.twist();
        let draw = |what: Draw| hash(mix(spec.seed ^ what as u64), ino, version);
        let (mode, nlink, size) = match place {
            Place::Dir { level, .. } => {
                let subdirs = self.subdirs(level);
                // A directory with more subdirectories than a link count can hold reports 1, which
                // readers take for "not counted".
                let nlink = u32::try_from(subdirs).ok().and_then(|n| n.checked_add(2)).unwrap_or(1);
                let size = (subdirs + spec.files).saturating_mul(DIR_ENTRY_SIZE).min(u64::from(u32::MAX));
                (mode::S_IFDIR | spec.dirmode, nlink, size)
            }
            Place::File { .. } => {
                let bits = spec.mode.unwrap_or(FILE_MODES[(draw(Draw::Mode) % 4) as usize]);
                (mode::S_IFREG | bits, 1, within(draw(Draw::Size), spec.size))
            }
        };
        let time = draw(Draw::Time);
        let mtime = Time::new(TIMES.0 + (time % TIMES.1) as i64, (mix(time) % 1_000_000_000) as u32);
        Some(Attr {
            ino,
            mode,
            nlink,
            uid: within(draw(Draw::Uid), (spec.uid.0.into(), spec.uid.1.into())) as u32,
            gid: within(draw(Draw::Gid), (spec.gid.0.into(), spec.gid.1.into())) as u32,
            rdev: 0,
            size,
            blocks: size.div_ceil(512),
            atime: mtime,
            mtime,
            ctime: mtime,
            acl: false,
        })
    }

    pub(super) fn content_as(&self, ino: u64, offset: u64, buf: &mut [u8], truth: Truth) {
        let version = self.version(ino).attributes ^ truth.twist();
        let key = hash(mix(self.spec.seed ^ Draw::Content as u64), ino, version);
        let mut at = offset;
        let mut rest = buf;
        while !rest.is_empty() {
            let word = mix(key ^ (at / 8)).to_le_bytes();
            let from = (at % 8) as usize;
            let n = rest.len().min(8 - from);
            let (head, tail) = rest.split_at_mut(n);
            head.copy_from_slice(&word[from..from + n]);
            rest = tail;
            at = at.wrapping_add(n as u64);
        }
    }

    /// The naming of a directory's entries; meaningless for any other inode.
    pub(super) fn naming(&self, dir: u64, truth: Truth) -> Naming {
        let version = self.version(dir).names ^ truth.twist();
        let key = hash(mix(self.spec.seed ^ Draw::Names as u64), dir, version);
        Naming::new(key, self.entries(dir), self.spec.name)
    }

    /// The sum of the changes of a node and of all above it: grows with every change.
    fn version(&self, ino: u64) -> Version {
        let mut sum = Version::default();
        if !self.changed.load(Ordering::Acquire) {
            return sum;
        }
        let versions = self.versions.read();
        let mut at = Some(ino);
        while let Some(ino) = at {
            let own = versions.get(&ino).copied().unwrap_or_default();
            sum.attributes += own.attributes;
            sum.names += own.names;
            at = self.parent(ino).map(|(dir, _)| dir);
        }
        sum
    }

    fn place(&self, ino: u64) -> Option<Place> {
        let number = ino.checked_sub(ROOT_INO)?;
        if number < self.total_dirs {
            Some(Place::Dir { number, level: self.level(number) })
        } else if number < self.total {
            let file = number - self.total_dirs;
            Some(Place::File { dir: file / self.spec.files, index: file % self.spec.files })
        } else {
            None
        }
    }

    fn level(&self, number: u64) -> usize {
        self.levels.partition_point(|first| *first <= number) - 1
    }

    fn subdirs(&self, level: usize) -> u64 {
        if level + 1 < self.levels.len() { self.spec.dirs } else { 0 }
    }
}

/// Maps a draw into a range, both ends included.
fn within(draw: u64, (low, high): (u64, u64)) -> u64 {
    match (high - low).checked_add(1) {
        Some(width) => low + draw % width,
        None => draw,
    }
}

/// First directory of each level, number of directories and of inodes; `None` if 64 bits are too few.
fn number(spec: &Spec) -> Option<(Vec<u64>, u64, u64)> {
    let mut levels = vec![0];
    let (mut width, mut dirs) = (1u64, 1u64);
    if spec.dirs > 0 {
        for _ in 0..spec.depth {
            levels.push(dirs);
            width = width.checked_mul(spec.dirs)?;
            dirs = dirs.checked_add(width)?;
        }
    }
    let total = dirs.checked_mul(spec.files)?.checked_add(dirs)?;
    total.checked_add(ROOT_INO)?;
    Some((levels, dirs, total))
}
