//! Directories: children, revision and completeness, entries in order, listings.
//!
//! | file | contents |
//! |---|---|
//! | `dir_state` | number of children, *dying*, revision, *complete* |
//! | `cookies` | entries in the order of their readdir cookies |
//! | `listing` | listings from the cache; listings that make a directory complete |

pub(crate) mod cookies;
pub(crate) mod dir_state;
pub(crate) mod listing;
