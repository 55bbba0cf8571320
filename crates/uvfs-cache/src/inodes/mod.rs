//! Inodes: attributes, the two halves, counted references, inodes by number.

pub mod attr;
pub(crate) mod by_number;
pub(crate) mod halves;
pub(crate) mod inode_ref;
pub(crate) mod lifecycle;
pub(crate) mod nlookup;
pub(crate) mod owned;
pub(crate) mod references;
pub(crate) mod symlink_targets;
pub(crate) mod table;
