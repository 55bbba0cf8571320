//! A kernfs tree under the VFS: the program's and the reader's view, and the kernel's rules for both.
//!
//! Each rule has a test named after it. Tests hold races at one step by a channel or a barrier, never by a
//! sleep: a test checks that an event which must wait happened only after the release.

mod basics;
mod files;
mod late;
mod model;
mod replaced;
mod rules;

use std::io::Write as _;
use std::sync::Arc;
use std::time::Duration;

use uvfs::{Context, Cred, Errno, OpenFlags, Vfs, VfsConfig};
use uvfs_drivers::kernfs::{Attribute, Kernfs, KernfsOptions, Meta, Tag};

/// How long a test waits for an expected event before it fails.
const PATIENCE: Duration = Duration::from_secs(20);
/// A file that root may write.
const FILE: Meta = Meta::new(0o644);
/// A directory.
const DIR: Meta = Meta::new(0o755);

/// A tree and one view of it, mounted.
struct World {
    tree: Kernfs,
    vfs: Arc<Vfs>,
}

impl World {
    fn new() -> Self {
        Self::of(Kernfs::new(KernfsOptions::default()).expect("a tree"), None)
    }

    fn of(tree: Kernfs, tag: Option<Tag>) -> Self {
        let vfs = Vfs::new(VfsConfig::default(), tree.view(tag)).expect("mount");
        Self { tree, vfs }
    }

    fn root(&self) -> Context<'_> {
        self.vfs.context(Cred::root())
    }

    fn read(&self, path: &str) -> Result<String, Errno> {
        let file = self.root().open(path.as_bytes(), OpenFlags::READ, 0)?;
        let mut text = vec![0; 65536];
        let len = file.read_at(&mut text, 0)?;
        text.truncate(len);
        Ok(String::from_utf8(text).expect("UTF-8"))
    }

    fn write(&self, path: &str, text: &str) -> Result<usize, Errno> {
        self.root().open(path.as_bytes(), OpenFlags::WRITE, 0)?.write_at(text.as_bytes(), 0)
    }

    fn names(&self, path: &str) -> Result<Vec<String>, Errno> {
        let entries = self.root().readdir(path.as_bytes())?;
        Ok(entries.into_iter().map(|e| String::from_utf8_lossy(&e.name).into_owned()).collect())
    }

    fn exists(&self, path: &str) -> bool {
        match self.root().stat(path.as_bytes()) {
            Ok(_) => true,
            Err(Errno::NOENT) => false,
            Err(errno) => panic!("{path}: {errno}"),
        }
    }
}

/// An attribute that shows `text`.
fn says(text: &'static str) -> impl Attribute {
    move |out: &mut Vec<u8>| out.write_all(text.as_bytes()).map_err(|_| Errno::IO)
}

/// Runs a test on a tree of its own.
fn with_world(test: impl FnOnce(World)) {
    test(World::new());
}
