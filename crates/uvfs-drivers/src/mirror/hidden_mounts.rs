//! Hidden mounts inside the source: a name leads to the mount's placeholder while the mount exists, and to the
//! directory underneath before and after.
//!
//! No event of the file system reports a mount. If the source is watched, names have no TTL. So a thread
//! (`uvfs-mounts`) waits until the kernel reports a change of the table of mounts. New mounts are looked up by path,
//! and the cache forgets the name. Removed mounts are not: directories above them may have been renamed. So each name
//! that was answered as covered is noted, and all of these are forgotten when a mount inside changes. They are few,
//! and are noted again when they are looked up.
//!
//! The mutex protects the names; nothing is called with it held. If [`Submounts`](super::Submounts) follow mounts,
//! they report the changes.

use std::collections::{BTreeSet, HashSet};
use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock, Weak};
use std::thread;

use parking_lot::Mutex;
use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};
use rustix::fs::OFlags;
use uvfs::types::{Errno, Result};

use super::Mirror;
use super::mounts;
use super::reach::open_below;
use super::root::{mount_of, path_of};

/// See the module.
#[derive(Default)]
pub(super) struct Covers {
    /// The number of a directory, and a name in it.
    names: Mutex<BTreeSet<(u64, Box<[u8]>)>>,
    stop: OnceLock<Arc<OwnedFd>>,
}

impl Covers {
    /// Notes a name before the host is asked whether there is a mount: a mount that goes after that finds the name.
    pub(super) fn note(&self, dir: u64, name: &[u8]) {
        self.names.lock().insert((dir, name.into()));
    }

    fn take(&self) -> BTreeSet<(u64, Box<[u8]>)> {
        std::mem::take(&mut *self.names.lock())
    }
}

impl Drop for Covers {
    fn drop(&mut self) {
        if let Some(stop) = self.stop.get() {
            let _ = rustix::io::write(&**stop, &1u64.to_ne_bytes());
        }
    }
}

/// Mounts that are seen directly inside the source: their numbers, and their paths from it.
type Seen = HashSet<(u64, PathBuf)>;

impl Mirror {
    /// Notifies the cache of mounts inside from now on. Called once, before the first answer.
    ///
    /// # Errors
    /// A sentence that says why this is impossible.
    pub(super) fn follow_covers(self: &Arc<Self>) -> std::result::Result<(), String> {
        // First: from now on a change wakes the waiting thread.
        let table = File::open(mounts::TABLE)
            .map_err(|error| format!("{} cannot be read: {error}", mounts::TABLE))?;
        let refused = |errno: Errno| format!("mounts inside cannot be followed: {errno}");
        let stop = Arc::new(eventfd(0, EventfdFlags::CLOEXEC).map_err(refused)?);
        let seen = self.covers_now().map_err(refused)?;
        let (mirror, stopped) = (Arc::downgrade(self), Arc::clone(&stop));
        let _ = self.covers.stop.set(stop);
        thread::Builder::new()
            .name("uvfs-mounts".into())
            .spawn(move || follow(&mirror, &table, &stopped, seen))
            .map(drop)
            .map_err(|error| format!("no thread to follow mounts with: {error}"))
    }

    /// No name that was answered as covered is certain to be covered any more.
    pub(super) fn covers_changed(&self) {
        for (dir, name) in self.covers.take() {
            self.mounts_changed(dir, &name);
        }
    }

    fn covers_now(&self) -> Result<Seen> {
        let source = self.base.source();
        let (here, path) = (mount_of(source)?, path_of(source)?);
        let inside = mounts::inside(&mounts::all()?, here, &path);
        let direct = inside.into_iter().filter(|(_, on)| *on == here);
        Ok(direct
            .filter_map(|(mount, _)| Some((mount.id, mount.point.strip_prefix(&path).ok()?.to_owned())))
            .collect())
    }

    /// Something was mounted at this path.
    fn mounted_at(&self, path: &Path) {
        let (Some(dir), Some(name)) = (path.parent(), path.file_name()) else { return };
        let number = if dir.as_os_str().is_empty() {
            Some(self.root)
        } else {
            let opened = self
                .base
                .open()
                .and_then(|base| open_below(base, dir.as_os_str().as_bytes(), OFlags::DIRECTORY));
            let seen = opened.and_then(|fd| self.look(&fd));
            seen.ok().and_then(|seen| self.table.with_id(&seen.id)).map(|node| node.number)
        };
        // A directory that is not known has no trusted names.
        if let Some(number) = number {
            self.mounts_changed(number, name.as_bytes());
        }
    }
}

fn follow(mirror: &Weak<Mirror>, table: &File, stop: &OwnedFd, mut before: Seen) {
    loop {
        let mut fds =
            [PollFd::new(table, PollFlags::PRI), PollFd::from_borrowed_fd(stop.as_fd(), PollFlags::IN)];
        match poll(&mut fds, None) {
            Err(Errno::INTR) => continue,
            Err(errno) => {
                if let Some(mirror) = mirror.upgrade() {
                    mirror.not_watched(format!("waiting for changes of mounts failed: {errno}"));
                }
                return;
            }
            Ok(_) if !fds[1].revents().is_empty() => return,
            Ok(_) => {}
        }
        let Some(mirror) = mirror.upgrade() else { return };
        // If it cannot be read, anything may have changed.
        let now = mirror.covers_now().unwrap_or_default();
        if now != before {
            now.difference(&before).for_each(|(_, path)| mirror.mounted_at(path));
            mirror.covers_changed();
        }
        before = now;
    }
}
