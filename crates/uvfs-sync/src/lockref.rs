//! Reference count, lock bits and life of a recycled slot in one 64-bit word (design rule 2).
//!
//! ```text
//! 63            32 31  30        2   1    0
//! |     life      |dead|  count   | WAIT LOCK|
//! ```
//!
//! From an index alone, a reference is taken by a compare-exchange that expects the life: a stale
//! index then either finds the life it remembers, or fails. An unconditional add is only done by
//! who already holds a reference, so the word cannot change hands under it. The last put turns
//! count 1 into dead in one step, and exactly one thread makes that step: it owns the teardown.
//! A held lock bit never diverts gets and puts (they carry it along), so there is no locked mode
//! to fall into.

use crate::bitlock;
use crate::order::{self, Class};
use crate::primitives::{AtomicU64, Ordering};

const DEAD: u64 = 1 << 31;
const ONE: u64 = 1 << 2;
const COUNT: u64 = DEAD - ONE;
const LIFE_SHIFT: u32 = 32;
/// References one slot may have before the process is stopped (as `Arc` does): far above what
/// fits into memory as dentries, far below the width of the count.
const MANY: u64 = COUNT / 2;

/// The word. Zero-valid (life 0: dead), so it may stand in a [`crate::arena::Slot`].
#[derive(Debug, Default)]
#[repr(transparent)]
pub struct LockRef(AtomicU64);

impl LockRef {
    /// A dead word of life 0.
    pub fn new() -> Self {
        Self(AtomicU64::new(0))
    }

    /// Start a new life with one reference, held by the caller. The slot is the caller's alone:
    /// it was dead and has been handed out by the allocator.
    pub fn start(&self, life: u32) {
        debug_assert_ne!(life, 0, "life 0 is never issued");
        // Release: who takes a reference by expecting this life sees the slot as it was filled.
        self.0.store(u64::from(life) << LIFE_SHIFT | ONE, Ordering::Release);
    }

    /// The life in the word, dead or not. Nothing of the slot may be believed for it: that takes
    /// a [`LockRef::get_life`].
    pub fn life(&self) -> u32 {
        (self.0.load(Ordering::Relaxed) >> LIFE_SHIFT) as u32
    }

    /// Take a reference from an index alone: only if the slot still lives this `life`.
    #[inline]
    pub fn get_life(&self, life: u32) -> bool {
        let mut old = self.0.load(Ordering::Relaxed);
        loop {
            if (old >> LIFE_SHIFT) as u32 != life || old & DEAD != 0 || old & COUNT == 0 {
                return false;
            }
            // Acquire pairs with `start`: the slot's content is this life's.
            match self.0.compare_exchange_weak(old, old + ONE, Ordering::Acquire, Ordering::Relaxed) {
                Ok(_) => return true,
                Err(now) => old = now,
            }
        }
    }

    /// Take another reference. The caller holds one already.
    #[inline]
    pub fn get_held(&self) {
        let old = self.0.fetch_add(ONE, Ordering::Relaxed);
        debug_assert!(old & DEAD == 0 && old & COUNT != 0, "get_held without a reference");
        if old & COUNT > MANY {
            // A wrapped count would free a slot that is in use.
            std::process::abort();
        }
    }

    /// Drop a reference. True for exactly one caller: the slot is now dead and the caller's to
    /// tear down; no get succeeds on it any more.
    #[must_use = "who drops the last reference tears the slot down"]
    #[inline]
    pub fn put(&self) -> bool {
        let mut old = self.0.load(Ordering::Relaxed);
        loop {
            debug_assert!(old & DEAD == 0 && old & COUNT != 0, "put without a reference");
            let last = old & COUNT == ONE;
            let new = if last { (old - ONE) | DEAD } else { old - ONE };
            // Release: what was done with the reference happens before the teardown;
            // acquire: the teardown sees what all the others did.
            match self.0.compare_exchange_weak(old, new, Ordering::AcqRel, Ordering::Relaxed) {
                Ok(_) => return last,
                Err(now) => old = now,
            }
        }
    }

    /// Turn a count of exactly one into dead, for eviction: whoever else holds a reference, or got
    /// one from an index a moment ago, keeps the slot. The caller speaks for the one reference.
    pub fn kill_sole(&self) -> bool {
        let mut old = self.0.load(Ordering::Relaxed);
        while old & DEAD == 0 && old & COUNT == ONE {
            let new = (old - ONE) | DEAD;
            // Acquire, as in `put`, whose last step this is.
            match self.0.compare_exchange_weak(old, new, Ordering::Acquire, Ordering::Relaxed) {
                Ok(_) => return true,
                Err(now) => old = now,
            }
        }
        false
    }

    /// References now. For counters and tests: it may change at once.
    pub fn count(&self) -> u64 {
        (self.0.load(Ordering::Relaxed) & COUNT) / ONE
    }

    /// Whether the slot is in use.
    pub fn is_live(&self) -> bool {
        let w = self.0.load(Ordering::Relaxed);
        w & DEAD == 0 && w & COUNT != 0
    }

    /// Lock the slot. The caller holds a reference.
    #[inline]
    pub fn lock(&self) {
        debug_assert!(self.is_live(), "lock of a slot without a reference");
        order::enter(Class::InodeBit);
        bitlock::lock(&self.0);
    }

    /// Unlock the slot.
    #[inline]
    pub fn unlock(&self) {
        bitlock::unlock(&self.0);
        order::leave(Class::InodeBit);
    }
}

#[cfg(all(test, loom))]
mod loom_tests {
    use super::*;
    use crate::primitives::Arc;
    use loom::cell::UnsafeCell;
    use loom::thread::spawn;

    fn model(f: impl Fn() + Send + Sync + 'static) {
        let mut model = loom::model::Builder::new();
        model.preemption_bound = Some(3);
        model.check(f);
    }

    /// A slot: the word, and what it stands for.
    struct Slot(LockRef, UnsafeCell<u32>);
    // SAFETY: the cell is touched as the word allows, which is what the tests prove.
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

    /// Rule 2: of several puts exactly one is the last; a get that expects the life never
    /// succeeds on a dead slot. Planted bug: rule2-put-leaves-it-alive.
    #[test]
    fn loom_rule2_one_last_put_and_no_resurrection() {
        model(|| {
            let r = Arc::new(LockRef::new());
            r.start(7);
            r.get_held();
            let put = {
                let r = r.clone();
                spawn(move || r.put())
            };
            let get = {
                let r = r.clone();
                spawn(move || r.get_life(7) && r.put())
            };
            let mine = r.put();
            let lasts = [mine, put.join().unwrap(), get.join().unwrap()];
            assert_eq!(lasts.iter().filter(|l| **l).count(), 1);
            assert!(!r.get_life(7), "resurrected");
        });
    }

    /// Rule 2: a stale index cannot touch the next owner's count. Planted bug:
    /// rule2-get-ignores-life.
    #[test]
    fn loom_rule2_a_stale_get_on_a_recycled_slot_harms_nobody() {
        model(|| {
            let r = Arc::new(LockRef::new());
            r.start(1);
            let stale = {
                let r = r.clone();
                spawn(move || {
                    r.get_life(1).then(|| {
                        assert_eq!(r.life(), 1, "a reference to another life");
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
        });
    }

    /// Rule 2: unlock loses no count. Planted bug: rule2-unlock-is-a-store.
    #[test]
    fn loom_rule2_unlock_loses_no_count() {
        model(|| {
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
        });
    }

    /// Rule 16: who gets a reference by life sees the slot as it was filled. Planted bugs:
    /// rule16-start-relaxed, rule16-get-relaxed.
    #[test]
    fn loom_rule16_who_gets_a_life_sees_it_filled() {
        model(|| {
            let slot = Slot::new();
            let reader = {
                let slot = slot.clone();
                spawn(move || {
                    if slot.0.get_life(7) {
                        assert_eq!(slot.read(), 5);
                    }
                })
            };
            slot.write(5);
            slot.0.start(7);
            reader.join().unwrap();
        });
    }

    /// Rule 2: the one who tears down comes after all that others did with their references. Planted
    /// bugs: rule2-put-without-release, rule2-put-without-acquire.
    #[test]
    fn loom_rule2_the_last_put_comes_after_all_others() {
        model(|| {
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
        });
    }

    /// Rule 2: so does the one who evicts. Planted bugs: rule2-kill-without-acquire,
    /// rule2-kill-ignores-holders.
    #[test]
    fn loom_rule2_an_eviction_comes_after_all_holders() {
        model(|| {
            let slot = Slot::new();
            slot.0.start(7);
            slot.0.get_held();
            let evicter = {
                let slot = slot.clone();
                spawn(move || {
                    if slot.0.kill_sole() {
                        slot.write(1);
                        assert!(!slot.0.get_life(7));
                    }
                })
            };
            slot.read();
            assert!(!slot.0.put() || slot.read() == 0);
            evicter.join().unwrap();
        });
    }
}
