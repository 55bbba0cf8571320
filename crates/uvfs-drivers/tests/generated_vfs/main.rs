//! A generated tree under the VFS: the rules of the cache, as its driver sees them.
//!
//! The driver's right answers are always known, and its calls are counted and can be held. So each
//! test states a rule, and its comment says how the test fails if the rule is broken. No test
//! sleeps: a gate holds a call, and a test checks for a forbidden event when it can no longer happen.

mod eviction;
mod expiry;
mod failures;
mod late;
mod listing;
mod misses;
mod sharing;

use std::sync::Arc;
use std::time::Duration;

use uvfs::driver::Inode;
use uvfs::types::{Attr, Cred, Errno, Op};
use uvfs::{Found, Vfs, VfsConfig};
use uvfs_drivers::generated::{FaultControl, Generated, ROOT_INO};

/// How long a test waits for an expected event before it fails.
const PATIENCE: Duration = Duration::from_secs(20);

/// A name that no generated directory has: `-` is not in the alphabet.
const ABSENT: &[u8] = b"no-such-name";

/// A mounted tree and the handle of its driver.
struct World {
    vfs: Arc<Vfs>,
    control: FaultControl,
}

impl World {
    fn new(spec: &str) -> Self {
        Self::with(VfsConfig::default(), spec)
    }

    fn with(config: VfsConfig, spec: &str) -> Self {
        let spec = spec.parse().unwrap_or_else(|error| panic!("{spec}: {error}"));
        let driver = Generated::new(spec).unwrap_or_else(|error| panic!("{error}"));
        let control = driver.control();
        let vfs = Vfs::new(config, Arc::new(driver)).expect("mount");
        Self { vfs, control }
    }

    fn op(&self) -> Op {
        self.vfs.op(&Cred::root())
    }

    /// Name of the `index`-th entry of the root directory.
    fn name(&self, index: u64) -> Vec<u8> {
        self.control.tree().name(ROOT_INO, index).expect("an entry").to_vec()
    }

    /// The driver's attributes of the `index`-th entry of the root directory.
    fn truth(&self, index: u64) -> Attr {
        let tree = self.control.tree();
        tree.attr(tree.child(ROOT_INO, index).expect("an entry")).expect("an inode")
    }

    /// Looks a name up in the root directory: its attributes, or `None` where it is absent.
    fn lookup(&self, name: &[u8]) -> Result<Option<Attr>, Errno> {
        self.lookup_as(&Cred::root(), name)
    }

    fn lookup_as(&self, cred: &Cred, name: &[u8]) -> Result<Option<Attr>, Errno> {
        let root = self.vfs.root();
        match self.vfs.lookup(&self.vfs.op(cred), &root, name)? {
            Found::Node(_, attr) => Ok(Some(attr)),
            Found::Absent(_) => Ok(None),
        }
    }

    /// The inode of the `index`-th entry of the root directory.
    fn inode(&self, index: u64) -> Inode<'_> {
        let root = self.vfs.root();
        match self.vfs.lookup(&self.op(), &root, &self.name(index)) {
            Ok(Found::Node(inode, _)) => inode,
            _ => panic!("entry {index} is not found"),
        }
    }

    /// The cached state of a name: `None` nothing, `Some(None)` its absence.
    fn cached(&self, name: &[u8]) -> Option<Option<Attr>> {
        let root = self.vfs.root();
        match self.vfs.lookup_cached(&self.op(), &root, name)? {
            Ok(Found::Node(_, attr)) => Some(Some(attr)),
            Ok(Found::Absent(_)) => Some(None),
            Err(error) => panic!("{error}"),
        }
    }

    /// Tells the cache that a name of the root directory may have changed.
    fn invalidate(&self, name: &[u8]) {
        self.vfs.cache().invalidate(&self.vfs.root(), name);
    }
}
