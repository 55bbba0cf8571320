//! Waiting for memory, and notifying watchers that it runs short.
//!
//! A front end runs a balancing thread, which evicts ahead of need
//! ([`Cache::balance`](crate::Cache::balance)) and makes the kernel forget inodes that it holds
//! ([`Cache::held_by_kernel`](crate::Cache::held_by_kernel)). That thread, the *watcher*, sleeps until its
//! waker is called ([`Cache::watch_pressure`](crate::Cache::watch_pressure)). The waker is called once, and
//! again only after the thread has begun to look. A thread that finds no memory may retry in
//! [`Cache::with_patience`](crate::Cache::with_patience): after each FORGET of a kernel, and every 10 ms,
//! because other references are dropped without notice.
//!
//! One mutex protects the count of FORGETs that came while threads waited, the other the list of wakers.
//! Both are leaves, and no waker is called with either held. If no thread waits, a FORGET pays for a fence
//! and a load.

use std::cell::Cell;
use std::marker::PhantomData;
use std::sync::OnceLock;
use std::task::Waker;
use std::time::{Duration, Instant};

use uvfs_sync::primitives::{AtomicBool, AtomicU32, AtomicU64, Condvar, Mutex, Ordering, fence};

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

/// See [`Cache::overdraw`](crate::Cache::overdraw).
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

impl Overdraft {
    /// See [`Cache::overdraw`](crate::Cache::overdraw).
    pub(super) fn begin() -> Self {
        Self { before: OVERDRAWN.replace(true), thread: PhantomData }
    }
}

impl Drop for Overdraft {
    fn drop(&mut self) {
        OVERDRAWN.set(self.before);
    }
}

impl Drop for Pressure {
    /// The cache ends. Watchers look, and find no cache.
    fn drop(&mut self) {
        self.watchers.lock().drain(..).for_each(Waker::wake);
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

    /// See [`Cache::watch_pressure`](crate::Cache::watch_pressure).
    pub(super) fn watch(&self, waker: Waker) {
        self.watchers.lock().push(waker);
    }

    pub(super) fn unwatch(&self, waker: &Waker) {
        self.watchers.lock().retain(|other| !other.will_wake(waker));
    }

    /// See [`Cache::with_patience`](crate::Cache::with_patience).
    pub(super) fn with_patience<T>(
        &self,
        deadline: Instant,
        mut attempt: impl FnMut() -> Option<T>,
    ) -> Option<T> {
        self.waiting.fetch_add(1, Ordering::Relaxed);
        // Paired with the fence in `ease`. If our count comes first, the forgetting thread sees that
        // somebody waits. If its drop comes first, the attempt below sees what it has dropped.
        fence(Ordering::SeqCst);
        let result = loop {
            let before = *self.eased.lock();
            if let Some(done) = attempt() {
                break Some(done);
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                break None;
            }
            let eased = self.eased.lock();
            if *eased == before {
                // References other than a kernel's are dropped without notice, so look from time to time.
                drop(self.eases.wait_for(eased, left.min(LOOK_OFTEN)));
            }
        };
        self.waiting.fetch_sub(1, Ordering::Relaxed);
        result
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
