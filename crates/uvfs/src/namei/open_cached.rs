//! `open(2)` of a cached regular file, if its permission bits grant the access.
//!
//! The lock-free walk copies the file's attributes, as `stat` does, and they decide. Then the open takes the one
//! reference that its handle keeps. So the open counts as having happened when the copy was valid. The file may have
//! lost its name or changed its mode since. As long as its generation stands, it is the same file. Everything else is
//! left to [`open`](super::open): other types, other flags, and errors. The clock is read only if the driver is
//! called.
//!
//! Threads that open one file share no line. The file's references are counted per thread once it is opened often.
//! Each shard of threads has its own [`Base`](crate::ops::driver_file::Base), so its count is not shared by all.

use uvfs_cache::InodeId;

use crate::counters;
use crate::driver::Inode;
use crate::namei::Walker;
use crate::namei::open::access;
use crate::namei::open_handle::Handle;
use crate::namei::path_components::{Kind, split};
use crate::ops::driver_file::DriverFile;
use crate::permission::granted;
use crate::types::{Access, Attr, NAME_MAX, OpenFlags, Result};

/// The flags that need nothing but a handle.
const SIMPLE: OpenFlags =
    OpenFlags::READ.union(OpenFlags::WRITE).union(OpenFlags::APPEND).union(OpenFlags::NOFOLLOW);

/// Opens `path`; `None` if this is not the simple case. The only errors are the driver's.
#[inline]
pub(crate) fn open_cached<'v>(
    walker: &Walker<'_, 'v>,
    path: &[u8],
    flags: OpenFlags,
) -> Option<Result<Handle<'v>>> {
    let access = access(flags);
    if !SIMPLE.contains(flags) || access.is_empty() {
        return None;
    }
    let vfs = walker.vfs;
    let start = walker.start(walker.cwd, path).ok()?;
    let mut attr = Attr::default();
    let id = walker.file_lockless(start, path, &mut attr)?;
    if !attr.is_reg() || !granted(walker.cred, (&attr).into(), access) {
        return None;
    }
    let inode = vfs.cache.get(id)?;
    let base = vfs.files.known(inode.sb())?;
    if access.contains(Access::WRITE) && base.features.read_only {
        return None;
    }
    let handle = if base.features.plain_files {
        0
    } else {
        match base.open(&vfs.op(walker.cred), &inode, access, flags.contains(OpenFlags::APPEND)) {
            Ok(handle) => handle,
            Err(errno) => return Some(Err(errno)),
        }
    };
    counters::hit();
    let file = Some(DriverFile { base, access, handle });
    Some(Ok(Handle { vfs, cred: walker.cred.clone(), inode, flags, file }))
}

impl Walker<'_, '_> {
    /// The inode that the last name of `path` leads to, and in `attr` its attributes of the same moment.
    #[inline(always)]
    fn file_lockless(&self, start: &Inode<'_>, path: &[u8], attr: &mut Attr) -> Option<InodeId> {
        let start = self.begin(start).ok()?;
        let (dirs, last) = split(path);
        let at = if dirs.is_empty() { start } else { self.walk_to_end(start, dirs, &mut 0).ok()? };
        let c = last.filter(|c| c.kind == Kind::Name && !c.slash && c.name.len() <= NAME_MAX)?;
        if !self.may_search(at) {
            return None;
        }
        let cache = &self.vfs.cache;
        let names = cache.names();
        cache.look(&names, at, &names.hash(c.name), attr).ok()
    }
}
