//! Threads whose written files stay small. Their next file is written by requests, and not lent.
//!
//! Lending a file and taking it back costs the server as much as some WRITE requests: measured, as four to eight. The
//! size that a new file will have is not known when it is opened. So the files that its opener wrote before decide.
//! A file was *cheap* if writing it by requests cost less than [`CHEAP`] units, a unit being a request or
//! [`UNIT`] bytes. Of a lent file no request comes: it counts as written by one of its size. After [`RUN`] cheap files in a
//! row the next is not lent, until one is not cheap. So a program that unpacks a tree of small files lends three of
//! them, and one that writes a journal by many short writes lends at least three of four.
//!
//! The kernel names the thread in each request. Threads share 256 words by the remainder of their numbers. A thread
//! that meets another's word begins anew, so a lost word only costs time. Nothing is locked, and no word depends on
//! another.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// So many cheap files in a row.
const RUN: u64 = 3;
/// The most units of a cheap file.
const CHEAP: u32 = 4;
/// Bytes of a unit: copying them costs about as much as a request.
const UNIT: u32 = 16 << 10;

/// Words; a power of two.
const WORDS: usize = 256;

/// See the module.
pub(super) struct SmallWriters(Box<[AtomicU64; WORDS]>);

impl Default for SmallWriters {
    fn default() -> Self {
        Self(Box::new([const { AtomicU64::new(0) }; WORDS]))
    }
}

/// The units of one WRITE request.
pub(super) fn units(len: u64) -> u32 {
    1 + u32::try_from(len).unwrap_or(u32::MAX) / UNIT
}

/// Whether a file with so many units was cheap.
pub(super) fn is_cheap(units: u32) -> bool {
    units <= CHEAP
}

impl SmallWriters {
    fn word(&self, thread: u32) -> &AtomicU64 {
        &self.0[thread as usize % WORDS]
    }

    /// Whether the next file that this thread writes is expected to be cheap. Of thread 0, which is not visible to
    /// the server, nothing is known.
    pub(super) fn expects(&self, thread: u32) -> bool {
        let word = self.word(thread).load(Relaxed);
        thread != 0 && word >> 32 == u64::from(thread) && word & u64::from(u32::MAX) >= RUN
    }

    /// A file that this thread opened for writing is closed.
    pub(super) fn closed(&self, thread: u32, cheap: bool) {
        let owner = u64::from(thread) << 32;
        let word = self.word(thread);
        let before = word.load(Relaxed);
        let run = if before & !u64::from(u32::MAX) == owner { before & u64::from(u32::MAX) } else { 0 };
        let run = if cheap { (run + 1).min(RUN) } else { 0 };
        word.store(owner | run, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn three_cheap_files_in_a_row_let_the_next_be_expected_to_be_cheap() {
        let writers = SmallWriters::default();
        for (cheap, expected) in
            [(true, false), (true, false), (true, true), (true, true), (false, false), (true, false)]
        {
            writers.closed(7, cheap);
            assert_eq!(writers.expects(7), expected);
        }
        (0..3).for_each(|_| writers.closed(0, true));
        assert!(!writers.expects(0), "all threads that are not visible have this number");
    }

    #[test]
    fn threads_that_share_a_word_are_not_taken_for_each_other() {
        let (writers, other) = (SmallWriters::default(), 7 + WORDS as u32);
        (0..3).for_each(|_| writers.closed(7, true));
        assert!(writers.expects(7) && !writers.expects(other));
        writers.closed(other, true);
        assert!(!writers.expects(7) && !writers.expects(other));
    }

    #[test]
    fn many_requests_and_much_data_are_not_cheap() {
        assert!(is_cheap(3 * units(4096)) && is_cheap(units(48 << 10)));
        assert!(!is_cheap(5 * units(1)) && !is_cheap(units(64 << 10)) && !is_cheap(units(u64::MAX)));
    }
}
