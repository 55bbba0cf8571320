//! The balancing thread of a server whose clients hold nodes, so that requests need not keep the memory limit.
//!
//! It sleeps until the cache reports that free slots run short ([`Cache::watch_pressure`]). Then it evicts in small
//! steps until there are enough. Inodes that a kernel holds cannot be evicted. If a step finds little else, it asks the
//! kernel to forget leaves ([`crate::limit::forget_requests`]), and the resulting FORGETs make the next step possible. If
//! nothing helps (files are open, or the kernel uses everything), it pauses, each time for longer. In the end it sleeps
//! until memory runs short again.
//!
//! [`Steps`] is the protocol without a thread, for a server that waits for more than the cache. [`Balancer`] is the
//! thread. It holds no lock across a callback, and between two steps no reference to the cache. When the cache is
//! dropped, it wakes the thread, which then ends.

use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::task::{Wake, Waker};
use std::thread;
use std::time::{Duration, Instant};

use uvfs_sync::primitives::{Condvar, Mutex};

use crate::cache::Cache;
use crate::limit::forget_requests::{BATCH, NodeHolder, NodeReclaim};
use crate::limit::held_by_kernel::Leaf;
use crate::types::SbId;

/// The share of evictable names that should be left, measured against the names that the kernel holds: one in so
/// many.
const FREE_SHARE: usize = 8;
/// Pieces of 64 names that one search for leaves looks at: some ten thousand names.
const PIECES: u64 = 512;
/// Batches of leaves that are searched for one worth naming to the kernel.
const TRIES: usize = 8;
/// A step that evicts fewer than this, while more are missing, has found little.
const LITTLE: u64 = 64;
/// The shortest pause: the time the kernel may take to forget a batch.
const PAUSE_MIN: Duration = Duration::from_millis(1);
/// The longest pause. After it, the thread does nothing until memory runs short.
const PAUSE_MAX: Duration = Duration::from_millis(256);
/// The first pause when memory runs short again while nothing helps.
const PAUSE_AGAIN: Duration = Duration::from_millis(32);

/// The action after a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// Another one at once.
    Again,
    /// Another one after a pause.
    Pause(Duration),
    /// A pause of this length, and then [`Next::Sleep`].
    Last(Duration),
    /// Nothing, until memory runs short.
    Sleep,
}

/// The protocol of the balancing thread, between its sleeps.
#[derive(Debug)]
pub struct Steps {
    reclaim: NodeReclaim,
    pause: Duration,
    /// Inodes that kernels had forgotten at the last step.
    forgotten: u64,
    /// Leaves that the kernel was last asked to forget: the next step finds them without a search.
    named: Vec<Leaf>,
}

impl Steps {
    /// `prune`: see [`NodeReclaim::new`].
    pub fn new(prune: bool) -> Self {
        Self { reclaim: NodeReclaim::new(prune), pause: PAUSE_MIN, forgotten: 0, named: Vec::new() }
    }

    /// One step.
    pub fn step(&mut self, cache: &Cache, holder: &mut impl NodeHolder) -> Next {
        let done = cache.balance_after(&std::mem::take(&mut self.named));
        if done.missing == 0 {
            self.pause = PAUSE_MIN;
            return Next::Sleep;
        }
        // Other threads may have taken the memory that the kernel's FORGETs released.
        let forgotten = cache.limit.forgets();
        let moved = done.evicted > 0 || done.returned || forgotten != self.forgotten;
        self.forgotten = forgotten;
        if moved {
            self.pause = PAUSE_MIN;
        }
        // The kernel forgets the leaves that it is asked for. If that is not enough, ask again at once: a search
        // among the nodes that it holds would cost more than everything else.
        let on = done.forgotten >= LITTLE && done.missing > done.evicted;
        if on && self.name(cache, holder, done.sb, 1) {
            return Next::Pause(PAUSE_MIN);
        }
        if done.evicted >= done.missing.min(LITTLE) || done.returned {
            return Next::Again;
        }
        let asked = self.name(cache, holder, done.sb, TRIES);
        if !asked && (moved || done.more) {
            return Next::Again;
        }
        self.longer(cache)
    }

    /// Names leaves to the kernel, if few names are evictable besides those that it holds. Returns whether it
    /// accepted them.
    fn name(&mut self, cache: &Cache, holder: &mut impl NodeHolder, sb: SbId, tries: usize) -> bool {
        for nth in 1..=tries {
            let held = cache.held_by_kernel(sb, BATCH, PIECES);
            let few = held.evictable * FREE_SHARE < held.leaves.len();
            if few && self.reclaim.forget(cache, &held.leaves, holder, nth == TRIES) {
                self.named = held.leaves;
                return true;
            }
        }
        false
    }

    /// A pause, longer than the last one.
    fn longer(&mut self, cache: &Cache) -> Next {
        if self.pause >= PAUSE_MAX {
            self.pause = PAUSE_AGAIN;
            cache.give_up_shrinking();
            return Next::Last(PAUSE_MAX);
        }
        let pause = self.pause;
        self.pause *= 2;
        Next::Pause(pause)
    }
}

/// Keeps a cache within its memory limit from a thread of its own; dropping it ends the thread.
///
/// A server whose clients hold nodes (FUSE's lookup counts) needs one for each client. Without a limit
/// ([`Config::memory_limit`](crate::Config::memory_limit), [`Cache::set_memory_limit`]) it sleeps for ever.
#[derive(Debug)]
pub struct Balancer(Arc<Calls>);

impl Balancer {
    /// Starts the thread. `holder` asks the client to forget nodes.
    ///
    /// # Errors
    /// The thread cannot be started.
    #[doc(hidden)]
    pub fn start(cache: &Arc<Cache>, holder: impl NodeHolder + Send + 'static) -> io::Result<Self> {
        let weak = Arc::downgrade(cache);
        Self::start_over(cache, move |f| weak.upgrade().map(|cache| f(&cache)), holder)
    }

    /// [`Balancer::start`] for a cache inside something else. `lent` calls with the cache while that lives.
    pub(crate) fn start_over(
        cache: &Cache,
        lent: impl Fn(&mut dyn FnMut(&Cache)) -> Option<()> + Send + 'static,
        holder: impl NodeHolder + Send + 'static,
    ) -> io::Result<Self> {
        let calls = Arc::<Calls>::default();
        let waker = Waker::from(Arc::clone(&calls));
        cache.watch_pressure(waker.clone());
        let (theirs, their_waker) = (Arc::clone(&calls), waker.clone());
        let spawned = thread::Builder::new().name("uvfs-balance".into()).spawn(move || {
            theirs.run(&lent, holder);
            lent(&mut |cache| cache.unwatch_pressure(&their_waker));
        });
        match spawned {
            Ok(_) => Ok(Self(calls)),
            Err(error) => {
                cache.unwatch_pressure(&waker);
                Err(error)
            }
        }
    }
}

impl Drop for Balancer {
    fn drop(&mut self) {
        // Not waited for: the thread may be in a callback that waits for the dropping thread.
        self.0.call(|called| called.end = true);
    }
}

/// Calls to the thread.
#[derive(Debug, Default)]
struct Calls {
    called: Mutex<Called>,
    changed: Condvar,
}

#[derive(Clone, Copy, Debug, Default)]
struct Called {
    end: bool,
    /// Memory runs short.
    short: bool,
}

impl Calls {
    fn call(&self, change: impl FnOnce(&mut Called)) {
        change(&mut self.called.lock());
        self.changed.notify_all();
    }

    /// Sleeps until the end, until `until`, or, without a time, until memory runs short; returns whether this is the
    /// end.
    fn sleep(&self, until: Option<Instant>) -> bool {
        let mut called = self.called.lock();
        loop {
            let now = Instant::now();
            if called.end || until.map_or(called.short, |until| until <= now) {
                return called.end;
            }
            // Without a time this is long enough; waking up in vain does no harm.
            let time = until.map_or(Duration::from_secs(3600), |until| until - now);
            called = self.changed.wait_for(called, time);
        }
    }

    fn run(&self, lent: &impl Fn(&mut dyn FnMut(&Cache)) -> Option<()>, mut holder: impl NodeHolder) {
        let mut steps = Steps::new(true);
        // Events before the watcher was registered are not reported, so look once.
        let mut next = Next::Again;
        loop {
            let until = match next {
                Next::Again => Some(Instant::now()),
                Next::Pause(time) | Next::Last(time) => Some(Instant::now() + time),
                Next::Sleep => None,
            };
            if self.sleep(until) {
                return;
            }
            if let Next::Last(_) = next {
                next = Next::Sleep;
                continue;
            }
            // Before the step's look: an allocation that runs short afterwards calls again. Not elsewhere: the cache
            // calls once, and again only after a look.
            self.called.lock().short = false;
            let lived = lent(&mut |cache| {
                // A panic of a callback (the panic hook has reported it) counts as a step without effect: without
                // this thread every request would run short of memory.
                let step = catch_unwind(AssertUnwindSafe(|| steps.step(cache, &mut holder)));
                next = step.unwrap_or_else(|_| steps.longer(cache));
            });
            if lived.is_none() {
                return;
            }
        }
    }
}

impl Wake for Calls {
    fn wake(self: Arc<Self>) {
        self.call(|called| called.short = true);
    }
}
