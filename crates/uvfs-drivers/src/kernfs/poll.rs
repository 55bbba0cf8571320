//! Waiting until an attribute changes: poll(2), as sysfs has it.
//!
//! A node counts its notifications. An open file remembers the count from before its last read from the start. If
//! they differ, poll reports POLLERR and POLLPRI; reading and writing never wait. A file that has not been
//! read yet, and one whose node is removed, is reported ready at once. A waker and a notification may race: see
//! [`super::poll_waiters`].

use std::sync::atomic::Ordering;
use std::task::Waker;

use uvfs::types::PollEvents;

use super::open_files::Open;
use super::tree_operations::Engine;

fn address(open: &Open) -> usize {
    std::ptr::from_ref(open).addr()
}

/// The file's readiness. The waker is called once when that may have changed.
pub(super) fn poll(engine: &Engine, open: &Open, waker: Option<&Waker>) -> PollEvents {
    let changed = PollEvents::ALWAYS | PollEvents::ERR | PollEvents::PRI;
    let held = engine.inner(open.ino.load(Ordering::Relaxed));
    let Some(inner) = held.as_ref().and_then(|held| held.get()) else { return changed };
    if let Some(waker) = waker {
        open.polled.store(true, Ordering::Relaxed);
        inner.waiters.put(address(open), Some(waker));
    }
    // Checked after the waker is registered. A removal deactivates first and notifies then.
    if !inner.active.is_active() {
        // That notification may have come before the waker was registered, and no other will come.
        inner.waiters.put(address(open), None);
        return changed;
    }
    let seen = inner.waiters.events() == open.event.load(Ordering::Relaxed);
    if seen { PollEvents::ALWAYS } else { changed }
}

/// The file is closed: drops its waker.
pub(super) fn forget(engine: &Engine, open: &Open) {
    if !open.polled.load(Ordering::Relaxed) {
        return;
    }
    let held = engine.inner(open.ino.load(Ordering::Relaxed));
    // For a removed node, the removal has taken all wakers, or the last poll reported the removal.
    if let Some(inner) = held.as_ref().and_then(|held| held.get()) {
        inner.waiters.put(address(open), None);
    }
}
