//! Changes behind the cache: stale entries, expiry, changed numbers, listeners.
//!
//! | file | contents |
//! |---|---|
//! | `stale` | changes made behind the cache; stale inodes |
//! | `expiry` | TTLs, deadlines, and the epoch of watched superblocks |
//! | `late_attributes` | attributes in an answer that are older than a change |
//! | `listeners` | front ends that are notified of changes |

pub(crate) mod expiry;
pub(crate) mod late_attributes;
pub(crate) mod listeners;
pub(crate) mod stale;
