//! Open files: each has its own descriptor on the host, opened with its opener's identity.
//!
//! The table of handles is sharded; a shard's lock protects only its map. Data is written with the writer's identity,
//! so that the host's kernel removes set-id bits and counts space as it does for that user. Appended data goes to the
//! file's end on the host at that moment, not to an offset of ours.
//!
//! Descriptors on the host have no O_APPEND: an appending write says so itself
//! ([`Driver::write`](uvfs::driver::Driver::write)). The exception is an append-only file (chattr(1)). The host opens
//! it for writing with O_APPEND alone, and so only for a caller that appends. A write to it that is not marked as
//! appending, such as that of a mapped page, is EPERM: the host would append it too.

use std::collections::HashMap;
use std::io::IoSlice;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

use foldhash::fast::FixedState;
use parking_lot::RwLock;
use rustix::fs::fcntl_setfl;
use rustix::fs::{FallocateFlags, OFlags, SeekFrom, fallocate, fdatasync, fsync, seek};
use rustix::io::{ReadWriteFlags, pread, pwrite, pwritev2};
use uvfs::Inode;
use uvfs::driver::File;
use uvfs::types::{Access, Errno, Fallocate, Op, Result, Seek, mode};

use super::Mirror;
use super::fds::Permit;
use super::node::Node;
use super::reach::At;
use super::sys;
use super::unnamed::Keep;

/// A power of two.
const SHARDS: u64 = 16;

/// A file that a user has open. Or a file without a name that is still known; its data is not accessible.
pub(super) struct Opened {
    pub(super) handle: u64,
    pub(super) fd: OwnedFd,
    pub(super) access: Access,
    /// O_APPEND, if the descriptor has it. See the module.
    pub(super) append: OFlags,
    /// See `lend`.
    pub(super) lent: AtomicBool,
    _permit: Permit,
    /// If it has no name: dropped after the descriptor.
    _keep: Option<Keep>,
}

impl Opened {
    fn new(handle: u64, host: Host, access: Access, permit: Permit, keep: Option<Keep>) -> Arc<Self> {
        let Host { fd, append } = host;
        Arc::new(Self {
            handle,
            fd,
            access,
            append,
            lent: AtomicBool::new(false),
            _permit: permit,
            _keep: keep,
        })
    }
}

/// A descriptor of the host's, and whether it has O_APPEND.
pub(super) struct Host {
    fd: OwnedFd,
    append: OFlags,
}

impl From<OwnedFd> for Host {
    fn from(fd: OwnedFd) -> Self {
        Self { fd, append: OFlags::empty() }
    }
}

type Shard = RwLock<HashMap<u64, Arc<Opened>, FixedState>>;

/// The table of open files.
#[derive(Default)]
pub(super) struct Files {
    next: AtomicU64,
    shards: [Shard; SHARDS as usize],
}

impl Files {
    fn shard(&self, handle: u64) -> &Shard {
        &self.shards[(handle % SHARDS) as usize]
    }

    fn number(&self) -> u64 {
        self.next.fetch_add(1, Relaxed) + 1
    }

    fn insert(&self, file: Arc<Opened>) -> u64 {
        let handle = file.handle;
        self.shard(handle).write().insert(handle, file);
        handle
    }

    pub(super) fn get(&self, handle: u64) -> Result<Arc<Opened>> {
        self.shard(handle).read().get(&handle).cloned().ok_or(Errno::BADF)
    }

    fn remove(&self, handle: u64) -> Option<Arc<Opened>> {
        self.shard(handle).write().remove(&handle)
    }
}

pub(super) fn again<T>(mut call: impl FnMut() -> Result<T>) -> Result<T> {
    loop {
        match call() {
            Err(Errno::INTR) => {}
            done => return done,
        }
    }
}

impl Mirror {
    /// The host may keep an open waiting, if another process has a lease on the file (fcntl(2)). Then it no longer
    /// counts as an operation, of which the number is limited, but has its own descriptors like an open file.
    /// `append` is O_APPEND if the caller only appends.
    pub(super) fn open_file(
        &self,
        op: &Op,
        inode: &Inode<'_>,
        access: Access,
        append: OFlags,
    ) -> Result<u64> {
        let turn = self.budget.turn();
        let permit = self.budget.permit()?;
        let node = self.node(inode)?;
        let is_reg = node.fmt() == mode::S_IFREG;
        if is_reg && let Some(fd) = self.open_directly(op, &node, how(access)) {
            return self.opened_at_once(&node, fd.into(), access, permit);
        }
        let (node, at) = self.reach_inode(inode)?;
        // This is the very file whose type was checked: no other file has its identity.
        if !is_reg {
            return Err(Errno::STALE);
        }
        match self.open_or_append(op, &at, access, OFlags::NONBLOCK, append) {
            Err(Errno::AGAIN) => {
                let _of_the_way = self.budget.permit()?;
                drop(turn);
                let host = self.open_or_append(op, &at, access, OFlags::empty(), append)?;
                Ok(self.keep_open(&node, host, access, permit))
            }
            host => self.opened_at_once(&node, host?, access, permit),
        }
    }

    /// A file opened without waiting (O_NONBLOCK) is now open.
    fn opened_at_once(&self, node: &Node, host: Host, access: Access, permit: Permit) -> Result<u64> {
        // Some file systems (FUSE servers, hierarchical storage) would apply O_NONBLOCK to each read and write.
        // Those whose files are lent do not.
        if !self.lends {
            fcntl_setfl(&host.fd, host.append)?;
        }
        Ok(self.keep_open(node, host, access, permit))
    }

    /// Enters a file that a user has open; returns the handle.
    pub(super) fn keep_open(&self, node: &Node, host: Host, access: Access, permit: Permit) -> u64 {
        let file = Opened::new(self.files.number(), host, access, permit, None);
        node.opened(Arc::clone(&file));
        self.files.insert(file)
    }

    /// Keeps a file that has lost its last name open while the cache knows it: otherwise nothing would lead to it. It
    /// is closed when the cache forgets it. It is not kept if there are too many, or if it is in a mount inside the
    /// source, which it would keep from being unmounted.
    pub(super) fn keep_unnamed(&self, node: &Node, inode: &Inode<'_>, fd: OwnedFd) {
        if inode.attr().nlink == 0
            && !self.is_inside()
            && let Ok(permit) = self.budget.permit()
        {
            let keep = Some(self.kept.one_more());
            node.opened(Opened::new(self.files.number(), fd.into(), Access::empty(), permit, keep));
        }
    }

    /// [`Mirror::open_at`]; if the host refuses that, it tries again with O_APPEND, if `append` has it.
    fn open_or_append(
        &self,
        op: &Op,
        at: &At<'_>,
        access: Access,
        flags: OFlags,
        append: OFlags,
    ) -> Result<Host> {
        match self.open_at(op, at, access, flags) {
            Err(Errno::PERM) if !append.is_empty() => {
                let fd = self.open_at(op, at, access, flags | append)?;
                Ok(Host { fd, append })
            }
            fd => fd.map(Host::from),
        }
    }

    fn open_at(&self, op: &Op, at: &At<'_>, access: Access, flags: OFlags) -> Result<OwnedFd> {
        let mut judge = self.judge(op);
        judge.may(at, access)?;
        let acting = judge.act()?;
        let opened = again(|| self.links.open(at, how(access) | flags));
        let runs = access == Access::EXEC && opened.as_ref().err() == Some(&Errno::ACCESS);
        if runs {
            sys::may_execute(at)
                .map_err(|errno| if errno == Errno::NOSYS { Errno::ACCESS } else { errno })?;
        }
        drop(acting);
        // The front end that executes the file for the caller reads it and shows it to nobody. That needs no
        // permission of the caller.
        if runs { again(|| self.links.open(at, how(access) | flags)) } else { opened }
    }

    pub(super) fn close_file(&self, file: File<'_>) {
        let Some(open) = self.files.remove(file.handle) else { return };
        if let Some(node) = self.table.of(file.inode.ino()) {
            node.closed(&open);
        }
        self.look_after_lending(file.inode, &open);
    }

    pub(super) fn read_file(&self, file: File<'_>, offset: u64, buf: &mut [u8]) -> Result<usize> {
        let open = self.files.get(file.handle)?;
        let mut done = 0;
        while done < buf.len() {
            match again(|| pread(&open.fd, &mut buf[done..], offset + done as u64)) {
                Ok(0) => break,
                Ok(n) => done += n,
                // The bytes read before the error are returned first.
                Err(_) if done > 0 => break,
                Err(errno) => return Err(errno),
            }
        }
        Ok(done)
    }

    pub(super) fn write_file(
        &self,
        op: &Op,
        file: File<'_>,
        offset: u64,
        data: &[u8],
        append: bool,
    ) -> Result<usize> {
        let open = self.files.get(file.handle)?;
        if !append && !open.append.is_empty() {
            return Err(Errno::PERM);
        }
        let acting = self.server.act_on_open(&self.on_host(&op.cred).0, op.cred.is_root())?;
        let outcome = write_all(&open, offset, data, append);
        drop(acting);
        self.settle(file.inode, &open.fd);
        outcome
    }

    pub(super) fn allocate_file(
        &self,
        op: &Op,
        file: File<'_>,
        how: Fallocate,
        offset: u64,
        len: u64,
    ) -> Result<()> {
        let keep = |keep| if keep { FallocateFlags::KEEP_SIZE } else { FallocateFlags::empty() };
        let flags = match how {
            Fallocate::Allocate { keep_size } => keep(keep_size),
            Fallocate::PunchHole => FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE,
            Fallocate::ZeroRange { keep_size } => FallocateFlags::ZERO_RANGE | keep(keep_size),
        };
        let open = self.files.get(file.handle)?;
        let acting = self.server.act_on_open(&self.on_host(&op.cred).0, op.cred.is_root())?;
        let outcome = again(|| fallocate(&open.fd, flags, offset, len));
        drop(acting);
        self.settle(file.inode, &open.fd);
        outcome
    }

    pub(super) fn seek_file(&self, file: File<'_>, offset: u64, what: Seek) -> Result<u64> {
        let open = self.files.get(file.handle)?;
        let offset = i64::try_from(offset).map_err(|_| Errno::NXIO)?;
        // The descriptor's own position has no meaning: every other call names its offset.
        match what {
            Seek::Data => seek(&open.fd, SeekFrom::Data(offset as u64)),
            Seek::Hole => seek(&open.fd, SeekFrom::Hole(offset as u64)),
        }
    }

    pub(super) fn sync_file(&self, file: File<'_>, datasync: bool) -> Result<()> {
        let open = self.files.get(file.handle)?;
        if datasync { fdatasync(&open.fd) } else { fsync(&open.fd) }
    }
}

/// The flags of open(2) for that access.
pub(super) fn how(access: Access) -> OFlags {
    match (access.contains(Access::READ), access.contains(Access::WRITE)) {
        (true, true) => OFlags::RDWR,
        (false, true) => OFlags::WRONLY,
        _ => OFlags::RDONLY,
    }
}

/// Writes all, or as much as fits.
fn write_all(open: &Opened, offset: u64, data: &[u8], append: bool) -> Result<usize> {
    let mut done = 0;
    while done < data.len() {
        let rest = &data[done..];
        let wrote = again(|| {
            if append {
                pwritev2(&open.fd, &[IoSlice::new(rest)], 0, ReadWriteFlags::APPEND)
            } else {
                pwrite(&open.fd, rest, offset + done as u64)
            }
        });
        match wrote {
            Ok(0) => break,
            Ok(n) => done += n,
            // The bytes written are returned; the next write gets the error.
            Err(_) if done > 0 => break,
            Err(errno) => return Err(errno),
        }
    }
    Ok(done)
}
