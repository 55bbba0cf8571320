//! Waiting until an attribute is another: poll(2), as sysfs has it.
//!
//! A node counts its notifications; an open file remembers the count from before it last read from the start. Where
//! they differ, there is POLLERR and POLLPRI, and reading and writing never wait. A file that was not
//! read yet, and one whose node is removed, is told so at once.
//!
//! Who waits leaves a waker, then looks at the count; who notifies counts, then takes the wakers. One
//! of the two sees the other, by the lock of the list of wakers. Wakers are called with nothing held.

use std::sync::atomic::{AtomicU64, Ordering};
use std::task::Waker;

use parking_lot::Mutex;
use uvfs::types::PollEvents;

use super::engine::Engine;
use super::open::Open;

/// A node's notifications, and who waits for one.
#[derive(Debug, Default)]
pub(super) struct Waiters {
    events: AtomicU64,
    /// By the address of the open file; few at a time.
    wakers: Mutex<Vec<(usize, Waker)>>,
}

impl Waiters {
    /// Notifications so far.
    pub(super) fn events(&self) -> u64 {
        self.events.load(Ordering::Acquire)
    }

    /// One more.
    pub(super) fn notify(&self) {
        self.events.fetch_add(1, Ordering::AcqRel);
        let wakers = std::mem::take(&mut *self.wakers.lock());
        wakers.into_iter().for_each(|(_, waker)| waker.wake());
    }

    /// In the place of the one that this file had.
    fn put(&self, file: usize, waker: Option<&Waker>) {
        let new = waker.cloned();
        let mut wakers = self.wakers.lock();
        let old = wakers.iter().position(|(of, _)| *of == file).map(|at| wakers.swap_remove(at));
        wakers.extend(new.map(|waker| (file, waker)));
        drop(wakers);
        // A waker's end is its maker's code.
        drop(old);
    }
}

fn address(open: &Open) -> usize {
    std::ptr::from_ref(open).addr()
}

/// What the file is ready for; the waker is called once when that may be other.
pub(super) fn poll(engine: &Engine, open: &Open, waker: Option<&Waker>) -> PollEvents {
    let changed = PollEvents::ALWAYS | PollEvents::ERR | PollEvents::PRI;
    let held = engine.inner(open.ino.load(Ordering::Relaxed));
    let Some(inner) = held.as_ref().and_then(|held| held.get()) else { return changed };
    if let Some(waker) = waker {
        open.polled.store(true, Ordering::Relaxed);
        inner.waiters.put(address(open), Some(waker));
    }
    // After the waker is there. A removal deactivates first and notifies then.
    if !inner.active.is_active() {
        // That one may have been before the waker was there, and none comes any more.
        inner.waiters.put(address(open), None);
        return changed;
    }
    let seen = inner.waiters.events() == open.event.load(Ordering::Relaxed);
    if seen { PollEvents::ALWAYS } else { changed }
}

/// The file is closed: its waker goes.
pub(super) fn forget(engine: &Engine, open: &Open) {
    if !open.polled.load(Ordering::Relaxed) {
        return;
    }
    let held = engine.inner(open.ino.load(Ordering::Relaxed));
    // Of a removed node the removal has taken all wakers, or the last poll was told.
    if let Some(inner) = held.as_ref().and_then(|held| held.get()) {
        inner.waiters.put(address(open), None);
    }
}
