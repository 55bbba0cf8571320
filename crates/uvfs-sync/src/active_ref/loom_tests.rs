//! Models of active references. Thread numbers are given: loom's threads have none. A lost wake-up is a
//! deadlock, which loom reports.

use super::*;
use crate::primitives::{Arc, Condvar, Mutex};
use loom::cell::UnsafeCell;
use loom::thread::{JoinHandle, spawn};

/// Run under both models of the barriers.
fn model(preemptions: usize, f: impl Fn() + Send + Sync + Copy + 'static) {
    for meetings in [false, true] {
        barrier::set_meetings(meetings);
        let mut model = loom::model::Builder::new();
        model.preemption_bound = Some(preemptions);
        model.check(f);
    }
}

/// The object that is called: loom checks that no thread is inside when the removal takes it away.
struct Object {
    active: ActiveRef,
    value: UnsafeCell<u32>,
}
// SAFETY: touched only as the active references allow; the tests prove that.
unsafe impl Sync for Object {}
// SAFETY: as above.
unsafe impl Send for Object {}

const FILLED: u32 = 5;

impl Object {
    fn hidden() -> Arc<Self> {
        Arc::new(Self { active: ActiveRef::new(), value: UnsafeCell::new(FILLED) })
    }

    fn new() -> Arc<Self> {
        let object = Self::hidden();
        assert!(object.active.activate());
        object
    }

    fn call(&self, lane: u32) -> bool {
        let Some(_call) = self.active.get_at(lane) else { return false };
        self.look();
        true
    }

    fn look(&self) {
        // SAFETY: loom checks that nobody writes meanwhile.
        self.value.with(|v| unsafe { assert_eq!(*v, FILLED) });
    }

    fn remove(&self) {
        assert!(self.active.deactivate());
        self.active.drain();
        self.take_away();
    }

    fn take_away(&self) {
        // SAFETY: loom checks that nobody else is here.
        self.value.with_mut(|v| unsafe { *v = 0 });
    }
}

fn calls(object: &Arc<Object>, lane: u32) -> JoinHandle<()> {
    let object = object.clone();
    spawn(move || {
        object.call(lane);
    })
}

/// Two calls and a removal: no thread is inside after drain, and a sleeper is woken. Planted bugs:
/// active-get-without-light, active-drain-without-heavy, active-drain-fences-only,
/// active-get-ignores-death, active-end-relaxed, active-scan-relaxed, active-end-without-light,
/// active-end-wakes-nobody, active-a-call-that-stays-out-wakes-nobody, active-drain-sees-one-line.
#[test]
fn loom_active_nobody_is_inside_after_drain() {
    model(3, || {
        let object = Object::new();
        let callers = [calls(&object, 0), calls(&object, 1)];
        object.remove();
        callers.into_iter().for_each(|c| c.join().unwrap());
        assert!(!object.call(0));
    });
}

/// One call, more interleavings, of a thread that is inside another call: a further slot. Planted bugs:
/// active-drain-sees-one-slot, active-sleeps-without-a-look.
#[test]
fn loom_active_a_call_inside_a_call_is_waited_for() {
    model(3, || {
        let (outer, object) = (Object::new(), Object::new());
        let caller = {
            let (outer, object) = (outer.clone(), object.clone());
            spawn(move || {
                let outer = outer.active.get_at(0);
                assert!(outer.is_some());
                object.call(0);
            })
        };
        object.remove();
        caller.join().unwrap();
        outer.remove();
    });
}

/// Calls that have no slot. Planted bugs: active-drain-forgets-the-counted,
/// active-counted-end-wakes-nobody, active-counted-ignores-death, active-counted-end-relaxed.
#[test]
fn loom_active_a_call_without_a_slot_is_waited_for() {
    model(3, || {
        let object = Object::new();
        let caller = calls(&object, LANES);
        object.remove();
        caller.join().unwrap();
        assert!(!object.call(LANES));
    });
}

/// The slot is filled again, for another object, before the removal looks at it. Planted bug:
/// active-refill-relaxed.
#[test]
fn loom_active_a_slot_that_is_used_again_releases_too() {
    model(3, || {
        let (first, second) = (Object::new(), Object::new());
        let caller = {
            let (first, second) = (first.clone(), second.clone());
            spawn(move || {
                first.call(0);
                second.call(0);
            })
        };
        first.remove();
        caller.join().unwrap();
    });
}

/// A guard that outlives its thread's number empties its slot, and the number's next owner fills it again.
/// Planted bug: active-take-over-relaxed.
#[test]
fn loom_active_a_slot_changes_hands() {
    model(3, || {
        let (first, second) = (Object::new(), Object::new());
        let kept = first.active.get_at(0);
        let next = calls(&second, 0);
        let remover = {
            let first = first.clone();
            spawn(move || first.remove())
        };
        first.look();
        drop(kept);
        remover.join().unwrap();
        next.join().unwrap();
    });
}

/// Two removals drain the same object, and both wait. Planted bug: active-drain-is-deactivate.
#[test]
fn loom_active_all_drains_wait() {
    model(3, || {
        let object = Object::new();
        let caller = calls(&object, 0);
        let other = {
            let object = object.clone();
            spawn(move || {
                object.active.deactivate();
                object.active.drain();
                // No call is inside for us either; the other thread may be taking the object away.
            })
        };
        object.active.deactivate();
        object.active.drain();
        object.take_away();
        caller.join().unwrap();
        other.join().unwrap();
    });
}

/// A call that has broken its protection may wait for the removal. Planted bug: active-break-wakes-nobody.
#[test]
fn loom_active_a_broken_call_may_wait_for_the_drain() {
    for lane in [0, LANES] {
        model(3, move || {
            let object = Object::new();
            let drained = Arc::new((Mutex::new(false), Condvar::new()));
            let caller = {
                let (object, drained) = (object.clone(), drained.clone());
                spawn(move || {
                    let Some(call) = object.active.get_at(lane) else { return };
                    object.look();
                    call.break_protection();
                    let mut over = drained.0.lock();
                    while !*over {
                        over = drained.1.wait(over);
                    }
                })
            };
            object.remove();
            *drained.0.lock() = true;
            drained.1.notify_all();
            caller.join().unwrap();
        });
    }
}

/// A call that breaks its protection is not waited for, can remove the object itself, and comes back only
/// while it is active. Planted bugs: active-break-keeps-the-slot, active-unbreak-does-not-look,
/// active-unbreak-without-light.
#[test]
fn loom_active_a_broken_call_is_not_waited_for() {
    for lane in [0, LANES] {
        model(3, move || {
            let object = Object::new();
            let caller = {
                let object = object.clone();
                spawn(move || {
                    let Some(call) = object.active.get_at(lane) else { return };
                    object.look();
                    call.break_protection();
                    if call.unbreak() {
                        object.look();
                        call.break_protection();
                    }
                    // The steps of its own removal.
                    object.active.deactivate();
                    object.active.drain();
                })
            };
            object.active.deactivate();
            object.active.drain();
            object.take_away();
            caller.join().unwrap();
        });
    }
}

/// Two threads activate, and the removal waits for a call that got in by either one's step: there is one
/// id. Planted bug: active-two-ids.
#[test]
fn loom_active_two_activations_agree_on_the_id() {
    model(2, || {
        let object = Object::hidden();
        let other = {
            let object = object.clone();
            spawn(move || {
                object.active.activate();
                object.call(0);
            })
        };
        assert!(object.active.activate());
        object.remove();
        other.join().unwrap();
    });
}

/// A thread that is in sees the object as it was filled. Planted bugs: active-activate-relaxed,
/// active-look-relaxed, active-counted-look-relaxed.
#[test]
fn loom_active_a_call_sees_the_object_filled() {
    for lane in [0, LANES] {
        model(3, move || {
            let object = Object::hidden();
            let caller = calls(&object, lane);
            // SAFETY: loom checks that nobody else is here.
            object.value.with_mut(|v| unsafe { *v = FILLED });
            assert!(object.active.activate());
            caller.join().unwrap();
        });
    }
}
