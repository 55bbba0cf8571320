//! Reference count, lock and generation of a recycled slot in one 64-bit word (design rule 2).
//!
//! ```text
//! 63            32   31       30   29          2 1    0
//! |     generation      |anchor | spread |    count   | lock |     (the lock's bits: as many as its policy says)
//! ```
//!
//! A slot is dead when its count is 0, and stays so until the allocator starts its next generation. From an
//! index alone, a reference is taken by a compare-exchange that expects the generation and a count above 0: a
//! stale index then either finds the generation it remembers, or fails. An unconditional add or subtraction
//! is only done by who already holds a reference, so the word cannot change hands under it. Of several
//! who drop their references exactly one sees the 1 before its 0: it owns the teardown.
//!
//! What a held lock does to gets and puts is the [`Policy`]'s affair. With [`Uvfs`], the usual one, it
//! does nothing to them: they carry its bits along, so that there is no locked mode to fall into.
//!
//! The two bits above the count are for [`crate::percpu_ref`]. *Spread* says that some references are
//! counted elsewhere; the count then has a bias, so that it cannot reach 0. *Anchor* says that somebody has
//! a reference (a name's) that he will not drop before he has taken that bit away and gathered what is
//! spread: only while it is set may the count be spread, in one step with looking at it.
//! Cost: one read-modify-write for each get and put; the generation is compared in the same step.

#[cfg(all(test, loom))]
mod loom_tests;
mod policy;

use std::fmt;
use std::marker::PhantomData;

pub use policy::{Held, Patched, Policy, Stock, Uvfs, diverted};

use crate::order::{self, Class};
use crate::primitives::{AtomicU64, Ordering, fence, spin_loop};

const GENERATION_SHIFT: u32 = 32;
const ANCHOR: u64 = 1 << 31;
const SPREAD: u64 = 1 << 30;
/// Exchanges that a get or put tries while the lock is free, where the policy knows another way.
const RETRIES: u32 = if cfg!(loom) { 2 } else { 100 };

/// The word. Zero-valid (generation 0: dead), so it may stand in a [`crate::arena::Slot`].
#[repr(transparent)]
pub struct LockRef<P = Uvfs>(AtomicU64, PhantomData<P>);

impl<P: Policy> Default for LockRef<P> {
    fn default() -> Self {
        Self::new()
    }
}

impl<P: Policy> fmt::Debug for LockRef<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "LockRef(generation {}, count {})", self.generation(), self.count())
    }
}

/// What [`LockRef::get_watched`] came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Got {
    /// The generation is over.
    Dead,
    /// A reference.
    Yes,
    /// A reference, and others were at the word at the same time.
    Contended,
    /// No reference: they are counted elsewhere, or can be had by [`LockRef::get_generation`].
    Spread,
}

/// The generation in a word.
fn generation_of(word: u64) -> u32 {
    (word >> GENERATION_SHIFT) as u32
}

impl<P: Policy> LockRef<P> {
    const ONE: u64 = 1 << P::LOCK_BITS;
    const COUNT: u64 = SPREAD - Self::ONE;
    const LOCK: u64 = Self::ONE - 1;
    /// References one slot may have (200 million) before the process is stopped, as `Arc` does: a
    /// directory's children have one each.
    const MANY: u64 = Self::COUNT / 8 * 7;
    /// The count of a spread word without any reference.
    const BIAS: u64 = SPREAD / 2;
    /// How far the count of a spread word may stray from the bias before it should be gathered.
    const STRAY: u64 = Self::BIAS / 4;

    /// A dead word of generation 0.
    pub fn new() -> Self {
        Self(AtomicU64::new(0), PhantomData)
    }

    /// Start a new generation with one reference, held by the caller. The slot is the caller's alone:
    /// it was dead and has been handed out by the allocator.
    pub fn start(&self, generation: u32) {
        self.start_with(generation, Self::ONE);
    }

    /// [`LockRef::start`] and [`LockRef::get_anchor`] in one.
    pub fn start_anchored(&self, generation: u32) {
        self.start_with(generation, (2 * Self::ONE) | ANCHOR);
    }

    #[inline]
    fn start_with(&self, generation: u32, references: u64) {
        debug_assert_ne!(generation, 0, "generation 0 is never issued");
        debug_assert_eq!(self.count(), 0, "start of a slot in use");
        let word = u64::from(generation) << GENERATION_SHIFT | references;
        // Release: who takes a reference by expecting this generation sees the slot as it was filled.
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

    /// The generation in the word, dead or not. Nothing of the slot may be believed for it: that takes
    /// a [`LockRef::get_generation`].
    pub fn generation(&self) -> u32 {
        generation_of(self.0.load(Ordering::Relaxed))
    }

    /// Take a reference from an index alone: only if the slot is still of this `generation`.
    #[inline]
    pub fn get_generation(&self, generation: u32) -> bool {
        // Acquire pairs with `start`: the slot's content is this generation's.
        let got = self.change(Ordering::Acquire, |old| {
            (generation_of(old) == generation && old & Self::COUNT != 0).then(|| Self::one_more(old))
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
        Self::was_last(old)
    }

    /// Whether a put that found this word was the last.
    #[inline]
    fn was_last(old: u64) -> bool {
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
        let killed = self.change(Ordering::Acquire, |old| {
            let sole = old & (Self::COUNT | SPREAD) == Self::ONE;
            sole.then(|| old - Self::ONE)
        });
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

    /// As [`LockRef::get_generation`], telling whether others are at it too.
    #[inline]
    pub fn get_watched(&self, generation: u32) -> Got {
        let old = self.0.load(Ordering::Relaxed);
        if generation_of(old) != generation || old & Self::COUNT == 0 {
            return Got::Dead;
        }
        if old & SPREAD != 0 {
            return Got::Spread;
        }
        let free = P::HELD == Held::Carry || !P::is_locked(old);
        // Acquire, as in `get_generation`.
        let exchanged = free
            && self
                .0
                .compare_exchange(old, Self::one_more(old), Ordering::Acquire, Ordering::Relaxed)
                .is_ok();
        if exchanged {
            Got::Yes
        } else if self.get_generation(generation) {
            Got::Contended
        } else {
            Got::Dead
        }
    }

    /// Whether some references are counted elsewhere. It may change at once.
    pub fn is_spread(&self) -> bool {
        self.0.load(Ordering::Relaxed) & SPREAD != 0
    }

    /// Take one more reference, held already, and vouch for the slot by it: whoever drops it does so after
    /// [`LockRef::unanchor`].
    pub fn get_anchor(&self) {
        let old = self.change(Ordering::Relaxed, |old| Some(Self::one_more(old) | ANCHOR));
        debug_assert!(old.is_some_and(|old| old & Self::COUNT != 0), "get_anchor without a reference");
    }

    /// [`LockRef::unanchor`] and [`LockRef::put`] in one step, where nothing is spread: whether it was the last
    /// reference. `None`: something is, and nothing was done.
    #[must_use = "who drops the last reference tears the slot down"]
    pub fn put_anchor(&self) -> Option<bool> {
        // Release as in `put`.
        let old = self.change(Ordering::Release, |old| {
            (old & SPREAD == 0).then_some((old & !ANCHOR).wrapping_sub(Self::ONE))
        })?;
        Some(Self::was_last(old))
    }

    /// From now on the count is not spread any more. True: it is spread, and the caller has it
    /// gathered before he drops the reference that he vouched by.
    #[must_use = "what is spread must be gathered"]
    pub fn unanchor(&self) -> bool {
        let mut old = self.0.load(Ordering::Relaxed);
        if old & ANCHOR != 0 {
            // Against `spread`, which looks at the bit in the step in which it spreads.
            old = self.0.fetch_and(!ANCHOR, Ordering::Relaxed);
        }
        old & SPREAD != 0
    }

    /// Whether [`LockRef::spread`] would have a chance.
    pub(crate) fn may_spread(&self) -> bool {
        self.0.load(Ordering::Relaxed) & (ANCHOR | SPREAD) == ANCHOR
    }

    /// References may be counted elsewhere from now on, if somebody vouches for this generation. The
    /// caller holds a reference, or knows that somebody vouches.
    pub(crate) fn spread(&self, generation: u32) -> bool {
        let spread = self.change(Ordering::Relaxed, |old| {
            let may = generation_of(old) == generation && old & (ANCHOR | SPREAD) == ANCHOR;
            let few = old & Self::COUNT != 0 && old & Self::COUNT < Self::STRAY;
            (may && few).then(|| (old + Self::BIAS) | SPREAD)
        });
        spread.is_some()
    }

    /// No reference is counted elsewhere any more; `elsewhere` were (it may be below 0).
    pub(crate) fn gather(&self, elsewhere: i64) {
        // Release: what was done with the references that were dropped elsewhere, and that the caller
        // has acquired, happens before the teardown.
        self.change(Ordering::Release, |old| {
            debug_assert!(old & SPREAD != 0, "gather of what is not spread");
            let here = (old & Self::COUNT) as i64 - Self::BIAS as i64;
            let all = elsewhere.checked_mul(Self::ONE as i64).and_then(|n| n.checked_add(here));
            match all {
                Some(all) if all > 0 && all <= Self::MANY as i64 => {
                    Some(old & !(SPREAD | Self::COUNT) | all as u64)
                }
                // Lost or invented references: as a wrapped count.
                _ => std::process::abort(),
            }
        });
    }

    /// Whether references were taken elsewhere and dropped here, or the other way round, so often
    /// that the bias may not suffice for ever.
    pub fn has_strayed(&self) -> bool {
        let word = self.0.load(Ordering::Relaxed);
        word & SPREAD != 0 && (word & Self::COUNT).abs_diff(Self::BIAS) > Self::STRAY
    }

    /// References counted here now. For counters and tests: it may change at once.
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
        // Indices rise with addresses.
        order::enter(Class::AttrLock, std::ptr::from_ref(self) as u64);
        P::lock(&self.0);
    }

    /// Unlock the slot.
    #[inline]
    pub fn unlock(&self) {
        P::unlock(&self.0);
        order::leave(Class::AttrLock);
    }
}
