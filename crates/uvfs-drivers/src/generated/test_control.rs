//! The handle through which a test or benchmark in the same process observes and controls a generated
//! driver: counters of calls, faults at run time, gates, changes of the tree.
//!
//! It may be cloned, kept and used from any thread, before, during and after the mount. With a gate a
//! test holds one call without sleeping. The gate reports that the call has arrived, and releases
//! it on request (or when dropped, so that a failing test does not hang).

use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};

use super::Shared;
use super::fault::{Fault, FaultCall};
use super::tree::{Change, Tree};

/// Observes and controls a generated driver.
#[derive(Clone)]
pub struct FaultControl {
    shared: Arc<Shared>,
}

impl FaultControl {
    pub(super) fn new(shared: Arc<Shared>) -> Self {
        Self { shared }
    }

    /// The tree that the driver shows.
    pub fn tree(&self) -> &Tree {
        &self.shared.tree
    }

    /// Calls of this kind that have begun, failed ones included.
    pub fn calls(&self, call: FaultCall) -> u64 {
        self.shared.faults.calls(call)
    }

    /// Calls of all kinds that have begun.
    pub fn all_calls(&self) -> u64 {
        FaultCall::ALL.iter().map(|call| self.calls(*call)).sum()
    }

    /// Adds a fault. Its calls are counted from now: `first: 1` is the next one.
    pub fn fault(&self, fault: Fault) {
        self.shared.faults.add(&fault);
    }

    /// Removes all faults, those of the specification included.
    pub fn clear_faults(&self) {
        self.shared.faults.clear();
    }

    /// Holds the `n`-th call of this kind from now (1: the next) until the gate is dropped. The
    /// held call has computed its answer (and a `readdir` has handed out its entries).
    #[must_use = "the gate opens when it is dropped"]
    pub fn gate(&self, call: FaultCall, n: u64) -> Gate {
        let barrier = Arc::new(Barrier::default());
        self.shared.faults.add_barrier(call, n, barrier.clone());
        Gate { barrier, shared: self.shared.clone() }
    }

    /// Makes a node and everything below it different; see [`Tree::change`]. The cache is not notified.
    pub fn change(&self, ino: u64, what: Change) {
        self.shared.tree.change(ino, what);
    }
}

/// Holds one call of the driver; see [`FaultControl::gate`].
pub struct Gate {
    barrier: Arc<Barrier>,
    shared: Arc<Shared>,
}

impl Gate {
    /// Waits until the call has arrived; false if it has not within `timeout`.
    #[must_use]
    pub fn reached(&self, timeout: Duration) -> bool {
        self.barrier.reached(Instant::now() + timeout)
    }

    /// Releases the call.
    pub fn open(self) {}
}

impl Drop for Gate {
    fn drop(&mut self) {
        self.shared.faults.remove_barrier(&self.barrier);
        self.barrier.open();
    }
}

/// The barrier at which a held call waits.
#[derive(Debug, Default)]
pub(super) struct Barrier {
    state: Mutex<State>,
    moved: Condvar,
}

#[derive(Debug, Default)]
struct State {
    reached: bool,
    open: bool,
}

impl Barrier {
    /// Announces that a call has arrived and waits until the barrier is open.
    pub(super) fn pass(&self) {
        let mut state = self.state.lock();
        state.reached = true;
        self.moved.notify_all();
        self.moved.wait_while(&mut state, |state| !state.open);
    }

    fn reached(&self, deadline: Instant) -> bool {
        let mut state = self.state.lock();
        self.moved.wait_while_until(&mut state, |state| !state.reached, deadline);
        state.reached
    }

    fn open(&self) {
        self.state.lock().open = true;
        self.moved.notify_all();
    }
}
