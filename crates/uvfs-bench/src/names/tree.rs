//! The files of a workload's tree, and the order in which they are visited.
//!
//! The tree is computed from the shape and a seed. So every arm holds the same tree, and two runs visit it in
//! the same order. Inode numbers count from 1, the root's, in order of creation, parents first.
//! Attributes follow from the inode number, so an arm's answer can be checked in full.

use std::cell::OnceCell;
use std::sync::Arc;

use anyhow::{Context as _, Result, ensure};
use uvfs_cache::attr::mode::{S_IFDIR, S_IFREG};
use uvfs_cache::{Attr, Time};

use crate::names::paths::{DEPTH_MAX, Paths};

/// Inode number of the root.
pub const ROOT: u64 = 1;
/// Owner of everything. For any other user the last three mode bits decide.
pub const OWNER: u32 = 0;

/// The shape of a tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Shape {
    /// Number of files.
    pub files: u64,
    /// Names in each path.
    pub depth: usize,
    /// Most files in a directory. `None`: as many as make every level branch alike.
    pub per_dir: Option<u64>,
    /// Each file has a chain of directories of its own, from the root down.
    pub own: bool,
    /// Whether paths end in names known to be absent, one beside each file.
    pub negative: bool,
    /// Bytes of a file's name. A shorter one is filled up.
    #[serde(default)]
    pub name_bytes: usize,
    /// Seed of the visiting order.
    pub seed: u64,
}

/// A name of the tree.
#[derive(Clone, Debug)]
pub struct TreeEntry {
    /// Inode number of its directory.
    pub parent: u64,
    /// The name.
    pub name: Vec<u8>,
    /// Attributes; `ino` is 0 if the entry says that the name does not exist.
    pub attr: Attr,
}

/// A tree.
#[derive(Debug)]
pub struct NameTree {
    /// Every name, parents before children.
    pub entries: Vec<TreeEntry>,
    /// Files (or the absent names beside them) in visiting order.
    pub paths: Paths,
    /// Inode number at each path's end; 0 if there is none.
    pub inos: Vec<u64>,
}

/// Attributes of an inode of the tree.
pub fn attr_of(ino: u64, dir: bool) -> Attr {
    let time = Time::new(1_700_000_000 + ino as i64 % 1_000_000, (ino % 1_000_000_000) as u32);
    Attr {
        ino,
        mode: if dir { S_IFDIR | 0o755 } else { S_IFREG | 0o644 },
        nlink: if dir { 2 } else { 1 },
        uid: OWNER,
        gid: OWNER,
        rdev: 0,
        size: if dir { 0 } else { ino * 3 },
        // Counted as a file system with pages of 4 KiB counts a file without holes.
        blocks: if dir { 0 } else { (ino * 3).div_ceil(4096) * 8 },
        atime: time,
        mtime: time,
        ctime: time,
        acl: false,
    }
}

impl NameTree {
    /// Makes the tree of this shape.
    ///
    /// # Errors
    /// A sentence that says why the shape is impossible.
    pub fn new(shape: Shape) -> Result<Self> {
        ensure!(shape.files > 0, "a tree needs at least one file");
        ensure!((1..=DEPTH_MAX).contains(&shape.depth), "depth goes from 1 to {DEPTH_MAX}");
        let mut making = Making { shape, entries: Vec::new(), next: ROOT + 1, found: Vec::new() };
        making.fill(ROOT, &mut Vec::new(), shape.files)?;
        let Making { entries, mut found, .. } = making;
        fastrand::Rng::with_seed(shape.seed).shuffle(&mut found);
        let (mut paths, mut inos) = (Paths::default(), Vec::with_capacity(found.len()));
        for leaf in found {
            let names: Vec<&[u8]> = leaf.above.iter().map(Vec::as_slice).chain([&leaf.name[..]]).collect();
            paths.push(&names).context("the paths of this tree are too long")?;
            inos.push(leaf.ino);
        }
        Ok(Self { entries, paths, inos })
    }

    /// The attributes of the root directory.
    pub fn root() -> Attr {
        attr_of(ROOT, true)
    }
}

/// A tree that is made at the first request, so that a run holds only one case's tree at a time.
#[derive(Debug)]
pub struct LazyTree {
    shape: Shape,
    tree: OnceCell<Arc<NameTree>>,
}

impl LazyTree {
    /// A tree of this shape, not yet made.
    pub fn new(shape: Shape) -> Self {
        Self { shape, tree: OnceCell::new() }
    }

    /// The shape.
    pub fn shape(&self) -> Shape {
        self.shape
    }

    /// The tree.
    ///
    /// # Errors
    /// See [`NameTree::new`].
    pub fn get(&self) -> Result<Arc<NameTree>> {
        if let Some(tree) = self.tree.get() {
            return Ok(tree.clone());
        }
        let tree = Arc::new(NameTree::new(self.shape)?);
        Ok(self.tree.get_or_init(|| tree).clone())
    }
}

/// The end of a path. `above` is shared by all files of a directory.
struct Leaf {
    above: std::rc::Rc<[Vec<u8>]>,
    name: Vec<u8>,
    ino: u64,
}

struct Making {
    shape: Shape,
    entries: Vec<TreeEntry>,
    next: u64,
    found: Vec<Leaf>,
}

impl Making {
    /// Puts `files` files below a directory whose path is `above`.
    fn fill(&mut self, dir: u64, above: &mut Vec<Vec<u8>>, files: u64) -> Result<()> {
        let levels = (self.shape.depth - above.len()) as u32;
        if levels == 1 {
            let above: std::rc::Rc<[Vec<u8>]> = above.as_slice().into();
            for i in 0..files {
                self.file(dir, &above, i);
            }
            return Ok(());
        }
        let each = if self.shape.own { 1 } else { below(files, levels, self.shape.per_dir) };
        for i in 0..files.div_ceil(each) {
            let name = format!("dir{i:04}").into_bytes();
            let ino = self.enter(dir, &name, |ino| attr_of(ino, true));
            above.push(name);
            self.fill(ino, above, each.min(files - i * each))?;
            above.pop();
        }
        Ok(())
    }

    fn file(&mut self, dir: u64, above: &std::rc::Rc<[Vec<u8>]>, i: u64) {
        let mut name = format!("file{i:04}").into_bytes();
        name.resize(name.len().max(self.shape.name_bytes), b'x');
        let ino = self.enter(dir, &name, |ino| attr_of(ino, false));
        if !self.shape.negative {
            return self.found.push(Leaf { above: above.clone(), name, ino });
        }
        let name = format!("none{i:04}").into_bytes();
        self.entries.push(TreeEntry { parent: dir, name: name.clone(), attr: Attr::default() });
        self.found.push(Leaf { above: above.clone(), name, ino: 0 });
    }

    fn enter(&mut self, parent: u64, name: &[u8], attr: impl FnOnce(u64) -> Attr) -> u64 {
        let ino = self.next;
        self.next += 1;
        self.entries.push(TreeEntry { parent, name: name.to_vec(), attr: attr(ino) });
        ino
    }
}

/// How many of `files` files a subdirectory gets, with `levels` levels of names: as many as make every level
/// branch alike. Above directories with a fixed number of files it is a multiple of that number.
fn below(files: u64, levels: u32, per_dir: Option<u64>) -> u64 {
    let (unit, levels) = per_dir.map_or((1, levels), |n| (n.max(1), levels - 1));
    let units = files.div_ceil(unit);
    let mut branch = 1u64;
    while u128::from(units) > u128::from(branch).pow(levels) {
        branch += 1;
    }
    units.div_ceil(branch) * unit
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashMap;

    fn shape(files: u64, depth: usize, per_dir: Option<u64>) -> Shape {
        Shape { files, depth, per_dir, own: false, negative: false, name_bytes: 0, seed: 1 }
    }

    /// Walks a path through the entries.
    fn find(tree: &NameTree, index: usize) -> Option<u64> {
        let names: HashMap<_, _> =
            tree.entries.iter().map(|e| ((e.parent, &e.name[..]), e.attr.ino)).collect();
        let (mut above, last) = tree.paths.get(index).split();
        let dir = above.try_fold(ROOT, |dir, name| names.get(&(dir, name)).copied())?;
        names.get(&(dir, last)).copied()
    }

    #[test]
    fn every_path_leads_to_its_inode() {
        for (files, depth, per_dir) in
            [(1, 1, None), (1, 6, None), (100, 1, None), (100, 3, None), (100, 6, Some(7))]
        {
            let tree = NameTree::new(shape(files, depth, per_dir)).unwrap();
            assert_eq!(tree.paths.len() as u64, files);
            for i in 0..tree.paths.len() {
                assert_eq!(find(&tree, i), Some(tree.inos[i]), "{files} {depth}");
                assert_eq!(tree.paths.get(i).split().0.count(), depth - 1);
            }
        }
    }

    #[test]
    fn levels_branch_alike_or_as_asked() {
        let most = |tree: &NameTree| {
            let mut count: HashMap<u64, u64> = HashMap::new();
            tree.entries.iter().for_each(|e| *count.entry(e.parent).or_default() += 1);
            count.into_values().max().unwrap_or(0)
        };
        assert_eq!(most(&NameTree::new(shape(1000, 3, None)).unwrap()), 10);
        assert_eq!(most(&NameTree::new(shape(1000, 2, Some(250))).unwrap()), 250);
        assert_eq!(most(&NameTree::new(shape(64, 6, None)).unwrap()), 2);
        let own = NameTree::new(Shape { own: true, ..shape(3, 4, None) }).unwrap();
        assert_eq!(own.entries.iter().filter(|e| e.parent == ROOT).count(), 3);
        assert_eq!(own.entries.len(), 12);
    }

    #[test]
    fn names_are_filled_up() {
        let tree = NameTree::new(Shape { name_bytes: 18, ..shape(100, 2, None) }).unwrap();
        let files = || tree.entries.iter().filter(|e| !e.attr.is_dir());
        assert!(files().count() == 100 && files().all(|e| e.name.len() == 18 && e.name.ends_with(b"xx")));
        assert!((0..tree.paths.len()).all(|i| find(&tree, i) == Some(tree.inos[i])));
    }

    #[test]
    fn absent_names_stand_beside_the_files() {
        let tree = NameTree::new(Shape { negative: true, ..shape(5, 2, None) }).unwrap();
        assert!(tree.inos.iter().all(|ino| *ino == 0) && (0..5).all(|i| find(&tree, i) == Some(0)));
        assert!(NameTree::new(shape(0, 1, None)).is_err() && NameTree::new(shape(1, 0, None)).is_err());
    }
}
