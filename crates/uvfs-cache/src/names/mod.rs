//! Names: dentries, the changes that are published under them, and invalidation.
//!
//! | file | contents |
//! |---|---|
//! | `dentry` | the fields of a dentry |
//! | `dentry_slots` | the arena of all dentries, and the name table |
//! | `dentry_alloc` | allocating and freeing a dentry within the limit |
//! | `reservation` | memory that a change needs, set aside before the driver is asked |
//! | `publish` | create, link, remove: a change becomes visible |
//! | `rename` | rename and exchange |
//! | `invalidate` | dropping names that may be wrong; the end of a superblock |
//! | `path_of_inode` | from an inode to its name and path |
//! | `used_bytes` | whether a name was used since the last eviction round |

pub(crate) mod dentry;
pub(crate) mod dentry_alloc;
pub(crate) mod dentry_slots;
pub(crate) mod invalidate;
pub(crate) mod path_of_inode;
pub(crate) mod publish;
pub(crate) mod rename;
pub(crate) mod reservation;
pub(crate) mod used_bytes;
