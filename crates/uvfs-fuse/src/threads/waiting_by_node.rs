//! Requests that wait for a driver or for memory, listed by the node that they are about.
//!
//! While the kernel waits for an answer about a name, it holds the lock of the name's directory. While it waits for
//! data, it holds the lock of the data's page. An invalidation needs the same lock exclusively, so it waits for the
//! answer too. Lookups of other names in that directory then queue behind the invalidation. The server therefore
//! sends none for a node with a request that has been waiting for long ([`WaitingByNode::about`]). A driver may take for
//! ever; a request that waits for memory gives up after a second.
//!
//! The table also counts, by thread, the driver calls in progress. A request that such a thread makes to the mount
//! would let the driver wait for itself: see [`WaitingByNode::asks_itself`].
//!
//! Requests that are answered at once are not listed. The mutex is a leaf, held for one look-up.

use std::cell::Cell;
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use crate::transport::NodeId;

/// A request that has been waiting for longer may go on for ever.
pub(crate) const MOMENT: Duration = Duration::from_millis(2);

/// The requests that wait at a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wait {
    /// Nothing.
    No,
    /// Requests that have just come.
    Moment,
    /// One that has been there for a while.
    Long,
}

/// The thing that a request waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum For {
    /// An answer of the driver.
    Driver,
    /// Memory in the cache, for a second at most.
    Memory,
}

/// See the module's head.
#[derive(Debug, Default)]
pub(crate) struct WaitingByNode(Mutex<Table>);

#[derive(Debug, Default)]
struct Table {
    /// By node, the oldest first.
    entries: BTreeMap<Key, Entry>,
    /// Threads in drivers' calls, by Linux's number, and in how many.
    threads: HashMap<u32, usize>,
    /// Entries so far.
    count: u64,
}

/// A node, and a number that only grows.
type Key = (NodeId, u64);

#[derive(Clone, Copy, Debug)]
struct Entry {
    what: For,
    since: Instant,
}

/// A request that waits; dropped after its answer was sent, or when it waits for something else.
#[derive(Debug)]
pub(crate) struct Waiting {
    pending: Arc<WaitingByNode>,
    key: Key,
    /// Linux's number of the thread that answers it; 0, which no thread has, while it waits for a thread.
    thread: u32,
}

impl Waiting {
    /// The calling thread answers it. To be called once.
    pub(crate) fn runs_here(&mut self) {
        self.thread = this_thread();
        *self.pending.0.lock().threads.entry(self.thread).or_default() += 1;
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
        let mut table = self.pending.0.lock();
        table.entries.remove(&self.key);
        if let Some(calls) = table.threads.get_mut(&self.thread) {
            *calls -= 1;
            if *calls == 0 {
                table.threads.remove(&self.thread);
            }
        }
    }
}

impl WaitingByNode {
    /// A request about `node` waits from now on.
    pub(crate) fn begin(self: &Arc<Self>, node: NodeId, what: For) -> Waiting {
        let mut table = self.0.lock();
        table.count += 1;
        let key = (node, table.count);
        table.entries.insert(key, Entry { what, since: Instant::now() });
        Waiting { pending: Arc::clone(self), key, thread: 0 }
    }

    /// Whether the thread `asker` is in a driver's call for another request. The driver whose call asks would wait
    /// for itself. Each answer would ask once more, until no thread is left.
    pub(crate) fn asks_itself(&self, asker: u32) -> bool {
        self.0.lock().threads.contains_key(&asker)
    }

    /// The wait at `node` now.
    pub(crate) fn about(&self, node: NodeId) -> Wait {
        self.oldest(Instant::now(), node, |_| true)
    }

    /// The wait at `node` for its driver.
    pub(crate) fn for_driver(&self, node: NodeId) -> Wait {
        self.oldest(Instant::now(), node, |what| what == For::Driver)
    }

    fn oldest(&self, now: Instant, node: NodeId, which: impl Fn(For) -> bool) -> Wait {
        let table = self.0.lock();
        let mut entries = table.entries.range((node, 0)..=(node, u64::MAX)).map(|(_, entry)| entry);
        match entries.find(|entry| which(entry.what)) {
            None => Wait::No,
            Some(entry) if now.saturating_duration_since(entry.since) < MOMENT => Wait::Moment,
            Some(_) => Wait::Long,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_waits_is_known_by_its_node_until_it_is_answered() {
        let pending = Arc::<WaitingByNode>::default();
        assert_eq!(pending.about(5), Wait::No);
        let first = pending.begin(5, For::Driver);
        let second = pending.begin(5, For::Memory);
        let about = |node, now| pending.oldest(now, node, |_| true);
        let since = |waiting: &Waiting| pending.0.lock().entries[&waiting.key].since;
        let (early, late) = (since(&second), since(&second) + MOMENT);
        assert_eq!((about(6, late), about(5, since(&first))), (Wait::No, Wait::Moment));
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
        let pending = Arc::<WaitingByNode>::default();
        let me = this_thread();
        let mut first = pending.begin(5, For::Driver);
        let _second = pending.begin(5, For::Driver);
        assert!(!pending.asks_itself(me) && !pending.asks_itself(0), "neither has a thread yet");
        first.runs_here();
        assert!(pending.asks_itself(me) && !pending.asks_itself(me + 1) && !pending.asks_itself(0));
        let mut third = pending.begin(6, For::Driver);
        third.runs_here();
        drop(first);
        assert!(pending.asks_itself(me), "it is still in the other call");
        drop(third);
        assert!(!pending.asks_itself(me) && pending.0.lock().threads.is_empty());
        assert_eq!(pending.0.lock().entries.len(), 1);
    }
}
