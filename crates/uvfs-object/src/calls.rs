//! Requests of the kernel under way: each has a deadline, and can be cancelled.
//!
//! A request is a task of the runtime, so any number of them wait on the runtime's few threads. If its process is killed, its
//! future is dropped, and with it the calls that nobody else waits for. The kernel sends FUSE_INTERRUPT once, at the first
//! signal of any kind, and programs do not expect EINTR of stat(2). So from then on the process is looked at every [`LOOK`],
//! until it is about to end or the request is answered. A panic (of a dependency, that
//! a store's answer has provoked) becomes EIO, since a request without an answer hangs its caller. The mutex is a leaf.

use std::collections::HashMap;
use std::panic::AssertUnwindSafe;
use std::time::Duration;

use fuse3::{Errno, Result};
use futures_util::FutureExt;
use futures_util::future::{AbortHandle, Abortable};
use parking_lot::Mutex;

/// How often a process that got a signal is looked at.
const LOOK: Duration = Duration::from_millis(20);
/// Looks for a request that is not known yet: its interrupt has overtaken it.
const EARLY: u32 = 5;
/// Bit of SIGKILL in the signal sets of `/proc/PID/status`: any signal that ends a process is one by then.
const KILLED: u64 = 1 << (libc::SIGKILL - 1);

/// Whether a thread is about to end, or has ended.
fn is_ending(pid: u32) -> bool {
    let Ok(status) = std::fs::read_to_string(format!("/proc/{pid}/status")) else { return true };
    let is_killed = |line: &str| {
        let set = line.strip_prefix("SigPnd:").or(line.strip_prefix("ShdPnd:"));
        set.and_then(|set| u64::from_str_radix(set.trim(), 16).ok()).is_some_and(|set| set & KILLED != 0)
    };
    status.lines().any(is_killed)
}

/// All requests under way that may wait.
#[derive(Debug)]
pub(crate) struct Calls {
    /// By number, with the thread that asked.
    running: Mutex<HashMap<u64, (AbortHandle, u32)>>,
    deadline: Duration,
}

/// Takes a request out of the table when it ends, however it ends.
struct Entered<'a>(&'a Calls, u64);

impl Drop for Entered<'_> {
    fn drop(&mut self) {
        self.0.running.lock().remove(&self.1);
    }
}

impl Calls {
    pub(crate) fn new(deadline: Duration) -> Self {
        Self { running: Mutex::default(), deadline }
    }

    /// Run a request that a thread has made.
    ///
    /// # Errors
    /// EINTR: the thread was killed. EIO: it took longer than the deadline, or panicked. Otherwise its own.
    pub(crate) async fn run<R>(
        &self,
        (unique, pid): (u64, u32),
        request: impl Future<Output = std::result::Result<R, i32>>,
    ) -> Result<R> {
        let (handle, registration) = AbortHandle::new_pair();
        self.running.lock().insert(unique, (handle, pid));
        let _entered = Entered(self, unique);
        let request = AssertUnwindSafe(request).catch_unwind();
        let timed = tokio::time::timeout(self.deadline, Abortable::new(request, registration));
        let errno = match timed.await {
            Ok(Ok(Ok(Ok(done)))) => return Ok(done),
            Ok(Ok(Ok(Err(errno)))) => errno,
            Ok(Ok(Err(_panic))) => {
                tracing::error!("a request panicked; its caller gets EIO");
                libc::EIO
            }
            Ok(Err(_aborted)) => libc::EINTR,
            Err(_elapsed) => {
                tracing::warn!("a request took more than {:?}; its caller gets EIO", self.deadline);
                libc::EIO
            }
        };
        Err(Errno::from(errno))
    }

    /// The thread that made a request has got a signal. Ends when the request has ended, or was ended here.
    pub(crate) async fn interrupt(&self, unique: u64) {
        let mut unknown = 0;
        while unknown < EARLY {
            let asker = self.running.lock().get(&unique).cloned();
            match asker {
                Some((handle, pid)) if is_ending(pid) => return handle.abort(),
                Some(_) => unknown = EARLY - 1,
                None => unknown += 1,
            }
            tokio::time::sleep(LOOK).await;
        }
    }

    /// Requests under way.
    pub(crate) fn running(&self) -> usize {
        self.running.lock().len()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    struct Dropped(Arc<Mutex<bool>>);

    impl Drop for Dropped {
        fn drop(&mut self) {
            *self.0.lock() = true;
        }
    }

    #[tokio::test]
    async fn an_interrupt_drops_the_call() {
        let calls = Calls::new(Duration::from_secs(60));
        let was_dropped = Arc::new(Mutex::new(false));
        let held = Dropped(Arc::clone(&was_dropped));
        // A thread that has ended: no number is as large.
        let call = calls.run((7, u32::MAX), async move {
            let _held = held;
            std::future::pending::<std::result::Result<(), i32>>().await
        });
        let interrupt = async {
            calls.interrupt(8).await;
            calls.interrupt(7).await;
        };
        let (ended, ()) = tokio::join!(call, interrupt);
        assert_eq!(ended, Err(Errno::from(libc::EINTR)));
        assert!(*was_dropped.lock());
        assert_eq!(calls.running(), 0);
    }

    #[tokio::test]
    async fn a_signal_that_ends_nothing_lets_the_request_go_on() {
        let calls = Calls::new(Duration::from_secs(60));
        let (send, receive) = tokio::sync::oneshot::channel::<i32>();
        let call = calls.run((7, std::process::id()), async move { receive.await.map_err(|_| libc::EIO) });
        let interrupt = async {
            // It goes on for as long as the request does.
            assert!(tokio::time::timeout(3 * LOOK, calls.interrupt(7)).await.is_err());
            send.send(5).expect("the request goes on");
        };
        let (ended, ()) = tokio::join!(call, interrupt);
        assert_eq!(ended, Ok(5));
    }

    #[tokio::test(start_paused = true)]
    async fn a_deadline_and_a_panic_are_io_errors() {
        let calls = Calls::new(Duration::from_secs(5));
        let late = calls.run((1, 0), std::future::pending::<std::result::Result<(), i32>>()).await;
        assert_eq!(late, Err(Errno::from(libc::EIO)));
        let broken =
            calls.run((2, 0), async { if calls.running() == 1 { panic!("planted") } else { Ok(()) } }).await;
        assert_eq!(broken, Err(Errno::from(libc::EIO)));
    }
}
