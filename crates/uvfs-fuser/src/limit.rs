//! Keeping the memory limit: the kernel as a holder of nodes.
//!
//! fuser 0.18 cannot send FUSE_NOTIFY_PRUNE, so names are invalidated one by one. The kernel locks a directory while
//! a request about a name in it is pending, and an invalidation waits for that lock. [`PendingDirs`] says where requests
//! are pending, so that the balancing thread passes over those directories.
//!
//! A request that finds no memory waits for FORGETs for up to two seconds ([`Nodes::with_patience`]). It may wait for the thread,
//! which waits in the kernel for that request. Once the thread has waited for 2 ms, or the request for a second, the
//! request may exceed the limit by 4%.
//!
//! Another thread of the session must read the FORGETs meanwhile, so a session has two or more.
//!
//! `PendingDirs` has mutexes, which are leaves. Hits do not take them.

use std::cell::Cell;
use std::collections::HashMap;
use std::ffi::OsStr;
use std::fmt;
use std::os::unix::ffi::OsStrExt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use fuser::{INodeNo, Notifier};
use parking_lot::Mutex;
use uvfs_cache::{Errno, HolderCall, InodeId, NodeHolder};

use crate::nodes::Nodes;

const SHARDS: usize = 16;
/// The longest that a request waits for memory.
const PATIENCE: Duration = Duration::from_secs(2);

/// Requests in a directory, and those among them that wait for the back end.
#[derive(Clone, Copy, Debug, Default)]
struct Pending {
    requests: usize,
    asking: usize,
}

/// Directories with pending requests.
#[derive(Debug, Default)]
pub(crate) struct PendingDirs {
    shards: [Mutex<HashMap<InodeId, Pending>>; SHARDS],
    /// The balancing thread's writes to the kernel.
    writing: HolderCall,
}

impl PendingDirs {
    fn shard(&self, dir: InodeId) -> &Mutex<HashMap<InodeId, Pending>> {
        &self.shards[dir.as_u64() as usize % SHARDS]
    }

    pub(crate) fn enter(self: &Arc<Self>, dir: InodeId) -> PendingRequest {
        self.shard(dir).lock().entry(dir).or_default().requests += 1;
        PendingRequest { pending_dirs: Arc::clone(self), dir, asking: false }
    }

    fn pending(&self, dir: InodeId) -> Pending {
        self.shard(dir).lock().get(&dir).copied().unwrap_or_default()
    }
}

/// One pending request.
pub(crate) struct PendingRequest {
    pending_dirs: Arc<PendingDirs>,
    dir: InodeId,
    asking: bool,
}

impl PendingRequest {
    /// The back end is being asked, or has answered.
    pub(crate) fn set_asking(&mut self, asking: bool) {
        if asking != self.asking {
            let mut shard = self.pending_dirs.shard(self.dir).lock();
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

impl Drop for PendingRequest {
    fn drop(&mut self) {
        self.set_asking(false);
        let mut shard = self.pending_dirs.shard(self.dir).lock();
        if let Some(pending) = shard.get_mut(&self.dir) {
            pending.requests -= 1;
            if pending.requests == 0 {
                shard.remove(&self.dir);
            }
        }
    }
}

impl fmt::Debug for PendingRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PendingRequest({:?})", self.dir)
    }
}

/// The kernel, through a session's notifier.
pub(crate) struct Kernel {
    notifier: Notifier,
    pending_dirs: Arc<PendingDirs>,
    root: InodeId,
}

impl Kernel {
    pub(crate) fn new(notifier: Notifier, pending_dirs: Arc<PendingDirs>, root: InodeId) -> Self {
        Self { notifier, pending_dirs, root }
    }
}

impl NodeHolder for Kernel {
    fn prune(&mut self, _nodes: &[InodeId]) -> Result<(), Errno> {
        Err(Errno::NOSYS)
    }

    fn invalidate(&mut self, dir: InodeId, name: &[u8]) -> Result<(), Errno> {
        let ino = if dir == self.root { INodeNo::ROOT } else { INodeNo(dir.as_u64()) };
        let told = self.pending_dirs.writing.make(|| self.notifier.inval_entry(ino, OsStr::from_bytes(name)));
        told.map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::IO))
    }

    fn is_waited_in(&self, dir: InodeId, for_ever: bool) -> bool {
        let pending = self.pending_dirs.pending(dir);
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
        let cache = self.superblock().cache();
        let begin = Instant::now();
        let beyond = Cell::new(false);
        let mut once = |more: bool| {
            beyond.set(more);
            let _more = more.then(|| cache.overdraw());
            match attempt() {
                Err(error) if is_short(error) => None,
                done => Some(done),
            }
        };
        let done = cache.with_patience(begin + PATIENCE, || {
            once(begin.elapsed() > PATIENCE / 2 || self.pending_dirs().writing.is_blocked())
        });
        // The last attempt may exceed the limit, also if the only one took all of the time.
        done.or_else(|| if beyond.get() { None } else { once(true) }).unwrap_or(Err(fuser::Errno::ENOMEM))
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
        let pending_dirs = Arc::<PendingDirs>::default();
        let dir = InodeId::from_u64(5);
        let seen = || (pending_dirs.pending(dir).requests, pending_dirs.pending(dir).asking);
        let mut one = pending_dirs.enter(dir);
        one.ask(|| assert_eq!(seen(), (1, 1)));
        let two = pending_dirs.enter(dir);
        assert_eq!(seen(), (2, 0));
        one.set_asking(true);
        drop(one);
        assert_eq!(seen(), (1, 0));
        drop(two);
        assert!(pending_dirs.shard(dir).lock().is_empty());
    }
}
