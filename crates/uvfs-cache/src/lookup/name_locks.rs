//! Name locks: the exclusive right to ask about, or change, one name of one directory.
//!
//! The key of a lock is a 64-bit keyed hash of directory and name. A small sharded table holds the keys of
//! all held name locks. A name lock is also the in-lookup placeholder (concurrent misses of one name make
//! one driver call, rule 13). It keeps a create, an unlink and a lookup of one name apart. Unlike the
//! cache's other locks, it may be held across a driver call. It delays only threads that want the same
//! name. Two names with the same hash share a lock: they delay each other, and the errno of a failed
//! question about one reaches the waiters for both.
//!
//! A thread that finds the name taken gets a [`Pending`]. It can wait by callback, as a future, or by
//! blocking, and then looks again. If the holder's question fails, each `Pending` gives its errno instead,
//! so that a thousand waiters do not ask a failing driver one after the other. (A caller of
//! [`Cache::lock_name`](crate::Cache::lock_name) tries again all the same.)
//!
//! A freed name is handed to nobody: all waiters look again. So a waiter that gives up, by dropping its
//! `Pending`, takes no wakeup from another. Its waker goes at once. Its place in the list goes when the list
//! would grow, so many that come and give up take no more memory than those that wait. A registration against
//! the release: both hold the shard's mutex. If the registration comes first, the release finds the waiter.
//! Otherwise the name is free, and the caller takes it. A poll against the release: both hold the waiter's
//! mutex. If the poll comes first, the release finds its waker. Otherwise the poll finds the outcome.
//!
//! Lock order: after the rename mutex; two names in the order of their hashes. Nothing else is locked
//! inside a shard's mutex.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use crossbeam_utils::CachePadded;
use rustix::io::Errno;
use uvfs_sync::blhash::HashKey;
use uvfs_sync::lock_order::{Class, Held};
use uvfs_sync::primitives::{Condvar, Mutex};
use uvfs_sync::sole_key::{self, Alone};

use crate::names::dentry::NameWords;

/// Enough that two threads seldom meet in one.
const SHARDS: usize = if cfg!(loom) { 1 } else { 64 };

/// A waiter's result: look again, or the errno that the asker got.
pub(crate) type Outcome = Result<(), Errno>;

#[derive(Default)]
struct Done {
    outcome: Option<Outcome>,
    waker: Option<Waker>,
    callback: Option<Box<dyn FnOnce(Outcome) + Send>>,
}

#[derive(Default)]
struct Waiter {
    done: Mutex<Done>,
    wake: Condvar,
}

impl Waiter {
    /// Whether anybody waits: a [`Pending`], or a callback. The list that is looked through holds one count.
    fn is_awaited(self: &Arc<Self>) -> bool {
        Arc::strong_count(self) > 1 || self.done.lock().callback.is_some()
    }

    fn finish(&self, outcome: Outcome) {
        let (waker, callback) = {
            let mut done = self.done.lock();
            done.outcome = Some(outcome);
            (done.waker.take(), done.callback.take())
        };
        self.wake.notify_all();
        if let Some(w) = waker {
            w.wake();
        }
        if let Some(f) = callback {
            f(outcome);
        }
    }
}

/// Waiters still to be notified. A callback that panics must not leave the rest waiting for ever.
struct Told {
    waiters: std::vec::IntoIter<Arc<Waiter>>,
    outcome: Outcome,
}

impl Drop for Told {
    fn drop(&mut self) {
        for waiter in self.waiters.by_ref() {
            waiter.finish(self.outcome);
        }
    }
}

/// Another thread holds the name lock. The caller need not wait for it (it may drop this).
pub struct Pending(Arc<Waiter>);

impl std::fmt::Debug for Pending {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Pending")
    }
}

impl Pending {
    /// Block until the name is free again.
    ///
    /// # Errors
    /// The errno that the asking thread got from the driver.
    pub fn wait(self) -> Result<(), Errno> {
        let mut done = self.0.done.lock();
        loop {
            match done.outcome {
                Some(outcome) => return outcome,
                None => done = self.0.wake.wait(done),
            }
        }
    }
}

impl Drop for Pending {
    /// The caller gives up, or has its answer: its task is not kept.
    fn drop(&mut self) {
        let waker = self.0.done.lock().waker.take();
        drop(waker);
    }
}

// For this project's own crates: see `machinery`.
#[doc(hidden)]
impl Pending {
    /// Call `f` when the name is free again, from the thread that frees it (which holds nothing), or at
    /// once if it is free already.
    pub fn on_done(self, f: Box<dyn FnOnce(Result<(), Errno>) + Send>) {
        let outcome = {
            let mut done = self.0.done.lock();
            match done.outcome {
                Some(outcome) => outcome,
                None => {
                    done.callback = Some(f);
                    return;
                }
            }
        };
        f(outcome);
    }
}

impl Future for Pending {
    type Output = Result<(), Errno>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let mut done = self.0.done.lock();
        match done.outcome {
            Some(outcome) => Poll::Ready(outcome),
            None => {
                done.waker = Some(cx.waker().clone());
                Poll::Pending
            }
        }
    }
}

/// A name that is taken, and its waiters.
struct Taken {
    key: u64,
    waiters: Vec<Arc<Waiter>>,
}

impl Taken {
    /// Before the list of waiters grows: those that gave up leave it. Afterwards at least half of the list is
    /// free, so this costs a step or two a waiter.
    fn make_room(&mut self) {
        if self.waiters.len() == self.waiters.capacity() || cfg!(loom) {
            self.waiters.retain(Waiter::is_awaited);
            self.waiters.reserve(self.waiters.len() + 1);
        }
    }
}

/// One shard: the taken names, in no order. There are seldom more than a few, and comparing them is faster
/// than hashing them again. Most often there is at most one. It then stands in `alone` and has no waiters.
#[derive(Default)]
struct Shard {
    alone: Alone,
    list: Mutex<Vec<Taken>>,
}

/// The names that are taken, each with its waiters.
pub(crate) struct NameLocks {
    /// One cache line each: a thread that takes a name must not slow down one that takes another.
    shards: [CachePadded<Shard>; SHARDS],
    key: HashKey,
}

impl NameLocks {
    pub(crate) fn new() -> Self {
        use std::hash::{BuildHasher, RandomState};
        // Fixed under the model checker, whose runs must repeat.
        let seed = |n: u64| if cfg!(loom) { n } else { RandomState::new().hash_one(n) };
        Self { shards: std::array::from_fn(|_| CachePadded::default()), key: HashKey(seed(1), seed(2)) }
    }

    pub(crate) fn key(&self, dir: u32, name: &NameWords<'_>) -> u64 {
        let key = name.hash(self.key) ^ u64::from(dir).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        key.max(sole_key::LEAST)
    }

    #[inline]
    fn shard(&self, key: u64) -> &Shard {
        &self.shards[(key >> 32) as usize % SHARDS]
    }

    pub(crate) fn take(&self, key: u64) -> Result<(), Pending> {
        let shard = self.shard(key);
        if shard.alone.take(key) {
            return Ok(());
        }
        let mut list = shard.list.lock();
        list.extend(shard.alone.share().map(|key| Taken { key, waiters: Vec::new() }));
        match list.iter_mut().find(|taken| taken.key == key) {
            None => {
                list.push(Taken { key, waiters: Vec::new() });
                Ok(())
            }
            Some(taken) => {
                let waiter = Arc::new(Waiter::default());
                taken.make_room();
                taken.waiters.push(waiter.clone());
                Err(Pending(waiter))
            }
        }
    }

    /// Waits for a name. The lock order notes it for as long as the caller waits for others.
    pub(super) fn take_or_wait(&self, key: u64) -> Held {
        let order = Held::keyed(Class::Name, key);
        while let Err(pending) = self.take(key) {
            // An error was the other asker's; a caller that wants the name itself tries again.
            let _ = pending.wait();
        }
        order
    }

    pub(crate) fn release(&self, key: u64, outcome: Outcome) {
        let shard = self.shard(key);
        if shard.alone.release(key) {
            return;
        }
        let waiters = {
            let mut list = shard.list.lock();
            let at = list.iter().position(|taken| taken.key == key);
            let waiters = at.map(|at| list.swap_remove(at).waiters).unwrap_or_default();
            if list.is_empty() {
                shard.alone.unshare();
            }
            waiters
        };
        if waiters.is_empty() {
            return;
        }
        let mut told = Told { waiters: waiters.into_iter(), outcome };
        for waiter in told.waiters.by_ref() {
            waiter.finish(outcome);
        }
    }
}
