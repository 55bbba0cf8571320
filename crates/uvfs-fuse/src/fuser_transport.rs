//! The transport on top of the crate `fuser`: the only file that knows it.
//!
//! `fuser` parses requests and writes replies, with one thread and one cloned device descriptor
//! each per worker; this file translates between its types and those of `transport.rs`, and says
//! in INIT what we can do. It keeps nothing. What `fuser` cannot carry, and what follows:
//!
//! - an entry's node id is also its inode number, so `st_ino` is the node id, not `Attr::ino`:
//!   unique and constant while the kernel knows the node;
//! - FATTR_KILL_SUIDGID is not handed on: see `Core::set`;
//! - times before 1970 arrive mirrored: see [`time_in`];
//! - O_TMPFILE is answered ENOSYS, which callers see as EOPNOTSUPP.

use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;
use std::task::{Wake, Waker};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use fuser::{
    AccessFlags, Config, CopyFileRangeFlags, FileAttr, FileHandle, FileType, Filesystem, FopenFlags,
    Generation, INodeNo, InitFlags, IoctlFlags, KernelConfig, LockOwner, OpenFlags, PollEvents, PollFlags,
    PollNotifier, RenameFlags, ReplyAttr, ReplyBmap, ReplyCreate, ReplyData, ReplyDirectory,
    ReplyDirectoryPlus, ReplyEmpty, ReplyEntry, ReplyIoctl, ReplyLseek, ReplyOpen, ReplyPoll, ReplyStatfs,
    ReplyWrite, ReplyXattr, Request, Session, SessionACL, TimeOrNow, WriteFlags,
};
use uvfs::{Attr, Errno, Result, SetAttr, SetTime, StatFs, Time, mode};

use crate::frontend::{Frontend, Write};
use crate::transport::{
    Attributes, Caller, DirReply, Entry, Looked, NodeId, Opened, Reply, Transport, Xattr,
};

/// What requests come through, for who wants to know.
pub const NAME: &str = "fuser";

/// Largest write (and, through the page limit derived from it, read) of one request.
const MAX_WRITE: u32 = 1 << 20;
/// Read-ahead and other requests that nobody waits for, at the same time.
const MAX_BACKGROUND: u16 = 64;
/// `st_blksize`.
const BLOCK_SIZE: u32 = 4096;

/// What is asked of the kernel, each where it has it.
///
/// - DO_READDIRPLUS without READDIRPLUS_AUTO: entries always come with their nodes. `fuser` sends
///   a node's id as its inode number, so plain entries would have to look every name up all the
///   same; and the automatic form stops after the first buffer for callers that stat late, as du
///   and find do (40 000 files on two cores: du 0.6 s against 6 s, find without stat 0.45 s
///   against 0.2 s).
/// - HANDLE_KILLPRIV_V2: without it the kernel asks for `security.capability` before every write.
/// - POSIX_ACL and DONT_MASK only where the root's driver keeps access control lists (see `init`): the kernel
///   then asks for the list of what is not the caller's own, once as long as it knows the inode.
/// - No ATOMIC_O_TRUNC: it would save a request, but then the kernel asks for the truncation before
///   it looks whether the file is being executed, and a running program loses its text.
/// - No WRITEBACK_CACHE: with it the kernel owns size and times of a file, behind the back of
///   whoever else uses the VFS. No POSIX or flock locks: they stay with the kernel. No
///   EXPORT_SUPPORT: that needs lookups by id of what the kernel has forgotten.
const WANTED: [InitFlags; 8] = [
    InitFlags::FUSE_ASYNC_READ,
    InitFlags::FUSE_BIG_WRITES,
    InitFlags::FUSE_MAX_PAGES,
    InitFlags::FUSE_ASYNC_DIO,
    InitFlags::FUSE_DO_READDIRPLUS,
    InitFlags::FUSE_PARALLEL_DIROPS,
    InitFlags::FUSE_HANDLE_KILLPRIV_V2,
    InitFlags::FUSE_CACHE_SYMLINKS,
];

/// A `fuser` session; see [`Transport`].
pub(crate) struct Fuser(Session<Adapter>);

impl Transport for Fuser {
    fn connect(device: OwnedFd, frontend: Arc<Frontend>, threads: usize) -> io::Result<Self> {
        let mut config = Config::default();
        config.n_threads = Some(threads);
        // Where fusermount3 had to open the device for us, the threads have to share it.
        config.clone_fd = File::options().read(true).write(true).open("/dev/fuse").is_ok();
        // Who may use the mount is the kernel's decision (allow_other); a second one could only differ.
        Session::from_fd(Adapter { frontend }, device, SessionACL::All, config).map(Self)
    }

    fn run(self) -> io::Result<()> {
        self.0.run()
    }
}

/// Who polls in the kernel: woken, it asks again.
struct Notify(PollNotifier);

impl Wake for Notify {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        // One write to the device, which waits for nobody. It fails where the file is closed or the
        // mount gone, and with it who polled.
        if let Err(error) = self.0.clone().notify() {
            tracing::debug!(%error, "nobody polls any more");
        }
    }
}

/// What `fuser` calls; each method only translates.
struct Adapter {
    frontend: Arc<Frontend>,
}

fn caller(request: &Request) -> Caller {
    Caller { uid: request.uid(), gid: request.gid(), pid: request.pid(), umask: 0 }
}

fn maker(request: &Request, umask: u32) -> Caller {
    Caller { umask, ..caller(request) }
}

fn errno(error: Errno) -> fuser::Errno {
    fuser::Errno::from_i32(error.raw_os_error())
}

/// `fuser` reads a time before 1970 as `epoch - (-seconds, nanoseconds)`; the nanoseconds count
/// forward, so that is another time. Taking it apart the same way gives back what the kernel sent.
fn time_in(time: SystemTime) -> Time {
    match time.duration_since(UNIX_EPOCH) {
        Ok(after) => Time::new(i64::try_from(after.as_secs()).unwrap_or(i64::MAX), after.subsec_nanos()),
        Err(before) => {
            let before = before.duration();
            Time::new(0i64.saturating_sub_unsigned(before.as_secs()), before.subsec_nanos())
        }
    }
}

/// Cached times are within [`Time`]'s range, so neither sum can overflow.
fn time_out(time: Time) -> SystemTime {
    let nsec = Duration::from_nanos(u64::from(time.nsec()));
    match u64::try_from(time.sec()) {
        Ok(sec) => UNIX_EPOCH + Duration::from_secs(sec) + nsec,
        Err(_) => UNIX_EPOCH - Duration::from_secs(time.sec().unsigned_abs()) + nsec,
    }
}

fn set_time(time: Option<TimeOrNow>) -> Option<SetTime> {
    time.map(|time| match time {
        TimeOrNow::Now => SetTime::Now,
        TimeOrNow::SpecificTime(time) => SetTime::At(time_in(time)),
    })
}

fn kind(mode: u32) -> FileType {
    match mode & mode::S_IFMT {
        mode::S_IFDIR => FileType::Directory,
        mode::S_IFLNK => FileType::Symlink,
        mode::S_IFIFO => FileType::NamedPipe,
        mode::S_IFSOCK => FileType::Socket,
        mode::S_IFCHR => FileType::CharDevice,
        mode::S_IFBLK => FileType::BlockDevice,
        _ => FileType::RegularFile,
    }
}

fn file_attr(node: NodeId, attr: &Attr) -> FileAttr {
    FileAttr {
        ino: INodeNo(node),
        size: attr.size,
        blocks: attr.blocks,
        atime: time_out(attr.atime),
        mtime: time_out(attr.mtime),
        ctime: time_out(attr.ctime),
        crtime: UNIX_EPOCH,
        kind: kind(attr.mode),
        perm: (attr.mode & 0o7777) as u16,
        nlink: attr.nlink,
        uid: attr.uid,
        gid: attr.gid,
        rdev: attr.rdev,
        blksize: BLOCK_SIZE,
        flags: 0,
    }
}

fn open_flags(opened: &Opened) -> FopenFlags {
    let mut flags = FopenFlags::empty();
    flags.set(FopenFlags::FOPEN_KEEP_CACHE, opened.keep_cache);
    flags.set(FopenFlags::FOPEN_CACHE_DIR, opened.cache_dir);
    flags.set(FopenFlags::FOPEN_DIRECT_IO, opened.direct_io);
    flags
}

impl Reply<Looked> for ReplyEntry {
    fn send(self, answer: Result<Looked>) {
        match answer {
            Ok(Looked::Found(entry)) => Reply::<Entry>::send(self, Ok(entry)),
            // Node 0: the name is known not to exist.
            Ok(Looked::Absent(ttl)) => {
                self.entry(&ttl, &file_attr(0, &Attr::default()), Generation(0));
            }
            Err(error) => self.error(errno(error)),
        }
    }
}

impl Reply<Entry> for ReplyEntry {
    fn send(self, answer: Result<Entry>) {
        match answer {
            Ok(entry) => self.entry_with_ttls(
                &entry.attr_ttl,
                &entry.entry_ttl,
                &file_attr(entry.node, &entry.attr),
                Generation(entry.generation),
            ),
            Err(error) => self.error(errno(error)),
        }
    }
}

impl Reply<(Entry, Opened)> for ReplyCreate {
    fn send(self, answer: Result<(Entry, Opened)>) {
        match answer {
            Ok((entry, opened)) => self.created(
                &entry.attr_ttl.min(entry.entry_ttl),
                &file_attr(entry.node, &entry.attr),
                Generation(entry.generation),
                FileHandle(opened.fh),
                open_flags(&opened),
            ),
            Err(error) => self.error(errno(error)),
        }
    }
}

impl Reply<Attributes> for ReplyAttr {
    fn send(self, answer: Result<Attributes>) {
        match answer {
            Ok(got) => self.attr(&got.ttl, &file_attr(got.node, &got.attr)),
            Err(error) => self.error(errno(error)),
        }
    }
}

impl Reply<Opened> for ReplyOpen {
    fn send(self, answer: Result<Opened>) {
        match answer {
            Ok(opened) => self.opened(FileHandle(opened.fh), open_flags(&opened)),
            Err(error) => self.error(errno(error)),
        }
    }
}

impl Reply<()> for ReplyEmpty {
    fn send(self, answer: Result<()>) {
        match answer {
            Ok(()) => self.ok(),
            Err(error) => self.error(errno(error)),
        }
    }
}

impl Reply<&[u8]> for ReplyData {
    fn send(self, answer: Result<&[u8]>) {
        match answer {
            Ok(bytes) => self.data(bytes),
            Err(error) => self.error(errno(error)),
        }
    }
}

impl Reply<u32> for ReplyWrite {
    fn send(self, answer: Result<u32>) {
        match answer {
            Ok(len) => self.written(len),
            Err(error) => self.error(errno(error)),
        }
    }
}

impl Reply<uvfs::PollEvents> for ReplyPoll {
    fn send(self, answer: Result<uvfs::PollEvents>) {
        match answer {
            Ok(ready) => self.poll(PollEvents::from_bits_truncate(ready.bits())),
            Err(error) => self.error(errno(error)),
        }
    }
}

impl Reply<i64> for ReplyLseek {
    fn send(self, answer: Result<i64>) {
        match answer {
            Ok(offset) => self.offset(offset),
            Err(error) => self.error(errno(error)),
        }
    }
}

impl Reply<Xattr> for ReplyXattr {
    fn send(self, answer: Result<Xattr>) {
        match answer {
            Ok(Xattr::Size(size)) => self.size(size),
            Ok(Xattr::Bytes(bytes)) => self.data(&bytes),
            Err(error) => self.error(errno(error)),
        }
    }
}

impl Reply<StatFs> for ReplyStatfs {
    fn send(self, answer: Result<StatFs>) {
        match answer {
            Ok(s) => {
                self.statfs(s.blocks, s.bfree, s.bavail, s.files, s.ffree, s.bsize, s.namelen, s.bsize);
            }
            Err(error) => self.error(errno(error)),
        }
    }
}

impl DirReply for ReplyDirectoryPlus {
    fn add(&mut self, name: &[u8], next: u64, entry: &Entry) -> bool {
        let ttl = entry.entry_ttl.min(entry.attr_ttl);
        let attr = file_attr(entry.node, &entry.attr);
        let generation = Generation(entry.generation);
        // The inherent `add` says whether the buffer was full.
        !Self::add(self, attr.ino, next, OsStr::from_bytes(name), &ttl, &attr, generation)
    }
    fn plus(&self) -> bool {
        true
    }
    fn send(self, outcome: Result<()>) {
        match outcome {
            Ok(()) => self.ok(),
            Err(error) => self.error(errno(error)),
        }
    }
}

impl DirReply for ReplyDirectory {
    fn add(&mut self, name: &[u8], next: u64, entry: &Entry) -> bool {
        !Self::add(self, INodeNo(entry.node), next, kind(entry.attr.mode), OsStr::from_bytes(name))
    }
    fn plus(&self) -> bool {
        false
    }
    fn send(self, outcome: Result<()>) {
        match outcome {
            Ok(()) => self.ok(),
            Err(error) => self.error(errno(error)),
        }
    }
}

impl Filesystem for Adapter {
    fn init(&mut self, _: &Request, config: &mut KernelConfig) -> io::Result<()> {
        for flag in WANTED {
            if config.add_capabilities(flag).is_err() {
                tracing::debug!(?flag, "the kernel does not have");
            }
        }
        // Both or none: a default list takes the place of the umask, so that the kernel must not apply it.
        let lists = InitFlags::FUSE_POSIX_ACL | InitFlags::FUSE_DONT_MASK;
        if self.frontend.keeps_acls() && config.add_capabilities(lists).is_err() {
            tracing::debug!("the kernel does not check access control lists");
        }
        if self.frontend.changes_unseen() && config.add_capabilities(InitFlags::FUSE_AUTO_INVAL_DATA).is_err()
        {
            tracing::debug!("the kernel keeps pages of open files that others change");
        }
        // Refused values leave the default, which is smaller.
        let _ = config.set_max_write(MAX_WRITE);
        let _ = config.set_max_background(MAX_BACKGROUND);
        Ok(())
    }

    fn lookup(&self, req: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        self.frontend.lookup(caller(req), parent.0, name.as_bytes(), reply);
    }

    // `batch_forget` comes here too, one node at a time.
    fn forget(&self, _: &Request, ino: INodeNo, nlookup: u64) {
        self.frontend.forget(ino.0, nlookup);
    }

    fn getattr(&self, req: &Request, ino: INodeNo, _: Option<FileHandle>, reply: ReplyAttr) {
        self.frontend.getattr(caller(req), ino.0, reply);
    }

    fn setattr(
        &self,
        req: &Request,
        ino: INodeNo,
        mode: Option<u32>,
        uid: Option<u32>,
        gid: Option<u32>,
        size: Option<u64>,
        atime: Option<TimeOrNow>,
        mtime: Option<TimeOrNow>,
        ctime: Option<SystemTime>,
        fh: Option<FileHandle>,
        _: Option<SystemTime>,
        _: Option<SystemTime>,
        _: Option<SystemTime>,
        _: Option<fuser::BsdFileFlags>,
        reply: ReplyAttr,
    ) {
        let set = SetAttr {
            mode,
            uid,
            gid,
            size,
            atime: set_time(atime),
            mtime: set_time(mtime),
            ctime: ctime.map(time_in),
            kill_suidgid: false,
            opened: size.is_some() && fh.is_some(),
        };
        self.frontend.setattr(caller(req), ino.0, set, reply);
    }

    fn readlink(&self, req: &Request, ino: INodeNo, reply: ReplyData) {
        self.frontend.readlink(caller(req), ino.0, reply);
    }

    // Without DONT_MASK the kernel has applied the umask here and below; once more changes nothing.
    fn mknod(
        &self,
        req: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        umask: u32,
        rdev: u32,
        reply: ReplyEntry,
    ) {
        self.frontend.mknod(maker(req, umask), parent.0, name.as_bytes(), mode, rdev, reply);
    }

    fn mkdir(&self, req: &Request, parent: INodeNo, name: &OsStr, mode: u32, umask: u32, reply: ReplyEntry) {
        self.frontend.mkdir(maker(req, umask), parent.0, name.as_bytes(), mode, reply);
    }

    fn unlink(&self, req: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        self.frontend.unlink(caller(req), parent.0, name.as_bytes(), reply);
    }

    fn rmdir(&self, req: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        self.frontend.rmdir(caller(req), parent.0, name.as_bytes(), reply);
    }

    fn symlink(&self, req: &Request, parent: INodeNo, name: &OsStr, target: &Path, reply: ReplyEntry) {
        let target = target.as_os_str().as_bytes();
        self.frontend.symlink(caller(req), parent.0, name.as_bytes(), target, reply);
    }

    fn rename(
        &self,
        req: &Request,
        parent: INodeNo,
        name: &OsStr,
        newparent: INodeNo,
        newname: &OsStr,
        flags: RenameFlags,
        reply: ReplyEmpty,
    ) {
        let (from, to) = ((parent.0, name.as_bytes()), (newparent.0, newname.as_bytes()));
        self.frontend.rename(caller(req), from, to, flags.bits(), reply);
    }

    fn link(&self, req: &Request, ino: INodeNo, newparent: INodeNo, newname: &OsStr, reply: ReplyEntry) {
        self.frontend.link(caller(req), ino.0, newparent.0, newname.as_bytes(), reply);
    }

    fn open(&self, req: &Request, ino: INodeNo, flags: OpenFlags, reply: ReplyOpen) {
        self.frontend.open(caller(req), ino.0, flags.0, reply);
    }

    fn create(
        &self,
        req: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        umask: u32,
        flags: i32,
        reply: ReplyCreate,
    ) {
        self.frontend.create(maker(req, umask), parent.0, name.as_bytes(), mode, flags, reply);
    }

    fn read(
        &self,
        req: &Request,
        ino: INodeNo,
        fh: FileHandle,
        offset: u64,
        size: u32,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyData,
    ) {
        self.frontend.read(caller(req), ino.0, fh.0, offset, size, reply);
    }

    fn write(
        &self,
        req: &Request,
        ino: INodeNo,
        fh: FileHandle,
        offset: u64,
        data: &[u8],
        write_flags: WriteFlags,
        flags: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        let kill_priv = write_flags.contains(WriteFlags::FUSE_WRITE_KILL_SUIDGID);
        // Pages that the kernel writes back belong where they are.
        let append = flags.0 & libc::O_APPEND != 0 && !write_flags.contains(WriteFlags::FUSE_WRITE_CACHE);
        self.frontend.write(caller(req), ino.0, Write { fh: fh.0, offset, kill_priv, append }, data, reply);
    }

    fn release(
        &self,
        req: &Request,
        ino: INodeNo,
        fh: FileHandle,
        _: OpenFlags,
        _: Option<LockOwner>,
        _: bool,
        reply: ReplyEmpty,
    ) {
        self.frontend.release(caller(req), ino.0, fh.0, reply);
    }

    fn fsync(&self, req: &Request, ino: INodeNo, fh: FileHandle, datasync: bool, reply: ReplyEmpty) {
        self.frontend.fsync(caller(req), ino.0, fh.0, datasync, reply);
    }

    fn opendir(&self, _: &Request, ino: INodeNo, _: OpenFlags, reply: ReplyOpen) {
        Reply::<Opened>::send(reply, Ok(self.frontend.opendir(ino.0)));
    }

    fn readdir(&self, req: &Request, ino: INodeNo, _: FileHandle, offset: u64, reply: ReplyDirectory) {
        self.frontend.readdir(caller(req), ino.0, offset, reply);
    }

    fn readdirplus(
        &self,
        req: &Request,
        ino: INodeNo,
        _: FileHandle,
        offset: u64,
        reply: ReplyDirectoryPlus,
    ) {
        self.frontend.readdir(caller(req), ino.0, offset, reply);
    }

    fn statfs(&self, req: &Request, ino: INodeNo, reply: ReplyStatfs) {
        self.frontend.statfs(caller(req), ino.0, reply);
    }

    fn setxattr(
        &self,
        req: &Request,
        ino: INodeNo,
        name: &OsStr,
        value: &[u8],
        flags: i32,
        _: u32,
        reply: ReplyEmpty,
    ) {
        self.frontend.setxattr(caller(req), ino.0, name.as_bytes(), value, flags, reply);
    }

    fn getxattr(&self, req: &Request, ino: INodeNo, name: &OsStr, size: u32, reply: ReplyXattr) {
        self.frontend.getxattr(caller(req), ino.0, name.as_bytes(), size, reply);
    }

    fn listxattr(&self, req: &Request, ino: INodeNo, size: u32, reply: ReplyXattr) {
        self.frontend.listxattr(caller(req), ino.0, size, reply);
    }

    fn removexattr(&self, req: &Request, ino: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        self.frontend.removexattr(caller(req), ino.0, name.as_bytes(), reply);
    }

    fn fallocate(
        &self,
        req: &Request,
        ino: INodeNo,
        fh: FileHandle,
        offset: u64,
        length: u64,
        mode: i32,
        reply: ReplyEmpty,
    ) {
        self.frontend.fallocate(caller(req), ino.0, fh.0, (offset, length), mode, reply);
    }

    fn lseek(
        &self,
        req: &Request,
        ino: INodeNo,
        fh: FileHandle,
        offset: i64,
        whence: i32,
        reply: ReplyLseek,
    ) {
        self.frontend.lseek(caller(req), ino.0, fh.0, offset, whence, reply);
    }

    // ENOSYS tells the kernel never to ask again, and to do without: a close needs no flush here,
    // permissions and POSIX access checks are the kernel's, and it copies ranges itself.
    // (`fuser` would answer the same, with a warning each time.)
    fn flush(&self, _: &Request, _: INodeNo, _: FileHandle, _: LockOwner, reply: ReplyEmpty) {
        reply.error(fuser::Errno::ENOSYS);
    }

    fn fsyncdir(&self, req: &Request, ino: INodeNo, _: FileHandle, datasync: bool, reply: ReplyEmpty) {
        self.frontend.fsync_dir(caller(req), ino.0, datasync, reply);
    }

    fn access(&self, _: &Request, _: INodeNo, _: AccessFlags, reply: ReplyEmpty) {
        reply.error(fuser::Errno::ENOSYS);
    }

    fn bmap(&self, _: &Request, _: INodeNo, _: u32, _: u64, reply: ReplyBmap) {
        reply.error(fuser::Errno::ENOSYS);
    }

    fn ioctl(
        &self,
        _: &Request,
        _: INodeNo,
        _: FileHandle,
        _: IoctlFlags,
        _: u32,
        _: &[u8],
        _: u32,
        reply: ReplyIoctl,
    ) {
        reply.error(fuser::Errno::ENOSYS);
    }

    fn poll(
        &self,
        req: &Request,
        ino: INodeNo,
        fh: FileHandle,
        notifier: PollNotifier,
        _: PollEvents,
        flags: PollFlags,
        reply: ReplyPoll,
    ) {
        let wanted = flags.contains(PollFlags::FUSE_POLL_SCHEDULE_NOTIFY);
        let waker = wanted.then(|| Waker::from(Arc::new(Notify(notifier))));
        self.frontend.poll(caller(req), ino.0, fh.0, waker, reply);
    }

    fn copy_file_range(
        &self,
        _: &Request,
        _: INodeNo,
        _: FileHandle,
        _: u64,
        _: INodeNo,
        _: FileHandle,
        _: u64,
        _: u64,
        _: CopyFileRangeFlags,
        reply: ReplyWrite,
    ) {
        reply.error(fuser::Errno::ENOSYS);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_go_out_and_come_in_unchanged() {
        for sec in [0, 1, 1_700_000_000, -1, -2, -(1 << 31), (1 << 34) - (1 << 31) - 1] {
            for nsec in [0, 1, 800_000_000, 999_999_999] {
                let out = time_out(Time::new(sec, nsec));
                let parts = match out.duration_since(UNIX_EPOCH) {
                    Ok(after) => (after.as_secs() as i64, after.subsec_nanos()),
                    Err(before) => {
                        let nanos = before.duration().as_nanos() as i128;
                        ((-nanos).div_euclid(1_000_000_000) as i64, (-nanos).rem_euclid(1_000_000_000) as u32)
                    }
                };
                assert_eq!(parts, (sec, nsec));
            }
        }
        // As fuser builds it from what the kernel sends for 1969-12-31 23:59:58.8.
        let mirrored = UNIX_EPOCH - Duration::new(2, 800_000_000);
        assert_eq!(time_in(mirrored), Time::new(-2, 800_000_000));
        assert_eq!(time_in(UNIX_EPOCH + Duration::new(5, 6)), Time::new(5, 6));
    }
}
