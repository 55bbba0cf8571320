//! A reader-writer lock whose readers share no line and whose writers are cheap. (Per thread, not per
//! processor: user space does not know how long a thread stays on one.)
//!
//! A reader marks its own line and looks whether a writer is there; a writer announces itself and looks for
//! marks. The writer of the kernel's percpu_rw_semaphore waits for a grace period of RCU, milliseconds.
//! Here it pays for one membarrier(2), microseconds, and of a burst of writers only the first one pays.
//!
//! ```text
//! reader                                  writer (has its turn: a mutex, first in, first out)
//! inside = me                             state |= WRITER | FENCED        (under the queue's mutex)
//! light barrier                           heavy barrier; a fence if FENCED was set before
//! state: nothing set ? in                 for each line: while inside, sleep
//!        FENCED ?  fence, look again      in
//!        WRITER ?  go out; wait
//!
//! inside = 0                              state &= !WRITER                (under the queue's mutex)
//! light barrier                           wake the readers that sleep
//! state: nothing set ? out                give the turn to the next one
//!        else  fence, look again          sleep: state |= SLEEPS, fence, while inside wait
//!        SLEEPS ?  wake the writer               (under the queue's mutex)
//! ```
//!
//! *A reader against an announcement.* Each side has a barrier between its store and its look, so one of
//! the two sees the other. Either the writer sees the mark, and waits until it is gone. Or the reader sees
//! the writer, and takes the mark back. Both may happen; then taking the mark back is like the end of a
//! section.
//!
//! *The end of a section against a writer that goes to sleep.* First the same pair of barriers. Either the
//! writer's look comes late enough to find the mark gone, or the reader's look sees WRITER. In the second
//! case both fence: the reader between taking its mark back and its look for SLEEPS, the writer between
//! setting SLEEPS and its look at the line. If the writer sees the line empty, it does not sleep. Otherwise
//! the reader sees SLEEPS, and takes the queue's mutex before it wakes the writer. The writer looks and
//! goes to sleep in one step of that mutex. So it either looks after the reader held the mutex, or is
//! asleep when it is woken. Readers go to sleep, and writers let them in, under the same mutex.
//!
//! *The fenced mode.* While FENCED is set, readers pay a fence of their own at both steps, which pairs with
//! the writer's. Only a writer that then pays the heavy barrier sets FENCED. It is cleared only by a
//! compare-exchange of a word without WRITER, which also holds the count of sections.
//!
//! Entering the mode: a reader that looked before FENCED was set, and so did not fence, has passed the
//! heavy barrier. That writer sees its mark, or that it took the mark back, and so do all later writers,
//! which follow by the mutex. A reader that looks after that barrier sees FENCED (or WRITER), until FENCED
//! is cleared.
//!
//! Leaving the mode: if a writer comes first, the exchange fails. If the exchange comes first, the writer
//! reads a word without FENCED in its own step, and pays. A reader that still sees FENCED then fences for
//! nothing. A thread clears FENCED after 128 (`FENCES`) fenced sections since the last write. By then it
//! has spent about the cost of one heavy barrier. So both together never cost much more than twice the cost
//! of the better one alone.
//!
//! *Order.* A reader's actions come before the next write section: the reader takes its mark back with a
//! release, and the writer's look acquires. A writer's actions come before the next reader's: the writer
//! clears WRITER with a release (the exchange that clears FENCED is part of its release sequence), and
//! readers look with an acquire. Readers that slept are ordered by the mutex. A thread that takes over a
//! line finds it empty by an acquire. Otherwise a writer that sees the new owner gone might not have seen
//! what the old one did.
//!
//! *Waiting times.* A writer waits for earlier writers, then for the readers inside; new readers do not
//! come in. A reader that meets a writer looks for some microseconds whether it goes, then sleeps. After
//! that at most 128 (`PASSES`) more writers go in. Then all sleeping readers go in, before the next writer
//! is announced. So nobody starves, and threads that are only just waking do not hold up each step of a
//! burst of writes. Writers sleep rather than spin, because a reader inside may not be running.
//!
//! *Nested reads.* A thread that is inside as a reader may come in again, and never waits then: an
//! announced writer waits for it anyway. It counts its guards in its mark. A reader may not become the
//! writer, nor may the writer read through the semaphore: it would wait for itself (debug builds assert the
//! first).
//!
//! *Guests.* Two kinds of thread are on a list under the queue's mutex. One has no number ([`thread_number`]). The
//! other has a line that is still marked by the number's last owner (a guard kept in a thread-local
//! outlives the number). Only one thread at a time stores to a line: the line is taken only while it is 0,
//! and given back by storing 0. A forgotten guard keeps writers out for ever, even after its thread's end;
//! readers continue.
//!
//! *Marks and guests of one thread.* A thread may have both, and give them back in any order. It became a
//! guest because the mark was full, or the line was another thread's, and the line is free again. Or it
//! gave its number back while it was inside. The writer looks at each line once, then at the list. So while
//! a writer is announced nothing may move from the list to a line, and nothing does. A guest that finds
//! WRITER takes the mark back, as any reader does, and goes in as a guest again. The other way is safe. A
//! thread that is inside by a mark is in a line that the writer has not passed, and is on the list, under
//! its mutex, before that mark goes.
//!
//! In sum, two kinds of step let a thread in. One is made while no writer is announced; the next writer
//! sees it, by the barriers or by the mutex. The other adds to a mark or a guest that was there and that
//! the writer has not passed: to that same one, or from a mark to the list. A thread without a number looks
//! at all lines for its mark before it would sleep.
//!
//! *Why not rseq(2)*, with lines per processor: a section would have to begin and end on the same
//! processor, or be counted apart on both. Each step would be a restartable sequence in assembly for each
//! architecture. It saves lines (one for each processor, not for each thread) and no barrier: membarrier(2)
//! is needed against the store buffer either way.
//!
//! A read section costs a thread-local, a few loads, two stores and two light barriers, and some ten
//! nanoseconds more in the fenced mode. A write costs three short mutexes, one load for each thread that
//! ever ran at the same time, and the barrier. If a thread sleeps, it costs two context switches too. Not
//! for a forked child or a signal handler.

#[cfg(all(test, loom))]
mod loom_tests;
mod readers;
#[cfg(all(test, not(loom)))]
mod tests;
mod writers;

use std::cell::UnsafeCell;
use std::io;
use std::marker::PhantomData;
use std::mem::ManuallyDrop;
use std::ops::{Deref, DerefMut};

use crossbeam_utils::CachePadded;

use crate::arena::Arena;
use crate::barrier;
use crate::primitives::{AtomicU64, Condvar, Mutex, MutexGuard};
use crate::slot;
use crate::thread_number::{self, LANES, Seat};
use readers::Way;

/// In `state`: a writer is announced, or inside. Readers stay out.
const WRITER: u64 = 1;
/// In `state`: readers fence for themselves, so that a writer need not do it for them.
const FENCED: u64 = 2;
/// In `state`: the writer sleeps, until a reader has gone in or out.
const SLEEPS: u64 = 4;
/// In `state`: one write section; the rest of the word counts them.
const SECTION: u64 = 8;

/// In a thread's mark: the number of its guards that the mark stands for.
const DEPTH: u64 = 63;

/// Fenced sections of one thread after the last write, before it returns to the light barrier: about the
/// cost of the next writer's heavy barrier.
const FENCES: u64 = if cfg!(loom) { 2 } else { 128 };

/// Writers that may pass sleeping readers before they must let them in.
const PASSES: u32 = if cfg!(loom) { 1 } else { 128 };

slot! {
/// A thread's line in one semaphore; only its thread stores to it.
#[derive(Debug)]
#[repr(C, align(128))]
struct Line {
    /// 0, or [`Seat::me`] of the thread that is inside, plus the number of its guards.
    inside: AtomicU64,
    /// `state` at the last fenced section, and how many fenced sections there were with it.
    seen: AtomicU64,
    fenced: AtomicU64,
}
}

/// Activity so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SemCounters {
    /// Write sections.
    pub writes: u64,
    /// Write sections that paid a heavy barrier.
    pub barriers: u64,
    /// How often a reader slept because of a writer.
    pub readers_slept: u64,
    /// How often a writer slept because of a reader that was inside, or had to be let in first.
    pub writers_slept: u64,
    /// membarrier(2) is refused: each read section fences.
    pub fallback: bool,
}

/// State shared by sleeping threads and the threads that wake them.
#[derive(Debug, Default)]
struct Queue {
    /// Readers that sleep until no writer is announced.
    waiting: u32,
    /// Writers that were announced since the first of these readers began to wait.
    passed: u32,
    /// Threads that are inside without a mark, and how many guards each of them has. The count is so wide
    /// that no number of forgotten guards makes it wrap: at 0 the writer would go in.
    guests: Vec<(u64, u64)>,
    counters: SemCounters,
}

impl Queue {
    fn has_guest(&self, me: u64) -> bool {
        self.guests.iter().any(|guest| guest.0 == me)
    }
}

/// The part that every reader loads; writers store to it, and so does the reader that ends the fenced mode.
#[derive(Debug)]
struct Shared {
    state: AtomicU64,
    lines: Arena<Line>,
    /// Always 0.
    nowhere: AtomicU64,
}

/// The semaphore without the value that it protects.
#[derive(Debug)]
struct Core {
    shared: CachePadded<Shared>,
    /// The writers' queue, first in, first out; held for the whole section.
    turn: Mutex<()>,
    queue: Mutex<Queue>,
    /// Signalled when no writer is announced.
    opened: Condvar,
    /// Signalled when a reader has gone in or out for which the writer may wait.
    moved: Condvar,
    /// The bit that a write which pays the heavy barrier sets in `state`: FENCED, or 0.
    mode: u64,
}

/// A value for many readers and few writers. The module's head says which threads wait for which.
#[derive(Debug)]
pub struct PerCpuRwSem<T: ?Sized> {
    core: Core,
    value: UnsafeCell<T>,
}

// SAFETY: the value goes to another thread with the semaphore, and nothing else is tied to a thread.
unsafe impl<T: ?Sized + Send> Send for PerCpuRwSem<T> {}
// SAFETY: readers in several threads share the value (Sync), and a writer has exclusive access to it
// (Send).
unsafe impl<T: ?Sized + Send + Sync> Sync for PerCpuRwSem<T> {}

impl<T> PerCpuRwSem<T> {
    /// A semaphore around a value. Reserves address space for a line of each possible thread; a page of it
    /// is committed once one of its 32 threads reads.
    ///
    /// # Errors
    /// ENOMEM.
    pub fn new(value: T) -> io::Result<Self> {
        Self::with(value, FENCED)
    }

    /// As [`PerCpuRwSem::new`], but without the fenced mode: each write pays a heavy barrier, and no reader
    /// ever fences for itself.
    ///
    /// # Errors
    /// ENOMEM.
    pub fn unbatched(value: T) -> io::Result<Self> {
        Self::with(value, 0)
    }

    fn with(value: T, mode: u64) -> io::Result<Self> {
        barrier::prepare();
        let lines = Arena::reserve(LANES)?;
        // No thread marks another one's line.
        if lines.capacity() < LANES {
            return Err(io::Error::from_raw_os_error(libc::ENOMEM));
        }
        let core = Core {
            shared: CachePadded::new(Shared { state: AtomicU64::new(0), lines, nowhere: AtomicU64::new(0) }),
            turn: Mutex::new(()),
            queue: Mutex::new(Queue::default()),
            opened: Condvar::new(),
            moved: Condvar::new(),
            mode,
        };
        Ok(Self { core, value: UnsafeCell::new(value) })
    }

    /// The value; the semaphore ends.
    pub fn into_inner(self) -> T {
        self.value.into_inner()
    }
}

impl<T: ?Sized> PerCpuRwSem<T> {
    /// Go in as a reader. Sleeps while a writer is announced or inside, unless this thread is inside
    /// already as a reader. A thread that holds the write guard waits for itself.
    #[inline]
    pub fn read(&self) -> ReadGuard<'_, T> {
        self.read_at(thread_number::seat())
    }

    #[inline]
    fn read_at(&self, seat: Seat) -> ReadGuard<'_, T> {
        ReadGuard { way: self.core.enter(seat), of: self, _thread: PhantomData }
    }

    /// Go in as the writer: after earlier writers, when the readers are out. A thread that is inside as a
    /// reader waits for itself.
    pub fn write(&self) -> WriteGuard<'_, T> {
        WriteGuard { turn: ManuallyDrop::new(self.core.enter_alone()), of: self }
    }

    /// The value of a semaphore that nobody else has.
    pub fn get_mut(&mut self) -> &mut T {
        self.value.get_mut()
    }

    /// Activity so far.
    pub fn counters(&self) -> SemCounters {
        let counters = self.core.queue.lock().counters;
        SemCounters { fallback: barrier::fallback(), ..counters }
    }
}

/// A reader is inside until this is dropped. Stays in its thread. A forgotten guard is inside for ever.
#[derive(Debug)]
#[must_use = "the reader is out again at once"]
pub struct ReadGuard<'a, T: ?Sized> {
    of: &'a PerCpuRwSem<T>,
    way: Way<'a>,
    _thread: PhantomData<*mut ()>,
}

impl<T: ?Sized> Deref for ReadGuard<'_, T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        // SAFETY: a reader is inside, so no writer is; the loom models prove that.
        unsafe { &*self.of.value.get() }
    }
}

impl<T: ?Sized> Drop for ReadGuard<'_, T> {
    #[inline]
    fn drop(&mut self) {
        self.of.core.leave(self.way);
    }
}

/// The writer is inside until this is dropped, also by a panic; the value then stays as it is (nothing is
/// poisoned). Stays in its thread.
#[derive(Debug)]
#[must_use = "the writer is out again at once"]
pub struct WriteGuard<'a, T: ?Sized> {
    of: &'a PerCpuRwSem<T>,
    turn: ManuallyDrop<MutexGuard<'a, ()>>,
}

impl<T: ?Sized> Deref for WriteGuard<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        // SAFETY: the writer is alone inside.
        unsafe { &*self.of.value.get() }
    }
}

impl<T: ?Sized> DerefMut for WriteGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: the writer is alone inside, and this borrows its guard.
        unsafe { &mut *self.of.value.get() }
    }
}

impl<T: ?Sized> Drop for WriteGuard<'_, T> {
    fn drop(&mut self) {
        // SAFETY: taken once: the guard is gone after this.
        let turn = unsafe { ManuallyDrop::take(&mut self.turn) };
        self.of.core.leave_alone(turn);
    }
}
