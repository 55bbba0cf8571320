//! Models of a kernel's locks of a kernfs tree: the baselines to the product's driver, whose hits take no lock.
//!
//! A walk takes a reference on each dentry and the tree lock twice at each component, as the kernel's does: for the
//! permission to search the directory, and to revalidate the node's parent and name.
//! It takes the lock once more for the permission to open. [`TreeLocks`] holds what these steps read. The arms differ in
//! the lock:
//!
//! - *stock*: one reader-writer lock, as Linux 5.x did.
//! - *hashed*: many, selected by a node's number; a change takes those of the node and its directory.
//! - *patched*: one per-CPU reader-writer lock.
//!
//! All else is shared with uvfs: the table of names, the references, the attributes' own calls. A change is made in
//! both, so it costs more than either.

use std::borrow::Cow;

use anyhow::{Context as _, Result, bail};
use parking_lot::RwLock;
use uvfs::{Access, Cred, Errno, Found, Op, Vfs};
use uvfs_drivers::kernfs::Node;
use uvfs_sync::order::{Class, Held};
use uvfs_sync::percpu_rwsem::PerCpuRwSem;

/// Locks of *hashed*.
const SHARDS: usize = 128;

/// A node as the tree knows it.
pub struct KnownNode {
    ino: u64,
    parent: u64,
    name: Vec<u8>,
    mode: u32,
    uid: u32,
    gid: u32,
}

impl KnownNode {
    /// The node as it is now.
    ///
    /// # Errors
    /// ENOENT if it is removed.
    pub fn of(node: &Node) -> Result<Self> {
        let attr = node.attr()?;
        let parent = node.parent().map_or(0, |parent| parent.ino());
        Ok(Self {
            ino: node.ino(),
            parent,
            name: node.name()?,
            mode: attr.mode,
            uid: attr.uid,
            gid: attr.gid,
        })
    }

    fn grants(&self, cred: &Cred, want: Access) -> bool {
        let shift = if cred.uid == self.uid {
            6
        } else if cred.gid == self.gid {
            3
        } else {
            0
        };
        let bits = u32::from(want.contains(Access::READ)) << 2 | u32::from(want.contains(Access::EXEC));
        cred.is_root() || self.mode >> shift & bits == bits
    }
}

/// The nodes that one lock protects.
#[derive(Default)]
pub struct Shard(Vec<Option<KnownNode>>);

impl Shard {
    fn put(&mut self, at: usize, known: Option<KnownNode>) {
        if self.0.len() <= at {
            self.0.resize_with(at + 1, || None);
        }
        self.0[at] = known;
    }
}

/// Each lock has its own cache line.
#[derive(Default)]
#[repr(align(128))]
pub struct PaddedShard(RwLock<Shard>);

/// All nodes, and the locks that protect them.
pub enum TreeLocks {
    /// See the module.
    Stock(RwLock<Shard>),
    /// See the module.
    Hashed(Box<[PaddedShard]>),
    /// See the module.
    Patched(Box<PerCpuRwSem<Shard>>),
}

/// The index of a node: inode numbers count from 1.
fn place(ino: u64) -> usize {
    (ino as u32).wrapping_sub(1) as usize
}

fn shard(ino: u64) -> usize {
    place(ino) % SHARDS
}

/// The shards of two nodes, each once, in order.
fn shards(nodes: [u64; 2]) -> [Option<usize>; 2] {
    let [a, b] = nodes.map(shard);
    let (first, last) = (a.min(b), a.max(b));
    [Some(first), Some(last).filter(|_| last != first)]
}

/// Notes for the checker that the lock of this number is about to be taken.
fn noted(shard: usize) -> Held {
    Held::keyed(Class::Tree, shard as u64)
}

impl TreeLocks {
    /// The locks of an arm, without nodes.
    ///
    /// # Errors
    /// An unknown arm, and ENOMEM.
    pub fn new(arm: &str) -> Result<Self> {
        Ok(match arm {
            "stock" => Self::Stock(RwLock::default()),
            "hashed" => Self::Hashed((0..SHARDS).map(|_| PaddedShard::default()).collect()),
            "patched" => {
                let lock = PerCpuRwSem::new(Shard::default()).ok().context("no memory for the lock")?;
                Self::Patched(Box::new(lock))
            }
            other => bail!("{other:?} is no arm"),
        })
    }

    /// Looks at a node under its lock. False if the tree does not have it.
    #[inline]
    fn look(&self, ino: u64, look: impl FnOnce(&KnownNode) -> bool) -> bool {
        let known = |part: &Shard, at: usize| {
            part.0.get(at).and_then(Option::as_ref).filter(|known| known.ino == ino).is_some_and(look)
        };
        match self {
            Self::Stock(lock) => known(&noted(0).with(|| lock.read()), place(ino)),
            Self::Hashed(locks) => {
                let shard = shard(ino);
                known(&noted(shard).with(|| locks[shard].0.read()), place(ino) / SHARDS)
            }
            Self::Patched(lock) => known(&noted(0).with(|| lock.read()), place(ino)),
        }
    }

    /// Puts a node into the tree, or takes it out, with its directory locked too.
    fn change(&self, ino: u64, parent: u64, known: Option<KnownNode>) {
        match self {
            Self::Stock(lock) => noted(0).with(|| lock.write()).put(place(ino), known),
            Self::Hashed(locks) => {
                let mut parts = shards([parent, ino])
                    .map(|s| s.map(|shard| (shard, noted(shard).with(|| locks[shard].0.write()))));
                let part = parts.iter_mut().flatten().find(|(s, _)| *s == shard(ino));
                if let Some((_, part)) = part {
                    part.put(place(ino) / SHARDS, known);
                }
            }
            Self::Patched(lock) => noted(0).with(|| lock.write()).put(place(ino), known),
        }
    }

    /// Adds a node that the product's tree has.
    ///
    /// # Errors
    /// ENOENT if it is removed.
    pub fn add(&self, node: &Node) -> Result<()> {
        let known = KnownNode::of(node)?;
        self.change(known.ino, known.parent, Some(known));
        Ok(())
    }

    /// Takes a node out, before the product's tree does.
    pub fn remove(&self, node: &Node) {
        self.change(node.ino(), node.parent().map_or(0, |parent| parent.ino()), None);
    }

    fn permits(&self, cred: &Cred, ino: u64, want: Access) -> Result<(), Errno> {
        if self.look(ino, |node| node.grants(cred, want)) { Ok(()) } else { Err(Errno::ACCESS) }
    }

    /// Opens `path` for reading, step by step with references. Returns the handle. As in the kernel, the text of a
    /// link is read under the link's lock.
    ///
    /// # Errors
    /// ENOENT, EACCES, and those of the VFS.
    pub fn open(&self, vfs: &Vfs, op: &Op, path: &[u8]) -> Result<u64, Errno> {
        let mut at = vfs.root();
        let (mut text, mut from) = (Cow::Borrowed(path), 0);
        while let Some((name, next)) = name_at(&text, from) {
            self.permits(&op.cred, at.ino(), Access::EXEC)?;
            let Found::Node(child, attr) = vfs.lookup(op, &at, name)? else { return Err(Errno::NOENT) };
            if name == b".." {
                (at, from) = (child, next);
                continue;
            }
            if !self.look(child.ino(), |node| node.parent == at.ino() && node.name == name) {
                return Err(Errno::NOENT);
            }
            if attr.is_symlink() {
                self.look(child.ino(), |_| true);
                let mut target = vfs.readlink(op, &child)?;
                target.push(b'/');
                target.extend_from_slice(&text[next..]);
                (text, from) = (Cow::Owned(target), 0);
                continue;
            }
            (at, from) = (child, next);
        }
        self.permits(&op.cred, at.ino(), Access::READ)?;
        vfs.open(op, &at, Access::READ, false)
    }
}

/// The name at or after an offset, and the offset behind it.
fn name_at(path: &[u8], from: usize) -> Option<(&[u8], usize)> {
    let start = from + path.get(from..)?.iter().position(|&byte| byte != b'/')?;
    let len = path[start..].iter().position(|&byte| byte == b'/').unwrap_or(path.len() - start);
    Some((&path[start..start + len], start + len))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Rule 19: the locks of two nodes are taken by number, whatever the order of the nodes. Planted bug:
    /// rule19-tree-in-falling-order.
    #[test]
    fn rule19_two_nodes_are_locked_by_number() {
        let locks = TreeLocks::new("hashed").unwrap();
        for [parent, ino] in [[1, 2], [2, 1], [3, 3], [130, 1], [2, 130]] {
            locks.change(ino, parent, None);
        }
    }
}
