//! Object stores as file systems: a driver on [OpenDAL](opendal), with bounded caches of names and data.
//!
//! The crate's README has the design, the promises and the limits.
//!
//! | module | contents |
//! |---|---|
//! | `location`, `options` | what is mounted, and how |
//! | `store`, `store_write` | calls of the store that read, and that write; their errors |
//! | `http_client`, `answer_bound` | the client of HTTP; the bound on each answer |
//! | `refusal` | why a store refuses a mount |
//! | `version` | the identity of an object's content |
//! | `names` | keys that become names |
//! | `tree` | nodes, attributes, the deadlines of names |
//! | `listings` | LISTs, each shared by all that need it |
//! | `walks` | LISTs of many directories at once, for a walk |
//! | `lookup` | lookups |
//! | `subdirs` | subdirectories whose names were evicted |
//! | `dir_handle` | open directories |
//! | `object_reader`, `data_budget` | open objects, read-ahead, and the bound on data |
//! | `disk_cache` | data on a disk, for later mounts |
//! | `upload` | a file that is being written |
//! | `writers`, `changes` | how it reaches the tree; changes of names |
//! | `changed` | this mount's changes, for LISTs that began before |
//! | `dying` | processes that were killed |
//! | `calls` | requests of the kernel: deadline, cancelling |
//! | `control` | `.uvfs` |
//! | `mounted_store` | the runtime, the mount, and their end |
//! | `object_fs` | the file system that fuse3 mounts |
#![deny(unsafe_code)]

mod answer_bound;
mod calls;
mod changed;
mod changes;
mod control;
mod data_budget;
mod dir_handle;
mod disk_cache;
mod dying;
mod http_client;
mod listings;
mod location;
mod lookup;
mod mounted_store;
mod names;
mod object_fs;
mod object_reader;
mod options;
mod refusal;
mod store;
mod store_write;
mod subdirs;
#[cfg(test)]
mod tests;
mod tree;
mod upload;
mod version;
mod walks;
mod writers;

pub use location::{Location, LocationError};
pub use mounted_store::{MountedStore, mount, mount_fs};
pub use object_fs::{ObjectFigures, ObjectFs, ObjectHandle};
pub use options::{DATA_DEFAULT, Flags, ObjectOptions};
pub use store::OpenError;
