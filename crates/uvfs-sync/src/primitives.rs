//! The one place where std is swapped for loom, or for atomics that count.
//!
//! Every other module takes its atomics, fences, mutexes and parking from here, so that the same code runs
//! under the model checker (`RUSTFLAGS="--cfg loom"`). loom has no `madvise`, `membarrier` or thread
//! identity; their replacements are here or in `sys.rs`. In a debug build each thread counts its
//! stores ([`shared_stores`]). A counter that one thread at a time stores to, and that others only read as a
//! figure, is a [`Tally`], which is not counted.

#[cfg(not(any(loom, debug_assertions)))]
pub use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, AtomicUsize};
#[cfg(not(loom))]
pub use std::sync::atomic::{Ordering, fence};

#[cfg(all(debug_assertions, not(loom)))]
pub use crate::counted_atomics::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, AtomicUsize};

#[cfg(loom)]
pub use loom::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, AtomicUsize, Ordering, fence};

#[cfg(loom)]
pub use loom::sync::Arc;
#[cfg(not(loom))]
pub use std::sync::Arc;

/// Shards of per-thread structures (counters, free-slot magazines). One under loom, whose threads have no
/// identity of their own.
pub const SHARDS: usize = if cfg!(loom) { 1 } else { 16 };

/// This thread's shard, below [`SHARDS`]. Shards are dealt out in rotation, so that few threads never share
/// one. Costs a thread-local load.
#[inline]
pub fn shard() -> usize {
    #[cfg(loom)]
    {
        0
    }
    #[cfg(not(loom))]
    {
        static NEXT: AtomicUsize = AtomicUsize::new(0);
        thread_local! {
            static SHARD: usize = NEXT.fetch_add(1, Ordering::Relaxed) % SHARDS;
        }
        // During thread teardown the thread-local may be gone; any shard is correct.
        SHARD.try_with(|s| *s).unwrap_or(0)
    }
}

/// How often this thread has stored to memory that other threads may read or write: stores and
/// read-modify-writes of the atomics here, counters and mutexes. `None` in a build without debug assertions,
/// which does not count them.
pub fn shared_stores() -> Option<u64> {
    #[cfg(all(debug_assertions, not(loom)))]
    return Some(crate::counted_atomics::of_this_thread());
    #[cfg(not(all(debug_assertions, not(loom))))]
    None
}

/// Called at a store that no wrapper sees.
#[inline]
fn note_store() {
    #[cfg(all(debug_assertions, not(loom)))]
    crate::counted_atomics::note();
}

/// A counter with one writer at a time: its owner, or the holder of a lock. Only the writer adds (a plain
/// load and store, no read-modify-write), on a cache line that no other thread stores to meanwhile. Any
/// thread reads.
#[derive(Debug, Default)]
pub struct Tally(std::sync::atomic::AtomicU64);

impl Tally {
    /// Zero.
    pub const fn new() -> Self {
        Self(std::sync::atomic::AtomicU64::new(0))
    }

    /// The figure now.
    #[inline]
    pub fn get(&self) -> u64 {
        self.0.load(std::sync::atomic::Ordering::Relaxed)
    }

    /// Add; by the owner only, or additions are lost.
    #[inline]
    pub fn add(&self, n: u64) {
        self.0.store(self.get().wrapping_add(n), std::sync::atomic::Ordering::Relaxed);
    }
}

/// Tell the processor (or the model checker) that this thread waits for another.
#[inline]
pub fn spin_loop() {
    #[cfg(loom)]
    loom::thread::yield_now();
    #[cfg(not(loom))]
    std::hint::spin_loop();
}

/// A counter that synchronises nothing and proves nothing: statistics, hints. A plain word under the model
/// checker too, which would otherwise try all orders of something that has none.
#[derive(Debug, Default)]
pub struct Statistic(std::sync::atomic::AtomicU64);

impl Statistic {
    /// Zero.
    pub const fn new() -> Self {
        Self(std::sync::atomic::AtomicU64::new(0))
    }

    /// The figure now.
    #[inline]
    pub fn get(&self) -> u64 {
        self.0.load(std::sync::atomic::Ordering::Relaxed)
    }

    /// Add; it may wrap.
    #[inline]
    pub fn add(&self, n: u64) {
        note_store();
        self.0.fetch_add(n, std::sync::atomic::Ordering::Relaxed);
    }

    /// Subtract; it may wrap.
    #[inline]
    pub fn sub(&self, n: u64) {
        note_store();
        self.0.fetch_sub(n, std::sync::atomic::Ordering::Relaxed);
    }
}

/// A hint, which every reader verifies. A plain word under the model checker too, on a line of its owner.
#[derive(Debug, Default)]
pub struct Hint(std::sync::atomic::AtomicU32);

impl Hint {
    /// No hint.
    pub const fn new() -> Self {
        Self(std::sync::atomic::AtomicU32::new(0))
    }

    /// The hint now; 0: none.
    #[inline]
    pub fn get(&self) -> u32 {
        self.0.load(std::sync::atomic::Ordering::Relaxed)
    }

    /// Replace it.
    #[inline]
    pub fn set(&self, hint: u32) {
        self.0.store(hint, std::sync::atomic::Ordering::Relaxed);
    }
}

/// A mutex without poisoning.
#[derive(Debug, Default)]
pub struct Mutex<T>(#[cfg(not(loom))] parking_lot::Mutex<T>, #[cfg(loom)] loom::sync::Mutex<T>);

/// Guard of a [`Mutex`].
#[cfg(loom)]
pub use loom::sync::MutexGuard;
/// Guard of a [`Mutex`].
#[cfg(not(loom))]
pub use parking_lot::MutexGuard;

impl<T> Mutex<T> {
    /// A mutex around a value.
    pub fn new(value: T) -> Self {
        #[cfg(not(loom))]
        return Self(parking_lot::Mutex::new(value));
        #[cfg(loom)]
        return Self(loom::sync::Mutex::new(value));
    }

    /// Wait for the mutex.
    #[inline]
    pub fn lock(&self) -> MutexGuard<'_, T> {
        note_store();
        #[cfg(not(loom))]
        return self.0.try_lock().unwrap_or_else(|| {
            crate::thread_counters::count(crate::thread_counters::LOCK_WAITS);
            self.0.lock()
        });
        #[cfg(loom)]
        return self.0.lock().unwrap_or_else(|e| e.into_inner());
    }

    /// Take the mutex if nobody holds it.
    #[inline]
    pub fn try_lock(&self) -> Option<MutexGuard<'_, T>> {
        note_store();
        #[cfg(not(loom))]
        return self.0.try_lock();
        #[cfg(loom)]
        return self.0.try_lock().ok();
    }
}

/// Release a mutex to the thread that has waited longest, not to one that comes by.
#[inline]
pub(crate) fn unlock_fair<T>(guard: MutexGuard<'_, T>) {
    #[cfg(not(loom))]
    parking_lot::MutexGuard::unlock_fair(guard);
    #[cfg(loom)]
    drop(guard);
}

/// A condition variable for [`Mutex`].
#[derive(Debug, Default)]
pub struct Condvar(#[cfg(not(loom))] parking_lot::Condvar, #[cfg(loom)] loom::sync::Condvar);

impl Condvar {
    /// A condition that nobody waits for.
    pub fn new() -> Self {
        Self::default()
    }

    /// Release the mutex, wait for a notification, take the mutex again. May wake for no reason.
    #[cfg_attr(loom, allow(unused_mut))]
    pub fn wait<'a, T>(&self, mut guard: MutexGuard<'a, T>) -> MutexGuard<'a, T> {
        #[cfg(not(loom))]
        {
            self.0.wait(&mut guard);
            guard
        }
        #[cfg(loom)]
        return self.0.wait(guard).unwrap_or_else(|e| e.into_inner());
    }

    /// [`Condvar::wait`] for at most `time` (under the model checker: for ever).
    #[cfg_attr(loom, allow(unused_mut, unused_variables))]
    pub fn wait_for<'a, T>(
        &self,
        mut guard: MutexGuard<'a, T>,
        time: std::time::Duration,
    ) -> MutexGuard<'a, T> {
        #[cfg(not(loom))]
        {
            self.0.wait_for(&mut guard, time);
            guard
        }
        #[cfg(loom)]
        return self.wait(guard);
    }

    /// Wake all waiters.
    pub fn notify_all(&self) {
        self.0.notify_all();
    }
}

/// Threads waiting for a word to change, keyed by its address (a futex's semantics). Not for other crates:
/// a `validate` that panics or parks, or the key of another crate's lock, is undefined behaviour.
pub(crate) mod parking {
    /// Sleep until [`unpark_all`] of the same key, unless `validate` says that there is nothing to wait for
    /// any more. `validate` runs under the queue's lock. So a waker that changed the word before it calls
    /// `unpark_all` either makes `validate` fail or finds us in the queue.
    #[cfg(not(loom))]
    pub(crate) fn park(key: usize, validate: impl FnOnce() -> bool) {
        crate::thread_counters::count(crate::thread_counters::LOCK_WAITS);
        // SAFETY: only this crate parks on these keys. They are addresses of words that stay where they are
        // while a thread is parked: in its arenas, or in memory that the sleeper borrows. `validate` and
        // the two empty callbacks neither panic nor call into the parking lot.
        unsafe {
            parking_lot_core::park(
                key,
                validate,
                || {},
                |_, _| {},
                parking_lot_core::DEFAULT_PARK_TOKEN,
                None,
            );
        }
    }

    /// Wake all threads that sleep on `key`.
    #[cfg(not(loom))]
    pub(crate) fn unpark_all(key: usize) {
        // SAFETY: as for `park`: the key is an address that only this crate parks on.
        unsafe { parking_lot_core::unpark_all(key, parking_lot_core::DEFAULT_UNPARK_TOKEN) };
    }

    #[cfg(loom)]
    loom::lazy_static! {
        static ref LOT: (loom::sync::Mutex<()>, loom::sync::Condvar) = Default::default();
    }

    /// Model of the parking lot: one queue for all keys; wake-ups for other keys are spurious.
    #[cfg(loom)]
    pub(crate) fn park(_key: usize, validate: impl FnOnce() -> bool) {
        let guard = LOT.0.lock().unwrap();
        if validate() {
            drop(LOT.1.wait(guard).unwrap());
        }
    }

    /// Model of the parking lot.
    #[cfg(loom)]
    pub(crate) fn unpark_all(_key: usize) {
        let _guard = LOT.0.lock().unwrap();
        LOT.1.notify_all();
    }
}
