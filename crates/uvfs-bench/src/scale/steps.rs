//! The shared steps of each arm: the hand-overs that one operation pays when other processors do the same.
//!
//! They are counted by hand from the code of the arms ([`crate::arms`]), which follow the kernel's steps
//! (`docs/threads.md`). A load of a line that others store to is a hand-over as a store is, because the line has left
//! with the last one that stored. `uvfs` has none in `stat-same` and `open-same`: `ci/shared-stores.sh` holds that.
//!
//! Where all operations take one lock and the time that it is held was not measured, [`SharedSteps::Lock`] has the number of
//! holds, and the time is fitted to the report's two threads.
//!
//! Not counted, so not predicted: `showgids` over a link or with changes; `create`, `unlink` and `stream` of `tree`,
//! where a model's arms pay for uvfs too; `make-end` of `both` and `uvfs`, whose memory comes from a slab that all share.

use serde_json::Value;

use super::model::Station;
use crate::report::Row;

/// Hand-overs of a queued spinlock that is contended, from the end of one hold to the end of the next. The lock's word
/// goes to a processor that joins the queue, to the holder that lets go, to the first in the queue that looks, and to
/// the same one that takes it. The waiter's own line goes to the one in front, that passes the place on, and back.
pub const QUEUED_LOCK: f64 = 6.0;

/// The same of a lock that two threads share: its word, taken and given back.
const LOCK_OF_TWO: f64 = 2.0;

/// The same of a lock that so many processors share.
pub fn lock_of(processors: usize) -> f64 {
    if processors <= 2 { LOCK_OF_TWO } else { QUEUED_LOCK }
}

/// Directories on the way of `showgids`, the root included; each has one name below it on that way.
const DIRECTORIES: usize = 7;

/// Bytes of a name in a dentry's first line ([`crate::arms::kernel::dentry`]).
const FIRST_LINE: u64 = 8;

/// Sections of the tree lock for a file of `showgids`: each directory's permission, each name, the file's permission.
pub const SECTIONS: f64 = 2.0 * DIRECTORIES as f64 + 1.0;

/// The shared steps of one operation.
#[derive(Clone, Debug)]
pub enum SharedSteps {
    /// Lines, all counted.
    Lines(Vec<Station>),
    /// A lock that each operation holds so many times, for an unknown time.
    Lock(f64),
}

/// The steps of a row's arm; `None`: they were not counted. The hand-overs of a lock are those
/// that so many `processors` need ([`lock_of`]).
pub fn of(workload: &str, row: &Row, processors: usize) -> Option<SharedSteps> {
    let arm = row.arm.as_str();
    let is = |key: &str, value: &str| row.params.get(key).and_then(Value::as_str) == Some(value);
    let none = |key: &str| row.params.get(key).and_then(Value::as_u64).unwrap_or(0) == 0;
    match workload {
        "stat-same" | "open-same" => {
            let bytes = row.params.get("name_bytes").and_then(Value::as_u64);
            of_one_file(arm, bytes.is_some_and(|bytes| bytes <= FIRST_LINE)).map(SharedSteps::Lines)
        }
        "showgids" if none("links") && none("changes") => {
            of_showgids(arm, lock_of(processors)).map(SharedSteps::Lines)
        }
        "icache" if is("phase", "stat") || is("phase", "get") => match arm {
            "stock" | "lists" => Some(SharedSteps::Lock(1.0)),
            // Inodes at random: of a hundred thousand and more, two processors seldom want one, or one bucket.
            _ => Some(SharedSteps::Lines(Vec::new())),
        },
        "icache" if is("phase", "make-end") => match arm {
            // Searched, inserted and taken out under the hash's lock; put into the list and taken out under the list's.
            "stock" | "lists" => Some(SharedSteps::Lock(3.0)),
            "hash-bl" | "rcu" => Some(SharedSteps::Lock(2.0)),
            _ => None,
        },
        // All arms make the same calls, and none uses the two structures.
        "tree" if is("phase", "find") && (arm == "uvfs" || arm == "null") => {
            Some(SharedSteps::Lines(Vec::new()))
        }
        _ => None,
    }
}

/// All operations are about one file. `short`: its name lies in the dentry's first line alone, apart from the count in
/// either layout.
fn of_one_file(arm: &str, short: bool) -> Option<Vec<Station>> {
    match arm {
        "uvfs" | "uvfs-prefix" | "null" => Some(Vec::new()),
        // The name is read, then get and put store to its line.
        "stock" | "spin" if !short => Some(vec![line(3.0)]),
        "stock" | "spin" | "patched" | "patched-spin" => Some(vec![line(2.0)]),
        _ => None,
    }
}

/// All processors read the same files one after the other. Each directory has two lines besides the tree lock: its
/// reference is taken and put, and its inode's lock is taken for the permission.
pub fn of_showgids(arm: &str, lock: f64) -> Option<Vec<Station>> {
    let each = |hand_overs: f64| (0..DIRECTORIES).map(move |_| line(hand_overs));
    let directories = each(2.0).chain(each(lock));
    match arm {
        // A hit stores nothing shared, an active reference is a store of its thread.
        "uvfs" | "null" => Some(Vec::new()),
        // A reader counts itself in and out.
        "stock" => Some(directories.chain([line(2.0 * SECTIONS)]).collect()),
        // Each directory's lock, for its permission and for its name.
        "hashed" => Some(directories.chain(each(4.0)).collect()),
        "patched" | "patched-membarrier" => Some(directories.collect()),
        _ => None,
    }
}

/// A line with so many hand-overs an operation.
pub fn line(hand_overs: f64) -> Station {
    Station { lines: hand_overs, hold_ns: 0.0 }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_short_name_is_apart_from_the_count() {
        let lines = |arm: &str, name_bytes: u64| {
            let spread = json!({ "median": 1.0, "min": 1.0, "max": 1.0 });
            let row = json!({
                "arm": arm, "threads": 2, "ops_per_s": spread, "ns_per_op": spread, "dropped": 0.0,
                "undropped_ns_per_op": 1.0, "huge_page_bytes": 0, "name_bytes": name_bytes,
            });
            match of("stat-same", &serde_json::from_value(row).unwrap(), 2).unwrap() {
                SharedSteps::Lines(stations) => stations.iter().map(|station| station.lines).sum::<f64>(),
                SharedSteps::Lock(_) => panic!("no lock is taken"),
            }
        };
        assert_eq!([lines("stock", 8), lines("stock", 9)], [2.0, 3.0]);
        assert_eq!([lines("patched", 8), lines("patched", 9), lines("uvfs", 9)], [2.0, 2.0, 0.0]);
    }
}
