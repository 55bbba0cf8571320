//! Keeping the memory limit: the kernel as a holder of nodes.
//!
//! fuser 0.18 cannot send FUSE_NOTIFY_PRUNE, so names are invalidated one by one. The kernel locks a directory while
//! a request about a name in it is pending, and an invalidation waits for that lock. [`Waits`] says where requests
//! are pending, so that the balancing thread passes over those directories.
//!
//! A request that finds no memory tries again for two seconds ([`Nodes::with_patience`]). It may wait for the thread,
//! which waits in the kernel for that request. Once the thread has waited for 2 ms, or the request for a second, the
//! request may exceed the limit by 4%.
//!
//! `Waits` has mutexes, which are leaves. Hits do not take them.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::fmt;
use std::os::unix::ffi::OsStrExt;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use fuser::{INodeNo, Notifier};
use parking_lot::Mutex;
use uvfs_cache::{Errno, InodeId, NodeHolder};

use crate::nodes::Nodes;

const SHARDS: usize = 16;
/// A write to the kernel that takes longer waits for a request.
const BLOCKED: Duration = Duration::from_millis(2);
/// The longest that a request waits for memory.
const PATIENCE: Duration = Duration::from_secs(2);
/// Between two attempts.
const PAUSE: Duration = Duration::from_millis(5);

/// Requests in a directory, and those among them that wait for the back end.
#[derive(Clone, Copy, Debug, Default)]
struct Pending {
    requests: usize,
    asking: usize,
}

/// Directories with pending requests.
#[derive(Debug, Default)]
pub(crate) struct Waits {
    shards: [Mutex<HashMap<InodeId, Pending>>; SHARDS],
    /// Since when the balancing thread has been writing to the kernel.
    writing: Mutex<Option<Instant>>,
}

impl Waits {
    fn shard(&self, dir: InodeId) -> &Mutex<HashMap<InodeId, Pending>> {
        &self.shards[dir.as_u64() as usize % SHARDS]
    }

    pub(crate) fn enter(self: &Arc<Self>, dir: InodeId) -> Mark {
        self.shard(dir).lock().entry(dir).or_default().requests += 1;
        Mark { waits: Arc::clone(self), dir, asking: false }
    }

    /// Whether the balancing thread may be waiting for a request.
    fn is_blocked(&self) -> bool {
        self.writing.lock().is_some_and(|since| since.elapsed() > BLOCKED)
    }

    fn pending(&self, dir: InodeId) -> Pending {
        self.shard(dir).lock().get(&dir).copied().unwrap_or_default()
    }
}

/// One pending request.
pub(crate) struct Mark {
    waits: Arc<Waits>,
    dir: InodeId,
    asking: bool,
}

impl Mark {
    /// The back end is being asked, or has answered.
    pub(crate) fn set_asking(&mut self, asking: bool) {
        if asking != self.asking {
            let mut shard = self.waits.shard(self.dir).lock();
            let pending = shard.entry(self.dir).or_default();
            pending.asking = if asking { pending.asking + 1 } else { pending.asking - 1 };
            self.asking = asking;
        }
    }

    /// Ask the back end.
    pub(crate) fn ask<R>(&mut self, ask: impl FnOnce() -> R) -> R {
        self.set_asking(true);
        let answer = ask();
        self.set_asking(false);
        answer
    }
}

impl Drop for Mark {
    fn drop(&mut self) {
        self.set_asking(false);
        let mut shard = self.waits.shard(self.dir).lock();
        if let Some(pending) = shard.get_mut(&self.dir) {
            pending.requests -= 1;
            if pending.requests == 0 {
                shard.remove(&self.dir);
            }
        }
    }
}

impl fmt::Debug for Mark {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Mark({:?})", self.dir)
    }
}

/// The kernel, through a session's notifier.
pub(crate) struct Kernel {
    notifier: Notifier,
    waits: Arc<Waits>,
    root: InodeId,
}

impl Kernel {
    pub(crate) fn new(notifier: Notifier, waits: Arc<Waits>, root: InodeId) -> Self {
        Self { notifier, waits, root }
    }
}

impl NodeHolder for Kernel {
    fn prune(&mut self, _nodes: &[InodeId]) -> Result<(), Errno> {
        Err(Errno::NOSYS)
    }

    fn invalidate(&mut self, dir: InodeId, name: &[u8]) -> Result<(), Errno> {
        let ino = if dir == self.root { INodeNo::ROOT } else { INodeNo(dir.as_u64()) };
        *self.waits.writing.lock() = Some(Instant::now());
        let told = self.notifier.inval_entry(ino, OsStr::from_bytes(name));
        *self.waits.writing.lock() = None;
        told.map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::IO))
    }

    fn is_waited_in(&self, dir: InodeId, for_ever: bool) -> bool {
        let pending = self.waits.pending(dir);
        if for_ever { pending.asking > 0 } else { pending.requests > 0 }
    }
}

impl<T: Send + Sync + 'static> Nodes<T> {
    /// Attempt something that needs memory, again for a while if there is none: the kernel is about to forget nodes.
    /// The caller holds no name lock that a holder of memory might wait for.
    pub(crate) fn with_patience<R>(
        &self,
        mut attempt: impl FnMut() -> Result<R, fuser::Errno>,
    ) -> Result<R, fuser::Errno> {
        let begin = Instant::now();
        loop {
            let long = begin.elapsed() > PATIENCE / 2;
            let _more = (long || self.waits().is_blocked()).then(|| self.superblock().cache().overdraw());
            match attempt() {
                Err(error) if is_short(error) && begin.elapsed() < PATIENCE => thread::sleep(PAUSE),
                done => return done,
            }
        }
    }
}

/// Whether an error says that there is no memory.
pub(crate) fn is_short(error: fuser::Errno) -> bool {
    error.code() == fuser::Errno::ENOMEM.code()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_is_waited_in_while_a_request_is_pending() {
        let waits = Arc::<Waits>::default();
        let dir = InodeId::from_u64(5);
        let seen = || (waits.pending(dir).requests, waits.pending(dir).asking);
        let mut one = waits.enter(dir);
        one.ask(|| assert_eq!(seen(), (1, 1)));
        let two = waits.enter(dir);
        assert_eq!(seen(), (2, 0));
        one.set_asking(true);
        drop(one);
        assert_eq!(seen(), (1, 0));
        drop(two);
        assert!(waits.shard(dir).lock().is_empty());
    }
}
