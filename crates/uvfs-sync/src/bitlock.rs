//! A lock in one bit of a 64-bit word whose other bits have other users.
//!
//! Bit [`LOCK`] is the lock; bit [`WAIT`] says that a thread sleeps. The lock is unfair on purpose. A fair
//! queue hands the lock to threads that are not running. That is how the kernel's lockref fell from
//! millions to thousands of operations a second and stayed there (Guzik, "vfs: move d_lockref out of the
//! area used by RCU lookup", 2024). Waiters spin a little, then sleep.
//!
//! Unlocking is a read-modify-write, never a store: the word's other bits may change under a held lock
//! (design rule 2).

use crate::primitives::{AtomicU64, Ordering, parking, spin_loop};

/// The lock.
pub const LOCK: u64 = 1;
/// A thread sleeps for the lock.
pub const WAIT: u64 = 2;

const SPINS: u32 = if cfg!(loom) { 0 } else { 64 };

fn key(word: &AtomicU64) -> usize {
    std::ptr::from_ref(word) as usize
}

/// Take the lock bit, sleeping if necessary. The caller guarantees that the word stays a lock word
/// (type-stable memory), and that it may wait for the holder (lock order).
#[inline]
pub fn lock(word: &AtomicU64) {
    lock_if(word, |_| true);
}

/// [`lock`] while `may` allows the word to be locked; false once it does not. A thread that makes `may`
/// refuse the word, under the lock, knows that nobody holds the lock and nobody will take it. The reason is
/// that the locking exchange expects a word that `may` has accepted.
#[inline]
pub(crate) fn lock_if(word: &AtomicU64, may: impl Fn(u64) -> bool) -> bool {
    let old = word.load(Ordering::Relaxed);
    let free = old & LOCK == 0 && may(old);
    if free && word.compare_exchange(old, old | LOCK, Ordering::Acquire, Ordering::Relaxed).is_ok() {
        return true;
    }
    lock_slow(word, &may)
}

#[cold]
fn lock_slow(word: &AtomicU64, may: &dyn Fn(u64) -> bool) -> bool {
    let mut spins = 0;
    loop {
        let old = word.load(Ordering::Relaxed);
        if !may(old) {
            return false;
        }
        if old & LOCK == 0 {
            // Others may sleep: WAIT, if set, stays set, and our unlock wakes them.
            if word.compare_exchange_weak(old, old | LOCK, Ordering::Acquire, Ordering::Relaxed).is_ok() {
                return true;
            }
            continue;
        }
        if spins < SPINS {
            spins += 1;
            spin_loop();
            continue;
        }
        if old & WAIT == 0
            && word.compare_exchange_weak(old, old | WAIT, Ordering::Relaxed, Ordering::Relaxed).is_err()
        {
            continue;
        }
        // If the holder unlocks before we are queued, it has cleared LOCK and WAIT, and `validate` fails.
        // If it unlocks after, it saw WAIT, and its unpark_all finds us.
        parking::park(key(word), || word.load(Ordering::Relaxed) & (LOCK | WAIT) == LOCK | WAIT);
        spins = 0;
    }
}

/// Release the lock bit, and change the rest of the word by `change` in the same step.
#[inline]
pub(crate) fn unlock_with(word: &AtomicU64, change: impl Fn(u64) -> u64) {
    let mut old = word.load(Ordering::Relaxed);
    loop {
        debug_assert_ne!(old & LOCK, 0, "unlock of a lock that is not held");
        let new = change(old) & !(LOCK | WAIT);
        // Release: the next holder's acquire sees everything that was done under the lock.
        match word.compare_exchange_weak(old, new, Ordering::Release, Ordering::Relaxed) {
            Ok(_) => break,
            Err(now) => old = now,
        }
    }
    if old & WAIT != 0 {
        parking::unpark_all(key(word));
    }
}

/// Release the lock bit.
#[inline]
pub fn unlock(word: &AtomicU64) {
    let old = word.fetch_and(!(LOCK | WAIT), Ordering::Release);
    debug_assert_ne!(old & LOCK, 0, "unlock of a lock that is not held");
    if old & WAIT != 0 {
        parking::unpark_all(key(word));
    }
}

#[cfg(all(test, loom))]
mod loom_tests {
    use super::*;
    use crate::primitives::Arc;
    use loom::cell::UnsafeCell;

    struct Shared(AtomicU64, UnsafeCell<u32>);
    // SAFETY: the cell is only touched under the bit lock; the test proves that.
    unsafe impl Sync for Shared {}
    // SAFETY: as above.
    unsafe impl Send for Shared {}

    /// Rule 5 (waiters park): exclusion, and no wake-up is lost, or loom reports a deadlock.
    #[test]
    fn loom_rule5_a_bit_lock_excludes_and_loses_no_wake_up() {
        let mut model = loom::model::Builder::new();
        model.preemption_bound = Some(2);
        model.check(|| {
            let s = Arc::new(Shared(AtomicU64::new(0), UnsafeCell::new(0)));
            let threads: Vec<_> = (0..2)
                .map(|_| {
                    let s = s.clone();
                    loom::thread::spawn(move || {
                        lock(&s.0);
                        // SAFETY: under the lock; loom checks that nobody else is here.
                        s.1.with_mut(|v| unsafe { *v += 1 });
                        unlock(&s.0);
                    })
                })
                .collect();
            lock(&s.0);
            // SAFETY: under the lock.
            s.1.with_mut(|v| unsafe { *v += 1 });
            unlock_with(&s.0, |w| w + 16);
            for t in threads {
                t.join().unwrap();
            }
            // SAFETY: all other threads are joined.
            s.1.with(|v| unsafe { assert_eq!(*v, 3) });
            assert_eq!(s.0.load(Ordering::Relaxed), 16);
        });
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use std::sync::Arc;

    #[test]
    fn many_threads_count_under_one_bit() {
        let rounds = if cfg!(miri) { 40 } else { 2000 };
        let word = Arc::new((AtomicU64::new(0), AtomicU64::new(0)));
        let threads: Vec<_> = (0..8)
            .map(|_| {
                let w = word.clone();
                std::thread::spawn(move || {
                    for _ in 0..rounds {
                        lock(&w.0);
                        let v = w.1.load(Ordering::Relaxed);
                        w.1.store(v + 1, Ordering::Relaxed);
                        unlock(&w.0);
                    }
                })
            })
            .collect();
        for t in threads {
            t.join().unwrap();
        }
        assert_eq!(word.1.load(Ordering::Relaxed), 8 * rounds);
        assert_eq!(word.0.load(Ordering::Relaxed), 0);
    }
}
