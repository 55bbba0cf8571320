//! Requests that wait, by the node that they are about: for a driver, or for memory.
//!
//! The kernel holds a directory's lock while it waits for what we say of a name in it, and a page's while it waits for
//! what is in it. Who invalidates something there waits for that, and, because such locks let nobody pass by who waits
//! for them alone, has all others wait that look for other names. So it is not done where a request has been
//! waiting for long ([`Pending::about`]). A driver may take for ever; who waits for memory gives up after a second.
//!
//! An entry also names the thread that is in the driver's call. A request that comes from such a thread asks the mount for the sake
//! of an answer of the same mount: see [`Pending::asks_itself`].
//!
//! Requests that are answered at once are not here; the mutex is a leaf, held for a look at a few entries.

use std::cell::Cell;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use crate::transport::NodeId;

/// A request that has been waiting for longer may go on for ever.
pub(crate) const MOMENT: Duration = Duration::from_millis(2);

/// What waits at a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wait {
    /// Nothing.
    No,
    /// Requests that have just come.
    Moment,
    /// One that has been there for a while.
    Long,
}

/// What a request waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum For {
    /// An answer of the driver.
    Driver,
    /// Memory in the cache, for a second at most.
    Memory,
}

/// See the module's head.
#[derive(Debug, Default)]
pub(crate) struct Pending(Mutex<Vec<Entry>>);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Entry {
    node: NodeId,
    what: For,
    since: Instant,
    /// Linux's number of the thread that answers it; 0 while it waits for a thread.
    thread: u32,
}

/// A request that waits; dropped after its answer was sent, or when it waits for something else.
#[derive(Debug)]
pub(crate) struct Waiting {
    pending: Arc<Pending>,
    entry: Entry,
}

impl Waiting {
    /// The calling thread answers it.
    pub(crate) fn runs_here(&mut self) {
        let mut all = self.pending.0.lock();
        if let Some(at) = all.iter().position(|entry| *entry == self.entry) {
            self.entry.thread = this_thread();
            all[at] = self.entry;
        }
    }
}

/// Linux's number of the calling thread. It is read once: the front end runs in no forked child.
fn this_thread() -> u32 {
    thread_local! {
        static NUMBER: Cell<u32> = const { Cell::new(0) };
    }
    if NUMBER.get() == 0 {
        NUMBER.set(rustix::thread::gettid().as_raw_nonzero().get().cast_unsigned());
    }
    NUMBER.get()
}

impl Drop for Waiting {
    fn drop(&mut self) {
        let mut all = self.pending.0.lock();
        if let Some(at) = all.iter().position(|entry| *entry == self.entry) {
            all.swap_remove(at);
        }
    }
}

impl Pending {
    /// A request about `node` waits from now on.
    pub(crate) fn begin(self: &Arc<Self>, node: NodeId, what: For) -> Waiting {
        let entry = Entry { node, what, since: Instant::now(), thread: 0 };
        self.0.lock().push(entry);
        Waiting { pending: Arc::clone(self), entry }
    }

    /// Whether the thread `asker` is in a driver's call for another request. The driver that made it ask would wait for itself, once
    /// more with each answer, until no thread is left.
    pub(crate) fn asks_itself(&self, asker: u32) -> bool {
        asker != 0 && self.0.lock().iter().any(|entry| entry.thread == asker)
    }

    /// What waits at `node` now.
    pub(crate) fn about(&self, node: NodeId) -> Wait {
        self.oldest(Instant::now(), |entry| entry.node == node)
    }

    /// What waits at `node` for its driver.
    pub(crate) fn for_driver(&self, node: NodeId) -> Wait {
        self.oldest(Instant::now(), |entry| entry.node == node && entry.what == For::Driver)
    }

    fn oldest(&self, now: Instant, which: impl Fn(&Entry) -> bool) -> Wait {
        let all = self.0.lock();
        match all.iter().filter(|entry| which(entry)).map(|entry| entry.since).min() {
            None => Wait::No,
            Some(since) if now.saturating_duration_since(since) < MOMENT => Wait::Moment,
            Some(_) => Wait::Long,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_waits_is_known_by_its_node_until_it_is_answered() {
        let pending = Arc::<Pending>::default();
        assert_eq!(pending.about(5), Wait::No);
        let first = pending.begin(5, For::Driver);
        let second = pending.begin(5, For::Memory);
        let about = |node, now| pending.oldest(now, |entry| entry.node == node);
        let (early, late) = (second.entry.since, second.entry.since + MOMENT);
        assert_eq!((about(6, late), about(5, first.entry.since)), (Wait::No, Wait::Moment));
        assert_eq!(about(5, late), Wait::Long);
        assert_ne!(pending.for_driver(5), Wait::No);
        drop(first);
        assert_eq!((about(5, early), about(5, late)), (Wait::Moment, Wait::Long));
        assert_eq!(pending.for_driver(5), Wait::No);
        drop(second);
        assert_eq!(about(5, late), Wait::No);
    }

    #[test]
    fn a_thread_that_answers_is_known_when_it_asks() {
        let pending = Arc::<Pending>::default();
        let me = this_thread();
        let mut first = pending.begin(5, For::Driver);
        let _second = pending.begin(5, For::Driver);
        assert!(!pending.asks_itself(me) && !pending.asks_itself(0), "neither has a thread yet");
        first.runs_here();
        assert!(pending.asks_itself(me) && !pending.asks_itself(me + 1) && !pending.asks_itself(0));
        drop(first);
        assert!(!pending.asks_itself(me));
        assert_eq!(pending.0.lock().len(), 1);
    }
}
