//! A directory of the host as a target: operations are system calls.
//!
//! Each target has its own thread with its own root directory (the target), working directory, umask and user ids.
//! So absolute paths and `..` stay inside. Needs root.

use std::collections::{BTreeMap, BTreeSet};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Sender, channel};
use std::thread::JoinHandle;

use rustix::fs::{
    self, AtFlags, CWD, FallocateFlags, FileType, Gid, Mode, OFlags, SeekFrom, Timespec, Timestamps, Uid,
};
use rustix::io::{self, Errno};
use rustix::thread as ids;

use crate::ops::{
    At, Base, Bits, Falloc, FileOp, SLOTS, TargetPath, TestStep, TimeArg, Whence, Who, pattern,
};
use crate::results_agree::{
    CONTENT_LIMIT, Outcome, S_IFDIR, S_IFLNK, S_IFMT, S_IFREG, Side, TreeView, UserView, ViewEntry,
    content_digest,
};
use crate::sys;

type Job = Box<dyn FnOnce(&mut Host) + Send>;

/// A host directory.
pub struct HostSide {
    jobs: Option<Sender<Job>>,
    thread: Option<JoinHandle<()>>,
}

impl HostSide {
    /// Operations inside `dir`, which must exist.
    pub fn new(dir: &Path) -> Result<Self, Errno> {
        let (jobs, todo) = channel::<Job>();
        let (ready, started) = channel();
        let dir: PathBuf = dir.into();
        let thread = std::thread::spawn(move || {
            let enter = || {
                sys::unshare_fs()?;
                rustix::process::chroot(&dir)?;
                rustix::process::chdir("/")?;
                rustix::process::umask(Bits(0o022).mode());
                Ok(())
            };
            let entered: Result<(), Errno> = enter();
            let go = entered.is_ok();
            if ready.send(entered).is_err() || !go {
                return;
            }
            let mut host = Host { slots: [const { None }; SLOTS] };
            for job in todo {
                job(&mut host);
            }
        });
        started.recv().map_err(|_| Errno::IO)??;
        Ok(Self { jobs: Some(jobs), thread: Some(thread) })
    }

    fn call<R: Send + 'static>(&self, f: impl FnOnce(&mut Host) -> R + Send + 'static) -> R {
        let (reply, answer) = channel();
        let job: Job = Box::new(move |host| {
            let _ = reply.send(f(host));
        });
        self.jobs.as_ref().map(|jobs| jobs.send(job));
        answer.recv().expect("the target's thread died; its panic stands above")
    }
}

impl Drop for HostSide {
    fn drop(&mut self) {
        self.jobs = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl Side for HostSide {
    fn apply(&mut self, step: &TestStep) -> Outcome {
        let step = step.clone();
        self.call(move |host| host.as_user(&step))
    }

    fn look(&mut self, target: &TargetPath) -> Option<UserView> {
        let target = target.clone();
        self.call(move |host| host.stat(&target).ok())
    }

    fn tree(&mut self) -> Result<TreeView, Errno> {
        self.call(|_| {
            let mut tree = TreeView::new();
            let root = fs::open("/", OFlags::DIRECTORY | OFlags::RDONLY, Mode::empty())?;
            let view = view(&fs::fstat(&root)?);
            let xattrs = all_xattrs(&root)?;
            tree.insert(Vec::new(), ViewEntry { view, alias: Vec::new(), content: Vec::new(), xattrs });
            walk(root.as_fd(), &mut Vec::new(), &mut tree, &mut BTreeMap::new())?;
            Ok(tree)
        })
    }

    fn drop_slot(&mut self, slot: usize) {
        self.call(move |host| host.slots[slot] = None);
    }
}

/// The state of the target's thread.
struct Host {
    slots: [Option<OwnedFd>; SLOTS],
}

/// A slot in which nothing is open, or an error of the system.
enum Fail {
    NoSlot,
    Sys(Errno),
}

impl From<Errno> for Fail {
    fn from(e: Errno) -> Self {
        Fail::Sys(e)
    }
}

impl Host {
    fn as_user(&mut self, step: &TestStep) -> Outcome {
        if step.who == Who::Root {
            return self.run(&step.op);
        }
        let (uid, gid, groups) = step.who.ids();
        let groups: Vec<Gid> = groups.iter().map(|&g| Gid::from_raw(g)).collect();
        switch(uid, gid, &groups).expect("this needs root's right to become another user");
        let outcome = self.run(&step.op);
        let root = Uid::from_raw(0);
        ids::set_thread_res_uid(root, root, root)
            .and_then(|()| switch(0, 0, &[]))
            .expect("root's ids can be taken back: the saved id is root's");
        outcome
    }

    fn run(&mut self, op: &FileOp) -> Outcome {
        let r = match op {
            FileOp::Read { .. }
            | FileOp::Pread { .. }
            | FileOp::Write { .. }
            | FileOp::Pwrite { .. }
            | FileOp::Seek { .. }
            | FileOp::Ftruncate { .. }
            | FileOp::Fallocate { .. }
            | FileOp::Fsync { .. }
            | FileOp::Close { .. } => self.file(op),
            FileOp::Chmod { .. }
            | FileOp::Chown { .. }
            | FileOp::Utimens { .. }
            | FileOp::SetXattr { .. }
            | FileOp::GetXattr { .. }
            | FileOp::ListXattr { .. }
            | FileOp::RemoveXattr { .. }
            | FileOp::Stat { .. } => self.attribute(op),
            _ => self.namespace(op),
        };
        match r {
            Ok(outcome) => outcome,
            Err(Fail::NoSlot) => Outcome::NoSlot,
            Err(Fail::Sys(e)) => Outcome::Failed(e),
        }
    }

    fn fd(&self, slot: usize) -> Result<BorrowedFd<'_>, Fail> {
        self.slots[slot].as_ref().map(AsFd::as_fd).ok_or(Fail::NoSlot)
    }

    fn base(&self, at: &At) -> Result<BorrowedFd<'_>, Fail> {
        match at.base {
            Base::Cwd => Ok(CWD),
            Base::Slot(s) => self.fd(s),
        }
    }

    fn stat(&self, target: &TargetPath) -> Result<UserView, Fail> {
        let stat = match target {
            TargetPath::Path { at, follow } => {
                fs::statat(self.base(at)?, &at.path[..], follow_flag(*follow))?
            }
            TargetPath::Slot(s) => fs::fstat(self.fd(*s)?)?,
        };
        Ok(view(&stat))
    }

    fn namespace(&mut self, op: &FileOp) -> Result<Outcome, Fail> {
        match op {
            FileOp::Open { slot, at, flags, mode } => {
                let fd = fs::openat(self.base(at)?, &at.path[..], *flags | OFlags::CLOEXEC, mode.mode())?;
                self.slots[*slot] = Some(fd);
            }
            FileOp::Mkdir { at, mode } => fs::mkdirat(self.base(at)?, &at.path[..], mode.mode())?,
            FileOp::Mknod { at, mode, rdev } => {
                let kind = FileType::from_raw_mode(mode.0);
                fs::mknodat(self.base(at)?, &at.path[..], kind, Bits(mode.0 & 0o7777).mode(), *rdev)?;
            }
            FileOp::Symlink { target, at } => fs::symlinkat(&target[..], self.base(at)?, &at.path[..])?,
            FileOp::Link { old, new, follow } => {
                let flags = if *follow { AtFlags::SYMLINK_FOLLOW } else { AtFlags::empty() };
                fs::linkat(self.base(old)?, &old.path[..], self.base(new)?, &new.path[..], flags)?;
            }
            FileOp::Unlink { at } => fs::unlinkat(self.base(at)?, &at.path[..], AtFlags::empty())?,
            FileOp::Rmdir { at } => fs::unlinkat(self.base(at)?, &at.path[..], AtFlags::REMOVEDIR)?,
            FileOp::Rename { old, new, flags } => {
                fs::renameat_with(self.base(old)?, &old.path[..], self.base(new)?, &new.path[..], *flags)?;
            }
            FileOp::Truncate { path, len } => sys::truncate(path, *len)?,
            FileOp::Readlink { at } => {
                let target = fs::readlinkat(self.base(at)?, &at.path[..], Vec::new())?;
                return Ok(Outcome::Data(target.into_bytes()));
            }
            FileOp::Access { at, access } => {
                fs::accessat(self.base(at)?, &at.path[..], *access, AtFlags::EACCESS)?;
            }
            FileOp::Readdir { at } => {
                let flags = OFlags::DIRECTORY | OFlags::RDONLY | OFlags::CLOEXEC;
                let fd = fs::openat(self.base(at)?, &at.path[..], flags, Mode::empty())?;
                return Ok(Outcome::Names(names(fd.as_fd())?));
            }
            FileOp::Chdir { path } => rustix::process::chdir(&path[..])?,
            FileOp::Umask { mask } => {
                rustix::process::umask(mask.mode());
            }
            _ => return Ok(Outcome::Unspecified),
        }
        Ok(Outcome::Done)
    }

    fn file(&mut self, op: &FileOp) -> Result<Outcome, Fail> {
        if let FileOp::Read { slot, .. }
        | FileOp::Pread { slot, .. }
        | FileOp::Write { slot, .. }
        | FileOp::Pwrite { slot, .. } = op
        {
            // Data in a FIFO belongs to the kernel; a file system never sees it.
            if !matches!(view(&fs::fstat(self.fd(*slot)?)?).mode & S_IFMT, S_IFREG | S_IFDIR) {
                return Ok(Outcome::Unspecified);
            }
        }
        match op {
            FileOp::Close { slot } => {
                self.fd(*slot)?;
                self.slots[*slot] = None;
            }
            FileOp::Read { slot, len } => {
                let mut buf = vec![0; *len];
                let n = io::read(self.fd(*slot)?, &mut buf)?;
                buf.truncate(n);
                return Ok(Outcome::Data(buf));
            }
            FileOp::Pread { slot, off, len } => {
                let mut buf = vec![0; *len];
                let n = io::pread(self.fd(*slot)?, &mut buf, *off)?;
                buf.truncate(n);
                return Ok(Outcome::Data(buf));
            }
            FileOp::Write { slot, len, fill } => {
                return Ok(Outcome::Number(io::write(self.fd(*slot)?, &pattern(*fill, *len))? as u64));
            }
            FileOp::Pwrite { slot, off, len, fill } => {
                return Ok(Outcome::Number(io::pwrite(self.fd(*slot)?, &pattern(*fill, *len), *off)? as u64));
            }
            FileOp::Seek { slot, whence, off } => {
                // Positions in directories are cookies, which only the same target understands.
                if view(&fs::fstat(self.fd(*slot)?)?).is_dir() {
                    return Ok(Outcome::Unspecified);
                }
                let to = match whence {
                    Whence::Set if *off < 0 => return Ok(Outcome::Failed(Errno::INVAL)),
                    Whence::Set => SeekFrom::Start(*off as u64),
                    Whence::Cur => SeekFrom::Current(*off),
                    Whence::End => SeekFrom::End(*off),
                    Whence::Data => SeekFrom::Data(*off as u64),
                    Whence::Hole => SeekFrom::Hole(*off as u64),
                };
                return Ok(Outcome::Number(fs::seek(self.fd(*slot)?, to)?));
            }
            FileOp::Ftruncate { slot, len } => fs::ftruncate(self.fd(*slot)?, *len)?,
            FileOp::Fallocate { slot, how, off, len } => {
                let flags = match how {
                    Falloc::Allocate => FallocateFlags::empty(),
                    Falloc::KeepSize => FallocateFlags::KEEP_SIZE,
                    Falloc::Punch => FallocateFlags::KEEP_SIZE | FallocateFlags::PUNCH_HOLE,
                };
                fs::fallocate(self.fd(*slot)?, flags, *off, *len)?;
            }
            FileOp::Fsync { slot } => fs::fsync(self.fd(*slot)?)?,
            _ => return Ok(Outcome::Unspecified),
        }
        Ok(Outcome::Done)
    }

    fn attribute(&mut self, op: &FileOp) -> Result<Outcome, Fail> {
        match op {
            FileOp::Stat { target } => return Ok(Outcome::Node(self.stat(target)?)),
            FileOp::Chmod { target, mode } => match target {
                TargetPath::Path { at, .. } => {
                    fs::chmodat(self.base(at)?, &at.path[..], mode.mode(), AtFlags::empty())?;
                }
                TargetPath::Slot(s) => fs::fchmod(self.fd(*s)?, mode.mode())?,
            },
            FileOp::Chown { target, uid, gid } => {
                let (uid, gid) = (uid.map(Uid::from_raw), gid.map(Gid::from_raw));
                match target {
                    TargetPath::Path { at, follow } => {
                        fs::chownat(self.base(at)?, &at.path[..], uid, gid, follow_flag(*follow))?;
                    }
                    TargetPath::Slot(s) => fs::fchown(self.fd(*s)?, uid, gid)?,
                }
            }
            FileOp::Utimens { target, atime, mtime } => {
                let times = Timestamps { last_access: timespec(*atime), last_modification: timespec(*mtime) };
                match target {
                    TargetPath::Path { at, follow } => {
                        fs::utimensat(self.base(at)?, &at.path[..], &times, follow_flag(*follow))?;
                    }
                    TargetPath::Slot(s) => fs::futimens(self.fd(*s)?, &times)?,
                }
            }
            _ => return self.xattr(op),
        }
        Ok(Outcome::Done)
    }

    fn xattr(&mut self, op: &FileOp) -> Result<Outcome, Fail> {
        let mut buf = vec![0u8; 8192];
        match op {
            FileOp::SetXattr { target, name, len, fill, flags } => {
                let value = pattern(*fill, *len);
                match target {
                    TargetPath::Path { at, follow: true } => {
                        fs::setxattr(&at.path[..], &name[..], &value, *flags)?
                    }
                    TargetPath::Path { at, .. } => fs::lsetxattr(&at.path[..], &name[..], &value, *flags)?,
                    TargetPath::Slot(s) => fs::fsetxattr(self.fd(*s)?, &name[..], &value, *flags)?,
                }
            }
            FileOp::GetXattr { target, name } => {
                let n = match target {
                    TargetPath::Path { at, follow: true } => {
                        fs::getxattr(&at.path[..], &name[..], &mut buf[..])?
                    }
                    TargetPath::Path { at, .. } => fs::lgetxattr(&at.path[..], &name[..], &mut buf[..])?,
                    TargetPath::Slot(s) => fs::fgetxattr(self.fd(*s)?, &name[..], &mut buf[..])?,
                };
                buf.truncate(n);
                return Ok(Outcome::Data(buf));
            }
            FileOp::ListXattr { target } => {
                let n = match target {
                    TargetPath::Path { at, follow: true } => fs::listxattr(&at.path[..], &mut buf[..])?,
                    TargetPath::Path { at, .. } => fs::llistxattr(&at.path[..], &mut buf[..])?,
                    TargetPath::Slot(s) => fs::flistxattr(self.fd(*s)?, &mut buf[..])?,
                };
                return Ok(Outcome::Names(split_names(&buf[..n])));
            }
            FileOp::RemoveXattr { target, name } => match target {
                TargetPath::Path { at, follow: true } => fs::removexattr(&at.path[..], &name[..])?,
                TargetPath::Path { at, .. } => fs::lremovexattr(&at.path[..], &name[..])?,
                TargetPath::Slot(s) => fs::fremovexattr(self.fd(*s)?, &name[..])?,
            },
            _ => return Ok(Outcome::Unspecified),
        }
        Ok(Outcome::Done)
    }
}

/// Becomes `uid` but keeps root as the saved id, so that it can switch back.
fn switch(uid: u32, gid: u32, groups: &[Gid]) -> Result<(), Errno> {
    let (uid, gid) = (Uid::from_raw(uid), Gid::from_raw(gid));
    ids::set_thread_groups(groups)?;
    ids::set_thread_res_gid(gid, gid, gid)?;
    ids::set_thread_res_uid(uid, uid, Uid::from_raw(0))
}

fn follow_flag(follow: bool) -> AtFlags {
    if follow { AtFlags::empty() } else { AtFlags::SYMLINK_NOFOLLOW }
}

fn timespec(t: TimeArg) -> Timespec {
    match t {
        TimeArg::Now => Timespec { tv_sec: 0, tv_nsec: fs::UTIME_NOW },
        TimeArg::Omit => Timespec { tv_sec: 0, tv_nsec: fs::UTIME_OMIT },
        TimeArg::At(sec, nsec) => Timespec { tv_sec: sec, tv_nsec: nsec.into() },
    }
}

fn view(s: &fs::Stat) -> UserView {
    UserView {
        ino: s.st_ino,
        mode: s.st_mode,
        nlink: s.st_nlink,
        uid: s.st_uid,
        gid: s.st_gid,
        rdev: s.st_rdev,
        size: s.st_size as u64,
        mtime: (s.st_mtime, s.st_mtime_nsec as u32),
        ctime: (s.st_ctime, s.st_ctime_nsec as u32),
    }
}

/// Splits a list of nul-terminated names.
pub fn split_names(list: &[u8]) -> BTreeSet<(Vec<u8>, u32)> {
    list.split(|&b| b == 0).filter(|n| !n.is_empty()).map(|n| (n.to_vec(), 0)).collect()
}

fn names(dir: BorrowedFd<'_>) -> Result<BTreeSet<(Vec<u8>, u32)>, Errno> {
    let mut out = BTreeSet::new();
    let mut buf = vec![MaybeUninit::uninit(); 4096];
    let mut raw = fs::RawDir::new(dir, &mut buf);
    while let Some(entry) = raw.next() {
        let entry = entry?;
        let fmt = entry.file_type().as_raw_mode() & S_IFMT;
        // A name listed twice would vanish in a set, so it is recorded as a name that cannot exist.
        if !out.insert((entry.file_name().to_bytes().to_vec(), fmt)) {
            out.insert(([b"twice/", entry.file_name().to_bytes()].concat(), fmt));
        }
    }
    Ok(out)
}

fn walk(
    dir: BorrowedFd<'_>,
    path: &mut Vec<u8>,
    tree: &mut TreeView,
    seen: &mut BTreeMap<u64, Vec<u8>>,
) -> Result<(), Errno> {
    for (name, _) in names(dir)? {
        if name == b"." || name == b".." {
            continue;
        }
        let before = path.len();
        if before > 0 {
            path.push(b'/');
        }
        path.extend_from_slice(&name);
        let view = view(&fs::statat(dir, &name[..], AtFlags::SYMLINK_NOFOLLOW)?);
        let alias = seen.entry(view.ino).or_insert_with(|| path.clone()).clone();
        let mut entry = ViewEntry { view, alias, content: Vec::new(), xattrs: BTreeMap::new() };
        let fmt = entry.view.mode & S_IFMT;
        if fmt == S_IFLNK {
            entry.content = fs::readlinkat(dir, &name[..], Vec::new())?.into_bytes();
        } else if fmt == S_IFREG || entry.view.is_dir() {
            let fd = fs::openat(
                dir,
                &name[..],
                OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC,
                Mode::empty(),
            )?;
            entry.xattrs = all_xattrs(&fd)?;
            if fmt == S_IFREG {
                entry.content = content_digest(&read_all(&fd)?);
            } else {
                walk(fd.as_fd(), path, tree, seen)?;
            }
        }
        tree.insert(path.clone(), entry);
        path.truncate(before);
    }
    Ok(())
}

fn read_all(fd: &OwnedFd) -> Result<Vec<u8>, Errno> {
    let mut data = vec![0; CONTENT_LIMIT];
    let mut n = 0;
    loop {
        match io::pread(fd, &mut data[n..], n as u64)? {
            0 => break,
            more => n += more,
        }
    }
    data.truncate(n);
    Ok(data)
}

fn all_xattrs(fd: &OwnedFd) -> Result<BTreeMap<Vec<u8>, Vec<u8>>, Errno> {
    let mut buf = vec![0; 8192];
    let n = match fs::flistxattr(fd, &mut buf[..]) {
        Err(Errno::OPNOTSUPP) => 0,
        n => n?,
    };
    let mut out = BTreeMap::new();
    for (name, _) in split_names(&buf[..n]) {
        let mut value = vec![0; 8192];
        let n = fs::fgetxattr(fd, &name[..], &mut value[..])?;
        value.truncate(n);
        out.insert(name, value);
    }
    Ok(out)
}
