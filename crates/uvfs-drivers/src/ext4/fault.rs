//! Failures inside the driver: an errno, and for the log the finding and its place.
//!
//! Every function of the driver returns a [`Fault`] if it fails. At the driver's boundary [`Log::errno`] turns it
//! into an errno and writes one line. Lines are limited ([`LINES`] in [`WINDOW`]), because programs ask for a damaged
//! directory again and again; the next line tells how many were left out. The log's lock is a leaf, taken only after
//! a fault.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use uvfs::types::Errno;

/// Most lines in a window.
const LINES: u32 = 10;
/// How long a window lasts.
const WINDOW: Duration = Duration::from_secs(5);

/// The result of the driver's functions.
pub(super) type Result<T> = std::result::Result<T, Fault>;

/// Why there is no answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Fault {
    pub errno: Errno,
    /// The finding; empty for answers that are nothing unusual (ENODATA).
    pub what: &'static str,
    /// The inode that it was found in.
    pub ino: Option<u32>,
    /// The block that it was found in.
    pub block: Option<u64>,
}

impl Fault {
    /// The image has an impossible value.
    pub(super) fn damage(what: &'static str) -> Self {
        Self { errno: Errno::UCLEAN, what, ino: None, block: None }
    }

    /// A block could not be read.
    pub(super) fn unread(block: u64, errno: Errno) -> Self {
        Self { errno, what: "cannot be read", ino: None, block: Some(block) }
    }

    /// The finding and its place, in words.
    pub(super) fn place(&self) -> String {
        self.block.map_or_else(|| self.what.to_owned(), |block| format!("{}, block {block}", self.what))
    }

    /// The innermost block stays.
    pub(super) fn in_block(self, block: u64) -> Self {
        Self { block: self.block.or(Some(block)), ..self }
    }

    /// The innermost inode stays.
    pub(super) fn of(self, ino: u32) -> Self {
        Self { ino: self.ino.or(Some(ino)), ..self }
    }
}

/// An answer that is nothing unusual.
impl From<Errno> for Fault {
    fn from(errno: Errno) -> Self {
        Self { errno, what: "", ino: None, block: None }
    }
}

/// Adds the place of a fault.
pub(super) trait Locate {
    fn in_block(self, block: u64) -> Self;
    fn of(self, ino: u32) -> Self;
}

impl<T> Locate for Result<T> {
    fn in_block(self, block: u64) -> Self {
        self.map_err(|fault| fault.in_block(block))
    }
    fn of(self, ino: u32) -> Self {
        self.map_err(|fault| fault.of(ino))
    }
}

/// EUCLEAN, with the finding `what`, unless `holds`.
pub(super) fn ensure(holds: bool, what: &'static str) -> Result<()> {
    if holds { Ok(()) } else { Err(Fault::damage(what)) }
}

/// The log of one image.
#[derive(Debug)]
pub(super) struct Log {
    image: String,
    faults: AtomicU64,
    window: Mutex<Window>,
}

#[derive(Debug, Default)]
struct Window {
    since: Option<Instant>,
    lines: u32,
    left_out: u64,
}

impl Window {
    /// Whether one more line may be written now, and how many were left out before it.
    fn admit(&mut self, now: Instant) -> Option<u64> {
        if self.since.is_none_or(|since| now.duration_since(since) >= WINDOW) {
            (self.since, self.lines) = (Some(now), 0);
        }
        if self.lines == LINES {
            self.left_out += 1;
            return None;
        }
        self.lines += 1;
        Some(std::mem::take(&mut self.left_out))
    }
}

impl Log {
    /// The log of the image that users know by this name.
    pub(super) fn new(image: String) -> Self {
        Self { image, faults: AtomicU64::new(0), window: Mutex::default() }
    }

    /// How many faults there were.
    pub(super) fn faults(&self) -> u64 {
        self.faults.load(Ordering::Relaxed)
    }

    /// The errno of an answer. Unusual ones are written to the log.
    pub(super) fn errno<T>(&self, answer: Result<T>) -> uvfs::Result<T> {
        answer.map_err(|fault| {
            if !fault.what.is_empty() {
                self.write(&fault);
            }
            fault.errno
        })
    }

    fn write(&self, fault: &Fault) {
        self.faults.fetch_add(1, Ordering::Relaxed);
        let Some(left_out) = self.window.lock().admit(Instant::now()) else { return };
        let place = |number: Option<u64>| number.map_or_else(|| "-".to_owned(), |n| n.to_string());
        tracing::warn!(
            image = %self.image,
            inode = %place(fault.ino.map(u64::from)),
            block = %place(fault.block),
            errno = fault.errno.raw_os_error(),
            left_out,
            "ext4: {}",
            fault.what
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_limited_and_what_was_left_out_is_counted() {
        let mut window = Window::default();
        let start = Instant::now();
        let admitted = (0..25).filter(|_| window.admit(start).is_some()).count();
        assert_eq!(admitted, LINES as usize);
        assert_eq!(window.admit(start + WINDOW), Some(15));
        assert_eq!(window.admit(start + WINDOW), Some(0));
    }

    #[test]
    fn the_innermost_place_stays() {
        let fault = Fault::damage("x").in_block(3).in_block(4).of(5).of(6);
        assert_eq!((fault.block, fault.ino, fault.errno), (Some(3), Some(5), Errno::UCLEAN));
    }
}
