//! A program's own state as a tree of files, as sysfs and cgroupfs show the kernel's.
//!
//! The program makes a [`Kernfs`], adds directories, attributes and symbolic links to its [root](Kernfs::root), and
//! mounts a [view](Kernfs::view) of it. An attribute is a closure or an [`Attribute`]; it is called when its file is
//! read or written. [`Node::remove`] waits for running calls, and no call begins afterwards.
//!
//! ```
//! use std::io::Write;
//! use uvfs::{Cred, OpenFlags, Vfs};
//! use uvfs_drivers::kernfs::{Kernfs, Meta, KernfsOptions};
//!
//! let tree = Kernfs::new(KernfsOptions::default())?;
//! let jobs = tree.root().add_dir("jobs", Meta::new(0o755))?;
//! jobs.add_attr("running", Meta::new(0o444), |out: &mut Vec<u8>| { let _ = writeln!(out, "{}", 7); Ok(()) })?;
//!
//! let vfs = Vfs::new(Default::default(), tree.view(None))?;
//! let file = vfs.context(Cred::root()).open(b"/jobs/running", OpenFlags::READ, 0)?;
//! let mut text = [0; 16];
//! let len = file.read_at(&mut text, 0)?;
//! assert_eq!(&text[..len], b"7\n");
//! # Ok::<(), uvfs::Errno>(())
//! ```
//!
//! | file | contents |
//! |---|---|
//! | `options`, `attribute`, `node_handle` | the program's interface |
//! | `tree`, `tree_lock`, `lock_free`, `poll_waiters` | nodes; the tree lock; the part of a node without a lock |
//! | `tree_operations`, `remove`, `link_text` | changes |
//! | `mounted_views`, `update_caches` | the caches of a view; updating them |
//! | `view_driver`, `open_files`, `read_write`, `poll` | the driver |
//!
//! Lock order: an open file's state; an active reference; an inode's lock in a cache; the tree lock. A thread that
//! holds one may wait only for later ones.

mod attribute;
mod link_text;
mod lock_free;
mod mounted_views;
mod node_handle;
mod open_files;
mod options;
mod poll;
mod poll_waiters;
mod read_write;
mod remove;
mod tree;
mod tree_lock;
mod tree_operations;
mod update_caches;
mod view_driver;

use std::sync::Arc;

use uvfs::driver::Driver;
use uvfs::types::Result;

pub use attribute::{Attribute, Call, Kind, ReadWrite, STORE_MAX, read_write};
pub use node_handle::{Node, Target, WeakNode};
pub use options::{KernfsOptions, Meta, Tag};

use tree_operations::Engine;
use view_driver::View;

/// A tree. Cheap to clone. It lives as long as a handle, a node's handle or a mounted view of it.
#[derive(Clone)]
pub struct Kernfs {
    engine: Arc<Engine>,
}

impl std::fmt::Debug for Kernfs {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Kernfs").field("options", &self.engine.options).finish_non_exhaustive()
    }
}

impl Kernfs {
    /// A tree with an empty root directory.
    ///
    /// # Errors
    /// ENOMEM.
    pub fn new(options: KernfsOptions) -> Result<Self> {
        Ok(Self { engine: Engine::new(options)? })
    }

    /// The root directory.
    pub fn root(&self) -> Node {
        self.engine.handle(&self.engine.root_inner)
    }

    /// The options that it was made with.
    pub fn options(&self) -> KernfsOptions {
        self.engine.options
    }

    /// A driver that shows the tree, for mounting. In namespaced directories it shows the children with this tag.
    /// Several views may be mounted, and one view several times.
    pub fn view(&self, tag: Option<Tag>) -> Arc<dyn Driver> {
        View::new(Arc::clone(&self.engine), tag)
    }
}
