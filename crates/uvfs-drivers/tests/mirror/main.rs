//! The mirror of a host directory: what is done through it is done on the host, and nowhere else.

mod escapes;
mod flags;
mod limits;
mod links;
mod moves;
mod outside;
mod semantics;
mod users;
mod xdev;

use std::fs;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use rustix::fs::Mode;
use tempfile::TempDir;
use uvfs::{Cred, Inode, Op, Vfs, VfsConfig};
use uvfs_drivers::mirror::Mirror;

/// A directory of the host and a mirror of it. Beside it is `outside`, which is none of the mirror's business.
pub(crate) struct Fs {
    pub(crate) vfs: Arc<Vfs>,
    pub(crate) mirror: Arc<Mirror>,
    base: TempDir,
}

impl Fs {
    /// A mirror that asks the host each time.
    pub(crate) fn new() -> Self {
        Self::with_ttl(Duration::ZERO)
    }

    pub(crate) fn with_ttl(ttl: Duration) -> Self {
        Self::made(tempfile::tempdir().expect("a temporary directory"), ttl, |_| ())
    }

    /// A mirror of a watched source; none, with a message, where it cannot be watched.
    pub(crate) fn watched() -> Option<Self> {
        let mut refused = None;
        // Others change little there, so that few events are lost.
        let base = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir());
        let base = base.expect("a temporary directory");
        let fs = Self::made(base, Duration::from_secs(1), |mirror| refused = mirror.watch().err());
        if let Some(why) = &refused {
            println!("skipped: a watched source: {why}");
        }
        refused.is_none().then_some(fs)
    }

    fn made(base: TempDir, ttl: Duration, before_mount: impl FnOnce(&Arc<Mirror>)) -> Self {
        // As the command does: what a user makes has the permissions that were asked for.
        rustix::process::umask(Mode::empty());
        fs::create_dir(base.path().join("src")).unwrap();
        fs::create_dir(base.path().join("outside")).unwrap();
        let mirror = Mirror::new(&base.path().join("src"), ttl).unwrap();
        before_mount(&mirror);
        let vfs = Vfs::new(VfsConfig::default(), mirror.clone()).unwrap();
        Self { vfs, mirror, base }
    }

    /// On the host, in the source.
    pub(crate) fn src(&self, name: &str) -> PathBuf {
        self.base.path().join("src").join(name)
    }

    /// On the host, outside of the source.
    pub(crate) fn outside(&self, name: &str) -> PathBuf {
        self.base.path().join("outside").join(name)
    }

    /// As a FUSE kernel asks: it has checked permissions.
    pub(crate) fn trusted(&self, cred: &Cred) -> Op {
        Op { trusted: true, ..self.vfs.op(cred) }
    }

    pub(crate) fn root_op(&self) -> Op {
        self.trusted(&Cred::root())
    }

    /// The inode of a path.
    pub(crate) fn inode(&self, path: &str) -> Inode<'_> {
        self.vfs.context(Cred::root()).resolve(path.as_bytes()).unwrap()
    }
}

/// Whether tests that need root can run; says so where not.
pub(crate) fn is_root(test: &str) -> bool {
    let root = rustix::process::geteuid().is_root();
    if !root {
        println!("skipped: {test}: not root");
    }
    root
}
