//! Counters over the life of a mount: lookups that the kernel holds, and requests that a caching kernel avoids.
//!
//! Relaxed counters. Answering threads count in lines of their own, as long as there are enough lines: a shared
//! line would move between processors with each request. A reader of a counter adds the lines up.

use std::cell::Cell;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};

use super::Frontend;
use crate::mount::mounted::{Lookups, Requests};

/// Lines of each mount; a power of two.
const LINES: usize = 16;

/// See the module. Lookup counts agree when nothing is outstanding.
#[derive(Default)]
pub(super) struct Tally([Line; LINES]);

/// The counted events.
#[derive(Clone, Copy)]
pub(super) enum Count {
    Given,
    Forgotten,
    Lookup,
    Getattr,
    Readdir,
    Opendir,
    Open,
    Release,
}

/// A word for each [`Count`].
#[derive(Default)]
#[repr(align(64))]
struct Line([AtomicU64; 8]);

const _: () = assert!(size_of::<Line>() == 64 && Count::Release as usize == 7 && LINES.is_power_of_two());

/// The calling thread's line; threads have numbers in the order in which they first count.
fn line() -> usize {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    thread_local! {
        static MINE: Cell<usize> = const { Cell::new(usize::MAX) };
    }
    let mut mine = MINE.get();
    if mine == usize::MAX {
        mine = NEXT.fetch_add(1, Relaxed) % LINES;
        MINE.set(mine);
    }
    mine
}

impl Tally {
    pub(super) fn add(&self, what: Count, count: u64) {
        self.0[line()].0[what as usize].fetch_add(count, Relaxed);
    }

    /// Uncounts a node that was not sent after all.
    pub(super) fn take_back(&self) {
        self.0[line()].0[Count::Given as usize].fetch_sub(1, Relaxed);
    }

    /// A line with more nodes taken back than given has wrapped; the sum has not.
    fn sum(&self, what: Count) -> u64 {
        self.0.iter().fold(0, |sum: u64, line| sum.wrapping_add(line.0[what as usize].load(Relaxed)))
    }
}

impl Frontend {
    pub(crate) fn lookups(&self) -> Lookups {
        let tally = &self.core.tally;
        // In this order, a forget between the two reads cannot be counted before its lookup.
        let forgotten = tally.sum(Count::Forgotten);
        Lookups { given: tally.sum(Count::Given), forgotten }
    }

    pub(crate) fn requests(&self) -> Requests {
        let sum = |what| self.core.tally.sum(what);
        Requests {
            lookup: sum(Count::Lookup),
            getattr: sum(Count::Getattr),
            readdir: sum(Count::Readdir),
            opendir: sum(Count::Opendir),
            open: sum(Count::Open),
            release: sum(Count::Release),
        }
    }
}
