//! The kernel's inode hash and its list of a superblock's inodes, as links between the inodes of an arena.
//!
//! There are two forms. Before the change (`PATCHED` is false), one lock covers the whole hash and one the list. After
//! it, each bucket's head has a lock bit, as in `hlist_bl`. There is also a list for each processor, and an inode
//! remembers its list, as in the branch vfs-scale. In both forms each inode has a lock of its own (`i_lock`) for its
//! count and state. All locks are uvfs's bit lock, which spins and then sleeps. Only their number differs.
//!
//! Lock order: bucket (or hash), then inode; list, then inode. A node's links are written under the lock that covers
//! them. The steps follow the kernel's documents and mails:
//!
//! - A lookup takes a reference under the hash's and the inode's lock and drops it by an atomic decrement.
//! - An inode enters the hash as NEW, then the list, then NEW is cleared.
//! - An inode is FREEING before it leaves the list and the hash.
//! - A walk of the list takes a reference, drops the list's lock to look at the inode, and takes the lock again to
//!   continue.

use std::cell::Cell;
use std::hint::spin_loop;
use std::sync::atomic::{AtomicUsize, Ordering};

use anyhow::{Result, bail};
use crossbeam_utils::CachePadded;
use uvfs_sync::arena::Arena;
use uvfs_sync::bitlock;
use uvfs_sync::primitives::{AtomicU32, AtomicU64};
use uvfs_sync::slot;

/// Lists of the patched form: more than processors here, so that each measured thread has one.
const LISTS: usize = 64;
/// Not yet finished.
const NEW: u32 = 1;
/// Being freed.
const FREEING: u32 = 2;
/// Position of a bucket's first inode in its word, above the lock bits.
const FIRST_SHIFT: u32 = 8;

slot! {
/// One inode's links, and its attributes.
#[derive(Debug)]
#[repr(C, align(64))]
pub struct LinkNode {
    /// `i_lock`.
    lock: AtomicU64,
    ino: AtomicU64,
    hash_next: AtomicU32,
    hash_prev: AtomicU32,
    list_next: AtomicU32,
    list_prev: AtomicU32,
    list: AtomicU32,
    state: AtomicU32,
    count: AtomicU32,
    /// The fields that `stat` reports.
    pub attr: [AtomicU64; 9],
}
}

/// A list's lock and its first inode.
#[derive(Debug, Default)]
struct List {
    lock: AtomicU64,
    first: AtomicU32,
}

/// The hash and the list or lists.
#[derive(Debug)]
pub struct Links<const PATCHED: bool> {
    nodes: Arena<LinkNode>,
    buckets: Box<[AtomicU64]>,
    shift: u32,
    hash_lock: CachePadded<AtomicU64>,
    lists: Box<[CachePadded<List>]>,
}

/// The work that the two forms do for `tree` when an inode of uvfs begins or ends.
pub trait InodeLinks: Send + Sync {
    /// An inode begins, in this slot.
    ///
    /// # Errors
    /// If the number is in use.
    fn began(&self, slot: u32, ino: u64) -> Result<()>;

    /// An inode ends: drops its only reference.
    ///
    /// # Errors
    /// If it does not exist.
    fn ended(&self, slot: u32) -> Result<()>;

    /// Counts the inodes by walking the lists.
    fn count(&self) -> u64;
}

/// The list for a thread's new inodes: the kernel uses the processor's. Threads here are pinned.
fn own_list() -> usize {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    thread_local! {
        static OWN: Cell<usize> = Cell::new(NEXT.fetch_add(1, Ordering::Relaxed) % LISTS);
    }
    OWN.get()
}

fn first_of(bucket: u64) -> u32 {
    (bucket >> FIRST_SHIFT) as u32
}

impl<const PATCHED: bool> Links<PATCHED> {
    /// For about `inodes` inodes, whose slots are below `slots`.
    ///
    /// # Errors
    /// If there is no address space.
    pub fn new(inodes: u64, slots: u32) -> Result<Self> {
        let buckets = inodes.max(1024).next_power_of_two();
        let lists = if PATCHED { LISTS } else { 1 };
        Ok(Self {
            nodes: Arena::reserve(slots)?,
            buckets: (0..buckets).map(|_| AtomicU64::new(0)).collect(),
            shift: 64 - buckets.trailing_zeros(),
            hash_lock: CachePadded::default(),
            lists: (0..lists).map(|_| CachePadded::default()).collect(),
        })
    }

    /// The node in a slot.
    #[inline]
    pub fn node(&self, slot: u32) -> &LinkNode {
        self.nodes.get(slot)
    }

    /// The bucket of a number, locked.
    #[inline]
    fn lock_bucket(&self, ino: u64) -> &AtomicU64 {
        let at = (ino.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> self.shift) as usize;
        let bucket = &self.buckets[at];
        bitlock::lock(if PATCHED { bucket } else { &self.hash_lock });
        bucket
    }

    #[inline]
    fn unlock_bucket(&self, bucket: &AtomicU64) {
        bitlock::unlock(if PATCHED { bucket } else { &self.hash_lock });
    }

    /// Sets the bucket's first inode; the caller holds the bucket's lock. The lock bits are kept, because waiters may
    /// set the bit that says that they wait.
    #[inline]
    fn set_first(bucket: &AtomicU64, slot: u32) {
        let old = u64::from(first_of(bucket.load(Ordering::Relaxed)));
        bucket.fetch_xor((old ^ u64::from(slot)) << FIRST_SHIFT, Ordering::Relaxed);
    }

    /// Takes a reference to the inode of a number; returns its slot.
    #[inline]
    pub fn get(&self, ino: u64) -> Option<u32> {
        let bucket = self.lock_bucket(ino);
        let mut at = first_of(bucket.load(Ordering::Relaxed));
        let mut found = None;
        while at != 0 {
            let node = self.nodes.get(at);
            if node.ino.load(Ordering::Relaxed) == ino && self.hold(node) {
                found = Some(at);
                break;
            }
            at = node.hash_next.load(Ordering::Relaxed);
        }
        self.unlock_bucket(bucket);
        let node = self.nodes.get(found?);
        while node.state.load(Ordering::Acquire) & NEW != 0 {
            spin_loop();
        }
        found
    }

    /// Takes a reference, unless the inode is ending.
    #[inline]
    fn hold(&self, node: &LinkNode) -> bool {
        bitlock::lock(&node.lock);
        let lives = node.state.load(Ordering::Relaxed) & FREEING == 0;
        if lives {
            node.count.fetch_add(1, Ordering::Relaxed);
        }
        bitlock::unlock(&node.lock);
        lives
    }

    /// Drops a reference. True if it was the last, so that the inode has left the hash and the list.
    #[inline]
    pub fn put(&self, slot: u32) -> bool {
        let node = self.nodes.get(slot);
        let mut count = node.count.load(Ordering::Relaxed);
        while count > 1 {
            match node.count.compare_exchange_weak(count, count - 1, Ordering::Release, Ordering::Relaxed) {
                Ok(_) => return false,
                Err(now) => count = now,
            }
        }
        bitlock::lock(&node.lock);
        let last = node.count.fetch_sub(1, Ordering::AcqRel) == 1;
        if last {
            node.state.store(FREEING, Ordering::Relaxed);
        }
        bitlock::unlock(&node.lock);
        if last {
            self.leave_list(slot);
            self.leave_hash(slot);
        }
        last
    }

    /// Makes an inode findable, with one reference. False: one with that number exists.
    #[inline]
    pub fn insert(&self, slot: u32, ino: u64) -> bool {
        let node = self.nodes.get(slot);
        node.ino.store(ino, Ordering::Relaxed);
        node.state.store(NEW, Ordering::Relaxed);
        node.count.store(1, Ordering::Relaxed);
        let bucket = self.lock_bucket(ino);
        let first = first_of(bucket.load(Ordering::Relaxed));
        let mut at = first;
        while at != 0 {
            let other = self.nodes.get(at);
            if other.ino.load(Ordering::Relaxed) == ino && other.state.load(Ordering::Relaxed) & FREEING == 0
            {
                self.unlock_bucket(bucket);
                return false;
            }
            at = other.hash_next.load(Ordering::Relaxed);
        }
        node.hash_prev.store(0, Ordering::Relaxed);
        node.hash_next.store(first, Ordering::Relaxed);
        if first != 0 {
            self.nodes.get(first).hash_prev.store(slot, Ordering::Relaxed);
        }
        Self::set_first(bucket, slot);
        self.unlock_bucket(bucket);
        self.enter_list(slot);
        bitlock::lock(&node.lock);
        node.state.store(0, Ordering::Release);
        bitlock::unlock(&node.lock);
        true
    }

    fn leave_hash(&self, slot: u32) {
        let node = self.nodes.get(slot);
        let bucket = self.lock_bucket(node.ino.load(Ordering::Relaxed));
        let (prev, next) = (node.hash_prev.load(Ordering::Relaxed), node.hash_next.load(Ordering::Relaxed));
        match prev {
            0 => Self::set_first(bucket, next),
            prev => self.nodes.get(prev).hash_next.store(next, Ordering::Relaxed),
        }
        if next != 0 {
            self.nodes.get(next).hash_prev.store(prev, Ordering::Relaxed);
        }
        self.unlock_bucket(bucket);
    }

    fn enter_list(&self, slot: u32) {
        let at = if PATCHED { own_list() } else { 0 };
        let (list, node) = (&self.lists[at], self.nodes.get(slot));
        node.list.store(at as u32, Ordering::Relaxed);
        node.list_prev.store(0, Ordering::Relaxed);
        bitlock::lock(&list.lock);
        let first = list.first.load(Ordering::Relaxed);
        node.list_next.store(first, Ordering::Relaxed);
        if first != 0 {
            self.nodes.get(first).list_prev.store(slot, Ordering::Relaxed);
        }
        list.first.store(slot, Ordering::Relaxed);
        bitlock::unlock(&list.lock);
    }

    fn leave_list(&self, slot: u32) {
        let node = self.nodes.get(slot);
        let list = &self.lists[node.list.load(Ordering::Relaxed) as usize];
        bitlock::lock(&list.lock);
        let (prev, next) = (node.list_prev.load(Ordering::Relaxed), node.list_next.load(Ordering::Relaxed));
        match prev {
            0 => list.first.store(next, Ordering::Relaxed),
            prev => self.nodes.get(prev).list_next.store(next, Ordering::Relaxed),
        }
        if next != 0 {
            self.nodes.get(next).list_prev.store(prev, Ordering::Relaxed);
        }
        bitlock::unlock(&list.lock);
    }

    /// Visits every inode, held while `f` sees its number. If that reference becomes the last, its slot goes to `end`.
    pub fn each(&self, f: &mut dyn FnMut(u64), end: &mut dyn FnMut(u32)) {
        let mut put = |slot| {
            if slot != 0 && self.put(slot) {
                end(slot);
            }
        };
        for list in &self.lists {
            let mut before = 0;
            bitlock::lock(&list.lock);
            let mut at = list.first.load(Ordering::Relaxed);
            while at != 0 {
                let node = self.nodes.get(at);
                // Skip NEW inodes like ending ones: neither kind is complete.
                if node.state.load(Ordering::Relaxed) & NEW != 0 || !self.hold(node) {
                    at = node.list_next.load(Ordering::Relaxed);
                    continue;
                }
                bitlock::unlock(&list.lock);
                f(node.ino.load(Ordering::Relaxed));
                put(std::mem::replace(&mut before, at));
                // The inode is held, so it is still in the list.
                bitlock::lock(&list.lock);
                at = node.list_next.load(Ordering::Relaxed);
            }
            bitlock::unlock(&list.lock);
            put(before);
        }
    }
}

impl<const PATCHED: bool> InodeLinks for Links<PATCHED> {
    fn began(&self, slot: u32, ino: u64) -> Result<()> {
        if !self.insert(slot, ino) {
            bail!("inode {ino} began twice");
        }
        Ok(())
    }

    fn ended(&self, slot: u32) -> Result<()> {
        if !self.put(slot) {
            bail!("an inode that ends is held by somebody");
        }
        Ok(())
    }

    fn count(&self) -> u64 {
        let mut count = 0;
        self.each(&mut |_| count += 1, &mut |_| {});
        count
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    fn links<const PATCHED: bool>() {
        let links = Links::<PATCHED>::new(64, 1 << 12).unwrap();
        assert!((1..=3000).all(|slot| links.insert(slot, u64::from(slot) * 7)));
        assert!(!links.insert(3001, 7), "a number twice");
        assert_eq!((links.get(14), links.get(15)), (Some(2), None));
        assert!(!links.put(2) && links.put(2));
        assert_eq!((links.get(14), links.count()), (None, 2999));
        for slot in (1..=3000).filter(|slot| *slot != 2) {
            assert!(links.put(slot));
        }
        assert_eq!(links.count(), 0);
        assert!(links.buckets.iter().all(|bucket| first_of(bucket.load(Ordering::Relaxed)) == 0));
    }

    #[test]
    fn what_is_put_in_is_found_until_it_is_taken_out() {
        links::<false>();
        links::<true>();
    }

    /// Each thread inserts and removes its own numbers, while one enumerates all.
    fn beside<const PATCHED: bool>() {
        let links = Links::<PATCHED>::new(64, 1 << 14).unwrap();
        assert!((1..=100).all(|slot| links.insert(slot, u64::from(slot))));
        std::thread::scope(|scope| {
            for thread in 1..=3u32 {
                let links = &links;
                scope.spawn(move || {
                    for i in 0..3000u32 {
                        // Each slot once: the enumerator may still be ending an earlier inode.
                        let slot = thread * 3000 + i;
                        let ino = u64::from(slot);
                        assert!(links.insert(slot, ino) && links.get(ino) == Some(slot));
                        assert!(links.get(u64::from(i % 100 + 1)).is_some());
                        links.put(i % 100 + 1);
                        links.put(slot);
                        // The enumerator may hold the other reference for a while; the inode then ends there.
                        links.put(slot);
                        while links.get(ino).is_some_and(|held| !links.put(held)) {
                            std::thread::yield_now();
                        }
                    }
                });
            }
            for _ in 0..50 {
                let mut seen = BTreeSet::new();
                links.each(
                    &mut |ino| {
                        seen.insert(ino);
                    },
                    &mut |_| {},
                );
                assert!((1..=100).all(|ino| seen.contains(&ino)));
            }
        });
        assert_eq!(links.count(), 100);
    }

    #[test]
    fn links_hold_beside_each_other() {
        beside::<false>();
        beside::<true>();
    }
}
