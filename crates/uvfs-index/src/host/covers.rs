//! The directories of a tree that other mounts cover.
//!
//! The index has the names below them on the tree's own file system, and users see others there. So a search must
//! not go into them, and a question about a path inside one has no answer.
//!
//! The table of mounts is read again only after it has changed, which poll(2) tells. Reading it asks no file system
//! anything, so a dead server blocks nobody. The mutex is a leaf.

use std::fs::File;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::path::PathBuf;
use std::sync::Arc;

use parking_lot::Mutex;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{AtFlags, StatxFlags, statx};
use rustix::io::Errno;
use uvfs_drivers::mirror::mounted_inside;

use super::directory;

/// A covered name: the path below the root, and the device number of the covering mount.
pub(crate) type Cover = (Vec<u8>, u64);

/// See the module's head.
pub(super) struct Covers {
    /// The table of mounts, for its changes.
    table: OwnedFd,
    known: Mutex<Option<Arc<[Cover]>>>,
}

impl Covers {
    pub(super) fn new() -> Result<Self, Errno> {
        let table = File::open("/proc/self/mountinfo");
        let table = table.map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::IO))?;
        Ok(Self { table: table.into(), known: Mutex::default() })
    }

    /// The covered names inside the directory `seen` at this moment.
    pub(super) fn of(&self, seen: BorrowedFd<'_>) -> Result<Arc<[Cover]>, Errno> {
        use std::os::unix::ffi::OsStringExt;
        let mut known = self.known.lock();
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        let mut fds = [PollFd::new(&self.table, PollFlags::PRI)];
        // A change after this poll is told by the next one.
        let moved = poll(&mut fds, Some(&now))? > 0;
        if let Some(known) = known.as_ref().filter(|_| !moved) {
            return Ok(Arc::clone(known));
        }
        let on = statx(seen, c"", AtFlags::EMPTY_PATH, StatxFlags::MNT_ID)?.stx_mnt_id;
        let covers = mounted_inside(on, &directory(seen)?)?;
        let covers =
            covers.into_iter().map(|(path, dev): (PathBuf, u64)| (path.into_os_string().into_vec(), dev));
        let covers: Arc<[Cover]> = covers.collect();
        *known = Some(Arc::clone(&covers));
        Ok(covers)
    }
}
