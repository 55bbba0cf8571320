//! The memory limit: the client as a holder of inodes, and requests that find no memory.
//!
//! The client locks a directory while a request about a name in it is pending, and an invalidation waits for that
//! lock. [`Waits`] says where requests are pending, so that the balancing thread passes over those directories.
//!
//! A request that finds no memory tries again for two seconds ([`InodeStore::with_patience`]). It may wait for the
//! thread, which waits for the client, which waits for that request. Once the thread has waited for 2 ms, or the
//! request for a second, the request may exceed the limit by 4%.
//!
//! `Waits` has mutexes, which are leaves. A request that is not a hit takes one for a few steps, by its directory.

use std::collections::HashMap;
use std::io;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use uvfs_cache::{CacheError, Errno, HolderCall, InodeId, NodeCache, NodeHolder};

use crate::store::{Inner, InodeStore, io_error};

const SHARDS: usize = 16;
/// The longest that a request waits for memory.
const PATIENCE: Duration = Duration::from_secs(2);
/// Between two attempts.
const PAUSE: Duration = Duration::from_millis(5);

/// The client that holds inodes, mostly a kernel: three calls, which one thread of the store makes. It holds no lock
/// during a call, so the calls may wait.
pub trait InodeHolder: Send + 'static {
    /// Ask for these inodes to be forgotten if they are unused: FUSE_NOTIFY_PRUNE.
    ///
    /// # Errors
    /// ENOSYS, as by default, or EINVAL: not supported, so names are invalidated. Any other: the client is gone.
    fn prune(&mut self, inodes: &[u64]) -> io::Result<()> {
        let _ = inodes;
        Err(io_error(Errno::NOSYS))
    }

    /// Have a name looked up again, and so its inode forgotten if it is unused: FUSE_NOTIFY_INVAL_ENTRY.
    ///
    /// # Errors
    /// ENOENT, ENOTDIR, EBUSY, ENOTEMPTY, EAGAIN and EINTR pass the name over. After any other error the client is not
    /// asked again.
    fn invalidate(&mut self, parent: u64, name: &[u8]) -> io::Result<()>;

    /// Whether requests are pending in a directory that the store does not see: it knows of those inside its own
    /// calls. With `for_ever`, whether one may wait for ever.
    fn is_waited_in(&self, parent: u64, for_ever: bool) -> bool {
        let _ = (parent, for_ever);
        false
    }
}

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
    /// The balancing thread's calls of the holder.
    calling: HolderCall,
}

impl Waits {
    fn shard(&self, dir: InodeId) -> &Mutex<HashMap<InodeId, Pending>> {
        &self.shards[dir.as_u64() as usize % SHARDS]
    }

    pub(crate) fn enter(self: &Arc<Self>, dir: InodeId) -> Mark {
        self.shard(dir).lock().entry(dir).or_default().requests += 1;
        Mark { waits: Arc::clone(self), dir }
    }

    fn pending(&self, dir: InodeId) -> Pending {
        self.shard(dir).lock().get(&dir).copied().unwrap_or_default()
    }
}

/// One pending request.
pub(crate) struct Mark {
    waits: Arc<Waits>,
    dir: InodeId,
}

impl Mark {
    /// Ask the back end.
    pub(crate) fn ask<R>(&mut self, ask: impl FnOnce() -> R) -> R {
        let _asking = Asking::begin(self);
        ask()
    }
}

impl Drop for Mark {
    fn drop(&mut self) {
        let mut shard = self.waits.shard(self.dir).lock();
        if let Some(pending) = shard.get_mut(&self.dir) {
            pending.requests -= 1;
            if pending.requests == 0 {
                shard.remove(&self.dir);
            }
        }
    }
}

/// The back end is being asked. Ends also if the call panics.
struct Asking<'m>(&'m Mark);

impl<'m> Asking<'m> {
    fn begin(mark: &'m Mark) -> Self {
        mark.waits.shard(mark.dir).lock().entry(mark.dir).or_default().asking += 1;
        Self(mark)
    }
}

impl Drop for Asking<'_> {
    fn drop(&mut self) {
        let mark = self.0;
        mark.waits.shard(mark.dir).lock().entry(mark.dir).or_default().asking -= 1;
    }
}

/// The client, as the cache's balancing thread sees it.
struct Client<T: Send + Sync + 'static, H> {
    holder: H,
    cache: NodeCache<Inner<T>>,
    waits: Arc<Waits>,
}

impl<T: Send + Sync + 'static, H: InodeHolder> Client<T, H> {
    fn call(&mut self, call: impl FnOnce(&mut H) -> io::Result<()>) -> Result<(), Errno> {
        let done = self.waits.calling.make(|| call(&mut self.holder));
        done.map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::IO))
    }
}

impl<T: Send + Sync + 'static, H: InodeHolder> NodeHolder for Client<T, H> {
    fn prune(&mut self, nodes: &[InodeId]) -> Result<(), Errno> {
        let numbers: Vec<u64> =
            nodes.iter().filter_map(|id| InodeStore::number_of(&self.cache, *id)).collect();
        self.call(|holder| holder.prune(&numbers))
    }

    fn invalidate(&mut self, dir: InodeId, name: &[u8]) -> Result<(), Errno> {
        let parent = InodeStore::number_of(&self.cache, dir).ok_or(Errno::NOENT)?;
        self.call(|holder| holder.invalidate(parent, name))
    }

    fn is_waited_in(&self, dir: InodeId, for_ever: bool) -> bool {
        let pending = self.waits.pending(dir);
        let here = if for_ever { pending.asking > 0 } else { pending.requests > 0 };
        here || InodeStore::number_of(&self.cache, dir)
            .is_some_and(|parent| self.holder.is_waited_in(parent, for_ever))
    }
}

/// Why an attempt failed.
pub(crate) enum Attempt {
    /// There was no memory: try again.
    Short,
    Failed(io::Error),
}

impl From<io::Error> for Attempt {
    fn from(error: io::Error) -> Self {
        Self::Failed(error)
    }
}

impl From<CacheError> for Attempt {
    fn from(error: CacheError) -> Self {
        match error {
            CacheError::NoMemory => Self::Short,
            error => Self::Failed(io_error(error)),
        }
    }
}

impl<T: Send + Sync + 'static> InodeStore<T> {
    /// Keep the memory limit from a thread of its own, which asks the client to forget inodes. Without it, inodes that
    /// the client holds keep the store above the limit. The thread ends with the store, so the holder must not own the
    /// store. A second call replaces the first one's thread.
    ///
    /// # Errors
    /// The thread cannot be started.
    pub fn keep_limit(&self, holder: impl InodeHolder) -> io::Result<()> {
        let client = Client { holder, cache: self.cache().clone(), waits: Arc::clone(self.waits()) };
        let balancer = self.cache().balance(client)?;
        self.set_balancer(balancer);
        Ok(())
    }

    /// Change the limit (bytes; 0: none), and come down to it as far as possible.
    pub fn set_limit(&self, bytes: u64) {
        self.cache().set_memory_limit(bytes);
    }

    /// Attempt something that needs memory, again for a while if there is none: the client is about to forget inodes.
    /// The caller holds no name lock that a holder of memory might wait for.
    pub(crate) fn with_patience<R>(&self, mut attempt: impl FnMut() -> Result<R, Attempt>) -> io::Result<R> {
        let begin = Instant::now();
        loop {
            let long = begin.elapsed() > PATIENCE / 2;
            let more = (long || self.waits().calling.is_blocked()).then(|| self.cache().overdraw());
            match attempt() {
                Ok(done) => return Ok(done),
                Err(Attempt::Failed(error)) => return Err(error),
                // The last attempt may exceed the limit, however late it comes.
                Err(Attempt::Short) if more.is_some() && begin.elapsed() >= PATIENCE => {
                    return Err(io_error(Errno::NOMEM));
                }
                Err(Attempt::Short) => thread::sleep(PAUSE),
            }
        }
    }
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
        drop(one);
        assert_eq!(seen(), (1, 0));
        drop(two);
        assert!(waits.shard(dir).lock().is_empty());
    }
}
