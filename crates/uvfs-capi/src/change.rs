//! Changes of names by the server's own clients: name locks and the rename lock.

use std::ffi::c_int;
use std::mem::MaybeUninit;

use uvfs_cache::{Errno, NameLock, NodeKnown, OwnedRenameLock, Room};

use crate::boundary::{call, given};
use crate::cache::uvfs_superblock;
use crate::lookup::{UVFS_HIT, UVFS_MISS, UVFS_NEGATIVE};
use crate::values::{Data, cache_error, ttl, uvfs_answer, uvfs_destroy, uvfs_entry, uvfs_name};

/// The exclusive right to change one name. Order: the rename lock, then name locks, two of them by
/// `uvfs_lock_names` only.
pub struct uvfs_lock {
    lock: NameLock<Data>,
    destroy: uvfs_destroy,
    /// The superblock's serial number.
    superblock: u64,
}

/// A superblock's rename lock: hold it to move a directory to another parent.
pub struct uvfs_rename_lock(OwnedRenameLock<Data>);

/// For `uvfs_reserve`: a name only (link, rename).
pub const UVFS_ROOM_NAME: c_int = 0;
/// A name and an inode.
pub const UVFS_ROOM_NODE: c_int = 1;
/// A name and a directory.
pub const UVFS_ROOM_DIR: c_int = 2;

/// Lock a name of the directory `dir`. Waits for others that ask about the name or change it.
#[unsafe(no_mangle)]
pub extern "C" fn uvfs_lock_name(
    superblock: Option<&uvfs_superblock>,
    dir: u64,
    name: uvfs_name,
    lock: Option<&mut MaybeUninit<Option<Box<uvfs_lock>>>>,
) -> c_int {
    call(|| {
        let (sb, out) = (given(superblock)?, given(lock)?);
        let got = sb.dir(dir)?.blocking_lock_name(name.bytes()?);
        out.write(Some(sb.lock(got)));
        Ok(0)
    })
}

/// Lock two names, in the one order that all callers use; for a rename. They may be the same.
#[unsafe(no_mangle)]
pub extern "C" fn uvfs_lock_names(
    superblock: Option<&uvfs_superblock>,
    from_dir: u64,
    from_name: uvfs_name,
    to_dir: u64,
    to_name: uvfs_name,
    from: Option<&mut MaybeUninit<Option<Box<uvfs_lock>>>>,
    to: Option<&mut MaybeUninit<Option<Box<uvfs_lock>>>>,
) -> c_int {
    call(|| {
        let (sb, from, to) = (given(superblock)?, given(from)?, given(to)?);
        let (from_dir, to_dir) = (sb.dir(from_dir)?, sb.dir(to_dir)?);
        let (from_place, to_place) = ((&from_dir, from_name.bytes()?), (&to_dir, to_name.bytes()?));
        let (one, other) = sb.sb.cache().blocking_lock_names(from_place, to_place);
        from.write(Some(sb.lock(one)));
        to.write(Some(sb.lock(other)));
        Ok(0)
    })
}

impl uvfs_superblock {
    fn lock(&self, lock: NameLock<Data>) -> Box<uvfs_lock> {
        Box::new(uvfs_lock { lock, destroy: self.destroy, superblock: self.serial })
    }
}

/// Unlock a name without a change, and give back what was reserved.
#[unsafe(no_mangle)]
pub extern "C" fn uvfs_unlock(lock: Option<Box<uvfs_lock>>) {
    call(|| {
        drop(lock);
        Ok(0)
    });
}

/// The cache's knowledge of a locked name: UVFS_HIT (with `entry`), UVFS_NEGATIVE or UVFS_MISS. On a hit the client
/// holds the node `lookups` times more. `entry` may be NULL.
#[unsafe(no_mangle)]
pub extern "C" fn uvfs_locked_known(
    lock: Option<&mut uvfs_lock>,
    lookups: u64,
    entry: Option<&mut MaybeUninit<uvfs_entry>>,
) -> c_int {
    call(|| {
        Ok(match given(lock)?.lock.known() {
            NodeKnown::Hit(node) => {
                uvfs_entry::give(&node, lookups, entry);
                UVFS_HIT
            }
            NodeKnown::Negative => UVFS_NEGATIVE,
            NodeKnown::Unknown => UVFS_MISS,
        })
    })
}

/// `uvfs_ticket_found` for a caller that keeps the lock.
#[unsafe(no_mangle)]
pub extern "C" fn uvfs_locked_found(
    lock: Option<&mut uvfs_lock>,
    answer: Option<&uvfs_answer>,
    lookups: u64,
    entry: Option<&mut MaybeUninit<uvfs_entry>>,
) -> c_int {
    call(|| {
        let lock = given(lock)?;
        let answer = given(answer)?.checked(lock.destroy)?;
        let node = lock.lock.found(answer).map_err(cache_error)?;
        uvfs_entry::give(&node, lookups, entry);
        Ok(0)
    })
}

/// Reserve memory (UVFS_ROOM_NAME, _NODE or _DIR) before the back end is asked for the change. The change cannot
/// fail then. -ENOENT: the directory is being removed.
#[unsafe(no_mangle)]
pub extern "C" fn uvfs_reserve(lock: Option<&mut uvfs_lock>, room: c_int) -> c_int {
    call(|| {
        let room = match room {
            UVFS_ROOM_NAME => Room::Name,
            UVFS_ROOM_NODE => Room::Node,
            UVFS_ROOM_DIR => Room::Dir,
            _ => return Err(Errno::INVAL),
        };
        given(lock)?.lock.reserve(room).map_err(cache_error)?;
        Ok(0)
    })
}

/// Before the back end removes or replaces the directory `node`, which the locked name leads to: it gets no entries
/// from now on. -ENOTEMPTY: it has some. -EBUSY: it is the root. Unlocking allows entries again. Nothing for other
/// types.
#[unsafe(no_mangle)]
pub extern "C" fn uvfs_begin_removal(
    superblock: Option<&uvfs_superblock>,
    lock: Option<&mut uvfs_lock>,
    node: u64,
) -> c_int {
    call(|| {
        let (sb, lock) = (given(superblock)?, given(lock)?);
        let node = sb.node(node)?;
        if lock.superblock != sb.serial {
            return Err(Errno::XDEV);
        }
        if node.is_root() {
            return Err(Errno::BUSY);
        }
        lock.lock.begin_removal(&node).map_err(|_| Errno::NOTEMPTY)?;
        Ok(0)
    })
}

/// Ends a lock: the back end has made a new inode under this name. The client holds it `lookups` times more. `entry`
/// may be NULL.
#[unsafe(no_mangle)]
pub extern "C" fn uvfs_create(
    lock: Option<Box<uvfs_lock>>,
    answer: Option<&uvfs_answer>,
    lookups: u64,
    entry: Option<&mut MaybeUninit<uvfs_entry>>,
) -> c_int {
    call(|| {
        let lock = given(lock)?;
        let answer = match given(answer).and_then(|answer| answer.checked(lock.destroy)) {
            Ok(answer) => answer,
            Err(errno) => {
                // The caller still has it.
                let _ = Box::into_raw(lock);
                return Err(errno);
            }
        };
        let node = lock.lock.create(answer).map_err(cache_error)?;
        uvfs_entry::give(&node, lookups, entry);
        Ok(0)
    })
}

/// Ends a lock: the back end has given this name to `node` too. -EXDEV: the node is of another superblock. -EPERM: it
/// is a directory.
#[unsafe(no_mangle)]
pub extern "C" fn uvfs_link(
    superblock: Option<&uvfs_superblock>,
    lock: Option<Box<uvfs_lock>>,
    node: u64,
    name_ttl: u64,
) -> c_int {
    call(|| {
        let lock = given(lock)?;
        let Some(sb) = superblock else {
            // The caller still has it.
            let _ = Box::into_raw(lock);
            return Err(Errno::INVAL);
        };
        let node = sb.node(node)?;
        if lock.superblock != sb.serial {
            return Err(Errno::XDEV);
        }
        if node.attr().is_dir() {
            return Err(Errno::PERM);
        }
        lock.lock.link(&node, ttl(name_ttl)).map_err(cache_error)?;
        Ok(0)
    })
}

/// Ends a lock: the back end has removed the name. For a directory, call `uvfs_begin_removal` before.
#[unsafe(no_mangle)]
pub extern "C" fn uvfs_remove(lock: Option<Box<uvfs_lock>>) -> c_int {
    call(|| {
        given(lock)?.lock.remove();
        Ok(0)
    })
}

/// Ends two locks: the back end has given the name of `from` to `to`, and replaced what `to` led to. If that was a
/// directory, call `uvfs_begin_removal` on `to` before. -EXDEV: they are of two superblocks.
#[unsafe(no_mangle)]
pub extern "C" fn uvfs_rename(from: Option<Box<uvfs_lock>>, to: Option<Box<uvfs_lock>>) -> c_int {
    call(|| {
        let (from, to) = match (from, to) {
            (Some(from), Some(to)) => (from, to),
            (from, to) => {
                // The caller still has it.
                let _ = (from.map(Box::into_raw), to.map(Box::into_raw));
                return Err(Errno::INVAL);
            }
        };
        if from.superblock != to.superblock {
            return Err(Errno::XDEV);
        }
        let cache = from.lock.dir().cache();
        cache.rename(from.lock, to.lock).map_err(cache_error)?;
        Ok(0)
    })
}

/// Take the rename lock. Waits for others that have it.
#[unsafe(no_mangle)]
pub extern "C" fn uvfs_lock_renames(
    superblock: Option<&uvfs_superblock>,
    lock: Option<&mut MaybeUninit<Option<Box<uvfs_rename_lock>>>>,
) -> c_int {
    call(|| {
        let (sb, out) = (given(superblock)?, given(lock)?);
        out.write(Some(Box::new(uvfs_rename_lock(sb.sb.blocking_lock_renames()))));
        Ok(0)
    })
}

/// Give the rename lock back.
#[unsafe(no_mangle)]
pub extern "C" fn uvfs_unlock_renames(lock: Option<Box<uvfs_rename_lock>>) {
    call(|| {
        drop(lock.map(|lock| lock.0));
        Ok(0)
    });
}

/// Whether `node` is `ancestor` or lies below it: 1 or 0. Ask this with the rename lock, before a directory moves.
#[unsafe(no_mangle)]
pub extern "C" fn uvfs_is_below(superblock: Option<&uvfs_superblock>, node: u64, ancestor: u64) -> c_int {
    call(|| {
        let sb = given(superblock)?;
        Ok(sb.node(node)?.is_below(&sb.node(ancestor)?).into())
    })
}
