//! Answers, put together: what the front end says, as the protocol's structures.
//!
//! [`Answering`] is the one way back that all requests get: it implements each kind of [`Reply`] over a transport's
//! [`Port`]. Small answers are made on the stack. What is read from a file goes straight into the port's memory, unless
//! the request came to wait for a driver: then the memory is this module's, because an interrupt may end the
//! request, and with it the port's hold on its memory, while the driver still writes.
//!
//! An answer that comes too late (the request was interrupted, see `interrupts.rs`) is undone as far as the kernel was
//! to hold something by it: a lookup that was counted, a handle that was opened.

use std::cell::RefCell;
use std::sync::Arc;
use std::time::Duration;

use uvfs::{Attr, Errno, PollEvents, Result, StatFs, mode};

use super::dispatch::Context;
use super::interrupts::Waiting;
use super::{Answer, Port};
use crate::transport::{Asked, Attributes, DataReply, DirReply, Entry, Looked, NodeId, Opened, Reply, Xattr};

/// `st_blksize`.
const BLOCK_SIZE: u32 = 4096;

/// Bits of `fuse_open_out.open_flags`.
const FOPEN_DIRECT_IO: u32 = 1 << 0;
const FOPEN_KEEP_CACHE: u32 = 1 << 1;
const FOPEN_CACHE_DIR: u32 = 1 << 3;

/// A structure of `N` bytes in the making.
struct Out<const N: usize> {
    bytes: [u8; N],
    len: usize,
}

impl<const N: usize> Out<N> {
    const fn new() -> Self {
        Self { bytes: [0; N], len: 0 }
    }

    /// Structures are as long as their fields by the tests below, so nothing is ever cut off.
    fn put(&mut self, field: &[u8]) {
        if let Some(place) = self.bytes.get_mut(self.len..self.len + field.len()) {
            place.copy_from_slice(field);
        }
        self.len += field.len();
    }

    fn u32(mut self, value: u32) -> Self {
        self.put(&value.to_ne_bytes());
        self
    }

    fn u64(mut self, value: u64) -> Self {
        self.put(&value.to_ne_bytes());
        self
    }

    fn all(mut self, structure: &[u8]) -> Self {
        self.put(structure);
        self
    }

    fn done(self) -> [u8; N] {
        debug_assert_eq!(self.len, N, "a structure is as long as its fields");
        self.bytes
    }
}

/// `struct fuse_attr`. A node's id is also its inode number: unique and constant while the kernel knows the node.
fn attr(node: NodeId, attr: &Attr) -> [u8; 88] {
    // The kernel takes no inode without a type for one.
    let fmt = if attr.mode & mode::S_IFMT == 0 { mode::S_IFREG } else { attr.mode & mode::S_IFMT };
    let out = Out::new().u64(node).u64(attr.size).u64(attr.blocks);
    let out = [attr.atime, attr.mtime, attr.ctime]
        .iter()
        .fold(out, |out, time| out.u64(time.sec().cast_unsigned()));
    let out = [attr.atime, attr.mtime, attr.ctime].iter().fold(out, |out, time| out.u32(time.nsec()));
    let out = out.u32(fmt | (attr.mode & 0o7777)).u32(attr.nlink).u32(attr.uid).u32(attr.gid);
    out.u32(attr.rdev).u32(BLOCK_SIZE).u32(0).done()
}

/// `struct fuse_entry_out`.
pub(super) fn entry(entry: &Entry) -> [u8; 128] {
    let (name, attrs) = (entry.entry_ttl, entry.attr_ttl);
    let out = Out::new().u64(entry.node).u64(entry.generation).u64(name.as_secs()).u64(attrs.as_secs());
    out.u32(name.subsec_nanos()).u32(attrs.subsec_nanos()).all(&attr(entry.node, &entry.attr)).done()
}

/// Node 0: the name is known not to exist.
fn absent(ttl: Duration) -> [u8; 128] {
    entry(&Entry { node: 0, generation: 0, attr: Attr::default(), entry_ttl: ttl, attr_ttl: Duration::ZERO })
}

/// `struct fuse_attr_out`.
fn attributes(got: &Attributes) -> [u8; 104] {
    Out::new()
        .u64(got.ttl.as_secs())
        .u32(got.ttl.subsec_nanos())
        .u32(0)
        .all(&attr(got.node, &got.attr))
        .done()
}

/// `struct fuse_open_out`.
fn opened(opened: &Opened) -> [u8; 16] {
    let flags = [
        (opened.direct_io, FOPEN_DIRECT_IO),
        (opened.keep_cache, FOPEN_KEEP_CACHE),
        (opened.cache_dir, FOPEN_CACHE_DIR),
    ];
    let flags = flags.iter().filter(|(set, _)| *set).fold(0, |all, (_, flag)| all | flag);
    Out::new().u64(opened.fh).u32(flags).u32(0).done()
}

/// `struct fuse_statfs_out`.
fn statfs(s: &StatFs) -> [u8; 80] {
    let out = Out::new().u64(s.blocks).u64(s.bfree).u64(s.bavail).u64(s.files).u64(s.ffree);
    out.u32(s.bsize).u32(s.namelen).u32(s.bsize).u32(0).all(&[0; 24]).done()
}

/// A request's way back.
enum Way<P: Port> {
    /// The port's own, as long as the request is not handed to another thread.
    Straight(P),
    /// Shared with who may interrupt it.
    Shared(Arc<Waiting<P>>),
}

/// What every request gets to answer to. Dropped unsent, the kernel gets EIO.
pub(super) struct Answering<P: Port> {
    way: Option<Way<P>>,
    unique: u64,
    /// Who asked, if the request may be given up when it is killed.
    interruptible: Option<u32>,
    context: Arc<Context>,
}

impl<P: Port> Answering<P> {
    pub(super) fn new(port: P, unique: u64, context: &Arc<Context>) -> Self {
        Self { way: Some(Way::Straight(port)), unique, interruptible: None, context: Arc::clone(context) }
    }

    /// Nothing is lost if the answer is not sent: while it waits for a driver, the request may be given up when the
    /// process `pid` is killed.
    pub(super) fn interruptible(mut self, pid: u32) -> Self {
        self.interruptible = Some(pid);
        self
    }

    /// Sends; false if the request was interrupted before.
    fn answer(mut self, answer: Answer<'_>) -> bool {
        match self.way.take() {
            Some(Way::Straight(port)) => port.send(self.unique, answer),
            Some(Way::Shared(waiting)) => {
                self.context.interrupts.end(self.unique);
                let Some(port) = waiting.take() else { return false };
                port.send(self.unique, answer);
            }
            None => {}
        }
        true
    }

    fn outcome<const N: usize>(self, outcome: Result<[u8; N]>) -> bool {
        match outcome {
            Ok(body) => self.answer(Answer::Body(&body)),
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
        let context = Arc::clone(&self.context);
        if !self.outcome(answer.as_ref().map(entry).map_err(|error| *error))
            && let Ok(entry) = answer
        {
            context.frontend.forget(entry.node, 1);
        }
    }
}

impl<P: Port> Reply<(Entry, Opened)> for Answering<P> {
    fn send(self, answer: Result<(Entry, Opened)>) {
        self.outcome(
            answer.map(|(made, open)| Out::<144>::new().all(&entry(&made)).all(&opened(&open)).done()),
        );
    }
}

impl<P: Port> Reply<Attributes> for Answering<P> {
    fn send(self, answer: Result<Attributes>) {
        self.outcome(answer.map(|got| attributes(&got)));
    }
}

impl<P: Port> Reply<Opened> for Answering<P> {
    fn send(self, answer: Result<Opened>) {
        let context = Arc::clone(&self.context);
        if !self.outcome(answer.as_ref().map(opened).map_err(|error| *error))
            && let Ok(opened) = answer
        {
            context.frontend.close(opened.fh);
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
        self.outcome(answer.map(|size| Out::<8>::new().u32(size).u32(0).done()));
    }
}

impl<P: Port> Reply<PollEvents> for Answering<P> {
    fn send(self, answer: Result<PollEvents>) {
        self.outcome(answer.map(|ready| Out::<8>::new().u32(ready.bits()).u32(0).done()));
    }
}

/// Where SEEK_DATA or SEEK_HOLE led.
impl<P: Port> Reply<i64> for Answering<P> {
    fn send(self, answer: Result<i64>) {
        self.outcome(answer.map(i64::to_ne_bytes));
    }
}

impl<P: Port> Reply<Xattr> for Answering<P> {
    fn send(self, answer: Result<Xattr>) {
        match answer {
            Ok(Xattr::Size(size)) => {
                self.outcome(Ok(Out::<8>::new().u32(size).u32(0).done()));
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
}

impl<P: Port> DirReply for Listing<P> {
    fn add(&mut self, name: &[u8], next: u64, node: &Entry) -> bool {
        const DIRENT: usize = 24;
        let front = DIRENT + if self.plus { 128 } else { 0 };
        let end = self.entries.len() + (front + name.len()).next_multiple_of(8);
        if end > self.size {
            return false;
        }
        if self.plus {
            self.entries.extend_from_slice(&entry(node));
            if !matches!(name, b"." | b"..") && matches!(self.answering.way, Some(Way::Shared(_))) {
                self.held.push(node.node);
            }
        }
        let dirent = Out::<DIRENT>::new().u64(node.node).u64(next).u32(name.len() as u32);
        self.entries.extend_from_slice(&dirent.u32((node.attr.mode & mode::S_IFMT) >> 12).done());
        self.entries.extend_from_slice(name);
        self.entries.resize(end, 0);
        true
    }

    fn plus(&self) -> bool {
        self.plus
    }

    fn send(self, outcome: Result<()>) {
        let context = Arc::clone(&self.answering.context);
        let sent = match outcome {
            Ok(()) => self.answering.answer(Answer::Body(&self.entries)),
            Err(error) => self.answering.answer(Answer::Error(error)),
        };
        // With an error nothing was added (see `Core::list`).
        if !sent {
            self.held.iter().for_each(|node| context.frontend.forget(*node, 1));
        }
    }
}
