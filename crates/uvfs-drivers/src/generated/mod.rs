//! A deterministic tree of any size that costs no memory, with faults on demand.
//!
//! Every answer to a lookup, a listing, `stat` or `read` is computed from a seed ([`Tree`]). So the driver is as fast
//! as a backing store can be, and any slowness is in the cache above it. The right answer is always known, so every
//! answer can be checked.
//! The driver is not resident: the cache asks, may forget, and asks again. [`Spec`] describes the tree, how long
//! answers may be trusted, and which calls fail, wait or lie. [`FaultControl`] does the same from within the process.
//!
//! The driver keeps nothing per inode, takes no lock unless faults or changes were requested,
//! and answers in O(depth + length of the name). It is read-only: changes fail with EROFS.

mod fault;
mod mixing;
mod names;
mod spec;
mod test_control;
mod tree;

use std::sync::Arc;

use uvfs::driver::{Driver, File, Inode, Rename};
use uvfs::types::{
    Access, Answer, Attr, Cred, DirEntry, Errno, Features, Make, NAME_MAX, NewInode, Op, Result, SetAttr,
    StatFs, Ttl, mode,
};

pub use fault::{Fault, FaultCall, FaultKind};
pub use names::Name;
pub use spec::{MAX_DEPTH, Spec, SpecError};
pub use test_control::{FaultControl, Gate};
pub use tree::{Change, ROOT_INO, Tree};

use fault::{Effects, Faults};
use tree::Truth;

/// First cookie of an entry: 0 to 2 are the start, `.` and `..`.
const FIRST_COOKIE: u64 = 3;
/// Unit of [`StatFs`]'s counts.
const BLOCK_SIZE: u32 = 4096;

/// The state that the driver and its handles share.
struct Shared {
    tree: Tree,
    faults: Faults,
}

/// The driver.
pub struct Generated {
    shared: Arc<Shared>,
    features: Features,
}

impl Generated {
    /// A driver for this specification.
    pub fn new(spec: Spec) -> std::result::Result<Self, SpecError> {
        let faults = Faults::new(&spec.faults);
        let delays = spec.faults.iter().any(|fault| matches!(fault.kind, FaultKind::Delay(_)));
        let features = Features {
            resident: false,
            may_block: spec.may_block || delays,
            lookup_depends_on_cred: spec.percred,
            read_only: !(spec.pass_writes || spec.faults.iter().any(|fault| fault.call.changes())),
            ..Features::default()
        };
        Ok(Self { shared: Arc::new(Shared { tree: Tree::new(spec)?, faults }), features })
    }

    /// The handle that watches and steers this driver.
    pub fn control(&self) -> FaultControl {
        FaultControl::new(self.shared.clone())
    }

    /// The tree that this driver shows.
    pub fn tree(&self) -> &Tree {
        &self.shared.tree
    }

    fn run<T>(&self, call: FaultCall, answer: impl FnOnce(&Effects) -> Result<T>) -> Result<T> {
        self.shared.faults.run(call, answer)
    }

    /// Answers a call that would change something: with a fault's error, or EROFS.
    fn refuse<T>(&self, call: FaultCall) -> Result<T> {
        self.run(call, |_| Err(Errno::ROFS))
    }

    /// The attributes of an inode; ESTALE for a number that was never handed out.
    fn node(&self, ino: u64, truth: Truth) -> Result<NewInode> {
        let attr = self.tree().attr_as(ino, truth).ok_or(Errno::STALE)?;
        Ok(NewInode { attr, private: 0, ttl: self.tree().spec().ttl })
    }

    fn find(&self, cred: &Cred, dir: u64, name: &[u8], effects: &Effects) -> Result<Answer> {
        let tree = self.tree();
        if !tree.is_dir(dir) {
            return Err(Errno::NOTDIR);
        }
        let child = tree.find(dir, name).and_then(|index| tree.child(dir, index));
        match child.filter(|_| !effects.absent) {
            None => Ok(Answer::Absent(tree.spec().negative_ttl)),
            Some(ino) => {
                let node = self.node(ino, effects.truth)?;
                if tree.spec().percred && !cred.is_root() && cred.uid != node.attr.uid {
                    return Err(Errno::ACCESS);
                }
                Ok(Answer::Found(node))
            }
        }
    }

    fn list(
        &self,
        dir: u64,
        cookie: u64,
        truth: Truth,
        sink: &mut dyn FnMut(DirEntry<'_>) -> bool,
    ) -> Result<()> {
        let tree = self.tree();
        if !tree.is_dir(dir) {
            return Err(Errno::NOTDIR);
        }
        let naming = tree.naming(dir, truth);
        // The entry after cookie c has index c - 3 + 1. Cookies 0, 1 and 2 are
        // before the first entry.
        for index in cookie.saturating_sub(FIRST_COOKIE - 1)..tree.entries(dir) {
            let Some(ino) = tree.child(dir, index) else { break };
            let fmt = if tree.is_dir(ino) { mode::S_IFDIR } else { mode::S_IFREG };
            let name = naming.encode(index);
            if !sink(DirEntry { name: &name, ino, fmt, cookie: index + FIRST_COOKIE }) {
                break;
            }
        }
        Ok(())
    }
}

impl Driver for Generated {
    fn name(&self) -> &'static str {
        "generated"
    }

    fn features(&self) -> Features {
        self.features
    }

    fn root(&self, _op: &Op) -> Result<NewInode> {
        self.run(FaultCall::Root, |effects| self.node(ROOT_INO, effects.truth))
    }

    fn lookup(&self, op: &Op, dir: &Inode<'_>, name: &[u8]) -> Result<Answer> {
        self.run(FaultCall::Lookup, |effects| self.find(&op.cred, dir.ino(), name, effects))
    }

    fn getattr(&self, _op: &Op, inode: &Inode<'_>) -> Result<Attr> {
        self.run(FaultCall::Getattr, |effects| Ok(self.node(inode.ino(), effects.truth)?.attr))
    }

    fn ttl(&self) -> Ttl {
        self.tree().spec().ttl
    }

    fn setattr(&self, _op: &Op, _inode: &Inode<'_>, _set: &SetAttr) -> Result<()> {
        self.refuse(FaultCall::Setattr)
    }

    fn create(&self, _op: &Op, _dir: &Inode<'_>, _name: &[u8], _make: &Make<'_>) -> Result<NewInode> {
        self.refuse(FaultCall::Create)
    }

    fn link(&self, _op: &Op, _inode: &Inode<'_>, _dir: &Inode<'_>, _name: &[u8]) -> Result<()> {
        self.refuse(FaultCall::Link)
    }

    fn unlink(&self, _op: &Op, _dir: &Inode<'_>, _name: &[u8], _inode: &Inode<'_>) -> Result<()> {
        self.refuse(FaultCall::Unlink)
    }

    fn rmdir(&self, _op: &Op, _dir: &Inode<'_>, _name: &[u8], _inode: &Inode<'_>) -> Result<()> {
        self.refuse(FaultCall::Rmdir)
    }

    fn rename(&self, _op: &Op, _rename: &Rename<'_>) -> Result<()> {
        self.refuse(FaultCall::Rename)
    }

    fn readdir(
        &self,
        _op: &Op,
        dir: &Inode<'_>,
        cookie: u64,
        sink: &mut dyn FnMut(DirEntry<'_>) -> bool,
    ) -> Result<()> {
        self.run(FaultCall::Readdir, |effects| self.list(dir.ino(), cookie, effects.truth, sink))
    }

    fn open(&self, _op: &Op, _inode: &Inode<'_>, access: Access) -> Result<u64> {
        self.run(FaultCall::Open, |_| if access.contains(Access::WRITE) { Err(Errno::ROFS) } else { Ok(0) })
    }

    fn read(&self, _op: &Op, file: File<'_>, offset: u64, buf: &mut [u8]) -> Result<usize> {
        self.run(FaultCall::Read, |effects| {
            let ino = file.inode.ino();
            let size = self.node(ino, Truth::True)?.attr.size;
            let len = size.saturating_sub(offset).min(buf.len() as u64) as usize;
            self.tree().content_as(ino, offset, &mut buf[..len], effects.truth);
            Ok(len)
        })
    }

    fn write(&self, _op: &Op, _file: File<'_>, _offset: u64, _data: &[u8], _append: bool) -> Result<usize> {
        self.refuse(FaultCall::Write)
    }

    fn statfs(&self, _op: &Op) -> Result<StatFs> {
        self.run(FaultCall::Statfs, |_| {
            Ok(StatFs {
                bsize: BLOCK_SIZE,
                files: self.tree().inodes(),
                namelen: NAME_MAX as u32,
                ..StatFs::default()
            })
        })
    }
}
