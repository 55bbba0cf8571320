//! Name locks: the exclusive right to ask about, or change, one name of one directory.
//!
//! A name is a 64-bit keyed hash of (directory, bytes) in a small sharded table. It stands there while a
//! thread holds its lock. A name lock is also the in-lookup placeholder (concurrent misses of one name make
//! one driver call, rule 13). It keeps a create, an unlink and a lookup of one name apart. Unlike the
//! cache's other locks, it may be held across a driver call. It delays only threads that want the same
//! name. Two names whose 64-bit hashes collide delay each other; nothing else happens.
//!
//! A thread that finds the name taken gets a [`Pending`]. It can wait by callback, as a future, or by
//! blocking, and then looks again. Only a failed question is passed on as its error, so that a thousand
//! waiters do not ask a failing driver one after the other.
//!
//! Lock order: after the rename mutex; two names in the order of their hashes. Nothing else is locked
//! inside a shard's mutex.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use crossbeam_utils::CachePadded;
use uvfs_sync::alone::{self, Alone};
use uvfs_sync::blhash::Key;
use uvfs_sync::order::{Class, Held};
use uvfs_sync::primitives::{Condvar, Hint, Mutex};

use crate::cache::Cache;
use crate::dirs::state::DirState;
use crate::inodes::by_number::Asked;
use crate::inodes::inode_ref::InodeRef;
use crate::names::dentry::{INLINE, NameWords};

/// Enough that two threads seldom meet in one.
const SHARDS: usize = if cfg!(loom) { 1 } else { 64 };

/// A waiter's result: look again, or the errno that the asker got.
type Outcome = Result<(), i32>;

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
    pub fn wait(self) -> Result<(), i32> {
        let mut done = self.0.done.lock();
        loop {
            match done.outcome {
                Some(outcome) => return outcome,
                None => done = self.0.wake.wait(done),
            }
        }
    }

    /// Call `f` when the name is free again, from the thread that frees it (which holds nothing), or at
    /// once if it is free already.
    pub fn on_done(self, f: Box<dyn FnOnce(Result<(), i32>) + Send>) {
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
    type Output = Result<(), i32>;

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
    key: Key,
}

impl NameLocks {
    pub(crate) fn new() -> Self {
        use std::hash::{BuildHasher, RandomState};
        // Fixed under the model checker, whose runs must repeat.
        let seed = |n: u64| if cfg!(loom) { n } else { RandomState::new().hash_one(n) };
        Self { shards: std::array::from_fn(|_| CachePadded::default()), key: Key(seed(1), seed(2)) }
    }

    fn key(&self, dir: u32, name: &NameWords<'_>) -> u64 {
        let key = name.hash(self.key) ^ u64::from(dir).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        key.max(alone::LEAST)
    }

    #[inline]
    fn shard(&self, key: u64) -> &Shard {
        &self.shards[(key >> 32) as usize % SHARDS]
    }

    fn take(&self, key: u64) -> Result<(), Pending> {
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
                taken.waiters.push(waiter.clone());
                Err(Pending(waiter))
            }
        }
    }

    /// Waits for a name. The lock order notes it for as long as the caller waits for others.
    fn take_or_wait(&self, key: u64) -> Held {
        let order = Held::keyed(Class::Name, key);
        while let Err(pending) = self.take(key) {
            // An error was the other asker's; a caller that wants the name itself tries again.
            let _ = pending.wait();
        }
        order
    }

    fn release(&self, key: u64, outcome: Outcome) {
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

/// A name's bytes; most are short enough to need no memory of their own.
enum Bytes {
    Short([u8; INLINE], u8),
    Long(Box<[u8]>),
}

impl Bytes {
    fn new(name: &[u8]) -> Self {
        let mut short = [0; INLINE];
        match short.get_mut(..name.len()) {
            Some(room) => {
                room.copy_from_slice(name);
                Self::Short(short, name.len() as u8)
            }
            None => Self::Long(name.into()),
        }
    }

    fn get(&self) -> &[u8] {
        match self {
            Self::Short(bytes, len) => &bytes[..usize::from(*len)],
            Self::Long(bytes) => bytes,
        }
    }
}

/// A held name lock; dropping it frees the name.
pub struct NameGuard<'c> {
    pub(crate) cache: &'c Cache,
    pub(crate) dir: InodeRef<'c>,
    /// The state of the directory, which is held.
    pub(crate) state: Option<&'c DirState>,
    name: Bytes,
    /// In a resident directory: the dentry that [`NameGuard::find`] found, the first place to look when the
    /// name goes.
    pub(crate) found: Hint,
    /// `None`: the other guard of a pair of colliding names owns the entry.
    key: Option<u64>,
    /// The directory's revision before the driver is asked (rule 10): at the taking of the name lock, or at
    /// the start of a listing.
    pub(crate) revision: u64,
    /// The epoch and the notes of that moment.
    pub(crate) asked: Asked,
    outcome: Outcome,
}

impl std::fmt::Debug for NameGuard<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("NameGuard")
            .field("dir", &self.dir)
            .field("name", &String::from_utf8_lossy(self.name()))
            .finish_non_exhaustive()
    }
}

impl<'c> NameGuard<'c> {
    fn new(dir: &InodeRef<'c>, name: &[u8], key: Option<u64>) -> Self {
        let state = dir.dir_state();
        Self {
            cache: dir.cache(),
            state,
            revision: state.map_or(0, |d| d.revision()),
            asked: dir.cache().ask_below(dir),
            dir: dir.clone(),
            name: Bytes::new(name),
            found: Hint::new(),
            key,
            outcome: Ok(()),
        }
    }

    /// The directory.
    pub fn dir(&self) -> &InodeRef<'c> {
        &self.dir
    }

    /// The name.
    pub fn name(&self) -> &[u8] {
        self.name.get()
    }

    pub(crate) fn words(&self) -> NameWords<'_> {
        NameWords::new(self.name())
    }

    /// The question failed: waiters for the same name get this errno.
    pub fn fail(mut self, errno: i32) {
        self.outcome = Err(errno);
    }
}

impl Drop for NameGuard<'_> {
    fn drop(&mut self) {
        if let Some(key) = self.key {
            self.cache.name_locks.release(key, self.outcome);
        }
    }
}

impl Cache {
    /// Take a name lock, waiting for its holder. Invalid names (empty, or longer than 255 bytes) can be
    /// locked too, but [`NameGuard::reserve`] refuses them.
    pub fn lock_name<'c>(&'c self, dir: &InodeRef<'c>, name: &[u8]) -> NameGuard<'c> {
        let key = self.name_locks.key(dir.index(), &NameWords::new(name));
        drop(self.name_locks.take_or_wait(key));
        NameGuard::new(dir, name, Some(key))
    }

    /// Take a name lock if it is free.
    pub(crate) fn try_lock_name<'c>(
        &'c self,
        dir: &InodeRef<'c>,
        name: &[u8],
    ) -> Result<NameGuard<'c>, Pending> {
        let key = self.name_locks.key(dir.index(), &NameWords::new(name));
        self.name_locks.take(key)?;
        Ok(NameGuard::new(dir, name, Some(key)))
    }

    /// Take two name locks, in the one order that all threads use. The names may be the same.
    pub fn lock_names<'c>(
        &'c self,
        a: (&InodeRef<'c>, &[u8]),
        b: (&InodeRef<'c>, &[u8]),
    ) -> (NameGuard<'c>, NameGuard<'c>) {
        let key_of =
            |(dir, name): (&InodeRef<'c>, &[u8])| self.name_locks.key(dir.index(), &NameWords::new(name));
        let (first, second) = (key_of(a), key_of(b));
        let _order = self.name_locks.take_or_wait(first.min(second));
        if first != second {
            drop(self.name_locks.take_or_wait(first.max(second)));
        }
        let other = (first != second).then_some(second);
        (NameGuard::new(a.0, a.1, Some(first)), NameGuard::new(b.0, b.1, other))
    }
}
