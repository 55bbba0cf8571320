//! The tree lock, in the form of each policy.
//!
//! One lock covers all nodes, or there are [`SHARDS`] of them, and node `ino` belongs to the lock selected by its
//! number. A thread that needs several takes them at once, in the order of their numbers. While one is held, no
//! user code, no cache and no other lock except leaf locks is entered.

use parking_lot::{RwLock, RwLockReadGuard, RwLockWriteGuard};

use uvfs::types::{Errno, Result};
use uvfs_sync::order::{Class, Held, Noted};
use uvfs_sync::percpu_rwsem::{self, PerCpuRwSem};

use super::options::Policy;
use super::tree::{Entry, Nodes, NodesMut, Part};

/// Locks of the policy [`Policy::Hashed`].
const SHARDS: usize = 128;
/// Most nodes that are locked together, short of all.
const TOGETHER: usize = 2;

/// Each lock has its own cache line.
#[derive(Default)]
#[repr(align(128))]
pub(super) struct Padded(RwLock<Part>);

/// All nodes, and the locks that protect them.
pub(super) enum Locks {
    One(RwLock<Part>),
    PerCpu(Box<PerCpuRwSem<Part>>),
    Hashed(Box<[Padded]>),
}

/// Nodes locked for reading.
pub(super) enum Read<'a> {
    One(Noted<RwLockReadGuard<'a, Part>>),
    PerCpu(Noted<percpu_rwsem::ReadGuard<'a, Part>>),
    Hashed([Option<(usize, Noted<RwLockReadGuard<'a, Part>>)>; TOGETHER]),
    All(Vec<Noted<RwLockReadGuard<'a, Part>>>),
}

/// Nodes locked for changes.
pub(super) enum Write<'a> {
    One(Noted<RwLockWriteGuard<'a, Part>>),
    PerCpu(Noted<percpu_rwsem::WriteGuard<'a, Part>>),
    Hashed([Option<(usize, Noted<RwLockWriteGuard<'a, Part>>)>; TOGETHER]),
    All(Vec<Noted<RwLockWriteGuard<'a, Part>>>),
}

/// The index of a node: inode numbers count from 1.
fn place(ino: u64) -> usize {
    (ino as u32).wrapping_sub(1) as usize
}

fn shard(ino: u64) -> usize {
    place(ino) % SHARDS
}

fn place_in_shard(ino: u64) -> usize {
    place(ino) / SHARDS
}

/// Notes for the checker that the lock of this number is about to be taken.
fn noted(shard: usize) -> Held {
    Held::keyed(Class::Tree, shard as u64)
}

impl Locks {
    /// Locks without nodes. Fails with ENOMEM.
    pub(super) fn new(policy: Policy) -> Result<Self> {
        Ok(match policy {
            Policy::Stock => Self::One(RwLock::default()),
            Policy::Patched | Policy::Uvfs => {
                Self::PerCpu(Box::new(PerCpuRwSem::new(Part::default()).map_err(|_| Errno::NOMEM)?))
            }
            Policy::Hashed => Self::Hashed((0..SHARDS).map(|_| Padded::default()).collect()),
        })
    }

    /// Locks these nodes, at most [`TOGETHER`], for reading.
    pub(super) fn read(&self, nodes: &[u64]) -> Read<'_> {
        match self {
            Self::One(lock) => Read::One(noted(0).with(|| lock.read())),
            Self::PerCpu(lock) => Read::PerCpu(noted(0).with(|| lock.read())),
            Self::Hashed(locks) => Read::Hashed(
                shards(nodes).map(|s| s.map(|shard| (shard, noted(shard).with(|| locks[shard].0.read())))),
            ),
        }
    }

    /// Locks every node for reading.
    pub(super) fn read_all(&self) -> Read<'_> {
        match self {
            Self::One(lock) => Read::One(noted(0).with(|| lock.read())),
            Self::PerCpu(lock) => Read::PerCpu(noted(0).with(|| lock.read())),
            Self::Hashed(locks) => {
                Read::All(locks.iter().enumerate().map(|(i, lock)| noted(i).with(|| lock.0.read())).collect())
            }
        }
    }

    /// Locks these nodes, at most [`TOGETHER`], for changes.
    pub(super) fn write(&self, nodes: &[u64]) -> Write<'_> {
        match self {
            Self::One(lock) => Write::One(noted(0).with(|| lock.write())),
            Self::PerCpu(lock) => Write::PerCpu(noted(0).with(|| lock.write())),
            Self::Hashed(locks) => Write::Hashed(
                shards(nodes).map(|s| s.map(|shard| (shard, noted(shard).with(|| locks[shard].0.write())))),
            ),
        }
    }

    /// Locks every node for changes.
    pub(super) fn write_all(&self) -> Write<'_> {
        match self {
            Self::One(lock) => Write::One(noted(0).with(|| lock.write())),
            Self::PerCpu(lock) => Write::PerCpu(noted(0).with(|| lock.write())),
            Self::Hashed(locks) => Write::All(
                locks.iter().enumerate().map(|(i, lock)| noted(i).with(|| lock.0.write())).collect(),
            ),
        }
    }
}

/// The shards of these nodes, each once, in order.
fn shards(nodes: &[u64]) -> [Option<usize>; TOGETHER] {
    debug_assert!(nodes.len() <= TOGETHER);
    let first = nodes.iter().map(|&ino| shard(ino)).min();
    let last = nodes.iter().map(|&ino| shard(ino)).max();
    [first, last.filter(|_| last != first)]
}

impl Nodes for Read<'_> {
    fn entry(&self, ino: u64) -> Option<&Entry> {
        match self {
            Self::One(part) => part.get(place(ino), ino),
            Self::PerCpu(part) => part.get(place(ino), ino),
            Self::Hashed(parts) => {
                let part = parts.iter().flatten().find(|(s, _)| *s == shard(ino));
                part?.1.get(place_in_shard(ino), ino)
            }
            Self::All(parts) => parts.get(shard(ino))?.get(place_in_shard(ino), ino),
        }
    }
}

impl Write<'_> {
    fn part(&mut self, ino: u64) -> Option<(&mut Part, usize)> {
        Some(match self {
            Self::One(part) => (&mut **part, place(ino)),
            Self::PerCpu(part) => (&mut **part, place(ino)),
            Self::Hashed(parts) => {
                let part = parts.iter_mut().flatten().find(|(s, _)| *s == shard(ino));
                (&mut *part?.1, place_in_shard(ino))
            }
            Self::All(parts) => (&mut **parts.get_mut(shard(ino))?, place_in_shard(ino)),
        })
    }
}

impl Nodes for Write<'_> {
    fn entry(&self, ino: u64) -> Option<&Entry> {
        match self {
            Self::One(part) => part.get(place(ino), ino),
            Self::PerCpu(part) => part.get(place(ino), ino),
            Self::Hashed(parts) => {
                let part = parts.iter().flatten().find(|(s, _)| *s == shard(ino));
                part?.1.get(place_in_shard(ino), ino)
            }
            Self::All(parts) => parts.get(shard(ino))?.get(place_in_shard(ino), ino),
        }
    }
}

impl NodesMut for Write<'_> {
    fn entry_mut(&mut self, ino: u64) -> Option<&mut Entry> {
        let (part, at) = self.part(ino)?;
        part.get_mut(at, ino)
    }

    fn put(&mut self, entry: Box<Entry>) {
        if let Some((part, at)) = self.part(entry.inner.ino) {
            part.put(at, entry);
        }
    }

    fn take(&mut self, ino: u64) -> Option<Box<Entry>> {
        let (part, at) = self.part(ino)?;
        part.take(at, ino)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Rule 19: the locks of two nodes are taken by number, whatever the order of the nodes. Planted bugs:
    /// rule19-tree-in-falling-order, rule19-tree-is-not-noted.
    #[test]
    fn rule19_two_nodes_are_locked_by_number() {
        let locks = Locks::new(Policy::Hashed).unwrap();
        for nodes in [[1, 2], [2, 1], [3, 3], [130, 1], [2, 130]] {
            drop(locks.read(&nodes));
            drop(locks.write(&nodes));
        }
        drop((locks.read_all(), ()));
        drop((locks.write_all(), ()));
    }

    /// Rule 19: with any policy the tree lock is noted.
    #[test]
    #[cfg(debug_assertions)]
    fn rule19_the_tree_lock_is_noted() {
        for policy in [Policy::Stock, Policy::Hashed, Policy::Patched, Policy::Uvfs] {
            let locks = Locks::new(policy).unwrap();
            let noted = |held: &dyn Fn(&Locks)| {
                std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| held(&locks))).is_err()
            };
            let bit = || drop(Held::new(Class::AttrLock));
            let readers = noted(&|locks| {
                let _read = locks.read(&[1]);
                bit();
            });
            let writers = noted(&|locks| {
                let _write = locks.write(&[1]);
                bit();
            });
            let all = noted(&|locks| {
                let _write = locks.write_all();
                bit();
            });
            assert!(readers && writers && all, "{policy:?}");
            bit();
        }
    }
}
