//! Active references: who is inside a call of an object, counted nowhere, so that readers of one object share no
//! line.
//!
//! An object that may be removed while it is called carries an [`ActiveRef`]: two words. A call begins with
//! [`ActiveRef::get`] and ends when its guard is dropped; a removal says [`ActiveRef::deactivate`] and then
//! [`ActiveRef::drain`], which returns when nobody is inside any more. Each thread has one line of *slots* for
//! all objects of the process; who is inside has the object's *id* in one of them:
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
//! *A call against a removal.* The barriers are a pair: of the two threads one sees what the other one stored. If
//! the call's slot is seen, the removal waits for it, whether it gets in or not. If not, the call's look
//! at the state comes after the removal's store, and it stays out.
//! *The end of a call against who wants to sleep.* The same pair. If the scan sees the slot empty, nobody sleeps for it.
//! If not, the call's second look comes after the store of DRAINING; it wakes, after it has emptied the slot;
//! and the sleeper looks at the slot once more under the lock of the queue that the waker takes. Either the waker
//! comes first, and the slot is empty; or the sleeper, and it is found.
//! *Order.* Every store to a slot is a release, also the one that fills it again for another object; the scan's loads
//! acquire: what was done inside happens before `drain` returns. `activate` releases, `get` acquires: who is in sees
//! the object as it was filled.
//! *Ids* are never used again. (An address would be: a guard that is forgotten leaves in its slot what it has there,
//! and the next object at that address would be taken for the old one.) An object gets its id at its first
//! `activate`; who finds none came before that, and stays out. A slot belongs to its guard until that has emptied it.
//! A guard that outlives its thread's number (one kept in a thread-local) goes on being seen, and the number's next
//! owner takes other slots.
//!
//! A thread without a number, and one that is inside [`SLOTS`] calls, counts itself in the object's own word with
//! read-modify-writes, where no barrier is needed. A guard that is forgotten is inside its object for ever: `drain` of
//! that one does not return; and its slot is lost, until the threads with that number have none left and count. A
//! call that panics ends like any other.
//! `get` and the drop cost a thread-local, two or three loads, a store and a light barrier each. `drain` costs a
//! heavy barrier and a look at each thread's line; the first `activate` a read-modify-write of a word that all objects
//! share. Not for a forked child or a signal handler.

#[cfg(all(test, loom))]
mod loom_tests;
#[cfg(all(test, not(loom)))]
mod tests;

use std::cell::Cell;
use std::marker::PhantomData;

use crate::barrier;
use crate::lane::{self, LANES};
use crate::primitives::{AtomicU64, Ordering, parking, spin_loop};

/// Calls that a thread may be inside of at one time at no more than their usual cost.
pub const SLOTS: usize = if cfg!(loom) { 2 } else { 16 };

/// Calls may begin.
const ACTIVE: u64 = 1;
/// None will begin any more.
const DEAD: u64 = 2;
/// Who ends a call wakes.
const DRAINING: u64 = 4;
/// One call of a thread that has no slot for it.
const ONE: u64 = 8;

/// In a slot beside the id: the call is not waited for.
const BROKEN: u64 = 1;
/// From one id to the next.
const STEP: u64 = 2;

/// A slot of no thread.
const NOWHERE: usize = usize::MAX;

/// Looks at a slot before who drains goes to sleep.
const SPINS: u32 = if cfg!(loom) { 0 } else { 64 };

/// What a thread is inside of.
#[derive(Debug)]
#[repr(align(128))]
struct Line {
    slots: [AtomicU64; SLOTS],
}

/// In the program's zeroed memory: a page is there once one of its threads calls something.
#[cfg(not(loom))]
static LINES: [Line; LANES as usize] =
    [const { Line { slots: [const { AtomicU64::new(0) }; SLOTS] } }; LANES as usize];
#[cfg(loom)]
loom::lazy_static! {
    static ref LINES: [Line; LANES as usize] =
        std::array::from_fn(|_| Line { slots: std::array::from_fn(|_| AtomicU64::new(0)) });
}

/// The last id that was given.
#[cfg(not(loom))]
static IDS: AtomicU64 = AtomicU64::new(0);
#[cfg(loom)]
loom::lazy_static! {
    static ref IDS: AtomicU64 = AtomicU64::new(0);
}

/// Whether an object may be called, and the way to wait until it is not.
#[derive(Debug)]
pub struct ActiveRef {
    /// ACTIVE, DEAD, DRAINING, and the calls that have no slot.
    state: AtomicU64,
    /// What stands for the object in a slot; 0 until it is first activated, then it stays.
    id: AtomicU64,
}

impl Default for ActiveRef {
    fn default() -> Self {
        Self::new()
    }
}

impl ActiveRef {
    /// Hidden: nobody gets in until [`ActiveRef::activate`].
    #[cfg(not(loom))]
    pub const fn new() -> Self {
        Self { state: AtomicU64::new(0), id: AtomicU64::new(0) }
    }

    /// Hidden: nobody gets in until [`ActiveRef::activate`].
    #[cfg(loom)]
    pub fn new() -> Self {
        Self { state: AtomicU64::new(0), id: AtomicU64::new(0) }
    }

    /// From now on calls may begin. False, and nothing happens, after a [`ActiveRef::deactivate`].
    pub fn activate(&self) -> bool {
        if self.id() == 0 {
            let new = IDS.fetch_add(STEP, Ordering::Relaxed) + STEP;
            // Relaxed: nobody gets in before the step below. If another one was first, its id counts.
            let _ = self.id.compare_exchange(0, new, Ordering::Relaxed, Ordering::Relaxed);
        }
        // Release: who gets in sees the object as it was filled.
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

    /// Begin a call. None: the object is hidden, or deactivated. Never waits; a thread may be inside any number
    /// of calls, of this object too.
    #[inline]
    pub fn get(&self) -> Option<Active<'_>> {
        self.get_at(lane::seat().lane)
    }

    #[inline]
    fn get_at(&self, lane: u32) -> Option<Active<'_>> {
        let id = self.id();
        if lane < LANES && id != 0 {
            let line = &LINES[lane as usize];
            // Only this thread fills one. Acquire: a guard of the number's last owner may have emptied it, and
            // who sees what we store must see what that one did.
            if let Some(at) = line.slots.iter().position(|slot| slot.load(Ordering::Acquire) == 0) {
                let slot = &line.slots[at];
                slot.store(id, Ordering::Release);
                // Between saying that we are inside and looking whether we may be: paired with `drain`'s.
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

    /// Begin a call that has no slot. (Nor has one that found no id, but it will stay out.)
    #[cold]
    fn get_counted(&self) -> Option<Active<'_>> {
        let may = |state| (state & (ACTIVE | DEAD) == ACTIVE).then_some(state + ONE);
        self.state.fetch_update(Ordering::Acquire, Ordering::Relaxed, may).ok()?;
        Some(Active::new(self, LANES, NOWHERE))
    }

    /// From now on no call begins. True for the one who did it.
    pub fn deactivate(&self) -> bool {
        self.state.fetch_or(DEAD, Ordering::AcqRel) & DEAD == 0
    }

    /// Wait until nobody is inside; after [`ActiveRef::deactivate`] nobody is from then on. Calls that are
    /// [broken](Active::break_protection) are not waited for. Any number of threads may; one that is inside
    /// itself would wait for ever.
    pub fn drain(&self) {
        let old = self.state.fetch_or(DRAINING, Ordering::AcqRel);
        debug_assert_ne!(old & DEAD, 0, "drain of what was not deactivated");
        let id = self.id();
        if id == 0 {
            // Never activated: that would have come before DEAD, and we would see its id, by the acquire above. In
            // the slots 0 says something else.
            return;
        }
        // Paired with those in `get_at` and `gone`: who is not seen in a slot below sees DEAD and DRAINING.
        barrier::heavy();
        for lane in 0..lane::used() {
            for slot in &LINES[lane as usize].slots {
                // Acquire: what was done inside.
                self.sleep_while(|| slot.load(Ordering::Acquire) == id);
            }
        }
        self.sleep_while(|| self.state.load(Ordering::Acquire) >= ONE);
    }

    /// Until who ends a call has made `inside` false, and has called `wake`.
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

    /// The slot does not say any more that this thread is inside: it may be what somebody waits for.
    #[inline]
    fn gone(&self) {
        // Between emptying the slot and looking for who sleeps: paired with `drain`'s.
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
    /// Slots are their thread's.
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

    /// From now on [`ActiveRef::drain`] does not wait for this call: so it may drain (remove) the object
    /// itself. It may not rely on the object's being there.
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

    /// As the beginning of a call.
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
        // Release: `drain` acquires it. One word: either it sees this, or we see DRAINING.
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
