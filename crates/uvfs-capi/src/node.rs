//! Nodes by id: attributes, lookup counts, data, holds, names and paths.

use std::ffi::{c_int, c_void};
use std::mem::MaybeUninit;

use uvfs_cache::{Asked, Attr, Errno, OwnedNode};

use crate::boundary::{call, given};
use crate::cache::uvfs_superblock;
use crate::values::{
    Data, UVFS_ROOT, cache_error, ttl, uvfs_answer, uvfs_attr, uvfs_buffer, uvfs_entry, uvfs_name,
};

/// Fields of `uvfs_update`.
pub const UVFS_SIZE: u32 = 1;
/// Permission bits; the type stays.
pub const UVFS_MODE: u32 = 2;
/// Hard links.
pub const UVFS_NLINK: u32 = 4;
/// Owner.
pub const UVFS_UID: u32 = 8;
/// Group.
pub const UVFS_GID: u32 = 16;
/// Units of 512 bytes.
pub const UVFS_BLOCKS: u32 = 32;
/// Last access.
pub const UVFS_ATIME: u32 = 64;
/// Last change of the content.
pub const UVFS_MTIME: u32 = 128;
/// Last change of the inode.
pub const UVFS_CTIME: u32 = 256;

/// A reference to a node: it and its data stay until `uvfs_put`.
pub struct uvfs_hold(OwnedNode<Data>);

/// The cached attributes of a node. Returns 1 if they are trusted. Returns 0 if they have expired: then call
/// `uvfs_revision`, ask the back end, and call `uvfs_refresh`.
#[unsafe(no_mangle)]
pub extern "C" fn uvfs_getattr(
    superblock: Option<&uvfs_superblock>,
    node: u64,
    attr: Option<&mut MaybeUninit<uvfs_attr>>,
) -> c_int {
    call(|| {
        let (sb, out) = (given(superblock)?, given(attr)?);
        // Without any reference, mostly.
        if let Some(attr) = sb.sb.trusted_attr(sb.id(node)) {
            out.write(attr.into());
            return Ok(1);
        }
        let node = sb.borrow(node)?;
        let trusted = node.trusted_attr();
        out.write(trusted.unwrap_or_else(|| node.attr()).into());
        Ok(trusted.is_some().into())
    })
}

/// The revision of a node's attributes, to be read before the back end is asked for them.
#[unsafe(no_mangle)]
pub extern "C" fn uvfs_revision(
    superblock: Option<&uvfs_superblock>,
    node: u64,
    revision: Option<&mut MaybeUninit<u64>>,
) -> c_int {
    call(|| {
        let out = given(revision)?;
        out.write(given(superblock)?.node(node)?.revision());
        Ok(0)
    })
}

/// The back end's attributes, asked for after `uvfs_revision`, trusted for `attr_ttl` milliseconds. Returns 1 if they
/// are kept. Returns 0 if the attributes changed meanwhile. -EINVAL: number or type are of another inode.
#[unsafe(no_mangle)]
pub extern "C" fn uvfs_refresh(
    superblock: Option<&uvfs_superblock>,
    node: u64,
    revision: u64,
    attr: Option<&uvfs_attr>,
    attr_ttl: u64,
) -> c_int {
    call(|| {
        let (node, attr) = (given(superblock)?.node(node)?, given(attr)?.checked()?);
        let cached = node.attr();
        if (attr.ino, attr.fmt()) != (cached.ino, cached.fmt()) {
            return Err(Errno::INVAL);
        }
        Ok(node.refresh(revision, &attr, ttl(attr_ttl)).into())
    })
}

/// Change those attributes that `fields` names (UVFS_SIZE and so on) in one step, after the back end has done so.
/// Answers that are on their way are late from then on.
#[unsafe(no_mangle)]
pub extern "C" fn uvfs_update(
    superblock: Option<&uvfs_superblock>,
    node: u64,
    attr: Option<&uvfs_attr>,
    fields: u32,
) -> c_int {
    call(|| {
        let (node, new) = (given(superblock)?.node(node)?, given(attr)?);
        node.update(|attr| change(attr, new, fields));
        Ok(0)
    })
}

fn change(attr: &mut Attr, new: &uvfs_attr, fields: u32) {
    const TYPE: u32 = uvfs_cache::attr::mode::S_IFMT;
    let has = |field| fields & field != 0;
    if has(UVFS_SIZE) {
        attr.size = new.size;
    }
    if has(UVFS_MODE) {
        attr.mode = attr.mode & TYPE | new.mode & !TYPE & 0xffff;
    }
    if has(UVFS_NLINK) {
        attr.nlink = new.nlink;
    }
    if has(UVFS_UID) {
        attr.uid = new.uid;
    }
    if has(UVFS_GID) {
        attr.gid = new.gid;
    }
    if has(UVFS_BLOCKS) {
        attr.blocks = new.blocks;
    }
    if has(UVFS_ATIME) {
        attr.atime = new.atime.into();
    }
    if has(UVFS_MTIME) {
        attr.mtime = new.mtime.into();
    }
    if has(UVFS_CTIME) {
        attr.ctime = new.ctime.into();
    }
}

/// The client looked the node up `lookups` times more.
#[unsafe(no_mangle)]
pub extern "C" fn uvfs_add_lookups(superblock: Option<&uvfs_superblock>, node: u64, lookups: u64) -> c_int {
    call(|| {
        given(superblock)?.borrow(node)?.add_lookups(lookups);
        Ok(0)
    })
}

/// The client forgets `lookups` lookups of a node. Unknown ids are ignored, but not those of another superblock:
/// -EXDEV.
#[unsafe(no_mangle)]
pub extern "C" fn uvfs_forget(superblock: Option<&uvfs_superblock>, node: u64, lookups: u64) -> c_int {
    call(|| {
        let sb = given(superblock)?;
        match sb.borrow(node) {
            Ok(found) => drop(found),
            Err(Errno::STALE) => return Ok(0),
            Err(errno) => return Err(errno),
        }
        sb.sb.forget_lookups(sb.id(node), lookups);
        Ok(0)
    })
}

/// The server's data of a node. It stays while the client has lookups of the node, or a hold; of the root, while
/// the superblock is there.
#[unsafe(no_mangle)]
pub extern "C" fn uvfs_data(
    superblock: Option<&uvfs_superblock>,
    node: u64,
    data: Option<&mut MaybeUninit<*mut c_void>>,
) -> c_int {
    call(|| {
        let (sb, out) = (given(superblock)?, given(data)?);
        out.write(sb.borrow(node)?.data().pointer());
        Ok(0)
    })
}

/// Hold a node, beside the client's lookups. `data` may be NULL.
#[unsafe(no_mangle)]
pub extern "C" fn uvfs_hold_node(
    superblock: Option<&uvfs_superblock>,
    node: u64,
    data: Option<&mut MaybeUninit<*mut c_void>>,
    hold: Option<&mut MaybeUninit<Option<Box<uvfs_hold>>>>,
) -> c_int {
    call(|| {
        let (node, out) = (given(superblock)?.node(node)?, given(hold)?);
        if let Some(data) = data {
            data.write(node.data().pointer());
        }
        out.write(Some(Box::new(uvfs_hold(node))));
        Ok(0)
    })
}

/// Give a hold up. The node may go with it.
#[unsafe(no_mangle)]
pub extern "C" fn uvfs_put(hold: Option<Box<uvfs_hold>>) {
    call(|| {
        drop(hold.map(|hold| hold.0));
        Ok(0)
    });
}

/// The inode with this number. The client holds the node `lookups` times more. `entry` may be NULL. -ENOENT: it is
/// not cached.
#[unsafe(no_mangle)]
pub extern "C" fn uvfs_by_number(
    superblock: Option<&uvfs_superblock>,
    ino: u64,
    lookups: u64,
    entry: Option<&mut MaybeUninit<uvfs_entry>>,
) -> c_int {
    call(|| {
        let node = given(superblock)?.sb.by_number(ino).ok_or(Errno::NOENT)?;
        uvfs_entry::give(&node, lookups, entry);
        Ok(0)
    })
}

/// A question to the back end about an inode without a name; see `uvfs_found_number`.
pub struct uvfs_asked {
    asked: Asked,
    /// The superblock's serial number.
    superblock: u64,
}

/// Call this before the back end is asked about an inode for `uvfs_found_number`.
#[unsafe(no_mangle)]
pub extern "C" fn uvfs_ask(
    superblock: Option<&uvfs_superblock>,
    asked: Option<&mut MaybeUninit<Option<Box<uvfs_asked>>>>,
) -> c_int {
    call(|| {
        let (sb, out) = (given(superblock)?, given(asked)?);
        out.write(Some(Box::new(uvfs_asked { asked: sb.sb.ask(), superblock: sb.serial })));
        Ok(0)
    })
}

/// Ends a question: the inode, known or new, without a name (`name_ttl` is not used). The client holds the node
/// `lookups` times more; without a lookup, a hold or a name it is gone at once. With a NULL answer only ends the
/// question. `entry` may be NULL. -EXDEV: the question is another superblock's.
#[unsafe(no_mangle)]
pub extern "C" fn uvfs_found_number(
    superblock: Option<&uvfs_superblock>,
    asked: Option<Box<uvfs_asked>>,
    answer: Option<&uvfs_answer>,
    lookups: u64,
    entry: Option<&mut MaybeUninit<uvfs_entry>>,
) -> c_int {
    call(|| {
        let (asked, Some(answer)) = (given(asked)?, answer) else { return Ok(0) };
        let checked = given(superblock).and_then(|sb| Ok((sb, answer.checked(sb.destroy)?)));
        let (sb, answer) = match checked {
            Ok(both) => both,
            Err(errno) => {
                // The caller still has it.
                let _ = Box::into_raw(asked);
                return Err(errno);
            }
        };
        if asked.superblock != sb.serial {
            return Err(Errno::XDEV);
        }
        let (node, _) = sb.sb.found_number(asked.asked, answer).map_err(cache_error)?;
        uvfs_entry::give(&node, lookups, entry);
        Ok(0)
    })
}

/// A name of the node, and its directory. Returns the name's length. -ENOENT: it has none in the cache (the root
/// has none). -ERANGE: the buffer is too small; 256 bytes are enough.
#[unsafe(no_mangle)]
pub extern "C" fn uvfs_name_of(
    superblock: Option<&uvfs_superblock>,
    node: u64,
    dir: Option<&mut MaybeUninit<u64>>,
    buffer: uvfs_buffer,
    size: usize,
) -> c_int {
    call(|| {
        let (parent, name) = given(superblock)?.node(node)?.name().ok_or(Errno::NOENT)?;
        if let Some(dir) = dir {
            dir.write(if parent.is_root() { UVFS_ROOT } else { parent.id().as_u64() });
        }
        buffer.copy(size, &name)
    })
}

/// The path below the root, without a leading slash, as it was at one moment. Returns its length. -ENOENT: it has
/// none in the cache. -EAGAIN: directories on the way kept moving. -ERANGE: the buffer is too small.
#[unsafe(no_mangle)]
pub extern "C" fn uvfs_path_of(
    superblock: Option<&uvfs_superblock>,
    node: u64,
    buffer: uvfs_buffer,
    size: usize,
) -> c_int {
    call(|| {
        let path = given(superblock)?.node(node)?.path().map_err(|_| Errno::AGAIN)?;
        buffer.copy(size, &path.ok_or(Errno::NOENT)?)
    })
}

/// The cached entry of a name may be wrong: the next lookup asks. Answers on their way are late.
#[unsafe(no_mangle)]
pub extern "C" fn uvfs_invalidate(superblock: Option<&uvfs_superblock>, dir: u64, name: uvfs_name) -> c_int {
    call(|| {
        given(superblock)?.dir(dir)?.invalidate(name.bytes()?);
        Ok(0)
    })
}

/// The node's inode number belongs to another inode from now on. Its holders keep this one; names ask again.
#[unsafe(no_mangle)]
pub extern "C" fn uvfs_replaced(superblock: Option<&uvfs_superblock>, node: u64) -> c_int {
    call(|| {
        given(superblock)?.node(node)?.replaced();
        Ok(0)
    })
}
