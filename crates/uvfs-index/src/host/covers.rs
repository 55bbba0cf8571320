//! The directories of a tree that other mounts cover.
//!
//! The index has the names below them on the tree's own file system, and users see others there. So a search must
//! not go into them, and a question about a path inside one has no answer.
//!
//! The table of mounts is read for each question: a rename above a mount changes its path there, and the kernel does not
//! tell that. It does tell mounts and their ends, by poll(2). A mount that ended before the question, or was replaced by one with
//! the same number, is noticed by that. Reading the table asks no file system anything, so a dead server blocks
//! nobody. It takes 0.05 ms with 30 mounts, 1.7 ms with 1,000 elsewhere, and 7.6 ms with 1,000 inside the tree. The mutex
//! is a leaf.

use std::collections::HashMap;
use std::fs::File;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStringExt;

use parking_lot::Mutex;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{AtFlags, StatxFlags, statx};
use rustix::io::Errno;
use uvfs_drivers::mirror::{MountInside, mounted_inside};

use super::{directory, sys};

/// Readings of the table while directories above the tree are being renamed.
const TRIES: usize = 16;

/// A covered name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Cover {
    /// The path below the root.
    pub(crate) path: Vec<u8>,
    /// The device number of the covering mount.
    pub(crate) dev: u64,
    /// A number that no other mount has. Where the kernel has none (before Linux 6.8), it also moves when any mount comes or
    /// goes.
    mount: u64,
}

#[cfg(test)]
impl Cover {
    pub(crate) fn new(path: &[u8], dev: u64) -> Self {
        Self { path: path.to_vec(), dev, mount: 0 }
    }
}

/// The covered names at one moment.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Covered {
    pub(crate) names: Vec<Cover>,
    /// Moves when any mount has come or gone.
    moves: u64,
}

/// See the module's head.
pub(super) struct Covers {
    /// The table of mounts, for its changes.
    table: OwnedFd,
    known: Mutex<Known>,
}

#[derive(Default)]
struct Known {
    moves: u64,
    /// The lasting numbers of mounts, by those in the table; none since the last move.
    numbers: Option<HashMap<u64, u64>>,
}

impl Covers {
    pub(super) fn new() -> Result<Self, Errno> {
        let table = File::open("/proc/self/mountinfo");
        let table = table.map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::IO))?;
        Ok(Self { table: table.into(), known: Mutex::default() })
    }

    /// The covered names inside the directory `seen` at this moment.
    pub(super) fn of(&self, seen: BorrowedFd<'_>) -> Result<Covered, Errno> {
        let mut known = self.known.lock();
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        // A change after this poll is told by the next one.
        if poll(&mut [PollFd::new(&self.table, PollFlags::PRI)], Some(&now))? > 0 {
            known.moves += 1;
            known.numbers = None;
        }
        let Known { moves, numbers } = &mut *known;
        let numbers = match numbers {
            Some(numbers) => numbers,
            none => none.insert(sys::mount_numbers()?),
        };
        let cover = |MountInside { path, dev, id }| {
            let mount = numbers.get(&id).copied().unwrap_or(*moves);
            Cover { path: path.into_os_string().into_vec(), dev, mount }
        };
        let on = statx(seen, c"", AtFlags::EMPTY_PATH, StatxFlags::MNT_ID)?.stx_mnt_id;
        for _ in 0..TRIES {
            let path = directory(seen)?;
            let inside = mounted_inside(on, &path)?;
            if directory(seen)? == path {
                return Ok(Covered { names: inside.into_iter().map(cover).collect(), moves: *moves });
            }
        }
        Err(Errno::AGAIN)
    }
}
