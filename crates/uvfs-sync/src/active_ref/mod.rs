//! Active references: they tell whether a thread is inside a call of an object. They are counted nowhere,
//! so readers of one object share no line.
//!
//! An object that may be removed while it is called carries an [`ActiveRef`]: two words. A call begins with
//! [`ActiveRef::get`] and ends when its guard is dropped. A removal calls [`ActiveRef::deactivate`] and
//! then [`ActiveRef::drain`], which returns when no thread is inside any more. Each thread has one line of
//! *slots* for all objects of the process; a thread that is inside a call has the object's *id* in one of
//! them:
//!
//! ```text
//! get                                     drain
//! slot = id                               state |= DEAD | DRAINING
//! light barrier                           heavy barrier
//! state is ACTIVE ? in : slot = 0, out    for each slot of each thread: while it is the id, sleep
//!
//! drop of the guard
//! slot = 0                                (the same)
//! light barrier
//! state says DRAINING ? wake
//! ```
//!
//! *A call against a removal.* The barriers are a pair: one of the two threads sees what the other stored.
//! If the removal sees the call's slot, it waits for the call, whether the call gets in or not. If not, the
//! call's look at the state comes after the removal's store, and the call stays out.
//!
//! *The end of a call against a removal that wants to sleep.* The same pair. If the scan sees the slot
//! empty, the removal does not sleep for it. If not, the call's second look comes after the store of
//! DRAINING, so the call wakes the sleeper after it has emptied the slot. The sleeper looks at the slot
//! once more under the lock of the queue that the waker takes. If the waker comes first, the slot is empty.
//! If the sleeper comes first, the waker finds it.
//!
//! *Order.* Every store to a slot is a release, also a store that fills it again for another object; the
//! scan's loads acquire. So what was done inside happens before `drain` returns. `activate` releases and
//! `get` acquires: a thread that is in sees the object as it was filled.
//!
//! *Ids* are never used again. An address would be: a forgotten guard leaves its value in its slot, and the
//! next object at that address would be taken for the old one. An object gets its id at its first
//! `activate`; a call that finds none came before that, and stays out. A slot belongs to its guard until
//! the guard has emptied it. A guard that outlives its thread's number (one kept in a thread-local) is
//! still seen, and the number's next owner takes other slots.
//!
//! A thread without a number, or one inside [`SLOTS`] calls already, counts itself in the object's own word
//! with read-modify-writes, which need no barrier. A forgotten guard is inside its object for ever: `drain`
//! of that object does not return. Its slot is lost too, until the threads with that number have none left
//! and count instead. A call that panics ends like any other.
//!
//! `get` and the drop cost a thread-local, two or three loads, a store and a light barrier each. `drain`
//! costs a heavy barrier and a look at each thread's line; the first `activate` a read-modify-write of a
//! word that all objects share. Not for a forked child or a signal handler.

#[cfg(all(test, loom))]
mod loom_tests;
#[cfg(all(test, not(loom)))]
mod tests;

use std::cell::Cell;
use std::marker::PhantomData;

use crate::barrier;
use crate::primitives::{AtomicU64, Ordering, parking, spin_loop};
use crate::thread_number::{self, LANES};

/// Calls that a thread may be inside of at one time at the usual cost.
pub const SLOTS: usize = if cfg!(loom) { 2 } else { 16 };

/// Calls may begin.
const ACTIVE: u64 = 1;
/// No call will begin any more.
const DEAD: u64 = 2;
/// A thread that ends a call wakes sleepers.
const DRAINING: u64 = 4;
/// One call of a thread that has no slot for it.
const ONE: u64 = 8;

/// In a slot beside the id: the call is not waited for.
const BROKEN: u64 = 1;
/// From one id to the next.
const STEP: u64 = 2;

/// A slot of no thread.
const NOWHERE: usize = usize::MAX;

/// Looks at a slot before a draining thread goes to sleep.
const SPINS: u32 = if cfg!(loom) { 0 } else { 64 };

/// The calls that a thread is inside of.
#[derive(Debug)]
#[repr(align(128))]
struct Line {
    slots: [AtomicU64; SLOTS],
}

/// In the program's zeroed memory: a page is committed once one of its threads calls something.
#[cfg(not(loom))]
static LINES: [Line; LANES as usize] =
    [const { Line { slots: [const { AtomicU64::new(0) }; SLOTS] } }; LANES as usize];
#[cfg(loom)]
loom::lazy_static! {
    static ref LINES: [Line; LANES as usize] =
        std::array::from_fn(|_| Line { slots: std::array::from_fn(|_| AtomicU64::new(0)) });
}

/// The last id that was issued.
#[cfg(not(loom))]
static IDS: AtomicU64 = AtomicU64::new(0);
#[cfg(loom)]
loom::lazy_static! {
    static ref IDS: AtomicU64 = AtomicU64::new(0);
}

/// Whether an object may be called, and the means to wait until no call is left.
#[derive(Debug)]
pub struct ActiveRef {
    /// ACTIVE, DEAD, DRAINING, and the calls that have no slot.
    state: AtomicU64,
    /// The object's id in slots; 0 until it is first activated, then constant.
    id: AtomicU64,
}

impl Default for ActiveRef {
    fn default() -> Self {
        Self::new()
    }
}

impl ActiveRef {
    /// Hidden: no call gets in until [`ActiveRef::activate`].
    #[cfg(not(loom))]
    pub const fn new() -> Self {
        Self { state: AtomicU64::new(0), id: AtomicU64::new(0) }
    }

    /// Hidden: no call gets in until [`ActiveRef::activate`].
    #[cfg(loom)]
    pub fn new() -> Self {
        Self { state: AtomicU64::new(0), id: AtomicU64::new(0) }
    }

    /// From now on calls may begin. False, and nothing happens, after a [`ActiveRef::deactivate`].
    pub fn activate(&self) -> bool {
        if self.id() == 0 {
            let new = IDS.fetch_add(STEP, Ordering::Relaxed) + STEP;
            // Relaxed: no call gets in before the step below. If another thread was first, its id counts.
            let _ = self.id.compare_exchange(0, new, Ordering::Relaxed, Ordering::Relaxed);
        }
        // Release: a thread that gets in sees the object as it was filled.
        let may = |state| (state & DEAD == 0).then_some(state | ACTIVE);
        self.state.fetch_update(Ordering::Release, Ordering::Relaxed, may).is_ok()
    }

    /// Whether calls may begin; it may change at once.
    #[inline]
    pub fn is_active(&self) -> bool {
        self.state.load(Ordering::Acquire) & (ACTIVE | DEAD) == ACTIVE
    }

    /// Whether [`ActiveRef::deactivate`] was called.
    pub fn is_dead(&self) -> bool {
        self.state.load(Ordering::Relaxed) & DEAD != 0
    }

    /// Begin a call. None: the object is hidden, or deactivated. Never waits; a thread may be inside any
    /// number of calls, of this object too.
    #[inline]
    pub fn get(&self) -> Option<Active<'_>> {
        self.get_at(thread_number::seat().lane)
    }

    #[inline]
    fn get_at(&self, lane: u32) -> Option<Active<'_>> {
        let id = self.id();
        if lane < LANES && id != 0 {
            let line = &LINES[lane as usize];
            // Only this thread fills a slot. Acquire: a guard of the number's last owner may have emptied
            // it, and a thread that sees our store must see what that guard's call did.
            if let Some(at) = line.slots.iter().position(|slot| slot.load(Ordering::Acquire) == 0) {
                let slot = &line.slots[at];
                slot.store(id, Ordering::Release);
                // Between storing the id and looking whether we may be inside: paired with `drain`'s.
                barrier::light();
                let state = self.state.load(Ordering::Acquire);
                if state & (ACTIVE | DEAD) == ACTIVE {
                    return Some(Active::new(self, lane, at));
                }
                slot.store(0, Ordering::Release);
                self.gone();
                return None;
            }
        }
        self.get_counted()
    }

    /// Begin a call that has no slot. (A call that found no id has none either, but it will stay out.)
    #[cold]
    fn get_counted(&self) -> Option<Active<'_>> {
        let may = |state| (state & (ACTIVE | DEAD) == ACTIVE).then_some(state + ONE);
        self.state.fetch_update(Ordering::Acquire, Ordering::Relaxed, may).ok()?;
        Some(Active::new(self, LANES, NOWHERE))
    }

    /// From now on no call begins. True for the one caller that did it.
    pub fn deactivate(&self) -> bool {
        self.state.fetch_or(DEAD, Ordering::AcqRel) & DEAD == 0
    }

    /// Wait until no thread is inside; after [`ActiveRef::deactivate`] that remains so.
    /// [Broken](Active::break_protection) calls are not waited for. Any number of threads may drain; a
    /// thread that is inside itself would wait for ever.
    pub fn drain(&self) {
        let old = self.state.fetch_or(DRAINING, Ordering::AcqRel);
        debug_assert_ne!(old & DEAD, 0, "drain of an object that was not deactivated");
        let id = self.id();
        if id == 0 {
            // Never activated: an activation would have come before DEAD, and we would see its id, by the
            // acquire above. In the slots 0 has another meaning.
            return;
        }
        // Paired with those in `get_at` and `gone`: a thread that is not seen in a slot below sees DEAD and
        // DRAINING.
        barrier::heavy();
        for lane in 0..thread_number::used() {
            for slot in &LINES[lane as usize].slots {
                // Acquire: what was done inside.
                self.sleep_while(|| slot.load(Ordering::Acquire) == id);
            }
        }
        self.sleep_while(|| self.state.load(Ordering::Acquire) >= ONE);
    }

    /// Sleep until a thread that ends a call has made `inside` false, and has called `wake`.
    fn sleep_while(&self, inside: impl Fn() -> bool) {
        for _ in 0..SPINS {
            if !inside() {
                return;
            }
            spin_loop();
        }
        while inside() {
            parking::park(self.key(), &inside);
        }
    }

    /// The slot no longer says that this thread is inside: a removal may be waiting for that.
    #[inline]
    fn gone(&self) {
        // Between emptying the slot and looking for sleepers: paired with `drain`'s.
        barrier::light();
        if self.state.load(Ordering::Relaxed) & DRAINING != 0 {
            self.wake();
        }
    }

    #[cold]
    fn wake(&self) {
        parking::unpark_all(self.key());
    }

    fn key(&self) -> usize {
        std::ptr::from_ref(self).addr()
    }

    #[inline]
    fn id(&self) -> u64 {
        self.id.load(Ordering::Relaxed)
    }
}

/// This thread is inside a call. Stays in its thread.
#[derive(Debug)]
pub struct Active<'a> {
    of: &'a ActiveRef,
    lane: u32,
    /// [`NOWHERE`]: counted in the object.
    at: usize,
    broken: Cell<bool>,
    /// Slots belong to their thread.
    _thread: PhantomData<*mut ()>,
}

impl<'a> Active<'a> {
    #[inline]
    fn new(of: &'a ActiveRef, lane: u32, at: usize) -> Self {
        Self { of, lane, at, broken: Cell::new(false), _thread: PhantomData }
    }

    #[inline]
    fn slot(&self) -> Option<&'static AtomicU64> {
        (self.at != NOWHERE).then(|| &LINES[self.lane as usize].slots[self.at])
    }

    /// From now on [`ActiveRef::drain`] does not wait for this call, so the call may drain (remove) the
    /// object itself. It may not rely on the object's presence.
    pub fn break_protection(&self) {
        if !self.broken.replace(true) {
            match self.slot() {
                Some(slot) => {
                    slot.store(self.of.id() | BROKEN, Ordering::Release);
                    self.of.gone();
                }
                None => self.leave_counted(),
            }
        }
    }

    /// Be waited for again. False: the object was deactivated meanwhile, and the call remains broken.
    pub fn unbreak(&self) -> bool {
        if !self.broken.get() {
            return true;
        }
        let back = match self.slot() {
            Some(slot) => self.back_in(slot),
            None => self.back_counted(),
        };
        self.broken.set(!back);
        back
    }

    /// As at the beginning of a call.
    fn back_in(&self, slot: &AtomicU64) -> bool {
        slot.store(self.of.id(), Ordering::Release);
        barrier::light();
        let back = self.of.is_active();
        if !back {
            slot.store(self.of.id() | BROKEN, Ordering::Release);
            self.of.gone();
        }
        back
    }

    fn back_counted(&self) -> bool {
        let again = self.of.get_counted();
        // Its count is ours now.
        again.map(std::mem::forget).is_some()
    }

    #[cold]
    fn leave_counted(&self) {
        // Release: `drain` acquires it. One word: either `drain` sees this, or we see DRAINING.
        if self.of.state.fetch_sub(ONE, Ordering::Release) & DRAINING != 0 {
            self.of.wake();
        }
    }
}

impl Drop for Active<'_> {
    #[inline]
    fn drop(&mut self) {
        match self.slot() {
            Some(slot) => {
                // Release: `drain` acquires it.
                slot.store(0, Ordering::Release);
                self.of.gone();
            }
            None if !self.broken.get() => self.leave_counted(),
            None => {}
        }
    }
}
