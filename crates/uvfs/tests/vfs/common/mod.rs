//! Shared parts of this crate's tests: two small drivers and a few helpers.
//!
//! [`Mem`] is resident (the cache is the tree). [`Store`] keeps a tree of its own, and is asked for names that the
//! cache misses. Both are as simple as possible: one mutex each, no limits.

pub mod host;
pub mod inside;
pub mod mem;
pub mod script;
pub mod store;

use std::sync::Arc;

use uvfs::{Attr, Context, Cred, Errno, NewInode, Time, Ttl, Vfs, VfsConfig, mode};

pub use mem::Mem;
pub use store::Store;

/// A tree with a [`Mem`] at its root.
pub fn vfs() -> Arc<Vfs> {
    vfs_of(Arc::new(Mem::default()))
}

/// A tree with this driver at its root.
pub fn vfs_of(driver: Arc<dyn uvfs::Driver>) -> Arc<Vfs> {
    Vfs::new(VfsConfig::default(), driver).unwrap()
}

/// Root's context, with no umask.
pub fn root(vfs: &Vfs) -> Context<'_> {
    user(vfs, 0, 0)
}

/// A user's context, with no umask.
pub fn user(vfs: &Vfs, uid: u32, gid: u32) -> Context<'_> {
    let mut context = vfs.context(Cred::user(uid, gid));
    context.umask(0);
    context
}

/// Makes an empty file.
pub fn touch(context: &Context<'_>, path: &str) {
    context.mknod(path.as_bytes(), mode::S_IFREG | 0o644, 0).unwrap();
}

/// Permission bits of the inode at the path; links are not followed.
pub fn bits(context: &Context<'_>, path: &str) -> u32 {
    context.lstat(path.as_bytes()).unwrap().mode & 0o7777
}

/// The error, if any.
pub fn errno<T>(result: Result<T, Errno>) -> Option<Errno> {
    result.err()
}

/// A new node's attributes, as a plain file system sets them.
pub fn new_attr(ino: u64, mode: u32, uid: u32, gid: u32, now: Time) -> Attr {
    let nlink = if mode & mode::S_IFMT == mode::S_IFDIR { 2 } else { 1 };
    Attr { ino, mode, nlink, uid, gid, atime: now, mtime: now, ctime: now, ..Attr::default() }
}

/// A node with an unlimited TTL.
pub fn new_inode(attr: Attr) -> NewInode {
    NewInode { attr, private: attr.ino, ttl: Ttl::Forever }
}

/// Runs a script on a fresh tree, then on the host's kernel if that is possible.
pub fn compare(text: &str) {
    let config = VfsConfig { protected: host::protected(), ..VfsConfig::default() };
    let vfs = Vfs::new(config, Arc::new(Mem::default())).unwrap();
    script::run(text, &mut inside::Inside::new(&vfs), false);
    host::with_host(|host| script::run(text, host, true));
}
