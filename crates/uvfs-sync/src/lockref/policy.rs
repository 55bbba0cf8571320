//! The effect of a held lock on gets and puts: the one difference between lockrefs.
//!
//! The caches use [`Uvfs`]. [`Stock`] and [`Patched`] model the kernel's lockref before and after the
//! change that Guzik's mail announces ("vfs: move d_lockref out of the area used by RCU lookup", 2024), for
//! measurements. In these models the count may only be changed by compare-exchange while the lock is free.
//! A thread that finds it held queues for it, at once or after some spins. So one holder sends all arriving
//! threads into the queue, and in a steady stream of them the lock is never seen free again. The queue is a
//! ticket lock: first come, first served, by spinning, as the kernel's spinlocks are.
//!
//! A policy is a type without values; everything is decided at compile time. Only the types are public
//! here: users take [`super::LockRef`].

use std::cell::Cell;

use crate::bitlock;
use crate::primitives::{AtomicU64, Ordering, spin_loop};

/// How a get or put continues that finds the lock held.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Held {
    /// As if it were free: the lock's bits are carried along.
    Carry,
    /// It looks `spins` times more, then queues for the lock and does its step as the holder.
    Queue {
        /// Looks before it queues.
        spins: u32,
    },
}

/// The lock in the low bits of a lockref's word, and its effect on gets and puts.
pub trait Policy: Send + Sync + 'static {
    /// Low bits of the word that belong to the lock, fewer than 30.
    const LOCK_BITS: u32;
    /// The way in which a get or put continues when it finds the lock held.
    const HELD: Held;

    /// Whether `word` says that the lock is held (or waited for).
    fn is_locked(word: u64) -> bool;

    /// Take the lock.
    fn lock(word: &AtomicU64);

    /// Release the lock.
    fn unlock(word: &AtomicU64);
}

/// A held lock diverts no get or put, waiting for it is unfair, and waiters sleep.
#[derive(Clone, Copy, Debug, Default)]
pub struct Uvfs;

impl Policy for Uvfs {
    const LOCK_BITS: u32 = 2;
    const HELD: Held = Held::Carry;

    #[inline]
    fn is_locked(word: u64) -> bool {
        word & bitlock::LOCK != 0
    }

    #[inline]
    fn lock(word: &AtomicU64) {
        bitlock::lock(word);
    }

    #[inline]
    fn unlock(word: &AtomicU64) {
        bitlock::unlock(word);
    }
}

/// Model of the kernel's lockref: a thread that finds the lock held queues.
#[derive(Clone, Copy, Debug, Default)]
pub struct Stock;

/// Model of the bounded wait: a thread that finds the lock held looks some times more, then queues.
#[derive(Clone, Copy, Debug, Default)]
pub struct Patched;

/// Additional looks of [`Patched`].
const PATCHED_SPINS: u32 = if cfg!(loom) { 1 } else { 1024 };

macro_rules! queueing {
    ($policy:ty, $spins:expr) => {
        impl Policy for $policy {
            const LOCK_BITS: u32 = 16;
            const HELD: Held = Held::Queue { spins: $spins };

            #[inline]
            fn is_locked(word: u64) -> bool {
                ticket::is_locked(word)
            }

            fn lock(word: &AtomicU64) {
                ticket::lock(word);
            }

            fn unlock(word: &AtomicU64) {
                ticket::unlock(word);
            }
        }
    };
}

queueing!(Stock, 0);
queueing!(Patched, PATCHED_SPINS);

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

thread_local! {
    static DIVERTED: Cell<u64> = const { Cell::new(0) };
}

/// Gets and puts of this thread that had to take a lock. Always 0 if only [`Uvfs`] is used.
pub fn diverted() -> u64 {
    DIVERTED.try_with(Cell::get).unwrap_or(0)
}

pub(super) fn count_diverted() {
    // Nobody asks for the counter of a thread that ends.
    let _ = DIVERTED.try_with(|d| d.set(d.get() + 1));
}
