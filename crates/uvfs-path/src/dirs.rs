//! Listings: the back end's entries, entered into the table on their way to the kernel.
//!
//! fuse3 takes entries until its reply is full, so they are produced one by one ([`Produced`]). An entry with attributes
//! is a node that the kernel looks up, counted when the next one is taken: only then is it known to be in the reply. An
//! entry whose name is locked, overtaken by a change, or for which there is no memory is listed without a node, and the
//! kernel looks it up if it needs it. So a listing waits for nothing but the back end.
//!
//! Successive replies that together list a directory from its beginning to its end make it complete: a miss in it is an
//! absence without a call. [`Listings`] remembers where the last reply ended. Its mutex is a leaf.

use std::collections::{HashMap, VecDeque};
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll};

use fuse3::Result;
use fuse3::path::PathFilesystem;
use fuse3::path::reply as path_reply;
use fuse3::raw::Request;
use fuse3::raw::reply::{DirectoryEntry, DirectoryEntryPlus};
use futures_util::{Stream, StreamExt};
use parking_lot::Mutex;
use uvfs_cache::{InodeId, NodeKnown, NodeListing};

use crate::table::{Node, PathNode, ROOT, Table};

/// FUSE_UNKNOWN_INO of libfuse: the number of an entry whose node is not known.
const UNKNOWN: u64 = 0xffff_ffff;
/// Listings under way that are remembered.
const MOST: usize = 1024;

/// A listing that began at the beginning and goes on.
struct Begun {
    listing: NodeListing<PathNode>,
    /// Where the next reply may begin: after the last entry that was taken, or after the one before.
    next: [u64; 2],
}

/// Listings under way, by directory and the back end's handle.
#[derive(Default)]
pub(crate) struct Listings(Mutex<HashMap<(InodeId, u64), Begun>>);

impl Listings {
    fn begin(&self, dir: &Node, fh: u64, offset: u64) -> Option<Begun> {
        let begun = self.0.lock().remove(&(dir.id(), fh));
        match offset {
            0 => Some(Begun { listing: dir.begin_listing(), next: [0, 0] }),
            _ => begun.filter(|begun| begun.next.contains(&offset)),
        }
    }

    fn keep(&self, dir: &Node, fh: u64, begun: Begun) {
        let mut listings = self.0.lock();
        if listings.len() < MOST {
            listings.insert((dir.id(), fh), begun);
        }
    }

    /// The directory was closed.
    pub(crate) fn forget(&self, dir: &Node, fh: u64) {
        let gone = self.0.lock().remove(&(dir.id(), fh));
        drop(gone);
    }
}

type Slot<T> = Arc<Mutex<VecDeque<T>>>;

/// The items that a future puts into a slot, as a stream. The future runs only until there is an item.
pub(crate) struct Produced<'a, T> {
    slot: Slot<T>,
    producer: Option<Pin<Box<dyn Future<Output = Result<()>> + Send + 'a>>>,
}

/// Put an item into the slot, and go on when it was taken.
async fn put<T>(slot: &Slot<T>, item: T) {
    slot.lock().push_back(item);
    // The stream polls again when it needs another item.
    std::future::poll_fn(|_| if slot.lock().is_empty() { Poll::Ready(()) } else { Poll::Pending }).await;
}

impl<T> Stream for Produced<'_, T> {
    type Item = Result<T>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let Some(producer) = &mut self.producer else { return Poll::Ready(None) };
        let ended = match producer.as_mut().poll(cx) {
            Poll::Pending => None,
            Poll::Ready(ended) => Some(ended),
        };
        let item = self.slot.lock().pop_front();
        match (item, ended) {
            (Some(item), _) => Poll::Ready(Some(Ok(item))),
            (None, None) => Poll::Pending,
            (None, Some(ended)) => {
                self.producer = None;
                Poll::Ready(ended.err().map(Err))
            }
        }
    }
}

/// A lookup that counts unless the entry turns out not to be in the reply.
struct Counted<'a> {
    table: &'a Table,
    node: Option<Node>,
}

impl Counted<'_> {
    /// The entry is in the reply. Returns its node's id.
    fn given(mut self) -> Option<u64> {
        self.node.take().map(|node| self.table.id(&node))
    }
}

impl Drop for Counted<'_> {
    fn drop(&mut self) {
        if let Some(node) = &self.node {
            self.table.forget(self.table.id(node), 1);
        }
    }
}

impl Table {
    fn parent_id(&self, dir: &Node) -> u64 {
        dir.name().map_or(ROOT, |(parent, _)| self.id(&parent))
    }

    fn listed_id(&self, dir: &Node, name: &OsStr) -> u64 {
        match name.as_bytes() {
            b"." => self.id(dir),
            b".." => self.parent_id(dir),
            name => match self.cache().borrow(dir.id()).map(|dir| dir.child(name)) {
                Some(NodeKnown::Hit(node)) => node.id().as_u64(),
                _ => UNKNOWN,
            },
        }
    }

    /// readdir: names and types.
    pub(crate) fn list<'a, F: PathFilesystem + Send + Sync>(
        &'a self,
        fs: &'a F,
        req: Request,
        (dir, fh): (Node, u64),
        offset: i64,
    ) -> Produced<'a, DirectoryEntry> {
        let slot = Slot::default();
        let out = slot.clone();
        let producer = Box::pin(async move {
            let _used = self.uses.enter([&dir]).await;
            let path = self.path(&dir)?;
            let mut entries = pin!(fs.readdir(req, &path, fh, offset).await?.entries);
            while let Some(entry) = entries.next().await {
                let path_reply::DirectoryEntry { kind, name, offset } = entry?;
                let inode = self.listed_id(&dir, &name);
                put(&out, DirectoryEntry { inode, kind, name, offset }).await;
            }
            Ok(())
        });
        Produced { slot, producer: Some(producer) }
    }

    /// readdirplus: entries with attributes, which become nodes.
    pub(crate) fn list_plus<'a, F: PathFilesystem + Send + Sync>(
        &'a self,
        fs: &'a F,
        listings: &'a Listings,
        req: Request,
        (dir, fh): (Node, u64),
        (offset, lock_owner): (u64, u64),
    ) -> Produced<'a, DirectoryEntryPlus> {
        let slot = Slot::default();
        let out = slot.clone();
        let producer = Box::pin(async move {
            let _used = self.uses.enter([&dir]).await;
            let path = self.path(&dir)?;
            let mut reply = Reply {
                table: self,
                listings,
                begun: listings.begin(&dir, fh, offset),
                given: Vec::new(),
                dir,
                fh,
            };
            // What is entered is judged by the state of now, not by that of the first reply.
            let listing = reply.dir.begin_listing();
            let mut entries = pin!(fs.readdirplus(req, &path, fh, offset, lock_owner).await?.entries);
            while let Some(entry) = entries.next().await {
                let entry = entry.inspect_err(|_| reply.failed())?;
                let next = entry.offset as u64;
                let (entry, counted) = reply.entry(&listing, entry);
                if let Some(begun) = &mut reply.begun {
                    begun.next = [begun.next[1], next];
                }
                put(&out, entry).await;
                reply.given.extend(counted.given());
            }
            if let Some(begun) = reply.begun.take() {
                begun.listing.complete(self.options.listing_ttl);
            }
            Ok(())
        });
        Produced { slot, producer: Some(producer) }
    }
}

/// One readdirplus reply.
struct Reply<'a> {
    table: &'a Table,
    listings: &'a Listings,
    dir: Node,
    fh: u64,
    begun: Option<Begun>,
    /// Nodes that are in the reply.
    given: Vec<u64>,
}

impl<'a> Reply<'a> {
    fn entry(
        &mut self,
        listing: &NodeListing<PathNode>,
        entry: path_reply::DirectoryEntryPlus,
    ) -> (DirectoryEntryPlus, Counted<'a>) {
        let path_reply::DirectoryEntryPlus { kind, name, offset, attr, entry_ttl, attr_ttl } = entry;
        let table = self.table;
        let own = match name.as_bytes() {
            b"." => Some(table.id(&self.dir)),
            b".." => Some(table.parent_id(&self.dir)),
            _ => None,
        };
        let answer = |previous: Option<&Node>| table.answer(previous, &attr, (entry_ttl, attr_ttl));
        let node = match own {
            Some(_) => None,
            None => listing.offer(name.as_bytes(), answer).ok().flatten(),
        };
        if own.is_none() && node.is_none() {
            // The directory is not complete in the table.
            self.begun = None;
        }
        let mut to =
            Plus { kind, name, offset, own, node: node.as_ref() }.entry(table, &answer(node.as_ref()).attr);
        let counted = Counted { table, node };
        if let Some(node) = &counted.node {
            table.count_lookup(node);
            (to.entry_ttl, to.attr_ttl) = (table.options.kernel_ttl, table.kernel_ttl(node));
        }
        (to, counted)
    }
}

impl Reply<'_> {
    /// The back end failed in the middle, so fuse3 sends the error and no entry.
    fn failed(&mut self) {
        self.begun = None;
        self.given.drain(..).for_each(|id| self.table.forget(id, 1));
    }
}

impl Drop for Reply<'_> {
    /// The reply was full, or the call was cancelled: the next one may go on.
    fn drop(&mut self) {
        if let Some(begun) = self.begun.take() {
            self.listings.keep(&self.dir, self.fh, begun);
        }
    }
}

/// An entry on its way.
struct Plus<'a> {
    kind: fuse3::FileType,
    name: OsString,
    offset: i64,
    own: Option<u64>,
    node: Option<&'a Node>,
}

impl Plus<'_> {
    fn entry(self, table: &Table, attr: &uvfs_cache::Attr) -> DirectoryEntryPlus {
        // A node id of 0: listed, but not looked up.
        let id = self.node.map_or(0, |node| table.id(node));
        DirectoryEntryPlus {
            inode: self.own.or(self.node.map(|_| id)).unwrap_or(UNKNOWN),
            generation: 0,
            kind: self.kind,
            name: self.name,
            offset: self.offset,
            attr: crate::attr::to_kernel(id, attr, table.options.block_size),
            entry_ttl: std::time::Duration::ZERO,
            attr_ttl: std::time::Duration::ZERO,
        }
    }
}
