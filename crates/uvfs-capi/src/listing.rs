//! Listings: the back end's answers to a question about all names of a directory.

use std::ffi::c_int;
use std::mem::MaybeUninit;

use uvfs_cache::{Errno, NodeListing};

use crate::boundary::{call, given};
use crate::cache::uvfs_superblock;
use crate::values::{Data, cache_error, ttl, uvfs_answer, uvfs_destroy, uvfs_entry, uvfs_name};

/// A listing that has begun.
pub struct uvfs_listing {
    listing: NodeListing<Data>,
    destroy: uvfs_destroy,
}

/// Call this before the back end is asked for the names in `dir`.
#[unsafe(no_mangle)]
pub extern "C" fn uvfs_listing_begin(
    superblock: Option<&uvfs_superblock>,
    dir: u64,
    listing: Option<&mut MaybeUninit<Option<Box<uvfs_listing>>>>,
) -> c_int {
    call(|| {
        let (sb, out) = (given(superblock)?, given(listing)?);
        let listing = sb.dir(dir)?.begin_listing();
        out.write(Some(Box::new(uvfs_listing { listing, destroy: sb.destroy })));
        Ok(0)
    })
}

/// The directory has this name, and it leads to this inode. Cached unless a name in the directory changed since the
/// listing began. The client holds the node `lookups` times more. `entry` may be NULL. Waits for the holder of
/// the name's lock, so the caller has none.
#[unsafe(no_mangle)]
pub extern "C" fn uvfs_listing_found(
    listing: Option<&uvfs_listing>,
    name: uvfs_name,
    answer: Option<&uvfs_answer>,
    lookups: u64,
    entry: Option<&mut MaybeUninit<uvfs_entry>>,
) -> c_int {
    call(|| {
        let (listing, name) = (given(listing)?, name.bytes());
        if name == Err(Errno::INVAL) {
            return Err(Errno::INVAL);
        }
        // Taken before any other error.
        let (answer, name) = (given(answer)?.checked(listing.destroy)?, name?);
        let node = listing.listing.blocking_found(name, answer).map_err(cache_error)?;
        uvfs_entry::give(&node, lookups, entry);
        Ok(0)
    })
}

/// Ends a listing of which every name was reported. Returns 1 if nothing changed since it began: the directory is
/// complete then, so a miss there is a certain absence, for `listing_ttl` milliseconds. Returns 0 otherwise.
#[unsafe(no_mangle)]
pub extern "C" fn uvfs_listing_complete(listing: Option<Box<uvfs_listing>>, listing_ttl: u64) -> c_int {
    call(|| Ok(given(listing)?.listing.complete(ttl(listing_ttl)).into()))
}

/// Ends a listing that was not read to its end.
#[unsafe(no_mangle)]
pub extern "C" fn uvfs_listing_drop(listing: Option<Box<uvfs_listing>>) {
    call(|| {
        drop(listing);
        Ok(0)
    });
}
