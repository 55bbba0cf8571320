//! The limit of descriptors, and how files and operations share it.
//!
//! The limit of the process is divided once: a number for files that users hold open, and a number for operations,
//! each of which needs a few while it runs. An operation waits for its turn. If too many files are open, the opener
//! gets ENFILE, and no other user notices. So an operation never runs out of descriptors half-way.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use parking_lot::{Condvar, Mutex};
use rustix::process::{Resource, getrlimit};
use uvfs::types::{Errno, Result};

/// Most descriptors that one operation has at a time (rename: two directories, two files, and one to spare).
const PER_OPERATION: usize = 6;
/// Most simultaneous operations, however many descriptors there are.
const OPERATIONS_MAX: usize = 512;

/// See the module.
pub(super) struct Budget {
    free: Mutex<Free>,
    freed: Condvar,
    open: AtomicUsize,
    open_max: usize,
    /// Number of directory streams that may be kept.
    pub(super) streams: usize,
    /// Number of directories that may be kept open.
    pub(super) dirs: usize,
}

/// The number of free turns, and of turns taken so far.
struct Free {
    turns: usize,
    taken: u64,
}

/// The right to have one file open.
pub(super) struct Permit(Arc<Budget>);

/// An operation's turn.
pub(super) struct Turn<'b>(&'b Budget);

impl Budget {
    /// Divides the process' present limit, minus the descriptors that are open already.
    pub(super) fn new() -> Self {
        let limit = getrlimit(Resource::Nofile)
            .current
            .map_or(usize::MAX, |n| usize::try_from(n).unwrap_or(usize::MAX));
        let used = std::fs::read_dir("/proc/self/fd").map_or(32, Iterator::count);
        Self::divide(limit.saturating_sub(used))
    }

    fn divide(descriptors: usize) -> Self {
        let operations = (descriptors / 2 / PER_OPERATION).clamp(1, OPERATIONS_MAX);
        let streams = (descriptors / 16).min(32);
        // A thread may still use one that was closed.
        let dirs = (descriptors / 64).min(16);
        let open_max = descriptors.saturating_sub(operations * PER_OPERATION + streams + dirs);
        Self {
            free: Mutex::new(Free { turns: operations, taken: 0 }),
            freed: Condvar::new(),
            open: AtomicUsize::new(0),
            open_max,
            streams,
            dirs,
        }
    }

    /// Waits for a turn. A thread that has a turn must not call this.
    pub(super) fn turn(&self) -> Turn<'_> {
        let mut free = self.free.lock();
        while free.turns == 0 {
            self.freed.wait(&mut free);
        }
        free.turns -= 1;
        free.taken += 1;
        Turn(self)
    }

    /// Operations on the host so far.
    pub(super) fn taken(&self) -> u64 {
        self.free.lock().taken
    }

    /// Counts one more open file, for the lifetime of the permit; ENFILE if that is too many.
    pub(super) fn permit(self: &Arc<Self>) -> Result<Permit> {
        let one_more = |open| if open < self.open_max { Some(open + 1) } else { None };
        self.open.fetch_update(Relaxed, Relaxed, one_more).map_err(|_| Errno::NFILE)?;
        Ok(Permit(Arc::clone(self)))
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        self.0.open.fetch_sub(1, Relaxed);
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        self.0.free.lock().turns += 1;
        self.0.freed.notify_one();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_divided_is_never_more_than_there_is() {
        for descriptors in [12, 100, 240, 1024, 20_000, 1 << 20] {
            let budget = Budget::divide(descriptors);
            let operations = budget.free.lock().turns;
            assert!(operations >= 1);
            assert!(
                operations * PER_OPERATION + budget.streams + budget.dirs + budget.open_max <= descriptors,
                "{descriptors}"
            );
        }
    }

    #[test]
    fn one_file_too_many_is_refused_and_room_comes_back() {
        let budget = Arc::new(Budget::divide(100));
        let mut permits: Vec<_> = (0..budget.open_max).map(|_| budget.permit().unwrap()).collect();
        assert_eq!(budget.permit().map(drop), Err(Errno::NFILE));
        permits.pop();
        budget.permit().unwrap();
    }
}
