//! A look at the first slots of a bucket: the path of nearly all hits.
//!
//! A plain loop in the caller, not a closure, so that the values to compare with stay in registers. The
//! slots are counted up, not computed from the tags. The processor then continues with a predicted slot,
//! and its loads there do not wait for the comparison of tags. If the same names are looked up repeatedly,
//! that is half of the time (and if they are not, cache misses dominate).

use super::bucket_line::Line;
use super::table::Seen;
use crate::primitives::Ordering;

/// Result of a look. It covers only the first eight slots of the first line, and an index may be 0.
#[derive(Debug)]
pub struct Glance<'a> {
    line: &'a Line,
    seen: Seen,
    /// The next slot, and the marks of it and those after it, in the highest bit of a byte each.
    slot: usize,
    marks: u64,
}

impl<'a> Glance<'a> {
    #[inline(always)]
    pub(super) fn new(line: &'a Line, bucket: u32, tag: u8) -> Self {
        // Acquire: pairs with the unlock of the last thread that changed the chain. Either this sees the
        // whole change, or the header has moved when it is looked at again.
        let header = line.header.load(Ordering::Acquire);
        Self { line, seen: Seen { header, bucket }, slot: 0, marks: line.first_marks(tag) }
    }

    /// The state of the bucket before its entries were read.
    #[inline(always)]
    pub fn seen(&self) -> Seen {
        self.seen
    }
}

impl Iterator for Glance<'_> {
    type Item = u32;

    #[inline(always)]
    fn next(&mut self) -> Option<u32> {
        if self.marks == 0 {
            return None;
        }
        while self.marks & 0x80 == 0 {
            self.marks >>= 8;
            self.slot += 1;
        }
        let slot = self.slot;
        self.marks >>= 8;
        self.slot += 1;
        Some(self.line.index(slot & 7))
    }
}
