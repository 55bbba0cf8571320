//! tmpfs as a user of the VFS sees it: contents against a model, names, attributes, access control lists, limits.

mod acl;
mod attrs;
mod contents;
mod lent;
mod limits;
mod listing;
mod names;

use std::sync::Arc;

use uvfs::driver::Inode;
use uvfs::types::{Access, Attr, Cred, Op, Time};
use uvfs::{Vfs, VfsConfig};
use uvfs_drivers::tmpfs::{Tmpfs, parse};

/// A mounted tmpfs and its driver.
pub(crate) struct Fs {
    pub(crate) vfs: Arc<Vfs>,
    pub(crate) tmpfs: Arc<Tmpfs>,
}

impl Fs {
    pub(crate) fn new(options: &str) -> Self {
        let tmpfs = Tmpfs::new(parse(options).unwrap()).unwrap();
        let vfs = Vfs::new(VfsConfig::default(), tmpfs.clone()).unwrap();
        Self { vfs, tmpfs }
    }

    /// An operation of root's at second `now`.
    pub(crate) fn at(&self, now: i64) -> Op {
        Op { now: Time::new(now, 123_456_789), ..self.vfs.op(&Cred::root()) }
    }

    pub(crate) fn op(&self) -> Op {
        self.vfs.op(&Cred::root())
    }

    /// A new regular file in the root directory.
    pub(crate) fn file(&self, name: &str) -> Inode<'_> {
        self.vfs.mknod(&self.op(), &self.vfs.root(), name.as_bytes(), 0o644, 0).unwrap().0
    }

    pub(crate) fn open(&self, inode: &Inode<'_>) -> u64 {
        self.vfs.open(&self.op(), inode, Access::READ | Access::WRITE, false).unwrap()
    }

    /// A file with contents, made and opened.
    pub(crate) fn open_new(&self, name: &str) -> u64 {
        self.open(&self.file(name))
    }

    pub(crate) fn unlink(&self, name: &str) {
        self.vfs.unlink(&self.op(), &self.vfs.root(), name.as_bytes()).unwrap();
    }

    pub(crate) fn root_attr(&self) -> Attr {
        self.vfs.root().attr()
    }
}
