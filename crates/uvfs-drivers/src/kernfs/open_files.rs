//! Open files: the text that a reader gets, and its position.
//!
//! A file's state is in the shard of the thread that opened it, on cache lines that other threads touch only
//! if they use that file. It names its node by number and counts no reference to it. States are
//! reused together with the memory of their text, so opening usually allocates nothing.
//! A shard's lock protects only its table. A state's own lock is held while its attribute shows or
//! makes records, so two readers of one open file wait for each other. It is taken before the active reference,
//! so a removal never waits for a thread that waits here.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use parking_lot::Mutex;
use uvfs_sync::thread_number;

use super::lock_free::Inner;

/// A power of two.
const SHARDS: u64 = 64;
/// Bytes of text that a state keeps when its file is closed.
const KEPT: usize = 4096;

/// The content that an open file was shown.
#[derive(Debug, Default)]
pub(super) struct State {
    /// The text shown last; for records, those made last.
    pub(super) text: Vec<u8>,
    /// Offset in the file at which `text` begins.
    pub(super) start: u64,
    /// Position of the record after `text`; `None` after the last one.
    pub(super) next: Option<u64>,
    /// Whether there is a text.
    pub(super) shown: bool,
}

/// An open file.
#[derive(Default)]
pub(super) struct Open {
    /// The node's number. It does not change while the file is open, and needs no lock of `state`: a writer or poller
    /// does not wait for a reader.
    pub(super) ino: AtomicU64,
    /// The node's count of notifications before the text was made, or [`UNREAD`].
    pub(super) event: AtomicU64,
    /// The node, if it was unlinked while this file is open: no table has it any more. Locked only briefly.
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

/// Nothing has been read yet: as in sysfs, poll reports the file ready.
pub(super) const UNREAD: u64 = u64::MAX;

#[derive(Default)]
struct Shard {
    open: Vec<Arc<Open>>,
    free: Vec<usize>,
}

/// Each shard has its own cache lines.
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

    /// Makes an open file of the node `ino`. Returns its handle.
    pub(super) fn insert(&self, ino: u64) -> u64 {
        let number = u64::from(thread_number::known().or_else(thread_number::mine).unwrap_or(0)) % SHARDS;
        let mut shard = self.shard(number).lock();
        let index = shard.free.pop().unwrap_or_else(|| {
            shard.open.push(Arc::default());
            shard.open.len() - 1
        });
        let open = &shard.open[index];
        // Relaxed: the shard's lock orders it for every user of the handle.
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

    /// The file is closed; the handle is no longer used.
    pub(super) fn remove(&self, handle: u64) {
        let mut shard = self.shard(handle).lock();
        let index = (handle / SHARDS) as usize;
        let Some(open) = shard.open.get(index).cloned() else { return };
        let mut state = open.state.lock();
        state.text.clear();
        state.text.shrink_to(KEPT);
        drop(state);
        // No node has this number, so `keep` skips closed files.
        open.ino.store(0, Ordering::Relaxed);
        let kept = open.kept.lock().take();
        shard.free.push(index);
        drop(shard);
        // Dropping it may drop an attribute, which runs the program's code.
        drop(kept);
    }

    /// Lets the files that have `inner` open keep it. This may race with an open. If the open's entry enters the
    /// shard first, this function makes it keep the node. If the entry comes later, the shard's lock lets the open
    /// see that `inner` is unlinked.
    pub(super) fn keep(&self, inner: &Arc<Inner>) {
        for shard in &self.shards {
            let shard = shard.0.lock();
            for open in shard.open.iter().filter(|open| open.ino.load(Ordering::Relaxed) == inner.ino) {
                *open.kept.lock() = Some(Arc::clone(inner));
            }
        }
    }
}
