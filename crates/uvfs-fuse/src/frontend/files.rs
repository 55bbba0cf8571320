//! Open files: making, opening, reading, writing and the rest that goes by file handle.
//!
//! A handle is the VFS's own number; it keeps the inode and whatever the driver has open, so a
//! file that was removed stays usable. Directories have no handle (0): see `readdir.rs`.

use std::sync::Arc;
use std::task::Waker;

use uvfs::{Access, Errno, Fallocate, Inode, Op, PollEvents, Result, Seek, mode};

use super::passthrough::{How, Way};
use super::request_counters::Count;
use super::{Core, Frontend, Who};
use crate::notify::messages::Message;
use crate::threads::fair_shares::Share;
use crate::threads::waiting_by_node::For;
use crate::transport::{Caller, DataReply, Entry, NodeId, Opened, Reply, Write};

/// Among the flags of an open: the file is to be executed. Only the kernel says so, in execve(2) and in opens of
/// its own: from callers of open(2) it takes no such flag.
const FMODE_EXEC: i32 = 0x20;

impl Frontend {
    /// Makes a regular file and opens it. `flags` are those of `open`.
    ///
    /// The kernel asks for this where it believes that the name does not exist. If it does after
    /// all, its permissions have not been checked; ESTALE makes the kernel look again and, unless
    /// O_EXCL was given, open what it finds.
    pub(crate) fn create(
        &self,
        who: Caller,
        dir: NodeId,
        name: &[u8],
        permissions: u32,
        flags: i32,
        reply: impl Reply<(Entry, Opened)>,
    ) {
        let name = name.to_vec();
        let (opener, who) = (who.pid, self.who_lends(who, access(flags)));
        self.answer_to(who, dir, reply, move |core, op, dir| {
            let (inode, attr, fh) = match core.vfs.create(op, dir, &name, permissions, access(flags)) {
                Err(Errno::EXIST) if flags & libc::O_EXCL == 0 => return Err(Errno::STALE),
                made => made?,
            };
            // Before the kernel can write to it: what was seen when it was made is right.
            let entry = core.hand_out(&inode, attr);
            let opened =
                core.opened(op, &inode, fh, (flags, opener)).inspect_err(|_| core.uncount_lookup(&inode))?;
            Ok((entry, opened))
        });
    }

    /// Makes a regular file without a name and opens it. `flags` are those of `open`: with O_EXCL it can never be given a name.
    pub(crate) fn tmpfile(
        &self,
        who: Caller,
        dir: NodeId,
        permissions: u32,
        flags: i32,
        reply: impl Reply<(Entry, Opened)>,
    ) {
        let opener = who.pid;
        self.answer(who, dir, reply, move |core, op, dir| {
            let linkable = flags & libc::O_EXCL == 0;
            let (inode, attr, fh) = core.vfs.tmpfile(op, dir, permissions, access(flags), linkable)?;
            let entry = core.hand_out(&inode, attr);
            let opened =
                core.opened(op, &inode, fh, (flags, opener)).inspect_err(|_| core.uncount_lookup(&inode))?;
            Ok((entry, opened))
        });
    }

    pub(crate) fn open(&self, who: Caller, node: NodeId, flags: i32, reply: impl Reply<Opened>) {
        self.core.tally.add(Count::Open, 1);
        let (opener, who) = (who.pid, self.who_lends(who, access(flags)));
        self.answer_to(who, node, reply, move |core, op, inode| core.open(op, inode, flags, opener));
    }

    /// The caller that opens a file. A file of the host that is lent to the kernel for writing is written in the opener's
    /// name, whose groups may say how much room there is.
    fn who_lends(&self, who: Caller, access: Access) -> Who {
        let core = &self.core;
        let lent = access.contains(Access::WRITE)
            && core.backings.is_agreed()
            && core.vfs.passes_through(&core.vfs.root());
        if lent { Who::Member(who) } else { Who::Owner(who) }
    }

    pub(crate) fn release(&self, who: Caller, node: NodeId, fh: u64, reply: impl Reply<()>) {
        self.core.tally.add(Count::Release, 1);
        // Also where the node is not known: the handle is.
        self.route(Who::Anybody(who), node, reply, move |reply, core, _, inode| {
            core.close(inode.ok().as_ref(), fh);
            reply.send(Ok(()));
        });
    }

    pub(crate) fn read(
        &self,
        who: Caller,
        node: NodeId,
        fh: u64,
        offset: u64,
        size: u32,
        reply: impl DataReply,
    ) {
        self.route(Who::Anybody(who), node, reply, move |reply, core, op, inode| {
            let size = if inode.is_ok() { size as usize } else { 0 };
            reply.fill(size, |buffer| inode.and_then(|_| core.vfs.read(op, fh, offset, buffer)));
        });
    }

    /// Closes a handle that the kernel was not given in the end.
    pub(crate) fn close(&self, fh: u64) {
        self.core.close(None, fh);
    }

    /// At the kernel's offset, also for O_APPEND: the kernel holds the file's lock and has put the data into its page
    /// cache there. Where others change the file too, its end may be another one, and what is appended belongs there.
    pub(crate) fn write(
        &self,
        who: Caller,
        node: NodeId,
        write: Write,
        data: &[u8],
        mut reply: impl Reply<u32>,
    ) {
        let core = &self.core;
        let (op, inode) = match core.inode(node).and_then(|inode| Ok((core.op_to_write(who, &inode)?, inode)))
        {
            Ok(both) => both,
            Err(error) => return reply.send(Err(error)),
        };
        if !core.vfs.may_block(&inode) {
            return reply.send(core.write(&op, &inode, write, data));
        }
        if core.pending.asks_itself(who.pid) {
            return reply.send(Err(Errno::DEADLK));
        }
        let mut waiting = core.waiting(node, For::Driver);
        reply.waits();
        if let Some(_away) = core.readers.leave() {
            waiting.runs_here();
            reply.send(core.write(&op, &inode, write, data));
            drop(waiting);
            return;
        }
        let (core, data) = (Arc::clone(core), data.to_vec());
        let share = Share::of(reply.purpose(), who, node);
        self.core.pool.submit(share, reply, move |reply| {
            waiting.runs_here();
            let written = core.inode(node).and_then(|inode| core.write(&op, &inode, write, &data));
            reply.send(written);
            drop(waiting);
        });
    }

    pub(crate) fn fsync(&self, who: Caller, node: NodeId, fh: u64, datasync: bool, reply: impl Reply<()>) {
        self.answer_anybody(who, node, reply, move |core, op, _| core.vfs.fsync(op, fh, datasync));
    }

    /// `waker` tells the kernel to ask again; it keeps one for each open file, as drivers do.
    pub(crate) fn poll(
        &self,
        who: Caller,
        node: NodeId,
        fh: u64,
        waker: Option<Waker>,
        reply: impl Reply<PollEvents>,
    ) {
        self.answer_anybody(who, node, reply, move |core, op, _| core.vfs.poll(op, fh, waker.as_ref()));
    }

    /// `mode` is that of fallocate(2); EOPNOTSUPP for what no driver offers.
    pub(crate) fn fallocate(
        &self,
        who: Caller,
        node: NodeId,
        fh: u64,
        range: (u64, u64),
        mode: i32,
        reply: impl Reply<()>,
    ) {
        let Some(how) = fallocate_mode(mode) else {
            return reply.send(Err(Errno::OPNOTSUPP));
        };
        self.answer(who, node, reply, move |core, op, inode| {
            // The handle is permission enough. Untrusted, so that the VFS clears set-id bits where
            // the caller may not keep them: here the kernel leaves that to us without a flag.
            let op = Op { trusted: false, ..core.op_by_handle(op, who) };
            core.telling_of_mode(inode, || core.vfs.fallocate(&op, fh, how, range.0, range.1))
        });
    }

    /// SEEK_DATA and SEEK_HOLE; the kernel does the rest itself.
    pub(crate) fn lseek(
        &self,
        who: Caller,
        node: NodeId,
        fh: u64,
        offset: i64,
        whence: i32,
        reply: impl Reply<i64>,
    ) {
        let what = match whence {
            libc::SEEK_DATA => Seek::Data,
            libc::SEEK_HOLE => Seek::Hole,
            _ => return reply.send(Err(Errno::INVAL)),
        };
        self.answer_anybody(who, node, reply, move |core, op, _| {
            let offset = u64::try_from(offset).map_err(|_| Errno::NXIO)?;
            let found = core.vfs.seek(op, fh, offset, what)?;
            i64::try_from(found).map_err(|_| Errno::OVERFLOW)
        });
    }
}

impl Core {
    fn open(&self, op: &Op, inode: &Inode<'_>, flags: i32, opener: u32) -> Result<Opened> {
        // O_TRUNC does not come here: the kernel truncates in a request of its own.
        let fh = if flags & FMODE_EXEC != 0 {
            self.vfs.open_to_run(op, inode)?
        } else if flags & libc::O_APPEND != 0 {
            self.vfs.open_to_append(op, inode, access(flags), false)?
        } else {
            self.vfs.open(op, inode, access(flags), false)?
        };
        let opened = self.opened(op, inode, fh, (flags, opener))?;
        if opened.backing.is_some() {
            self.drop_attributes(inode, access(flags));
        }
        Ok(opened)
    }

    /// The answer to an open by the thread `opener`. If it cannot be given, the file is closed.
    fn opened(&self, op: &Op, inode: &Inode<'_>, fh: u64, (flags, opener): (i32, u32)) -> Result<Opened> {
        let how = How { access: access(flags), direct: flags & libc::O_DIRECT != 0, opener };
        let way = self.lend(op, inode, fh, how).inspect_err(|_| self.close(Some(inode), fh))?;
        let backing = if let Way::Lent(id) = way { Some(id) } else { None };
        // Nobody but this kernel changes the file where the driver says so and no timeout was set, or it is told.
        let keep_cache = self.is_coherent(inode) && way == Way::Pages;
        let direct_io = self.vfs.direct_io(inode) || way == Way::Direct;
        Ok(Opened { fh, keep_cache, cache_dir: false, direct_io, backing })
    }

    fn close(&self, inode: Option<&Inode<'_>>, fh: u64) {
        // In this order: what the driver has seen when it released the file is right, and until then it is asked.
        self.vfs.release(fh);
        self.take_back(inode, fh);
    }

    fn write(&self, op: &Op, inode: &Inode<'_>, write: Write, data: &[u8]) -> Result<u32> {
        self.backings.wrote(write.fh, data.len());
        let append = write.append && self.vfs.passes_through(inode);
        let act = || self.vfs.write(op, write.fh, write.offset, data, append, write.kill_priv);
        let written = if write.kill_priv { self.telling_of_mode(inode, act)? } else { act()? };
        u32::try_from(written).map_err(|_| Errno::IO)
    }

    /// Tells the kernel where set-id bits go with a change of the data: it does not take the mode for changed by that, and would
    /// run the file as its owner. It has the file open, so this waits for nobody.
    fn telling_of_mode<T>(&self, inode: &Inode<'_>, act: impl FnOnce() -> Result<T>) -> Result<T> {
        let before = inode.perm().mode;
        let outcome = act();
        if before & (mode::S_ISUID | mode::S_ISGID) != 0
            && inode.perm().mode != before
            && let Some(outbox) = self.outbox.get()
        {
            outbox.say(&Message::Node { node: self.node_of(inode.id()), content: false });
        }
        outcome
    }
}

/// The access that open(2) was asked for.
fn access(flags: i32) -> Access {
    match flags & libc::O_ACCMODE {
        libc::O_RDONLY => Access::READ,
        libc::O_WRONLY => Access::WRITE,
        libc::O_RDWR => Access::READ | Access::WRITE,
        // Neither reads nor writes (access mode 3).
        _ => Access::empty(),
    }
}

fn fallocate_mode(mode: i32) -> Option<Fallocate> {
    let keep_size = mode & libc::FALLOC_FL_KEEP_SIZE != 0;
    match mode & !libc::FALLOC_FL_KEEP_SIZE {
        0 => Some(Fallocate::Allocate { keep_size }),
        libc::FALLOC_FL_PUNCH_HOLE if keep_size => Some(Fallocate::PunchHole),
        libc::FALLOC_FL_ZERO_RANGE => Some(Fallocate::ZeroRange { keep_size }),
        _ => None,
    }
}
