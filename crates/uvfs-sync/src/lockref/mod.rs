//! Reference count, lock and generation of a recycled slot in one 64-bit word (design rule 2).
//!
//! ```text
//! 63            32   31       30   29          2 1    0
//! |     generation      |anchor | spread |    count   | lock |
//! ```
//!
//! A slot is dead when its count is 0, and stays so until the allocator starts its next generation. From an
//! index alone, a reference is taken by a compare-exchange that expects the generation and a count above 0.
//! So a stale index either finds the generation that it remembers, or fails. Only a thread that already
//! holds a reference adds or subtracts unconditionally, so the word cannot change hands under it. If
//! several threads drop their references, exactly one sees the 1 before its 0: it owns the teardown.
//!
//! Gets and puts succeed while the lock is held, and leave its bits as they are. (The kernel's lockref falls back
//! to a spinlock there.) The lock is a [`bitlock`]: waiting for it is unfair, and waiters sleep.
//!
//! The two bits above the count are for [`crate::percpu_ref`]. *Spread*: some references are counted elsewhere; the
//! count then has a bias, so that it cannot reach 0. *Anchor*: some holder, a name, has a reference and vouches by it
//! for the slot. Before it drops the reference, it clears the anchor bit and gathers the spread references. The count
//! may be spread only while the anchor is set, and the same step checks that.
//!
//! Cost: one read-modify-write for each get and put. A get by index compares the generation in that step.

#[cfg(all(test, loom))]
mod loom_tests;

use std::fmt;

use crate::bitlock;
use crate::lock_order::{self, Class};
use crate::primitives::{AtomicU64, Ordering, fence};

const GENERATION_SHIFT: u32 = 32;
const ANCHOR: u64 = 1 << 31;
const SPREAD: u64 = 1 << 30;
/// Low bits of the word that belong to the lock.
const LOCK_BITS: u32 = 2;
const _: () = assert!(bitlock::LOCK | bitlock::WAIT == (1 << LOCK_BITS) - 1);

/// The word. Zero-valid (generation 0: dead), so it may stand in a [`crate::arena::Slot`].
#[repr(transparent)]
pub struct LockRef(AtomicU64);

impl Default for LockRef {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for LockRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "LockRef(generation {}, count {})", self.generation(), self.count())
    }
}

/// Result of [`LockRef::get_watched`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Got {
    /// The generation is over.
    Dead,
    /// A reference.
    Yes,
    /// A reference; other threads changed the word at the same time.
    Contended,
    /// No reference: they are counted elsewhere, or can be taken by [`LockRef::get_generation`].
    Spread,
}

/// The generation in a word.
fn generation_of(word: u64) -> u32 {
    (word >> GENERATION_SHIFT) as u32
}

impl LockRef {
    const ONE: u64 = 1 << LOCK_BITS;
    const COUNT: u64 = SPREAD - Self::ONE;
    /// References that one slot may have (200 million) before the process is stopped, as `Arc` does. A
    /// directory has one for each of its children.
    const MANY: u64 = Self::COUNT / 8 * 7;
    /// The count of a spread word without any reference.
    const BIAS: u64 = SPREAD / 2;
    /// How far the count of a spread word may stray from the bias before it should be gathered.
    const STRAY: u64 = Self::BIAS / 4;

    /// A dead word of generation 0.
    pub fn new() -> Self {
        Self(AtomicU64::new(0))
    }

    /// Start a new generation with one reference, held by the caller. Only the caller has the slot: it was
    /// dead, and the allocator has handed it out.
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
        // Release: a thread that takes a reference by expecting this generation sees the slot as it was
        // filled.
        self.0.store(word, Ordering::Release);
    }

    /// The generation in the word, dead or not. It proves nothing about the slot's contents: that takes a
    /// [`LockRef::get_generation`].
    pub fn generation(&self) -> u32 {
        generation_of(self.0.load(Ordering::Relaxed))
    }

    /// Take a reference from an index alone: only if the slot is still in this `generation`.
    #[inline]
    pub fn get_generation(&self, generation: u32) -> bool {
        // Acquire pairs with `start`: the slot's contents are this generation's.
        let got = self.change(Ordering::Acquire, |old| {
            (generation_of(old) == generation && old & Self::COUNT != 0).then(|| Self::one_more(old))
        });
        got.is_some()
    }

    /// Take another reference. The caller holds one already.
    #[inline]
    pub fn get_held(&self) {
        let old = self.0.fetch_add(Self::ONE, Ordering::Relaxed);
        debug_assert!(old & Self::COUNT != 0, "get_held without a reference");
        Self::one_more(old);
    }

    /// The word with one reference more.
    #[inline]
    fn one_more(old: u64) -> u64 {
        if old & Self::COUNT > Self::MANY {
            // A count that wrapped would free a slot in use.
            std::process::abort();
        }
        old + Self::ONE
    }

    /// Drop a reference. True for exactly one caller: the slot is now dead, and the caller tears it down;
    /// no get succeeds on it any more.
    #[must_use = "the caller that drops the last reference tears the slot down"]
    #[inline]
    pub fn put(&self) -> bool {
        // Release: all use of the reference happens before the teardown.
        Self::was_last(self.0.fetch_sub(Self::ONE, Ordering::Release))
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

    /// Turn a count of exactly one into dead, for eviction. Any other holder, or a thread that got a
    /// reference from an index a moment ago, keeps the slot. The caller owns the one reference.
    pub fn kill_sole(&self) -> bool {
        // Acquire, as in the last step of `put`.
        let killed = self.change(Ordering::Acquire, |old| {
            let sole = old & (Self::COUNT | SPREAD) == Self::ONE;
            sole.then(|| old - Self::ONE)
        });
        killed.is_some()
    }

    /// Replace the word by the result of `step`, whatever the state of the lock. Returns the word before, or `None`
    /// if `step` refuses.
    #[inline]
    fn change(&self, success: Ordering, step: impl Fn(u64) -> Option<u64>) -> Option<u64> {
        let mut old = self.0.load(Ordering::Relaxed);
        loop {
            match self.0.compare_exchange_weak(old, step(old)?, success, Ordering::Relaxed) {
                Ok(_) => return Some(old),
                Err(now) => old = now,
            }
        }
    }

    /// As [`LockRef::get_generation`]; also tells whether other threads change the word at the same time.
    #[inline]
    pub fn get_watched(&self, generation: u32) -> Got {
        let old = self.0.load(Ordering::Relaxed);
        if generation_of(old) != generation || old & Self::COUNT == 0 {
            return Got::Dead;
        }
        if old & SPREAD != 0 {
            return Got::Spread;
        }
        // Acquire, as in `get_generation`.
        let exchanged =
            self.0.compare_exchange(old, Self::one_more(old), Ordering::Acquire, Ordering::Relaxed).is_ok();
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

    /// Take one more reference, for a caller that holds one, and vouch for the slot by it: it is dropped
    /// only after [`LockRef::unanchor`].
    pub fn get_anchor(&self) {
        let old = self.change(Ordering::Relaxed, |old| Some(Self::one_more(old) | ANCHOR));
        debug_assert!(old.is_some_and(|old| old & Self::COUNT != 0), "get_anchor without a reference");
    }

    /// [`LockRef::unanchor`] and [`LockRef::put`] in one step, if nothing is spread; returns whether it was
    /// the last reference. `None`: references are spread, and nothing was done.
    #[must_use = "the caller that drops the last reference tears the slot down"]
    pub fn put_anchor(&self) -> Option<bool> {
        // Release as in `put`.
        let old = self.change(Ordering::Release, |old| {
            (old & SPREAD == 0).then_some((old & !ANCHOR).wrapping_sub(Self::ONE))
        })?;
        Some(Self::was_last(old))
    }

    /// From now on the count is not spread any more. True: it is spread now, and the caller gathers it
    /// before it drops the reference by which it vouched.
    #[must_use = "spread references must be gathered"]
    pub fn unanchor(&self) -> bool {
        let mut old = self.0.load(Ordering::Relaxed);
        if old & ANCHOR != 0 {
            // Against `spread`, which checks the bit in the step in which it spreads.
            old = self.0.fetch_and(!ANCHOR, Ordering::Relaxed);
        }
        old & SPREAD != 0
    }

    /// Whether [`LockRef::spread`] could succeed.
    pub(crate) fn may_spread(&self) -> bool {
        self.0.load(Ordering::Relaxed) & (ANCHOR | SPREAD) == ANCHOR
    }

    /// References may be counted elsewhere from now on, if some holder vouches for this generation. The
    /// caller holds a reference, or knows that a holder vouches.
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
        // Release: all use of the references that were dropped elsewhere, and that the caller has
        // acquired, happens before the teardown.
        self.change(Ordering::Release, |old| {
            debug_assert!(old & SPREAD != 0, "gather of a count that is not spread");
            let here = (old & Self::COUNT) as i64 - Self::BIAS as i64;
            let all = elsewhere.checked_mul(Self::ONE as i64).and_then(|n| n.checked_add(here));
            match all {
                Some(all) if all > 0 && all <= Self::MANY as i64 => {
                    Some(old & !(SPREAD | Self::COUNT) | all as u64)
                }
                // Lost or invented references: treated as a wrapped count.
                _ => std::process::abort(),
            }
        });
    }

    /// Whether references were taken elsewhere and dropped here, or the other way round, so often that the
    /// bias may not suffice for ever.
    pub(crate) fn has_strayed(&self) -> bool {
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
        lock_order::enter(Class::AttrLock, std::ptr::from_ref(self) as u64);
        bitlock::lock(&self.0);
    }

    /// Unlock the slot.
    #[inline]
    pub fn unlock(&self) {
        bitlock::unlock(&self.0);
        lock_order::leave(Class::AttrLock);
    }
}
