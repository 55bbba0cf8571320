//! Requests that find no memory, and wait for their client to forget nodes.
//!
//! A request may wait in vain: the balancing thread asks the kernel to forget a name, and the kernel waits for that
//! very request. [`HolderCall`](::uvfs_cache::HolderCall) shows such a call, and then an attempt may exceed the limit by 4%.
//! Nothing is locked. After half of its time a request need not see such a call.

use std::cell::Cell;
use std::ffi::{c_int, c_void};
use std::time::{Duration, Instant};

use ::uvfs_cache::Errno;

use crate::boundary::{call, given};
use crate::cache::uvfs_cache;

/// Longer waits are cut down to this.
const LONGEST: Duration = Duration::from_secs(24 * 60 * 60);

/// Call `attempt` with `context`, in this thread, until it returns anything but -ENOMEM, or `milliseconds` have passed.
/// Between two attempts it waits until a client has forgotten nodes, and for 10 ms at most. An attempt may exceed the
/// memory limit by 4% once half of the time has passed, and the last attempt always may. So may one once a call of a
/// balancing thread has taken 2 ms, because that call may wait for this request. Returns the result of the last
/// attempt. The caller holds no lock of a name, no ticket and no listing; `attempt` ends those that it begins.
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
            once(begin.elapsed() >= patience / 2 || cache.holder_call.is_blocked())
        });
        // The only attempt may have taken all of the time.
        done.or_else(|| if beyond.get() { None } else { once(true) }).ok_or(Errno::NOMEM)
    })
}
