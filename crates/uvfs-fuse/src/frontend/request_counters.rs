//! Counters over the life of a mount: lookups that the kernel holds, and requests that a caching kernel avoids.
//!
//! Relaxed counters. Answering threads count in lines of their own, as long as there are enough lines: a shared
//! line would move between processors with each request. A reader of a counter adds the lines up.

use std::cell::Cell;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};

/// Requests that a kernel which keeps what it knows makes once, or never; see [`Mounted::requests`](crate::Mounted::requests).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[allow(missing_docs, reason = "each is a request of the protocol")]
pub struct Requests {
    pub lookup: u64,
    pub getattr: u64,
    /// READDIRPLUS too.
    pub readdir: u64,
    pub opendir: u64,
    pub open: u64,
    /// Of files.
    pub release: u64,
}

/// See [`Mounted::lookups`](crate::Mounted::lookups).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lookups {
    /// Nodes handed out, each time counted.
    pub given: u64,
    /// Those that have come back.
    pub forgotten: u64,
}

/// Lines of each mount; a power of two.
const LINES: usize = 16;

/// See the module. Lookup counts agree when nothing is outstanding.
#[derive(Default)]
pub(crate) struct Tally([Line; LINES]);

/// The counted events.
#[derive(Clone, Copy)]
pub(crate) enum Count {
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
    pub(crate) fn add(&self, what: Count, count: u64) {
        self.0[line()].0[what as usize].fetch_add(count, Relaxed);
    }

    /// Uncounts a node that was not sent after all.
    pub(crate) fn take_back(&self) {
        self.0[line()].0[Count::Given as usize].fetch_sub(1, Relaxed);
    }

    /// A line with more nodes taken back than given has wrapped; the sum has not.
    fn sum(&self, what: Count) -> u64 {
        self.0.iter().fold(0, |sum: u64, line| sum.wrapping_add(line.0[what as usize].load(Relaxed)))
    }

    /// The lookups that the kernel was given, and those that it has forgotten.
    pub(crate) fn lookups(&self) -> Lookups {
        // In this order, a forget between the two reads cannot be counted before its lookup.
        let forgotten = self.sum(Count::Forgotten);
        Lookups { given: self.sum(Count::Given), forgotten }
    }

    /// The requests that a caching kernel avoids.
    pub(crate) fn requests(&self) -> Requests {
        Requests {
            lookup: self.sum(Count::Lookup),
            getattr: self.sum(Count::Getattr),
            readdir: self.sum(Count::Readdir),
            opendir: self.sum(Count::Opendir),
            open: self.sum(Count::Open),
            release: self.sum(Count::Release),
        }
    }
}
