//! Lockrefs: the caches' own, and models of the kernel's before and after a change.
//!
//! The change is the one that Guzik's mail announces ("vfs: move d_lockref out of the area used by RCU lookup",
//! 2024). In the models the count may only be changed by compare-exchange while the lock is free. A thread that finds
//! it held queues for it, at once ([`QueueAtOnce`]) or after some looks ([`QueueLate`]). So one holder sends all
//! arriving threads into the queue, and in a steady stream of them the lock is never seen free again. The queue is a
//! ticket lock: first come, first served, by spinning, as the kernel's spinlocks are.

use std::cell::Cell;
use std::hint::spin_loop;
use std::sync::atomic::{AtomicU64, Ordering, fence};

use uvfs_sync::lockref::LockRef;

/// The generation of all words of the caches' kind.
const GENERATION: u32 = 1;
/// Exchanges that a get or put tries while the lock is free.
const RETRIES: u32 = 100;
/// One reference, above the lock's 16 bits.
const ONE: u64 = 1 << 16;

/// A count and a lock in one word.
pub trait CountAndLock: Send + Sync + Sized + 'static {
    /// A word with one reference.
    fn started() -> Self;
    /// Takes a reference, if there is one already.
    fn get(&self) -> bool;
    /// Drops a reference. True: it was the last one.
    fn put(&self) -> bool;
    /// Takes the lock.
    fn lock(&self);
    /// Releases the lock.
    fn unlock(&self);
}

impl CountAndLock for LockRef {
    fn started() -> Self {
        let word = Self::new();
        word.start(GENERATION);
        word
    }

    #[inline]
    fn get(&self) -> bool {
        self.get_generation(GENERATION)
    }

    #[inline]
    fn put(&self) -> bool {
        Self::put(self)
    }

    fn lock(&self) {
        Self::lock(self);
    }

    fn unlock(&self) {
        Self::unlock(self);
    }
}

/// Model of the kernel's lockref. A thread that finds the lock held looks `SPINS` times more, then queues.
pub struct Queued<const SPINS: u32>(AtomicU64);

/// Before the change.
pub type QueueAtOnce = Queued<0>;
/// After it: the wait is bounded.
pub type QueueLate = Queued<1024>;

impl<const SPINS: u32> Queued<SPINS> {
    /// Replaces the word by the result of `step`: by compare-exchange while the lock is free, else as its holder.
    /// Returns the word before, or `None` if `step` refuses.
    #[inline]
    fn change(&self, success: Ordering, step: impl Fn(u64) -> Option<u64>) -> Option<u64> {
        let (mut spins, mut retries) = (SPINS, RETRIES);
        let mut old = self.0.load(Ordering::Relaxed);
        while retries > 0 {
            if ticket::is_locked(old) {
                if spins == 0 {
                    break;
                }
                spins -= 1;
                spin_loop();
                old = self.0.load(Ordering::Relaxed);
                continue;
            }
            match self.0.compare_exchange_weak(old, step(old)?, success, Ordering::Relaxed) {
                Ok(_) => return Some(old),
                Err(now) => {
                    old = now;
                    retries -= 1;
                }
            }
        }
        DIVERTED.set(DIVERTED.get() + 1);
        ticket::lock(&self.0);
        // Others come and queue meanwhile, so the holder exchanges too.
        let changed = self.0.fetch_update(success, Ordering::Relaxed, step);
        ticket::unlock(&self.0);
        changed.ok()
    }
}

impl<const SPINS: u32> CountAndLock for Queued<SPINS> {
    fn started() -> Self {
        Self(AtomicU64::new(ONE))
    }

    #[inline]
    fn get(&self) -> bool {
        self.change(Ordering::Acquire, |old| (old >= ONE).then(|| old + ONE)).is_some()
    }

    #[inline]
    fn put(&self) -> bool {
        // Release: all use of the reference happens before the teardown.
        let last = self.change(Ordering::Release, |old| old.checked_sub(ONE)).is_none_or(|old| old < 2 * ONE);
        if last {
            // The teardown sees what all the others did.
            fence(Ordering::Acquire);
        }
        last
    }

    fn lock(&self) {
        ticket::lock(&self.0);
    }

    fn unlock(&self) {
        ticket::unlock(&self.0);
    }
}

thread_local! {
    static DIVERTED: Cell<u64> = const { Cell::new(0) };
}

/// Gets and puts of this thread that had to take a lock.
pub fn diverted() -> u64 {
    DIVERTED.get()
}

/// A ticket lock for up to 255 threads in the low 16 bits: the ticket that is served, and the next ticket.
mod ticket {
    use super::{AtomicU64, Ordering, spin_loop};

    const BYTE: u64 = 0xff;

    fn served(word: u64) -> u64 {
        word & BYTE
    }

    fn next(word: u64) -> u64 {
        word >> 8 & BYTE
    }

    pub(super) fn is_locked(word: u64) -> bool {
        served(word) != next(word)
    }

    pub(super) fn lock(word: &AtomicU64) {
        let mut old = word.load(Ordering::Relaxed);
        // Not an addition: the last ticket's carry would count a reference.
        loop {
            let new = old & !(BYTE << 8) | ((next(old) + 1) & BYTE) << 8;
            match word.compare_exchange_weak(old, new, Ordering::Acquire, Ordering::Relaxed) {
                Ok(_) => break,
                Err(now) => old = now,
            }
        }
        let mine = next(old);
        while served(word.load(Ordering::Acquire)) != mine {
            spin_loop();
        }
    }

    pub(super) fn unlock(word: &AtomicU64) {
        // Only the holder moves the low byte, so it is the one that was seen.
        let served = served(word.load(Ordering::Relaxed));
        if served == BYTE {
            word.fetch_sub(BYTE, Ordering::Release);
        } else {
            word.fetch_add(1, Ordering::Release);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two threads count in the word while they take its lock in turn: no count is lost, the lock excludes, and it is
    /// free in the end. Planted bug: rule2-a-queue-after-one-look.
    fn keeps_its_count<R: CountAndLock>() {
        const ROUNDS: u64 = 200;
        let (word, guarded) = (R::started(), AtomicU64::new(0));
        std::thread::scope(|s| {
            for _ in 0..2 {
                s.spawn(|| {
                    for _ in 0..ROUNDS {
                        assert!(word.get());
                        word.lock();
                        // Not an addition in one step: the lock makes it one.
                        let was = guarded.load(Ordering::Relaxed);
                        std::thread::yield_now();
                        guarded.store(was + 1, Ordering::Relaxed);
                        word.unlock();
                        assert!(!word.put());
                    }
                });
            }
        });
        assert_eq!(guarded.load(Ordering::Relaxed), 2 * ROUNDS);
        assert!(word.put(), "a reference was lost or invented");
        assert!(!word.get(), "resurrected");
    }

    #[test]
    fn each_lockref_keeps_its_count() {
        keeps_its_count::<LockRef>();
        keeps_its_count::<QueueAtOnce>();
        keeps_its_count::<QueueLate>();
    }

    #[test]
    fn a_held_lock_diverts_the_models_only() {
        fn diverts<R: CountAndLock>() -> u64 {
            let word = R::started();
            word.lock();
            let taken = std::thread::scope(|s| {
                let other = s.spawn(|| {
                    assert!(word.get());
                    diverted()
                });
                // A model's thread waits for the lock.
                word.unlock();
                other.join().unwrap()
            });
            assert!(!word.put());
            taken
        }
        assert_eq!(diverts::<LockRef>(), 0);
        // The other thread may come after the unlock.
        assert!(diverts::<QueueAtOnce>() <= 1);
    }
}
