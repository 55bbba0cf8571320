//! The readers' side: in and out. The parent module's head has the protocol.

use super::{Core, DEPTH, FENCED, FENCES, LANES, Line, Queue, SLEEPS, WRITER};
use crate::barrier;
use crate::primitives::Ordering::{Acquire, Relaxed, Release, SeqCst};
use crate::primitives::{AtomicU64, MutexGuard, fence, spin_loop};
use crate::thread_number::{self, Seat};

/// Looks at a writer before a reader goes to sleep: some five microseconds. That is the cost of a sleep and
/// a wake-up, of which the writer would pay its part. It is also twice the time of a writer's heavy barrier
/// with a reader running. With 128 looks most readers slept in that barrier, and a write took 2.4 bare
/// barriers where it now takes 1.1. A reader does not wait in this way for a writer that is not running.
const SPINS: u32 = if cfg!(loom) { 1 } else { 1024 };

/// How a reader came in; it goes out the same way.
#[derive(Clone, Copy, Debug)]
pub(super) struct Way<'a> {
    /// The word of its mark; a guest's is [`Shared::nowhere`](super::Shared), which is no thread's mark.
    inside: &'a AtomicU64,
    /// [`Seat::me`].
    me: u64,
}

/// The mark of a thread with one guard. (A sum, which merges with the thread-local's own offset.)
#[inline]
fn once(me: u64) -> u64 {
    me + 1
}

impl Core {
    /// Go in.
    #[inline]
    pub(super) fn enter(&self, seat: Seat) -> Way<'_> {
        if seat.lane < LANES {
            let inside = &self.shared.lines.get(seat.lane).inside;
            // Acquire: a guard of the number's last owner may only just have given the line back. A writer
            // that sees that we have gone must see that it has.
            if inside.load(Acquire) == 0 {
                inside.store(once(seat.me), Relaxed);
                // Between the mark and the look for a writer: paired with the one in `announce`.
                barrier::light();
                // Acquire: what the last writer did is seen.
                if self.shared.state.load(Acquire) & (WRITER | FENCED) != 0 {
                    return self.enter_marked(seat);
                }
                return Way { inside, me: seat.me };
            }
        }
        self.enter_otherwise(seat)
    }

    /// Marked, but the light barrier may not be enough, or there is a writer.
    #[inline(never)]
    fn enter_marked(&self, seat: Seat) -> Way<'_> {
        let line = self.shared.lines.get(seat.lane);
        let mut looks = 0;
        loop {
            // Between the mark and another look: paired with the fence in `announce`.
            fence(SeqCst);
            let state = self.shared.state.load(Acquire);
            if state & WRITER == 0 {
                self.note_fenced(line, state);
                return Way { inside: &line.inside, me: seat.me };
            }
            // The writer may have gone to sleep because of the mark.
            line.inside.store(0, Release);
            self.leave_watched();
            if !self.opens_soon(&mut looks) {
                return self.enter_asleep(line, seat);
            }
            line.inside.store(once(seat.me), Relaxed);
        }
    }

    /// Whether the writer goes while there are looks left.
    fn opens_soon(&self, looks: &mut u32) -> bool {
        while *looks < SPINS {
            *looks += 1;
            spin_loop();
            if self.shared.state.load(Relaxed) & WRITER == 0 {
                return true;
            }
        }
        false
    }

    #[cold]
    fn enter_asleep<'a>(&'a self, line: &'a Line, seat: Seat) -> Way<'a> {
        let mut queue = self.admitted(self.queue.lock(), seat);
        if queue.has_guest(seat.me) {
            // The writer waits for us, but it may have passed the line: a mark would be behind it.
            return self.one_more_guest(&mut queue, seat.me);
        }
        // Writers are announced under the same mutex: the next one sees it.
        line.inside.store(once(seat.me), Relaxed);
        drop(queue);
        Way { inside: &line.inside, me: seat.me }
    }

    /// Count one more section whose reader fenced. The thread that has had enough of them without a write
    /// in between ends the fenced mode.
    fn note_fenced(&self, line: &Line, state: u64) {
        if state & FENCED == 0 {
            return;
        }
        let fenced = if line.seen.load(Relaxed) == state { line.fenced.load(Relaxed) + 1 } else { 1 };
        line.seen.store(state, Relaxed);
        line.fenced.store(fenced, Relaxed);
        if fenced >= FENCES {
            // Relaxed: part of the release sequence of the last writer's store.
            let _ = self.shared.state.compare_exchange(state, state & !FENCED, Relaxed, Relaxed);
        }
    }

    /// Enter once more, or without a mark of one's own.
    #[cold]
    fn enter_otherwise(&self, seat: Seat) -> Way<'_> {
        if seat.lane < LANES {
            let inside = &self.shared.lines.get(seat.lane).inside;
            let old = inside.load(Relaxed);
            if old & !DEPTH == seat.me && old & DEPTH < DEPTH {
                // Inside already, and no writer comes before the last guard is dropped.
                inside.store(old + 1, Relaxed);
                return Way { inside, me: seat.me };
            }
        }
        // The line is marked by the number's last owner, or cannot count more guards, or there is none.
        let mut queue = self.admitted(self.queue.lock(), seat);
        self.one_more_guest(&mut queue, seat.me)
    }

    fn one_more_guest(&self, queue: &mut Queue, me: u64) -> Way<'_> {
        match queue.guests.iter_mut().find(|guest| guest.0 == me) {
            Some(guest) => guest.1 += 1,
            None => queue.guests.push((me, 1)),
        }
        Way { inside: &self.shared.nowhere, me }
    }

    /// Whether the thread is inside by a mark; only the thread itself can make that true or false. Without
    /// a number it looks for a mark that it made while it had one.
    pub(super) fn marked(&self, seat: Seat) -> bool {
        let by_us = |lane| self.shared.lines.get(lane).inside.load(Relaxed) & !DEPTH == seat.me;
        if seat.lane < LANES { by_us(seat.lane) } else { (0..thread_number::used()).any(by_us) }
    }

    /// Wait until no writer is announced, unless this thread is inside already: the writer waits for it.
    fn admitted<'a>(&'a self, mut queue: MutexGuard<'a, Queue>, seat: Seat) -> MutexGuard<'a, Queue> {
        // WRITER is set and cleared in `state` under the queue's mutex.
        let closed = || self.shared.state.load(Relaxed) & WRITER != 0;
        if !closed() || queue.has_guest(seat.me) || self.marked(seat) {
            return queue;
        }
        queue.waiting += 1;
        queue.counters.readers_slept += 1;
        while closed() {
            queue = self.opened.wait(queue);
        }
        queue.waiting -= 1;
        if queue.waiting == 0 {
            queue.passed = 0;
            // The next one may wait for us.
            self.moved.notify_all();
        }
        queue
    }

    /// Go out.
    #[inline]
    pub(super) fn leave(&self, way: Way<'_>) {
        let inside = way.inside;
        if inside.load(Relaxed) != once(way.me) {
            return self.leave_otherwise(way);
        }
        // Release: the reader's reads happen before the actions of the writer that sees this.
        inside.store(0, Release);
        // Between taking the mark back and the look for a writer: paired with `announce`'s.
        barrier::light();
        if self.shared.state.load(Relaxed) & (WRITER | FENCED) != 0 {
            self.leave_watched();
        }
    }

    /// The mark has been taken back, and a writer may sleep because of it.
    #[inline(never)]
    fn leave_watched(&self) {
        // Between taking the mark back and another look: paired with the fence in `sleep_while`.
        fence(SeqCst);
        if self.shared.state.load(Relaxed) & SLEEPS != 0 {
            self.wake_writer();
        }
    }

    #[cold]
    fn leave_otherwise(&self, way: Way<'_>) {
        if std::ptr::eq(way.inside, &self.shared.nowhere) {
            self.leave_as_guest(way.me);
        } else {
            // Not the last guard.
            way.inside.store(way.inside.load(Relaxed) - 1, Relaxed);
        }
    }

    fn leave_as_guest(&self, me: u64) {
        let mut queue = self.queue.lock();
        if let Some(at) = queue.guests.iter().position(|guest| guest.0 == me) {
            queue.guests[at].1 -= 1;
            if queue.guests[at].1 == 0 {
                queue.guests.swap_remove(at);
                self.moved.notify_all();
            }
        }
    }

    /// Once we have held the mutex, a writer that was awake when we looked is asleep, or has seen what we
    /// did.
    #[cold]
    fn wake_writer(&self) {
        drop(self.queue.lock());
        self.moved.notify_all();
    }
}
