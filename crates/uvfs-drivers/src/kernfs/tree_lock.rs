//! The tree lock.
//!
//! One per-CPU reader-writer lock covers all nodes. It is taken for changes and for cache misses. A change updates
//! the caches, so a hit does not reach the tree at all. While the lock is held, no user code, no cache and no other
//! lock except leaf locks is entered.

use uvfs::types::{Errno, Result};
use uvfs_sync::lock_order::{Class, Held, Noted};
use uvfs_sync::percpu_rwsem::{PerCpuRwSem, ReadGuard, WriteGuard};

use super::tree::Nodes;

/// All nodes, and the lock that protects them.
pub(super) struct TreeLock(Box<PerCpuRwSem<Nodes>>);

/// Notes for the checker that the lock is about to be taken.
fn noted() -> Held {
    Held::keyed(Class::Tree, 0)
}

impl TreeLock {
    /// A lock around no nodes. Fails with ENOMEM.
    pub(super) fn new() -> Result<Self> {
        Ok(Self(Box::new(PerCpuRwSem::new(Nodes::default()).map_err(|_| Errno::NOMEM)?)))
    }

    /// Locks the nodes for reading.
    pub(super) fn read(&self) -> Noted<ReadGuard<'_, Nodes>> {
        noted().with(|| self.0.read())
    }

    /// Locks the nodes for changes.
    pub(super) fn write(&self) -> Noted<WriteGuard<'_, Nodes>> {
        noted().with(|| self.0.write())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Rule 19: the tree lock is noted. Planted bug: rule19-tree-is-not-noted.
    #[test]
    #[cfg(debug_assertions)]
    fn rule19_the_tree_lock_is_noted() {
        let lock = TreeLock::new().unwrap();
        let noted = |held: &dyn Fn(&TreeLock)| {
            std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| held(&lock))).is_err()
        };
        let bit = || drop(Held::new(Class::AttrLock));
        let readers = noted(&|lock| {
            let _read = lock.read();
            bit();
        });
        let writers = noted(&|lock| {
            let _write = lock.write();
            bit();
        });
        assert!(readers && writers);
        bit();
    }
}
