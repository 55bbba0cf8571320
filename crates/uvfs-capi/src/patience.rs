//! Requests that find no memory, and wait for their client to forget nodes.
//!
//! A request may wait in vain: the balancing thread asks the kernel to forget a name, and the kernel waits for that
//! very request. [`Asking`] shows such a call, and then an attempt may exceed the limit by 4%. Nothing is locked. With
//! several balancing threads it shows the call that began or ended last: it is a hint, and after half of its time a
//! request need not see one.

use std::cell::Cell;
use std::ffi::{c_int, c_void};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use ::uvfs_cache::Errno;

use crate::cache::uvfs_cache;
use crate::values::{call, given};

/// A call of a balancing thread that takes longer waits for a request.
const BLOCKED: Duration = Duration::from_millis(2);
/// Longer waits are cut down to this.
const LONGEST: Duration = Duration::from_secs(24 * 60 * 60);

/// A call of a balancing thread to its client.
pub struct Asking {
    start: Instant,
    /// The call's begin in nanoseconds since `start`, plus one. 0: there is no call.
    since: AtomicU64,
}

impl Default for Asking {
    fn default() -> Self {
        Self { start: Instant::now(), since: AtomicU64::new(0) }
    }
}

impl Asking {
    fn now(&self) -> u64 {
        self.start.elapsed().as_nanos() as u64 + 1
    }

    /// Make a call to the client.
    pub fn ask<R>(&self, client: impl FnOnce() -> R) -> R {
        self.since.store(self.now(), Ordering::Relaxed);
        let answer = client();
        self.since.store(0, Ordering::Relaxed);
        answer
    }

    /// Whether the client may be waiting for a request.
    fn is_blocked(&self) -> bool {
        let since = self.since.load(Ordering::Relaxed);
        since != 0 && self.now().saturating_sub(since) > BLOCKED.as_nanos() as u64
    }
}

/// Call `attempt` with `context`, in this thread, until it returns anything but -ENOMEM, or `milliseconds` have passed.
/// Between two attempts it waits until a client has forgotten nodes, and for 10 ms at most. An attempt may exceed the
/// memory limit by 4% once half of the time has passed, and the last attempt always may. So may one once a call of a
/// balancing thread has taken 2 ms, because that call may wait for this request. Returns the result of the last attempt. The caller
/// holds no lock of a name, no ticket and no listing; `attempt` ends those that it begins.
#[unsafe(no_mangle)]
pub extern "C" fn uvfs_with_patience(
    cache: Option<&uvfs_cache>,
    milliseconds: u64,
    attempt: Option<extern "C" fn(context: *mut c_void) -> c_int>,
    context: *mut c_void,
) -> c_int {
    call(|| {
        let (cache, attempt) = (given(cache)?, given(attempt)?);
        let (begin, patience) = (Instant::now(), Duration::from_millis(milliseconds).min(LONGEST));
        let beyond = Cell::new(false);
        let once = |more: bool| {
            beyond.set(more);
            let _more = more.then(|| cache.nodes.overdraw());
            Some(attempt(context)).filter(|&result| result != -Errno::NOMEM.raw_os_error())
        };
        let done = cache.nodes.with_patience(begin + patience, || {
            once(begin.elapsed() >= patience / 2 || cache.asking.is_blocked())
        });
        // The only attempt may have taken all of the time.
        done.or_else(|| if beyond.get() { None } else { once(true) }).ok_or(Errno::NOMEM)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_long_call_to_the_client_is_seen() {
        let asking = Asking::default();
        assert!(!asking.is_blocked());
        asking.ask(|| {
            let begin = Instant::now();
            while !asking.is_blocked() {
                assert!(begin.elapsed() < Duration::from_secs(10), "a long call is not seen");
            }
            assert!(begin.elapsed() >= BLOCKED / 2);
        });
        assert!(!asking.is_blocked());
    }
}
