//! Open files: the text that a reader was shown, and where it is in it.
//!
//! A file's state stands in the shard of the thread that opened it, on lines that other threads do not
//! touch unless they use that file; it names its node by number and counts no reference to it. States are
//! used again, with the memory of their text, so that opening allocates nothing as a rule.
//! A shard's lock protects its table only. A state's own lock is held while its attribute shows or
//! makes records, so two readers of one open file wait for each other; it is taken before the active reference,
//! so who waits here is not waited for by a removal.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use parking_lot::Mutex;
use uvfs_sync::lane;

use super::node::Inner;

/// A power of two.
const SHARDS: u64 = 64;
/// Bytes of text that a state keeps when its file is closed.
const KEPT: usize = 4096;

/// What an open file was shown.
#[derive(Debug, Default)]
pub(super) struct State {
    /// What was shown last; of records, those that were made last.
    pub(super) text: Vec<u8>,
    /// Where in the file `text` begins.
    pub(super) start: u64,
    /// Position of the record after `text`; none after the last one.
    pub(super) next: Option<u64>,
    /// Whether there is a text.
    pub(super) shown: bool,
}

/// An open file.
#[derive(Default)]
pub(super) struct Open {
    /// Of the node. Does not change while the file is open, nor is `state` needed for it: who writes or polls does
    /// not wait for who reads.
    pub(super) ino: AtomicU64,
    /// The node's count of notifications before the text was made; [`UNREAD`].
    pub(super) event: AtomicU64,
    /// The node, where it was unlinked while this file is open: it is in no table any more. Locked for a look only.
    kept: Mutex<Option<Arc<Inner>>>,
    /// Whether the node may have a waker for this file.
    pub(super) polled: AtomicBool,
    pub(super) state: Mutex<State>,
}

impl Open {
    /// Whether a read begins a text after another one.
    pub(super) fn begins_anew(&self, offset: u64) -> bool {
        offset == 0 && self.event.load(Ordering::Relaxed) != UNREAD
    }

    /// The node that was unlinked while this file is open.
    pub(super) fn kept(&self) -> Option<Arc<Inner>> {
        self.kept.lock().clone()
    }
}

/// Nothing was read yet: as in sysfs, who polls is told to read.
pub(super) const UNREAD: u64 = u64::MAX;

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
    pub(super) fn insert(&self, ino: u64) -> u64 {
        let number = u64::from(lane::known().or_else(lane::mine).unwrap_or(0)) % SHARDS;
        let mut shard = self.shard(number).lock();
        let index = shard.free.pop().unwrap_or_else(|| {
            shard.open.push(Arc::default());
            shard.open.len() - 1
        });
        let open = &shard.open[index];
        // Relaxed: the shard's lock orders it for all who come with the handle.
        open.ino.store(ino, Ordering::Relaxed);
        open.event.store(UNREAD, Ordering::Relaxed);
        open.polled.store(false, Ordering::Relaxed);
        open.state.lock().shown = false;
        drop(open.kept.lock().take());
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
        let Some(open) = shard.open.get(index).cloned() else { return };
        let mut state = open.state.lock();
        state.text.clear();
        state.text.shrink_to(KEPT);
        drop(state);
        // No node has this number: `keep` passes by what is closed.
        open.ino.store(0, Ordering::Relaxed);
        let kept = open.kept.lock().take();
        shard.free.push(index);
        drop(shard);
        // Its end may be the end of an attribute, which is the program's code.
        drop(kept);
    }

    /// Files that have `inner` open keep it. A file that is opened meanwhile: if its entry comes into the shard before this looks
    /// there, it keeps the node; if it comes later, the shard's lock lets it see that `inner` is unlinked.
    pub(super) fn keep(&self, inner: &Arc<Inner>) {
        for shard in &self.shards {
            let shard = shard.0.lock();
            for open in shard.open.iter().filter(|open| open.ino.load(Ordering::Relaxed) == inner.ino) {
                *open.kept.lock() = Some(Arc::clone(inner));
            }
        }
    }
}
