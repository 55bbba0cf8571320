//! Files that the kernel reads and writes by itself (FUSE passthrough): who has them open, and under which number it has them.
//!
//! A driver that has files of the host's behind its own lends them ([`Vfs::lend`](uvfs::Vfs::lend)); the kernel gives each a number, and an answer to OPEN
//! or CREATE that names it makes the file's reads, writes and mappings go straight there. No READ and no WRITE comes then,
//! and there is no second page cache. What the kernel demands:
//!
//! - all who have an inode open at a time agree: one number for all, or none has one (EIO otherwise). So how the first one opens it
//!   holds until the last one has closed it;
//! - a number is given back by us. The kernel agrees to another one after it has sent the last RELEASE.
//!
//! Not lent is a small file that is first opened to be read: to borrow it and to give it back costs more than to read it, once, into pages
//! that the kernel keeps from one open to the next (of a hot open, read and close the server's part was half as much again). Nor is what the driver
//! does not offer ([`Driver::offer`](uvfs::driver::Driver::offer)), such as one that has set-id bits.
//!
//! **Mappings.** One that was made through an open file that is lent is of the file behind it, and keeps nobody from sending RELEASE: it goes on when nobody has the
//! file open. Who reads by requests then, out of pages of the mount's own, does not see what is stored through it. So a file that was lent once is lent
//! again, a small one too, and where that cannot be it is read and written by requests without pages ([`Way::Direct`]), as long as the kernel knows the
//! inode, which it does while somebody has it mapped. The driver remembers it ([`Driver::was_lent`](uvfs::driver::Driver::was_lent)). A mapping that
//! was made through a file that is open by requests keeps that open: before its end, nobody is lent the file. Pages that are left of
//! opens by requests the kernel drops when it is answered an open that is lent, and nobody reads them.
//!
//! **Attributes.** Nobody tells of these writes, not in time: an event comes a moment later. So while somebody has a file that is lent open for
//! writing, no attributes of it are answered out of the cache ([`Core::attr_if_written`]). The kernel may keep them: of its own writes it knows, and
//! sees which answers are older; only what stores through a mapping do to the times it learns when the mapping ends, by the event. When such
//! a file is released the driver looks at it, before it counts as closed here.
//!
//! One mutex for all who open and close, held for some instructions; never while a driver or the kernel is called. Two who are
//! first at the same time both borrow, and one of them gives it back. Who is lent a file marks it after it is in the table and before the answer; who opens it by
//! requests looks for the mark after it is in the table. So who does not see the mark was there before anybody had the file lent, and nobody has until it
//! is closed. Without passthrough nothing is locked here. Who asks for attributes reads one word, which inodes share whose numbers are alike, and locks the table if
//! it says that one of them is open for writing.

use std::collections::HashMap;
use std::os::fd::BorrowedFd;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::Relaxed, Ordering::SeqCst};

use parking_lot::Mutex;
use uvfs::{Access, Attr, Cred, Errno, Inode, Op, Result};

use super::{Core, Frontend};
use crate::mounted::Passthrough;
use crate::transport::{BackingId, NodeId};

/// Files of fewer bytes are not lent to who reads them: as many as the kernel reads ahead in one request.
const SMALL: u64 = 128 << 10;

/// Words that say whether an inode is open for writing.
const WRITERS: usize = 1024;

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

/// How the kernel is to read and write it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Way {
    /// By itself, under this number.
    Lent(BackingId),
    /// By requests, into its pages.
    Pages,
    /// By requests, one for each call.
    Direct,
}

/// See the module.
pub(super) struct Backings {
    kernel: OnceLock<Box<dyn Kernel>>,
    table: Mutex<Table>,
    /// Of files that are lent, and whose inodes have this remainder: how many are open for writing.
    writers: Box<[AtomicU32; WRITERS]>,
    /// The kernel has said that it will never take any.
    hopeless: AtomicBool,
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

impl Default for Backings {
    fn default() -> Self {
        Self {
            kernel: OnceLock::new(),
            table: Mutex::default(),
            writers: Box::new([const { AtomicU32::new(0) }; WRITERS]),
            hopeless: AtomicBool::new(false),
            lent: AtomicU64::new(0),
            refused: AtomicU64::new(0),
        }
    }
}

impl Backings {
    /// Whether files may be lent at all.
    pub(super) fn is_agreed(&self) -> bool {
        self.kernel.get().is_some()
    }

    fn writers(&self, node: NodeId) -> &AtomicU32 {
        // Node ids are numbers of places in a table, below a generation.
        &self.writers[node as usize % WRITERS]
    }

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
            self.writers(node).fetch_add(1, SeqCst);
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
            self.writers(node).fetch_sub(1, SeqCst);
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
        self.writers(node).load(SeqCst) > 0
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
            agreed: backings.is_agreed(),
            opens: backings.lent.load(Relaxed),
            refused: backings.refused.load(Relaxed),
        }
    }
}

impl Core {
    /// How the kernel is to read and write a file that was just opened.
    ///
    /// # Errors
    /// EINVAL for O_DIRECT where the driver does not take it, and what it answers where it cannot lend what it has offered.
    pub(super) fn lend(&self, op: &Op, inode: &Inode<'_>, fh: u64, how: How) -> Result<Way> {
        let backings = &self.backings;
        let Some(kernel) = backings.kernel.get() else { return Ok(Way::Pages) };
        // Without a handle nothing is read or written.
        if fh == 0 || !self.vfs.lends(inode) {
            return Ok(Way::Pages);
        }
        if how.direct {
            // Also by requests: who opened it first must not make a difference.
            self.vfs.takes_direct(fh)?;
        }
        let node = self.node_of(inode.id());
        let id = backings.join(node, fh, how).unwrap_or_else(|| {
            let id = self.borrow(&**kernel, op, inode, fh, how);
            let (id, not_needed) = backings.enter(node, fh, how, id);
            not_needed.into_iter().for_each(|id| kernel.give_back(id));
            id
        });
        backings.count(id);
        match id {
            Some(id) => self.vfs.lend(fh).map(|()| Way::Lent(id)),
            None if self.vfs.was_lent(inode) => Ok(Way::Direct),
            None => Ok(Way::Pages),
        }
    }

    fn borrow(
        &self,
        kernel: &dyn Kernel,
        op: &Op,
        inode: &Inode<'_>,
        fh: u64,
        how: How,
    ) -> Option<BackingId> {
        let hopeless = &self.backings.hopeless;
        let small = !how.access.contains(Access::WRITE) && inode.attr().size < SMALL;
        if hopeless.load(Relaxed) || small && !self.vfs.was_lent(inode) {
            return None;
        }
        let mut id = None;
        let mut borrow = |file: BorrowedFd<'_>| {
            let borrowed = kernel.borrow(file);
            if let Err(Errno::LOOP | Errno::OPNOTSUPP) = borrowed {
                hopeless.store(true, Relaxed);
            }
            id = Some(borrowed?);
            Ok(())
        };
        match self.vfs.offer(op, fh, &mut borrow) {
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
        assert!(!backings.is_written(7) && backings.writers.iter().all(|count| count.load(SeqCst) == 0));
    }

    #[test]
    fn an_inode_is_not_written_because_another_one_is_that_shares_its_word() {
        let backings = Backings::default();
        backings.enter(7, 1, WRITES, Some(11));
        assert!(backings.is_written(7) && !backings.is_written(7 + WRITERS as NodeId));
        backings.leave(1);
        assert!(!backings.is_written(7));
    }
}
