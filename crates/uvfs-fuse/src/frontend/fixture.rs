//! A front end without a kernel, for tests: its kernel's part is played here.

use std::sync::{Arc, mpsc};

use uvfs::{Result, Vfs, VfsConfig};
use uvfs_drivers::generated::{Generated, ROOT_INO, Spec};

use super::Frontend;
use crate::transport::{Caller, Looked, NodeId, ROOT, Reply};

struct Sent(mpsc::Sender<Result<Looked>>);

impl Reply<Looked> for Sent {
    fn send(self, answer: Result<Looked>) {
        self.0.send(answer).expect("somebody waits for the answer");
    }
}

/// A front end over a computed tree with so many files in its root.
pub(crate) struct Fixture {
    pub frontend: Arc<Frontend>,
    pub vfs: Arc<Vfs>,
    names: Vec<Vec<u8>>,
}

impl Fixture {
    pub(crate) fn new(files: u64) -> Self {
        let spec: Spec = format!("depth=0,files={files}").parse().expect("a specification");
        let driver = Generated::new(spec).expect("a driver");
        let tree = driver.control();
        let tree = tree.tree();
        let names = (0..files).filter_map(|i| tree.name(ROOT_INO, i)).map(|name| name.to_vec()).collect();
        let vfs = Vfs::new(VfsConfig::default(), Arc::new(driver)).expect("a VFS");
        Self { frontend: Arc::new(Frontend::new(Arc::clone(&vfs), None)), vfs, names }
    }

    /// The kernel looks a file up, and holds its node.
    pub(crate) fn look(&self, file: usize) -> Result<NodeId> {
        let (sent, answer) = mpsc::channel();
        let who = Caller { uid: 0, gid: 0, pid: 0 };
        self.frontend.lookup(who, ROOT, &self.names[file], Sent(sent));
        match answer.recv().expect("an answer")? {
            Looked::Found(entry) => Ok(entry.node),
            Looked::Absent(_) => Err(uvfs::Errno::NOENT),
        }
    }

    pub(crate) fn name(&self, file: usize) -> &[u8] {
        &self.names[file]
    }
}
