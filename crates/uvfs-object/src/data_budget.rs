//! The bound on data in memory: parts of objects that were read, or are being read.
//!
//! A part takes its bytes before it is asked for, and gives them back when it is dropped. If there are not enough, the
//! files that were read longest ago give up what they have and nobody waits for. A reader is never refused: if nothing
//! can be freed, it asks for its own bytes only, and these are over the bound until the kernel has them.
//!
//! Bytes that were written and are not in the store cannot be given up. So a writer waits ([`DataBudget::wait`]); one
//! writer at a time may exceed the bound, so that writers that wait for each other come to an end.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Weak};

use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore};

use crate::object_reader::OpenObject;
use crate::store::Failed;

/// How long a writer waits for memory before it gets ENOMEM.
const PATIENCE: Duration = Duration::from_secs(10);

/// The bound.
#[derive(Debug)]
pub(crate) struct DataBudget {
    limit: u64,
    used: AtomicU64,
    /// The most that was used.
    peak: AtomicU64,
    /// Orders reads.
    clock: AtomicU64,
    open: Mutex<Vec<Weak<OpenObject>>>,
    /// Bytes were given back.
    freed: Notify,
    /// The right of one writer to exceed the bound.
    exceeding: Arc<Semaphore>,
}

/// Bytes that a part has; given back when dropped.
#[derive(Debug)]
pub(crate) struct DataShare(Arc<DataBudget>, u64);

impl Drop for DataShare {
    fn drop(&mut self) {
        self.0.used.fetch_sub(self.1, Relaxed);
        self.0.freed.notify_waiters();
    }
}

impl DataBudget {
    pub(crate) fn new(limit: u64) -> Arc<Self> {
        Arc::new(Self {
            limit,
            used: AtomicU64::new(0),
            peak: AtomicU64::new(0),
            clock: AtomicU64::new(0),
            open: Mutex::default(),
            freed: Notify::new(),
            exceeding: Arc::new(Semaphore::new(1)),
        })
    }

    pub(crate) fn limit(&self) -> u64 {
        self.limit
    }

    /// Bytes in use now, and the most so far.
    pub(crate) fn used(&self) -> (u64, u64) {
        (self.used.load(Relaxed), self.peak.load(Relaxed))
    }

    /// A number that grows with each read.
    pub(crate) fn tick(&self) -> u64 {
        self.clock.fetch_add(1, Relaxed)
    }

    pub(crate) fn register(&self, object: &Arc<OpenObject>) {
        let mut open = self.open.lock();
        open.retain(|object| object.strong_count() != 0);
        open.push(Arc::downgrade(object));
    }

    /// Take bytes, whatever the bound says.
    pub(crate) fn overdraw(self: &Arc<Self>, bytes: u64) -> DataShare {
        let now = self.used.fetch_add(bytes, Relaxed) + bytes;
        self.peak.fetch_max(now, Relaxed);
        DataShare(self.clone(), bytes)
    }

    fn try_take(self: &Arc<Self>, bytes: u64) -> Option<DataShare> {
        let fits = |used: u64| used.checked_add(bytes).filter(|sum| *sum <= self.limit);
        let was = self.used.fetch_update(Relaxed, Relaxed, fits).ok()?;
        self.peak.fetch_max(was + bytes, Relaxed);
        Some(DataShare(self.clone(), bytes))
    }

    /// Take bytes if there are enough, or if idle files can free them. The caller may hold its own file's lock.
    pub(crate) fn take(self: &Arc<Self>, bytes: u64) -> Option<DataShare> {
        if let Some(share) = self.try_take(bytes) {
            return Some(share);
        }
        if bytes > self.limit {
            return None;
        }
        let mut open: Vec<_> = self.open.lock().iter().filter_map(Weak::upgrade).collect();
        open.sort_by_key(|object| object.last_read());
        for object in open {
            if object.give_up()
                && let Some(share) = self.try_take(bytes)
            {
                return Some(share);
            }
        }
        None
    }

    /// Take bytes for a writer, which keeps `right` once it has it, and gives it back with its bytes.
    ///
    /// # Errors
    /// ENOMEM: there were none for [`PATIENCE`].
    pub(crate) async fn wait(
        self: &Arc<Self>,
        bytes: u64,
        right: &mut Option<OwnedSemaphorePermit>,
    ) -> Result<DataShare, Failed> {
        let waits = async {
            loop {
                // Before the attempt: what is freed after it wakes this.
                let freed = self.freed.notified();
                if let Some(share) = self.take(bytes) {
                    return share;
                }
                if right.is_some() {
                    return self.overdraw(bytes);
                }
                tokio::select! {
                    () = freed => {}
                    permit = self.exceeding.clone().acquire_owned() => *right = permit.ok(),
                }
            }
        };
        tokio::time::timeout(PATIENCE, waits).await.map_err(|_| libc::ENOMEM)
    }
}
