//! The kernel's inode hash, its list of a superblock's inodes and its LRU list, as links between the inodes of an arena.
//!
//! The forms differ in [`InodeChanges`]. *stock* has one lock for the whole hash, and one list under one lock. *hash-bl*
//! has a lock bit in each bucket's head, as in `hlist_bl`. *lists* has a list for each processor, and an inode remembers
//! its list, as in the branch vfs-scale. *both* has both. *rcu* is *stock* with the search of Linux 6.11, without the
//! lock. In all forms each inode has a lock of its own (`i_lock`) for its count and state. All locks are uvfs's bit
//! lock, which spins and then sleeps. Only their number differs.
//!
//! Lock order: bucket (or hash), then list, then inode, then LRU. The LRU's own walk comes from the other side, so it
//! tries the inode's lock. A node's links are written under the lock that covers them.
//!
//! | kernel's step | step of the models |
//! |---|---|
//! | inode by number: hash lock, search, inode lock, count; *rcu*: search without the lock | the same; *rcu* searches again under the lock if it found nothing |
//! | count dropped: atomic, the last under the inode lock | the same |
//! | inode not found: a second hold, search again, inode lock, NEW, in the hash; nested in it list lock, in the list | the same |
//! | inode filled, then inode lock, NEW goes | the same |
//! | last reference, inode kept: inode lock, nested LRU lock, in the LRU | the same ([`Links::rest`]) |
//! | shrinker: LRU lock, inode lock tried, FREEING, out of the LRU, for a batch; then each inode ends | the same ([`Links::prune`]) |
//! | last reference, inode not kept: inode lock, FREEING, ends | the same ([`Links::put`]) |
//! | end: list lock, out of the list; hash lock, inode lock, out of the hash | the same |
//! | memory freed after a grace period | slot reused at once; a search without the lock that is led astray finds nothing |
//! | a search that meets an inode that is FREEING waits | it is passed over; no measured thread looks for one that ends |
//! | walk of the list: reference, list lock dropped, inode looked at, lock again | the same |

use std::cell::Cell;
use std::hint::spin_loop;
use std::marker::PhantomData;
use std::sync::atomic::{AtomicUsize, Ordering};

use anyhow::{Result, bail, ensure};
use clap::ValueEnum;
use crossbeam_utils::CachePadded;
use uvfs_sync::arena::Arena;
use uvfs_sync::bitlock;
use uvfs_sync::primitives::{AtomicU32, AtomicU64};
use uvfs_sync::slot;

/// Lists of the forms that have one for each processor: more than processors here, so that each measured thread has one.
const LISTS: usize = 64;
/// Not yet finished.
const NEW: u32 = 1;
/// Being freed.
const FREEING: u32 = 2;
/// In the LRU list. Bits of the state change under the inode's lock.
const LRU: u32 = 4;
/// Inodes that the shrinker looks at in one go.
pub const BATCH: usize = 128;
/// Most steps of a search without the lock: one that is led astray may walk other chains.
const STEPS: u32 = 1000;
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
    lru_next: AtomicU32,
    lru_prev: AtomicU32,
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

/// The changes that a form has.
pub trait InodeChanges: Send + Sync + 'static {
    /// A lock bit in each bucket's head.
    const HASH_BL: bool = false;
    /// A list for each processor.
    const LISTS: bool = false;
    /// The hash is searched without its lock.
    const RCU: bool = false;
}

/// Nothing.
#[derive(Debug)]
pub struct Stock;
/// The thread's patch.
#[derive(Debug)]
pub struct HashBl;
/// The other part of vfs-scale.
#[derive(Debug)]
pub struct Lists;
/// Both.
#[derive(Debug)]
pub struct Both;
/// Linux 6.11.
#[derive(Debug)]
pub struct RcuSearch;

impl InodeChanges for Stock {}
impl InodeChanges for HashBl {
    const HASH_BL: bool = true;
}
impl InodeChanges for Lists {
    const LISTS: bool = true;
}
impl InodeChanges for Both {
    const HASH_BL: bool = true;
    const LISTS: bool = true;
}
impl InodeChanges for RcuSearch {
    const RCU: bool = true;
}

/// How many heads the hash has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum, serde::Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum HashHeads {
    /// One for each inode.
    #[default]
    Fit,
    /// One for ten inodes: a kernel sizes it at boot by memory, which with 24 GB gives chains of about ten for 20
    /// million inodes.
    Boot,
}

/// The hash, the list or lists, and the LRU list.
#[derive(Debug)]
pub struct Links<C> {
    nodes: Arena<LinkNode>,
    buckets: Box<[AtomicU64]>,
    shift: u32,
    hash_lock: CachePadded<AtomicU64>,
    lists: Box<[CachePadded<List>]>,
    lru: CachePadded<Lru>,
    form: PhantomData<C>,
}

/// Unused inodes, the oldest last.
#[derive(Debug, Default)]
struct Lru {
    lock: AtomicU64,
    first: AtomicU32,
    last: AtomicU32,
    len: AtomicU32,
}

/// The work that the forms do for `tree` when an inode of uvfs begins or ends.
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

    /// Takes a reference by number.
    fn find(&self, ino: u64) -> Option<u32>;

    /// Drops a reference; if it was the last, the inode stays for a while. Slots of inodes that end instead go to `ended`.
    fn unused(&self, slot: u32, ended: &mut dyn FnMut(u32));

    /// Counts the inodes, each of which is held, by walking the lists.
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

/// The form of an arm.
///
/// # Errors
/// If there is no such arm, or no address space.
pub fn form(arm: &str, inodes: u64, slots: u32, heads: HashHeads) -> Result<Box<dyn InodeLinks>> {
    Ok(match arm {
        "stock" => Box::new(Links::<Stock>::new(inodes, slots, heads)?),
        "hash-bl" => Box::new(Links::<HashBl>::new(inodes, slots, heads)?),
        "lists" => Box::new(Links::<Lists>::new(inodes, slots, heads)?),
        "both" => Box::new(Links::<Both>::new(inodes, slots, heads)?),
        "rcu" => Box::new(Links::<RcuSearch>::new(inodes, slots, heads)?),
        other => bail!("{other:?} is no form of the kernel's inode cache"),
    })
}

impl<C: InodeChanges> Links<C> {
    /// For about `inodes` inodes, whose slots are below `slots`.
    ///
    /// # Errors
    /// If there is no address space.
    pub fn new(inodes: u64, slots: u32, heads: HashHeads) -> Result<Self> {
        let heads = if heads == HashHeads::Fit { inodes } else { inodes / 10 };
        let buckets = heads.max(64).next_power_of_two();
        let lists = if C::LISTS { LISTS } else { 1 };
        Ok(Self {
            nodes: Arena::reserve(slots)?,
            buckets: (0..buckets).map(|_| AtomicU64::new(0)).collect(),
            shift: 64 - buckets.trailing_zeros(),
            hash_lock: CachePadded::default(),
            lists: (0..lists).map(|_| CachePadded::default()).collect(),
            lru: CachePadded::default(),
            form: PhantomData,
        })
    }

    /// The node in a slot.
    #[inline]
    pub fn node(&self, slot: u32) -> &LinkNode {
        self.nodes.get(slot)
    }

    #[inline]
    fn bucket(&self, ino: u64) -> &AtomicU64 {
        &self.buckets[(ino.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> self.shift) as usize]
    }

    #[inline]
    fn lock_of<'l>(&'l self, bucket: &'l AtomicU64) -> &'l AtomicU64 {
        if C::HASH_BL { bucket } else { &self.hash_lock }
    }

    /// Sets the bucket's first inode; the caller holds the bucket's lock. The lock bits are kept, because waiters may
    /// set the bit that says that they wait. Release: a search without the lock finds a complete node.
    #[inline]
    fn set_first(bucket: &AtomicU64, slot: u32) {
        let old = u64::from(first_of(bucket.load(Ordering::Relaxed)));
        bucket.fetch_xor((old ^ u64::from(slot)) << FIRST_SHIFT, Ordering::Release);
    }

    /// Takes a reference to the inode of a number; returns its slot.
    #[inline]
    pub fn get(&self, ino: u64) -> Option<u32> {
        let bucket = self.bucket(ino);
        let mut found = if C::RCU { self.search(bucket, ino, STEPS) } else { None };
        if found.is_none() {
            let lock = self.lock_of(bucket);
            bitlock::lock(lock);
            found = self.search(bucket, ino, u32::MAX);
            bitlock::unlock(lock);
        }
        let node = self.nodes.get(found?);
        while node.state.load(Ordering::Acquire) & NEW != 0 {
            spin_loop();
        }
        found
    }

    /// Searches a chain for at most so many steps, and takes a reference. Without the lock a node on the way may end and
    /// enter another chain, so the search may miss its inode, but it never finds a wrong one: [`Self::hold`] compares
    /// again under the inode's lock.
    #[inline]
    fn search(&self, bucket: &AtomicU64, ino: u64, steps: u32) -> Option<u32> {
        let mut at = first_of(bucket.load(Ordering::Acquire));
        for _ in 0..steps {
            if at == 0 {
                break;
            }
            let node = self.nodes.get(at);
            if node.ino.load(Ordering::Relaxed) == ino && self.hold(node, ino) {
                return Some(at);
            }
            at = node.hash_next.load(Ordering::Acquire);
        }
        None
    }

    /// Takes a reference, unless the inode is ending or is another one by now.
    #[inline]
    fn hold(&self, node: &LinkNode, ino: u64) -> bool {
        bitlock::lock(&node.lock);
        let lives =
            node.state.load(Ordering::Relaxed) & FREEING == 0 && node.ino.load(Ordering::Relaxed) == ino;
        if lives {
            node.count.fetch_add(1, Ordering::Relaxed);
        }
        bitlock::unlock(&node.lock);
        lives
    }

    /// Drops a reference that is not the last. False: it is, and is still there.
    #[inline]
    fn put_shared(node: &LinkNode) -> bool {
        let mut count = node.count.load(Ordering::Relaxed);
        while count > 1 {
            match node.count.compare_exchange_weak(count, count - 1, Ordering::Release, Ordering::Relaxed) {
                Ok(_) => return true,
                Err(now) => count = now,
            }
        }
        false
    }

    /// Drops a reference. True if it was the last, so that the inode has left the hash and the list.
    #[inline]
    pub fn put(&self, slot: u32) -> bool {
        let node = self.nodes.get(slot);
        if Self::put_shared(node) {
            return false;
        }
        bitlock::lock(&node.lock);
        let last = node.count.fetch_sub(1, Ordering::AcqRel) == 1;
        if last {
            self.leave_lru(slot);
            node.state.store(FREEING, Ordering::Relaxed);
        }
        bitlock::unlock(&node.lock);
        if last {
            self.end(slot);
        }
        last
    }

    /// Drops a reference. If it was the last, the inode stays, in the LRU list.
    #[inline]
    pub fn rest(&self, slot: u32) {
        let node = self.nodes.get(slot);
        if Self::put_shared(node) {
            return;
        }
        bitlock::lock(&node.lock);
        let state = node.state.load(Ordering::Relaxed);
        if node.count.fetch_sub(1, Ordering::AcqRel) == 1 && state & LRU == 0 {
            node.state.store(state | LRU, Ordering::Relaxed);
            self.enter_lru(slot);
        }
        bitlock::unlock(&node.lock);
    }

    /// Inodes in the LRU list.
    pub fn resting(&self) -> u32 {
        self.lru.len.load(Ordering::Relaxed)
    }

    /// Ends the oldest unused inodes, at most [`BATCH`], whose slots go to `ended`.
    pub fn prune(&self, mut ended: impl FnMut(u32)) {
        let mut batch = [0; BATCH];
        let mut len = 0;
        bitlock::lock(&self.lru.lock);
        let mut at = self.lru.last.load(Ordering::Relaxed);
        for _ in 0..BATCH {
            if at == 0 {
                break;
            }
            let node = self.nodes.get(at);
            let before = node.lru_prev.load(Ordering::Relaxed);
            // Tried, because the order of the locks is the other one. An inode whose lock is held is passed over.
            if node.lock.compare_exchange(0, bitlock::LOCK, Ordering::Acquire, Ordering::Relaxed).is_ok() {
                self.unlink_lru(node);
                let state = node.state.load(Ordering::Relaxed) & !LRU;
                // One that is in use again only leaves the list.
                if node.count.load(Ordering::Relaxed) == 0 {
                    node.state.store(state | FREEING, Ordering::Relaxed);
                    batch[len] = at;
                    len += 1;
                } else {
                    node.state.store(state, Ordering::Relaxed);
                }
                bitlock::unlock(&node.lock);
            }
            at = before;
        }
        bitlock::unlock(&self.lru.lock);
        for slot in &batch[..len] {
            self.end(*slot);
            ended(*slot);
        }
    }

    /// Takes an inode that is FREEING out of the list and the hash.
    fn end(&self, slot: u32) {
        self.leave_list(slot);
        self.leave_hash(slot);
    }

    /// Makes an inode findable, with one reference, and lets `fill` write its attributes. False: one with that number
    /// exists. The caller has searched before; this is the kernel's second search.
    #[inline]
    pub fn insert(&self, slot: u32, ino: u64, fill: impl FnOnce(&LinkNode)) -> bool {
        let node = self.nodes.get(slot);
        let bucket = self.bucket(ino);
        let lock = self.lock_of(bucket);
        bitlock::lock(lock);
        let first = first_of(bucket.load(Ordering::Relaxed));
        let mut at = first;
        while at != 0 {
            let other = self.nodes.get(at);
            if other.ino.load(Ordering::Relaxed) == ino && other.state.load(Ordering::Relaxed) & FREEING == 0
            {
                bitlock::unlock(lock);
                return false;
            }
            at = other.hash_next.load(Ordering::Relaxed);
        }
        bitlock::lock(&node.lock);
        // The slot's last inode was FREEING until here, so that no search without the lock has held it.
        node.ino.store(ino, Ordering::Relaxed);
        node.count.store(1, Ordering::Relaxed);
        node.state.store(NEW, Ordering::Relaxed);
        node.hash_prev.store(0, Ordering::Relaxed);
        node.hash_next.store(first, Ordering::Release);
        if first != 0 {
            self.nodes.get(first).hash_prev.store(slot, Ordering::Relaxed);
        }
        Self::set_first(bucket, slot);
        bitlock::unlock(&node.lock);
        self.enter_list(slot);
        bitlock::unlock(lock);
        fill(node);
        bitlock::lock(&node.lock);
        // Another thread may already hold the inode, but it changes no state before NEW has gone.
        node.state.store(0, Ordering::Release);
        bitlock::unlock(&node.lock);
        true
    }

    fn leave_hash(&self, slot: u32) {
        let node = self.nodes.get(slot);
        let bucket = self.bucket(node.ino.load(Ordering::Relaxed));
        let lock = self.lock_of(bucket);
        bitlock::lock(lock);
        bitlock::lock(&node.lock);
        let (prev, next) = (node.hash_prev.load(Ordering::Relaxed), node.hash_next.load(Ordering::Relaxed));
        match prev {
            0 => Self::set_first(bucket, next),
            prev => self.nodes.get(prev).hash_next.store(next, Ordering::Release),
        }
        if next != 0 {
            self.nodes.get(next).hash_prev.store(prev, Ordering::Relaxed);
        }
        bitlock::unlock(&node.lock);
        bitlock::unlock(lock);
    }

    /// At the head of the LRU list. The caller holds the inode's lock.
    fn enter_lru(&self, slot: u32) {
        let (lru, node) = (&self.lru, self.nodes.get(slot));
        bitlock::lock(&lru.lock);
        let first = lru.first.load(Ordering::Relaxed);
        node.lru_prev.store(0, Ordering::Relaxed);
        node.lru_next.store(first, Ordering::Relaxed);
        match first {
            0 => lru.last.store(slot, Ordering::Relaxed),
            first => self.nodes.get(first).lru_prev.store(slot, Ordering::Relaxed),
        }
        lru.first.store(slot, Ordering::Relaxed);
        lru.len.store(lru.len.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
        bitlock::unlock(&lru.lock);
    }

    /// Out of the LRU list, if it is there. The caller holds the inode's lock.
    fn leave_lru(&self, slot: u32) {
        let node = self.nodes.get(slot);
        if node.state.load(Ordering::Relaxed) & LRU != 0 {
            bitlock::lock(&self.lru.lock);
            self.unlink_lru(node);
            bitlock::unlock(&self.lru.lock);
        }
    }

    /// The caller holds the LRU's lock.
    fn unlink_lru(&self, node: &LinkNode) {
        let lru = &self.lru;
        let (prev, next) = (node.lru_prev.load(Ordering::Relaxed), node.lru_next.load(Ordering::Relaxed));
        match prev {
            0 => lru.first.store(next, Ordering::Relaxed),
            prev => self.nodes.get(prev).lru_next.store(next, Ordering::Relaxed),
        }
        match next {
            0 => lru.last.store(prev, Ordering::Relaxed),
            next => self.nodes.get(next).lru_prev.store(prev, Ordering::Relaxed),
        }
        lru.len.store(lru.len.load(Ordering::Relaxed) - 1, Ordering::Relaxed);
    }

    fn enter_list(&self, slot: u32) {
        let at = if C::LISTS { own_list() } else { 0 };
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
                if node.state.load(Ordering::Relaxed) & NEW != 0
                    || !self.hold(node, node.ino.load(Ordering::Relaxed))
                {
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

impl<C: InodeChanges> InodeLinks for Links<C> {
    fn began(&self, slot: u32, ino: u64) -> Result<()> {
        ensure!(self.insert(slot, ino, |_| {}), "inode {ino} began twice");
        Ok(())
    }

    fn ended(&self, slot: u32) -> Result<()> {
        ensure!(self.put(slot), "an inode that ends is held by somebody");
        Ok(())
    }

    fn find(&self, ino: u64) -> Option<u32> {
        self.get(ino)
    }

    fn unused(&self, slot: u32, ended: &mut dyn FnMut(u32)) {
        self.rest(slot);
        if self.resting() as usize >= BATCH {
            self.prune(ended);
        }
    }

    fn count(&self) -> u64 {
        let mut count = 0;
        self.each(&mut |_| count += 1, &mut |_| {});
        count
    }
}

#[cfg(test)]
#[path = "links_tests.rs"]
mod tests;
