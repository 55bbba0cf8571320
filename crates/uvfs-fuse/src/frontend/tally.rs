//! What is counted over the life of a mount: lookups that the kernel has, and requests that one which keeps what it
//! knows does not make.
//!
//! Relaxed counters, each on a line of its own.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use super::Frontend;
use crate::mounted::{Lookups, Requests};

/// See the module. Lookups agree when nothing is outstanding.
#[derive(Default)]
pub(super) struct Tally {
    given: Line,
    forgotten: Line,
    pub(super) lookup: Line,
    pub(super) getattr: Line,
    pub(super) readdir: Line,
    pub(super) opendir: Line,
    pub(super) open: Line,
    pub(super) release: Line,
}

#[derive(Default)]
#[repr(align(64))]
pub(super) struct Line(AtomicU64);

impl Line {
    pub(super) fn add(&self, count: u64) {
        self.0.fetch_add(count, Relaxed);
    }
}

impl Tally {
    pub(super) fn give(&self) {
        self.given.add(1);
    }

    /// One that did not come to be sent.
    pub(super) fn take_back(&self) {
        self.given.0.fetch_sub(1, Relaxed);
    }

    pub(super) fn forget(&self, count: u64) {
        self.forgotten.add(count);
    }
}

impl Frontend {
    pub(crate) fn lookups(&self) -> Lookups {
        let tally = &self.core.tally;
        // In this order a forget between the two reads cannot come out ahead of its lookup.
        let forgotten = tally.forgotten.0.load(Relaxed);
        Lookups { given: tally.given.0.load(Relaxed), forgotten }
    }

    pub(crate) fn requests(&self) -> Requests {
        let tally = &self.core.tally;
        let [lookup, getattr, readdir, opendir, open, release] =
            [&tally.lookup, &tally.getattr, &tally.readdir, &tally.opendir, &tally.open, &tally.release]
                .map(|line| line.0.load(Relaxed));
        Requests { lookup, getattr, readdir, opendir, open, release }
    }
}
