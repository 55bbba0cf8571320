//! Lockrefs: the caches' own, and models of the kernel's.
//!
//! The kernel's lockref is a count and a spinlock in one word of eight bytes. [`KernelRef`] models it, for two locks
//! ([`Queued`], as in the kernel; [`TicketLock`], as in older ones) and for two ways to treat a held lock. Guzik's mail
//! ("vfs: move d_lockref out of the area used by RCU lookup", linux-fsdevel, June 2024) names the second one.
//!
//! | kernel's step | step here |
//! |---|---|
//! | while the lock is free: compare-exchange count and lock together, at most 100 times | the same |
//! | the lock is held or waited for: take it (`SPINS` 0) | the same |
//! | the mail's proposal: look at the word some times more, then take the lock | the same, `SPINS` times |
//! | as the holder: check and change the count by loads and stores, unlock | compare-exchange, because others queue in the same word |
//!
//! So one holder sends all arriving threads to the lock. In a steady stream of them it may never be seen free again:
//! that is the mail's fall.

mod queued;
mod ticket;

use std::cell::Cell;
use std::hint::spin_loop;
use std::marker::PhantomData;
use std::sync::atomic::{AtomicU64, Ordering, fence};

use uvfs_sync::lockref::LockRef;

pub use self::queued::{Queued, QueuedLock};
pub use self::ticket::TicketLock;

/// The generation of all words of the caches' kind.
const GENERATION: u32 = 1;
/// Exchanges that a get or put tries while the lock is free.
const RETRIES: u32 = 100;
/// Looks at a held lock in the bounded spin: as many as in the patch that followed the mail.
pub const LOOKS: u32 = 100;
/// One reference, above the lock's 32 bits.
const ONE: u64 = 1 << 32;

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

/// A lock in the low 32 bits of a word.
pub trait LockBits: Send + Sync + 'static {
    /// Whether nobody holds the lock or waits for it.
    fn is_free(word: u64) -> bool;
    /// Takes the lock.
    fn lock(word: &AtomicU64);
    /// Releases the lock.
    fn unlock(word: &AtomicU64);
}

/// Model of the kernel's lockref. A thread that finds the lock `L` held looks `SPINS` times more, then takes it.
#[derive(Debug)]
pub struct KernelRef<L, const SPINS: u32>(AtomicU64, PhantomData<L>);

/// As in Linux.
pub type StockRef = KernelRef<Queued, 0>;
/// With the bounded spin.
pub type Spinning = KernelRef<Queued, LOOKS>;

impl<L: LockBits, const SPINS: u32> KernelRef<L, SPINS> {
    /// Replaces the word by the result of `step`: by compare-exchange while the lock is free, else as its holder.
    /// Returns the word before, or `None` if `step` refuses.
    #[inline]
    fn change(&self, success: Ordering, step: impl Fn(u64) -> Option<u64>) -> Option<u64> {
        let (mut spins, mut retries) = (SPINS, RETRIES);
        let mut old = self.0.load(Ordering::Relaxed);
        while retries > 0 {
            if !L::is_free(old) {
                if spins == 0 {
                    break;
                }
                spins -= 1;
                relax();
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
        L::lock(&self.0);
        // Others come and queue meanwhile, so the holder exchanges too.
        let changed = self.0.fetch_update(success, Ordering::Relaxed, step);
        L::unlock(&self.0);
        changed.ok()
    }
}

impl<L: LockBits, const SPINS: u32> CountAndLock for KernelRef<L, SPINS> {
    fn started() -> Self {
        Self(AtomicU64::new(ONE), PhantomData)
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
        L::lock(&self.0);
    }

    fn unlock(&self) {
        L::unlock(&self.0);
    }
}

/// Waits a moment for a lock. Tests have more threads than processors, so there the thread lets others run: a fair queue
/// waits for each of them in turn.
#[inline]
fn relax() {
    if cfg!(test) { std::thread::yield_now() } else { spin_loop() }
}

thread_local! {
    static DIVERTED: Cell<u64> = const { Cell::new(0) };
}

/// Gets and puts of this thread that had to take a lock.
pub fn diverted() -> u64 {
    DIVERTED.get()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Threads count in the word while they take its lock in turn: no count is lost, the lock excludes, and it is free
    /// in the end. Planted bugs: rule2-a-queue-after-one-look, rule2-a-pending-thread-after-one-look,
    /// rule2-a-list-that-nobody-waits-in.
    fn keeps_its_count<R: CountAndLock>() {
        const ROUNDS: u64 = 30;
        const THREADS: u64 = 3;
        let (word, guarded) = (R::started(), AtomicU64::new(0));
        std::thread::scope(|s| {
            for _ in 0..THREADS {
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
        assert_eq!(guarded.load(Ordering::Relaxed), THREADS * ROUNDS);
        assert!(word.put(), "a reference was lost or invented");
        assert!(!word.get(), "resurrected");
    }

    #[test]
    fn each_lockref_keeps_its_count() {
        keeps_its_count::<LockRef>();
        keeps_its_count::<StockRef>();
        keeps_its_count::<Spinning>();
        keeps_its_count::<KernelRef<TicketLock, 0>>();
        keeps_its_count::<KernelRef<TicketLock, LOOKS>>();
    }

    #[test]
    fn a_held_lock_diverts_the_models_only() {
        let word = LockRef::started();
        word.lock();
        // Ends while the lock is held.
        let taken = std::thread::scope(|s| s.spawn(|| (word.get(), diverted())).join().unwrap());
        word.unlock();
        assert_eq!(taken, (true, 0));

        let word = StockRef::started();
        word.lock();
        let held = word.0.load(Ordering::Relaxed);
        let taken = std::thread::scope(|s| {
            let other = s.spawn(|| (word.get(), diverted()));
            // Until the other one waits.
            while word.0.load(Ordering::Relaxed) == held {
                std::thread::yield_now();
            }
            word.unlock();
            other.join().unwrap()
        });
        assert_eq!(taken, (true, 1));
        assert!(!word.put() && word.put());
    }
}
