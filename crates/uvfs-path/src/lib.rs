//! Asynchronous path file systems on [`fuse3`], with a bounded cache of nodes on the cache of [`uvfs_cache`].
//!
//! A back end that implements [`fuse3::path::PathFilesystem`] is mounted by one line. Where
//! `fuse3::path::Session::new(options).mount(fs, dir)` was:
//!
//! ```no_run
//! # async fn mount(fs: impl fuse3::path::PathFilesystem + Send + Sync + 'static) -> std::io::Result<()> {
//! use fuse3::{MountOptions, raw::Session};
//! use uvfs_path::{PathFs, PathOptions};
//!
//! let fs = PathFs::new(fs, PathOptions { limit: 64 << 20, ..PathOptions::default() })?;
//! Session::new(MountOptions::default()).mount(fs, "/mnt").await?.await
//! # }
//! ```
//!
//! `fuse3`'s path module keeps one lock while the back end works, so a lookup of 10 ms stops every other call. Here
//! calls wait only for calls of the same name, and for renames of a directory above them. The table answers lookups
//! and attributes for as long as their TTLs say, and absences too.
//!
//! | module | contents |
//! |---|---|
//! | `path_fs` | the file system that fuse3 mounts |
//! | `table` | node ids, attributes, paths |
//! | `lookup` | lookups |
//! | `change` | create, link, remove, rename |
//! | `dirs` | listings |
//! | `handle_for_getattr` | handles of open files: a getattr of a removed file asks by one |
//! | `paths_in_use` | paths that the back end is using, and changes that take them away |
//! | `limit` | the kernel as a holder of nodes |
//! | `patience` | waiting for memory |
//! | `attr`, `options` | attributes, options |
#![deny(unsafe_code)]

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;

mod attr;
mod change;
mod dirs;
mod handle_for_getattr;
mod limit;
mod lookup;
mod options;
mod path_fs;
mod paths_in_use;
mod patience;
mod table;

pub use options::PathOptions;
pub use path_fs::{PathFs, PathHandle};

// For this project's own crates: a server on fuse3 that keeps a limit.
#[doc(hidden)]
pub mod machinery {
    //! Waiting for memory, and the kernel as a holder of nodes.
    pub use crate::limit::{KernelHolder, fuse_descriptors, session_device};
    pub use crate::patience::{Patience, Pauses};
}

#[doc(no_inline)]
pub use uvfs_cache::{Counters, Ttl};
