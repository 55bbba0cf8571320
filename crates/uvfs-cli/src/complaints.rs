//! Standard error for a program that must not wait for its reader.
//!
//! A reader may stop reading: a pager, a stopped terminal, a log that hangs. A server that waited for it would keep its
//! own users waiting, and would not even end at a signal. So a message waits for at most [`PATIENCE`]. Then messages are
//! dropped at once, until the reader reads again; the next message begins with the number of those that were lost.
//!
//! One mutex, held while a message is written or waits. It is a leaf. Another process may fill a pipe that it shares
//! between the look at it and the write: that write waits.

use std::io::{self, Write};
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;

/// How long a message waits for a reader.
const PATIENCE: Duration = Duration::from_millis(200);
/// PIPE_BUF: a pipe that is ready takes so many bytes at once.
const PIECE: usize = 4096;

/// The messages that were dropped since the last one that was written.
static LOST: Mutex<u64> = Mutex::new(0);

/// Standard error. Each write is one message: all of it is written, or dropped.
pub struct Complaints;

impl Write for Complaints {
    fn write(&mut self, message: &[u8]) -> io::Result<usize> {
        tell(&io::stderr(), &mut LOST.lock(), message)?;
        Ok(message.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Writes a message to `out`. `lost` counts those that were dropped.
fn tell(out: &impl AsFd, lost: &mut u64, message: &[u8]) -> io::Result<()> {
    let patience = if *lost == 0 { PATIENCE } else { Duration::ZERO };
    let before = match *lost {
        0 => String::new(),
        lost => format!("uvfs: {lost} messages were lost: nobody read them\n"),
    };
    let all = [before.as_bytes(), message].concat();
    let deadline = Instant::now() + patience;
    for piece in all.chunks(PIECE) {
        if !takes(out, deadline)? {
            *lost += 1;
            return Ok(());
        }
        write_piece(out, piece)?;
    }
    *lost = 0;
    Ok(())
}

/// Whether a piece can be written without waiting, at the deadline at the latest.
fn takes(out: &impl AsFd, deadline: Instant) -> io::Result<bool> {
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        let time = Timespec::try_from(left).unwrap_or_default();
        let mut fds = [PollFd::new(out, PollFlags::OUT)];
        match poll(&mut fds, Some(&time)) {
            // If the reader has gone, the write says so.
            Ok(ready) => return Ok(ready != 0),
            Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
}

fn write_piece(out: &impl AsFd, mut piece: &[u8]) -> io::Result<()> {
    while !piece.is_empty() {
        match rustix::io::write(out, piece) {
            Ok(written) => piece = &piece[written..],
            Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::io::Read;

    use super::*;

    /// Fails, by never ending, if a message waits for the reader.
    #[test]
    fn messages_that_nobody_reads_are_dropped_and_counted() {
        let (mut reader, out) = io::pipe().expect("a pipe");
        let mut lost = 0;
        let message = [&[b'x'; 999][..], b"\n"].concat();
        let start = Instant::now();
        for _ in 0..3000 {
            tell(&out, &mut lost, &message).expect("a pipe");
        }
        assert!(lost > 2000, "{lost}");
        assert!(start.elapsed() < 1000 * PATIENCE, "each of them waits");
        let mut read = vec![0; 64 << 10];
        reader.read_exact(&mut read[..20_000]).expect("what was written");
        tell(&out, &mut lost, b"again\n").expect("a pipe");
        assert_eq!(lost, 0);
        drop(out);
        read.clear();
        reader.read_to_end(&mut read).expect("the rest");
        let text = String::from_utf8(read).expect("UTF-8");
        let mut last = text.lines().rev();
        assert_eq!(last.next(), Some("again"));
        let told = last.next().expect("a line");
        assert!(
            told.starts_with("uvfs: 2") && told.ends_with(" messages were lost: nobody read them"),
            "{told}"
        );
    }

    #[test]
    fn a_reader_that_has_gone_is_an_error() {
        let (reader, out) = io::pipe().expect("a pipe");
        drop(reader);
        let told = tell(&out, &mut 0, b"message\n");
        assert_eq!(told.expect_err("nobody reads").kind(), io::ErrorKind::BrokenPipe);
    }
}
