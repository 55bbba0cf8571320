//! Requests of the kernel under way: each has a deadline, and can be cancelled.
//!
//! A request is a task of the runtime, so any number of them wait on the runtime's few threads. FUSE_INTERRUPT drops the
//! future of the request that it names, and with it the calls that nobody else waits for. A panic (of a dependency, that
//! a store's answer has provoked) becomes EIO, since a request without an answer hangs its caller. The mutex is a leaf.

use std::collections::HashMap;
use std::panic::AssertUnwindSafe;
use std::time::Duration;

use fuse3::{Errno, Result};
use futures_util::FutureExt;
use futures_util::future::{AbortHandle, Abortable};
use parking_lot::Mutex;

/// All requests under way that may wait.
#[derive(Debug)]
pub(crate) struct Calls {
    running: Mutex<HashMap<u64, AbortHandle>>,
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

    /// Run a request.
    ///
    /// # Errors
    /// EINTR: it was interrupted. EIO: it took longer than the deadline, or panicked. Otherwise its own.
    pub(crate) async fn run<R>(
        &self,
        unique: u64,
        request: impl Future<Output = std::result::Result<R, i32>>,
    ) -> Result<R> {
        let (handle, registration) = AbortHandle::new_pair();
        self.running.lock().insert(unique, handle);
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

    /// The kernel's caller gives a request up.
    pub(crate) fn interrupt(&self, unique: u64) {
        if let Some(handle) = self.running.lock().get(&unique) {
            handle.abort();
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
        let call = calls.run(7, async move {
            let _held = held;
            std::future::pending::<std::result::Result<(), i32>>().await
        });
        let interrupt = async {
            calls.interrupt(8);
            calls.interrupt(7);
        };
        let (ended, ()) = tokio::join!(call, interrupt);
        assert_eq!(ended, Err(Errno::from(libc::EINTR)));
        assert!(*was_dropped.lock());
        assert_eq!(calls.running(), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn a_deadline_and_a_panic_are_io_errors() {
        let calls = Calls::new(Duration::from_secs(5));
        let late = calls.run(1, std::future::pending::<std::result::Result<(), i32>>()).await;
        assert_eq!(late, Err(Errno::from(libc::EIO)));
        let broken = calls.run(2, async { if calls.running() == 1 { panic!("planted") } else { Ok(()) } }).await;
        assert_eq!(broken, Err(Errno::from(libc::EIO)));
    }
}
