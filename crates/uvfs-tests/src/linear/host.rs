//! A host directory, held by a descriptor.

use std::os::fd::OwnedFd;
use std::path::Path;

use rustix::fs::{self, AtFlags, CWD, Mode, OFlags, RenameFlags};

use super::{Directory, LinearCall, Reply};

const TEXT: [&str; super::NAMES] = ["one", "two", "three", "four"];

/// A host directory.
pub struct HostDirectory {
    dir: OwnedFd,
}

impl HostDirectory {
    /// Uses the names of `dir`, which must be empty. Clears the process's umask: the
    /// permission bits of a file are its identity.
    pub fn new(dir: &Path) -> Result<Self, rustix::io::Errno> {
        rustix::process::umask(Mode::empty());
        let dir = fs::openat(CWD, dir, OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
        Ok(Self { dir })
    }

    fn rename(&self, a: usize, b: usize, flags: RenameFlags) -> Reply {
        fs::renameat_with(&self.dir, TEXT[a], &self.dir, TEXT[b], flags).map(|()| 0)
    }
}

impl Directory for HostDirectory {
    fn call(&self, call: LinearCall) -> Reply {
        match call {
            LinearCall::Create(a, id) => {
                let flags = OFlags::CREATE | OFlags::EXCL | OFlags::RDWR | OFlags::CLOEXEC;
                fs::openat(&self.dir, TEXT[a], flags, Mode::from_raw_mode(id.into())).map(|_| 0)
            }
            LinearCall::Unlink(a) => fs::unlinkat(&self.dir, TEXT[a], AtFlags::empty()).map(|()| 0),
            LinearCall::Rename(a, b) => self.rename(a, b, RenameFlags::empty()),
            LinearCall::RenameNoReplace(a, b) => self.rename(a, b, RenameFlags::NOREPLACE),
            LinearCall::Exchange(a, b) => self.rename(a, b, RenameFlags::EXCHANGE),
            LinearCall::Link(a, b) => {
                fs::linkat(&self.dir, TEXT[a], &self.dir, TEXT[b], AtFlags::empty()).map(|()| 0)
            }
            LinearCall::Stat(a) => {
                let stat = fs::statat(&self.dir, TEXT[a], AtFlags::SYMLINK_NOFOLLOW)?;
                Ok((stat.st_mode & 0o777) as u16)
            }
        }
    }
}
