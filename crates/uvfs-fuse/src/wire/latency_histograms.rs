//! How long requests take, from their arrival to their answer: a histogram for each kind.
//!
//! A request that the front end answers at once takes a microsecond or two, and two looks at the clock would be a
//! twentieth of that. So of those each thread times one in [`ONE_OF`] of each kind, which counts for as many. A count for all kinds
//! together would go wrong where requests come in a fixed order. A request that waits
//! for a driver or for memory is always timed, from the moment at which it begins to wait or before.
//!
//! Counts are atomic and relaxed; no lock. A histogram takes 3 KiB, once a request of its kind has been timed.

use std::cell::Cell;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use histogram::AtomicHistogram;

use super::request::opcode;

/// Of requests that are answered at once, one in so many is timed.
const ONE_OF: u32 = 16;

/// Bounds of the buckets that [`Latency::below`] counts, in nanoseconds: 1, 2 and 5 of each power of ten from a
/// microsecond to ten seconds.
pub const BOUNDS: [u64; 22] = [
    1_000,
    2_000,
    5_000,
    10_000,
    20_000,
    50_000,
    100_000,
    200_000,
    500_000,
    1_000_000,
    2_000_000,
    5_000_000,
    10_000_000,
    20_000_000,
    50_000_000,
    100_000_000,
    200_000_000,
    500_000_000,
    1_000_000_000,
    2_000_000_000,
    5_000_000_000,
    10_000_000_000,
];

/// A kind of requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "each is a request of the protocol, or the few that are alike")]
pub enum RequestKind {
    Lookup,
    Getattr,
    Setattr,
    /// CREATE, MKNOD, MKDIR, SYMLINK, LINK, TMPFILE.
    Create,
    /// UNLINK, RMDIR.
    Remove,
    Rename,
    Readlink,
    /// OPEN, OPENDIR.
    Open,
    Read,
    Write,
    /// RELEASE, RELEASEDIR.
    Release,
    /// READDIR, READDIRPLUS.
    Readdir,
    /// FSYNC, FSYNCDIR.
    Fsync,
    /// The four of extended attributes.
    Xattr,
    /// All others.
    Other,
}

impl RequestKind {
    /// All of them.
    pub const ALL: [Self; 15] = [
        Self::Lookup,
        Self::Getattr,
        Self::Setattr,
        Self::Create,
        Self::Remove,
        Self::Rename,
        Self::Readlink,
        Self::Open,
        Self::Read,
        Self::Write,
        Self::Release,
        Self::Readdir,
        Self::Fsync,
        Self::Xattr,
        Self::Other,
    ];

    /// Its name in `.uvfs`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Lookup => "lookup",
            Self::Getattr => "getattr",
            Self::Setattr => "setattr",
            Self::Create => "create",
            Self::Remove => "remove",
            Self::Rename => "rename",
            Self::Readlink => "readlink",
            Self::Open => "open",
            Self::Read => "read",
            Self::Write => "write",
            Self::Release => "release",
            Self::Readdir => "readdir",
            Self::Fsync => "fsync",
            Self::Xattr => "xattr",
            Self::Other => "other",
        }
    }

    pub(super) fn of(number: u32) -> Self {
        use opcode::*;
        match number {
            LOOKUP => Self::Lookup,
            GETATTR | STATX => Self::Getattr,
            SETATTR => Self::Setattr,
            CREATE | MKNOD | MKDIR | SYMLINK | LINK | TMPFILE => Self::Create,
            UNLINK | RMDIR => Self::Remove,
            RENAME | RENAME2 => Self::Rename,
            READLINK => Self::Readlink,
            OPEN | OPENDIR => Self::Open,
            READ => Self::Read,
            WRITE => Self::Write,
            RELEASE | RELEASEDIR => Self::Release,
            READDIR | READDIRPLUS => Self::Readdir,
            FSYNC | FSYNCDIR => Self::Fsync,
            SETXATTR | GETXATTR | LISTXATTR | REMOVEXATTR => Self::Xattr,
            _ => Self::Other,
        }
    }
}

/// The times of one kind of requests since the mount.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Latency {
    /// Requests, as far as they were timed; those answered at once are estimated from the timed ones.
    pub count: u64,
    /// Their nanoseconds.
    pub sum: u64,
    /// Half of them took at most so many nanoseconds; as all figures here, too large by an eighth at most.
    pub p50: u64,
    /// 99 of 100 took at most so many.
    pub p99: u64,
    /// The longest.
    pub max: u64,
    /// How many took at most as long as each of [`BOUNDS`].
    pub below: [u64; BOUNDS.len()],
}

/// See the module.
#[derive(Default)]
pub(crate) struct Latencies([Times; RequestKind::ALL.len()]);

#[derive(Default)]
struct Times {
    histogram: OnceLock<Option<AtomicHistogram>>,
    sum: AtomicU64,
}

/// The clock of one request.
#[derive(Clone, Copy, Debug)]
pub(super) struct Timed {
    kind: RequestKind,
    began: Option<Instant>,
    counts: u32,
}

impl Timed {
    /// For a request that has just come.
    pub(super) fn begin(kind: RequestKind) -> Self {
        thread_local! {
            static UNTIMED: [Cell<u32>; RequestKind::ALL.len()] =
                const { [const { Cell::new(0) }; RequestKind::ALL.len()] };
        }
        let is_timed = UNTIMED.with(|untimed| {
            let untimed = &untimed[kind as usize];
            let left = untimed.get();
            untimed.set(left.checked_sub(1).unwrap_or(ONE_OF - 1));
            left == 0
        });
        Self { kind, began: is_timed.then(Instant::now), counts: ONE_OF }
    }

    /// It begins to wait.
    pub(super) fn waits(&mut self) {
        self.began.get_or_insert_with(Instant::now);
        self.counts = 1;
    }

    /// It is answered.
    pub(super) fn end(self, all: &Latencies) {
        if let Some(began) = self.began {
            all.record(self.kind, began.elapsed(), self.counts);
        }
    }
}

impl Latencies {
    fn record(&self, kind: RequestKind, took: Duration, counts: u32) {
        /// Eight buckets for each power of two, up to 18 minutes.
        const MOST: u64 = (1 << 40) - 1;
        let nanoseconds = u64::try_from(took.as_nanos()).unwrap_or(MOST).min(MOST);
        let times = &self.0[kind as usize];
        // The arguments are good ones, so there is a histogram.
        if let Some(histogram) = times.histogram.get_or_init(|| AtomicHistogram::new(3, 40).ok()) {
            let _ = histogram.add(nanoseconds, u64::from(counts));
            times.sum.fetch_add(nanoseconds * u64::from(counts), Relaxed);
        }
    }

    /// The times of a kind.
    pub(crate) fn of(&self, kind: RequestKind) -> Latency {
        let times = &self.0[kind as usize];
        let Some(histogram) = times.histogram.get().and_then(Option::as_ref) else {
            return Latency::default();
        };
        let buckets: Vec<(u64, u64)> =
            histogram.load().iter().map(|bucket| (bucket.end(), bucket.count())).collect();
        let count: u64 = buckets.iter().map(|(_, count)| count).sum();
        let mut latency = Latency { count, sum: times.sum.load(Relaxed), ..Latency::default() };
        let mut so_far = 0;
        for (end, in_it) in buckets.into_iter().filter(|(_, in_it)| *in_it > 0) {
            let before = so_far;
            so_far += in_it;
            let reaches = |share: u64| before * 100 < count * share && so_far * 100 >= count * share;
            if reaches(50) {
                latency.p50 = end;
            }
            if reaches(99) {
                latency.p99 = end;
            }
            latency.max = end;
            for (bound, below) in BOUNDS.iter().zip(&mut latency.below) {
                *below += if end <= *bound { in_it } else { 0 };
            }
        }
        latency
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_too_large_by_an_eighth_at_most() {
        let all = Latencies::default();
        assert_eq!(all.of(RequestKind::Read), Latency::default());
        for micros in 1..=1000 {
            all.record(RequestKind::Read, Duration::from_micros(micros), 1);
        }
        all.record(RequestKind::Read, Duration::from_secs(3600), 1);
        let read = all.of(RequestKind::Read);
        assert_eq!(read.count, 1001);
        for (found, right) in [(read.p50, 501_000), (read.p99, 991_000)] {
            assert!(found >= right && found <= right + right / 8, "{found} of {right}");
        }
        assert_eq!(read.max, (1 << 40) - 1);
        // Buckets do not end at the bounds: those that cross one count above it.
        assert!((430..=500).contains(&read.below[8]), "{read:?}");
        assert_eq!(read.below[21], 1000);
        assert_eq!(all.of(RequestKind::Write).count, 0);
    }

    #[test]
    fn one_in_sixteen_is_timed_and_every_one_that_waits() {
        let all = Latencies::default();
        for _ in 0..ONE_OF * 10 {
            Timed::begin(RequestKind::Lookup).end(&all);
        }
        assert_eq!(all.of(RequestKind::Lookup).count, u64::from(ONE_OF * 10));
        for _ in 0..100 {
            let mut timed = Timed::begin(RequestKind::Open);
            timed.waits();
            timed.end(&all);
        }
        assert_eq!(all.of(RequestKind::Open).count, 100);
    }

    #[test]
    fn a_load_with_a_fixed_order_is_counted_by_kind() {
        let all = Latencies::default();
        let kinds = [RequestKind::Getattr, RequestKind::Create, RequestKind::Write, RequestKind::Release];
        for _ in 0..ONE_OF * 10 {
            kinds.iter().for_each(|&kind| Timed::begin(kind).end(&all));
        }
        for kind in kinds {
            assert_eq!(all.of(kind).count, u64::from(ONE_OF * 10), "{kind:?}");
        }
    }

    #[test]
    fn kinds_are_in_the_order_of_their_numbers() {
        assert!(RequestKind::ALL.iter().enumerate().all(|(at, kind)| *kind as usize == at));
        assert_eq!(RequestKind::of(opcode::READDIRPLUS), RequestKind::Readdir);
        assert_eq!(RequestKind::of(opcode::LSEEK), RequestKind::Other);
    }
}
