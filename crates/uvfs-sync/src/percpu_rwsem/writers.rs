//! The writers' side: one at a time, in turn. The parent module's head has the protocol.

use crate::primitives::Ordering::{Acquire, Relaxed, Release, SeqCst};

use super::{Core, FENCED, PASSES, Queue, SECTION, SLEEPS, WRITER};
use crate::barrier;
use crate::primitives::{MutexGuard, fence, spin_loop, unlock_fair};
use crate::thread_number;

/// Looks at a reader before the writer goes to sleep. A section is often shorter than a sleep, but the
/// writer does not wait in this way for a reader that is not running.
const SPINS: u32 = if cfg!(loom) { 0 } else { 64 };

impl Core {
    /// Wait for the turn, keep new readers out, and wait for those inside.
    pub(super) fn enter_alone(&self) -> MutexGuard<'_, ()> {
        // loom's threads have no seats of their own.
        debug_assert!(
            cfg!(loom) || !self.marked(thread_number::seat()),
            "a thread that is inside as a reader waits for itself"
        );
        let turn = self.turn.lock();
        self.announce();
        self.wait_for_readers();
        turn
    }

    /// From now on no reader goes in.
    fn announce(&self) {
        let mut queue = self.queue.lock();
        if queue.waiting > 0 && queue.passed >= PASSES {
            // They have been woken, and nothing stands in their way.
            queue = self.sleep_while(queue, |queue| queue.waiting > 0);
        }
        queue.passed += u32::from(queue.waiting > 0);
        // If the light barrier is a fence there is nothing to save.
        let fallback = barrier::fallback();
        let mode = if fallback { 0 } else { self.mode };
        // Relaxed: the barriers below order it. A read-modify-write, because readers end the fenced mode.
        let old =
            self.shared.state.fetch_update(Relaxed, Relaxed, |old| Some((old + SECTION) | WRITER | mode));
        let fenced = old.unwrap_or_default() & FENCED != 0;
        queue.counters.writes += 1;
        queue.counters.barriers += u64::from(!fenced && !fallback);
        drop(queue);
        // Between the announcement and the look for readers: paired with those of `enter` and `leave`. If
        // the fenced mode was on, all the readers that count fence for themselves.
        if fenced {
            fence(SeqCst);
        } else {
            barrier::heavy();
        }
    }

    /// A line that is seen empty once is empty: a later mark belongs to a reader that will see the writer
    /// and take the mark back. The list comes last: a thread that is inside by its mark may still be put on
    /// it, but a thread on the list makes no mark that stays.
    fn wait_for_readers(&self) {
        for lane in 0..thread_number::used() {
            let line = self.shared.lines.get(lane);
            // Acquire: the reader's actions inside come before ours.
            let inside = || line.inside.load(Acquire) != 0;
            let mut looks = 0;
            while looks < SPINS && inside() {
                looks += 1;
                spin_loop();
            }
            if inside() {
                drop(self.sleep_while(self.queue.lock(), |_| inside()));
            }
        }
        drop(self.sleep_while(self.queue.lock(), |queue| !queue.guests.is_empty()));
    }

    /// Sleep until a reader that goes in or out has made `what` false.
    fn sleep_while<'a>(
        &'a self,
        mut queue: MutexGuard<'a, Queue>,
        what: impl Fn(&Queue) -> bool,
    ) -> MutexGuard<'a, Queue> {
        if !what(&queue) {
            return queue;
        }
        self.shared.state.fetch_or(SLEEPS, Relaxed);
        // Between setting SLEEPS and looking once more: paired with the one in `leave_watched`. All readers
        // that are inside know of the writer by now, and pass that fence.
        fence(SeqCst);
        while what(&queue) {
            queue.counters.writers_slept += 1;
            queue = self.moved.wait(queue);
        }
        self.shared.state.fetch_and(!SLEEPS, Relaxed);
        queue
    }

    /// Let the readers in, and give the next writer its turn.
    pub(super) fn leave_alone(&self, turn: MutexGuard<'_, ()>) {
        let queue = self.queue.lock();
        let state = self.shared.state.load(Relaxed);
        // Nobody else stores to it while a writer is announced. Release: readers acquire it.
        self.shared.state.store(state & !WRITER, Release);
        let wake = queue.waiting > 0;
        drop(queue);
        if wake {
            self.opened.notify_all();
        }
        unlock_fair(turn);
    }
}
