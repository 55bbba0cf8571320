//! The readers' side: in and out. The protocol is in the parent module's head.

use crate::primitives::Ordering::{Acquire, Relaxed, Release, SeqCst};

use super::{Core, DEPTH, FENCED, FENCES, LANES, Line, Queue, WRITER};
use crate::barrier;
use crate::lane::Seat;
use crate::primitives::{MutexGuard, fence};

impl Core {
    #[inline]
    fn line(&self, seat: Seat) -> &Line {
        self.shared.lines.get(seat.lane)
    }

    /// Go in. Returns whose mark stands for it: the seat, or one without a number.
    #[inline]
    pub(super) fn enter(&self, seat: Seat) -> Seat {
        if seat.lane < LANES {
            let inside = &self.line(seat).inside;
            // Acquire: a guard of the number's last owner may only just have given the line back, and who sees
            // that we have gone must see that it has.
            if inside.load(Acquire) == 0 {
                inside.store(seat.me | 1, Relaxed);
                // Between the mark and the look for a writer: paired with the one in `announce`.
                barrier::light();
                // Acquire: what the last writer did.
                if self.shared.state.load(Acquire) & (WRITER | FENCED) == 0 {
                    return seat;
                }
                return self.enter_marked(seat);
            }
        }
        self.enter_otherwise(seat)
    }

    /// Marked, but the light barrier may not be enough, or there is a writer.
    #[inline(never)]
    fn enter_marked(&self, seat: Seat) -> Seat {
        let line = self.line(seat);
        // Between the mark and another look: paired with the fence in `announce`.
        fence(SeqCst);
        let state = self.shared.state.load(Acquire);
        if state & WRITER == 0 {
            self.note_fenced(line, state);
            return seat;
        }
        // Release: a nested guard may have been inside all the time until now. (There is none; but a
        // mark is only ever taken back in one way.)
        line.inside.store(0, Release);
        let mut queue = self.queue.lock();
        // The writer may have gone to sleep because of the mark.
        self.tell_writer(&queue);
        queue = self.admitted(queue, seat.me);
        // Writers are announced under the same mutex: the next one sees it.
        line.inside.store(seat.me | 1, Relaxed);
        drop(queue);
        seat
    }

    /// One more section whose reader fenced. The thread that has had enough of them without a write between ends
    /// the fenced mode, if there was none by now either.
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

    /// Once more, or without a mark of one's own.
    #[cold]
    fn enter_otherwise(&self, seat: Seat) -> Seat {
        let mut nested = false;
        if seat.lane < LANES {
            let inside = &self.line(seat).inside;
            let old = inside.load(Relaxed);
            nested = old & !DEPTH == seat.me;
            if nested && old & DEPTH < DEPTH {
                // Inside already, and no writer comes before the last guard is dropped.
                inside.store(old + 1, Relaxed);
                return seat;
            }
        }
        // The line is marked by the number's last owner, or cannot count more guards, or there is none.
        let mut queue = self.queue.lock();
        if !nested {
            queue = self.admitted(queue, seat.me);
        }
        match queue.guests.iter_mut().find(|guest| guest.0 == seat.me) {
            Some(guest) => guest.1 += 1,
            None => queue.guests.push((seat.me, 1)),
        }
        Seat { lane: LANES, me: seat.me }
    }

    /// Wait until no writer is announced, unless this thread is inside already: the writer waits for it.
    fn admitted<'a>(&'a self, mut queue: MutexGuard<'a, Queue>, me: u64) -> MutexGuard<'a, Queue> {
        // `state` gains and loses WRITER under the queue's mutex.
        let closed = || self.shared.state.load(Relaxed) & WRITER != 0;
        if !closed() || queue.guests.iter().any(|guest| guest.0 == me) {
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
            self.tell_writer(&queue);
        }
        queue
    }

    /// Go out.
    #[inline]
    pub(super) fn leave(&self, seat: Seat) {
        if seat.lane < LANES {
            let inside = &self.line(seat).inside;
            if inside.load(Relaxed) == seat.me | 1 {
                // Release: what the reader read happens before what the writer that sees this does.
                inside.store(0, Release);
                // Between taking the mark back and the look for a writer: paired with `announce`'s.
                barrier::light();
                if self.shared.state.load(Relaxed) & (WRITER | FENCED) != 0 {
                    self.leave_watched();
                }
                return;
            }
        }
        self.leave_otherwise(seat);
    }

    #[inline(never)]
    fn leave_watched(&self) {
        // As in `enter_marked`.
        fence(SeqCst);
        if self.shared.state.load(Relaxed) & WRITER != 0 {
            self.tell_writer(&self.queue.lock());
        }
    }

    #[cold]
    fn leave_otherwise(&self, seat: Seat) {
        if seat.lane < LANES {
            let inside = &self.line(seat).inside;
            // Not the last guard.
            inside.store(inside.load(Relaxed) - 1, Relaxed);
            return;
        }
        let mut queue = self.queue.lock();
        if let Some(at) = queue.guests.iter().position(|guest| guest.0 == seat.me) {
            queue.guests[at].1 -= 1;
            if queue.guests[at].1 == 0 {
                queue.guests.swap_remove(at);
                self.tell_writer(&queue);
            }
        }
    }

    /// A reader is out, or in: the writer may wait for that.
    fn tell_writer(&self, queue: &Queue) {
        if queue.writer_sleeps {
            self.moved.notify_all();
        }
    }
}
