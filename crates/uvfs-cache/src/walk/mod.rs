//! Walks without references: one step, the hit, directories by path, link targets.
//!
//! | file | contents |
//! |---|---|
//! | `fast_hit` | a hit in one piece: the usual case |
//! | `lock_free_lookup` | the lock-free lookup of one name, in all cases |
//! | `position` | a directory and its walk sequence |
//! | `prefix_cache` | directory parts of paths, found in one step |
//! | `prefix_change_counts` | counts of changes that refute prefix entries |
//! | `prefix_passed_links` | symbolic links on the way of a prefix entry |
//! | `cached_link_targets` | link targets, read without a reference |

pub(crate) mod cached_link_targets;
pub(crate) mod fast_hit;
pub(crate) mod lock_free_lookup;
pub(crate) mod position;
pub(crate) mod prefix_cache;
pub(crate) mod prefix_change_counts;
pub(crate) mod prefix_passed_links;
