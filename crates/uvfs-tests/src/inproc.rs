//! A uvfs tmpfs in this process as a target: operations are calls of [`uvfs::Context`].
//!
//! Features that only a kernel process has are answered with "unspecified": paths from open directories
//! (see [`crate::generate::Mix`]), and the contents of special files.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use rustix::fs::{OFlags, major, makedev, minor};
use rustix::io::Errno;
use uvfs::{
    Access, Attr, Context, Cred, Fallocate, Handle, OpenFlags, Protected, RenameFlags, Seek, SetAttr,
    SetTime, Vfs, VfsConfig, XattrFlags,
};
use uvfs_drivers::tmpfs::{Tmpfs, TmpfsOptions};

use crate::host::split_names;
use crate::model::Habits;
use crate::ops::{At, Base, Falloc, FileOp, SLOTS, TargetPath, TestStep, TimeArg, Whence, Who, pattern};
use crate::results_agree::{
    CONTENT_LIMIT, Outcome, S_IFDIR, S_IFLNK, S_IFMT, S_IFREG, Side, TreeView, UserView, ViewEntry,
    content_digest,
};

/// The model's settings for a comparison with this target.
pub const HABITS: Habits =
    Habits { protected_hardlinks: true, dead_dotdot_unspecified: true, files_keep_credentials: true };

/// A tmpfs in a tree of its own. The root directory has mode 0755 and the limit is 1 GiB.
pub fn new_vfs() -> Result<Arc<Vfs>, Errno> {
    let options = TmpfsOptions { size: 1 << 30, nr_inodes: 0, mode: 0o755, uid: 0, gid: 0 };
    let tmpfs = Tmpfs::new(options).map_err(|_| Errno::NOMEM)?;
    let cache = uvfs_cache::Config { max_inodes: 1 << 22, ..Default::default() };
    Vfs::new(VfsConfig { cache, protected: Protected { hardlinks: true, ..Protected::OFF } }, tmpfs)
}

/// The credentials of a user.
pub fn cred(who: Who) -> Cred {
    let (uid, gid, groups) = who.ids();
    Cred { uid, gid, groups: groups.into() }
}

struct Open<'v> {
    handle: Handle<'v>,
    pos: u64,
    append: bool,
    write: bool,
}

/// A uvfs in this process.
pub struct InProcess<'v> {
    vfs: &'v Vfs,
    context: Context<'v>,
    slots: [Option<Open<'v>>; SLOTS],
}

/// Why an operation ends early.
enum Fail {
    NoSlot,
    Unspecified,
    Errno(Errno),
}

impl From<Errno> for Fail {
    fn from(e: Errno) -> Self {
        Fail::Errno(e)
    }
}

impl<'v> InProcess<'v> {
    /// Operations in `vfs`.
    pub fn new(vfs: &'v Vfs) -> Self {
        Self { vfs, context: vfs.context(cred(Who::Root)), slots: [const { None }; SLOTS] }
    }

    fn slot(&mut self, slot: usize) -> Result<&mut Open<'v>, Fail> {
        self.slots[slot].as_mut().ok_or(Fail::NoSlot)
    }

    /// The path of an operation, which must start at the working directory.
    fn path<'p>(&self, at: &'p At) -> Result<&'p [u8], Fail> {
        match at.base {
            Base::Cwd => Ok(&at.path),
            Base::Slot(_) => Err(Fail::Unspecified),
        }
    }

    fn attr(&self, target: &TargetPath) -> Result<Attr, Fail> {
        match target {
            TargetPath::Path { at, follow: true } => Ok(self.context.stat(self.path(at)?)?),
            TargetPath::Path { at, .. } => Ok(self.context.lstat(self.path(at)?)?),
            TargetPath::Slot(s) => Ok(self.slots[*s].as_ref().ok_or(Fail::NoSlot)?.handle.attr()?),
        }
    }

    fn run(&mut self, op: &FileOp) -> Result<Outcome, Fail> {
        match op {
            FileOp::Read { .. }
            | FileOp::Pread { .. }
            | FileOp::Write { .. }
            | FileOp::Pwrite { .. }
            | FileOp::Seek { .. }
            | FileOp::Ftruncate { .. }
            | FileOp::Fallocate { .. }
            | FileOp::Fsync { .. }
            | FileOp::Close { .. } => self.file(op),
            FileOp::Chmod { .. } | FileOp::Chown { .. } | FileOp::Utimens { .. } => {
                self.change(op).map(|()| Outcome::Done)
            }
            FileOp::SetXattr { .. }
            | FileOp::GetXattr { .. }
            | FileOp::ListXattr { .. }
            | FileOp::RemoveXattr { .. } => self.xattr(op),
            FileOp::Stat { target } => Ok(Outcome::Node(view(&self.attr(target)?))),
            FileOp::Readlink { at } => Ok(Outcome::Data(self.context.readlink(self.path(at)?)?)),
            FileOp::Readdir { at } => {
                let mut names = BTreeSet::from([(b".".to_vec(), S_IFDIR), (b"..".to_vec(), S_IFDIR)]);
                for entry in self.context.readdir(self.path(at)?)? {
                    if !names.insert((entry.name.clone(), entry.fmt)) {
                        names.insert(([b"twice/", &entry.name[..]].concat(), entry.fmt));
                    }
                }
                Ok(Outcome::Names(names))
            }
            _ => self.namespace(op).map(|()| Outcome::Done),
        }
    }

    fn namespace(&mut self, op: &FileOp) -> Result<(), Fail> {
        match op {
            FileOp::Open { slot, at, flags, mode } => {
                let path = self.path(at)?;
                // Only the kernel opens devices and FIFOs.
                let special = |a: &Attr| !matches!(a.mode & S_IFMT, S_IFREG | S_IFDIR | S_IFLNK);
                let before = self.context.stat(path).is_ok_and(|a| special(&a));
                let handle = self.context.open(path, open_flags(*flags), mode.0)?;
                if before {
                    return Err(Fail::Unspecified);
                }
                self.slots[*slot] = Some(Open {
                    handle,
                    pos: 0,
                    append: flags.contains(OFlags::APPEND),
                    write: *flags & OFlags::ACCMODE != OFlags::RDONLY,
                });
                Ok(())
            }
            FileOp::Mkdir { at, mode } => Ok(self.context.mkdir(self.path(at)?, mode.0)?),
            FileOp::Mknod { at, mode, rdev } => {
                let rdev =
                    (major(*rdev) & 0xfff) << 8 | (minor(*rdev) & 0xff) | (minor(*rdev) & 0xfff00) << 12;
                Ok(self.context.mknod(self.path(at)?, mode.0, rdev)?)
            }
            FileOp::Symlink { target, at } => Ok(self.context.symlink(target, self.path(at)?)?),
            FileOp::Link { follow: true, .. } => Err(Fail::Unspecified),
            FileOp::Link { old, new, .. } => Ok(self.context.link(self.path(old)?, self.path(new)?)?),
            FileOp::Unlink { at } => Ok(self.context.unlink(self.path(at)?)?),
            FileOp::Rmdir { at } => Ok(self.context.rmdir(self.path(at)?)?),
            FileOp::Rename { old, new, flags } => {
                let flags = RenameFlags::from_bits_truncate(flags.bits());
                Ok(self.context.rename(self.path(old)?, self.path(new)?, flags)?)
            }
            FileOp::Truncate { path, len } => Ok(self.context.truncate(path, *len)?),
            FileOp::Access { at, access } => {
                Ok(self.context.access(self.path(at)?, Access::from_bits_truncate(access.bits()))?)
            }
            FileOp::Chdir { path } => Ok(self.context.chdir(path)?),
            FileOp::Umask { mask } => {
                self.context.umask(mask.0);
                Ok(())
            }
            _ => Err(Fail::Unspecified),
        }
    }

    fn file(&mut self, op: &FileOp) -> Result<Outcome, Fail> {
        match op {
            FileOp::Close { slot } => {
                self.slot(*slot)?;
                self.slots[*slot] = None;
                Ok(Outcome::Done)
            }
            FileOp::Read { slot, len } => {
                let open = self.slot(*slot)?;
                let data = read(&open.handle, open.pos, *len)?;
                open.pos += data.len() as u64;
                Ok(Outcome::Data(data))
            }
            FileOp::Pread { slot, off, len } => {
                let open = self.slot(*slot)?;
                // The kernel's offsets are signed.
                if i64::try_from(*off).is_err() {
                    return Err(Fail::Errno(Errno::INVAL));
                }
                Ok(Outcome::Data(read(&open.handle, *off, *len)?))
            }
            FileOp::Write { slot, len, fill } => {
                let open = self.slot(*slot)?;
                // The kernel checks the range before it applies the append flag.
                if open.write && *len > 0 && wraps(open.pos, *len) {
                    return Err(Fail::Errno(Errno::INVAL));
                }
                let n = open.handle.write_at(&pattern(*fill, *len), open.pos)? as u64;
                open.pos = if open.append && n > 0 { open.handle.attr()?.size } else { open.pos + n };
                Ok(Outcome::Number(n))
            }
            FileOp::Pwrite { slot, off, len, fill } => {
                Ok(Outcome::Number(self.slot(*slot)?.handle.write_at(&pattern(*fill, *len), *off)? as u64))
            }
            FileOp::Seek { slot, whence, off } => self.seek(*slot, *whence, *off),
            FileOp::Ftruncate { slot, len } => {
                self.slot(*slot)?.handle.set_len(*len)?;
                Ok(Outcome::Done)
            }
            FileOp::Fallocate { slot, how, off, len } => {
                let how = match how {
                    Falloc::Allocate => Fallocate::Allocate { keep_size: false },
                    Falloc::KeepSize => Fallocate::Allocate { keep_size: true },
                    Falloc::Punch => Fallocate::PunchHole,
                };
                let open = self.slot(*slot)?;
                if open.handle.inode().fmt() != S_IFREG {
                    return Err(Fail::Unspecified);
                }
                open.handle.fallocate(how, *off, *len)?;
                Ok(Outcome::Done)
            }
            FileOp::Fsync { slot } => {
                self.slot(*slot)?.handle.sync(false)?;
                Ok(Outcome::Done)
            }
            _ => Err(Fail::Unspecified),
        }
    }

    /// Handles have no position of their own, so this target keeps it.
    fn seek(&mut self, slot: usize, whence: Whence, off: i64) -> Result<Outcome, Fail> {
        let open = self.slot(slot)?;
        if open.handle.inode().fmt() != S_IFREG {
            return Err(Fail::Unspecified);
        }
        let to = match whence {
            Whence::Set => Some(off),
            Whence::Cur => (open.pos as i64).checked_add(off),
            Whence::End => (open.handle.attr()?.size as i64).checked_add(off),
            Whence::Data => Some(open.handle.seek(off as u64, Seek::Data)? as i64),
            Whence::Hole => Some(open.handle.seek(off as u64, Seek::Hole)? as i64),
        };
        open.pos = to.and_then(|o| u64::try_from(o).ok()).ok_or(Errno::INVAL)?;
        Ok(Outcome::Number(open.pos))
    }

    fn change(&mut self, op: &FileOp) -> Result<(), Fail> {
        match op {
            FileOp::Chmod { target: TargetPath::Path { at, .. }, mode } => {
                self.context.chmod(self.path(at)?, mode.0)?;
            }
            FileOp::Chown { target: TargetPath::Path { at, follow }, uid, gid } => {
                let path = self.path(at)?;
                if *follow {
                    self.context.chown(path, *uid, *gid)?;
                } else {
                    self.context.lchown(path, *uid, *gid)?;
                }
            }
            // The kernel does not even look at the path here; a library call would.
            FileOp::Utimens {
                target: TargetPath::Path { .. },
                atime: TimeArg::Omit,
                mtime: TimeArg::Omit,
            } => {}
            FileOp::Utimens { target: TargetPath::Path { at, follow }, atime, mtime } => {
                let path = self.path(at)?;
                if *follow {
                    self.context.utimens(path, set_time(*atime), set_time(*mtime))?;
                } else {
                    self.context.lutimens(path, set_time(*atime), set_time(*mtime))?;
                }
            }
            FileOp::Chmod { target: TargetPath::Slot(s), mode } => {
                self.set_open(*s, &SetAttr { mode: Some(mode.0), ..Default::default() })?;
            }
            FileOp::Chown { target: TargetPath::Slot(s), uid, gid } => {
                self.set_open(*s, &SetAttr { uid: *uid, gid: *gid, ..Default::default() })?;
            }
            FileOp::Utimens { target: TargetPath::Slot(s), atime, mtime } => {
                self.slot(*s)?;
                if *atime != TimeArg::Omit || *mtime != TimeArg::Omit {
                    let set =
                        SetAttr { atime: set_time(*atime), mtime: set_time(*mtime), ..Default::default() };
                    self.set_open(*s, &set)?;
                }
            }
            _ => return Err(Fail::Unspecified),
        }
        Ok(())
    }

    fn set_open(&mut self, slot: usize, set: &SetAttr) -> Result<(), Fail> {
        let (vfs, op) = (self.vfs, self.vfs.op(self.context.cred()));
        vfs.setattr(&op, self.slot(slot)?.handle.inode(), set)?;
        Ok(())
    }

    fn xattr(&mut self, op: &FileOp) -> Result<Outcome, Fail> {
        let (target, name) = match op {
            FileOp::SetXattr { target, name, .. }
            | FileOp::GetXattr { target, name }
            | FileOp::RemoveXattr { target, name } => (target, &name[..]),
            FileOp::ListXattr { target } => (target, &b""[..]),
            _ => return Err(Fail::Unspecified),
        };
        // The kernel reads the name before it walks the path.
        if !matches!(op, FileOp::ListXattr { .. }) && (name.is_empty() || name.len() > 255) {
            if let TargetPath::Slot(s) = target {
                self.slot(*s)?;
            }
            return Err(Fail::Errno(Errno::RANGE));
        }
        let inode = match target {
            TargetPath::Path { at, .. } => self.context.resolve(self.path(at)?)?,
            TargetPath::Slot(s) => self.slot(*s)?.handle.inode().clone(),
        };
        let (vfs, caller) = (self.vfs, self.vfs.op(self.context.cred()));
        match op {
            FileOp::SetXattr { len, fill, flags, .. } => {
                let flags = XattrFlags::from_bits_truncate(flags.bits());
                vfs.setxattr(&caller, &inode, name, &pattern(*fill, *len), flags)?;
            }
            FileOp::RemoveXattr { .. } => vfs.removexattr(&caller, &inode, name)?,
            FileOp::GetXattr { .. } => return Ok(Outcome::Data(vfs.getxattr(&caller, &inode, name)?)),
            _ => return Ok(Outcome::Names(split_names(&vfs.listxattr(&caller, &inode)?))),
        }
        Ok(Outcome::Done)
    }
}

/// Whether the end of a range exceeds a signed offset: the kernel then answers EINVAL.
fn wraps(off: u64, len: usize) -> bool {
    i64::try_from(off.saturating_add(len as u64)).is_err()
}

fn read(handle: &Handle<'_>, off: u64, len: usize) -> Result<Vec<u8>, Errno> {
    let mut data = vec![0; len];
    let n = match handle.read_at(&mut data, off) {
        Ok(_) | Err(Errno::ISDIR) if wraps(off, len) => return Err(Errno::INVAL),
        n => n?,
    };
    data.truncate(n);
    Ok(data)
}

fn open_flags(flags: OFlags) -> OpenFlags {
    let mut out = match flags & OFlags::ACCMODE {
        OFlags::RDONLY => OpenFlags::READ,
        OFlags::WRONLY => OpenFlags::WRITE,
        _ => OpenFlags::READ | OpenFlags::WRITE,
    };
    for (theirs, ours) in [
        (OFlags::CREATE, OpenFlags::CREATE),
        (OFlags::EXCL, OpenFlags::EXCL),
        (OFlags::TRUNC, OpenFlags::TRUNC),
        (OFlags::APPEND, OpenFlags::APPEND),
        (OFlags::DIRECTORY, OpenFlags::DIRECTORY),
        (OFlags::NOFOLLOW, OpenFlags::NOFOLLOW),
    ] {
        if flags.contains(theirs) {
            out |= ours;
        }
    }
    out
}

fn set_time(t: TimeArg) -> Option<SetTime> {
    match t {
        TimeArg::Now => Some(SetTime::Now),
        TimeArg::Omit => None,
        TimeArg::At(sec, nsec) => Some(SetTime::At(uvfs::Time::new(sec, nsec))),
    }
}

fn view(a: &Attr) -> UserView {
    let rdev = makedev((a.rdev >> 8) & 0xfff, (a.rdev & 0xff) | (a.rdev >> 12) & 0xfff00);
    UserView {
        ino: a.ino,
        mode: a.mode,
        nlink: a.nlink.into(),
        uid: a.uid,
        gid: a.gid,
        rdev,
        size: a.size,
        mtime: (a.mtime.sec(), a.mtime.nsec()),
        ctime: (a.ctime.sec(), a.ctime.nsec()),
    }
}

impl Side for InProcess<'_> {
    fn apply(&mut self, step: &TestStep) -> Outcome {
        self.context.set_cred(cred(step.who));
        let outcome = self.run(&step.op);
        self.context.set_cred(cred(Who::Root));
        match outcome {
            Ok(outcome) => outcome,
            Err(Fail::NoSlot) => Outcome::NoSlot,
            Err(Fail::Unspecified) => Outcome::Unspecified,
            Err(Fail::Errno(e)) => Outcome::Failed(e),
        }
    }

    fn look(&mut self, target: &TargetPath) -> Option<UserView> {
        self.attr(target).ok().map(|a| view(&a))
    }

    fn tree(&mut self) -> Result<TreeView, Errno> {
        let top = self.vfs.context(cred(Who::Root));
        let mut tree = TreeView::new();
        add(&top, Vec::new(), &mut tree, &mut BTreeMap::new())?;
        Ok(tree)
    }

    fn drop_slot(&mut self, slot: usize) {
        self.slots[slot] = None;
    }
}

fn add(
    top: &Context<'_>,
    path: Vec<u8>,
    tree: &mut TreeView,
    seen: &mut BTreeMap<u64, Vec<u8>>,
) -> Result<(), Errno> {
    let full = [b"/", &path[..]].concat();
    let view = view(&top.lstat(&full)?);
    let alias = seen.entry(view.ino).or_insert_with(|| path.clone()).clone();
    let mut entry = ViewEntry { view, alias, content: Vec::new(), xattrs: BTreeMap::new() };
    let fmt = entry.view.mode & S_IFMT;
    if fmt == S_IFLNK {
        entry.content = top.readlink(&full)?;
    } else if fmt == S_IFREG || fmt == S_IFDIR {
        for name in top.listxattr(&full)? {
            let value = top.getxattr(&full, &name)?;
            entry.xattrs.insert(name, value);
        }
    }
    if fmt == S_IFREG {
        let handle = top.open(&full, OpenFlags::READ, 0)?;
        entry.content = content_digest(&read(&handle, 0, CONTENT_LIMIT)?);
    }
    tree.insert(path.clone(), entry);
    if fmt == S_IFDIR {
        // In order of names, so that the first name of a file is the same everywhere.
        let mut children = top.readdir(&full)?;
        children.sort_by(|a, b| a.name.cmp(&b.name));
        for child in children {
            let below = if path.is_empty() { child.name } else { [&path[..], b"/", &child.name].concat() };
            add(top, below, tree, seen)?;
        }
    }
    Ok(())
}
