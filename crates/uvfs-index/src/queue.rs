//! Reports of the watcher that wait for the tree's worker.
//!
//! The watcher's thread puts them in and never waits, so the kernel's own short queue seldom overflows. A report that
//! waits already is not put in again: it says *look there*, and the worker has yet to look. It is taken out before
//! the look. So if a change comes after the look, its report finds no equal one and is put in.
//!
//! Reports have numbers, and the worker notes up to which number all are done. [`ReportQueue::put_in`] is the number
//! to wait for after the kernel's queue was drained. At [`MOST`] reports the queue gives up, as the kernel's does:
//! it *overflows*.

use std::collections::{HashSet, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use foldhash::fast::RandomState;
use parking_lot::{Condvar, Mutex};
use uvfs_drivers::watch::{Told, WatchedHandle};

use crate::table::HostHandle;

/// Reports that may wait: about 200 MB of them.
const MOST: usize = 1 << 20;
/// Reports that the worker takes at a time.
const BATCH: usize = 1024;

/// Where to look.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Report {
    /// At a name in a directory.
    Name(HostHandle, Box<[u8]>),
    /// At a file.
    Object(HostHandle),
    /// At a name whose file may change without a report.
    Unsure(HostHandle, Box<[u8]>),
    /// Into a directory that is known and could not be read.
    Unread(HostHandle),
    /// At a path on which another file system was mounted, or no longer is.
    Mount(Box<[u8]>),
    /// At all names that lead to other file systems.
    Foreign,
}

/// The work of the worker.
pub(crate) enum ToDo {
    /// Reports, the oldest first, and the number of the last one.
    Look(Vec<Arc<Report>>, u64),
    /// Reports were lost, so everything is to be read anew; and the number of this.
    Overflow(u64),
    /// No report comes any more, and the reason.
    Ended(String),
    /// The tree is not wanted any more.
    Stop,
}

#[derive(Default)]
struct Waiting {
    order: VecDeque<Arc<Report>>,
    all: HashSet<Arc<Report>, RandomState>,
    put_in: u64,
    overflow: bool,
    /// Overflows of this queue, not of the kernel's.
    own_overflows: u64,
    ended: Option<String>,
    /// The watch has ended: nothing is put in any more.
    is_over: bool,
    stop: bool,
}

/// The reports that wait.
pub(crate) struct ReportQueue {
    waiting: Mutex<Waiting>,
    more: Condvar,
    root: HostHandle,
}

impl ReportQueue {
    /// `root`: the handle of the directory that the watch is proven with.
    pub(crate) fn new(root: HostHandle) -> Self {
        Self { waiting: Mutex::new(Waiting::default()), more: Condvar::new(), root }
    }

    /// Puts in a report.
    pub(crate) fn report(&self, report: Report) {
        let mut waiting = self.waiting.lock();
        // A lost report is lost whatever comes after it.
        if waiting.overflow || waiting.is_over || waiting.all.contains(&report) {
            return;
        }
        if waiting.order.len() >= MOST {
            waiting.own_overflows += 1;
            drop(waiting);
            return self.overflows();
        }
        let report = Arc::new(report);
        waiting.all.insert(Arc::clone(&report));
        waiting.order.push_back(report);
        waiting.put_in += 1;
        drop(waiting);
        self.more.notify_one();
    }

    fn overflows(&self) {
        let mut waiting = self.waiting.lock();
        if waiting.is_over {
            return;
        }
        waiting.order.clear();
        waiting.all.clear();
        waiting.overflow = true;
        waiting.put_in += 1;
        drop(waiting);
        self.more.notify_one();
    }

    /// The tree is not followed any more, for this reason.
    pub(crate) fn gives_up(&self, why: &str) {
        let mut waiting = self.waiting.lock();
        if waiting.is_over {
            return;
        }
        // Reading the tree anew because of an overflow would make a tree of it that nobody follows.
        waiting.order.clear();
        waiting.all.clear();
        waiting.overflow = false;
        waiting.is_over = true;
        waiting.ended = Some(why.to_owned());
        waiting.put_in += 1;
        drop(waiting);
        self.more.notify_one();
    }

    /// The worker is to end.
    pub(crate) fn stop(&self) {
        self.waiting.lock().stop = true;
        self.more.notify_one();
    }

    /// Whether the worker is to end, or to begin anew.
    pub(crate) fn interrupts(&self) -> bool {
        let waiting = self.waiting.lock();
        waiting.stop || waiting.overflow || waiting.ended.is_some()
    }

    /// Times that this queue gave up, those of the kernel's queue not among them.
    pub(crate) fn overflows_of_its_own(&self) -> u64 {
        self.waiting.lock().own_overflows
    }

    /// The number of the last report.
    pub(crate) fn put_in(&self) -> u64 {
        self.waiting.lock().put_in
    }

    /// Waits until a report comes, or the worker is to end; for `most` at most.
    pub(crate) fn wait_for_more(&self, most: Duration) {
        let mut waiting = self.waiting.lock();
        let (before, until) = (waiting.put_in, Instant::now() + most);
        while waiting.put_in == before && !waiting.stop {
            if self.more.wait_until(&mut waiting, until).timed_out() {
                return;
            }
        }
    }

    /// Waits for work.
    pub(crate) fn take(&self) -> ToDo {
        let mut waiting = self.waiting.lock();
        loop {
            if waiting.stop {
                return ToDo::Stop;
            }
            if let Some(why) = waiting.ended.take() {
                return ToDo::Ended(why);
            }
            if std::mem::take(&mut waiting.overflow) {
                return ToDo::Overflow(waiting.put_in);
            }
            if !waiting.order.is_empty() {
                break;
            }
            self.more.wait(&mut waiting);
        }
        let count = waiting.order.len().min(BATCH);
        let batch: Vec<_> = waiting.order.drain(..count).collect();
        for report in &batch {
            waiting.all.remove(report);
        }
        let last = waiting.put_in - waiting.order.len() as u64;
        ToDo::Look(batch, last)
    }
}

fn owned(handle: WatchedHandle<'_>) -> HostHandle {
    HostHandle::new(handle.kind, handle.bytes)
}

impl Told for ReportQueue {
    fn name(&self, dir: WatchedHandle<'_>, name: &[u8]) {
        self.report(Report::Name(owned(dir), name.into()));
    }

    /// The new name is looked at before the old one, so that the file is not without a name meanwhile.
    fn moved(&self, _: WatchedHandle<'_>, dir: WatchedHandle<'_>, name: &[u8]) {
        self.name(dir, name);
    }

    fn object(&self, handle: WatchedHandle<'_>, _: bool) -> bool {
        self.report(Report::Object(owned(handle)));
        false
    }

    fn is_source(&self, dir: WatchedHandle<'_>) -> bool {
        owned(dir) == self.root
    }

    fn overflow(&self) {
        self.overflows();
    }

    /// Counts as a report: a question that begins now waits until the worker has given the tree up.
    fn ended(&self, why: &str) {
        self.gives_up(why);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Otherwise a question between the end and the worker's notice of it is told that nothing has changed.
    #[test]
    fn a_question_waits_for_an_overflow_and_for_the_end_of_the_watch() {
        let queue = ReportQueue::new(HostHandle::new(1, b"root"));
        let asked = queue.put_in();
        queue.overflow();
        assert!(queue.put_in() > asked);
        assert!(matches!(queue.take(), ToDo::Overflow(number) if number == queue.put_in()));
        let asked = queue.put_in();
        queue.ended("reading failed");
        assert!(queue.put_in() > asked);
        assert!(matches!(queue.take(), ToDo::Ended(_)));
    }

    /// A tree that nobody follows is not read anew, as if somebody did.
    #[test]
    fn nothing_comes_after_the_end_of_the_watch() {
        let queue = ReportQueue::new(HostHandle::new(1, b"root"));
        queue.overflow();
        queue.ended("reading failed");
        let asked = queue.put_in();
        assert!(matches!(queue.take(), ToDo::Ended(_)));
        queue.overflow();
        queue.report(Report::Object(HostHandle::new(1, b"file")));
        assert!(!queue.interrupts() && queue.put_in() == asked);
        queue.stop();
        assert!(matches!(queue.take(), ToDo::Stop));
    }
}
