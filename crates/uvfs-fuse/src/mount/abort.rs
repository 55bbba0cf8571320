//! Ending a connection to the kernel by force: every request that waits gets an error, and so does every later one.
//!
//! The process's end is not enough. A thread that waits in its own mount, or in that of a server which waits for this one, cannot
//! be killed, and it keeps the device open, so that the kernel goes on waiting for an answer.
//!
//! The kernel has a file for this in its file system fusectl. It is opened when the mount is made, because that
//! is when the mount is known by its number; the number is another's once the mount is gone, and the open file then
//! does nothing. A file system that nobody has mounted is mounted for this process alone, where it may
//! be. Otherwise the table of mounts must still have the mount when it comes to that.

use std::fs::{self, File};
use std::io::Write;

use rustix::fs::{Mode, OFlags, openat};
use rustix::io::Errno;
use rustix::mount::{
    FsMountFlags, FsOpenFlags, MountAttrFlags, UnmountFlags, fsconfig_create, fsmount, fsopen,
};

use crate::mount::mountinfo::{self, Mount};

/// Where fusectl is mounted as a rule.
const CONNECTIONS: &str = "/sys/fs/fuse/connections";

/// Aborts one connection; see the module.
#[derive(Debug)]
pub(crate) struct Abort {
    mount: Mount,
    /// The file that is written to, if it could be opened.
    file: Option<File>,
}

impl Abort {
    /// For a mount that has just been made.
    pub(crate) fn of(mount: Mount) -> Self {
        let file = open(&mount).inspect_err(|error| tracing::debug!(%error, "fusectl cannot be used")).ok();
        Self { mount, file }
    }

    /// Ends the connection; whether it could.
    pub(crate) fn abort(&self) -> bool {
        if let Some(mut file) = self.file.as_ref() {
            return file.write_all(b"1").is_ok();
        }
        // To force an unmount aborts first, whatever becomes of the rest.
        let forced = UnmountFlags::NOFOLLOW | UnmountFlags::FORCE;
        let is_topmost =
            mountinfo::at(&self.mount.point).is_ok_and(|topmost| topmost.as_ref() == Some(&self.mount));
        // Busy: aborted all the same.
        is_topmost && matches!(rustix::mount::unmount(&self.mount.point, forced), Ok(()) | Err(Errno::BUSY))
    }

    /// As [`Abort::abort`], for a mount whose server can go on no more.
    pub(crate) fn give_up(&self) {
        if !self.abort() {
            let dir = self.mount.point.display();
            tracing::error!(
                "requests on {dir} may wait for ever, since a thread has failed: umount --force {dir}"
            );
        }
    }
}

fn open(mount: &Mount) -> rustix::io::Result<File> {
    // With another major number it is a disk's, and its minor number another connection's.
    let number = mount.dev.strip_prefix("0:").ok_or(Errno::NODEV)?;
    let flags = OFlags::WRONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    let ours = fsopen("fusectl", FsOpenFlags::FSOPEN_CLOEXEC).and_then(|fs| {
        fsconfig_create(&fs)?;
        let root = fsmount(&fs, FsMountFlags::FSMOUNT_CLOEXEC, MountAttrFlags::empty())?;
        openat(&root, format!("{number}/abort"), flags, Mode::empty())
    });
    match ours {
        Ok(file) => Ok(file.into()),
        // An older kernel, or no right to mount: users may abort what is theirs.
        Err(_) => {
            let path = format!("{CONNECTIONS}/{number}/abort");
            fs::OpenOptions::new()
                .write(true)
                .open(path)
                .map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::IO))
        }
    }
}
