//! The threads that read requests from the device, and which of them are away in a driver's call.
//!
//! All of them read the kernel's one queue, so any of them may take any request. A reader with a request that may
//! wait for a driver runs it itself, as long as another reader is left ([`Readers::leave`]). A hand-over costs two
//! wake-ups and two changes of threads, several times the cost of most requests. The last reader left hands such a
//! request to the [`pool`](crate::threads::pool). So however many calls hang, one reader is left to read.
//!
//! The session has ended when no reader is *here*: each has ended or is away. Readers that are away are not waited
//! for, because a driver may never answer. If it does, that reader finds the device gone and ends.
//!
//! One mutex, a leaf, protects the count and the first error. It is held only to read or change them.

use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::thread;

use parking_lot::{Condvar, Mutex};

/// See the module.
#[derive(Default)]
pub(crate) struct Readers {
    state: Mutex<State>,
    none_left: Condvar,
}

#[derive(Default)]
struct State {
    /// Readers that have not ended and are not away.
    here: usize,
    /// The first error with which a reader ended.
    failed: Option<io::Error>,
}

/// A reader's permission to wait for a driver, while others read.
pub(crate) struct Away<'r>(&'r Readers);

/// One reader, from before its thread is started until it ends.
struct Here(Arc<Readers>);

impl Readers {
    /// Permission for the calling reader to wait for a driver; `None` for the last one left.
    pub(crate) fn leave(&self) -> Option<Away<'_>> {
        let mut state = self.state.lock();
        if state.here < 2 {
            return None;
        }
        state.here -= 1;
        Some(Away(self))
    }

    /// Starts a thread that reads requests with `read` until the device is gone.
    pub(crate) fn start(
        self: &Arc<Self>,
        name: String,
        read: impl FnOnce() -> io::Result<()> + Send + 'static,
    ) -> io::Result<()> {
        let here = Here::new(self);
        let run = move || {
            let panicked = |_| Err(io::Error::other("a thread that reads requests panicked"));
            let outcome = catch_unwind(AssertUnwindSafe(read)).unwrap_or_else(panicked);
            if let Err(error) = outcome {
                here.0.state.lock().failed.get_or_insert(error);
            }
        };
        thread::Builder::new().name(name).spawn(run).map(drop)
    }

    /// Waits until no reader is here; returns the first error of those that have ended.
    pub(crate) fn wait(&self) -> io::Result<()> {
        let mut state = self.state.lock();
        while state.here > 0 {
            self.none_left.wait(&mut state);
        }
        state.failed.take().map_or(Ok(()), Err)
    }

    fn one_less(&self) {
        let mut state = self.state.lock();
        state.here -= 1;
        if state.here == 0 {
            self.none_left.notify_all();
        }
    }
}

impl Drop for Away<'_> {
    fn drop(&mut self) {
        self.0.state.lock().here += 1;
    }
}

impl Here {
    fn new(readers: &Arc<Readers>) -> Self {
        readers.state.lock().here += 1;
        Self(Arc::clone(readers))
    }
}

impl Drop for Here {
    fn drop(&mut self) {
        self.0.one_less();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    #[test]
    fn the_last_reader_that_is_left_never_waits() {
        let readers = Arc::<Readers>::default();
        assert!(readers.leave().is_none(), "nobody reads");
        let _one = Here::new(&readers);
        assert!(readers.leave().is_none());
        let two = Here::new(&readers);
        let away = readers.leave().expect("one is left");
        assert!(readers.leave().is_none());
        drop(away);
        let away = readers.leave().expect("it has come back");
        // The other one has ended, so the returning one is the last.
        drop(two);
        drop(away);
        assert!(readers.leave().is_none());
    }

    #[test]
    fn who_hangs_in_a_driver_is_not_waited_for() {
        let readers = Arc::<Readers>::default();
        let (answer, driver) = mpsc::channel::<()>();
        let (left, has_left) = mpsc::channel();
        let theirs = Arc::clone(&readers);
        // Another reader must be here when it leaves.
        let other = Here::new(&readers);
        let hang = move || {
            let away = theirs.leave();
            left.send(away.is_some()).expect("the test listens");
            let _ = driver.recv();
            drop(away);
            Ok(())
        };
        readers.start("hangs".into(), hang).expect("a thread");
        assert_eq!(has_left.recv(), Ok(true));
        drop(other);
        readers.wait().expect("none of them failed");
        drop(answer);
        while Arc::strong_count(&readers) > 1 {
            thread::yield_now();
        }
        readers.wait().expect("it has ended, too");
    }

    #[test]
    fn the_first_failure_is_told() {
        let readers = Arc::<Readers>::default();
        readers.start("fails".into(), || Err(io::ErrorKind::InvalidData.into())).expect("a thread");
        assert_eq!(readers.wait().expect_err("it failed").kind(), io::ErrorKind::InvalidData);
        readers.start("panics".into(), || panic!("as it should")).expect("a thread");
        assert!(readers.wait().is_err());
    }
}
