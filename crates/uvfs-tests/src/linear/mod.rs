//! Are names of one directory linearizable?
//!
//! Threads create, remove, rename, link and stat a few names below one held directory. Each operation's interval and
//! answer is recorded ([`drive()`]). [`check()`] looks for one order of all operations that agrees with the intervals
//! and in which every answer is right. A file is known by the permission bits it was created with, which appear
//! together with its name.

mod check;
pub mod command;
mod drive;
mod host;
mod inproc;
#[cfg(test)]
mod planted;

use rustix::io::Errno;

pub use check::{Verdict, check};
pub use drive::{DriveShape, drive, round};
pub use host::HostDirectory;
pub use inproc::{PathDirectory, VfsDirectory};

/// Number of names; small, so that threads collide.
pub const NAMES: usize = 4;
/// Number of identities in one history: permission bits of a mode, without 0.
pub const IDS: u16 = 0o777;

/// An operation on names, which are numbers below [`NAMES`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LinearCall {
    /// open with O_CREAT | O_EXCL; the file gets this identity.
    Create(usize, u16),
    /// unlink.
    Unlink(usize),
    /// rename.
    Rename(usize, usize),
    /// renameat2 with RENAME_NOREPLACE.
    RenameNoReplace(usize, usize),
    /// renameat2 with RENAME_EXCHANGE.
    Exchange(usize, usize),
    /// link.
    Link(usize, usize),
    /// stat: returns the file's identity.
    Stat(usize),
}

/// The answer: 0 for success without a value, the identity for `Stat`.
pub type Reply = Result<u16, Errno>;

/// A call, its answer, and its times: from one monotonic clock, in nanoseconds.
#[derive(Clone, Copy, Debug)]
pub struct Event {
    /// Which thread.
    pub thread: usize,
    /// The call.
    pub call: LinearCall,
    /// The answer.
    pub reply: Reply,
    /// Taken before the call.
    pub start: u64,
    /// Taken after it.
    pub end: u64,
}

/// The file that each name leads to; 0 for nothing.
pub type LinearNames = [u16; NAMES];

/// The result on a file system that does one operation after another.
pub fn step(names: &mut LinearNames, call: LinearCall) -> Reply {
    let present =
        |names: &LinearNames, i: usize| if names[i] == 0 { Err(Errno::NOENT) } else { Ok(names[i]) };
    match call {
        LinearCall::Create(a, _) if names[a] != 0 => return Err(Errno::EXIST),
        LinearCall::Create(a, id) => names[a] = id,
        LinearCall::Unlink(a) => {
            present(names, a)?;
            names[a] = 0;
        }
        LinearCall::Rename(a, b) => {
            let id = present(names, a)?;
            // Two names of one file: a rename of one to the other does nothing.
            if names[b] != id {
                names[b] = id;
                names[a] = 0;
            }
        }
        LinearCall::RenameNoReplace(a, b) => {
            let id = present(names, a)?;
            if names[b] != 0 {
                return Err(Errno::EXIST);
            }
            names[b] = id;
            names[a] = 0;
        }
        LinearCall::Exchange(a, b) => {
            present(names, a)?;
            present(names, b)?;
            names.swap(a, b);
        }
        LinearCall::Link(a, b) => {
            let id = present(names, a)?;
            if names[b] != 0 {
                return Err(Errno::EXIST);
            }
            names[b] = id;
        }
        LinearCall::Stat(a) => return present(names, a),
    }
    Ok(0)
}

/// A directory whose names are tested. All methods may be called by many threads.
pub trait Directory: Sync {
    /// Does one operation.
    fn call(&self, call: LinearCall) -> Reply;
}
