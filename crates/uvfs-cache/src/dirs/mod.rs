//! Directories: children, revision and completeness, entries in order, listings.

pub(crate) mod children;
pub(crate) mod cookies;
pub(crate) mod listing;
