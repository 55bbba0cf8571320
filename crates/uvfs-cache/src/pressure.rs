//! Who waits for memory, and who is told that it runs short.
//!
//! A front end whose kernel holds on to nodes can have them given back, but that takes time and must not
//! be done by who needs memory now. It keeps a thread in [`Cache::wait_for_pressure`], which returns when
//! the cache comes near its limit, and asks it what could be given back ([`Cache::held_by_kernel`]).
//! Who finds no memory may try again in [`Cache::with_patience`] as references are dropped.
//!
//! The mutex protects the count and is a leaf. Where nobody waits, a forget pays for a fence and a load.

use std::sync::OnceLock;
use std::time::{Duration, Instant};

use uvfs_sync::primitives::{AtomicBool, AtomicU32, AtomicU64, Condvar, Mutex, Ordering, fence};

use crate::cache::Cache;
use crate::types::{InodeId, SbId};

/// Between two looks of who waits for memory, where nobody says anything.
const LOOK: Duration = Duration::from_millis(100);

/// See the module's head.
#[derive(Debug, Default)]
pub(crate) struct Pressure {
    /// Somebody was short of memory since the last look.
    short: AtomicBool,
    /// Who waits for room.
    waiting: AtomicU32,
    /// Moves whenever something could be evicted that could not before.
    eased: Mutex<u64>,
    rises: Condvar,
    eases: Condvar,
    /// Until when there is no use in looking for something to evict: nanoseconds since `start`.
    barren: AtomicU64,
    start: OnceLock<Instant>,
}

impl Pressure {
    /// Memory runs short.
    pub(crate) fn rise(&self) {
        // Load first: this is said again and again.
        if !self.short.load(Ordering::Relaxed) && !self.short.swap(true, Ordering::Relaxed) {
            // Under the mutex: who looked before it was set sleeps by now.
            let _eased = self.eased.lock();
            self.rises.notify_all();
        }
    }

    /// Everything was looked at since `begin`, and nothing could go.
    pub(crate) fn barren_since(&self, begin: Instant) {
        let until = Instant::now() + (4 * begin.elapsed()).min(LOOK);
        self.barren.store(self.nanos(until), Ordering::Relaxed);
    }

    /// Whether that was a moment ago.
    pub(crate) fn is_barren(&self) -> bool {
        let until = self.barren.load(Ordering::Relaxed);
        until != 0 && self.nanos(Instant::now()) < until
    }

    /// Something went, or may go.
    pub(crate) fn not_barren(&self) {
        if self.barren.load(Ordering::Relaxed) != 0 {
            self.barren.store(0, Ordering::Relaxed);
        }
    }

    fn nanos(&self, time: Instant) -> u64 {
        let start = self.start.get_or_init(Instant::now);
        time.saturating_duration_since(*start).as_nanos() as u64 + 1
    }

    /// A kernel has forgotten something that it had kept in the cache.
    pub(crate) fn ease(&self) {
        self.not_barren();
        fence(Ordering::SeqCst);
        if self.waiting.load(Ordering::Relaxed) != 0 {
            *self.eased.lock() += 1;
            self.eases.notify_all();
        }
    }
}

/// Leaves that a front end's kernel holds, and how they stand among the others.
#[derive(Clone, Debug, Default)]
pub struct Held {
    /// Inodes that nobody but their name and the kernel holds.
    pub leaves: Vec<InodeId>,
    /// Names met on the way that could be evicted as they are.
    pub evictable: usize,
}

impl Cache {
    /// Wait until memory runs short, for at most `time`; whether it did. For one thread.
    pub fn wait_for_pressure(&self, time: Duration) -> bool {
        let deadline = Instant::now() + time;
        let mut eased = self.pressure.eased.lock();
        loop {
            if self.pressure.short.swap(false, Ordering::Relaxed) {
                return true;
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return false;
            }
            eased = self.pressure.rises.wait_for(eased, left);
        }
    }

    /// Do what needs memory; as long as there is none, again whenever a kernel has forgotten something,
    /// until `deadline`. `attempt` answers `None` where there is no memory. The caller holds no lock.
    pub fn with_patience<T>(&self, deadline: Instant, mut attempt: impl FnMut() -> Option<T>) -> Option<T> {
        self.pressure.waiting.fetch_add(1, Ordering::Relaxed);
        // Paired with the one in `ease`: who forgets sees that somebody waits, or what he has dropped
        // is seen by the attempt below.
        fence(Ordering::SeqCst);
        let result = loop {
            let before = *self.pressure.eased.lock();
            if let Some(done) = attempt() {
                break Some(done);
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                break None;
            }
            let eased = self.pressure.eased.lock();
            if *eased == before {
                // Other references than a kernel's are dropped without a word: a look at times.
                drop(self.pressure.eases.wait_for(eased, left.min(LOOK)));
            }
        };
        self.pressure.waiting.fetch_sub(1, Ordering::Relaxed);
        result
    }

    /// Look at some names of a superblock, going around in arena order: up to `max` inodes that could be
    /// evicted if the kernel forgot them, and how many could be at once. O(names) at the most.
    pub fn held_by_kernel(&self, sb: SbId, max: usize) -> Held {
        let superblock = self.superblock(sb);
        let mut held = Held::default();
        for _ in 0..superblock.dentries.spans() {
            if held.leaves.len() >= max {
                break;
            }
            let turn = superblock.kernel_hand.fetch_add(1, Ordering::Relaxed);
            let Some((from, to)) = superblock.dentries.span(turn) else { break };
            (from..to).for_each(|dentry| self.look_at_holder(dentry, &mut held));
        }
        held
    }

    fn look_at_holder(&self, dentry: u32, held: &mut Held) {
        let d = self.dentries.get(dentry);
        let inode = d.inode.load(Ordering::Relaxed);
        if d.len() == 0 || inode == 0 {
            return;
        }
        // Only a hint: who is wrongly taken for a leaf is asked for in vain.
        let private = self.inodes_private.get(inode);
        let life = private.refs.life();
        match private.refs.count() {
            1 => held.evictable += 1,
            2 if private.nlookup.load(Ordering::Relaxed) != 0 => held.leaves.push(InodeId::new(inode, life)),
            _ => {}
        }
    }
}
