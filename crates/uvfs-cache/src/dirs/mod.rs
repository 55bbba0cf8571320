//! Directories: children, revision and completeness, entries in order, listings.
//!
//! | file | contents |
//! |---|---|
//! | `child_count` | number of children, *dying*: rmdir against create |
//! | `dir_state` | revision, *complete*; one directory's state together |
//! | `cookies` | entries in the order of their readdir cookies |
//! | `listing` | listings from the cache; listings that make a directory complete |

pub(crate) mod child_count;
pub(crate) mod cookies;
pub(crate) mod dir_state;
pub(crate) mod listing;
