//! VfsCounters of the caches: hits, misses, waits, bail-outs of the lock-free walk, and driver calls by kind.
//!
//! Each thread counts for itself ([`uvfs_sync::thread_counters`]), so a hit stores nothing that another thread would have
//! to fetch; [`counters`] sums. The counters are the process's: all [`Vfs`](crate::Vfs) instances share them, and
//! they only grow. They synchronise nothing: a sum is not of one moment. [`Counted`](crate::Counted) alone counts
//! driver calls, for the drivers that it wraps.

pub use uvfs_cache::machinery::buffers::lookaside::LookasideCounters;
use uvfs_sync::thread_counters::{self, BUFFERS, LOCK_WAITS, WORDS};

use crate::namei::bailout::{Bail, BailCounts};

/// The indices of a thread's counters; the first are those of `uvfs-sync`.
const HITS: usize = 1;
const MISSES: usize = 2;
const NAME_WAITS: usize = 3;
const RETURNED: usize = 4;
const BAILS: usize = 5;
const CALLS: usize = BAILS + Bail::ALL.len();
const _: () = assert!(HITS > LOCK_WAITS && CALLS + DriverCall::ALL.len() <= BUFFERS);

/// The kinds of driver calls: the methods of [`Driver`](crate::Driver) that may be called repeatedly.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "each is a method of Driver, documented there")]
pub enum DriverCall {
    Lookup,
    Getattr,
    Setattr,
    Create,
    Link,
    Unlink,
    Rmdir,
    Rename,
    Readdir,
    Readlink,
    Open,
    Release,
    Read,
    Write,
    Fallocate,
    Seek,
    Poll,
    Fsync,
    Statfs,
    Getxattr,
    Setxattr,
    Listxattr,
    Removexattr,
    Acl,
    SetAcl,
    Evict,
}

impl DriverCall {
    /// Every kind.
    pub const ALL: [Self; 26] = [
        Self::Lookup,
        Self::Getattr,
        Self::Setattr,
        Self::Create,
        Self::Link,
        Self::Unlink,
        Self::Rmdir,
        Self::Rename,
        Self::Readdir,
        Self::Readlink,
        Self::Open,
        Self::Release,
        Self::Read,
        Self::Write,
        Self::Fallocate,
        Self::Seek,
        Self::Poll,
        Self::Fsync,
        Self::Statfs,
        Self::Getxattr,
        Self::Setxattr,
        Self::Listxattr,
        Self::Removexattr,
        Self::Acl,
        Self::SetAcl,
        Self::Evict,
    ];

    /// The method's name.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Lookup => "lookup",
            Self::Getattr => "getattr",
            Self::Setattr => "setattr",
            Self::Create => "create",
            Self::Link => "link",
            Self::Unlink => "unlink",
            Self::Rmdir => "rmdir",
            Self::Rename => "rename",
            Self::Readdir => "readdir",
            Self::Readlink => "readlink",
            Self::Open => "open",
            Self::Release => "release",
            Self::Read => "read",
            Self::Write => "write",
            Self::Fallocate => "fallocate",
            Self::Seek => "seek",
            Self::Poll => "poll",
            Self::Fsync => "fsync",
            Self::Statfs => "statfs",
            Self::Getxattr => "getxattr",
            Self::Setxattr => "setxattr",
            Self::Listxattr => "listxattr",
            Self::Removexattr => "removexattr",
            Self::Acl => "acl",
            Self::SetAcl => "set_acl",
            Self::Evict => "evict",
        }
    }
}

/// Sums over all threads, running and ended.
#[derive(Clone, Debug)]
pub struct VfsCounters([u64; WORDS]);

impl VfsCounters {
    /// Path walks that took no reference and asked no driver, and single names that the cache knew.
    pub fn hits(&self) -> u64 {
        self.0[HITS]
    }

    /// Names that the cache did not know, for which a driver was asked.
    pub fn misses(&self) -> u64 {
        self.0[MISSES]
    }

    /// Waits for a lock of the caches that another thread held.
    pub fn lock_waits(&self) -> u64 {
        self.0[LOCK_WAITS]
    }

    /// Waits for another thread's lookup of the same name.
    pub fn name_waits(&self) -> u64 {
        self.0[NAME_WAITS]
    }

    /// Lock-free walks that gave up, by reason.
    pub fn bails(&self) -> BailCounts {
        BailCounts::new(|reason| self.0[BAILS + reason as usize])
    }

    /// Activity of the threads' lookasides, which lead to blocks of a device.
    pub fn lookaside(&self) -> LookasideCounters {
        LookasideCounters::of(&self.0)
    }

    /// Calls of this kind that began.
    pub fn calls(&self, call: DriverCall) -> u64 {
        self.0[CALLS + call as usize]
    }

    /// Driver calls that began and have not returned.
    pub fn calls_now(&self) -> u64 {
        let begun = DriverCall::ALL.iter().fold(0u64, |sum, call| sum.wrapping_add(self.calls(*call)));
        // A call may have returned on a thread that was summed before the thread that began it.
        begun.saturating_sub(self.0[RETURNED])
    }
}

/// The counters now. Takes a mutex that threads take only for their first and last count.
pub fn counters() -> VfsCounters {
    VfsCounters(thread_counters::sums())
}

/// Counts a walk or a name that the cache answered alone.
#[inline(always)]
pub(crate) fn hit() {
    thread_counters::count(HITS);
}

/// Counts a name for which a driver is asked.
pub(crate) fn miss() {
    thread_counters::count(MISSES);
}

/// Counts a wait for another's lookup of a name.
pub(crate) fn name_wait() {
    thread_counters::count(NAME_WAITS);
}

/// Counts a lock-free walk that gives up.
pub(crate) fn bail(reason: Bail) {
    thread_counters::count(BAILS + reason as usize);
}

/// Counts a driver call that begins; dropping the result counts its return.
pub(crate) fn begin(call: DriverCall) -> Begun {
    thread_counters::count(CALLS + call as usize);
    Begun
}

/// A driver call that has not returned.
pub(crate) struct Begun;

impl Drop for Begun {
    fn drop(&mut self) {
        thread_counters::count(RETURNED);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Tests that count driver calls hold this: the counters are the process's.
    static COUNTS: parking_lot::Mutex<()> = parking_lot::Mutex::new(());

    #[test]
    fn kinds_index_their_counters_and_have_names_of_their_own() {
        let mut names = std::collections::HashSet::new();
        for (index, call) in DriverCall::ALL.into_iter().enumerate() {
            assert_eq!(call as usize, index, "{}", call.name());
            assert!(names.insert(call.name()));
        }
    }

    /// Rule 20: each reason has a counter of its own, in which nothing else counts. Planted bugs:
    /// rule20-one-counter-for-all, rule20-counters-overlap.
    #[test]
    fn rule20_each_reason_has_a_figure_of_its_own() {
        // No other test of this binary walks a path.
        let _alone = COUNTS.lock();
        let before = counters();
        for (n, reason) in (1..).zip(Bail::ALL) {
            (0..n).for_each(|_| bail(reason));
        }
        drop(DriverCall::ALL.map(begin));
        for _ in 0..100 {
            hit();
            miss();
            name_wait();
        }
        let after = counters();
        for (n, reason) in (1..).zip(Bail::ALL) {
            assert_eq!(after.bails().get(reason) - before.bails().get(reason), n, "{}", reason.name());
        }
    }

    #[test]
    fn a_call_is_under_way_until_it_returns() {
        let _alone = COUNTS.lock();
        // No other test of this binary calls a driver through `Counted`.
        let before = counters();
        let begun = begin(DriverCall::Fsync);
        let during = counters();
        assert_eq!(during.calls(DriverCall::Fsync) - before.calls(DriverCall::Fsync), 1);
        assert_eq!(during.calls_now(), 1);
        drop(begun);
        assert_eq!(counters().calls_now(), 0);
    }
}
