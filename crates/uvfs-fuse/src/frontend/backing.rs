//! Files that the kernel reads and writes by itself (FUSE passthrough): who has them open, and under which number it has them.
//!
//! A driver that has files of the host's behind its own lends them ([`Vfs::lend`](uvfs::Vfs::lend)); the kernel gives each a number, and an answer to OPEN
//! or CREATE that names it makes the file's reads, writes and mappings go straight there. No READ and no WRITE comes then,
//! and there is no second page cache. What the kernel demands:
//!
//! - all who have an inode open at a time agree: one number for all, or none has one (EIO otherwise). So how the first one opens it
//!   holds until the last one has closed it;
//! - a number is given back by us. The kernel has let go of a file before it sends RELEASE, so after the last RELEASE the next
//!   open may decide anew.
//!
//! Not lent is a small file that is first opened to be read: to borrow it and to give it back costs more than to read it, once, into pages
//! that the kernel keeps from one open to the next (of a hot open, read and close the server's part was half as much again). Nor is what has set-id bits when it is first opened: they go with a write or stay by who writes, and there is one identity for
//! all writers. Those that a file gets while it is lent go with the next write, root's too.
//!
//! **Attributes.** Nobody tells of these writes, not in time: an event comes a moment later. So while somebody has a file that is lent open for
//! writing, no attributes of it are answered out of the cache ([`Core::attr_if_written`]). The kernel may keep them: of its own writes it knows, and
//! sees which answers are older; only what stores through a mapping do to the times it learns when the mapping ends, by the event. When such
//! a file is released the driver looks at it, before it counts as closed here.
//!
//! One mutex for all, held for some instructions; never while a driver or the kernel is called. Two who are
//! first at the same time both borrow, and one of them gives it back. Without passthrough nothing is locked here, and without
//! writers one word is read.

use std::collections::HashMap;
use std::os::fd::BorrowedFd;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed, Ordering::SeqCst};

use parking_lot::Mutex;
use uvfs::{Access, Attr, Cred, Inode, Op, Result, mode};

use super::{Core, Frontend};
use crate::mounted::Passthrough;
use crate::transport::{BackingId, NodeId};

/// Files of fewer bytes are not lent to who reads them: as many as the kernel reads ahead in one request.
const SMALL: u64 = 128 << 10;

/// A kernel that can be lent files.
pub(crate) trait Kernel: Send + Sync {
    /// Lends it a file, with the identity and the rights of this thread.
    fn borrow(&self, file: BorrowedFd<'_>) -> Result<BackingId>;
    /// The number is not used any more.
    fn give_back(&self, id: BackingId);
}

/// How a file was opened.
#[derive(Clone, Copy)]
pub(super) struct How {
    pub access: Access,
    /// O_DIRECT.
    pub direct: bool,
}

/// See the module.
#[derive(Default)]
pub(super) struct Backings {
    kernel: OnceLock<Box<dyn Kernel>>,
    table: Mutex<Table>,
    /// Of all files that are lent: how many are open for writing.
    writers: AtomicUsize,
    lent: AtomicU64,
    refused: AtomicU64,
}

#[derive(Default)]
struct Table {
    nodes: HashMap<NodeId, Node>,
    files: HashMap<u64, Open>,
}

/// An inode that is open.
struct Node {
    /// None: by requests, as ever.
    id: Option<BackingId>,
    open: usize,
    /// Of these, for writing, where it is lent.
    writers: usize,
}

/// An open file.
struct Open {
    node: NodeId,
    writes: bool,
}

impl Backings {
    /// One more has the inode open, in the way that it is open already; none where it is not.
    fn join(&self, node: NodeId, fh: u64, how: How) -> Option<Option<BackingId>> {
        let mut table = self.table.lock();
        let id = table.nodes.get(&node)?.id;
        self.note(&mut table, node, fh, how, id);
        Some(id)
    }

    /// The first one has the inode open, in the way of `id`, unless somebody else was faster: the way, and the
    /// number that is not needed then.
    fn enter(
        &self,
        node: NodeId,
        fh: u64,
        how: How,
        id: Option<BackingId>,
    ) -> (Option<BackingId>, Option<BackingId>) {
        let mut table = self.table.lock();
        let way = table.nodes.get(&node).map_or(id, |node| node.id);
        self.note(&mut table, node, fh, how, way);
        (way, id.filter(|_| way != id))
    }

    fn note(&self, table: &mut Table, node: NodeId, fh: u64, how: How, id: Option<BackingId>) {
        let writes = id.is_some() && how.access.contains(Access::WRITE);
        let entry = table.nodes.entry(node).or_insert(Node { id, open: 0, writers: 0 });
        entry.open += 1;
        if writes {
            entry.writers += 1;
            self.writers.fetch_add(1, SeqCst);
        }
        table.files.insert(fh, Open { node, writes });
    }

    /// One has closed it; the number that nobody uses any more.
    fn leave(&self, fh: u64) -> Option<BackingId> {
        let mut table = self.table.lock();
        let Open { node, writes } = table.files.remove(&fh)?;
        let entry = table.nodes.get_mut(&node)?;
        if writes {
            entry.writers -= 1;
            self.writers.fetch_sub(1, SeqCst);
        }
        entry.open -= 1;
        if entry.open > 0 {
            return None;
        }
        table.nodes.remove(&node).and_then(|node| node.id)
    }

    fn count(&self, way: Option<BackingId>) {
        let counter = if way.is_some() { &self.lent } else { &self.refused };
        counter.fetch_add(1, Relaxed);
    }

    fn is_written(&self, node: NodeId) -> bool {
        self.writers.load(SeqCst) > 0
            && self.table.lock().nodes.get(&node).is_some_and(|node| node.writers > 0)
    }
}

impl Frontend {
    /// Whether the root's driver lends files.
    pub(crate) fn lends(&self) -> bool {
        self.core.vfs.lends(&self.core.vfs.root())
    }

    /// This kernel can be lent files.
    pub(crate) fn kernel_borrows(&self, kernel: Box<dyn Kernel>) {
        let _ = self.core.backings.kernel.set(kernel);
    }

    pub(crate) fn passthrough(&self) -> Passthrough {
        let backings = &self.core.backings;
        Passthrough {
            agreed: backings.kernel.get().is_some(),
            opens: backings.lent.load(Relaxed),
            refused: backings.refused.load(Relaxed),
        }
    }
}

impl Core {
    /// The number under which the kernel reads and writes a file that was just opened; none where it asks us.
    ///
    /// # Errors
    /// What the driver answers where others have the file open in this way and it cannot be.
    pub(super) fn lend(&self, op: &Op, inode: &Inode<'_>, fh: u64, how: How) -> Result<Option<BackingId>> {
        let backings = &self.backings;
        let Some(kernel) = backings.kernel.get() else { return Ok(None) };
        // Without a handle nothing is read or written.
        if fh == 0 || !self.vfs.lends(inode) {
            return Ok(None);
        }
        let node = self.node_of(inode.id());
        let way = match backings.join(node, fh, how) {
            Some(way) => way,
            None => {
                let id = self.borrow(&**kernel, op, inode, fh, how);
                let (way, not_needed) = backings.enter(node, fh, how, id);
                not_needed.into_iter().for_each(|id| kernel.give_back(id));
                if way == id {
                    backings.count(way);
                    return Ok(way);
                }
                way
            }
        };
        if way.is_some() {
            self.vfs.lend(op, fh, how.direct, None)?;
        }
        backings.count(way);
        Ok(way)
    }

    fn borrow(
        &self,
        kernel: &dyn Kernel,
        op: &Op,
        inode: &Inode<'_>,
        fh: u64,
        how: How,
    ) -> Option<BackingId> {
        let attr = inode.attr();
        if !how.access.contains(Access::WRITE) && attr.size < SMALL {
            return None;
        }
        if attr.mode & (mode::S_ISUID | mode::S_ISGID) != 0 {
            return None;
        }
        let mut id = None;
        let mut borrow = |file: BorrowedFd<'_>| {
            id = Some(kernel.borrow(file)?);
            Ok(())
        };
        match self.vfs.lend(op, fh, how.direct, Some(&mut borrow)) {
            Ok(()) => id,
            Err(error) => {
                tracing::debug!(%error, "a file is not lent to the kernel");
                id.into_iter().for_each(|id| kernel.give_back(id));
                None
            }
        }
    }

    /// A file is closed.
    pub(super) fn take_back(&self, fh: u64) {
        let Some(kernel) = self.backings.kernel.get() else { return };
        if let Some(id) = self.backings.leave(fh) {
            kernel.give_back(id);
        }
    }

    /// Whether what the cache has of an inode's attributes is not to be told, because the kernel writes to the file.
    pub(super) fn is_written(&self, inode: &Inode<'_>) -> bool {
        self.backings.is_written(self.node_of(inode.id()))
    }

    /// The attributes of an inode that the kernel writes to, as they are now. What the cache has where its driver does not know.
    pub(super) fn attr_if_written(&self, inode: &Inode<'_>) -> Option<Attr> {
        self.is_written(inode)
            .then(|| self.vfs.look(&self.vfs.op(&Cred::root()), inode).unwrap_or_else(|_| inode.attr()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const READS: How = How { access: Access::READ, direct: false };
    const WRITES: How = How { access: Access::WRITE, direct: false };

    #[test]
    fn all_who_have_an_inode_open_agree_until_the_last_one_closes_it() {
        let backings = Backings::default();
        assert_eq!(backings.join(7, 1, READS), None);
        // Two are the first: the later one gives its number back, and takes the other's.
        assert_eq!(backings.enter(7, 1, READS, Some(11)), (Some(11), None));
        assert_eq!(backings.enter(7, 2, WRITES, Some(12)), (Some(11), Some(12)));
        // Who was refused goes along, too.
        assert_eq!(backings.enter(7, 3, READS, None), (Some(11), None));
        assert_eq!(backings.join(7, 4, READS), Some(Some(11)));
        assert_eq!([1, 2, 3].map(|fh| backings.leave(fh)), [None; 3]);
        assert_eq!((backings.leave(4), backings.leave(4)), (Some(11), None));
        // Where the first one was refused, all are, and a number that came too late is not needed.
        assert_eq!(backings.enter(7, 5, WRITES, None), (None, None));
        assert_eq!(backings.enter(7, 6, WRITES, Some(13)), (None, Some(13)));
        assert_eq!(backings.join(7, 7, WRITES), Some(None));
        assert!(!backings.is_written(7), "these writes come to us");
        assert_eq!([5, 6, 7].map(|fh| backings.leave(fh)), [None; 3]);
        assert_eq!(backings.join(7, 8, READS), None);
        assert!(backings.table.lock().nodes.is_empty() && backings.table.lock().files.is_empty());
    }

    #[test]
    fn an_inode_is_written_while_somebody_can() {
        let backings = Backings::default();
        backings.enter(7, 1, READS, Some(11));
        assert!(!backings.is_written(7));
        backings.join(7, 2, WRITES);
        backings.join(7, 3, WRITES);
        assert!(backings.is_written(7) && !backings.is_written(8));
        backings.leave(2);
        assert!(backings.is_written(7));
        backings.leave(3);
        assert!(!backings.is_written(7) && backings.writers.load(SeqCst) == 0);
    }
}
