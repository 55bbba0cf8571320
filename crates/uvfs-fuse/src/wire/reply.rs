//! Answers, put together: the front end's values as the protocol's structures.
//!
//! [`Answering`] is the one way back that all requests get: it implements each kind of [`Reply`] over a transport's
//! [`Port`]. Small answers are made on the stack. A file's content goes straight into the port's memory, unless the
//! request came to wait for a driver. Then the memory is this module's: an interrupt may end the request, and with
//! it the port's hold on its memory, while the driver still writes.
//!
//! An answer that comes too late (the request was interrupted, see `interrupts.rs`) is undone as far as the kernel was
//! to hold something by it: a lookup that was counted, a handle that was opened.

use std::cell::RefCell;
use std::sync::Arc;
use std::time::Duration;

use uvfs::{Attr, Errno, FSXATTR, FileFlags, PollEvents, Result, StatFs, Time, mode};

use super::dispatch::Context;
use super::interrupts::Waiting;
use super::latency_histograms::Timed;
use super::reply_port::{Answer, Port};
use crate::transport::{
    Asked, Attributes, DataReply, DirReply, Entry, Flagged, Looked, NodeId, Opened, Purpose, Reply, Statx,
    Xattr,
};

/// `st_blksize`.
const BLOCK_SIZE: u32 = 4096;

/// Bits of `fuse_open_out.open_flags`.
const FOPEN_DIRECT_IO: u32 = 1 << 0;
const FOPEN_KEEP_CACHE: u32 = 1 << 1;
const FOPEN_CACHE_DIR: u32 = 1 << 3;
const FOPEN_PASSTHROUGH: u32 = 1 << 7;

/// Two fields of 32 bits as one word: a structure is then an array of words, which costs no more than its stores.
#[inline]
fn pair(first: u32, second: u32) -> u64 {
    let ([a, b, c, d], [e, f, g, h]) = (first.to_ne_bytes(), second.to_ne_bytes());
    u64::from_ne_bytes([a, b, c, d, e, f, g, h])
}

/// A structure of `N` words as bytes.
#[inline]
fn bytes<const N: usize>(words: [u64; N]) -> [[u8; 8]; N] {
    words.map(u64::to_ne_bytes)
}

/// Two structures, one behind the other.
#[inline]
fn joined<const A: usize, const B: usize, const N: usize>(first: [u64; A], second: [u64; B]) -> [u64; N] {
    const { assert!(A + B == N) };
    let mut all = [0; N];
    all[..A].copy_from_slice(&first);
    all[A..].copy_from_slice(&second);
    all
}

/// `struct fuse_attr`. A node's id is also its inode number: unique and constant while the kernel knows the node.
#[inline]
fn attr(node: NodeId, attr: &Attr) -> [u64; 11] {
    // The kernel takes no inode without a type for one.
    let fmt = if attr.mode & mode::S_IFMT == 0 { mode::S_IFREG } else { attr.mode & mode::S_IFMT };
    [
        node,
        attr.size,
        attr.blocks,
        attr.atime.sec().cast_unsigned(),
        attr.mtime.sec().cast_unsigned(),
        attr.ctime.sec().cast_unsigned(),
        pair(attr.atime.nsec(), attr.mtime.nsec()),
        pair(attr.ctime.nsec(), fmt | (attr.mode & 0o7777)),
        pair(attr.nlink, attr.uid),
        pair(attr.gid, attr.rdev),
        pair(BLOCK_SIZE, 0),
    ]
}

/// `struct fuse_entry_out`.
fn entry(entry: &Entry) -> [u64; 16] {
    let (name, attrs) = (entry.entry_ttl, entry.attr_ttl);
    let nanos = pair(name.subsec_nanos(), attrs.subsec_nanos());
    joined(
        [entry.node, entry.generation, name.as_secs(), attrs.as_secs(), nanos],
        attr(entry.node, &entry.attr),
    )
}

/// Node 0: the name is known not to exist.
fn absent(ttl: Duration) -> [u64; 16] {
    entry(&Entry { node: 0, generation: 0, attr: Attr::default(), entry_ttl: ttl, attr_ttl: Duration::ZERO })
}

/// `struct fuse_attr_out`.
fn attributes(got: &Attributes) -> [u64; 13] {
    joined([got.ttl.as_secs(), pair(got.ttl.subsec_nanos(), 0)], attr(got.node, &got.attr))
}

/// `struct fuse_statx_out`. The basic attributes are always told, and are those of GETATTR.
fn statx(got: &Statx) -> [u64; 36] {
    const BASIC_STATS: u32 = 0x7ff;
    const BTIME: u32 = 0x800;
    let Statx { attributes: Attributes { node, attr, ttl }, birth } = got;
    let mask = BASIC_STATS | if birth.is_some() { BTIME } else { 0 };
    let [_, size, blocks, ..] = self::attr(*node, attr);
    let fmt = if attr.fmt() == 0 { mode::S_IFREG } else { attr.fmt() };
    let time = |time: Time| [time.sec().cast_unsigned(), pair(time.nsec(), 0)];
    let [atime, mtime, ctime] = [attr.atime, attr.mtime, attr.ctime].map(time);
    let btime = time(birth.unwrap_or_default());
    let (major, minor) = (attr.rdev >> 8 & 0xfff, attr.rdev & 0xff | attr.rdev >> 12 & 0xf_ff00);
    let mut out = [0; 36];
    let head = [ttl.as_secs(), pair(ttl.subsec_nanos(), 0), 0, 0];
    let stat = [
        pair(mask, BLOCK_SIZE),
        0, // Which attributes there are.
        pair(attr.nlink, attr.uid),
        // The mode has 16 bits, and as many are spare.
        pair(attr.gid, half(fmt | (attr.mode & 0o7777))),
        *node,
        size,
        blocks,
        0, // Which attributes there could be.
        atime[0],
        atime[1],
        btime[0],
        btime[1],
        ctime[0],
        ctime[1],
        mtime[0],
        mtime[1],
        pair(major, minor),
    ];
    out[..head.len()].copy_from_slice(&head);
    out[head.len()..][..stat.len()].copy_from_slice(&stat);
    out
}

/// A field of 16 bits and a spare one behind it, as 32 bits.
fn half(field: u32) -> u32 {
    let [a, b] = (field as u16).to_ne_bytes();
    u32::from_ne_bytes([a, b, 0, 0])
}

/// `struct fuse_open_out`.
fn opened(opened: &Opened) -> [u64; 2] {
    let flags = [
        (opened.direct_io, FOPEN_DIRECT_IO),
        (opened.keep_cache, FOPEN_KEEP_CACHE),
        (opened.cache_dir, FOPEN_CACHE_DIR),
        (opened.backing.is_some(), FOPEN_PASSTHROUGH),
    ];
    let flags = flags.iter().filter(|(set, _)| *set).fold(0, |all, (_, flag)| all | flag);
    [opened.fh, pair(flags, opened.backing.map_or(0, i32::cast_unsigned))]
}

/// `struct fuse_statfs_out`.
fn statfs(s: &StatFs) -> [u64; 10] {
    let sizes = [pair(s.bsize, s.namelen), pair(s.bsize, 0)];
    joined([s.blocks, s.bfree, s.bavail, s.files, s.ffree], joined::<2, 3, 5>(sizes, [0; 3]))
}

/// A request's way back.
enum Way<P: Port> {
    /// The port's own, as long as the request is not handed to another thread.
    Straight(P),
    /// Shared with the thread that may interrupt it.
    Shared(Arc<Waiting<P>>),
}

/// The way of every request to its answer. Dropped unsent, the kernel gets EIO.
pub(super) struct Answering<P: Port> {
    way: Option<Way<P>>,
    unique: u64,
    purpose: Purpose,
    /// The process that asked, if the request may be given up when it is killed.
    interruptible: Option<u32>,
    timed: Timed,
    context: Arc<Context>,
}

impl<P: Port> Answering<P> {
    pub(super) fn new(port: P, unique: u64, timed: Timed, context: &Arc<Context>) -> Self {
        let context = Arc::clone(context);
        Self {
            way: Some(Way::Straight(port)),
            unique,
            purpose: Purpose::Change,
            interruptible: None,
            timed,
            context,
        }
    }

    /// Nothing is lost if the answer is not sent: while it waits for a driver, the request may be given up when the
    /// process `pid` is killed.
    pub(super) fn interruptible(mut self, pid: u32) -> Self {
        (self.purpose, self.interruptible) = (Purpose::Question, Some(pid));
        self
    }

    /// The kernel asks by itself.
    pub(super) fn in_no_users_name(mut self) -> Self {
        self.purpose = Purpose::Kernel;
        self
    }

    /// Sends; if the request was interrupted before, returns what is needed to undo it.
    fn answer(mut self, answer: Answer<'_>) -> Option<Arc<Context>> {
        self.timed.end(self.context.frontend.latencies());
        match self.way.take() {
            Some(Way::Straight(port)) => port.send(self.unique, answer),
            Some(Way::Shared(waiting)) => {
                self.context.interrupts.end(self.unique);
                let Some(port) = waiting.take() else { return Some(Arc::clone(&self.context)) };
                port.send(self.unique, answer);
            }
            None => {}
        }
        None
    }

    /// As [`Answering::answer`], of a structure of words or an error.
    fn outcome<const N: usize>(self, outcome: Result<[u64; N]>) -> Option<Arc<Context>> {
        match outcome {
            Ok(body) => self.answer(Answer::Body(bytes(body).as_flattened())),
            Err(error) => self.answer(Answer::Error(error)),
        }
    }

    pub(super) fn error(self, error: Errno) {
        self.answer(Answer::Error(error));
    }
}

impl<P: Port> Drop for Answering<P> {
    fn drop(&mut self) {
        let port = match self.way.take() {
            Some(Way::Straight(port)) => Some(port),
            Some(Way::Shared(waiting)) => {
                self.context.interrupts.end(self.unique);
                waiting.take()
            }
            None => None,
        };
        if let Some(port) = port {
            port.send(self.unique, Answer::Error(Errno::IO));
        }
    }
}

impl<P: Port> Asked for Answering<P> {
    fn waits(&mut self) {
        self.timed.waits();
        let Some(pid) = self.interruptible else { return };
        self.way = match self.way.take() {
            Some(Way::Straight(port)) => {
                let waiting = Arc::new(Waiting::new(port, self.unique));
                self.context.interrupts.begin(self.unique, pid, Arc::clone(&waiting));
                Some(Way::Shared(waiting))
            }
            way => way,
        };
    }

    fn purpose(&self) -> Purpose {
        self.purpose
    }

    fn is_wanted(&self) -> bool {
        match &self.way {
            Some(Way::Shared(waiting)) => waiting.is_there(),
            _ => true,
        }
    }
}

impl<P: Port> Reply<Looked> for Answering<P> {
    fn send(self, answer: Result<Looked>) {
        match answer {
            Ok(Looked::Found(found)) => Reply::<Entry>::send(self, Ok(found)),
            Ok(Looked::Absent(ttl)) => {
                self.outcome(Ok(absent(ttl)));
            }
            Err(error) => self.error(error),
        }
    }
}

impl<P: Port> Reply<Entry> for Answering<P> {
    fn send(self, answer: Result<Entry>) {
        if let Some(late) = self.outcome(answer.as_ref().map(entry).map_err(|error| *error))
            && let Ok(entry) = answer
        {
            late.frontend.forget(entry.node, 1);
        }
    }
}

impl<P: Port> Reply<(Entry, Opened)> for Answering<P> {
    fn send(self, answer: Result<(Entry, Opened)>) {
        self.outcome(answer.map(|(made, open)| joined::<16, 2, 18>(entry(&made), opened(&open))));
    }
}

impl<P: Port> Reply<Attributes> for Answering<P> {
    fn send(self, answer: Result<Attributes>) {
        self.outcome(answer.map(|got| attributes(&got)));
    }
}

impl<P: Port> Reply<Statx> for Answering<P> {
    fn send(self, answer: Result<Statx>) {
        self.outcome(answer.map(|got| statx(&got)));
    }
}

/// `struct fuse_ioctl_out`, all 0, and what is told.
impl<P: Port> Reply<Flagged> for Answering<P> {
    fn send(self, answer: Result<Flagged>) {
        const FRONT: usize = 16;
        let mut body = [0; FRONT + FSXATTR];
        let told: &[u8] = match &answer {
            Ok(Flagged::Told(FileFlags::Inode(flags))) => &flags.to_ne_bytes(),
            Ok(Flagged::Told(FileFlags::Extended(bytes))) => bytes,
            Ok(Flagged::Set) => &[],
            Err(error) => return self.error(*error),
        };
        let end = FRONT + told.len();
        body[FRONT..end].copy_from_slice(told);
        self.answer(Answer::Body(&body[..end]));
    }
}

impl<P: Port> Reply<Opened> for Answering<P> {
    fn send(self, answer: Result<Opened>) {
        if let Some(late) = self.outcome(answer.as_ref().map(opened).map_err(|error| *error))
            && let Ok(opened) = answer
        {
            late.frontend.close(opened.fh);
        }
    }
}

impl<P: Port> Reply<()> for Answering<P> {
    fn send(self, answer: Result<()>) {
        self.outcome(answer.map(|()| []));
    }
}

impl<P: Port> Reply<&[u8]> for Answering<P> {
    fn send(self, answer: Result<&[u8]>) {
        match answer {
            Ok(bytes) => {
                self.answer(Answer::Body(bytes));
            }
            Err(error) => self.error(error),
        }
    }
}

/// Bytes that were written.
impl<P: Port> Reply<u32> for Answering<P> {
    fn send(self, answer: Result<u32>) {
        self.outcome(answer.map(|size| [pair(size, 0)]));
    }
}

impl<P: Port> Reply<PollEvents> for Answering<P> {
    fn send(self, answer: Result<PollEvents>) {
        self.outcome(answer.map(|ready| [pair(ready.bits(), 0)]));
    }
}

/// Where SEEK_DATA or SEEK_HOLE led.
impl<P: Port> Reply<i64> for Answering<P> {
    fn send(self, answer: Result<i64>) {
        self.outcome(answer.map(|offset| [offset.cast_unsigned()]));
    }
}

impl<P: Port> Reply<Xattr> for Answering<P> {
    fn send(self, answer: Result<Xattr>) {
        match answer {
            Ok(Xattr::Size(size)) => {
                self.outcome(Ok([pair(size, 0)]));
            }
            Ok(Xattr::Bytes(bytes)) => {
                self.answer(Answer::Body(&bytes));
            }
            Err(error) => self.error(error),
        }
    }
}

impl<P: Port> Reply<StatFs> for Answering<P> {
    fn send(self, answer: Result<StatFs>) {
        self.outcome(answer.map(|s| statfs(&s)));
    }
}

impl<P: Port> DataReply for Answering<P> {
    fn fill(mut self, size: usize, fill: impl FnOnce(&mut [u8]) -> Result<usize>) {
        // The port stays where it is while `fill` runs: if that panics, the kernel gets EIO.
        if let Some(Way::Straight(port)) = &mut self.way {
            let answer = match fill(port.room(size)) {
                Ok(len) => Answer::Room(len.min(size)),
                Err(error) => Answer::Error(error),
            };
            self.answer(answer);
        } else {
            with_buffer(size, |buffer| match fill(buffer) {
                Ok(len) => self.answer(Answer::Body(&buffer[..len.min(size)])),
                Err(error) => self.answer(Answer::Error(error)),
            });
        }
    }
}

/// Lends this thread's read buffer; it stays as large as the largest read (at most the 1 MiB that was agreed with the
/// kernel), so that a read allocates and clears nothing.
fn with_buffer<T>(size: usize, job: impl FnOnce(&mut [u8]) -> T) -> T {
    thread_local! {
        static BUFFER: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
    }
    BUFFER.with_borrow_mut(|buffer| {
        if buffer.len() < size {
            buffer.resize(size, 0);
        }
        job(&mut buffer[..size])
    })
}

/// A directory's entries: `struct fuse_dirent` or `fuse_direntplus` and the name, filled up to 8 bytes, each.
pub(super) struct Listing<P: Port> {
    answering: Answering<P>,
    entries: Vec<u8>,
    size: usize,
    plus: bool,
    /// Nodes that the kernel is to hold by this listing.
    held: Vec<NodeId>,
}

impl<P: Port> Listing<P> {
    /// A listing of at most `size` bytes.
    pub(super) fn new(answering: Answering<P>, size: usize, plus: bool) -> Self {
        Self { answering, entries: Vec::with_capacity(size.min(4096)), size, plus, held: Vec::new() }
    }
}

impl<P: Port> Asked for Listing<P> {
    fn waits(&mut self) {
        self.answering.waits();
    }

    fn purpose(&self) -> Purpose {
        self.answering.purpose()
    }

    fn is_wanted(&self) -> bool {
        self.answering.is_wanted()
    }
}

impl<P: Port> DirReply for Listing<P> {
    fn add(&mut self, name: &[u8], next: u64, node: &Entry) -> bool {
        let front = 24 + if self.plus { 128 } else { 0 };
        let end = self.entries.len() + (front + name.len()).next_multiple_of(8);
        if end > self.size {
            return false;
        }
        if self.plus {
            self.entries.extend_from_slice(bytes(entry(node)).as_flattened());
            if node.node != 0
                && !matches!(name, b"." | b"..")
                && matches!(self.answering.way, Some(Way::Shared(_)))
            {
                self.held.push(node.node);
            }
        }
        let kind = (node.attr.mode & mode::S_IFMT) >> 12;
        let number = if node.node == 0 { node.attr.ino } else { node.node };
        let dirent = [number, next, pair(name.len() as u32, kind)];
        self.entries.extend_from_slice(bytes(dirent).as_flattened());
        self.entries.extend_from_slice(name);
        self.entries.resize(end, 0);
        true
    }

    fn plus(&self) -> bool {
        self.plus
    }

    fn send(self, outcome: Result<()>) {
        let late = match outcome {
            Ok(()) => self.answering.answer(Answer::Body(&self.entries)),
            Err(error) => self.answering.answer(Answer::Error(error)),
        };
        // With an error nothing was added (see `Core::list`).
        if let Some(late) = late {
            self.held.iter().for_each(|node| late.frontend.forget(*node, 1));
        }
    }
}
