//! What can be changed of a mount from outside while it is there: its flags, as `mount -o remount` does.
//!
//! The kernel keeps them; the server is not asked and need not know.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use rustix::io::Errno;
use rustix::mount::MountFlags;

use crate::device;
use crate::error::MountError;
use crate::mountinfo;
use crate::options::{Atime, Options};

/// A mount of uvfs, as the kernel knows it.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct MountedAt {
    /// Where: an absolute path.
    pub dir: PathBuf,
    /// What mount(8) shows as the source: what is mounted, or the option `fsname`.
    pub source: OsString,
    /// Its flags: `read_only`, `suid`, `dev`, `exec`, `sync`, `dirsync` and `atime`. The rest is as by default.
    pub flags: Options,
}

/// The mount of uvfs that is topmost on `dir`.
///
/// # Errors
/// A sentence, where nothing is mounted there, or something else.
pub fn mounted_at(dir: &Path) -> Result<MountedAt, MountError> {
    let dir = device::absolute(dir).map_err(|error| MountError::at(dir, error))?;
    let mount = mountinfo::at(&dir).map_err(|error| MountError::os("cannot read mountinfo", error))?;
    match mount {
        None if dir.symlink_metadata().is_err() => Err(MountError::Missing(dir)),
        None => Err(MountError::NotMounted(dir)),
        Some(mount) if mount.fstype != device::FSTYPE => {
            Err(MountError::NotFuse { dir, fstype: mount.fstype })
        }
        Some(mount) => Ok(MountedAt { dir, flags: flags(&mount.flags), source: mount.source }),
    }
}

/// Makes the flags of the mount on `dir` those of `options`, all of them; see [`MountedAt::flags`].
///
/// # Errors
/// A sentence: nothing of uvfs is mounted there, this user may not, or a file is open for writing that would become read-only.
pub fn remount(dir: &Path, options: &Options) -> Result<(), MountError> {
    let MountedAt { dir, .. } = mounted_at(dir)?;
    // What is not said of access times stays as it was.
    let atime = match options.atime {
        Atime::Relative | Atime::NotDirectories => MountFlags::RELATIME,
        Atime::Strict | Atime::Never => MountFlags::empty(),
    };
    match rustix::mount::mount_remount(&dir, options.flags() | atime, c"") {
        Ok(()) => Ok(()),
        Err(Errno::BUSY) => Err(MountError::Writing(dir)),
        Err(Errno::PERM) => Err(MountError::NotRoot(dir)),
        Err(error) => Err(MountError::os(format!("cannot remount {}", dir.display()), error)),
    }
}

/// The flags that mountinfo has in these words. What it does not name is as mount(2) has it by default, not as we do.
fn flags(words: &str) -> Options {
    let has = |word: &str| words.split(',').any(|other| other == word);
    let atime = match () {
        () if has("noatime") => Atime::Never,
        () if has("nodiratime") => Atime::NotDirectories,
        () if has("relatime") => Atime::Relative,
        () => Atime::Strict,
    };
    Options {
        read_only: has("ro"),
        suid: !has("nosuid"),
        dev: !has("nodev"),
        exec: !has("noexec"),
        sync: has("sync"),
        dirsync: has("dirsync"),
        atime,
        ..Options::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags_are_what_the_kernel_says() {
        let now = flags("ro,nosuid,relatime,rw,user_id=0,sync");
        assert!(now.read_only && !now.suid && now.dev && now.exec && now.sync && !now.dirsync);
        assert_eq!(now.atime, Atime::Relative);
        let now = flags("rw,noexec,nodev");
        assert!(!now.read_only && now.suid && !now.dev && !now.exec && now.atime == Atime::Strict);
    }
}
