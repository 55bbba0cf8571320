//! A node's notifications, and the wakers of the files that wait for one.
//!
//! A waiter leaves a waker, then reads the count. A notifier counts, then takes the wakers. The lock of the list of
//! wakers orders them. If the waiter's waker comes first, the notifier finds and calls it. If the notifier takes the
//! wakers first, the waiter sees the new count. Wakers are called with nothing held.

use std::sync::atomic::{AtomicU64, Ordering};
use std::task::Waker;

use parking_lot::Mutex;

/// A node's notifications, and the waiters for one.
#[derive(Debug, Default)]
pub(super) struct Waiters {
    events: AtomicU64,
    /// By the address of the open file; there are few at a time.
    wakers: Mutex<Vec<(usize, Waker)>>,
}

impl Waiters {
    /// Notifications so far.
    pub(super) fn events(&self) -> u64 {
        self.events.load(Ordering::Acquire)
    }

    /// Counts one more notification.
    pub(super) fn notify(&self) {
        self.events.fetch_add(1, Ordering::AcqRel);
        let wakers = std::mem::take(&mut *self.wakers.lock());
        wakers.into_iter().for_each(|(_, waker)| waker.wake());
    }

    /// Replaces this file's waker.
    pub(super) fn put(&self, file: usize, waker: Option<&Waker>) {
        let new = waker.cloned();
        let mut wakers = self.wakers.lock();
        let old = wakers.iter().position(|(of, _)| *of == file).map(|at| wakers.swap_remove(at));
        wakers.extend(new.map(|waker| (file, waker)));
        drop(wakers);
        // Dropping a waker runs its maker's code.
        drop(old);
    }
}
