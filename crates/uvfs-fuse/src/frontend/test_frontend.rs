//! A front end without a kernel, for tests, which play the kernel's part.

use std::sync::{Arc, mpsc};

use parking_lot::{Condvar, Mutex};
use uvfs::driver::File;
use uvfs::{
    Access, Answer, Attr, DirEntry, Driver, Errno, Features, Inode, NewInode, Op, Result, SetAttr, StatFs,
    Ttl, Vfs, VfsConfig, mode,
};

use super::Frontend;
use crate::mount::options::Permissions;
use crate::threads::waiting_by_node::{For, Waiting};
use crate::transport::{Asked, Attributes, Caller, Entry, Looked, NodeId, ROOT, Reply, Write};

/// The name whose lookup waits.
const SLOW: &[u8] = b"slow";
/// The name for which there is never memory.
const SHORT: &[u8] = b"short";

pub(crate) struct Sent<T>(mpsc::Sender<Result<T>>);

impl<T: Send + 'static> Asked for Sent<T> {}

impl<T: Send + 'static> Reply<T> for Sent<T> {
    fn send(self, answer: Result<T>) {
        self.0.send(answer).expect("somebody waits for the answer");
    }
}

/// A reply, and the channel that receives its answer.
pub(crate) fn reply<T>() -> (Sent<T>, mpsc::Receiver<Result<T>>) {
    let (sent, answer) = mpsc::channel();
    (Sent(sent), answer)
}

pub(crate) const ANYBODY: Caller = Caller { uid: 0, gid: 0, pid: 0, umask: 0 };

/// Blocks calls while it is closed.
#[derive(Default)]
struct Gate {
    closed: Mutex<bool>,
    opened: Condvar,
}

impl Gate {
    fn pass(&self) {
        let mut closed = self.closed.lock();
        while *closed {
            self.opened.wait(&mut closed);
        }
    }

    fn set(&self, closed: bool) {
        *self.closed.lock() = closed;
        self.opened.notify_all();
    }
}

/// A driver of files named by their numbers, without end.
struct Numbered {
    features: Features,
    gate: Arc<Gate>,
}

fn node(ino: u64, mode: u32) -> NewInode {
    NewInode { attr: Attr { ino, mode, nlink: 1, ..Attr::default() }, private: 0, ttl: Ttl::Forever }
}

impl Driver for Numbered {
    fn name(&self) -> &'static str {
        "numbered"
    }
    fn features(&self) -> Features {
        self.features
    }
    fn ttl(&self) -> Ttl {
        Ttl::Forever
    }
    fn root(&self, _: &Op) -> Result<NewInode> {
        Ok(node(1, mode::S_IFDIR | 0o755))
    }
    fn lookup(&self, _: &Op, _: &Inode<'_>, name: &[u8]) -> Result<Answer> {
        if name == SHORT {
            return Err(Errno::NOMEM);
        }
        if name == SLOW {
            self.gate.pass();
            return Ok(Answer::Found(node(2, mode::S_IFREG | 0o644)));
        }
        let file = str::from_utf8(name).ok().and_then(|name| name.parse::<u32>().ok());
        let file = file.ok_or(Errno::NOENT)?;
        Ok(Answer::Found(node(u64::from(file) + 3, mode::S_IFREG | 0o644)))
    }
    /// As many names as requested, which no lookup finds; then an error.
    fn readdir(
        &self,
        _: &Op,
        _: &Inode<'_>,
        cookie: u64,
        sink: &mut dyn FnMut(DirEntry<'_>) -> bool,
    ) -> Result<()> {
        if cookie > 100 {
            return Err(Errno::IO);
        }
        for cookie in 101.. {
            if !sink(DirEntry { name: b"gone", ino: cookie, fmt: mode::S_IFREG, cookie }) {
                break;
            }
        }
        Ok(())
    }
    fn setattr(&self, _: &Op, inode: &Inode<'_>, set: &SetAttr) -> Result<()> {
        inode.update(|attr| attr.mode = set.mode.map_or(attr.mode, |bits| mode::S_IFREG | bits));
        Ok(())
    }
    fn link(&self, _: &Op, inode: &Inode<'_>, _: &Inode<'_>, _: &[u8]) -> Result<()> {
        inode.update(|attr| attr.nlink += 1);
        Ok(())
    }
    fn write(&self, _: &Op, _: File<'_>, _: u64, data: &[u8], _: bool) -> Result<usize> {
        self.gate.pass();
        Ok(data.len())
    }
    fn statfs(&self, _: &Op) -> Result<StatFs> {
        Ok(StatFs::default())
    }
}

/// A front end over a directory of numbered files.
pub(crate) struct Fixture {
    pub frontend: Arc<Frontend>,
    pub vfs: Arc<Vfs>,
    gate: Arc<Gate>,
}

/// A request whose driver call is blocked.
pub(crate) struct Hanging<T> {
    gate: Arc<Gate>,
    answer: mpsc::Receiver<Result<T>>,
}

impl<T> Hanging<T> {
    /// Lets the driver answer.
    pub(crate) fn end(self) -> Result<T> {
        self.gate.set(false);
        self.answer.recv().expect("an answer")
    }
}

impl Fixture {
    pub(crate) fn new() -> Self {
        Self::with(Features::default())
    }

    pub(crate) fn with(features: Features) -> Self {
        let gate = Arc::<Gate>::default();
        let driver = Numbered { features, gate: Arc::clone(&gate) };
        let vfs = Vfs::new(VfsConfig::default(), Arc::new(driver)).expect("a VFS");
        Self { frontend: Arc::new(Frontend::new(Arc::clone(&vfs), None, Permissions::Kernel)), vfs, gate }
    }

    fn lookup(&self, name: &[u8]) -> mpsc::Receiver<Result<Looked>> {
        let (sent, answer) = reply();
        self.frontend.lookup(ANYBODY, ROOT, name, sent);
        answer
    }

    /// The kernel looks a file up, and holds its node.
    pub(crate) fn look(&self, file: usize) -> Result<NodeId> {
        match self.lookup(&Self::name(file)).recv().expect("an answer")? {
            Looked::Found(entry) => Ok(entry.node),
            Looked::Absent(_) => Err(Errno::NOENT),
        }
    }

    /// A lookup whose driver call hangs; only for a driver that may block.
    pub(crate) fn look_and_hang(&self) -> Hanging<Looked> {
        self.gate.set(true);
        Hanging { gate: Arc::clone(&self.gate), answer: self.lookup(SLOW) }
    }

    /// A lookup for which there is no memory.
    pub(crate) fn look_and_be_short(&self) -> mpsc::Receiver<Result<Looked>> {
        self.lookup(SHORT)
    }

    /// A write whose driver call hangs.
    pub(crate) fn write_and_hang(&self, node: NodeId) -> Hanging<u32> {
        let inode = self.frontend.core.inode(node).expect("a node");
        let opened = self.vfs.open(&self.frontend.core.op(ANYBODY), &inode, Access::WRITE, false);
        let fh = opened.expect("an open file");
        self.gate.set(true);
        let (sent, answer) = reply();
        let write = Write { fh, offset: 0, kill_priv: false, append: false, written_back: false };
        self.frontend.write(ANYBODY, node, write, b"data", sent);
        Hanging { gate: Arc::clone(&self.gate), answer }
    }

    /// Registers a waiting request.
    pub(crate) fn waits(&self, node: NodeId, what: For) -> Waiting {
        self.frontend.core.waiting(node, what)
    }

    /// The answers to a change of mode, and to a further name.
    pub(crate) fn change(&self, node: NodeId) -> (Attributes, Entry) {
        let (sent, changed) = reply();
        let set = SetAttr { mode: Some(0o600), ..SetAttr::default() };
        self.frontend.setattr(ANYBODY, node, set, None, sent);
        let (sent, linked) = reply();
        self.frontend.link(ANYBODY, node, ROOT, b"another name", sent);
        let got = "an answer";
        (changed.recv().expect(got).expect("a change"), linked.recv().expect(got).expect("a link"))
    }

    pub(crate) fn name(file: usize) -> Vec<u8> {
        file.to_string().into_bytes()
    }
}
