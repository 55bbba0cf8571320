//! Files that the kernel reads and writes by itself (FUSE passthrough): their openers, and the kernel's numbers for
//! them.
//!
//! A driver whose files are files of the host can lend them ([`Vfs::lend`](uvfs::Vfs::lend)). The kernel gives each
//! a number. An answer to OPEN or CREATE that names the number sends the file's reads, writes and mappings straight
//! to the host's file. No READ and no WRITE comes then, and there is no second page cache. The kernel requires two
//! things:
//!
//! - All openers of an inode at one time agree: all use one number, or none has one (EIO otherwise). So the first
//!   open decides until the last close.
//! - The server gives the number back. The kernel accepts another one after it has sent the last RELEASE.
//!
//! A small file that is first opened for reading is not lent. Borrowing and returning it costs more than reading it
//! once, into pages that the kernel keeps from one open to the next. (Lending made the server's part of a hot open,
//! read and close 1.5 times as long.) Nor is one that is opened for writing by a thread whose files stay small
//! ([`small_writers`](super::small_writers)).
//!
//! A file that is first opened with `O_DIRECT` is not lent. The kernel's own open of the lent file would keep that flag for
//! good. A file that the driver does not offer
//! ([`FileLender::offer`](uvfs::driver::FileLender::offer)), such as one with set-id bits, is not lent either.
//!
//! A file that is not lent is read and written *by requests*: the kernel sends READ and WRITE.
//!
//! **Mappings.** A mapping made through a lent open file shows the file behind it. It does not delay RELEASE, and
//! continues when nobody has the file open. A program that reads the file by READ requests, through the mount's own
//! pages, does not see stores through that mapping. So a file that was lent once to an opener that can map it is lent
//! again, even a small one. If that is impossible, it is read and written by requests without pages
//! ([`Way::Direct`]). The rule holds while the kernel knows the inode, so while the file is mapped. The driver
//! remembers that ([`FileLender::may_be_mapped`](uvfs::driver::FileLender::may_be_mapped)). A mapping of a file that is open by requests keeps
//! it open. The file is not lent until the mapping ends. Pages may be left from opens by requests. The kernel drops
//! these pages when a reply to OPEN carries a number. No reader sees them after that.
//!
//! **Attributes.** Nothing reports the kernel's own writes in time: an event of a mirror's source comes a moment later.
//! So while a lent file is open for writing, its attributes are not answered from the cache
//! ([`Core::attr_if_written`]). The kernel may keep them: it knows its own writes, and sees which answers are older.
//! When a mapping ends, an event reports its stores. Only then does the kernel learn the new times. At RELEASE the
//! driver first reads the file's attributes. Only then does this table drop the opener. A resident driver has no
//! events. While a file of it is lent or may be mapped ([`Core::changes_unreported`]), the kernel is told to keep no
//! attributes. When such a file is opened for writing, or has holes, which a read may fill, the server has the kernel
//! drop its attributes.
//!
//! One mutex guards the table. Opens, closes and some requests for attributes take it for some instructions, never
//! across a call of the driver or the kernel. Two concurrent first openers both borrow, and one of them returns its
//! number. A lending opener marks the file after its entry in the table and before the answer. An opener by requests
//! checks the mark after its own entry. If the opener sees no mark, its entry came before any lending. The table then
//! lends the file to nobody until the last close. Without passthrough nothing is locked here. A request for attributes
//! reads one of 1,024 words, which node ids with the same remainder share. It locks the table only if the word says
//! that one of them is open for writing.

use std::collections::HashMap;
use std::os::fd::BorrowedFd;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::Relaxed, Ordering::SeqCst};

use parking_lot::Mutex;
use uvfs::{Access, Attr, Cred, Errno, Inode, Op, Result};

use super::small_writers::{SmallWriters, is_cheap, units};
use super::{Core, Frontend};
use crate::notify::messages::Message;
use crate::transport::{BackingId, NodeId};

/// The outcomes for open files that the kernel could read and write by itself; see
/// [`Mounted::passthrough`](crate::Mounted::passthrough).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Passthrough {
    /// The driver lends files, and the kernel takes them.
    pub agreed: bool,
    /// Files that were opened so.
    pub opens: u64,
    /// Files that were opened without, though it was agreed: small ones that are read, those with set-id bits or `O_DIRECT`, on a
    /// file system that is stacked on another.
    pub refused: u64,
}

/// Smaller files than this many bytes are not lent to readers: it is the kernel's readahead in one request.
const SMALL: u64 = 128 << 10;

/// Words that say whether an inode is open for writing.
const WRITERS: usize = 1024;

/// A kernel that accepts lent files.
pub(crate) trait Kernel: Send + Sync {
    /// Lends it a file, with the identity and rights of this thread.
    fn borrow(&self, file: BorrowedFd<'_>) -> Result<BackingId>;
    /// Returns a number that is not used any more.
    fn give_back(&self, id: BackingId);
}

/// How a file was opened.
#[derive(Clone, Copy)]
pub(super) struct How {
    pub access: Access,
    /// O_DIRECT.
    pub direct: bool,
    /// The thread that opens it.
    pub opener: u32,
}

/// How the kernel is to read and write the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Way {
    /// By itself, under this number.
    Lent(BackingId),
    /// By requests, into the kernel's pages.
    Pages,
    /// By requests, one for each call.
    Direct,
}

/// See the module.
pub(super) struct Backings {
    kernel: OnceLock<Box<dyn Kernel>>,
    table: Mutex<Table>,
    /// For each remainder of node ids: how many lent files with that remainder are open for writing.
    writers: Box<[AtomicU32; WRITERS]>,
    small: SmallWriters,
    /// The kernel has said that it will never accept a file.
    hopeless: AtomicBool,
    lent: AtomicU64,
    refused: AtomicU64,
}

#[derive(Default)]
struct Table {
    nodes: HashMap<NodeId, Node>,
    files: HashMap<u64, Open>,
}

/// An open inode.
struct Node {
    /// `None`: by requests, as without passthrough.
    id: Option<BackingId>,
    open: usize,
    /// How many of these write, if the file is lent.
    writers: usize,
}

/// An open file.
struct Open {
    node: NodeId,
    /// It is lent for writing.
    writes: bool,
    /// If it is open for writing, in whatever way: the thread that opened it. 0 otherwise.
    writer: u32,
    /// Of the WRITE requests so far.
    units: u32,
}

/// An opener that has gone.
#[derive(Debug, Default, PartialEq, Eq)]
struct Left {
    /// The number that nobody uses any more.
    id: Option<BackingId>,
    /// If it was open for writing: the thread that opened it, and how the file was used.
    written: Option<(u32, Written)>,
}

/// How a file was used that was open for writing.
#[derive(Debug, PartialEq, Eq)]
enum Written {
    /// It was lent.
    Lent,
    /// By requests of so many units.
    Units(u32),
}

impl Default for Backings {
    fn default() -> Self {
        Self {
            kernel: OnceLock::new(),
            table: Mutex::default(),
            writers: Box::new([const { AtomicU32::new(0) }; WRITERS]),
            small: SmallWriters::default(),
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
        // Node ids are indices of slots, below a generation.
        &self.writers[node as usize % WRITERS]
    }

    /// Adds an opener to an inode that is already open, in the existing way. `None` if it is not open.
    fn join(&self, node: NodeId, fh: u64, how: How) -> Option<Option<BackingId>> {
        let mut table = self.table.lock();
        let id = table.nodes.get(&node)?.id;
        self.note(&mut table, node, fh, how, id);
        Some(id)
    }

    /// Adds the first opener of an inode, in the way of `id`, unless another opener came first. Returns the way,
    /// and `id` if it is not needed.
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
        let writer = if how.access.contains(Access::WRITE) { how.opener } else { 0 };
        table.files.insert(fh, Open { node, writes, writer, units: 0 });
    }

    /// Removes an opener.
    fn leave(&self, fh: u64) -> Left {
        let mut table = self.table.lock();
        let Some(Open { node, writes, writer, units }) = table.files.remove(&fh) else {
            return Left::default();
        };
        let how = if writes { Written::Lent } else { Written::Units(units) };
        let mut left = Left { id: None, written: (writer != 0).then_some((writer, how)) };
        if let Some(entry) = table.nodes.get_mut(&node) {
            if writes {
                entry.writers -= 1;
                self.writers(node).fetch_sub(1, SeqCst);
            }
            entry.open -= 1;
            if entry.open == 0 {
                left.id = table.nodes.remove(&node).and_then(|node| node.id);
            }
        }
        left
    }

    /// A WRITE request of so many bytes.
    pub(super) fn wrote(&self, fh: u64, len: usize) {
        if self.is_agreed()
            && let Some(file) = self.table.lock().files.get_mut(&fh)
        {
            file.units = file.units.saturating_add(units(len as u64));
        }
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

    /// Sets the kernel that accepts lent files.
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
    /// EINVAL if the driver does not support O_DIRECT, and the driver's error if it cannot lend a file that it has
    /// offered.
    pub(super) fn lend(&self, op: &Op, inode: &Inode<'_>, fh: u64, how: How) -> Result<Way> {
        let backings = &self.backings;
        let Some(kernel) = backings.kernel.get() else { return Ok(Way::Pages) };
        // Without a handle nothing is read or written.
        if fh == 0 || !self.vfs.lends(inode) {
            return Ok(Way::Pages);
        }
        if how.direct {
            // Also for files by requests: the result must not depend on the first opener.
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
            None if self.vfs.may_be_mapped(inode) => Ok(Way::Direct),
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
        // The kernel would open the lent file with O_DIRECT, and fcntl(2) could not take it away again. Programs do that for a last
        // part that is no whole block.
        if how.direct {
            return None;
        }
        let written = how.access.contains(Access::WRITE);
        let small = inode.attr().size < SMALL && (!written || self.backings.small.expects(how.opener));
        if hopeless.load(Relaxed) || small && !self.vfs.may_be_mapped(inode) {
            return None;
        }
        let mut id = None;
        let mut borrow = |file: BorrowedFd<'_>| {
            let borrowed = kernel.borrow(file);
            if let Err(Errno::LOOP | Errno::OPNOTSUPP | Errno::PERM) = borrowed {
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

    /// Handles the close of a file of this inode, if it is still known. The driver has closed it, so the size is right.
    pub(super) fn take_back(&self, inode: Option<&Inode<'_>>, fh: u64) {
        let Some(kernel) = self.backings.kernel.get() else { return };
        let Left { id, written } = self.backings.leave(fh);
        if let Some(id) = id {
            kernel.give_back(id);
        }
        let Some((writer, how)) = written else { return };
        let cheap = match how {
            Written::Units(units) => is_cheap(units),
            Written::Lent => inode.is_some_and(|inode| is_cheap(units(inode.attr().size))),
        };
        self.backings.small.closed(writer, cheap);
    }

    /// Whether the cached attributes of an inode must not be returned, because the kernel writes to the file.
    pub(super) fn is_written(&self, inode: &Inode<'_>) -> bool {
        self.backings.is_written(self.node_of(inode.id())) || self.changes_unreported(inode)
    }

    /// Whether the attributes may change at any time, and nobody will report it. Asked before the attributes are read:
    /// if it is false, those of the cache are right.
    pub(super) fn changes_unreported(&self, inode: &Inode<'_>) -> bool {
        self.backings.is_agreed() && self.vfs.changes_unreported(inode)
    }

    /// Whether a request that names no change goes before a write by the kernel, of which no request comes.
    pub(super) fn is_before_write(&self, inode: &Inode<'_>) -> bool {
        self.backings.is_written(self.node_of(inode.id())) && self.changes_unreported(inode)
    }

    /// Makes the kernel drop attributes that it may keep, of a file that was just lent.
    pub(super) fn drop_attributes(&self, inode: &Inode<'_>, access: Access) {
        let has_holes = |attr: Attr| attr.blocks * 512 < attr.size;
        if (access.contains(Access::WRITE) || has_holes(inode.attr()))
            && self.changes_unreported(inode)
            && let Some(outbox) = self.outbox.get()
        {
            outbox.say(&Message::Node { node: self.node_of(inode.id()), content: false });
        }
    }

    /// The current attributes of an inode that the kernel writes to; the cached ones if the driver cannot tell.
    pub(super) fn attr_if_written(&self, inode: &Inode<'_>) -> Option<Attr> {
        self.is_written(inode)
            .then(|| self.vfs.look(&self.vfs.op(&Cred::root()), inode).unwrap_or_else(|_| inode.attr()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const READS: How = How { access: Access::READ, direct: false, opener: 0 };
    const WRITES: How = How { access: Access::WRITE, direct: false, opener: 0 };

    #[test]
    fn all_who_have_an_inode_open_agree_until_the_last_one_closes_it() {
        let backings = Backings::default();
        assert_eq!(backings.join(7, 1, READS), None);
        // Both are first: the later one returns its number, and takes the other's.
        assert_eq!(backings.enter(7, 1, READS, Some(11)), (Some(11), None));
        assert_eq!(backings.enter(7, 2, WRITES, Some(12)), (Some(11), Some(12)));
        // A refused opener uses the same number too.
        assert_eq!(backings.enter(7, 3, READS, None), (Some(11), None));
        assert_eq!(backings.join(7, 4, READS), Some(Some(11)));
        assert_eq!([1, 2, 3].map(|fh| backings.leave(fh).id), [None; 3]);
        assert_eq!((backings.leave(4).id, backings.leave(4).id), (Some(11), None));
        // If the first one was refused, all are, and a number that came too late is not needed.
        assert_eq!(backings.enter(7, 5, WRITES, None), (None, None));
        assert_eq!(backings.enter(7, 6, WRITES, Some(13)), (None, Some(13)));
        assert_eq!(backings.join(7, 7, WRITES), Some(None));
        assert!(!backings.is_written(7), "these writes come by requests");
        assert_eq!([5, 6, 7].map(|fh| backings.leave(fh).id), [None; 3]);
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

    #[test]
    fn how_a_file_was_written_is_told_at_its_close() {
        let backings = Backings::default();
        let by = |opener, how| How { opener, ..how };
        backings.enter(7, 1, by(5, WRITES), Some(11));
        backings.enter(8, 2, by(5, WRITES), None);
        backings.enter(9, 3, by(5, READS), None);
        assert_eq!(backings.leave(1).written, Some((5, Written::Lent)));
        assert_eq!(backings.leave(2).written, Some((5, Written::Units(0))));
        assert_eq!(backings.leave(3).written, None);
    }
}
