//! How long a balancing thread's call to a holder of nodes has taken.
//!
//! A request that finds no memory may wait in vain: the balancing thread asks the kernel to forget a name, and the kernel
//! waits for that very request. [`HolderCall`] shows such a call, and the front end then lets the request exceed the limit
//! a little. Nothing is locked. With several balancing threads it shows the call that began or ended last. Both errors
//! end well: a request that sees no call waits longer, and one that sees a stale one takes some of the 4%.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// A call that takes longer waits for a request.
const BLOCKED: Duration = Duration::from_millis(2);

/// A call of a balancing thread to the [`NodeHolder`](crate::NodeHolder), if there is one.
#[derive(Debug)]
pub struct HolderCall {
    start: Instant,
    /// The call's begin in nanoseconds since `start`, plus one. 0: there is no call.
    since: AtomicU64,
}

impl Default for HolderCall {
    fn default() -> Self {
        Self { start: Instant::now(), since: AtomicU64::new(0) }
    }
}

/// The call ends, also by a panic.
struct Ends<'c>(&'c AtomicU64);

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        self.0.store(0, Ordering::Relaxed);
    }
}

impl HolderCall {
    fn now(&self) -> u64 {
        self.start.elapsed().as_nanos() as u64 + 1
    }

    /// Makes a call to the holder.
    pub fn make<R>(&self, call: impl FnOnce() -> R) -> R {
        self.since.store(self.now(), Ordering::Relaxed);
        let _ends = Ends(&self.since);
        call()
    }

    /// Whether the holder may be waiting for a request: the call has taken 2 ms.
    pub fn is_blocked(&self) -> bool {
        let since = self.since.load(Ordering::Relaxed);
        since != 0 && self.now().saturating_sub(since) > BLOCKED.as_nanos() as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_long_call_to_the_holder_is_seen() {
        let holder = HolderCall::default();
        assert!(!holder.is_blocked());
        holder.make(|| {
            let begin = Instant::now();
            while !holder.is_blocked() {
                assert!(begin.elapsed() < Duration::from_secs(10), "a long call is not seen");
            }
            assert!(begin.elapsed() >= BLOCKED / 2);
        });
        assert!(!holder.is_blocked());
    }
}
