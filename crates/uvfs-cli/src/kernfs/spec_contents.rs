//! The contents that the nodes of a SPEC show and take.
//!
//! A reader gets a text that was made at one moment, and keeps it until it reads from the start again: it does not
//! see a later change of the value. Each change of a value here wakes the threads that poll it. A value's lock is
//! held for a copy only.

use std::fs::{File, Metadata, OpenOptions};
use std::io::{Read, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::PathBuf;
use std::sync::atomic::{AtomicI64, Ordering};

use parking_lot::Mutex;
use rustix::fs::OFlags;
use uvfs::{Errno, Result};
use uvfs_drivers::kernfs::{Attribute, Call};

use super::run_command;
use super::spec::ShownCommand;

/// How often a host file that changes while it is read is read again.
const TRIES: usize = 4;

/// A text in memory; a write replaces it.
pub struct Value(Mutex<Vec<u8>>);

impl Value {
    pub fn new(text: &str) -> Self {
        Self(Mutex::new(text.as_bytes().to_vec()))
    }
}

impl Attribute for Value {
    fn may_block(&self) -> bool {
        false
    }

    fn show(&self, _: &Call<'_>, out: &mut Vec<u8>) -> Result<()> {
        out.extend_from_slice(&self.0.lock());
        Ok(())
    }

    fn store(&self, call: &Call<'_>, data: &[u8]) -> Result<usize> {
        *self.0.lock() = data.to_vec();
        call.node().notify();
        Ok(data.len())
    }
}

/// A number; a write adds to it.
pub struct Counter(AtomicI64);

impl Counter {
    pub fn new(start: i64) -> Self {
        Self(AtomicI64::new(start))
    }
}

impl Attribute for Counter {
    fn may_block(&self) -> bool {
        false
    }

    fn show(&self, _: &Call<'_>, out: &mut Vec<u8>) -> Result<()> {
        writeln!(out, "{}", self.0.load(Ordering::Relaxed)).map_err(|_| Errno::NOMEM)
    }

    /// EINVAL for anything but a whole number, ERANGE if the sum does not fit.
    fn store(&self, call: &Call<'_>, data: &[u8]) -> Result<usize> {
        let text = str::from_utf8(data).map_err(|_| Errno::INVAL)?.trim();
        let more: i64 = text.parse().map_err(|_| Errno::INVAL)?;
        let add = |now: i64| now.checked_add(more);
        self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, add).map_err(|_| Errno::RANGE)?;
        call.node().notify();
        Ok(data.len())
    }
}

/// The output of a command.
pub struct Output(pub ShownCommand);

impl Attribute for Output {
    fn show(&self, call: &Call<'_>, out: &mut Vec<u8>) -> Result<()> {
        let path = || String::from_utf8_lossy(&call.node().path().unwrap_or_default()).into_owned();
        run_command::run(&self.0, path, out)
    }
}

/// A file of the host, shown and written through.
pub struct HostFile {
    pub host: PathBuf,
    pub limit: usize,
}

impl HostFile {
    /// Does not wait for the other side of a pipe (EAGAIN, ENXIO).
    fn open(&self, how: &mut OpenOptions) -> std::io::Result<File> {
        how.custom_flags(OFlags::NONBLOCK.bits() as i32).open(&self.host)
    }

    /// The errno of a failure. The mount answers EDEADLK to this thread if the path leads back into it.
    fn refused(&self, call: &Call<'_>, error: &std::io::Error) -> Errno {
        let errno = Errno::from_io_error(error).unwrap_or(Errno::IO);
        if errno == Errno::DEADLK {
            let path = call.node().path().unwrap_or_default();
            let (path, host) = (String::from_utf8_lossy(&path), self.host.display());
            tracing::warn!(%path, %host, "the host file is in this mount itself, so it cannot be read or written");
        }
        errno
    }

    /// Reads it once. Returns whether it did not change meanwhile.
    fn read(&self, out: &mut Vec<u8>) -> std::io::Result<bool> {
        out.clear();
        let file = self.open(OpenOptions::new().read(true))?;
        let before = file.metadata()?;
        (&file).take(self.limit as u64 + 1).read_to_end(out)?;
        Ok(same(&before, &file.metadata()?))
    }
}

/// Whether a file has not been written between two looks.
fn same(before: &Metadata, after: &Metadata) -> bool {
    let state = |m: &Metadata| (m.len(), m.mtime(), m.mtime_nsec(), m.ctime(), m.ctime_nsec());
    state(before) == state(after)
}

impl Attribute for HostFile {
    /// EFBIG if it is longer than the limit. A file that is written all the time is shown as the last look found it,
    /// as cat(1) would.
    fn show(&self, call: &Call<'_>, out: &mut Vec<u8>) -> Result<()> {
        for _ in 0..TRIES {
            if self.read(out).map_err(|error| self.refused(call, &error))? {
                break;
            }
        }
        if out.len() > self.limit { Err(Errno::FBIG) } else { Ok(()) }
    }

    /// One write is the whole new content.
    fn store(&self, call: &Call<'_>, data: &[u8]) -> Result<usize> {
        let written = self.open(OpenOptions::new().write(true).truncate(true));
        written.and_then(|mut file| file.write_all(data)).map_err(|error| self.refused(call, &error))?;
        call.node().notify();
        Ok(data.len())
    }
}
