//! The node table of a [`fuser`] server, on the cache of [`uvfs_cache`].
//!
//! Every fuser server needs a table of nodes: numbers, lookup counts, names, paths. [`Nodes`] takes its place, and
//! keeps it within a memory limit. The server asks its back end in closures, and only when the table does not know:
//!
//! ```
//! use std::collections::BTreeMap;
//! use std::ffi::OsStr;
//! use fuser::{Errno, FileAttr, Filesystem, INodeNo, ReplyAttr, ReplyEntry, Request};
//! use uvfs_fuser::{Nodes, NodesOptions};
//!
//! // The server's data of each node: here, the object's name in the store.
//! struct Server {
//!     store: BTreeMap<String, FileAttr>,
//!     nodes: Nodes<String>,
//! }
//!
//! impl Server {
//!     fn new(store: BTreeMap<String, FileAttr>) -> Result<Self, Errno> {
//!         let options = NodesOptions { limit: 64 << 20, ..NodesOptions::default() };
//!         let root = *store.get("/").ok_or(Errno::ENOENT)?;
//!         Ok(Self { store, nodes: Nodes::new(options, |_| Ok((root, "/".into())))? })
//!     }
//!
//!     fn ask(&self, object: String) -> Result<(FileAttr, String), Errno> {
//!         let attr = *self.store.get(&object).ok_or(Errno::ENOENT)?;
//!         Ok((attr, object))
//!     }
//! }
//!
//! impl Filesystem for Server {
//!     fn lookup(&self, _: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
//!         self.nodes.lookup(parent, name, reply, |dir| {
//!             self.ask(format!("{}{}", dir.data(), name.to_string_lossy()))
//!         });
//!     }
//!
//!     fn forget(&self, _: &Request, ino: INodeNo, nlookup: u64) {
//!         self.nodes.forget(ino, nlookup);
//!     }
//!
//!     fn getattr(&self, _: &Request, ino: INodeNo, _: Option<fuser::FileHandle>, reply: ReplyAttr) {
//!         self.nodes.getattr(ino, reply, |node| Ok(self.ask(node.data().clone())?.0));
//!     }
//! }
//! ```
//!
//! After the mount, [`Nodes::keep_limit`] takes the session's notifier. A session with a limit has two threads or more.
//! [`examples/passthrough.rs`](https://github.com/uvfs/uvfs/blob/main/crates/uvfs-fuser/examples/passthrough.rs) is a
//! whole server.
//!
//! | module | contents |
//! |---|---|
//! | `nodes` | the table: numbers, attributes |
//! | `lookup` | lookups, and questions that are answered later |
//! | `entry` | a counted lookup, and its reply |
//! | `change` | create, link, remove, rename |
//! | `paths` | paths, and calls that use them |
//! | `dirs` | listings |
//! | `limit` | the kernel as a holder of nodes |
//! | `handles` | open files by number |
//! | `attr` | attributes |
#![deny(unsafe_code)]

mod attr;
mod change;
mod dirs;
mod entry;
mod handles;
mod limit;
mod lookup;
mod nodes;
mod paths;

pub use attr::host_attr;
pub use dirs::{DirEntries, DirReader};
pub use entry::NodeEntry;
pub use handles::FileHandles;
pub use lookup::{LookedUp, NameQuestion};
pub use nodes::{Nodes, NodesOptions};

#[doc(no_inline)]
pub use uvfs_cache::{Counters, NodeKey, NodeKeys, OwnedNode, Ttl};
