//! Models of a kernel's locks of a kernfs tree: the baselines to the product's driver, whose hits take no lock.
//!
//! A walk takes a reference on each dentry and the tree lock twice at each component, as the kernel's does. It takes
//! the lock once more for the permission to open. [`TreeLocks`] holds what these steps read. The arms differ in the
//! lock:
//!
//! - *stock*: one reader-writer lock, as Linux 5.x did.
//! - *hashed*: many, selected by a node's number; a change takes those of the node and its directory.
//! - *patched*: one per-CPU reader-writer lock, whose writer waits for a grace period of RCU ([`GracePeriods`]).
//! - *patched-membarrier*: the same lock, whose writer pays one membarrier(2) instead, as uvfs's own does.
//!
//! | kernel's step | step of the models |
//! |---|---|
//! | permission of a directory, and to open: lock; inode lock, attributes refreshed from the node, checked | the same |
//! | revalidation: lock; active, parent, name | the same |
//! | a link's text: lock | the same; the text is uvfs's |
//! | node added: write lock, linked; write lock again, activated | the same, with a slot for the link |
//! | subtree removed: write lock, all deactivated; for each, children first: lock released while calls drain, taken again, unlinked | the same; `hashed` deactivates node by node |
//!
//! All else is shared with uvfs: the table of names, the references, the attributes' own calls. A change is made in
//! both, so it costs more than either.

use std::borrow::Cow;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use parking_lot::{Mutex, RwLock};
use uvfs::{Access, Cred, Errno, Found, Op, Vfs};
use uvfs_drivers::kernfs::Node;
use uvfs_sync::lock_order::{Class, Held};
use uvfs_sync::percpu_rwsem::PerCpuRwSem;

use crate::harness::sys;

/// Locks of *hashed*.
const SHARDS: usize = 128;

/// A node as the tree knows it.
pub struct KnownNode {
    ino: u64,
    parent: u64,
    name: Vec<u8>,
    /// Whether it is found: not yet while it is added, and no longer while it is removed.
    active: bool,
    owner: Owner,
    /// The inode's lock and its copy of [`KnownNode::owner`].
    inode: Mutex<Owner>,
}

/// The attributes that permissions depend on.
#[derive(Clone, Copy, Debug)]
struct Owner {
    mode: u32,
    uid: u32,
    gid: u32,
}

impl KnownNode {
    /// The node as it is now, not active.
    ///
    /// # Errors
    /// ENOENT if it is removed.
    pub fn of(node: &Node) -> Result<Self> {
        let attr = node.attr()?;
        let parent = node.parent().map_or(0, |parent| parent.ino());
        let owner = Owner { mode: attr.mode, uid: attr.uid, gid: attr.gid };
        let (ino, name) = (node.ino(), node.name()?);
        Ok(Self { ino, parent, name, active: false, owner, inode: Mutex::new(owner) })
    }

    /// Refreshes the inode from the node, and checks.
    fn grants(&self, cred: &Cred, want: Access) -> bool {
        let mut inode = self.inode.lock();
        *inode = self.owner;
        inode.grants(cred, want)
    }
}

impl Owner {
    fn grants(self, cred: &Cred, want: Access) -> bool {
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
    fn slot(&mut self, at: usize) -> &mut Option<KnownNode> {
        if self.0.len() <= at {
            self.0.resize_with(at + 1, || None);
        }
        &mut self.0[at]
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
    Patched(Box<PerCpuRwSem<Shard>>, Mutex<GracePeriods>),
    /// See the module.
    Membarrier(Box<PerCpuRwSem<Shard>>),
}

/// When a writer of the kernel's per-CPU lock waits for a grace period of RCU, in place of readers' barriers.
///
/// As in the kernel, the first writer waits before it blocks readers, and writers that come within a grace period after
/// the last one left do not wait. The wait is one of the machine's own kernel: membarrier(2) with its command GLOBAL
/// waits for a grace period, and for nothing else. The end of the grace period after a writer left is not known here.
/// It is taken to be as long as the last one that was waited for.
#[derive(Debug, Default)]
pub struct GracePeriods {
    /// Writers that come until then do not wait.
    until: Option<Instant>,
    length: Duration,
}

impl GracePeriods {
    /// Whether a writer that comes now has to wait.
    fn is_due(&self, now: Instant) -> bool {
        self.until.is_none_or(|until| now > until)
    }

    /// A writer leaves.
    fn left(&mut self, now: Instant) {
        self.until = Some(now + self.length);
    }

    /// Waits if that is due, writes, and leaves.
    fn write<R>(&mut self, write: impl FnOnce() -> R) -> R {
        let began = Instant::now();
        if self.is_due(began) {
            // `TreeLocks::new` has seen it succeed, and it has no other ways to fail.
            let _ = sys::grace_period();
            self.length = began.elapsed();
        }
        let written = write();
        self.left(Instant::now());
        written
    }
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
            "patched" | "patched-membarrier" => {
                let lock = PerCpuRwSem::new(Shard::default()).ok().context("no memory for the lock")?;
                if arm == "patched" {
                    let waited = sys::grace_period();
                    ensure!(waited.is_ok(), "this kernel's membarrier(2) has no command GLOBAL");
                    Self::Patched(Box::new(lock), Mutex::default())
                } else {
                    Self::Membarrier(Box::new(lock))
                }
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
            Self::Patched(lock, _) | Self::Membarrier(lock) => {
                known(&noted(0).with(|| lock.read()), place(ino))
            }
        }
    }

    /// Changes nodes, each given with its directory: in one write section. `hashed` has one for each node, under its
    /// lock and its directory's.
    fn change(&self, nodes: &[[u64; 2]], change: &mut dyn FnMut(&mut Option<KnownNode>)) {
        let mut all = |part: &mut Shard| nodes.iter().for_each(|[ino, _]| change(part.slot(place(*ino))));
        match self {
            Self::Stock(lock) => all(&mut noted(0).with(|| lock.write())),
            Self::Patched(lock, grace) => grace.lock().write(|| all(&mut noted(0).with(|| lock.write()))),
            Self::Membarrier(lock) => all(&mut noted(0).with(|| lock.write())),
            Self::Hashed(locks) => {
                for [ino, parent] in nodes {
                    let mut parts = shards([*parent, *ino])
                        .map(|s| s.map(|shard| (shard, noted(shard).with(|| locks[shard].0.write()))));
                    let part = parts.iter_mut().flatten().find(|(s, _)| *s == shard(*ino));
                    part.into_iter().for_each(|(_, part)| change(part.slot(place(*ino) / SHARDS)));
                }
            }
        }
    }

    /// Adds a node that the product's tree has: links it, then activates it.
    ///
    /// # Errors
    /// ENOENT if it is removed.
    pub fn add(&self, node: &Node) -> Result<()> {
        self.enter(KnownNode::of(node)?);
        Ok(())
    }

    fn enter(&self, known: KnownNode) {
        let place = [[known.ino, known.parent]];
        let mut known = Some(known);
        self.change(&place, &mut |slot| *slot = known.take());
        self.change(&place, &mut |slot| slot.iter_mut().for_each(|known| known.active = true));
    }

    /// Takes a node and all below it out, before the product's tree does. There, as here, calls drain one node at a
    /// time, children first, without the lock.
    pub fn remove(&self, node: &Node) {
        let mut places = Vec::new();
        let parent = node.parent().map_or(0, |parent| parent.ino());
        below(node, parent, &mut places);
        self.leave(&places);
    }

    fn leave(&self, places: &[[u64; 2]]) {
        self.change(places, &mut |slot| slot.iter_mut().for_each(|known| known.active = false));
        for place in places {
            self.change(&[*place], &mut |slot| *slot = None);
        }
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
            if !self.look(child.ino(), |node| node.active && node.parent == at.ino() && node.name == name) {
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

/// A node and all below it with their directories, children first.
fn below(node: &Node, parent: u64, places: &mut Vec<[u64; 2]>) {
    node.children().iter().for_each(|child| below(child, node.ino(), places));
    places.push([node.ino(), parent]);
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
            locks.change(&[[ino, parent]], &mut |slot| *slot = None);
        }
    }

    fn known(ino: u64, parent: u64) -> KnownNode {
        let owner = Owner { mode: 0o640, uid: 1, gid: 2 };
        let (name, inode) = (ino.to_string().into_bytes(), Mutex::new(owner));
        KnownNode { ino, parent, name, active: false, owner, inode }
    }

    #[test]
    fn every_lock_shows_active_nodes_only() {
        for arm in ["stock", "hashed", "patched", "patched-membarrier"] {
            let locks = TreeLocks::new(arm).unwrap();
            let seen = |ino| locks.look(ino, |node| node.active && node.ino == ino);
            (2..400).for_each(|ino| locks.enter(known(ino, 1)));
            assert!((2..400).all(seen) && !seen(1) && !seen(400), "{arm}");
            let places: Vec<_> = (2..200).map(|ino| [ino, 1]).collect();
            locks.change(&places, &mut |slot| slot.iter_mut().for_each(|known| known.active = false));
            assert!((2..200).all(|ino| !seen(ino)) && (200..400).all(seen), "{arm}");
            locks.leave(&places);
            assert!((2..200).all(|ino| !locks.look(ino, |_| true)) && (200..400).all(seen), "{arm}");
            for (uid, gid, granted) in [(1, 9, true), (9, 2, true), (9, 9, false)] {
                let permitted = locks.permits(&Cred::user(uid, gid), 300, Access::READ);
                assert_eq!(permitted.is_ok(), granted, "{arm}");
            }
        }
    }

    #[test]
    fn a_writer_waits_unless_one_left_within_a_grace_period() {
        let (now, ms) = (Instant::now(), Duration::from_millis);
        let mut grace = GracePeriods { length: ms(10), ..GracePeriods::default() };
        assert!(grace.is_due(now));
        grace.left(now);
        assert!(!grace.is_due(now + ms(10)) && grace.is_due(now + ms(11)));
        grace.left(now + ms(9));
        assert!(!grace.is_due(now + ms(19)) && grace.is_due(now + ms(20)));
    }
}
