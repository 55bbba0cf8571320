//! Inodes: attributes, the two halves, counted references, inodes by number.
//!
//! | file | contents |
//! |---|---|
//! | `inode` | the fields of an inode: its published and private half |
//! | `attr` | attributes as callers see them |
//! | `inode_ref` | a counted reference, and changes of attributes |
//! | `owned_id` | a reference that does not borrow the cache |
//! | `refcount` | counting references, in the inode or per thread |
//! | `lifecycle` | making an inode, and ending it after the last reference |
//! | `by_number` | inodes by number (`iget`); all inodes of a superblock |
//! | `nlookup` | the lookup count of a FUSE kernel; where a FORGET ends |
//! | `inode_slots` | the arena of all inodes |
//! | `link_target_slots` | memory of cached link targets |

pub mod attr;
pub(crate) mod by_number;
pub(crate) mod inode;
pub(crate) mod inode_ref;
pub(crate) mod inode_slots;
pub(crate) mod lifecycle;
pub(crate) mod link_target_slots;
pub(crate) mod nlookup;
pub(crate) mod owned_id;
pub(crate) mod refcount;
