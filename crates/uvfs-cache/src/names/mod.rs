//! Names: dentries, the changes that are published under them, and invalidation.

pub(crate) mod change;
pub(crate) mod dentry;
pub(crate) mod invalidate;
pub(crate) mod rename;
pub(crate) mod reverse;
pub(crate) mod slots;
pub(crate) mod table;
pub(crate) mod used;
