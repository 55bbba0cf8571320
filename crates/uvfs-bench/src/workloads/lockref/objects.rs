//! The referenced objects: the arms differ only in this.

use std::hint::black_box;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use anyhow::{Result, ensure};
use uvfs_sync::lockref::LockRef;

use crate::arms::lockref::{CountAndLock, diverted};

/// An object that all threads reference.
pub(super) trait Object: Send + Sync {
    /// One thread takes and drops a reference `pairs` times.
    fn pairs(&self, own: &LockRef, pairs: u64) -> Result<()>;

    /// Runs `while_held` with the lock held, if there is a lock.
    fn hold(&self, while_held: &dyn Fn());

    /// A remark for the report, after all rounds.
    fn remark(&self) -> Option<String> {
        None
    }
}

/// A cache line and its adjacent line, not shared with anything else.
#[repr(align(128))]
pub(super) struct Line<T>(pub(super) T);

/// A thread's own lockref.
pub(super) fn own() -> Box<Line<LockRef>> {
    Box::new(Line(LockRef::started()))
}

fn pairs<P: CountAndLock>(refs: &P, pairs: u64) -> Result<()> {
    for _ in 0..pairs {
        ensure!(black_box(refs).get(), "a reference was refused");
        ensure!(!black_box(refs).put(), "a reference was lost");
    }
    Ok(())
}

/// Each thread has one of its own.
pub(super) struct Private;

impl Object for Private {
    fn pairs(&self, own: &LockRef, n: u64) -> Result<()> {
        pairs(own, n)
    }

    fn hold(&self, while_held: &dyn Fn()) {
        while_held();
    }
}

/// An `Arc`, which has no lock.
pub(super) struct Counted(Arc<Line<u64>>);

impl Counted {
    pub(super) fn new() -> Self {
        Self(Arc::new(Line(0)))
    }
}

impl Object for Counted {
    fn pairs(&self, _own: &LockRef, n: u64) -> Result<()> {
        for _ in 0..n {
            drop(black_box(Arc::clone(black_box(&self.0))));
        }
        Ok(())
    }

    fn hold(&self, while_held: &dyn Fn()) {
        while_held();
    }
}

/// A lockref.
pub(super) struct Locked<P> {
    refs: Line<P>,
    pairs: AtomicU64,
    diverted: AtomicU64,
}

impl<P: CountAndLock> Locked<P> {
    pub(super) fn new() -> Self {
        Self { refs: Line(P::started()), pairs: AtomicU64::new(0), diverted: AtomicU64::new(0) }
    }
}

impl<P: CountAndLock> Object for Locked<P> {
    fn pairs(&self, _own: &LockRef, n: u64) -> Result<()> {
        let before = diverted();
        pairs(&self.refs.0, n)?;
        // Once per batch, the same for all arms of this kind.
        self.pairs.fetch_add(n, Ordering::Relaxed);
        self.diverted.fetch_add(diverted() - before, Ordering::Relaxed);
        Ok(())
    }

    fn hold(&self, while_held: &dyn Fn()) {
        self.refs.0.lock();
        while_held();
        self.refs.0.unlock();
    }

    fn remark(&self) -> Option<String> {
        let all = 2 * self.pairs.load(Ordering::Relaxed);
        let diverted = self.diverted.load(Ordering::Relaxed);
        let share = 100.0 * diverted as f64 / all.max(1) as f64;
        Some(format!("{diverted} of {all} gets and puts took the lock ({share:.3}%)"))
    }
}
