//! Errors of mounting and unmounting, as sentences for the user who typed the command.

use std::fmt;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use rustix::process::geteuid;

use crate::mount::{attach_device, mountinfo};

/// The remedy for a missing device.
const NO_DEVICE: &str =
    "as root: modprobe fuse (in a container: pass the device in, e.g. --device /dev/fuse)";

/// Why a mount or unmount failed. Displays as the cause and the remedy.
#[derive(Debug)]
#[non_exhaustive]
pub enum MountError {
    /// The directory to mount on does not exist.
    Missing(PathBuf),
    /// The supposed mount point does not exist.
    NothingThere(PathBuf),
    /// The mount point is not a directory.
    NotDirectory(PathBuf),
    /// A FUSE file system is mounted there whose server has died.
    Dead(PathBuf),
    /// The kernel has no FUSE, or has not loaded it.
    NoDevice,
    /// Not root, and fusermount3 is not installed.
    NoRight {
        /// The attempted action: "mount on" or "unmount".
        doing: &'static str,
        /// The mount point.
        dir: PathBuf,
    },
    /// fusermount3 refused.
    Fusermount {
        /// The mount point.
        dir: PathBuf,
        /// Its message.
        said: String,
    },
    /// Nothing is mounted there.
    NotMounted(PathBuf),
    /// Something is mounted there that is not a uvfs file system.
    NotFuse {
        /// The mount point.
        dir: PathBuf,
        /// Its type.
        fstype: String,
    },
    /// Another user has mounted it.
    NotYours {
        /// The attempted action: "unmount" or "mount over".
        doing: &'static str,
        /// The mount point.
        dir: PathBuf,
        /// The number of the user who mounted it.
        owner: u32,
    },
    /// Root asked, and the kernel lets only the user of a FUSE mount look at it.
    Private {
        /// The directory to mount on.
        dir: PathBuf,
        /// The mount point, at it or above it.
        mount: PathBuf,
        /// The number of the user who mounted it.
        owner: u32,
    },
    /// This user has mounted something there, and fusermount3 may not look into it.
    YoursAlready(PathBuf),
    /// The directory is inside a mount of this user, and fusermount3 may not look into it.
    InsideYours {
        /// The directory.
        dir: PathBuf,
        /// The mount point above it.
        mount: PathBuf,
    },
    /// This user may not search a directory above it.
    Closed(PathBuf),
    /// Another file system is mounted over this one.
    Covered(PathBuf),
    /// Files in it are open, a process has its working directory in it, or something is mounted inside.
    Busy(PathBuf),
    /// It cannot become read-only: a file is open for writing.
    Writing(PathBuf),
    /// Only root may change a mount.
    NotRoot(PathBuf),
    /// A system call failed, and there is no better explanation.
    Os {
        /// The attempted action.
        doing: String,
        /// The system's error.
        error: io::Error,
    },
}

impl MountError {
    pub(crate) fn os(doing: impl Into<String>, error: impl Into<io::Error>) -> Self {
        Self::Os { doing: doing.into(), error: error.into() }
    }

    /// Finds out why the mount point `dir` of an existing mount could not be examined.
    pub(crate) fn at_mounted(dir: &Path, error: io::Error) -> Self {
        match error.raw_os_error() {
            Some(libc::ENOENT | libc::ENOTDIR) => Self::NothingThere(dir.into()),
            _ => Self::at(dir, error),
        }
    }

    /// Finds out why `dir`, a mount point to be, could not be examined.
    pub(crate) fn at(dir: &Path, error: io::Error) -> Self {
        match error.raw_os_error() {
            Some(libc::ENOENT) => Self::Missing(dir.into()),
            Some(libc::ENOTDIR) => Self::NotDirectory(dir.into()),
            Some(libc::ENOTCONN | libc::ECONNABORTED) => Self::Dead(dir.into()),
            Some(libc::EACCES) => Self::closed(dir),
            _ => Self::os(format!("cannot look at {}", dir.display()), error),
        }
    }

    /// Finds out why this user may not look at `dir`: the kernel lets only the user of a FUSE mount into it.
    fn closed(dir: &Path) -> Self {
        let point = attach_device::absolute(dir).or_else(|_| std::path::absolute(dir));
        let point = point.unwrap_or_else(|_| dir.into());
        let me = geteuid();
        let others = mountinfo::over(&point).ok().flatten().and_then(|mount| {
            let (owner, _) = mount.owner().filter(|(owner, _)| *owner != me.as_raw())?;
            let lets_in = mount.flags.split(',').any(|word| word == "allow_other");
            Some((mount.point, owner, lets_in))
        });
        match others {
            Some((mount, owner, false)) if me.is_root() => Self::Private { dir: point, mount, owner },
            Some((mount, owner, _)) if mount == point => {
                Self::NotYours { doing: "mount over", dir: point, owner }
            }
            _ => Self::Closed(point),
        }
    }
}

impl MountError {
    /// The sentences about whose a mount or directory is.
    fn about_users(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotYours { doing, dir, owner } => write!(
                f,
                "no right to {doing} {}: {} has mounted it, so only that user and root may{}",
                dir.display(),
                user(*owner),
                if *doing == "unmount" { "" } else { "; mount on another directory" }
            ),
            Self::Private { dir, mount, owner } => write!(
                f,
                "cannot look at {}: only {} may look into the mount on {2} (it has no allow_other), not even root; \
                 mount elsewhere, or unmount that first: umount {2}",
                dir.display(),
                user(*owner),
                mount.display()
            ),
            Self::YoursAlready(dir) => write!(
                f,
                "a file system of yours is mounted on {0} already, and fusermount3 cannot mount over it; \
                 unmount it first: uvfs umount {0}",
                dir.display()
            ),
            Self::InsideYours { dir, mount } => write!(
                f,
                "{} is inside your mount on {}, and fusermount3 may not look into that; mount outside of it",
                dir.display(),
                mount.display()
            ),
            Self::Closed(dir) => write!(
                f,
                "no right to enter a directory above {}; use an account that may, or root",
                dir.display()
            ),
            _ => Ok(()),
        }
    }
}

/// A user for a sentence, by the name in passwd(5) if there is one. This file, and not the C library's name service, which
/// a static program cannot load.
fn user(number: u32) -> String {
    let table = fs::read_to_string("/etc/passwd").unwrap_or_default();
    let name = table.lines().find_map(|line| {
        let mut fields = line.split(':');
        let name = fields.next()?;
        (fields.nth(1)?.parse() == Ok(number)).then(|| name.to_owned())
    });
    name.map_or_else(|| format!("user {number}"), |name| format!("user {name}"))
}

impl fmt::Display for MountError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Missing(dir) => {
                write!(f, "{0} does not exist; make the directory first: mkdir {0}", dir.display())
            }
            Self::NothingThere(dir) => {
                write!(f, "{} does not exist, so nothing is mounted there", dir.display())
            }
            Self::NotDirectory(dir) => {
                write!(f, "{} is not a directory; mount on a directory", dir.display())
            }
            Self::Dead(dir) => write!(
                f,
                "{0} is still the mount point of a file system whose server has died \
                 (Transport endpoint is not connected); clear it with: uvfs umount {0}",
                dir.display()
            ),
            Self::NoDevice => write!(f, "/dev/fuse is missing: this kernel has not loaded FUSE; {NO_DEVICE}"),
            Self::NoRight { doing, dir } => write!(
                f,
                "no right to {doing} {}; run as root, or install fusermount3 (Debian's package fuse3), \
                 which lets users do it on directories of their own",
                dir.display()
            ),
            Self::Fusermount { dir, said } => {
                write!(f, "fusermount3 refused {}: {said}", dir.display())?;
                remedy(said).map_or(Ok(()), |remedy| write!(f, "; {remedy}"))
            }
            Self::NotMounted(dir) => write!(f, "nothing is mounted on {}", dir.display()),
            Self::NotFuse { dir, fstype } => {
                write!(f, "the file system on {} is not a uvfs file system but {fstype}", dir.display())
            }
            Self::NotYours { .. }
            | Self::Private { .. }
            | Self::YoursAlready(_)
            | Self::InsideYours { .. }
            | Self::Closed(_) => self.about_users(f),
            Self::Covered(dir) => write!(
                f,
                "another file system has been mounted over {0}; unmount that first: umount {0}",
                dir.display()
            ),
            Self::Busy(dir) => write!(
                f,
                "{0} is in use (open files, a working directory or a mount inside; see: fuser -vm {0}); \
                 end that, or detach it with: uvfs umount -l {0}",
                dir.display()
            ),
            Self::Writing(dir) => write!(
                f,
                "{0} cannot become read-only while files in it are open for writing (see: fuser -vm {0}); end that first",
                dir.display()
            ),
            Self::NotRoot(dir) => write!(
                f,
                "only root may change the flags of the mount on {0}; as its owner, unmount it and mount it again: uvfs umount {0}",
                dir.display()
            ),
            Self::Os { doing, error } => write!(f, "{doing}: {error}"),
        }
    }
}

/// The remedy for a message of fusermount3, if it is known.
fn remedy(said: &str) -> Option<&'static str> {
    /// Parts of its messages, and the remedy if all of them are in one.
    const KNOWN: &[(&[&str], &str)] = &[
        (
            &["user_allow_other"],
            "as root, add the line user_allow_other to /etc/fuse.conf, or leave allow_other out",
        ),
        (&["too many", "mount_max"], "unmount one, or as root set mount_max=N in /etc/fuse.conf"),
        (&["no write access to mountpoint"], NOT_YOURS),
        (&["not owned by user"], NOT_YOURS),
        (
            &["failed to access mountpoint", "Permission denied"],
            "you may not enter that directory: mount on one of your own",
        ),
        (&["mounting over filesystem type"], "mount on a directory of a disk or a tmpfs"),
        (&["mount failed", "not permitted"], NOT_SET_UID),
        (
            &["/dev/fuse", "Permission denied"],
            "users need access to the device; as root: chmod 666 /dev/fuse",
        ),
        (&["modprobe fuse"], NO_DEVICE),
    ];
    const NOT_YOURS: &str = "mount on a directory that you own and may write to";
    const NOT_SET_UID: &str = "fusermount3 needs the set-user-id bit of root (as root: chown root and chmod u+s that \
                               program), and in a container the right to mount (CAP_SYS_ADMIN)";
    let fits = |parts: &[&str]| parts.iter().all(|part| said.contains(part));
    KNOWN.iter().find(|(parts, _)| fits(parts)).map(|(_, remedy)| *remedy)
}

// No `source`: the system's message is part of the sentence.
impl std::error::Error for MountError {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_user_has_a_name_or_a_number() {
        assert_eq!((user(0).as_str(), user(4_000_000_001).as_str()), ("user root", "user 4000000001"));
        let error = MountError::NotYours { doing: "unmount", dir: "/d".into(), owner: 0 }.to_string();
        assert_eq!(error, "no right to unmount /d: user root has mounted it, so only that user and root may");
    }

    /// The messages are those of fusermount3 3.14.
    #[test]
    fn a_refusal_of_fusermount_says_the_remedy() {
        for (said, remedy) in [
            (
                "option allow_other only allowed if 'user_allow_other' is set in /etc/fuse.conf",
                "line user_allow_other to /etc/fuse.conf",
            ),
            (
                "too many FUSE filesystems mounted; mount_max=N can be set in /etc/fuse.conf",
                "mount_max=N in /etc/fuse.conf",
            ),
            ("user has no write access to mountpoint /srv", "that you own"),
            ("mountpoint /tmp/x not owned by user", "that you own"),
            ("failed to access mountpoint /x/y: Permission denied", "one of your own"),
            ("mounting over filesystem type 0x00009fa0 is forbidden", "a disk or a tmpfs"),
            ("mount failed: Operation not permitted", "set-user-id"),
            ("failed to open /dev/fuse: Permission denied", "chmod 666 /dev/fuse"),
            ("fuse device not found, try 'modprobe fuse' first", "pass the device in"),
        ] {
            let error = MountError::Fusermount { dir: "/d".into(), said: said.into() }.to_string();
            assert!(error.starts_with(&format!("fusermount3 refused /d: {said}; ")), "{error}");
            assert!(error.contains(remedy), "{error}");
        }
        let error = MountError::Fusermount { dir: "/d".into(), said: "internal error".into() };
        assert_eq!(error.to_string(), "fusermount3 refused /d: internal error");
    }
}
