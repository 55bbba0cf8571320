//! The inode lock: changes of attributes and link counts of one inode exclude each other.
//!
//! A chmod reads a mode, decides, and has the driver store another. A link checks that the count is not zero before
//! the driver raises it. No other change may come between the two steps. For these operations this is the kernel's
//! inode lock. It is held across driver calls, like a name lock, and is no lock of the cache: a slow call delays
//! only callers that want the same inode.
//!
//! Taken last of all (after name locks), and one at a time. Costs two read-modify-writes if no other inode of the
//! same shard is locked.

use parking_lot::{Condvar, Mutex};
use uvfs_cache::InodeId;
use uvfs_sync::lock_order::{Class, Held};
use uvfs_sync::sole_key::{self, Alone};

/// Power of two.
const SHARDS: usize = 64;

/// On a cache line of its own: one inode's lock must not slow down another's.
#[derive(Default)]
#[repr(align(64))]
struct Shard {
    /// The one locked inode of the shard, if it is the only one.
    alone: Alone,
    /// The locked inodes, in no order. There are seldom more than a few, so comparing them is faster than hashing
    /// again.
    taken: Mutex<Vec<u64>>,
    given_back: Condvar,
}

impl Shard {
    /// Waits for the lock of an inode when the shard has other locked inodes.
    #[cold]
    fn wait_for(&self, id: u64) {
        let mut taken = self.taken.lock();
        loop {
            // After each wait: the list may have been empty meanwhile.
            taken.extend(self.alone.share());
            if !taken.contains(&id) {
                break;
            }
            self.given_back.wait(&mut taken);
        }
        taken.push(id);
    }
}

/// The locks of all inodes.
pub(crate) struct InodeLocks {
    shards: Box<[Shard]>,
}

/// An inode lock that is held; dropping it releases the lock.
pub(crate) struct InodeGuard<'t> {
    shard: &'t Shard,
    id: u64,
    _order: Held,
}

impl InodeLocks {
    pub(crate) fn new() -> Self {
        Self { shards: (0..SHARDS).map(|_| Shard::default()).collect() }
    }

    /// Waits for the inode lock.
    pub(crate) fn take(&self, id: InodeId) -> InodeGuard<'_> {
        let order = Held::new(Class::InodeLock);
        let id = id.as_u64().saturating_add(sole_key::LEAST);
        let hash = id.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
        let shard = &self.shards[hash as usize % SHARDS];
        if !shard.alone.take(id) {
            shard.wait_for(id);
        }
        InodeGuard { shard, id, _order: order }
    }
}

impl Drop for InodeGuard<'_> {
    fn drop(&mut self) {
        if self.shard.alone.release(self.id) {
            return;
        }
        let mut taken = self.shard.taken.lock();
        if let Some(at) = taken.iter().position(|id| *id == self.id) {
            taken.swap_remove(at);
        }
        if taken.is_empty() {
            self.shard.alone.unshare();
        }
        drop(taken);
        // Wakes all: a waiter for another inode of the shard must not consume the only wake-up.
        self.shard.given_back.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicU32, Ordering};

    #[test]
    fn turns_of_one_inode_exclude_each_other() {
        let turns = InodeLocks::new();
        let (inside, seen) = (AtomicU32::new(0), AtomicU32::new(0));
        std::thread::scope(|s| {
            for _ in 0..4 {
                s.spawn(|| {
                    for _ in 0..500 {
                        let _turn = turns.take(InodeId::from_u64(7));
                        assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0);
                        seen.fetch_add(1, Ordering::Relaxed);
                        inside.fetch_sub(1, Ordering::SeqCst);
                    }
                });
            }
        });
        assert_eq!(seen.into_inner(), 2000);
    }

    /// Rule 19: a thread holds one inode lock at a time. Planted bugs: rule19-inode-locks-in-any-order,
    /// rule19-an-inode-lock-is-not-noted.
    #[test]
    #[cfg(debug_assertions)]
    #[should_panic(expected = "InodeLock 0x0 is taken while InodeLock 0x0 is held")]
    fn rule19_a_second_turn_panics() {
        let turns = InodeLocks::new();
        let _one = turns.take(InodeId::from_u64(1));
        let _other = turns.take(InodeId::from_u64(2));
    }

    #[test]
    fn turns_of_two_inodes_do_not() {
        let turns = InodeLocks::new();
        let _one = turns.take(InodeId::from_u64(1));
        // A thread holds one inode lock at a time.
        std::thread::scope(|s| s.spawn(|| drop(turns.take(InodeId::from_u64(2)))).join()).unwrap();
    }
}
