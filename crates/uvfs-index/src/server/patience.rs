//! The bound of the time that an answer takes: it is made under the table's lock, and changes wait for that.
//!
//! The lock is not given up meanwhile. A walk that went on among changes would show names of several moments, and its place
//! in a directory's list could be gone.

use std::io;
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use super::has_gone;
use crate::find::{BURST, FindAction, FindSink, FoundFile};

/// Time of an answer.
const USUAL: Duration = Duration::from_secs(60);

/// Ends an answer whose client has gone, or that takes too long.
pub(crate) struct Patience<'a> {
    stream: &'a UnixStream,
    until: Instant,
    time: Duration,
    /// Steps since the last look at the client and the clock.
    steps: u64,
}

impl<'a> Patience<'a> {
    pub(crate) fn new(stream: &'a UnixStream) -> Self {
        Self::of(stream, USUAL)
    }

    fn of(stream: &'a UnixStream, time: Duration) -> Self {
        Self { stream, until: Instant::now() + time, time, steps: 0 }
    }

    /// Counts work, in steps of a few nanoseconds.
    ///
    /// # Errors
    /// A reason to go no further.
    pub(crate) fn works(&mut self, steps: u64) -> io::Result<()> {
        self.steps += steps;
        if self.steps < BURST { Ok(()) } else { self.look() }
    }

    /// Time that was not the answer's own.
    pub(super) fn has_waited(&mut self, time: Duration) {
        self.until += time;
    }

    /// Looks at the client and the clock.
    ///
    /// # Errors
    /// A reason to go no further.
    pub(crate) fn look(&mut self) -> io::Result<()> {
        self.steps = 0;
        if has_gone(self.stream) {
            return Err(io::ErrorKind::BrokenPipe.into());
        }
        if Instant::now() > self.until {
            let seconds = self.time.as_secs();
            let what = format!("the search takes more than {seconds} seconds, and changes wait for it");
            return Err(io::Error::other(format!("{what}: ask about fewer files, or with simpler tests")));
        }
        Ok(())
    }
}

/// A sink within that bound.
pub(super) struct PatientSink<'a> {
    inner: &'a mut dyn FindSink,
    pub(super) patience: Patience<'a>,
}

impl<'a> PatientSink<'a> {
    pub(super) fn new(inner: &'a mut dyn FindSink, patience: Patience<'a>) -> Self {
        Self { inner, patience }
    }
}

impl FindSink for PatientSink<'_> {
    fn act(&mut self, action: &FindAction, file: &dyn FoundFile) -> io::Result<()> {
        self.inner.act(action, file)
    }

    fn unreadable(&mut self, path: &[u8], error: &io::Error) {
        self.inner.unreadable(path, error);
    }

    fn works(&mut self, steps: u64) -> io::Result<()> {
        self.patience.works(steps)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patience_ends_with_the_time_and_with_the_client() {
        let (server, client) = UnixStream::pair().expect("sockets");
        let mut over = Patience::of(&server, Duration::ZERO);
        assert!(over.works(BURST - 1).is_ok());
        let error = over.works(1).expect_err("no time");
        assert!(error.to_string().starts_with("the search takes more than 0 seconds"), "{error}");
        let mut patience = Patience::new(&server);
        assert!(patience.look().is_ok());
        drop(client);
        assert_eq!(patience.works(BURST).expect_err("nobody").kind(), io::ErrorKind::BrokenPipe);
    }
}
