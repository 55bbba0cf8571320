//! Keeping the memory limit while clients hold ids: the steps of a thread or task of the embedder's.
//!
//! An inode that a client has looked up cannot be evicted before the client forgets it. An evictor frees slots ahead
//! of need. If it finds little else, it asks the client to forget leaves, by id or by name, and looks at the same
//! leaves again in its next step. It never asks about a name in a directory where a request waits: a FUSE kernel
//! locks the directory for both, and they could wait for each other. If nothing helps, the pauses double, and then
//! it sleeps until memory runs short again.
//!
//! Nothing is locked here. No lock of the cache is held while the client is asked, which may wait.

use std::fmt;
use std::sync::Arc;
use std::task::{Wake, Waker};
use std::thread::Thread;
use std::time::Duration;

use super::NodeCache;
use crate::limit::held_by_kernel::Leaf;
use crate::types::{InodeId, SbId};

/// Nodes named in one request.
const BATCH: usize = 512;
/// Names invalidated in one step: each is a call of its own.
const BATCH_BY_NAME: usize = 128;
/// The share of evictable names that should be left, measured against those that clients hold: one in so many.
const FREE_SHARE: usize = 8;
/// Pieces of 64 names that one search for leaves looks at.
const PIECES: u64 = 512;
/// Batches of leaves that are searched for one worth asking about.
const TRIES: usize = 8;
/// A step that evicts fewer than this, while more are missing, has found little.
const LITTLE: u64 = 64;
/// The shortest pause: the time that a client may take to forget a batch.
const PAUSE_MIN: Duration = Duration::from_millis(1);
/// The longest one. After it, nothing is done until memory runs short.
const PAUSE_MAX: Duration = Duration::from_millis(256);
/// How often a sleeping thread looks whether it should end.
const LOOK: Duration = Duration::from_millis(100);

/// How clients of a cache are asked to forget ids.
pub trait EvictorClient {
    /// Drop these ids if nobody uses them (FUSE_NOTIFY_PRUNE). False: the client cannot be asked so.
    fn prune(&mut self, nodes: &[InodeId]) -> bool;

    /// Drop this name, and its id if nobody uses it (FUSE_NOTIFY_INVAL_ENTRY). Returns whether the client was asked.
    fn invalidate(&mut self, dir: InodeId, name: &[u8]) -> bool;

    /// Whether a request about a name in this directory is being answered.
    fn is_pending(&self, dir: InodeId) -> bool;
}

/// The action after [`NodeEvictor::step`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EvictorStep {
    /// Another step at once.
    Again,
    /// Another step after a pause.
    Pause(Duration),
    /// Nothing, until the waker is called.
    Sleep,
}

/// See the module's head.
pub struct NodeEvictor<T: Send + Sync + 'static> {
    cache: NodeCache<T>,
    waker: Waker,
    /// Leaves that the client was last asked to forget: the next step finds them without a search.
    named: Vec<Leaf>,
    pause: Duration,
    prunes: bool,
}

struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

impl<T: Send + Sync + 'static> NodeEvictor<T> {
    /// `waker` is called when memory runs short. It must take no lock of the cache. Begin with a step.
    pub fn new(cache: &NodeCache<T>, waker: Waker) -> Self {
        cache.0.cache.watch_pressure(waker.clone());
        Self { cache: cache.clone(), waker, named: Vec::new(), pause: PAUSE_MIN, prunes: true }
    }

    /// Keep the limit on this thread until `stopped`, which is asked at least every 256 ms.
    pub fn run(cache: &NodeCache<T>, client: &mut dyn EvictorClient, stopped: &dyn Fn() -> bool) {
        let mut evictor = Self::new(cache, Waker::from(Arc::new(Unpark(std::thread::current()))));
        let mut next = EvictorStep::Again;
        while !stopped() {
            match next {
                EvictorStep::Again => {}
                EvictorStep::Pause(time) => std::thread::sleep(time),
                // A wakeup that came before leaves a token, so this returns at once. One for something else, or the
                // end of the time, costs a step that finds nothing to do.
                EvictorStep::Sleep => std::thread::park_timeout(LOOK),
            }
            next = evictor.step(client);
        }
    }

    /// Evict a few names, and ask the client to forget some if that is not enough.
    pub fn step(&mut self, client: &mut dyn EvictorClient) -> EvictorStep {
        let done = self.cache.0.cache.balance_after(&std::mem::take(&mut self.named));
        if done.missing == 0 {
            self.pause = PAUSE_MIN;
            return EvictorStep::Sleep;
        }
        let moved = done.evicted > 0 || done.returned;
        if moved {
            self.pause = PAUSE_MIN;
        }
        // The client forgets the leaves that it is asked for. If that is not enough, ask again at once: a search
        // among those that it holds would cost more than everything else.
        let on = done.forgotten >= LITTLE && done.missing > done.evicted;
        if on && self.ask(client, done.sb, 1) {
            return EvictorStep::Pause(PAUSE_MIN);
        }
        if done.evicted >= done.missing.min(LITTLE) || done.returned {
            return EvictorStep::Again;
        }
        let asked = self.ask(client, done.sb, TRIES);
        if !asked && (moved || done.more) {
            return EvictorStep::Again;
        }
        if self.pause >= PAUSE_MAX {
            self.pause = PAUSE_MIN;
            self.cache.0.cache.give_up_shrinking();
            return EvictorStep::Sleep;
        }
        let pause = self.pause;
        self.pause *= 2;
        EvictorStep::Pause(pause)
    }

    /// Ask about leaves, if few names are evictable besides those that clients hold. Returns whether the client was
    /// asked.
    fn ask(&mut self, client: &mut dyn EvictorClient, sb: SbId, tries: usize) -> bool {
        for _ in 0..tries {
            let held = self.cache.0.cache.held_by_kernel(sb, BATCH, PIECES);
            let few = held.evictable * FREE_SHARE < held.leaves.len();
            if few && self.forget(client, &held.leaves) {
                self.named = held.leaves;
                return true;
            }
        }
        false
    }

    fn forget(&mut self, client: &mut dyn EvictorClient, leaves: &[Leaf]) -> bool {
        if self.prunes {
            let nodes: Vec<InodeId> = leaves.iter().map(|leaf| leaf.id).collect();
            self.prunes = client.prune(&nodes);
            if self.prunes {
                return true;
            }
        }
        let mut asked = 0;
        for leaf in leaves {
            if let Some((dir, name)) = self.cache.0.cache.name_of(leaf)
                && !client.is_pending(dir)
                && client.invalidate(dir, &name)
            {
                asked += 1;
            }
            if asked == BATCH_BY_NAME {
                break;
            }
        }
        asked > 0
    }
}

impl<T: Send + Sync + 'static> Drop for NodeEvictor<T> {
    fn drop(&mut self) {
        self.cache.0.cache.unwatch_pressure(&self.waker);
    }
}

impl<T: Send + Sync + 'static> fmt::Debug for NodeEvictor<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("NodeEvictor")
    }
}
