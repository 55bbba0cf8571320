//! The errors of commands that read `.uvfs`: of a mount without it, of a dead server, of another user's mount.

use std::io::{self, ErrorKind};
use std::path::Path;

use anyhow::{Error, anyhow};

/// Why a file of `dir/.uvfs` cannot be read, with the remedy if there is one.
pub fn explained(dir: &Path, file: &Path, error: io::Error) -> Error {
    let at = dir.display();
    match (error.kind(), uvfs_fuse::mounted_at(dir)) {
        (ErrorKind::NotConnected, _) => {
            anyhow!("the server of {at} has died; clear it with: uvfs umount {at}")
        }
        (ErrorKind::NotFound, Err(why)) => why.into(),
        (ErrorKind::NotFound, Ok(_)) => anyhow!("{at} has no .uvfs, because it was mounted with -o ctl=off"),
        (ErrorKind::PermissionDenied, Ok(_)) => anyhow!(
            "no right to look into the mount on {at}: only the user who mounted it may (it has no allow_other)"
        ),
        _ => Error::new(error).context(format!("cannot read {}", file.display())),
    }
}
