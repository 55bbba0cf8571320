//! Standard output and standard error, written so that neither can end the program.
//!
//! `println!` and `eprintln!` panic if the other side has gone or the device is full. A server must not die with its
//! terminal, and a command must not print a backtrace because `head` has read enough. clippy refuses both macros
//! here.

use std::fmt::{self, Display};
use std::io::{self, ErrorKind, Write};

use anyhow::{Context, Result};

use crate::complaints::Complaints;

/// Nobody reads standard output any more. No failure: the program ends without a word, as others do in a pipeline.
#[derive(Debug)]
pub struct Closed;

impl Display for Closed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("nobody reads standard output")
    }
}

impl std::error::Error for Closed {}

/// The program has failed and has said why.
#[derive(Debug)]
pub struct AlreadySaid;

impl Display for AlreadySaid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("failed")
    }
}

impl std::error::Error for AlreadySaid {}

/// A command that was not understood, and why: the exit status is clap's.
#[derive(Debug)]
pub struct NotUnderstood(pub String);

impl Display for NotUnderstood {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for NotUnderstood {}

/// Writes `text` to standard output, all of it.
///
/// # Errors
/// [`Closed`]; else the reason why it cannot be written.
pub fn out(text: impl AsRef<[u8]>) -> Result<()> {
    let mut stdout = io::stdout().lock();
    written(stdout.write_all(text.as_ref()).and_then(|()| stdout.flush()))
}

/// The outcome of writing to standard output, for [`out`] and for code that writes by itself.
pub fn written(outcome: io::Result<()>) -> Result<()> {
    match outcome {
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Err(Closed.into()),
        outcome => outcome.context("cannot write to standard output"),
    }
}

/// Writes a line to standard error. If that is closed, or nobody reads it, nobody can be told: the error is ignored.
pub fn say(what: impl Display) {
    // One write, so that lines of several threads do not mix.
    let _ = Complaints.write_all(format!("uvfs: {what}\n").as_bytes());
}
