//! A full barrier whose cost one side pays for both.
//!
//! Two threads that each store one word and then load the other's need a full barrier between the two
//! steps. Without it both may miss the other's store. If one side runs millions of times and the other
//! rarely, the frequent side calls [`light`], which only keeps the compiler from reordering. The rare side
//! calls [`heavy`]: membarrier(2) makes every running thread of the process pass a full barrier; a thread
//! that does not run has passed one. If the system call is refused (an old kernel, a sandbox), both sides
//! fence.
//!
//! A protocol that uses one side must use the other one too. Nothing here allocates or waits. `light` costs
//! a load and a branch; `heavy` costs 0.1 to 2.5 µs, more with more processors that run this process.
//!
//! Under loom there are two models, and each promises something that the pair does not. Sequentially
//! consistent *fences* also order either side with other such fences, which `light` does not. *Meetings*,
//! read-modify-writes of one word, do not. But if two sides pass there, everything that the first did
//! happens before what the second does, which in the language's terms takes an acquire and a release
//! besides. Code that relies on neither is right under both.

#[cfg(not(loom))]
mod asymmetric {
    use std::sync::atomic::{AtomicU8, Ordering, compiler_fence, fence};
    use std::time::Duration;

    use crate::sys;

    /// Nobody has asked yet: `light` fences, which is right beside either `heavy`.
    const UNKNOWN: u8 = 0;
    const MEMBARRIER: u8 = 1;
    /// The system call was refused a moment ago. `light` fences from now on, but some thread may have
    /// passed one that did not.
    const DRAINING: u8 = 2;
    const FENCE: u8 = 3;
    static KIND: AtomicU8 = AtomicU8::new(UNKNOWN);

    /// Long enough for any store that a processor had begun.
    pub(super) const DRAIN: Duration = Duration::from_millis(20);

    #[inline]
    pub(super) fn light() {
        if KIND.load(Ordering::Relaxed) == MEMBARRIER {
            compiler_fence(Ordering::SeqCst);
        } else {
            fence(Ordering::SeqCst);
        }
    }

    pub(super) fn prepare() {
        if KIND.load(Ordering::Relaxed) == UNKNOWN {
            let kind = if sys::register_membarrier().is_ok() { MEMBARRIER } else { FENCE };
            // Only the first answer counts: once `light` may have fenced for good, it must.
            let _ = KIND.compare_exchange(UNKNOWN, kind, Ordering::SeqCst, Ordering::SeqCst);
        }
    }

    pub(super) fn fallback() -> bool {
        KIND.load(Ordering::Relaxed) != MEMBARRIER
    }

    pub(super) fn heavy() {
        prepare();
        fence(Ordering::SeqCst);
        match KIND.load(Ordering::SeqCst) {
            MEMBARRIER if sys::membarrier().is_err() => drain(),
            DRAINING => drain(),
            _ => {}
        }
    }

    /// A sandbox was entered after registration. Threads that come from now on fence. Earlier ones have no
    /// fence behind them, so they get the time in which every processor empties its store buffer many times
    /// over. Each `heavy` waits by itself until the first that waited is through: one that finds DRAINING
    /// began after the change to it, and one that finds FENCE began after the wait.
    #[cold]
    fn drain() {
        let _ = KIND.compare_exchange(MEMBARRIER, DRAINING, Ordering::SeqCst, Ordering::SeqCst);
        std::thread::sleep(DRAIN);
        KIND.store(FENCE, Ordering::SeqCst);
        fence(Ordering::SeqCst);
    }
}

#[cfg(loom)]
mod asymmetric {
    use std::cell::Cell;

    use crate::primitives::{AtomicU32, Ordering, fence};

    loom::lazy_static! {
        static ref MEETING: AtomicU32 = AtomicU32::new(0);
    }

    thread_local! {
        /// std's thread-local: it belongs to the thread that runs the model, whose threads are not system
        /// threads.
        static MEETINGS: Cell<bool> = const { Cell::new(false) };
    }

    #[cfg(test)]
    pub(super) fn set_meetings(on: bool) {
        MEETINGS.set(on);
    }

    fn pass() {
        if MEETINGS.get() {
            MEETING.fetch_add(1, Ordering::AcqRel);
        } else {
            fence(Ordering::SeqCst);
        }
    }

    pub(super) fn light() {
        pass();
    }

    pub(super) fn prepare() {}

    pub(super) fn fallback() -> bool {
        false
    }

    pub(super) fn heavy() {
        pass();
    }
}

/// Choose the model of [`light`] and [`heavy`] from now on, for the models that this thread runs.
#[cfg(all(test, loom))]
pub(crate) fn set_meetings(on: bool) {
    asymmetric::set_meetings(on);
}

/// The frequent side's barrier, between its store and its load.
#[inline]
pub fn light() {
    asymmetric::light();
}

/// Call this before the first use: until then [`light`] is a fence.
pub fn prepare() {
    asymmetric::prepare();
}

/// Whether [`light`] is a full fence, because membarrier(2) is refused or nobody has prepared.
pub fn fallback() -> bool {
    asymmetric::fallback()
}

/// The rare side's barrier, between its store and its load.
pub fn heavy() {
    asymmetric::heavy();
}
