//! A reader-writer lock whose readers share no line and whose writers are cheap. (Per thread, not per processor:
//! user space does not know how long it stays on one.)
//!
//! A reader marks its own line and looks whether a writer is there; a writer announces itself and looks for
//! marks. The kernel's percpu_rw_semaphore has its writer wait for a grace period of RCU, milliseconds; here it
//! pays for one membarrier(2), microseconds, and of a burst of writers only the first one pays.
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
//! *A reader against an announcement.* Between the store and the look there is a barrier on either side, so one of
//! the two sees the other. Either the mark is seen, and the writer waits until it is gone; or the reader sees the
//! writer, and takes the mark back. Both may happen; then the mark that is taken back is like the end of a section.
//!
//! *The end of a section against a writer that goes to sleep.* First the same pair of barriers: either the writer's
//! look comes late enough to find the mark gone, or the reader's look sees WRITER. In the second case both
//! fence: the reader between taking its mark back and its look for SLEEPS, the writer between setting SLEEPS and its
//! look at the line. Either the writer sees the line empty; or the reader sees SLEEPS, and takes the
//! queue's mutex before it wakes: the writer looks and goes to sleep in one step of that mutex, so it either
//! looks after the reader had it, or is asleep when it is woken. Readers go to sleep, and writers let them in, under the
//! same mutex.
//!
//! *The fenced mode.* While FENCED is set readers pay a fence of their own at both steps, which pairs with the
//! writer's. FENCED is only ever set by a writer that then pays the heavy barrier, and only taken away by a
//! compare-exchange of a word without WRITER, sections counted. In: a reader that looked before it was
//! set, and so did not fence, has passed the heavy barrier: its mark, or its having taken it back, is seen by
//! that writer and by all later ones, who come after it by the mutex; who looks after that barrier sees
//! FENCED (or WRITER), until it is taken away. Out: the exchange fails if a writer came first. If the exchange comes
//! first, the writer reads a word without FENCED in its own step, and pays. A reader that still sees FENCED
//! then fences for nothing. A thread takes FENCED away after 128 (`FENCES`) fenced sections since the last write: by
//! then it has spent about what one heavy barrier costs, so that both together never cost much more than twice what
//! the better one alone would have.
//!
//! *Order.* What a reader did comes before the next section: it takes its mark back with a release, the
//! writer's look acquires. What a writer did comes before the next reader: it takes WRITER away with a release
//! (the exchange that takes FENCED away is part of its release sequence), readers look with an acquire; those that
//! slept, by the mutex. A line that another thread takes over is found empty by an acquire, or a writer that sees the
//! new owner gone would not have seen what the old one did.
//!
//! *Who waits how long.* A writer waits for those who asked before it, then for the readers inside; new ones do not
//! come in. A reader that met a writer looks for some microseconds whether it goes, then sleeps; after that at most
//! 128 (`PASSES`) more writers go in, then all readers that sleep do, before the next writer is announced. So
//! nobody starves, and a burst of writes is not held up at each step by threads that are only just waking. Writers sleep
//! rather than spin, because a reader inside may not be running.
//!
//! *Again.* A thread that is inside as a reader may come in again, and never waits then: the writer that is announced
//! waits for it anyway. It counts its guards in its mark. A reader may not become the writer, nor the writer
//! read through the semaphore: it would wait for itself (debug builds assert the first).
//!
//! *Guests.* A thread without a number ([`lane`]), and one whose line is still marked by the number's last owner (a
//! guard kept in a thread-local outlives the number), is on a list under the queue's mutex. A line has one
//! thread that stores to it at a time: it is taken only while it is 0, and given back by storing 0. A guard that is forgotten
//! keeps writers out for ever, also after its thread's end; readers go on.
//!
//! *Marks and guests of one thread.* It may have both, and give them back in any order: it became a guest because the
//! mark was full or the line another one's, and the line is free again; or it gave its number back while it was inside.
//! The writer looks at each line once, then at the list. So while a writer is announced nothing may move
//! from the list to a line, and nothing does: who finds WRITER and is a guest takes the mark back, as
//! anybody does, and goes in as a guest again. The other way is safe: who is inside by a mark is in a line that the
//! writer has not passed, and is on the list, under its mutex, before that mark goes. All in all, what lets a thread
//! in is either made where no writer is announced (then it is seen: by the barriers, or by the mutex), or is added to a
//! mark or a guest that was there and that the writer has not passed: to that same one, or from a mark to the list.
//! A thread without a number finds its mark by a look at all lines, before it would sleep.
//!
//! *Why not rseq(2)*, lines per processor: a section would have to be taken and given back on the same processor, or
//! counted apart in both, and each step be a restartable sequence in assembly for each architecture. It saves lines (one for
//! each processor, not for each thread) and no barrier: membarrier(2) is needed against the store buffer either way.
//!
//! A read section costs a thread-local, a few loads, two stores and two light barriers, some ten nanoseconds more in the
//! fenced mode. A write: three short mutexes, one load for each thread that ever ran at the same time, and
//! the barrier; where somebody sleeps, two switches of threads. Not for a forked child or a signal handler.

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
use crate::lane::{self, LANES, Seat};
use crate::primitives::{AtomicU64, Condvar, Mutex, MutexGuard};
use crate::slot;
use readers::Way;

/// In `state`: a writer is announced, or in. Readers stay out.
const WRITER: u64 = 1;
/// In `state`: readers fence for themselves, so that a writer need not do it for them.
const FENCED: u64 = 2;
/// In `state`: the writer sleeps, until a reader has gone in or out.
const SLEEPS: u64 = 4;
/// In `state`: one write section; the rest of the word counts them.
const SECTION: u64 = 8;

/// In a thread's mark: how many of its guards it stands for.
const DEPTH: u64 = 63;

/// Fenced sections of one thread after the last write, before it goes back to the light barrier: about what the
/// next writer's heavy barrier will cost.
const FENCES: u64 = if cfg!(loom) { 2 } else { 128 };

/// Writers that may pass readers that sleep, before they have to let them in.
const PASSES: u32 = if cfg!(loom) { 1 } else { 128 };

slot! {
/// A thread's line in one semaphore; only its thread stores to it.
#[derive(Debug)]
#[repr(C, align(128))]
struct Line {
    /// 0, or [`Seat::me`] of the thread that is inside, and the number of its guards.
    inside: AtomicU64,
    /// `state` at the last fenced section, and how many there were of it.
    seen: AtomicU64,
    fenced: AtomicU64,
}
}

/// What has happened so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Write sections.
    pub writes: u64,
    /// Those that paid a heavy barrier.
    pub barriers: u64,
    /// Times that a reader slept because of a writer.
    pub readers_slept: u64,
    /// Times that a writer slept because of a reader that was inside, or had to be let in first.
    pub writers_slept: u64,
    /// membarrier(2) is refused: each read section fences.
    pub fallback: bool,
}

/// What those hold who sleep, and those who wake them.
#[derive(Debug, Default)]
struct Queue {
    /// Readers that sleep until no writer is announced.
    waiting: u32,
    /// Writers that were announced since the first of them began to wait.
    passed: u32,
    /// Threads that are inside without a mark, and how many guards each of them has.
    /// A count that no number of forgotten guards brings round: at 0 the writer would go in.
    guests: Vec<(u64, u64)>,
    counters: Counters,
}

impl Queue {
    fn has_guest(&self, me: u64) -> bool {
        self.guests.iter().any(|guest| guest.0 == me)
    }
}

/// What every reader loads; stored to by writers, and by the reader that ends the fenced mode.
#[derive(Debug)]
struct Shared {
    state: AtomicU64,
    lines: Arena<Line>,
    /// Always 0.
    nowhere: AtomicU64,
}

/// The semaphore without what it protects.
#[derive(Debug)]
struct Core {
    shared: CachePadded<Shared>,
    /// The writers' queue, first in, first out; held for the whole section.
    turn: Mutex<()>,
    queue: Mutex<Queue>,
    /// No writer is announced.
    opened: Condvar,
    /// A reader has gone in or out that the writer may wait for.
    moved: Condvar,
    /// What a write that pays the heavy barrier sets in `state`: FENCED, or 0.
    mode: u64,
}

/// A value that many read and few change. See the module's head for who waits for whom.
#[derive(Debug)]
pub struct PerCpuRwSem<T: ?Sized> {
    core: Core,
    value: UnsafeCell<T>,
}

// SAFETY: the value goes to another thread with the semaphore, and nothing else is tied to one.
unsafe impl<T: ?Sized + Send> Send for PerCpuRwSem<T> {}
// SAFETY: readers in several threads share the value (Sync), writers have it for themselves (Send).
unsafe impl<T: ?Sized + Send + Sync> Sync for PerCpuRwSem<T> {}

impl<T> PerCpuRwSem<T> {
    /// Around a value. Reserves address space for a line of each thread that may come; a page of it is
    /// there once one of its 32 threads reads.
    ///
    /// # Errors
    /// ENOMEM.
    pub fn new(value: T) -> io::Result<Self> {
        Self::with(value, FENCED)
    }

    /// As [`PerCpuRwSem::new`], but without the fenced mode: each write pays a heavy barrier, and no reader ever
    /// fences for itself.
    ///
    /// # Errors
    /// ENOMEM.
    pub fn unbatched(value: T) -> io::Result<Self> {
        Self::with(value, 0)
    }

    fn with(value: T, mode: u64) -> io::Result<Self> {
        barrier::prepare();
        let lines = Arena::reserve(LANES)?;
        // Nobody marks another one's line.
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

    /// The value, when it is nobody else's any more.
    pub fn into_inner(self) -> T {
        self.value.into_inner()
    }
}

impl<T: ?Sized> PerCpuRwSem<T> {
    /// Go in as a reader; sleeps while a writer is announced or in, unless this thread is inside already as a
    /// reader. A thread that holds the write guard waits for itself.
    #[inline]
    pub fn read(&self) -> ReadGuard<'_, T> {
        self.read_at(lane::seat())
    }

    #[inline]
    fn read_at(&self, seat: Seat) -> ReadGuard<'_, T> {
        ReadGuard { way: self.core.enter(seat), of: self, _thread: PhantomData }
    }

    /// Go in as the writer: after those who asked before, when the readers are out. A thread that is inside
    /// as a reader waits for itself.
    pub fn write(&self) -> WriteGuard<'_, T> {
        WriteGuard { turn: ManuallyDrop::new(self.core.enter_alone()), of: self }
    }

    /// The value, of a semaphore that nobody else has.
    pub fn get_mut(&mut self) -> &mut T {
        self.value.get_mut()
    }

    /// What has happened so far.
    pub fn counters(&self) -> Counters {
        let counters = self.core.queue.lock().counters;
        Counters { fallback: barrier::fallback(), ..counters }
    }
}

/// A reader is inside until this is dropped. Stays in its thread. One that is forgotten is inside for ever.
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
        // SAFETY: a reader is inside, so no writer is; loom proves it.
        unsafe { &*self.of.value.get() }
    }
}

impl<T: ?Sized> Drop for ReadGuard<'_, T> {
    #[inline]
    fn drop(&mut self) {
        self.of.core.leave(self.way);
    }
}

/// The writer is inside until this is dropped; by a panic too, and the value then stays as it is (nothing is
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
