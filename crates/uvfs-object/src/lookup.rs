//! Lookups: what the tree knows, else one LIST of the directory, else a question about the one name.
//!
//! A miss in a directory that was not listed joins its listing, which tells all names at once. A directory with more
//! names than [`crate::listings::BATCH`] is *large*: there a miss asks for the one name, by a HEAD of the key and a LIST of
//! one key below it, both at once. So does a file's name that memory was too short to keep, until several of one directory
//! were asked for; then the directory is listed again. A subdirectory's is known from its listing ([`crate::subdirs`]). No
//! name lock is held while a listing runs.

use std::ffi::OsStr;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use fuse3::raw::reply::ReplyEntry;
use uvfs_cache::{NodeLookup, Ticket, Ttl};

use crate::listings::Listings;
use crate::names::{Kind, is_possible};
use crate::store::{Failed, Store};
use crate::tree::{Node, ObjectNode, Tree};

/// Listings that a lookup waits for before it asks for the one name: names may be evicted as fast as they are listed.
const LISTINGS: usize = 2;

/// Names of a listed directory that are asked for one by one, at two calls each, before it is listed again.
const ASKED: u32 = 2;

/// How a miss is answered.
enum Next {
    /// By a listing.
    List,
    /// By a question about the name.
    Ask(Ticket<ObjectNode>),
    /// A whole listing that still holds did not have the name.
    Absent(Duration),
    /// A listing that ended then has told it as a subdirectory's, and it was evicted.
    Restore(Ticket<ObjectNode>, u64),
}

/// Lookups of one mount.
pub(crate) struct Finder {
    pub(crate) tree: Arc<Tree>,
    pub(crate) store: Store,
    pub(crate) listings: Arc<Listings>,
}

impl Finder {
    fn next(&self, dir: &Node, mut ticket: Ticket<ObjectNode>, lists: usize) -> Result<Next, Failed> {
        let state = dir.data().dir().ok_or(libc::ENOTDIR)?;
        if ticket.previous().is_none()
            && let Some(listed) =
                std::str::from_utf8(ticket.name()).ok().and_then(|name| self.tree.told_subdir(state, name))
        {
            return Ok(Next::Restore(ticket, listed));
        }
        let whole = state.whole.load(Relaxed);
        let left = self.tree.left(state.listed.load(Relaxed));
        let mut evicted = false;
        if whole != 0 && !left.is_zero() {
            match ticket.previous() {
                // An older answer told it: the name is gone.
                Some(previous)
                    if previous.data().listing() != whole
                        && previous.data().told() < state.began.load(Relaxed) =>
                {
                    ticket.absent(Ttl::For(left));
                    return Ok(Next::Absent(left));
                }
                Some(_) => {}
                None => evicted = true,
            }
        }
        if state.large.load(Relaxed) {
            return Ok(Next::Ask(ticket));
        }
        if !evicted && lists != 0 {
            return Ok(Next::List);
        }
        // The directory was listed, and the name was evicted or never there. If that happens often, one LIST is cheaper.
        if state.asked.fetch_add(1, Relaxed) < ASKED {
            return Ok(Next::Ask(ticket));
        }
        state.asked.store(0, Relaxed);
        self.listings.forget(dir);
        Ok(if lists == 0 { Next::Ask(ticket) } else { Next::List })
    }

    /// Ask the store about one name.
    async fn ask(&self, dir: &Node, name: &str, ticket: Ticket<ObjectNode>) -> Result<Option<Node>, Failed> {
        let prefix = self.tree.key(dir)?;
        if !is_possible(&prefix, name) {
            ticket.absent(Ttl::For(self.tree.ttl));
            return Ok(None);
        }
        let key = format!("{prefix}{name}");
        let below = format!("{key}/");
        let (is_dir, object) = tokio::try_join!(self.store.is_dir(&below), self.store.head(&key))?;
        let kind = match (is_dir, object) {
            (true, _) => Kind::Dir,
            (false, Some(version)) => Kind::File(version),
            (false, None) => {
                ticket.absent(Ttl::For(self.tree.ttl));
                return Ok(None);
            }
        };
        let node = self.tree.give(ticket.into_lock(), &kind, self.tree.ttl).await?;
        self.tree.told(&node, 0, 0);
        Ok(Some(node))
    }

    /// The node of a name. `Err` of a duration: there is none, and the kernel may believe that for so long.
    ///
    /// # Errors
    /// Those of the store.
    pub(crate) async fn find(&self, dir: &Node, name: &str) -> Result<Result<Node, Duration>, Failed> {
        let mut lists = LISTINGS;
        loop {
            let found = dir.lookup(name.as_bytes()).await.map_err(uvfs_cache::Errno::raw_os_error)?;
            let ticket = match found {
                NodeLookup::Hit(node) => return Ok(Ok(node)),
                NodeLookup::Negative => return Ok(Err(self.absent_ttl(dir))),
                NodeLookup::Miss(ticket) => ticket,
            };
            // The ticket ends here unless the one name is asked for: a listing waits for tickets.
            match self.next(dir, ticket, lists)? {
                Next::Absent(left) => return Ok(Err(left)),
                Next::Ask(ticket) => {
                    return Ok(self.ask(dir, name, ticket).await?.ok_or(self.tree.ttl));
                }
                Next::Restore(ticket, listed) => {
                    return Ok(Ok(self.tree.restore(ticket.into_lock(), listed).await?));
                }
                Next::List => {}
            }
            lists -= 1;
            let listing = self.listings.join(dir)?;
            listing.batch(&self.listings, 0).await?;
        }
    }

    /// How long the kernel may believe an absence that the tree knows.
    fn absent_ttl(&self, dir: &Node) -> Duration {
        let state = dir.data().dir().filter(|state| state.whole.load(Relaxed) != 0);
        state.map_or(Duration::ZERO, |state| self.tree.left(state.listed.load(Relaxed)))
    }

    /// Answer a lookup.
    pub(crate) async fn lookup(&self, parent: u64, name: &OsStr) -> Result<ReplyEntry, Failed> {
        if name.len() > 255 {
            return Err(libc::ENAMETOOLONG);
        }
        let dir = self.tree.node(parent)?;
        if dir.data().dir().is_none() {
            return Err(libc::ENOTDIR);
        }
        // Keys are UTF-8.
        let name = name.to_str().ok_or(libc::ENOENT)?;
        let _waits = self.tree.busy.enter(&dir);
        match self.find(&dir, name).await? {
            Ok(node) => Ok(self.tree.entry(&node)),
            Err(ttl) => Ok(self.tree.absent(ttl)),
        }
    }
}
