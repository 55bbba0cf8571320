//! The shared steps of each arm: the hand-overs that one operation pays when other processors do the same.
//!
//! They are counted by hand from the arms' code, which follows the kernel's steps (`docs/threads.md`). `uvfs` has none:
//! `ci/shared-stores.sh` holds that for `stat`, `open` and the lookups of kernfs. A load of a line that others store to
//! is a hand-over as a store is, because the line has left with the last one that stored.

use super::model::Station;

/// Hand-overs of a queued spinlock that is contended, from the end of one hold to the end of the next. The lock's word
/// goes to a processor that joins the queue, to the holder that lets go, to the first in the queue that looks, and to
/// the same one that takes it. The waiter's own line goes to the one in front, that passes the place on, and back.
pub const QUEUED_LOCK: f64 = 6.0;

/// The stations of one operation of an arm; `None`: its steps were not counted. All operations are about one file or
/// one tree, the worst case.
pub fn of(workload: &str, arm: &str) -> Option<Vec<Station>> {
    let stations = match (workload, arm) {
        ("stat-same" | "open-same", "uvfs" | "uvfs-prefix" | "null" | "hashbrown") => Vec::new(),
        // The name is read between get and put; both store to its line.
        ("stat-same" | "open-same", "stock" | "spin") => vec![line(3.0)],
        ("stat-same" | "open-same", "patched" | "patched-spin") => vec![line(2.0)],
        // Two stores to the lock's word for each of three holds: the directory's lookup, the file's, the open.
        ("showgids", "stock") => vec![line(6.0)],
        ("showgids", "patched" | "uvfs") => Vec::new(),
        _ => return None,
    };
    Some(stations)
}

/// A line with so many hand-overs an operation.
pub fn line(hand_overs: f64) -> Station {
    Station { lines: hand_overs, hold_ns: 0.0 }
}
