//! Operations on inodes. A front end calls them once it has turned a path into a directory and a name, and path
//! operations end in them.
//!
//! Each takes the name lock, looks the name up, checks, asks the driver, and publishes. Publishing cannot fail,
//! because memory was reserved before the driver was asked. The order of checks is the kernel's, since errors are
//! compared with it. Order of locks: rename mutex of the superblock, name locks, one inode lock ([`inode_locks`]).
//! No lock of the cache is held while a driver runs. No operation here knows of paths.
//!
//! | file | contents |
//! |---|---|
//! | `lookup` | LOOKUP, readlink, statfs; the driver's answer about a name |
//! | `dotdot_and_mounts` | `..`, and going from a mount point to the mounted root |
//! | `getattr` | attributes, fetched again if they have expired |
//! | `ask_permission` | may the caller do this (decided in [`crate::permission`]); access |
//! | `create` | mknod, mkdir, symlink, link |
//! | `remove` | unlink, rmdir |
//! | `rename` | rename and exchange |
//! | `setattr` | owner, group, mode, times, size |
//! | `kill_privileges` | set-id bits go when data changes |
//! | `xattr` | extended attributes |
//! | `acl_checks` | access control lists in operations |
//! | `readdir` | listings |
//! | `open_read_write` | opening a file; reading and writing by handle |
//! | `file_io` | reading and writing an open file, whoever owns it |
//! | `driver_file` | the driver's side of an open file |
//! | `handle_table` | the table of handles for front ends |
//! | `inode_locks` | the inode lock |
//! | `control_dir` | the name `.uvfs` |
//! | `name_and_type` | is the name allowed, is it a directory |

pub(crate) mod acl_checks;
pub(crate) mod ask_permission;
pub(crate) mod control_dir;
pub(crate) mod create;
pub(crate) mod dotdot_and_mounts;
pub(crate) mod driver_file;
pub(crate) mod file_io;
pub(crate) mod getattr;
pub(crate) mod handle_table;
pub(crate) mod inode_locks;
pub(crate) mod kill_privileges;
pub(crate) mod lookup;
pub(crate) mod name_and_type;
pub(crate) mod open_read_write;
pub(crate) mod readdir;
pub(crate) mod remove;
pub(crate) mod rename;
pub(crate) mod setattr;
pub(crate) mod xattr;
