//! A driver's answer in the cache's form, and the cache's errors as the caller sees them.

use uvfs_cache::CacheError;
use uvfs_cache::machinery::Fresh;

use crate::types::{Errno, Features, NewInode, Ttl};

/// The errno for an error of the cache.
pub(crate) fn cache_errno(error: CacheError, features: Features) -> Errno {
    match error {
        // If the file system is resident, the cache's limit is the device's size.
        CacheError::NoMemory if features.resident => Errno::NOSPC,
        error => error.into(),
    }
}

/// A driver's inode in the cache's form.
pub(crate) fn fresh(features: Features, new: &NewInode) -> Fresh {
    Fresh { attr: new.attr, private: new.private, ttl: believed_ttl(features, new.ttl) }
}

/// The TTL of a driver's answer in the cache.
pub(crate) fn believed_ttl(features: Features, ttl: Ttl) -> Ttl {
    if features.resident {
        Ttl::Forever
    } else if features.lookup_depends_on_cred {
        // One caller's answer must not serve the next caller.
        Ttl::ZERO
    } else {
        ttl
    }
}
