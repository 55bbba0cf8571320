//! A look at the first slots of a bucket: the way nearly all hits go.
//!
//! A plain loop in the caller, and not a closure, so that what the entries are compared with stays
//! in registers. The slots are counted up, not computed from the tags: the processor then goes on
//! with a predicted slot, and what it reads there does not wait for the comparison of tags. Where
//! the same names are looked up again and again, that is half of the time (and where they are not,
//! misses of the cache are what counts).

use super::line::Line;
use super::table::Seen;
use crate::primitives::Ordering;

/// What a look met. It shows only the first eight slots of the first line, and an index may be 0.
#[derive(Debug)]
pub struct Glance<'a> {
    line: &'a Line,
    seen: Seen,
    /// The slot that is next, and the marks of it and those after it, the highest bit of a byte each.
    slot: usize,
    marks: u64,
}

impl<'a> Glance<'a> {
    #[inline(always)]
    pub(super) fn new(line: &'a Line, bucket: u32, tag: u8) -> Self {
        // Acquire: pairs with the unlock of whoever changed the chain last. All of a change is
        // seen, or the header has moved when it is looked at again.
        let header = line.header.load(Ordering::Acquire);
        Self { line, seen: Seen { header, bucket }, slot: 0, marks: line.first_marks(tag) }
    }

    /// What was seen of the bucket before its entries.
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
