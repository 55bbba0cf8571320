//! The answer of a search: in memory first, then in a temporary file, within bounds.
//!
//! A search holds the table's lock for reading, so it must end: when its client has gone, when its answer is too
//! large, and when it takes too long. The lock is not given up meanwhile. A walk that went on among changes would show
//! names of several moments, and its place in a directory's list could be gone.
//!
//! The bytes of all answers of a server have one bound. The file system of temporary files keeps an eighth of its
//! space.

use std::io::{self, Read, Seek, Write};
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use tempfile::SpooledTempFile;

use super::has_gone;
use crate::find::{BURST, FindAction, FindSink, FoundFile};

/// Bytes of an answer that are kept in memory.
const IN_MEMORY: usize = 16 << 20;
/// Bytes between looks at the client and the space.
const STEP: u64 = 1 << 20;

/// The bounds of answers.
#[derive(Clone, Copy, Debug)]
pub(super) struct Bounds {
    /// Bytes of one answer.
    pub(super) one: u64,
    /// Bytes of all answers.
    pub(super) all: u64,
    /// Time of a search.
    pub(super) time: Duration,
}

impl Bounds {
    pub(super) const USUAL: Self = Self { one: 1 << 30, all: 4 << 30, time: Duration::from_secs(60) };
}

/// Takes an answer's bytes.
pub(super) struct AnswerFile<'a> {
    file: SpooledTempFile,
    stream: &'a UnixStream,
    bounds: Bounds,
    /// Bytes of all answers that are kept, in whole steps.
    kept: &'a AtomicU64,
    bytes: u64,
    /// Its own part of `kept`.
    counted: u64,
}

impl Drop for AnswerFile<'_> {
    fn drop(&mut self) {
        self.kept.fetch_sub(self.counted, Relaxed);
    }
}

impl<'a> AnswerFile<'a> {
    pub(super) fn new(stream: &'a UnixStream, bounds: Bounds, kept: &'a AtomicU64) -> Self {
        Self { file: SpooledTempFile::new(IN_MEMORY), stream, bounds, kept, bytes: 0, counted: 0 }
    }

    /// Counts the next step's bytes.
    fn step(&mut self, more: u64) -> io::Result<()> {
        let too_much = |what: &str| {
            let remedy = "ask about fewer files, or for less of each";
            Err(io::Error::other(format!("{what}: {remedy}")))
        };
        let step = (self.bytes + more - self.counted).next_multiple_of(STEP);
        self.counted += step;
        let all = self.kept.fetch_add(step, Relaxed) + step;
        if has_gone(self.stream) {
            return Err(io::ErrorKind::BrokenPipe.into());
        }
        if self.bytes + more > self.bounds.one {
            return too_much(&format!("the answer has more than {} bytes", self.bounds.one));
        }
        if all > self.bounds.all {
            return too_much(&format!("the answers to all clients have more than {} bytes", self.bounds.all));
        }
        if self.file.is_rolled() && !has_space() {
            return too_much("the file system of temporary files has too little space for the answer");
        }
        Ok(())
    }

    /// The number of bytes. They are read from the first on.
    pub(super) fn finish(&mut self) -> io::Result<u64> {
        self.file.rewind()?;
        Ok(self.bytes)
    }
}

/// Whether an eighth of the space for temporary files is free. Unknown space counts as enough: writing says more.
fn has_space() -> bool {
    let found = rustix::fs::statvfs(std::env::temp_dir());
    found.map_or(true, |space| space.f_bavail >= space.f_blocks / 8)
}

impl Write for AnswerFile<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let more = bytes.len() as u64;
        if self.bytes + more > self.counted {
            self.step(more)?;
        }
        let written = self.file.write(bytes)?;
        self.bytes += written as u64;
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

impl Read for AnswerFile<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.file.read(buffer)
    }
}

/// Ends the searches of a request whose client has gone, or that take too long.
pub(super) struct PatientSink<'a> {
    inner: &'a mut dyn FindSink,
    stream: &'a UnixStream,
    until: Instant,
    time: Duration,
    /// Steps since the last look at the client and the clock.
    steps: u64,
}

impl<'a> PatientSink<'a> {
    pub(super) fn new(inner: &'a mut dyn FindSink, stream: &'a UnixStream, bounds: Bounds) -> Self {
        Self { inner, stream, until: Instant::now() + bounds.time, time: bounds.time, steps: 0 }
    }

    /// Looks at the client and the clock.
    ///
    /// # Errors
    /// A reason to go no further.
    pub(super) fn look(&mut self) -> io::Result<()> {
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

impl FindSink for PatientSink<'_> {
    fn act(&mut self, action: &FindAction, file: &dyn FoundFile) -> io::Result<()> {
        self.inner.act(action, file)
    }

    fn unreadable(&mut self, path: &[u8], error: &io::Error) {
        self.inner.unreadable(path, error);
    }

    fn works(&mut self, steps: u64) -> io::Result<()> {
        self.steps += steps;
        if self.steps < BURST { Ok(()) } else { self.look() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pair() -> (UnixStream, UnixStream) {
        UnixStream::pair().expect("sockets")
    }

    #[test]
    fn an_answer_ends_at_its_bound() {
        let ((server, _client), kept) = (pair(), AtomicU64::new(0));
        let mut answer = AnswerFile::new(&server, Bounds { one: 3 * STEP, ..Bounds::USUAL }, &kept);
        let error = io::copy(&mut io::repeat(b'x').take(10 * STEP), &mut answer).expect_err("too large");
        assert!(error.to_string().starts_with("the answer has more than 3145728 bytes: "), "{error}");
        assert_eq!(answer.bytes, 3 * STEP);
    }

    #[test]
    fn all_answers_have_one_bound_and_give_their_bytes_back() {
        let ((server, _client), kept) = (pair(), AtomicU64::new(0));
        let bounds = Bounds { all: 2 * STEP, ..Bounds::USUAL };
        let mut first = AnswerFile::new(&server, bounds, &kept);
        first.write_all(&[0; 3]).expect("memory");
        let mut second = AnswerFile::new(&server, bounds, &kept);
        let much = vec![0; 2 * STEP as usize];
        assert!(second.write_all(&much).is_err());
        drop(second);
        assert_eq!((first.finish().expect("memory"), kept.load(Relaxed)), (3, STEP));
        drop(first);
        AnswerFile::new(&server, bounds, &kept).write_all(&much).expect("space again");
        assert_eq!(kept.load(Relaxed), 0);
    }

    #[test]
    fn nothing_goes_on_without_its_client() {
        let ((server, client), kept) = (pair(), AtomicU64::new(0));
        client.shutdown(std::net::Shutdown::Write).expect("a socket");
        let mut answer = AnswerFile::new(&server, Bounds::USUAL, &kept);
        answer.write_all(&[0; 2]).expect("a client that reads");
        drop(client);
        let error = io::copy(&mut io::repeat(0).take(9 * STEP), &mut answer).expect_err("nobody reads");
        assert_eq!(error.kind(), io::ErrorKind::BrokenPipe);
        assert!(answer.bytes <= STEP);
    }
}
