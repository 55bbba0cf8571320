//! The errors of commands that read `.uvfs`: of a mount without it, of a dead server, of another user's mount.

use std::io::{self, ErrorKind};
use std::path::Path;

use anyhow::{Error, anyhow};
use rustix::process::{getegid, geteuid};
use uvfs_fuse::MountedAt;

/// Why the kernel or the file system keeps this process out of a mount.
fn why(mount: &MountedAt) -> String {
    match mount.owner {
        Some((user, _)) if !mount.flags.allow_other && user != geteuid().as_raw() => {
            "only the user who mounted it may (it has no allow_other)".into()
        }
        // The kernel compares groups too.
        Some((_, group)) if !mount.flags.allow_other && group != getegid().as_raw() => format!(
            "this user mounted it as a member of group {group}, and has group {} now (it has no allow_other)",
            getegid().as_raw()
        ),
        _ => "the permissions of its root directory do not let this user in".into(),
    }
}

/// Why a file of `dir/.uvfs` cannot be read, with the remedy if there is one.
pub fn explained(dir: &Path, file: &Path, error: io::Error) -> Error {
    let at = dir.display();
    match (error.kind(), uvfs_fuse::mounted_at(dir)) {
        (ErrorKind::NotConnected, _) => {
            anyhow!("the server of {at} has died; clear it with: uvfs umount {at}")
        }
        (ErrorKind::NotFound | ErrorKind::NotADirectory, Err(why)) => why.into(),
        (ErrorKind::NotFound, Ok(_)) => anyhow!("{at} has no .uvfs, because it was mounted with -o ctl=off"),
        (ErrorKind::PermissionDenied, Ok(mount)) => {
            anyhow!("no right to look into the mount on {at}: {}", why(&mount))
        }
        _ => Error::new(error).context(format!("cannot read {}", file.display())),
    }
}
