//! Listings that do not borrow the cache.
//!
//! Each entry is judged by the state from before the listing began, so entries may be reported late, by any
//! thread, and in any order ([`crate::dirs::listing`]).

use std::fmt;

use uvfs_sync::primitives::{AtomicBool, Ordering};

use super::node_handles::OwnedNode;
use super::owned_ticket::NodeAnswer;
use crate::dirs::listing::ParkedScan;
use crate::inodes::attr::Attr;
use crate::inodes::inode_ref::InodeRef;
use crate::lookup::ref_lookup::Known;
use crate::lookup::ticket::NameGuard;
use crate::types::{CacheError, Ttl};

/// A question to the back end about all names of a directory; [`OwnedNode::begin_listing`] makes it.
pub struct NodeListing<T: Send + Sync + 'static> {
    dir: OwnedNode<T>,
    scan: ParkedScan,
    /// An entry was reported and not cached.
    partial: AtomicBool,
}

impl<T: Send + Sync + 'static> NodeListing<T> {
    pub(super) fn new(dir: &OwnedNode<T>) -> Self {
        let scan = dir.shared.cache.begin_scan(&dir.view()).park();
        Self { dir: dir.clone(), scan, partial: AtomicBool::new(false) }
    }

    /// The directory.
    pub fn dir(&self) -> &OwnedNode<T> {
        &self.dir
    }

    /// The back end's answer: this name is in the directory and leads to this inode. Always returned. Cached
    /// unless something in the directory was removed, renamed or invalidated since the listing began. A name that
    /// is cached and leads to this inode stays as it is, and the answer's data is dropped. Waits for the holder of
    /// the name lock, so the caller holds none.
    ///
    /// # Errors
    /// `NoMemory`, as of [`Ticket::found`](super::Ticket::found).
    pub async fn found(&self, name: &[u8], answer: NodeAnswer<T>) -> Result<OwnedNode<T>, CacheError> {
        loop {
            if let Some(node) = self.cached(name, &answer.attr) {
                return Ok(node);
            }
            let pending = {
                let dir = self.dir.view();
                match self.dir.shared.cache.try_lock_name(&dir, name) {
                    Ok(guard) => return self.answered(guard, answer, false),
                    Err(pending) => pending,
                }
            };
            // The errno was for those who ask about the name.
            let _ = pending.await;
        }
    }

    /// [`NodeListing::found`] for a thread that may block.
    ///
    /// # Errors
    /// As there.
    pub fn blocking_found(&self, name: &[u8], answer: NodeAnswer<T>) -> Result<OwnedNode<T>, CacheError> {
        if let Some(node) = self.cached(name, &answer.attr) {
            return Ok(node);
        }
        let dir = self.dir.view();
        self.answered(self.dir.shared.cache.lock_name(&dir, name), answer, false)
    }

    /// [`NodeListing::blocking_found`] for a back end without inode numbers. The inode that the name leads to, though its
    /// entry may have expired, is the answer's if the type is the same; its number replaces the answer's. Otherwise the
    /// answer's number counts, which must be new.
    ///
    /// # Errors
    /// As there.
    pub fn blocking_found_by_name(
        &self,
        name: &[u8],
        mut answer: NodeAnswer<T>,
    ) -> Result<OwnedNode<T>, CacheError> {
        let (cache, dir) = (&self.dir.shared.cache, self.dir.view());
        let is_of_type = |inode: &InodeRef<'_>| inode.fmt() == answer.attr.fmt();
        if let Known::Hit(inode) = cache.find(&dir, name)
            && is_of_type(&inode)
        {
            return Ok(OwnedNode::new(&self.dir.shared, inode));
        }
        let guard = cache.lock_name(&dir, name);
        if let Some(previous) = guard.find_previous().filter(is_of_type) {
            answer.attr.ino = previous.ino();
        }
        self.answered(guard, answer, false)
    }

    /// [`NodeListing::found`] for a back end without inode numbers. `answer` gets the inode that the name leads to,
    /// though its entry may have expired; it answers with that inode's `ino` if the type is the same. Never waits.
    /// `None`: the name is locked, or the answer is late, so the name does not lead to an inode.
    ///
    /// # Errors
    /// As there.
    pub fn offer(
        &self,
        name: &[u8],
        answer: impl Fn(Option<&OwnedNode<T>>) -> NodeAnswer<T>,
    ) -> Result<Option<OwnedNode<T>>, CacheError> {
        let shared = &self.dir.shared;
        let dir = self.dir.view();
        if let Known::Hit(inode) = shared.cache.find(&dir, name)
            && !inode.expired()
        {
            let node = OwnedNode::new(shared, inode);
            if is_same(&node.view(), &answer(Some(&node)).attr) {
                return Ok(Some(node));
            }
        }
        let Ok(guard) = shared.cache.try_lock_name(&dir, name) else {
            // Its holder may fail, and then the name is not cached.
            self.partial.store(true, Ordering::Relaxed);
            return Ok(None);
        };
        let previous = guard.find_previous().map(|inode| OwnedNode::new(shared, inode));
        let node = self.answered(guard, answer(previous.as_ref()), true)?;
        Ok(node.name().is_some().then_some(node))
    }

    /// The name's inode, if it is cached and the answer's.
    fn cached(&self, name: &[u8], attr: &Attr) -> Option<OwnedNode<T>> {
        match self.dir.shared.cache.find(&self.dir.view(), name) {
            Known::Hit(inode) if is_same(&inode, attr) => Some(OwnedNode::new(&self.dir.shared, inode)),
            _ => None,
        }
    }

    /// `renew`: attributes that have expired are replaced by the answer's.
    fn answered(
        &self,
        guard: NameGuard<'_>,
        answer: NodeAnswer<T>,
        renew: bool,
    ) -> Result<OwnedNode<T>, CacheError> {
        let shared = &self.dir.shared;
        let NodeAnswer { attr, name_ttl, attr_ttl, data } = answer;
        let scan = self.scan.resume(&guard.dir);
        let inode = scan.answered(
            guard,
            |inode| is_same(inode, &attr) && !(renew && inode.expired()),
            |guard| {
                let (asked, late) = ((guard.dir.sb(), guard.asked), || guard.is_late());
                let got = shared.data.known_or_new(guard.cache, asked, late, (&attr, attr_ttl), || data)?;
                let kept = guard.keep_name(&got.0, got.1, name_ttl);
                Ok((got.0, kept))
            },
        );
        if scan.is_partial() {
            self.partial.store(true, Ordering::Relaxed);
        }
        Ok(OwnedNode::new(shared, inode?))
    }

    /// Every entry was reported, by [`NodeListing::found`] or as the answer to a lookup. If nothing moved since the
    /// listing began, the directory is complete for `ttl`: a miss there is a certain absence. Returns whether it
    /// is.
    pub fn complete(self, ttl: Ttl) -> bool {
        !self.partial.load(Ordering::Relaxed) && self.scan.resume(&self.dir.view()).complete_for(ttl)
    }
}

fn is_same(inode: &InodeRef<'_>, attr: &Attr) -> bool {
    (inode.ino(), inode.fmt()) == (attr.ino, attr.fmt())
}

impl<T: Send + Sync + 'static> fmt::Debug for NodeListing<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "NodeListing({:?})", self.dir)
    }
}
