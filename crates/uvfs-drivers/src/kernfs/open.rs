//! Open files: the text that a reader was shown, and where it is in it.
//!
//! A file's state stands in the shard of the thread that opened it, on lines that other threads do not
//! touch unless they use that file; it names its node by number and counts no reference to it. States are
//! used again, with the memory of their text, so that opening allocates nothing as a rule.
//! A shard's lock protects its table only. A state's own lock is held while its attribute shows or
//! makes records, so two readers of one open file wait for each other; it is taken before the active reference,
//! so who waits here is not waited for by a removal.

use std::sync::Arc;

use parking_lot::Mutex;
use uvfs_sync::lane;

/// A power of two.
const SHARDS: u64 = 64;
/// Bytes of text that a state keeps when its file is closed.
const KEPT: usize = 4096;

/// What an open file has seen.
#[derive(Debug, Default)]
pub(super) struct State {
    /// Of the node.
    pub(super) ino: u64,
    /// What was shown last; of records, those that were made last.
    pub(super) text: Vec<u8>,
    /// Where in the file `text` begins.
    pub(super) start: u64,
    /// Position of the record after `text`; none after the last one.
    pub(super) next: Option<u64>,
    /// Whether there is a text.
    pub(super) shown: bool,
    /// The node's count of notifications before the text was made.
    pub(super) event: u64,
}

/// An open file.
#[derive(Debug, Default)]
pub(super) struct Open {
    pub(super) state: Mutex<State>,
}

#[derive(Default)]
struct Shard {
    open: Vec<Arc<Open>>,
    free: Vec<usize>,
}

/// Lines of its own for each shard.
#[derive(Default)]
#[repr(align(128))]
struct Padded(Mutex<Shard>);

/// All open files of a view.
pub(super) struct Opens {
    shards: Box<[Padded]>,
}

impl Opens {
    pub(super) fn new() -> Self {
        Self { shards: (0..SHARDS).map(|_| Padded::default()).collect() }
    }

    fn shard(&self, handle: u64) -> &Mutex<Shard> {
        &self.shards[(handle % SHARDS) as usize].0
    }

    /// A handle for a file of the node `ino`.
    pub(super) fn insert(&self, ino: u64, event: u64) -> u64 {
        let number = u64::from(lane::known().or_else(lane::mine).unwrap_or(0)) % SHARDS;
        let mut shard = self.shard(number).lock();
        let index = shard.free.pop().unwrap_or_else(|| {
            shard.open.push(Arc::default());
            shard.open.len() - 1
        });
        let mut state = shard.open[index].state.lock();
        (state.ino, state.event, state.shown) = (ino, event, false);
        index as u64 * SHARDS + number
    }

    /// The open file of a handle.
    pub(super) fn get(&self, handle: u64) -> Option<Arc<Open>> {
        let shard = self.shard(handle).lock();
        shard.open.get((handle / SHARDS) as usize).cloned()
    }

    /// The file is closed; nobody uses the handle any more.
    pub(super) fn remove(&self, handle: u64) {
        let mut shard = self.shard(handle).lock();
        let index = (handle / SHARDS) as usize;
        let Some(open) = shard.open.get(index) else { return };
        let mut state = open.state.lock();
        state.text.clear();
        state.text.shrink_to(KEPT);
        drop(state);
        shard.free.push(index);
    }
}
