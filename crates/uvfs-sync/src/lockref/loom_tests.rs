//! The models of a lockref: what holds for each policy, and what is only the caches' one's.

use super::*;
use crate::primitives::Arc;
use loom::cell::UnsafeCell;
use loom::thread::spawn;

fn model(preemptions: usize, f: impl Fn() + Send + Sync + 'static) {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(preemptions);
    model.check(f);
}

/// A slot: the word, and what it stands for.
struct Slot<P>(LockRef<P>, UnsafeCell<u32>);
// SAFETY: the cell is touched as the word allows, which is what the tests prove.
unsafe impl<P: Policy> Sync for Slot<P> {}
// SAFETY: as above.
unsafe impl<P: Policy> Send for Slot<P> {}

impl<P: Policy> Slot<P> {
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

/// Of several puts exactly one is the last; a get that expects the generation never succeeds on a dead slot.
fn one_last_put<P: Policy>() {
    let r = Arc::new(LockRef::<P>::new());
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
fn a_stale_get<P: Policy>() {
    let r = Arc::new(LockRef::<P>::new());
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
fn unlock_loses_no_count<P: Policy>() {
    let r = Arc::new(LockRef::<P>::new());
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
    assert!(!P::is_locked(r.0.load(Ordering::Relaxed)));
}

/// The one who tears down comes after all that others did with their references.
fn the_last_put_comes_after_all_others<P: Policy>() {
    let slot = Slot::<P>::new();
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
    model(3, one_last_put::<Uvfs>);
}

/// Rule 2. Planted bug: rule2-get-ignores-generation.
#[test]
fn loom_rule2_a_stale_get_on_a_recycled_slot_harms_nobody() {
    model(3, a_stale_get::<Uvfs>);
}

/// Rule 2. Planted bug: rule2-unlock-is-a-store.
#[test]
fn loom_rule2_unlock_loses_no_count() {
    model(3, unlock_loses_no_count::<Uvfs>);
}

/// Rule 2. Planted bugs: rule2-put-without-release, rule2-put-without-acquire.
#[test]
fn loom_rule2_the_last_put_comes_after_all_others() {
    model(3, the_last_put_comes_after_all_others::<Uvfs>);
}

/// A stale get that stands in the queue for the lock of the slot's next generation.
fn a_stale_get_in_the_queue<P: Policy>() {
    let r = Arc::new(LockRef::<P>::new());
    r.start(1);
    let stale = {
        let r = r.clone();
        spawn(move || r.get_generation(1) && r.put())
    };
    r.lock();
    r.unlock();
    let last = r.put();
    if last {
        r.start(2);
        r.lock();
        r.unlock();
    }
    assert_ne!(stale.join().unwrap(), last);
    assert_eq!(r.count(), u64::from(last));
    assert!(!P::is_locked(r.0.load(Ordering::Relaxed)));
}

/// What the lock is for.
fn the_lock_excludes<P: Policy>() {
    let slot = Slot::<P>::new();
    slot.0.start(7);
    slot.0.get_held();
    let add = |slot: &Slot<P>| {
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

/// All that holds for any policy.
fn any_policy<P: Policy>() {
    model(2, one_last_put::<P>);
    model(2, a_stale_get::<P>);
    model(2, a_stale_get_in_the_queue::<P>);
    model(2, unlock_loses_no_count::<P>);
    model(2, the_last_put_comes_after_all_others::<P>);
    model(2, the_lock_excludes::<P>);
}

/// Rule 2, for the models of the kernel's lockref that measurements are made with. Planted bugs:
/// rule2-a-start-empties-the-queue, rule2-a-queue-after-one-look.
#[test]
fn loom_rule2_stock_keeps_its_count() {
    any_policy::<Stock>();
}

/// As above.
#[test]
fn loom_rule2_patched_keeps_its_count() {
    any_policy::<Patched>();
}

/// Rule 2: a held lock diverts nobody. The lock is never given back here: a get or put that
/// waited for it would never end. Planted bug: rule2-a-held-lock-diverts.
#[test]
fn loom_rule2_a_held_lock_delays_no_get_and_no_put() {
    model(3, || {
        let r = Arc::new(LockRef::<Uvfs>::new());
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

fn who_gets_it_sees_it_filled(get: fn(&LockRef) -> bool) {
    model(3, move || {
        let slot = Slot::<Uvfs>::new();
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

/// Rule 16: who gets a reference by generation sees the slot as it was filled. Planted bugs:
/// rule16-start-relaxed, rule16-get-relaxed, rule16-watched-get-relaxed.
#[test]
fn loom_rule16_who_gets_a_life_sees_it_filled() {
    who_gets_it_sees_it_filled(|refs| refs.get_generation(7));
    who_gets_it_sees_it_filled(|refs| matches!(refs.get_watched(7), Got::Yes | Got::Contended));
}

/// Rule 2: so does the one who evicts. Planted bugs: rule2-kill-without-acquire,
/// rule2-kill-ignores-holders.
#[test]
fn loom_rule2_an_eviction_comes_after_all_holders() {
    model(3, || {
        let slot = Slot::<Uvfs>::new();
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
