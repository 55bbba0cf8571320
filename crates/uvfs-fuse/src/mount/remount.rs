//! Changes of a mounted file system from outside: its flags, as `mount -o remount` changes them.
//!
//! The kernel keeps the flags; the server is not asked and need not know.

use std::ffi::OsString;
use std::fs;
use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::path::{Path, PathBuf};

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::mount::MountFlags;

use crate::mount::attach_device;
use crate::mount::error::MountError;
use crate::mount::mountinfo::{self, Mount};
use crate::mount::options::{Atime, Options};

/// A mount of uvfs, as the kernel knows it.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct MountedAt {
    /// The mount point: an absolute path.
    pub dir: PathBuf,
    /// The source that mount(8) shows: the mounted source, or the option `fsname`.
    pub source: OsString,
    /// The options that the kernel knows: `read_only`, `suid`, `dev`, `exec`, `sync`, `dirsync`, `atime` and
    /// `allow_other`. The others have their defaults.
    pub flags: Options,
    /// The user and group whom the kernel lets in, and no others without `allow_other`.
    pub owner: Option<(u32, u32)>,
}

/// The topmost uvfs mount on `dir`.
///
/// # Errors
/// A sentence, if nothing or another file system is mounted there.
pub fn mounted_at(dir: &Path) -> Result<MountedAt, MountError> {
    let mount = find(dir)?;
    let owner = mount.owner();
    Ok(MountedAt { flags: flags(&mount.flags), dir: mount.point, source: mount.source, owner })
}

fn find(dir: &Path) -> Result<Mount, MountError> {
    let dir = attach_device::absolute(dir).map_err(|error| MountError::at_mounted(dir, error))?;
    let mount = mountinfo::at(&dir).map_err(|error| MountError::os("cannot read mountinfo", error))?;
    match mount {
        None if dir.symlink_metadata().is_err() => Err(MountError::NothingThere(dir)),
        None => Err(MountError::NotMounted(dir)),
        Some(mount) if mount.fstype != attach_device::FSTYPE => {
            Err(MountError::NotFuse { dir, fstype: mount.fstype })
        }
        Some(mount) => Ok(mount),
    }
}

/// Sets the flags of the mount on `dir` to those of `options`: `read_only`, `suid`, `dev`, `exec`, `sync` and
/// `atime`. The kernel ignores a change of `dirsync`. Flags without a counterpart in [`Options`] stay.
///
/// # Errors
/// A sentence: no uvfs file system is mounted there, this user may not change it, or a file is open for writing
/// that would become read-only.
pub fn remount(dir: &Path, options: &Options) -> Result<(), MountError> {
    let mount = find(dir)?;
    let dir = mount.point.clone();
    // The mount's owner may mount something else there: change only the mount that was examined.
    let held = held(&mount).map_err(|error| MountError::at(&dir, error))?;
    let held = held.ok_or_else(|| MountError::NotMounted(dir.clone()))?;
    let path = format!("/proc/self/fd/{}", held.as_raw_fd());
    // Access time flags that are not given stay as they were.
    let atime = match options.atime {
        Atime::Relative | Atime::NotDirectories => MountFlags::RELATIME,
        Atime::Strict | Atime::Never => MountFlags::empty(),
    };
    match rustix::mount::mount_remount(path, options.flags() | atime | kept(&mount.flags, options), c"") {
        Ok(()) => Ok(()),
        Err(Errno::BUSY) => Err(MountError::Writing(dir)),
        Err(Errno::PERM) => Err(MountError::NotRoot(dir)),
        Err(error) => Err(MountError::os(format!("cannot remount {}", dir.display()), error)),
    }
}

/// The root of the mount, without a request to it; `None` if another file system is there now.
fn held(mount: &Mount) -> io::Result<Option<impl AsFd + AsRawFd + use<>>> {
    let how = OFlags::PATH | OFlags::NOFOLLOW | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let dir = rustix::fs::open(&mount.point, how, Mode::empty())?;
    let info = fs::read_to_string(format!("/proc/self/fdinfo/{}", dir.as_raw_fd()))?;
    let id = info.lines().find_map(|line| line.strip_prefix("mnt_id:"));
    Ok((id.map(str::trim) == Some(&mount.id)).then_some(dir))
}

/// Flags that others may have set, and that stay: mount(2) clears every flag that is not given.
fn kept(words: &str, options: &Options) -> MountFlags {
    let has = |word: &str| words.split(',').any(|other| other == word);
    let mut kept = MountFlags::empty();
    kept.set(MountFlags::NOSYMFOLLOW, has("nosymfollow"));
    kept.set(MountFlags::LAZYTIME, has("lazytime"));
    kept.set(MountFlags::NODIRATIME, options.atime == Atime::Never && has("noatime") && has("nodiratime"));
    kept
}

/// The flags for these words of mountinfo. A flag that is not named has mount(2)'s default, not that of uvfs.
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
    fn what_is_held_is_the_mount_that_was_found() {
        let proc = mountinfo::at(Path::new("/proc")).expect("/proc is there").expect("it is mounted");
        assert!(held(&proc).expect("/proc").is_some());
        let other = Mount { point: "/".into(), ..proc };
        assert!(held(&other).expect("the root").is_none());
    }

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
        assert_eq!(kept(words, &now), others | MountFlags::NODIRATIME);
        assert_eq!(kept(words, &Options::default()), others);
        assert_eq!(kept("rw,noatime", &now), MountFlags::empty());
    }
}
