//! A front end without a kernel, for tests: its kernel's part is played here.

use std::sync::{Arc, mpsc};

use uvfs::{
    Answer, Attr, Driver, Errno, Features, Inode, NewInode, Op, Result, StatFs, Ttl, Vfs, VfsConfig, mode,
};

use super::Frontend;
use crate::transport::{Asked, Caller, Looked, NodeId, ROOT, Reply};

struct Sent(mpsc::Sender<Result<Looked>>);

impl Asked for Sent {}

impl Reply<Looked> for Sent {
    fn send(self, answer: Result<Looked>) {
        self.0.send(answer).expect("somebody waits for the answer");
    }
}

/// Files that are called by their numbers, as many as one likes.
struct Numbered;

fn node(ino: u64, mode: u32) -> NewInode {
    NewInode { attr: Attr { ino, mode, nlink: 1, ..Attr::default() }, private: 0, ttl: Ttl::Forever }
}

impl Driver for Numbered {
    fn name(&self) -> &'static str {
        "numbered"
    }
    fn features(&self) -> Features {
        Features::default()
    }
    fn root(&self, _: &Op) -> Result<NewInode> {
        Ok(node(1, mode::S_IFDIR | 0o755))
    }
    fn lookup(&self, _: &Op, _: &Inode<'_>, name: &[u8]) -> Result<Answer> {
        let file = str::from_utf8(name).ok().and_then(|name| name.parse::<u32>().ok());
        let file = file.ok_or(Errno::NOENT)?;
        Ok(Answer::Found(node(u64::from(file) + 2, mode::S_IFREG | 0o644)))
    }
    fn statfs(&self, _: &Op) -> Result<StatFs> {
        Ok(StatFs::default())
    }
}

/// A front end over a directory of numbered files.
pub(crate) struct Fixture {
    pub frontend: Arc<Frontend>,
    pub vfs: Arc<Vfs>,
}

impl Fixture {
    pub(crate) fn new() -> Self {
        let vfs = Vfs::new(VfsConfig::default(), Arc::new(Numbered)).expect("a VFS");
        Self { frontend: Arc::new(Frontend::new(Arc::clone(&vfs), None)), vfs }
    }

    /// The kernel looks a file up, and holds its node.
    pub(crate) fn look(&self, file: usize) -> Result<NodeId> {
        let (sent, answer) = mpsc::channel();
        let who = Caller { uid: 0, gid: 0, pid: 0, umask: 0 };
        self.frontend.lookup(who, ROOT, &Self::name(file), Sent(sent));
        match answer.recv().expect("an answer")? {
            Looked::Found(entry) => Ok(entry.node),
            Looked::Absent(_) => Err(Errno::NOENT),
        }
    }

    pub(crate) fn name(file: usize) -> Vec<u8> {
        file.to_string().into_bytes()
    }
}
