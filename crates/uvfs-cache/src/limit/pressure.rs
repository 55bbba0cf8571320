//! Waiting for memory, and notifying watchers that it runs short.
//!
//! A front end has a thread that works ahead of allocating threads ([`Cache::balance`]) and makes its
//! kernel forget what it holds ([`Cache::held_by_kernel`]). That thread sleeps until its waker is called
//! ([`Cache::watch_pressure`]). The waker is called once, and again only after the thread has begun to
//! look. A thread that finds no memory may retry in [`Cache::with_patience`] as references are dropped.
//!
//! The mutexes protect the count and the list of wakers. Both are leaves, and no waker is called with
//! either held. If no thread waits, a forget pays for a fence and a load.

use std::cell::Cell;
use std::marker::PhantomData;
use std::sync::OnceLock;
use std::task::Waker;
use std::time::{Duration, Instant};

use uvfs_sync::primitives::{AtomicBool, AtomicU32, AtomicU64, Condvar, Mutex, Ordering, fence};

use crate::cache::{Cache, is_dir};
use crate::superblock::Hand;
use crate::types::{InodeId, SbId};

/// Time between two looks of a waiter that nobody notifies.
const LOOK: Duration = Duration::from_millis(100);
/// The same for a waiter that holds up others meanwhile.
const LOOK_OFTEN: Duration = Duration::from_millis(10);

/// See the module's head.
#[derive(Debug, Default)]
pub(crate) struct Pressure {
    /// The watchers were woken, and none has begun to look since.
    rung: AtomicBool,
    /// Wakers of the watchers.
    watchers: Mutex<Vec<Waker>>,
    /// Threads that wait for memory.
    waiting: AtomicU32,
    /// Moves whenever something can be evicted that could not be before.
    eased: Mutex<u64>,
    eases: Condvar,
    /// Until when a search for something to evict is useless: nanoseconds since `start`.
    barren: AtomicU64,
    start: OnceLock<Instant>,
}

/// See [`Cache::overdraw`].
#[derive(Debug)]
pub struct Overdraft {
    before: bool,
    /// Belongs to one thread.
    thread: PhantomData<*const ()>,
}

thread_local! {
    static OVERDRAWN: Cell<bool> = const { Cell::new(false) };
}

/// Bytes that the calling thread may have beyond a limit.
pub(crate) fn beyond(limit: u64) -> u64 {
    if OVERDRAWN.get() { limit / 25 } else { 0 }
}

impl Drop for Overdraft {
    fn drop(&mut self) {
        OVERDRAWN.set(self.before);
    }
}

impl Pressure {
    /// Memory runs short. The caller holds no lock but name locks and the rename mutex.
    pub(crate) fn rise(&self) {
        // Paired with the fence in `hear`. If our taking of a slot comes first, the watcher sees it when it
        // looks. If the watcher begins to look first, we see that and wake it once more.
        fence(Ordering::SeqCst);
        // Load first: this is called again and again.
        if !self.rung.load(Ordering::Relaxed) && !self.rung.swap(true, Ordering::Relaxed) {
            let watchers = self.watchers.lock().clone();
            watchers.iter().for_each(Waker::wake_by_ref);
        }
    }

    /// A watcher begins to look: later events wake it again.
    pub(crate) fn hear(&self) {
        self.rung.store(false, Ordering::Relaxed);
        // Paired with the one in `rise`.
        fence(Ordering::SeqCst);
    }

    pub(crate) fn is_watched(&self) -> bool {
        !self.watchers.lock().is_empty()
    }

    /// Everything was searched since `begin`, and nothing could go.
    pub(crate) fn barren_since(&self, begin: Instant) {
        let until = Instant::now() + (4 * begin.elapsed()).min(LOOK);
        self.barren.store(self.nanos(until), Ordering::Relaxed);
    }

    /// Whether `barren_since` was called a moment ago.
    pub(crate) fn is_barren(&self) -> bool {
        let until = self.barren.load(Ordering::Relaxed);
        until != 0 && self.nanos(Instant::now()) < until
    }

    /// Something went, or may go now.
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

/// Leaves that a front end's kernel holds, and the number of other names that could go.
#[derive(Clone, Debug, Default)]
pub struct Held {
    /// Inodes that only their name and the kernel hold.
    pub leaves: Vec<Leaf>,
    /// Names met on the way that could be evicted as they are.
    pub evictable: usize,
}

/// One leaf of [`Held`].
#[derive(Clone, Copy, Debug)]
pub struct Leaf {
    /// The inode.
    pub id: InodeId,
    pub(crate) sb: SbId,
    /// The slot where its name was.
    pub(crate) dentry: u32,
}

impl Cache {
    /// Wake `waker` when memory runs short, or when less of it may be used than before, until
    /// [`Cache::unwatch_pressure`]. A watcher begins with a look ([`Cache::balance`]): it is not notified
    /// of earlier events.
    pub fn watch_pressure(&self, waker: Waker) {
        self.pressure.watchers.lock().push(waker);
    }

    /// The end of [`Cache::watch_pressure`].
    pub fn unwatch_pressure(&self, waker: &Waker) {
        self.pressure.watchers.lock().retain(|other| !other.will_wake(waker));
    }

    /// Attempt something that needs memory. While there is none, attempt it again whenever a kernel has
    /// forgotten something, until `deadline`. `attempt` returns `None` if there is no memory. The caller
    /// holds no lock.
    pub fn with_patience<T>(&self, deadline: Instant, mut attempt: impl FnMut() -> Option<T>) -> Option<T> {
        self.pressure.waiting.fetch_add(1, Ordering::Relaxed);
        // Paired with the fence in `ease`. If our count comes first, the forgetting thread sees that
        // somebody waits. If its drop comes first, the attempt below sees what it has dropped.
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
                // References other than a kernel's are dropped without notice, so look from time to time.
                drop(self.pressure.eases.wait_for(eased, left.min(LOOK_OFTEN)));
            }
        };
        self.pressure.waiting.fetch_sub(1, Ordering::Relaxed);
        result
    }

    /// The calling thread may have 4% more memory than the limit allows while this lives. It is for a
    /// thread that must not wait because whatever would return memory waits for it. Use it only once that
    /// is seen to be so.
    pub fn overdraw(&self) -> Overdraft {
        Overdraft { before: OVERDRAWN.replace(true), thread: PhantomData }
    }

    /// Look at some names of a superblock, cyclically in arena order. Returns up to `max` inodes that could
    /// be evicted if the kernel forgot them, and how many could be at once. Looks at no more than `pieces`
    /// of 64 names.
    pub fn held_by_kernel(&self, sb: SbId, max: usize, pieces: u64) -> Held {
        let superblock = self.superblock(sb);
        let mut held = Held::default();
        for _ in 0..superblock.dentries().spans().min(pieces) {
            if held.leaves.len() >= max {
                break;
            }
            let Some((from, to)) = superblock.next_span(Hand::Kernel) else { break };
            (from..to).for_each(|dentry| self.look_at_holder(sb, dentry, &mut held));
        }
        held
    }

    fn look_at_holder(&self, sb: SbId, dentry: u32, held: &mut Held) {
        let d = self.dentries.get(dentry);
        let inode = d.inode.load(Ordering::Relaxed);
        if d.len() == 0 || inode == 0 {
            return;
        }
        // Only a hint: the kernel is asked in vain to forget an inode that is wrongly taken for a leaf.
        let private = self.inodes.private(inode);
        let id = InodeId::new(inode, private.refs.generation());
        match private.refs.count() {
            1 => held.evictable += 1,
            2 if private.nlookup.load(Ordering::Relaxed) != 0 => held.leaves.push(Leaf { id, sb, dentry }),
            _ => {}
        }
    }

    /// Directory and name of a leaf that is no directory; `None` if it now has another name, or none.
    pub fn name_of(&self, leaf: &Leaf) -> Option<(InodeId, Vec<u8>)> {
        let seen = self.see(leaf.dentry).filter(|seen| seen.inode == leaf.id.index())?;
        let inode = self.get(leaf.id).filter(|inode| !is_dir(inode.fmt()))?;
        drop(inode);
        let dir = InodeId::new(seen.parent, self.inodes.private(seen.parent).refs.generation());
        Some((dir, seen.name[..seen.len].to_vec()))
    }
}

#[cfg(all(test, loom))]
mod tests {
    use super::*;
    use std::sync::Arc;
    use std::sync::atomic::AtomicUsize;

    #[derive(Default)]
    struct Woken(AtomicUsize);

    impl std::task::Wake for Woken {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        }
    }

    /// A watcher that was woken once begins to look while another thread takes a slot. It sees that, or is
    /// woken again. Planted: either fence left out.
    #[test]
    fn loom_memory_a_taken_slot_is_seen_or_wakes() {
        loom::model(|| {
            let pressure = loom::sync::Arc::new(Pressure::default());
            let taken = loom::sync::Arc::new(AtomicU32::new(0));
            let woken = Arc::new(Woken::default());
            pressure.watchers.lock().push(Waker::from(Arc::clone(&woken)));
            pressure.rise();
            let taker = {
                let (pressure, taken) = (pressure.clone(), taken.clone());
                loom::thread::spawn(move || {
                    taken.store(1, Ordering::Relaxed);
                    pressure.rise();
                })
            };
            pressure.hear();
            let seen = taken.load(Ordering::Relaxed);
            taker.join().unwrap();
            let woken = woken.0.load(std::sync::atomic::Ordering::Relaxed);
            assert!(seen == 1 || woken == 2, "lost");
        });
    }
}
