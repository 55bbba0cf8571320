//! Reference count, lock and life of a recycled slot in one 64-bit word (design rule 2).
//!
//! ```text
//! 63            32 31              2 1    0
//! |     life      |     count       | lock |     (the lock's bits: as many as its policy says)
//! ```
//!
//! A slot is dead when its count is 0, and stays so until the allocator starts its next life. From an
//! index alone, a reference is taken by a compare-exchange that expects the life and a count above 0: a
//! stale index then either finds the life it remembers, or fails. An unconditional add or subtraction
//! is only done by who already holds a reference, so the word cannot change hands under it. Of several
//! who drop their references exactly one sees the 1 before its 0: it owns the teardown.
//!
//! What a held lock does to gets and puts is the [`Policy`]'s affair. With [`Uvfs`], the usual one, it
//! does nothing to them: they carry its bits along, so that there is no locked mode to fall into.
//! Cost: one read-modify-write for each get and put; the life is compared in the same step.

#[cfg(all(test, loom))]
mod loom_tests;
mod policy;

use std::fmt;
use std::marker::PhantomData;

pub use policy::{Held, Patched, Policy, Stock, Uvfs, diverted};

use crate::order::{self, Class};
use crate::primitives::{AtomicU64, Ordering, fence, spin_loop};

const LIFE_SHIFT: u32 = 32;
/// Exchanges that a get or put tries while the lock is free, where the policy knows another way.
const RETRIES: u32 = if cfg!(loom) { 2 } else { 100 };

/// The word. Zero-valid (life 0: dead), so it may stand in a [`crate::arena::Slot`].
#[repr(transparent)]
pub struct LockRef<P = Uvfs>(AtomicU64, PhantomData<P>);

impl<P: Policy> Default for LockRef<P> {
    fn default() -> Self {
        Self::new()
    }
}

impl<P: Policy> fmt::Debug for LockRef<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "LockRef(life {}, count {})", self.life(), self.count())
    }
}

/// The life in a word.
fn life_of(word: u64) -> u32 {
    (word >> LIFE_SHIFT) as u32
}

impl<P: Policy> LockRef<P> {
    const ONE: u64 = 1 << P::LOCK_BITS;
    const COUNT: u64 = (1 << LIFE_SHIFT) - Self::ONE;
    const LOCK: u64 = Self::ONE - 1;
    /// References one slot may have before the process is stopped (as `Arc` does): far above what
    /// fits into memory as dentries, far below the width of the count.
    const MANY: u64 = Self::COUNT / 2;

    /// A dead word of life 0.
    pub fn new() -> Self {
        Self(AtomicU64::new(0), PhantomData)
    }

    /// Start a new life with one reference, held by the caller. The slot is the caller's alone:
    /// it was dead and has been handed out by the allocator.
    pub fn start(&self, life: u32) {
        debug_assert_ne!(life, 0, "life 0 is never issued");
        debug_assert_eq!(self.count(), 0, "start of a slot in use");
        let word = u64::from(life) << LIFE_SHIFT | Self::ONE;
        // Release: who takes a reference by expecting this life sees the slot as it was filled.
        match P::HELD {
            Held::Carry => self.0.store(word, Ordering::Release),
            // A stale get may stand in the queue.
            Held::Queue { .. } => {
                let mut old = self.0.load(Ordering::Relaxed);
                while let Err(now) = self.0.compare_exchange_weak(
                    old,
                    word | old & Self::LOCK,
                    Ordering::Release,
                    Ordering::Relaxed,
                ) {
                    old = now;
                }
            }
        }
    }

    /// The life in the word, dead or not. Nothing of the slot may be believed for it: that takes
    /// a [`LockRef::get_life`].
    pub fn life(&self) -> u32 {
        life_of(self.0.load(Ordering::Relaxed))
    }

    /// Take a reference from an index alone: only if the slot still lives this `life`.
    #[inline]
    pub fn get_life(&self, life: u32) -> bool {
        // Acquire pairs with `start`: the slot's content is this life's.
        let got = self.change(Ordering::Acquire, |old| {
            (life_of(old) == life && old & Self::COUNT != 0).then(|| Self::one_more(old))
        });
        got.is_some()
    }

    /// Take another reference. The caller holds one already.
    #[inline]
    pub fn get_held(&self) {
        let old = match P::HELD {
            Held::Carry => self.0.fetch_add(Self::ONE, Ordering::Relaxed),
            Held::Queue { .. } => {
                let old = self.change(Ordering::Relaxed, |old| Some(old + Self::ONE));
                old.unwrap_or_default()
            }
        };
        debug_assert!(old & Self::COUNT != 0, "get_held without a reference");
        Self::one_more(old);
    }

    /// The word with one reference more.
    #[inline]
    fn one_more(old: u64) -> u64 {
        if old & Self::COUNT > Self::MANY {
            // A count that wrapped would free a slot that is in use.
            std::process::abort();
        }
        old + Self::ONE
    }

    /// Drop a reference. True for exactly one caller: the slot is now dead and the caller's to
    /// tear down; no get succeeds on it any more.
    #[must_use = "who drops the last reference tears the slot down"]
    #[inline]
    pub fn put(&self) -> bool {
        // Release: what was done with the reference happens before the teardown.
        let old = match P::HELD {
            Held::Carry => self.0.fetch_sub(Self::ONE, Ordering::Release),
            Held::Queue { .. } => {
                let old = self.change(Ordering::Release, |old| Some(old - Self::ONE));
                old.unwrap_or_default()
            }
        };
        debug_assert!(old & Self::COUNT != 0, "put without a reference");
        let last = old & Self::COUNT == Self::ONE;
        if last {
            // The teardown sees what all the others did.
            fence(Ordering::Acquire);
        }
        last
    }

    /// Turn a count of exactly one into dead, for eviction: whoever else holds a reference, or got
    /// one from an index a moment ago, keeps the slot. The caller speaks for the one reference.
    pub fn kill_sole(&self) -> bool {
        // Acquire, as in `put`, whose last step this is.
        let killed =
            self.change(Ordering::Acquire, |old| (old & Self::COUNT == Self::ONE).then(|| old - Self::ONE));
        killed.is_some()
    }

    /// Replace the word by what `step` makes of it, as the policy wants it; the word before, or
    /// `None` where `step` does not want to.
    #[inline]
    fn change(&self, success: Ordering, step: impl Fn(u64) -> Option<u64>) -> Option<u64> {
        match P::HELD {
            Held::Carry => self.exchange(success, step),
            Held::Queue { spins } => self.unless_held(spins, success, step),
        }
    }

    /// By compare-exchange, whatever the lock is.
    #[inline]
    fn exchange(&self, success: Ordering, step: impl Fn(u64) -> Option<u64>) -> Option<u64> {
        let mut old = self.0.load(Ordering::Relaxed);
        loop {
            match self.0.compare_exchange_weak(old, step(old)?, success, Ordering::Relaxed) {
                Ok(_) => return Some(old),
                Err(now) => old = now,
            }
        }
    }

    /// By compare-exchange while the lock is free, else as its holder.
    fn unless_held(
        &self,
        mut spins: u32,
        success: Ordering,
        step: impl Fn(u64) -> Option<u64>,
    ) -> Option<u64> {
        let mut retries = RETRIES;
        let mut old = self.0.load(Ordering::Relaxed);
        while retries > 0 {
            if P::is_locked(old) {
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
        policy::count_diverted();
        P::lock(&self.0);
        // Others come and queue meanwhile, so the holder exchanges too.
        let old = self.exchange(success, step);
        P::unlock(&self.0);
        old
    }

    /// References now. For counters and tests: it may change at once.
    pub fn count(&self) -> u64 {
        (self.0.load(Ordering::Relaxed) & Self::COUNT) / Self::ONE
    }

    /// Whether the slot is in use.
    pub fn is_live(&self) -> bool {
        self.count() != 0
    }

    /// Lock the slot. The caller holds a reference.
    #[inline]
    pub fn lock(&self) {
        debug_assert!(self.is_live(), "lock of a slot without a reference");
        order::enter(Class::InodeBit);
        P::lock(&self.0);
    }

    /// Unlock the slot.
    #[inline]
    pub fn unlock(&self) {
        P::unlock(&self.0);
        order::leave(Class::InodeBit);
    }
}
