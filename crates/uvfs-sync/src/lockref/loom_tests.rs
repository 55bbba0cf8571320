//! Models of a lockref.

use super::*;
use crate::primitives::Arc;
use loom::cell::UnsafeCell;
use loom::thread::spawn;

fn model(preemptions: usize, f: impl Fn() + Send + Sync + 'static) {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(preemptions);
    model.check(f);
}

/// A slot: the word, and the object that it stands for.
struct Slot(LockRef, UnsafeCell<u32>);
// SAFETY: the cell is touched only as the word allows; the tests prove that.
unsafe impl Sync for Slot {}
// SAFETY: as above.
unsafe impl Send for Slot {}

impl Slot {
    fn new() -> Arc<Self> {
        Arc::new(Self(LockRef::new(), UnsafeCell::new(0)))
    }
    fn read(&self) -> u32 {
        // SAFETY: loom checks that nobody writes meanwhile.
        self.1.with(|v| unsafe { *v })
    }
    fn write(&self, value: u32) {
        // SAFETY: loom checks that nobody else is here.
        self.1.with_mut(|v| unsafe { *v = value });
    }
}

/// Of several puts exactly one is the last; a get that expects the generation never succeeds on a dead
/// slot.
fn one_last_put() {
    let r = Arc::new(LockRef::new());
    r.start(7);
    r.get_held();
    let put = {
        let r = r.clone();
        spawn(move || r.put())
    };
    let get = {
        let r = r.clone();
        spawn(move || r.get_generation(7) && r.put())
    };
    let mine = r.put();
    let lasts = [mine, put.join().unwrap(), get.join().unwrap()];
    assert_eq!(lasts.iter().filter(|l| **l).count(), 1);
    assert!(!r.get_generation(7), "resurrected");
}

/// A stale index cannot touch the next owner's count.
fn a_stale_get() {
    let r = Arc::new(LockRef::new());
    r.start(1);
    let stale = {
        let r = r.clone();
        spawn(move || {
            r.get_generation(1).then(|| {
                assert_eq!(r.generation(), 1, "a reference to another generation");
                r.put()
            })
        })
    };
    let last = r.put();
    if last {
        // Recycled: the new owner has exactly one reference, whatever the stale get does.
        r.start(2);
        assert_ne!(stale.join().unwrap(), Some(true));
        assert_eq!(r.count(), 1);
        assert!(r.put());
    } else {
        assert_eq!(stale.join().unwrap(), Some(true));
    }
}

/// Gets and puts beside a lock and unlock: no count is lost, and the lock is free in the end.
fn unlock_loses_no_count() {
    let r = Arc::new(LockRef::new());
    r.start(1);
    r.get_held();
    let other = {
        let r = r.clone();
        spawn(move || {
            r.lock();
            r.unlock();
        })
    };
    r.get_held();
    assert!(!r.put());
    assert!(!r.put());
    other.join().unwrap();
    assert_eq!(r.count(), 1);
    assert!(r.put());
    assert!(r.0.load(Ordering::Relaxed) & bitlock::LOCK == 0);
}

/// The teardown comes after everything that others did with their references.
fn the_last_put_comes_after_all_others() {
    let slot = Slot::new();
    slot.0.start(7);
    slot.0.get_held();
    let other = {
        let slot = slot.clone();
        spawn(move || {
            slot.read();
            if slot.0.put() {
                slot.write(1);
            }
        })
    };
    slot.read();
    if slot.0.put() {
        slot.write(2);
    }
    other.join().unwrap();
}

/// Rule 2. Planted bugs: rule2-get-ignores-death, rule2-two-last-puts.
#[test]
fn loom_rule2_one_last_put_and_no_resurrection() {
    model(3, one_last_put);
}

/// Rule 2. Planted bug: rule2-get-ignores-generation.
#[test]
fn loom_rule2_a_stale_get_on_a_recycled_slot_harms_nobody() {
    model(3, a_stale_get);
}

/// Rule 2. Planted bug: rule2-unlock-is-a-store.
#[test]
fn loom_rule2_unlock_loses_no_count() {
    model(3, unlock_loses_no_count);
}

/// Rule 2. Planted bugs: rule2-put-without-release, rule2-put-without-acquire.
#[test]
fn loom_rule2_the_last_put_comes_after_all_others() {
    model(3, the_last_put_comes_after_all_others);
}

/// Mutual exclusion.
fn the_lock_excludes() {
    let slot = Slot::new();
    slot.0.start(7);
    slot.0.get_held();
    let add = |slot: &Slot| {
        slot.0.lock();
        let was = slot.read();
        slot.write(was + 1);
        slot.0.unlock();
    };
    let other = {
        let slot = slot.clone();
        spawn(move || add(&slot))
    };
    add(&slot);
    other.join().unwrap();
    assert_eq!(slot.read(), 2);
}

/// Rule 2: the lock excludes, beside the counts in the same word.
#[test]
fn loom_rule2_the_lock_excludes() {
    model(2, the_lock_excludes);
}

/// Rule 2: a held lock diverts no get or put. The lock is never released here: a get or put that waited for
/// it would never end. Planted bug: rule2-a-held-lock-diverts.
#[test]
fn loom_rule2_a_held_lock_delays_no_get_and_no_put() {
    model(3, || {
        let r = Arc::new(LockRef::new());
        r.start(7);
        r.lock();
        let other = {
            let r = r.clone();
            spawn(move || {
                assert!(r.get_generation(7));
                r.get_held();
                assert!(!r.put());
                assert!(!r.put());
            })
        };
        other.join().unwrap();
        r.unlock();
        assert!(r.put());
        assert!(!r.get_generation(7));
    });
}

fn a_get_sees_the_slot_filled(get: fn(&LockRef) -> bool) {
    model(3, move || {
        let slot = Slot::new();
        let reader = {
            let slot = slot.clone();
            spawn(move || {
                if get(&slot.0) {
                    assert_eq!(slot.read(), 5);
                }
            })
        };
        slot.write(5);
        slot.0.start(7);
        reader.join().unwrap();
    });
}

/// Rule 16: a thread that gets a reference by generation sees the slot as it was filled. Planted bugs:
/// rule16-start-relaxed, rule16-get-relaxed, rule16-watched-get-relaxed.
#[test]
fn loom_rule16_a_get_by_generation_sees_the_slot_filled() {
    a_get_sees_the_slot_filled(|refs| refs.get_generation(7));
    a_get_sees_the_slot_filled(|refs| matches!(refs.get_watched(7), Got::Yes | Got::Contended));
}

/// Rule 2: so does an evicting thread. Planted bugs: rule2-kill-without-acquire,
/// rule2-kill-ignores-holders.
#[test]
fn loom_rule2_an_eviction_comes_after_all_holders() {
    model(3, || {
        let slot = Slot::new();
        slot.0.start(7);
        slot.0.get_held();
        let evicter = {
            let slot = slot.clone();
            spawn(move || {
                if slot.0.kill_sole() {
                    slot.write(1);
                    assert!(!slot.0.get_generation(7));
                }
            })
        };
        slot.read();
        assert!(!slot.0.put() || slot.read() == 0);
        evicter.join().unwrap();
    });
}
