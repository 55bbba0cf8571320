//! A directory of a uvfs in this process, held by a reference.

use uvfs::{Found, Inode, RenameFlags, Vfs, mode};

use super::{Directory, LinearCall, Reply};
use crate::inproc::cred;
use crate::ops::Who;

const TEXT: [&[u8]; super::NAMES] = [b"one", b"two", b"three", b"four"];

/// A directory of a uvfs in this process.
pub struct VfsDirectory<'v> {
    vfs: &'v Vfs,
    dir: Inode<'v>,
}

impl<'v> VfsDirectory<'v> {
    /// Uses the names of the directory `dir`.
    pub fn new(vfs: &'v Vfs, dir: Inode<'v>) -> Self {
        Self { vfs, dir }
    }

    fn rename(&self, a: usize, b: usize, flags: RenameFlags) -> Reply {
        let op = self.vfs.op(&cred(Who::Root));
        self.vfs.rename(&op, &self.dir, TEXT[a], &self.dir, TEXT[b], flags).map(|()| 0)
    }
}

impl Directory for VfsDirectory<'_> {
    fn call(&self, call: LinearCall) -> Reply {
        let op = self.vfs.op(&cred(Who::Root));
        match call {
            LinearCall::Create(a, id) => {
                self.vfs.mknod(&op, &self.dir, TEXT[a], mode::S_IFREG | u32::from(id), 0).map(|_| 0)
            }
            LinearCall::Unlink(a) => self.vfs.unlink(&op, &self.dir, TEXT[a]).map(|()| 0),
            LinearCall::Rename(a, b) => self.rename(a, b, RenameFlags::empty()),
            LinearCall::RenameNoReplace(a, b) => self.rename(a, b, RenameFlags::NOREPLACE),
            LinearCall::Exchange(a, b) => self.rename(a, b, RenameFlags::EXCHANGE),
            LinearCall::Link(a, b) => match self.vfs.lookup(&op, &self.dir, TEXT[a])? {
                Found::Node(inode, _) => self.vfs.link(&op, &inode, &self.dir, TEXT[b]).map(|_| 0),
                Found::Absent(_) => Err(uvfs::Errno::NOENT),
            },
            LinearCall::Stat(a) => match self.vfs.lookup(&op, &self.dir, TEXT[a])? {
                Found::Node(_, attr) => Ok((attr.mode & 0o777) as u16),
                Found::Absent(_) => Err(uvfs::Errno::NOENT),
            },
        }
    }
}

/// The same directory, stat by path: the lock-free walk.
pub struct PathDirectory<'v>(pub VfsDirectory<'v>);

impl Directory for PathDirectory<'_> {
    fn call(&self, call: LinearCall) -> Reply {
        match call {
            LinearCall::Stat(a) => {
                let context = self.0.vfs.context(cred(Who::Root));
                // Every other name through the prefix cache, which needs a long directory part.
                let long = [&b"./".repeat(8), TEXT[a]].concat();
                let path = if a % 2 == 0 { TEXT[a] } else { &long };
                Ok((context.lstat(path)?.mode & 0o777) as u16)
            }
            other => self.0.call(other),
        }
    }
}
