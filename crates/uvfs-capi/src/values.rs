//! Values that cross the boundary: attributes, answers, entries, names, and the server's data.
//!
//! Structs are copied both ways. A name is read before the call returns, and a buffer is written before that, so
//! the library keeps no pointer but the server's data.
#![allow(non_camel_case_types, reason = "these are the names that C sees")]

use std::ffi::{CStr, c_char, c_int, c_void};
use std::mem::MaybeUninit;
use std::time::Duration;

use uvfs_cache::attr::mode;
use uvfs_cache::{Attr, CacheError, Errno, InodeId, NodeAnswer, OwnedNode, Time, Ttl};

/// The node id of a superblock's root, as in FUSE.
pub const UVFS_ROOT: u64 = 1;
/// A TTL: until the library is notified of a change.
pub const UVFS_FOREVER: u64 = u64::MAX;
/// Longest name, in bytes.
const NAME_MAX: usize = 255;

/// A result: the value, or a positive errno that the caller gets as a negative one.
pub type Res<V> = Result<V, Errno>;

/// A destructor of the server's data.
pub type uvfs_destroy = Option<extern "C" fn(data: *mut c_void)>;

/// A point in time.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct uvfs_time {
    /// Seconds since 1970; the cache holds the years 1901 to 2446.
    pub sec: i64,
    /// Nanoseconds.
    pub nsec: u32,
}

impl From<Time> for uvfs_time {
    fn from(time: Time) -> Self {
        Self { sec: time.sec(), nsec: time.nsec() }
    }
}

impl From<uvfs_time> for Time {
    fn from(time: uvfs_time) -> Self {
        Self::new(time.sec, time.nsec)
    }
}

/// Attributes of an inode. `uvfs_attr_of` and `uvfs_stat_of` convert from and to `struct stat`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct uvfs_attr {
    /// Inode number. It and the type identify the inode within its superblock.
    pub ino: u64,
    /// Bytes.
    pub size: u64,
    /// Units of 512 bytes.
    pub blocks: u64,
    /// Last access.
    pub atime: uvfs_time,
    /// Last change of the content.
    pub mtime: uvfs_time,
    /// Last change of the inode.
    pub ctime: uvfs_time,
    /// Type and permission bits.
    pub mode: u32,
    /// Hard links.
    pub nlink: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Device number of a device node.
    pub rdev: u32,
}

impl From<Attr> for uvfs_attr {
    fn from(attr: Attr) -> Self {
        Self {
            ino: attr.ino,
            size: attr.size,
            blocks: attr.blocks,
            atime: attr.atime.into(),
            mtime: attr.mtime.into(),
            ctime: attr.ctime.into(),
            mode: attr.mode,
            nlink: attr.nlink,
            uid: attr.uid,
            gid: attr.gid,
            rdev: attr.rdev,
        }
    }
}

impl uvfs_attr {
    pub fn checked(&self) -> Res<Attr> {
        let known = [
            mode::S_IFSOCK,
            mode::S_IFLNK,
            mode::S_IFREG,
            mode::S_IFBLK,
            mode::S_IFDIR,
            mode::S_IFCHR,
            mode::S_IFIFO,
        ];
        if !known.contains(&(self.mode & mode::S_IFMT)) {
            return Err(Errno::INVAL);
        }
        Ok(Attr {
            ino: self.ino,
            mode: self.mode,
            nlink: self.nlink,
            uid: self.uid,
            gid: self.gid,
            rdev: self.rdev,
            size: self.size,
            blocks: self.blocks,
            atime: self.atime.into(),
            mtime: self.mtime.into(),
            ctime: self.ctime.into(),
            acl: false,
        })
    }
}

/// The back end's answer: an inode, and the server's data for it.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct uvfs_answer {
    /// Attributes.
    pub attr: uvfs_attr,
    /// How long the name is trusted, in milliseconds, or UVFS_FOREVER. 0: it is not cached.
    pub name_ttl: u64,
    /// How long the attributes are trusted.
    pub attr_ttl: u64,
    /// The server's data, or NULL. The library owns it once a call took the answer, whatever that call returns
    /// but -EINVAL. An inode that is cached already keeps its own data, and this is destroyed.
    pub data: *mut c_void,
}

impl uvfs_answer {
    /// The answer for the cache, with the data in its owner's hands.
    pub fn checked(&self, destroy: uvfs_destroy) -> Res<NodeAnswer<Data>> {
        let attr = self.attr.checked()?;
        let data = Data { pointer: self.data, destroy };
        Ok(NodeAnswer { attr, name_ttl: ttl(self.name_ttl), attr_ttl: ttl(self.attr_ttl), data })
    }
}

/// A node, copied.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct uvfs_entry {
    /// The node id: FUSE's `ino`. 1 is the root.
    pub node: u64,
    /// False: the attributes have expired. Ask the back end, and call `uvfs_refresh`.
    pub trusted: bool,
    /// The attributes.
    pub attr: uvfs_attr,
}

impl uvfs_entry {
    pub fn of(node: &OwnedNode<Data>) -> Self {
        let trusted = node.trusted_attr();
        let attr = trusted.unwrap_or_else(|| node.attr());
        let id = if node.is_root() { UVFS_ROOT } else { node.id().as_u64() };
        Self { node: id, trusted: trusted.is_some(), attr: attr.into() }
    }

    /// As [`uvfs_entry::of`], once the client holds the node `lookups` times more. Writes to `out` if it is there.
    pub fn give(node: &OwnedNode<Data>, lookups: u64, out: Option<&mut MaybeUninit<Self>>) {
        if lookups != 0 {
            node.add_lookups(lookups);
        }
        if let Some(out) = out {
            out.write(Self::of(node));
        }
    }
}

/// The server's data of an inode.
pub struct Data {
    pointer: *mut c_void,
    destroy: uvfs_destroy,
}

// SAFETY: the library never looks behind the pointer; it hands it to the server's threads and to the destructor,
// and the header asks that both may run in any thread.
unsafe impl Send for Data {}
// SAFETY: as above; a shared `Data` gives out only the pointer's value.
unsafe impl Sync for Data {}

impl Data {
    pub fn pointer(&self) -> *mut c_void {
        self.pointer
    }
}

impl Drop for Data {
    fn drop(&mut self) {
        if let Some(destroy) = self.destroy
            && !self.pointer.is_null()
        {
            destroy(self.pointer);
        }
    }
}

/// A name or a path, ended by a zero byte.
#[repr(transparent)]
pub struct uvfs_name(*const c_char);

impl uvfs_name {
    /// The bytes, if they can be a name in a directory.
    pub fn bytes(&self) -> Res<&[u8]> {
        if self.0.is_null() {
            return Err(Errno::INVAL);
        }
        // SAFETY: only callers in C make a `uvfs_name`. Their contract: it is NULL or a string that ends, and that
        // stays as it is until the call returns. The result borrows `self`, which is the call's argument.
        let name = unsafe { CStr::from_ptr(self.0) }.to_bytes();
        match name {
            b"" | b"." | b".." => Err(Errno::INVAL),
            _ if name.contains(&b'/') => Err(Errno::INVAL),
            _ if name.len() > NAME_MAX => Err(Errno::NAMETOOLONG),
            _ => Ok(name),
        }
    }
}

/// A buffer of the caller.
#[repr(transparent)]
pub struct uvfs_buffer(*mut c_char);

impl uvfs_buffer {
    /// Copies a string and a zero byte into `size` bytes; returns the string's length.
    pub fn copy(self, size: usize, bytes: &[u8]) -> Res<c_int> {
        if self.0.is_null() {
            return Err(Errno::INVAL);
        }
        if bytes.len() >= size {
            return Err(Errno::RANGE);
        }
        // SAFETY: only callers in C make a `uvfs_buffer`. Their contract: it has `size` bytes, which nobody else
        // uses until the call returns. The string and its end fit. `bytes` is the library's, so they do not overlap.
        unsafe {
            self.0.copy_from_nonoverlapping(bytes.as_ptr().cast(), bytes.len());
            self.0.add(bytes.len()).write(0);
        }
        Ok(bytes.len() as c_int)
    }
}

pub fn ttl(milliseconds: u64) -> Ttl {
    match milliseconds {
        UVFS_FOREVER => Ttl::Forever,
        _ => Ttl::For(Duration::from_millis(milliseconds)),
    }
}

/// The id in the cache of a node that is not the root.
pub fn inode_id(node: u64) -> InodeId {
    InodeId::from_u64(node)
}

pub fn cache_error(error: CacheError) -> Errno {
    error.into()
}
