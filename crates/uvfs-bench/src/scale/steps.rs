//! The shared steps of each arm: the hand-overs that one operation pays when other processors do the same.
//!
//! They are counted by hand from the code of the arms ([`crate::arms::kernel`]), which follows the kernel's steps
//! (`docs/threads.md`). `uvfs` has none: `ci/shared-stores.sh` holds that for `stat` and `open`. A load of a line that
//! others store to is a hand-over as a store is, because the line has left with the last one that stored.

use super::model::Station;

/// Hand-overs of a queued spinlock that is contended, from the end of one hold to the end of the next. The lock's word
/// goes to a processor that joins the queue, to the holder that lets go, to the first in the queue that looks, and to
/// the same one that takes it. The waiter's own line goes to the one in front, that passes the place on, and back.
pub const QUEUED_LOCK: f64 = 6.0;

/// The stations of one operation of an arm; `None`: its steps were not counted. All operations are about one file, whose
/// name has more than eight bytes: a shorter one does not share the count's line.
pub fn of(workload: &str, arm: &str) -> Option<Vec<Station>> {
    let stations = match (workload, arm) {
        ("stat-same" | "open-same", "uvfs" | "uvfs-prefix" | "null") => Vec::new(),
        // The name is read, then get and put store to its line.
        ("stat-same" | "open-same", "stock" | "spin") => vec![line(3.0)],
        ("stat-same" | "open-same", "patched" | "patched-spin") => vec![line(2.0)],
        _ => return None,
    };
    Some(stations)
}

/// A line with so many hand-overs an operation.
pub fn line(hand_overs: f64) -> Station {
    Station { lines: hand_overs, hold_ns: 0.0 }
}
