//! Tests with real threads. `loom_tests` covers the interleavings.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use super::*;
use crate::primitives::Arc;

/// Long enough for a thread that can continue to do so; the test asserts that it does not.
const MEANWHILE: Duration = Duration::from_millis(30);

fn active() -> Arc<ActiveRef> {
    let active = Arc::new(ActiveRef::new());
    assert!(active.activate());
    active
}

fn drainer(active: &Arc<ActiveRef>) -> (thread::JoinHandle<()>, mpsc::Receiver<()>) {
    let (done, drained) = mpsc::channel();
    let active = active.clone();
    let thread = thread::spawn(move || {
        active.drain();
        let _ = done.send(());
    });
    (thread, drained)
}

#[test]
fn nobody_gets_in_before_it_is_active_or_after() {
    let active = ActiveRef::new();
    assert!(active.get().is_none() && !active.is_active());
    assert!(active.activate() && active.is_active());
    assert!(active.get().is_some());
    assert!(active.deactivate() && !active.deactivate() && active.is_dead());
    assert!(active.get().is_none() && !active.is_active());
    active.drain();
    assert!(!active.activate());
    assert!(active.get().is_none());
}

#[test]
fn drain_waits_for_each_call_however_it_is_counted() {
    // One call in a slot, the last of more calls than there are slots, one of a thread without a number.
    for pick in 0..3 {
        let active = active();
        let mut calls: Vec<_> = (0..=SLOTS).map(|_| active.get().unwrap()).collect();
        calls.push(active.get_at(LANES).unwrap());
        let last = calls.swap_remove([0, SLOTS, SLOTS + 1][pick]);
        assert!(active.deactivate());
        let (thread, drained) = drainer(&active);
        drop(calls);
        assert!(drained.recv_timeout(MEANWHILE).is_err());
        assert!(last.of.get().is_none());
        drop(last);
        thread.join().unwrap();
    }
}

#[test]
fn drain_does_not_wait_for_an_object_that_was_never_active() {
    let active = ActiveRef::new();
    // There is a line, with empty slots.
    assert!(active.get().is_none());
    assert!(active.deactivate());
    active.drain();
}

#[test]
fn a_guard_that_is_forgotten_is_not_inside_the_next_object_at_its_address() {
    // A thread of its own, because its slot is lost.
    let place = thread::spawn(|| {
        let mut place = active();
        std::mem::forget(place.get());
        *Arc::get_mut(&mut place).unwrap() = ActiveRef::new();
        assert!(place.activate());
        place
    });
    let place = place.join().unwrap();
    let call = place.get().unwrap();
    assert!(place.deactivate());
    let (thread, drained) = drainer(&place);
    assert!(drained.recv_timeout(MEANWHILE).is_err());
    drop(call);
    thread.join().unwrap();
}

#[test]
fn a_broken_call_is_not_waited_for() {
    for lane in [thread_number::seat().lane, LANES] {
        let active = active();
        let call = active.get_at(lane).unwrap();
        call.break_protection();
        call.break_protection();
        assert!(call.unbreak() && call.unbreak());
        assert!(active.deactivate());
        let (thread, drained) = drainer(&active);
        assert!(drained.recv_timeout(MEANWHILE).is_err());
        call.break_protection();
        thread.join().unwrap();
        // It may drain the object itself, since it is no longer inside.
        active.drain();
        assert!(!call.unbreak());
        active.drain();
        drop(call);
        assert_eq!(active.state.load(Ordering::Relaxed) / ONE, 0);
    }
}

#[test]
fn calls_never_see_a_drained_object() {
    const OBJECTS: usize = 64;
    struct Object {
        active: ActiveRef,
        alive: AtomicBool,
    }
    let objects: Arc<Vec<_>> = Arc::new(
        (0..OBJECTS).map(|_| Object { active: ActiveRef::new(), alive: AtomicBool::new(true) }).collect(),
    );
    objects.iter().for_each(|o| assert!(o.active.activate()));
    let callers: Vec<_> = (0..4)
        .map(|i| {
            let objects = objects.clone();
            thread::spawn(move || {
                let mut calls = 0u64;
                while objects.iter().any(|o| o.active.is_active()) {
                    for object in objects.iter().skip(i) {
                        let Some(call) = object.active.get() else { continue };
                        calls += 1;
                        assert!(object.alive.load(Ordering::Relaxed));
                        if calls.is_multiple_of(3) {
                            call.break_protection();
                            if call.unbreak() {
                                assert!(object.alive.load(Ordering::Relaxed));
                            }
                        }
                    }
                }
            })
        })
        .collect();
    for object in objects.iter() {
        thread::sleep(Duration::from_micros(200));
        assert!(object.active.deactivate());
        object.active.drain();
        object.alive.store(false, Ordering::Relaxed);
    }
    callers.into_iter().for_each(|c| c.join().unwrap());
}
