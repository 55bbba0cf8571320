//! The sequence of a published half.
//!
//! Odd while a writer changes the slot. Writers exclude each other by other means (a bucket's or
//! an inode's lock); readers never wait for one, they look again.
//!
//! The race, and its two endings: a reader's loads may run while a writer stores. If any of them
//! sees a store of the writer, then the writer's odd sequence came before that store (release
//! fence in [`SeqCount::write`]) and the reader's closing load comes after its own loads (acquire
//! fence in [`SeqCount::check`]), so the closing load sees at least the odd value and the reader
//! retries. If none of them does, the reader has the old moment's truth, whole.
//!
//! The counter wraps after 2^31 changes; a reader would have to sleep through exactly that many
//! between two of its own instructions. What outlives a walk stores a generation, not a sequence.

use crate::primitives::{AtomicU32, AtomicU64, Ordering, fence};

/// A sequence counter. Zero-valid, so it may stand in a [`crate::arena::Slot`].
#[derive(Debug, Default)]
#[repr(transparent)]
pub struct SeqCount(AtomicU32);

/// Dropped only if a write section unwinds, and then aborts the process: an odd sequence for
/// ever would hang readers.
struct AbortOnUnwind;

impl Drop for AbortOnUnwind {
    fn drop(&mut self) {
        if !cfg!(loom) {
            std::process::abort();
        }
    }
}

/// A write section; see [`SeqCount::open`].
#[must_use = "dropping it aborts"]
pub struct Section {
    seq: u32,
    unwind: AbortOnUnwind,
}

impl std::fmt::Debug for Section {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Section({})", self.seq)
    }
}

impl SeqCount {
    /// A new, even counter.
    pub fn new() -> Self {
        Self(AtomicU32::new(0))
    }

    /// The bare word, for slots in which it means something else for other kinds of object.
    #[inline]
    pub fn raw(&self) -> &AtomicU32 {
        &self.0
    }

    /// Start reading: the sequence, or `None` while a writer is inside.
    #[inline]
    pub fn begin(&self) -> Option<u32> {
        // Acquire: pairs with the release store that ended the last write section, so that what
        // it stored is seen by the loads that follow.
        let seq = self.0.load(Ordering::Acquire);
        (seq & 1 == 0).then_some(seq)
    }

    /// Whether nothing changed since `begin` returned `seq`.
    #[inline]
    pub fn check(&self, seq: u32) -> bool {
        // Pairs with the release fence in `write`: see the module's head.
        fence(Ordering::Acquire);
        self.0.load(Ordering::Relaxed) == seq
    }

    /// Change what the sequence guards. The caller excludes other writers. `f` must only store:
    /// it may not block, and a panic in it aborts.
    #[inline(always)]
    pub fn write<R>(&self, f: impl FnOnce() -> R) -> R {
        let section = self.open();
        let r = f();
        self.close(section);
        r
    }

    /// [`SeqCount::write`] in two steps, where a closure would keep in memory what is changed. A section that is dropped
    /// aborts.
    #[inline(always)]
    pub fn open(&self) -> Section {
        let unwind = AbortOnUnwind;
        let seq = self.0.load(Ordering::Relaxed);
        debug_assert_eq!(seq & 1, 0, "two writers in one seqcount");
        self.0.store(seq.wrapping_add(1), Ordering::Relaxed);
        // A reader that sees one of the stores of `f` must see the odd value too.
        fence(Ordering::Release);
        Section { seq, unwind }
    }

    /// Ends a section of this sequence.
    #[inline(always)]
    pub fn close(&self, section: Section) {
        let Section { seq, unwind } = section;
        self.0.store(seq.wrapping_add(2), Ordering::Release);
        // Not dropped: it may be that the thread unwinds already, and this section runs in a
        // destructor on its way.
        std::mem::forget(unwind);
    }
}

/// Bits that are all set in a sequence once in 2^29 changes, before it moves on.
const WRAP_STEP: u32 = (1 << 30) - 2;

/// See [`GenSeq::wraps`]; a plain word under the model checker too, which comes to no wrap.
static WRAPS: std::sync::atomic::AtomicU32 = std::sync::atomic::AtomicU32::new(0);

/// A slot's generation and a sequence in one word, so that one load tells whether both are what they were:
/// what outlives a look (a position in a walk, a cached path) keeps the whole word.
///
/// Generation in the upper half, sequence in the lower. Where a slot has no use for the sequence the lower
/// half may hold something else; no generation then begins or ends without the word moving.
#[derive(Debug, Default)]
#[repr(transparent)]
pub struct GenSeq(AtomicU64);

impl GenSeq {
    /// Generation 0, sequence 0.
    pub fn new() -> Self {
        Self(AtomicU64::new(0))
    }

    /// The generation of a word.
    #[inline(always)]
    pub const fn generation_of(word: u64) -> u32 {
        (word >> 32) as u32
    }

    /// Whether a word is of a moment in which a writer was inside.
    #[inline(always)]
    pub const fn is_odd(word: u64) -> bool {
        word & 1 != 0
    }

    /// The word, to remember.
    #[inline(always)]
    pub fn load(&self) -> u64 {
        // Acquire, as in `SeqCount::begin`.
        self.0.load(Ordering::Acquire)
    }

    /// The generation, and the lower half.
    #[inline(always)]
    pub fn halves(&self) -> (u32, u32) {
        let word = self.0.load(Ordering::Relaxed);
        (Self::generation_of(word), word as u32)
    }

    /// Whether the word is still the one remembered.
    #[inline(always)]
    pub fn check(&self, word: u64) -> bool {
        // As in `SeqCount::check`.
        fence(Ordering::Acquire);
        self.0.load(Ordering::Relaxed) == word
    }

    /// Moves at least twice before any sequence has gone once around: what keeps words for longer
    /// than a walk keeps this with them. (It may go around itself after 2^61 changes.)
    #[inline(always)]
    pub fn wraps() -> u32 {
        WRAPS.load(std::sync::atomic::Ordering::Acquire)
    }

    /// Set both halves; the caller excludes other writers.
    pub fn set(&self, generation: u32, low: u32) {
        self.0.store(u64::from(generation) << 32 | u64::from(low), Ordering::Relaxed);
    }

    /// As [`SeqCount::write`].
    #[inline(always)]
    pub fn write<R>(&self, f: impl FnOnce() -> R) -> R {
        let unwind = AbortOnUnwind;
        let (generation, seq) = self.halves();
        debug_assert_eq!(seq & 1, 0, "two writers in one sequence");
        self.set(generation, seq.wrapping_add(1));
        // A reader that sees one of the stores of `f` must see the odd value too.
        fence(Ordering::Release);
        let r = f();
        if seq & WRAP_STEP == WRAP_STEP {
            // Before the word moves on: who sees it there sees the count.
            WRAPS.fetch_add(1, std::sync::atomic::Ordering::Release);
        }
        self.0.store(u64::from(generation) << 32 | u64::from(seq.wrapping_add(2)), Ordering::Release);
        // As in `SeqCount::write`.
        std::mem::forget(unwind);
        r
    }
}

#[cfg(all(test, loom))]
mod loom_tests {
    use super::*;
    use crate::primitives::Arc;

    /// Rules 3 and 7: what is copied under an unchanged sequence is one moment's truth.
    /// Weakening either fence or either ordering above makes this fail. The reader is the spawned
    /// thread: loom does not see all that a writer that loads before it stores may do to one that
    /// was there first.
    #[test]
    fn loom_rule3_and_7_a_copy_is_one_moments_truth() {
        loom::model(|| {
            let s = Arc::new((SeqCount::new(), AtomicU64::new(0), AtomicU64::new(0)));
            let r = s.clone();
            let reader = loom::thread::spawn(move || {
                let Some(seq) = r.0.begin() else { return };
                let a = r.1.load(Ordering::Relaxed);
                let b = r.2.load(Ordering::Relaxed);
                if r.0.check(seq) {
                    assert_eq!(a, b, "torn copy");
                    assert_eq!(a * 2, u64::from(seq), "an old copy under a new sequence");
                }
            });
            for i in 1..=2 {
                s.0.write(|| {
                    s.1.store(i, Ordering::Relaxed);
                    s.2.store(i, Ordering::Relaxed);
                });
            }
            reader.join().unwrap();
        });
    }

    /// The same of a sequence that shares its word with a generation. Planted bugs:
    /// rule3-stamp-write-without-fence, rule3-stamp-check-without-fence, rule3-stamp-load-relaxed,
    /// rule3-stamp-end-relaxed.
    #[test]
    fn loom_rule3_and_7_a_stamp_is_one_moments_too() {
        loom::model(|| {
            let s = Arc::new((GenSeq::new(), AtomicU64::new(0), AtomicU64::new(0)));
            s.0.set(7, 0);
            let r = s.clone();
            let reader = loom::thread::spawn(move || {
                let word = r.0.load();
                let a = r.1.load(Ordering::Relaxed);
                let b = r.2.load(Ordering::Relaxed);
                if !GenSeq::is_odd(word) && r.0.check(word) {
                    assert_eq!(GenSeq::generation_of(word), 7);
                    assert_eq!(a, b, "torn copy");
                    assert_eq!(a * 2, word & u64::from(u32::MAX), "an old copy under a new sequence");
                }
            });
            for i in 1..=2 {
                s.0.write(|| {
                    s.1.store(i, Ordering::Relaxed);
                    s.2.store(i, Ordering::Relaxed);
                });
            }
            reader.join().unwrap();
        });
    }
}
