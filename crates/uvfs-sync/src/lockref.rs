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
            // As in `put`, whose last step this is.
            match self.0.compare_exchange_weak(old, new, Ordering::AcqRel, Ordering::Relaxed) {
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
        bitlock::lock(&self.0);
    }

    /// Unlock the slot.
    #[inline]
    pub fn unlock(&self) {
        bitlock::unlock(&self.0);
    }
}

#[cfg(all(test, loom))]
mod loom_tests {
    use super::*;
    use crate::primitives::Arc;

    /// Rule 2: of several puts exactly one is the last; a get that expects the life never
    /// succeeds on a dead slot. Planted bug: take DEAD out of `put`'s new word.
    #[test]
    fn loom_rule2_one_last_put_and_no_resurrection() {
        loom::model(|| {
            let r = Arc::new(LockRef::new());
            r.start(7);
            r.get_held();
            let put = {
                let r = r.clone();
                loom::thread::spawn(move || r.put())
            };
            let get = {
                let r = r.clone();
                loom::thread::spawn(move || r.get_life(7) && r.put())
            };
            let mine = r.put();
            let lasts = [mine, put.join().unwrap(), get.join().unwrap()];
            assert_eq!(lasts.iter().filter(|l| **l).count(), 1);
            assert!(!r.get_life(7), "resurrected");
        });
    }

    /// Rule 2: a stale index cannot touch the next owner's count. Planted bug: leave the life out
    /// of `get_life`'s comparison.
    #[test]
    fn loom_rule2_a_stale_get_on_a_recycled_slot_harms_nobody() {
        loom::model(|| {
            let r = Arc::new(LockRef::new());
            r.start(1);
            let stale = {
                let r = r.clone();
                loom::thread::spawn(move || {
                    if r.get_life(1) {
                        return r.put();
                    }
                    false
                })
            };
            let last = r.put();
            if last {
                // Recycled: the new owner has exactly one reference, whatever the stale get does.
                r.start(2);
                assert!(!stale.join().unwrap());
                assert_eq!(r.count(), 1);
                assert!(r.put());
            } else {
                assert!(stale.join().unwrap());
            }
        });
    }

    /// Rule 2: the lock excludes while counts move, and unlock loses no count (planted bug: a
    /// store instead of a read-modify-write in `bitlock::unlock`).
    #[test]
    fn loom_rule2_unlock_loses_no_count() {
        loom::model(|| {
            let r = Arc::new(LockRef::new());
            r.start(1);
            r.get_held();
            let other = {
                let r = r.clone();
                loom::thread::spawn(move || {
                    r.get_held();
                    assert!(!r.put());
                    assert!(!r.put());
                })
            };
            r.lock();
            r.unlock();
            other.join().unwrap();
            assert_eq!(r.count(), 1);
            assert!(r.put());
        });
    }
}
