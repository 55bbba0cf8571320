//! The inode store and the handle store of a server on `fuse-backend-rs` or its relatives, on the cache of
//! [`uvfs_cache`].
//!
//! Such a server (`virtiofsd`, `nydus`, a passthrough file system) has a map from numbers to inodes, one from keys to
//! numbers, and one of open files, each behind one lock, and no limit. [`InodeStore`] and [`HandleStore`] take their
//! place. Names are cached too, so a second lookup does not ask the back end, and an inode's path is known. Nothing
//! here depends on `fuse-backend-rs`: its `Inode` and `Handle` are `u64`, its attributes `libc::stat64`, its errors
//! [`std::io::Error`].
//!
//! ```
//! use std::fs::{self, Metadata};
//! use std::os::unix::fs::MetadataExt;
//! use std::path::PathBuf;
//! use uvfs_fuse_backend::{Attr, InodeAnswer, InodeKey, InodeStore, ROOT, StoreOptions};
//!
//! // The server's data of each inode: here, its path.
//! fn ask(path: PathBuf) -> std::io::Result<InodeAnswer<PathBuf>> {
//!     let meta = fs::symlink_metadata(&path)?;
//!     let attr = Attr { mode: meta.mode(), size: meta.size(), ..Attr::default() };
//!     Ok(InodeAnswer { key: InodeKey::of_inode(meta.dev(), meta.ino(), 0), attr, data: path })
//! }
//!
//! fn main() -> std::io::Result<()> {
//!     let inodes = InodeStore::new(StoreOptions::default(), ask("/".into())?)?;
//!     // A LOOKUP: the reply has the number, and the client holds it until FORGET.
//!     let entry = inodes.lookup(ROOT, b"dev", |dir| ask(dir.join("dev")))?;
//!     let ino = entry.give();
//!     assert_eq!(inodes.path_of(ino)?.to_str(), Some("dev"));
//!     assert_eq!(**inodes.get(ino)?, *PathBuf::from("/dev"));
//!     // Again: the back end is not asked.
//!     let again = inodes.lookup(ROOT, b"dev", |_| unreachable!())?;
//!     assert_eq!(again.give(), ino);
//!     inodes.forget(ino, 2);
//!     Ok(())
//! }
//! ```
//!
//! | module | contents |
//! |---|---|
//! | `store` | numbers, keys, attributes, paths, forget |
//! | `key` | keys: a file handle, or device, inode number and mount |
//! | `inode` | an inode, held; and with a lookup counted |
//! | `lookup` | lookups by name |
//! | `change` | remove, rename, invalidate |
//! | `limit` | the memory limit: the client as a holder of inodes |
//! | `handles` | open files by number |
//! | `attr` | attributes |
#![deny(unsafe_code)]

mod attr;
mod change;
mod handles;
mod inode;
mod key;
mod limit;
mod lookup;
mod store;

pub use attr::{attr_of, write_attr};
pub use handles::HandleStore;
pub use inode::{CountedInode, StoredInode};
pub use key::InodeKey;
pub use limit::InodeHolder;
pub use store::{InodeAnswer, InodeStore, ROOT, StoreOptions};

#[doc(no_inline)]
pub use uvfs_cache::{Asked, Attr, Counters, Time, Ttl};
