//! Open directories: names of a listing, from any place on.
//!
//! The place after an entry is its index, and a digest of the names up to it. The kernel's own cache of names may lack the
//! end, and goes on in a listing that began later: it gets the rest if the names before are the same, else ESTALE. So it
//! never joins the beginning of one listing to the end of another. A reader that begins anew after the TTL gets a new
//! listing.
//!
//! After the names of the listing come those of new files that are being written here, which no LIST tells. Those that were
//! so at the beginning count too: a file that is published meanwhile is in neither LIST nor table.
//!
//! An entry with a node is a lookup of the kernel's. It counts when it is taken, and is taken back if it turns out that
//! the reply had no room for it: then the stream is dropped before another entry is taken.

use std::collections::VecDeque;
use std::ffi::OsString;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::task::{Context, Poll};
use std::time::Duration;

use fuse3::Result;
use fuse3::raw::reply::{DirectoryEntry, DirectoryEntryPlus};
use futures_util::Stream;
use parking_lot::Mutex;
use uvfs_cache::NodeKnown;

use crate::listings::{Batch, DirListing, Listings};
use crate::object_fs::kind_of;
use crate::store::Failed;
use crate::tree::{ALWAYS, Node, ROOT, Tree};

/// FUSE_UNKNOWN_INO of libfuse: the number of an entry whose node is not known.
const UNKNOWN: u64 = 0xffff_ffff;
/// "." and "..".
const DOTS: usize = 2;
/// Entries that one reply is made from: more than fit into the longest.
const REPLY: usize = 1024;
const INDEX_BITS: u32 = 32;

type Joined = std::result::Result<Arc<DirListing>, Failed>;

/// The place after the entry with an index.
fn place(digest: u32, index: usize) -> u64 {
    u64::from(digest) << INDEX_BITS | (index as u64 + 1)
}

fn index_of(offset: u64) -> usize {
    (offset & ((1 << INDEX_BITS) - 1)) as usize
}

/// An open directory.
pub(crate) struct DirHandle {
    node: Node,
    fh: u64,
    /// The kernel may keep the names that it had read, and has not asked for any yet.
    keeps: AtomicBool,
    listing: Mutex<Option<Arc<DirListing>>>,
    /// Names of new files when the reader began; once the listing is at its end, those that it has not told.
    unlisted: Mutex<Unlisted>,
}

#[derive(Default)]
struct Unlisted {
    names: Vec<String>,
    is_final: bool,
}

impl DirHandle {
    /// `keeps`: the kernel may keep the names that it had read.
    pub(crate) fn new(node: Node, fh: u64, keeps: bool) -> Self {
        let keeps = AtomicBool::new(keeps);
        Self { node, fh, keeps, listing: Mutex::default(), unlisted: Mutex::default() }
    }

    /// Whether the kernel asks for names that it might have kept; true once.
    pub(crate) fn is_reread(&self) -> bool {
        self.keeps.swap(false, Relaxed)
    }

    pub(crate) fn node(&self) -> &Node {
        &self.node
    }

    /// The listing to read from: the handle's own, if it has one that will do; else one that others began, or a new one.
    fn listing(&self, listings: &Listings, will_do: impl Fn(&DirListing) -> bool) -> Joined {
        let mut own = self.listing.lock();
        if let Some(listing) = own.as_ref().filter(|listing| will_do(listing)) {
            return Ok(listing.clone());
        }
        if let Some(old) = own.take() {
            old.leaves(self.fh);
        }
        let joined = listings.join(&self.node)?;
        *own = Some(joined.clone());
        Ok(joined)
    }

    /// The listing that a place belongs to, and the batch with its index.
    async fn at(
        &self,
        listings: &Listings,
        tree: &Tree,
        offset: u64,
    ) -> std::result::Result<(Arc<DirListing>, Option<Arc<Batch>>), Failed> {
        let digest = (offset >> INDEX_BITS) as u32;
        let index = index_of(offset).saturating_sub(DOTS);
        let is_current = |listing: &DirListing| listing.is_current(tree) && !listing.is_failed();
        let mut listing = self.listing(listings, |own| offset != 0 || is_current(own))?;
        for is_last in [false, true] {
            listing.reads(self.fh, index);
            let batch = listing.batch(listings, index).await;
            match batch {
                Ok(batch) if listing.digest_before(index) == Some(digest) => return Ok((listing, batch)),
                // The names were dropped, or are others.
                Ok(_) | Err(libc::ESTALE) if !is_last => listing = self.listing(listings, |_| false)?,
                Ok(_) => break,
                Err(errno) => return Err(errno),
            }
        }
        Err(libc::ESTALE)
    }

    /// The entries from a place on: some of them, or none at the end.
    ///
    /// # Errors
    /// The error of the LIST. ESTALE: the names before the place are not those that were read.
    pub(crate) async fn entries(
        &self,
        listings: &Listings,
        tree: Arc<Tree>,
        unlisted: impl Fn() -> Vec<String>,
        offset: u64,
    ) -> std::result::Result<Entries, Failed> {
        if offset == 0 {
            *self.unlisted.lock() = Unlisted { names: unlisted(), is_final: false };
        }
        let (listing, batch) = self.at(listings, &tree, offset).await?;
        let index = index_of(offset);
        if batch.is_none()
            && let Some(state) = self.node.data().dir()
        {
            state.read.store(listing.began(), Relaxed);
        }
        let mut entries = Entries { tree, dir: self.node.clone(), ready: VecDeque::new(), taken: None };
        entries.fill(index, batch.as_deref());
        if batch.is_none() {
            let mut known = self.unlisted.lock();
            if !known.is_final {
                let mut names = unlisted();
                names.append(&mut known.names);
                names.sort_unstable();
                names.dedup();
                names.retain(|name| entries.is_untold(name, listing.number));
                *known = Unlisted { names, is_final: true };
            }
            let end = listing.end();
            let digest = listing.digest_before(end).unwrap_or_default();
            entries.fill_unlisted(index, (end, digest), &known.names);
        }
        Ok(entries)
    }
}

impl Drop for DirHandle {
    fn drop(&mut self) {
        if let Some(listing) = self.listing.lock().take() {
            listing.leaves(self.fh);
        }
    }
}

struct Ready {
    name: OsString,
    is_dir: bool,
    next: u64,
    is_dot: bool,
}

/// Entries on their way to the kernel.
pub(crate) struct Entries {
    tree: Arc<Tree>,
    dir: Node,
    ready: VecDeque<Ready>,
    /// The node of the entry that was taken last, which may not fit into the reply.
    taken: Option<u64>,
}

impl Entries {
    fn fill(&mut self, from: usize, batch: Option<&Batch>) {
        for (at, dots) in [".", ".."].into_iter().enumerate().skip(from) {
            self.ready.push_back(Ready { name: dots.into(), is_dir: true, next: place(0, at), is_dot: true });
        }
        let Some(batch) = batch else { return };
        let skip = from.saturating_sub(DOTS).saturating_sub(batch.first);
        let lines = batch.lines.iter().enumerate().skip(skip).take(REPLY);
        let lines = lines.map(|(at, line)| Ready {
            name: (*line.name).into(),
            is_dir: line.is_dir,
            next: place(line.digest, batch.first + at + DOTS),
            is_dot: false,
        });
        self.ready.extend(lines);
    }

    /// `end`: the index after the last name of the listing, and the digest of all.
    fn fill_unlisted(&mut self, from: usize, end: (usize, u32), names: &[String]) {
        let (end, digest) = end;
        let skip = from.saturating_sub(DOTS).saturating_sub(end);
        let names = names.iter().enumerate().skip(skip).take(REPLY);
        self.ready.extend(names.map(|(at, name)| Ready {
            name: name.into(),
            is_dir: false,
            next: place(digest, end + at + DOTS),
            is_dot: false,
        }));
    }

    /// Whether a name leads to a node, and a listing has not told it.
    fn is_untold(&self, name: &str, listing: u64) -> bool {
        self.child(name.as_bytes()).is_some_and(|node| node.data().listing() != listing)
    }

    fn node(&self, entry: &Ready) -> Option<Node> {
        if entry.is_dot { None } else { self.child(entry.name.as_encoded_bytes()) }
    }

    fn child(&self, name: &[u8]) -> Option<Node> {
        let dir = self.tree.cache().borrow(self.dir.id())?;
        match dir.child(name) {
            NodeKnown::Hit(node) => Some(node.to_owned()),
            _ => None,
        }
    }

    fn number_of(&self, entry: &Ready, node: Option<&Node>) -> u64 {
        match (entry.is_dot, node) {
            (true, _) if entry.name == "." => self.tree.id(&self.dir),
            (true, _) => self.dir.name().map_or(ROOT, |(parent, _)| self.tree.id(&parent)),
            (false, node) => node.map_or(UNKNOWN, |node| self.tree.id(node)),
        }
    }

    /// For readdir.
    pub(crate) fn names(mut self) -> impl Stream<Item = Result<DirectoryEntry>> + Send {
        futures_util::stream::poll_fn(move |_| {
            let Some(entry) = self.ready.pop_front() else { return Poll::Ready(None) };
            let inode = self.number_of(&entry, self.node(&entry).as_ref());
            Poll::Ready(Some(Ok(DirectoryEntry {
                inode,
                kind: kind_of(entry.is_dir),
                name: entry.name,
                offset: entry.next as i64,
            })))
        })
    }

    /// For readdirplus.
    pub(crate) fn nodes(self) -> NodeEntries {
        NodeEntries(self)
    }
}

/// Entries with nodes, each of which is a lookup.
pub(crate) struct NodeEntries(Entries);

impl Stream for NodeEntries {
    type Item = Result<DirectoryEntryPlus>;

    fn poll_next(mut self: Pin<&mut Self>, _cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let own = &mut self.0;
        // Another one is taken, so the one before is in the reply.
        own.taken = None;
        let Some(entry) = own.ready.pop_front() else { return Poll::Ready(None) };
        let node = own.node(&entry);
        let inode = own.number_of(&entry, node.as_ref());
        let (attr, entry_ttl, attr_ttl) = match &node {
            Some(node) => {
                own.tree.count_lookup(node);
                own.taken = Some(own.tree.id(node));
                let attr_ttl = if node.data().is_writing() { Duration::ZERO } else { ALWAYS };
                (own.tree.attr(node), own.tree.name_ttl(node), attr_ttl)
            }
            // A node id of 0: listed, not looked up.
            None => (own.tree.absent(Duration::ZERO).attr, Duration::ZERO, ALWAYS),
        };
        Poll::Ready(Some(Ok(DirectoryEntryPlus {
            inode,
            generation: 0,
            kind: kind_of(node.map_or(entry.is_dir, |node| node.attr().is_dir())),
            name: entry.name,
            offset: entry.next as i64,
            attr,
            entry_ttl,
            attr_ttl,
        })))
    }
}

impl Drop for Entries {
    fn drop(&mut self) {
        if let Some(id) = self.taken {
            self.tree.forget(id, 1);
        }
    }
}
