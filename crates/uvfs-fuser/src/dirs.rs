//! Listings: an open directory that reads its back end as the kernel asks, and fills the table on the way.
//!
//! A [`DirReader`] keeps the entries of the last reply, because the kernel goes back into it when its caller's buffer
//! is full. Anything earlier is read again. So a directory of any size costs one reply of memory. If the back end was
//! read to its end in one go, the directory is complete: a miss in it is an absence without a call.
//!
//! Offsets count entries; `.` and `..` are the first two. One mutex for each open directory: the kernel sends one
//! request at a time.

use std::collections::VecDeque;
use std::ffi::{OsStr, OsString};
use std::fmt;
use std::os::unix::ffi::OsStrExt;

use fuser::{Errno, FileAttr, FileType, Generation, INodeNo, ReplyDirectory, ReplyDirectoryPlus};
use parking_lot::Mutex;
use uvfs_cache::{NodeListing, OwnedNode};

use crate::entry::NodeEntry;
use crate::limit::PendingRequest;
use crate::nodes::{Nodes, errno};

/// The back end's entries of one directory, `.` and `..` not among them: name, attributes, data.
pub type DirEntries<T> = Box<dyn Iterator<Item = Result<(OsString, FileAttr, T), Errno>> + Send>;

type Open<T> = Box<dyn Fn(&OwnedNode<T>) -> Result<DirEntries<T>, Errno> + Send + Sync>;

/// An open directory.
pub struct DirReader<T: Send + Sync + 'static> {
    nodes: Nodes<T>,
    dir: OwnedNode<T>,
    open: Open<T>,
    at: Mutex<Option<Position<T>>>,
}

/// A name, and its node.
struct Listed<T: Send + Sync + 'static> {
    name: OsString,
    node: OwnedNode<T>,
}

struct Position<T: Send + Sync + 'static> {
    entries: DirEntries<T>,
    /// Until the directory is complete, or is known not to become so.
    listing: Option<NodeListing<T>>,
    /// Entries that were read and are kept.
    kept: VecDeque<Listed<T>>,
    /// Entries read before those.
    before: u64,
}

impl<T: Send + Sync + 'static> Position<T> {
    /// The entry after `n` others. `None`: that is the end.
    fn nth(&mut self, nodes: &Nodes<T>, n: u64) -> Result<Option<&Listed<T>>, Errno> {
        while self.before + self.kept.len() as u64 <= n {
            if !self.read(nodes)? {
                return Ok(None);
            }
        }
        Ok(self.kept.get((n - self.before) as usize))
    }

    /// Drop the entries before the `n`th, and read those that were not read yet, one at a time: a kept entry holds
    /// its node in the table.
    fn skip_to(&mut self, nodes: &Nodes<T>, n: u64) -> Result<(), Errno> {
        self.drop_before(n);
        while self.before < n && self.read(nodes)? {
            self.drop_before(n);
        }
        Ok(())
    }

    /// Read one entry. False: that was the end.
    fn read(&mut self, nodes: &Nodes<T>) -> Result<bool, Errno> {
        loop {
            let Some(entry) = self.entries.next() else {
                if let Some(listing) = self.listing.take() {
                    listing.complete(nodes.options().listing_ttl);
                }
                return Ok(false);
            };
            let (name, attr, data) = match entry {
                // Removed since its name was read.
                Err(error) if error.code() == Errno::ENOENT.code() => continue,
                entry => entry?,
            };
            // After the end there is no listing.
            let listing = self.listing.as_ref().ok_or(Errno::EIO)?;
            let answer = nodes.answer((attr, data));
            let node = listing.blocking_found(name.as_bytes(), answer).map_err(errno)?;
            self.kept.push_back(Listed { name, node });
            return Ok(true);
        }
    }

    /// Give entries to a reply from offset `next` on, which moves.
    fn give(&mut self, nodes: &Nodes<T>, next: &mut u64, add: Add<'_, T>) -> Result<(), Errno> {
        self.skip_to(nodes, *next - 2)?;
        while let Some(listed) = self.nth(nodes, *next - 2)? {
            if add(&listed.node, *next + 1, &listed.name) {
                break;
            }
            *next += 1;
        }
        Ok(())
    }

    fn drop_before(&mut self, n: u64) {
        let gone = (n.saturating_sub(self.before) as usize).min(self.kept.len());
        self.kept.drain(..gone);
        self.before += gone as u64;
    }
}

impl<T: Send + Sync + 'static> Nodes<T> {
    /// Open a directory for listing. `open` begins a reading of the back end. It is called for the first request, and
    /// again when a caller rewinds.
    ///
    /// # Errors
    /// ESTALE: there is no such directory.
    pub fn open_dir(
        &self,
        ino: INodeNo,
        open: impl Fn(&OwnedNode<T>) -> Result<DirEntries<T>, Errno> + Send + Sync + 'static,
    ) -> Result<DirReader<T>, Errno> {
        let dir = self.node(ino)?;
        Ok(DirReader { nodes: self.clone(), dir, open: Box::new(open), at: Mutex::new(None) })
    }
}

/// The next entry for a reply; returns whether the reply is full.
type Add<'a, T> = &'a mut dyn FnMut(&OwnedNode<T>, u64, &OsStr) -> bool;

impl<T: Send + Sync + 'static> DirReader<T> {
    /// The directory.
    pub fn dir(&self) -> &OwnedNode<T> {
        &self.dir
    }

    /// Answer a readdir.
    pub fn readdir(&self, offset: u64, mut reply: ReplyDirectory) {
        let filled = self.fill(offset, &mut |node, next, name| {
            reply.add(self.nodes.number_of(node), next, kind_of(&self.nodes, node), name)
        });
        match filled {
            Ok(()) => reply.ok(),
            Err(error) => reply.error(error),
        }
    }

    /// Answer a readdirplus. Each entry but `.` and `..` is a lookup that the kernel will forget.
    pub fn readdirplus(&self, offset: u64, mut reply: ReplyDirectoryPlus) {
        let mut given = Vec::new();
        let filled = self.fill(offset, &mut |node, next, name| {
            // Counted before the reply is sent, and taken back if the entry does not fit.
            let counted = (next > 2).then(|| NodeEntry::new(&self.nodes, node.clone()));
            let attr = self.nodes.file_attr(node);
            let full = reply.add(attr.ino, next, name, &self.nodes.attr_ttl(node), &attr, Generation(0));
            if !full {
                given.extend(counted);
            }
            full
        });
        match filled {
            Ok(()) => {
                given.iter_mut().for_each(NodeEntry::give);
                reply.ok();
            }
            Err(error) => reply.error(error),
        }
    }

    /// [`DirReader::fill_once`], again for a while if there is no memory for the first entry.
    fn fill(&self, offset: u64, add: Add<'_, T>) -> Result<(), Errno> {
        let mut pending = self.nodes.pending(&self.dir);
        self.nodes.with_patience(|| self.fill_once(&mut pending, offset, add))
    }

    /// Entries from `offset` on, until the reply is full. An error counts only if no entry came before it. The entry
    /// that it is about is lost, so the next reading begins anew.
    fn fill_once(&self, pending: &mut PendingRequest, offset: u64, add: Add<'_, T>) -> Result<(), Errno> {
        let mut at = self.at.lock();
        // A rewind reads anew, so that the caller sees changes.
        let position = match at.take().filter(|at| offset != 0 && at.before + 2 <= offset.max(2)) {
            Some(position) => at.insert(position),
            None => {
                let listing = Some(self.dir.begin_listing());
                let entries = pending.ask(|| (self.open)(&self.dir))?;
                at.insert(Position { entries, listing, kept: VecDeque::new(), before: 0 })
            }
        };
        let mut next = offset;
        while next < 2 {
            let parent = if next == 0 { None } else { self.dir.name().map(|(parent, _)| parent) };
            let node = parent.as_ref().unwrap_or(&self.dir);
            if add(node, next + 1, OsStr::new(if next == 0 { "." } else { ".." })) {
                return Ok(());
            }
            next += 1;
        }
        let filled = position.give(&self.nodes, &mut next, add);
        if filled.is_err() {
            *at = None;
        }
        if next == offset { filled } else { Ok(()) }
    }
}

fn kind_of<T: Send + Sync + 'static>(nodes: &Nodes<T>, node: &OwnedNode<T>) -> FileType {
    nodes.file_attr(node).kind
}

impl<T: Send + Sync + 'static> fmt::Debug for DirReader<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "DirReader({:?})", self.dir)
    }
}
