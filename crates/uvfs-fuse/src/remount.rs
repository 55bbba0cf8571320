//! What can be changed of a mount from outside while it is there: its flags, as `mount -o remount` does.
//!
//! The kernel keeps them; the server is not asked and need not know.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use rustix::io::Errno;
use rustix::mount::MountFlags;

use crate::device;
use crate::error::MountError;
use crate::mountinfo::{self, Mount};
use crate::options::{Atime, Options};

/// A mount of uvfs, as the kernel knows it.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct MountedAt {
    /// Where: an absolute path.
    pub dir: PathBuf,
    /// What mount(8) shows as the source: what is mounted, or the option `fsname`.
    pub source: OsString,
    /// What the kernel knows of its options: `read_only`, `suid`, `dev`, `exec`, `sync`, `dirsync`, `atime` and `allow_other`. The
    /// rest is as by default.
    pub flags: Options,
}

/// The mount of uvfs that is topmost on `dir`.
///
/// # Errors
/// A sentence, where nothing is mounted there, or something else.
pub fn mounted_at(dir: &Path) -> Result<MountedAt, MountError> {
    let mount = mount_at(dir)?;
    Ok(MountedAt { dir: mount.point, flags: flags(&mount.flags), source: mount.source })
}

fn mount_at(dir: &Path) -> Result<Mount, MountError> {
    let dir = device::absolute(dir).map_err(|error| MountError::at(dir, error))?;
    let mount = mountinfo::at(&dir).map_err(|error| MountError::os("cannot read mountinfo", error))?;
    match mount {
        None if dir.symlink_metadata().is_err() => Err(MountError::Missing(dir)),
        None => Err(MountError::NotMounted(dir)),
        Some(mount) if mount.fstype != device::FSTYPE => {
            Err(MountError::NotFuse { dir, fstype: mount.fstype })
        }
        Some(mount) => Ok(mount),
    }
}

/// Makes the flags of the mount on `dir` those of `options`: `read_only`, `suid`, `dev`, `exec`, `sync` and `atime`. The kernel heeds no
/// other `dirsync`; flags that [`Options`] has no word for stay.
///
/// # Errors
/// A sentence: nothing of uvfs is mounted there, this user may not, or a file is open for writing that would become read-only.
pub fn remount(dir: &Path, options: &Options) -> Result<(), MountError> {
    let mount = mount_at(dir)?;
    let dir = mount.point;
    match rustix::mount::mount_remount(&dir, options.flags() | unsaid(&mount.flags, options), c"") {
        Ok(()) => Ok(()),
        Err(Errno::BUSY) => Err(MountError::Writing(dir)),
        Err(Errno::PERM) => Err(MountError::NotRoot(dir)),
        Err(error) => Err(MountError::os(format!("cannot remount {}", dir.display()), error)),
    }
}

/// What has to be said for a remount beside the flags of `options`, where mountinfo has these words now.
fn unsaid(words: &str, options: &Options) -> MountFlags {
    let has = |word: &str| words.split(',').any(|other| other == word);
    let mut kept = MountFlags::empty();
    // mount(2) takes away whatever is not named.
    for (word, flag) in [("nosymfollow", MountFlags::NOSYMFOLLOW), ("lazytime", MountFlags::LAZYTIME)] {
        kept.set(flag, has(word));
    }
    kept.set(MountFlags::NODIRATIME, options.atime == Atime::Never && has("noatime") && has("nodiratime"));
    // But what is not said of access times stays as it was.
    kept.set(MountFlags::RELATIME, matches!(options.atime, Atime::Relative | Atime::NotDirectories));
    kept
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
        allow_other: has("allow_other"),
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

    #[test]
    fn flags_without_an_option_stay() {
        let words = "rw,nosuid,noatime,nodiratime,nosymfollow,rw,user_id=0,allow_other,lazytime";
        let now = flags(words);
        assert!(now.allow_other && now.atime == Atime::Never);
        let others = MountFlags::NOSYMFOLLOW | MountFlags::LAZYTIME;
        assert_eq!(unsaid(words, &now), others | MountFlags::NODIRATIME);
        assert_eq!(unsaid(words, &Options::default()), others | MountFlags::RELATIME);
        assert_eq!(unsaid("rw,noatime", &now), MountFlags::empty());
    }
}
