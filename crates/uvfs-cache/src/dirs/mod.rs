//! Directories: children, revision and completeness, entries in order, listings.

pub(crate) mod index;
pub(crate) mod listing;
pub(crate) mod state;
