//! [`Context`]: a root, a working directory, credentials and a umask, with the system calls that take paths.
//!
//! A context corresponds to a process in the kernel. Paths are bytes. Absolute paths start at the context's root, and
//! `..` does not leave it. `stat`, `lstat`, `access` and `readlink` of cached names take no reference and store
//! nothing shared. Trailing slashes, and `.` and `..` as last components, give the kernel's errors. This module
//! decides those that depend on the last component; `ops/` decides the others.

use uvfs_cache::machinery::TARGET_MAX;

use crate::driver::Inode;
use crate::namei::open::open;
use crate::namei::open_cached::open_cached;
use crate::namei::open_handle::Handle;
use crate::namei::readlink::Target;
use crate::namei::{Last, Parent, Walker};
use crate::ops::rename::Side;
use crate::permission::{Verdict, verdict};
use crate::types::{
    Access, Attr, Cred, DirEntry, Errno, Op, OpenFlags, RenameFlags, Result, SetAttr, SetTime, StatFs,
    XattrFlags, mode,
};
use crate::vfs::Vfs;

/// A caller that walks paths, with its starting points.
#[derive(Clone, Debug)]
pub struct Context<'v> {
    vfs: &'v Vfs,
    cred: Cred,
    root: Inode<'v>,
    cwd: Inode<'v>,
    umask: u32,
    /// The number of `cred`; see `cred_numbers`.
    who: u32,
}

/// An owned directory entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// The name.
    pub name: Vec<u8>,
    /// Inode number.
    pub ino: u64,
    /// Type bits of the mode.
    pub fmt: u32,
}

impl Vfs {
    /// A context at the root, with umask 022.
    pub fn context(&self, cred: Cred) -> Context<'_> {
        let root = self.root();
        let who = self.who.of(&cred);
        Context { vfs: self, cred, cwd: root.clone(), root, umask: 0o022, who }
    }
}

/// The last component of a new name. `.`, `..` and `/` exist already. Only a directory's name may have a slash
/// after it.
fn new_name<'a>(parent: &'a Parent<'_, '_>) -> Result<&'a [u8]> {
    match &parent.last {
        Last::Name(name) => Ok(name),
        Last::Dot | Last::DotDot | Last::Root => Err(Errno::EXIST),
    }
}

impl<'v> Context<'v> {
    #[inline(always)]
    fn walker(&self) -> Walker<'_, 'v> {
        Walker { vfs: self.vfs, cred: &self.cred, who: self.who, root: &self.root, cwd: &self.cwd }
    }

    fn op(&self) -> Op {
        Op { umask: self.umask, ..self.vfs.op(&self.cred) }
    }

    fn node(&self, path: &[u8]) -> Result<Inode<'v>> {
        self.walker().node(path, true)
    }

    fn lnode(&self, path: &[u8]) -> Result<Inode<'v>> {
        self.walker().node(path, false)
    }

    /// The tree.
    pub fn vfs(&self) -> &'v Vfs {
        self.vfs
    }

    /// The caller.
    pub fn cred(&self) -> &Cred {
        &self.cred
    }

    /// Changes the credentials; root and working directory stay.
    pub fn set_cred(&mut self, cred: Cred) {
        self.who = self.vfs.who.of(&cred);
        self.cred = cred;
    }

    /// Sets the bits that new nodes do not get, and returns the old ones. A default access control list overrides
    /// them.
    pub fn umask(&mut self, mask: u32) -> u32 {
        std::mem::replace(&mut self.umask, mask & 0o777)
    }

    /// Moves the working directory; needs search permission there.
    pub fn chdir(&mut self, path: &[u8]) -> Result<()> {
        self.cwd = self.searchable(path)?;
        Ok(())
    }

    /// Moves the root; needs search permission there. The working directory stays, so callers usually
    /// [`chdir`](Self::chdir) to `/` next. EPERM for anyone but root.
    pub fn chroot(&mut self, path: &[u8]) -> Result<()> {
        let dir = self.searchable(path)?;
        if !self.cred.is_root() {
            return Err(Errno::PERM);
        }
        self.root = dir;
        Ok(())
    }

    fn searchable(&self, path: &[u8]) -> Result<Inode<'v>> {
        let dir = self.node(path)?;
        self.vfs.search(&self.op(), &dir)?;
        Ok(dir)
    }

    /// The inode that a path leads to, for the operations of [`Vfs`].
    pub fn resolve(&self, path: &[u8]) -> Result<Inode<'v>> {
        self.node(path)
    }

    /// The attributes of the inode that the path leads to.
    ///
    /// # Errors
    /// As every operation on paths: ENOENT, ENOTDIR, EACCES (no search permission on the way),
    /// ELOOP, ENAMETOOLONG, and what drivers answer.
    #[inline]
    pub fn stat(&self, path: &[u8]) -> Result<Attr> {
        let mut attr = Attr::default();
        self.stat_into(path, &mut attr).map(|()| attr)
    }

    /// Like [`Context::stat`], but a symbolic link as last component is not followed.
    #[inline]
    pub fn lstat(&self, path: &[u8]) -> Result<Attr> {
        let mut attr = Attr::default();
        self.lstat_into(path, &mut attr).map(|()| attr)
    }

    /// [`Context::stat`] into the caller's buffer. Over millions of calls this saves moving the result, which takes
    /// a fourth as long as the lookup: a load of 16 bytes waits for the stores of eight before it. After an error
    /// the contents are unspecified.
    ///
    /// # Errors
    /// As [`Context::stat`].
    pub fn stat_into(&self, path: &[u8], attr: &mut Attr) -> Result<()> {
        self.walker().attr(path, true, attr)
    }

    /// [`Context::lstat`] into the caller's buffer.
    ///
    /// # Errors
    /// As [`Context::lstat`].
    pub fn lstat_into(&self, path: &[u8], attr: &mut Attr) -> Result<()> {
        self.walker().attr(path, false, attr)
    }

    /// Opens a file, as `open(2)`.
    ///
    /// # Errors
    /// EEXIST, EISDIR, ENOTDIR, ELOOP (also NOFOLLOW), EACCES, EROFS, ENXIO (a socket), EINVAL
    /// (flags), and those of making a file; see [`Vfs::mknod`].
    pub fn open(&self, path: &[u8], flags: OpenFlags, mode: u32) -> Result<Handle<'v>> {
        let walker = self.walker();
        match open_cached(&walker, path, flags) {
            Some(opened) => opened,
            None => open(&walker, &self.op(), path, flags, mode),
        }
    }

    /// Makes a directory. A slash may follow its name.
    pub fn mkdir(&self, path: &[u8], mode: u32) -> Result<()> {
        let parent = self.walker().parent(path)?;
        let name = new_name(&parent)?;
        self.vfs.mkdir(&self.op(), &parent.dir, name, mode).map(|_| ())
    }

    /// Makes a regular file, device node, FIFO or socket; see [`Vfs::mknod`].
    pub fn mknod(&self, path: &[u8], mode: u32, rdev: u32) -> Result<()> {
        match mode & mode::S_IFMT {
            mode::S_IFDIR => return Err(Errno::PERM),
            0 | mode::S_IFREG | mode::S_IFCHR | mode::S_IFBLK | mode::S_IFIFO | mode::S_IFSOCK => {}
            _ => return Err(Errno::INVAL),
        }
        let parent = self.walker().parent(path)?;
        let name = self.new_leaf(&parent)?;
        self.vfs.mknod(&self.op(), &parent.dir, name, mode, rdev).map(|_| ())
    }

    /// Makes a symbolic link to `target`.
    pub fn symlink(&self, target: &[u8], path: &[u8]) -> Result<()> {
        if target.is_empty() {
            return Err(Errno::NOENT);
        }
        if target.len() > crate::types::PATH_MAX {
            return Err(Errno::NAMETOOLONG);
        }
        let parent = self.walker().parent(path)?;
        let name = self.new_leaf(&parent)?;
        self.vfs.symlink(&self.op(), &parent.dir, name, target).map(|_| ())
    }

    /// Gives the inode that `old` leads to the new name `new`; a symbolic link is not followed.
    pub fn link(&self, old: &[u8], new: &[u8]) -> Result<()> {
        let inode = self.lnode(old)?;
        let parent = self.walker().parent(new)?;
        let name = self.new_leaf(&parent)?;
        self.vfs.link(&self.op(), &inode, &parent.dir, name).map(|_| ())
    }

    /// The name of something new that is not a directory. A slash after it is ENOENT. EEXIST comes first if the
    /// name exists.
    fn new_leaf<'a>(&self, parent: &'a Parent<'v, '_>) -> Result<&'a [u8]> {
        let name = new_name(parent)?;
        if !parent.slash {
            return Ok(name);
        }
        match self.vfs.child(&self.op(), &parent.dir, name)? {
            crate::types::Found::Node(..) => Err(Errno::EXIST),
            crate::types::Found::Absent(_) => Err(Errno::NOENT),
        }
    }

    /// Removes the name of something that is not a directory.
    pub fn unlink(&self, path: &[u8]) -> Result<()> {
        let parent = self.walker().parent(path)?;
        match &parent.last {
            Last::Name(name) => self.vfs.unlink_path(&self.op(), &parent.dir, name, parent.slash),
            Last::Dot | Last::DotDot | Last::Root => Err(Errno::ISDIR),
        }
    }

    /// Removes an empty directory.
    pub fn rmdir(&self, path: &[u8]) -> Result<()> {
        let parent = self.walker().parent(path)?;
        match &parent.last {
            Last::Name(name) => self.vfs.rmdir(&self.op(), &parent.dir, name),
            Last::Dot => Err(Errno::INVAL),
            Last::DotDot => Err(Errno::NOTEMPTY),
            Last::Root => Err(Errno::BUSY),
        }
    }

    /// Renames; see [`Vfs::rename`].
    pub fn rename(&self, old: &[u8], new: &[u8], flags: RenameFlags) -> Result<()> {
        flags.check()?;
        let walker = self.walker();
        let (from, to) = (walker.parent(old)?, walker.parent(new)?);
        if from.dir.sb() != to.dir.sb() {
            return Err(Errno::XDEV);
        }
        let Last::Name(from_name) = &from.last else {
            return Err(Errno::BUSY);
        };
        let Last::Name(to_name) = &to.last else {
            let exclusive = flags.contains(RenameFlags::NOREPLACE);
            return Err(if exclusive { Errno::EXIST } else { Errno::BUSY });
        };
        let from = Side { dir: &from.dir, name: from_name, slash: from.slash };
        let to = Side { dir: &to.dir, name: to_name, slash: to.slash };
        self.vfs.rename_path(&self.op(), from, to, flags)
    }

    /// The target of a symbolic link; EINVAL of anything else.
    pub fn readlink(&self, path: &[u8]) -> Result<Vec<u8>> {
        let mut kept = [0; TARGET_MAX];
        match self.walker().target(path, &mut kept)? {
            Target::Kept(len) => Ok(kept[..len].to_vec()),
            Target::Ask(inode) => self.vfs.readlink(&self.op(), &inode),
        }
    }

    /// [`Context::readlink`] into `buffer`, as `readlink(2)`: truncates what does not fit, and returns the number
    /// of bytes stored. Takes no reference and stores nothing shared if the target is cached.
    pub fn readlink_into(&self, path: &[u8], buffer: &mut [u8]) -> Result<usize> {
        let mut kept = [0; TARGET_MAX];
        let asked;
        let target = match self.walker().target(path, &mut kept)? {
            Target::Kept(len) => &kept[..len],
            Target::Ask(inode) => {
                asked = self.vfs.readlink(&self.op(), &inode)?;
                &asked[..]
            }
        };
        let len = target.len().min(buffer.len());
        buffer[..len].copy_from_slice(&target[..len]);
        Ok(len)
    }

    /// Changes the permission bits.
    pub fn chmod(&self, path: &[u8], mode: u32) -> Result<()> {
        let set = SetAttr { mode: Some(mode), ..SetAttr::default() };
        self.vfs.setattr(&self.op(), &self.node(path)?, &set).map(|_| ())
    }

    /// Changes owner and group, each if given.
    pub fn chown(&self, path: &[u8], uid: Option<u32>, gid: Option<u32>) -> Result<()> {
        self.chown_node(&self.node(path)?, uid, gid)
    }

    /// [`Context::chown`] of a symbolic link itself.
    pub fn lchown(&self, path: &[u8], uid: Option<u32>, gid: Option<u32>) -> Result<()> {
        self.chown_node(&self.lnode(path)?, uid, gid)
    }

    fn chown_node(&self, inode: &Inode<'v>, uid: Option<u32>, gid: Option<u32>) -> Result<()> {
        self.vfs.chown(&self.op(), inode, uid, gid).map(|_| ())
    }

    /// Sets the given times (`None` is UTIME_OMIT). If neither is given, the path is not even looked at.
    pub fn utimens(&self, path: &[u8], atime: Option<SetTime>, mtime: Option<SetTime>) -> Result<()> {
        self.set_times(path, true, atime, mtime)
    }

    /// [`Context::utimens`] of a symbolic link itself.
    pub fn lutimens(&self, path: &[u8], atime: Option<SetTime>, mtime: Option<SetTime>) -> Result<()> {
        self.set_times(path, false, atime, mtime)
    }

    fn set_times(
        &self,
        path: &[u8],
        follow: bool,
        atime: Option<SetTime>,
        mtime: Option<SetTime>,
    ) -> Result<()> {
        if atime.is_none() && mtime.is_none() {
            return Ok(());
        }
        let set = SetAttr { atime, mtime, ..SetAttr::default() };
        self.vfs.setattr(&self.op(), &self.walker().node(path, follow)?, &set).map(|_| ())
    }

    /// Changes the size of a regular file.
    pub fn truncate(&self, path: &[u8], size: u64) -> Result<()> {
        let set = SetAttr { size: Some(size), ..SetAttr::default() };
        self.vfs.setattr(&self.op(), &self.node(path)?, &set).map(|_| ())
    }

    /// Whether the caller has the access `want`; see [`Vfs::access`]. For cached names it takes no reference,
    /// unless `want` includes writing and some file system is read-only.
    pub fn access(&self, path: &[u8], want: Access) -> Result<()> {
        if want.contains(Access::WRITE) && self.vfs.mounts.any_read_only() {
            return self.vfs.access(&self.op(), &self.node(path)?, want);
        }
        // The attributes are of one moment, so a denial needs no second look.
        let attr = self.stat(path)?;
        match verdict(&self.cred, (&attr).into(), want) {
            Verdict::Granted => Ok(()),
            Verdict::Denied => Err(Errno::ACCESS),
            Verdict::List => self.vfs.access(&self.op(), &self.node(path)?, want),
        }
    }

    /// All entries of a directory except `.` and `..`, in the driver's order.
    pub fn readdir(&self, path: &[u8]) -> Result<Vec<Entry>> {
        let dir = self.node(path)?;
        let mut entries = Vec::new();
        self.vfs.readdir(&self.op(), &dir, 0, &mut |e: DirEntry<'_>| {
            entries.push(Entry { name: e.name.to_vec(), ino: e.ino, fmt: e.fmt });
            true
        })?;
        Ok(entries)
    }

    /// Statistics of the file system that the path is on.
    pub fn statfs(&self, path: &[u8]) -> Result<StatFs> {
        self.vfs.statfs(&self.op(), &self.node(path)?)
    }

    /// The value of an extended attribute; see [`Vfs::getxattr`].
    pub fn getxattr(&self, path: &[u8], name: &[u8]) -> Result<Vec<u8>> {
        self.vfs.getxattr(&self.op(), &self.node(path)?, name)
    }

    /// Sets an extended attribute; see [`Vfs::setxattr`].
    pub fn setxattr(&self, path: &[u8], name: &[u8], value: &[u8], flags: XattrFlags) -> Result<()> {
        self.vfs.setxattr(&self.op(), &self.node(path)?, name, value, flags)
    }

    /// The names of the extended attributes.
    pub fn listxattr(&self, path: &[u8]) -> Result<Vec<Vec<u8>>> {
        let names = self.vfs.listxattr(&self.op(), &self.node(path)?)?;
        Ok(names.split(|&b| b == 0).filter(|n| !n.is_empty()).map(<[u8]>::to_vec).collect())
    }

    /// Removes an extended attribute; see [`Vfs::removexattr`].
    pub fn removexattr(&self, path: &[u8], name: &[u8]) -> Result<()> {
        self.vfs.removexattr(&self.op(), &self.node(path)?, name)
    }
}
