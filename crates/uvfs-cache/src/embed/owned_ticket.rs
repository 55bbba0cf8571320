//! Lookup tickets that do not borrow the cache, and the answers that complete them.
//!
//! A ticket holds its name's lock. Any thread completes it. If it is dropped, the name is free and its waiters
//! look again: one of them gets the next ticket. No lock of the cache is held meanwhile.
//!
//! **Ticket against waiters.** If the waiter registers before the ticket goes, the release wakes it. Otherwise it
//! finds the name free ([`crate::lookup::name_locks`]).

use std::fmt;
use std::sync::Arc;

use rustix::io::Errno;

use super::Shared;
use super::node_handles::OwnedNode;
use super::owned_name_lock::NameLock;
use crate::inodes::attr::Attr;
use crate::inodes::inode_ref::InodeRef;
use crate::lookup::ticket::{NameGuard, Parked};
use crate::types::{CacheError, Ttl};

/// A back end's answer: an inode and the embedder's data for it.
#[derive(Clone, Copy, Debug)]
pub struct NodeAnswer<T> {
    /// Attributes; `ino` and the type identify the inode within its superblock.
    pub attr: Attr,
    /// How long the name is trusted. Zero: it is not cached.
    pub name_ttl: Ttl,
    /// How long the attributes are trusted.
    pub attr_ttl: Ttl,
    /// The embedder's data. An inode that is cached already keeps its own, and this is dropped.
    pub data: T,
}

/// Result of [`OwnedNode::lookup`].
pub enum NodeLookup<T: Send + Sync + 'static> {
    /// The name leads to this inode. Its attributes may have expired: [`OwnedNode::trusted_attr`].
    Hit(OwnedNode<T>),
    /// There is certainly no such name.
    Negative,
    /// Not known: ask the back end, and complete the ticket with the answer.
    Miss(Ticket<T>),
}

// Not derived: the data needs no `Debug`.
impl<T: Send + Sync + 'static> fmt::Debug for NodeLookup<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Hit(node) => write!(f, "Hit({node:?})"),
            Self::Negative => f.write_str("Negative"),
            Self::Miss(ticket) => write!(f, "Miss({ticket:?})"),
        }
    }
}

/// The exclusive right to ask the back end about a name, and to give its answer to the cache.
pub struct Ticket<T: Send + Sync + 'static> {
    pub(super) shared: Arc<Shared<T>>,
    /// `None` only while a method has it.
    parked: Option<Parked>,
}

impl<T: Send + Sync + 'static> Ticket<T> {
    pub(super) fn new(shared: &Arc<Shared<T>>, guard: NameGuard<'_>) -> Self {
        Self { shared: shared.clone(), parked: Some(guard.park()) }
    }

    fn place(&self) -> (crate::types::InodeId, &[u8]) {
        self.parked.as_ref().expect("a ticket has its name lock").place()
    }

    /// The name.
    pub fn name(&self) -> &[u8] {
        self.place().1
    }

    /// The directory.
    pub fn dir(&self) -> OwnedNode<T> {
        let id = self.place().0;
        let held =
            std::mem::ManuallyDrop::new(InodeRef::new(&self.shared.cache, id.index(), id.generation()));
        OwnedNode::new(&self.shared, InodeRef::clone(&held))
    }

    /// The name lock, which the caller resumes.
    pub(super) fn into_parked(mut self) -> Parked {
        self.parked.take().expect("a ticket has its name lock")
    }

    /// Use the guard once; it is gone afterwards.
    fn finish<R>(self, f: impl FnOnce(&Arc<Shared<T>>, NameGuard<'_>) -> R) -> R {
        let shared = self.shared.clone();
        f(&shared, self.into_parked().resume(&shared.cache))
    }

    /// Use the guard, and keep it. If `f` panics, the name is free.
    pub(super) fn with<R>(&mut self, f: impl FnOnce(&Arc<Shared<T>>, &NameGuard<'_>) -> R) -> R {
        let parked = self.parked.take().expect("a ticket has its name lock");
        let guard = parked.resume(&self.shared.cache);
        let result = f(&self.shared, &guard);
        self.parked = Some(guard.park());
        result
    }

    /// The inode that the name's entry leads to, though the entry has expired. A back end without inode numbers
    /// answers with this inode's `ino` if the type is the same, and so says that it is the same file.
    pub fn previous(&mut self) -> Option<OwnedNode<T>> {
        self.with(|shared, guard| Some(OwnedNode::new(shared, guard.find_previous()?)))
    }

    /// The name lock, for a caller that goes on to change the name.
    pub fn into_lock(self) -> NameLock<T> {
        NameLock::of_ticket(self)
    }

    /// The name leads to this inode. Cached unless late, always returned. Frees the name.
    ///
    /// # Errors
    /// `NoMemory`: there is none for the inode or its data, which is dropped.
    pub fn found(self, answer: NodeAnswer<T>) -> Result<OwnedNode<T>, CacheError> {
        let NodeAnswer { attr, name_ttl, attr_ttl, data } = answer;
        self.found_with(attr, name_ttl, attr_ttl, || data)
    }

    /// [`Ticket::found`] with data that is made only if the inode is not cached yet. `data` runs with the name
    /// locked.
    ///
    /// # Errors
    /// As there.
    pub fn found_with(
        self,
        attr: Attr,
        name_ttl: Ttl,
        attr_ttl: Ttl,
        data: impl FnOnce() -> T,
    ) -> Result<OwnedNode<T>, CacheError> {
        self.finish(|shared, guard| shared.answered(&guard, &attr, name_ttl, attr_ttl, data))
    }

    /// There is no such name; that is trusted for `ttl`. Frees the name.
    pub fn absent(self, ttl: Ttl) {
        self.finish(|_, guard| guard.absent(ttl));
    }

    /// The back end failed: everybody who waits for this name gets `errno`, and nothing is cached.
    pub fn fail(self, errno: Errno) {
        self.finish(|_, guard| guard.fail(errno));
    }
}

impl<T: Send + Sync + 'static> Shared<T> {
    /// An answer to a question about a name that is locked.
    pub(super) fn answered(
        self: &Arc<Self>,
        guard: &NameGuard<'_>,
        attr: &Attr,
        name_ttl: Ttl,
        attr_ttl: Ttl,
        data: impl FnOnce() -> T,
    ) -> Result<OwnedNode<T>, CacheError> {
        let asked = (guard.dir.sb(), guard.asked);
        let late = || guard.is_late();
        let (inode, current) = self.data.known_or_new(guard.cache, asked, late, (attr, attr_ttl), data)?;
        guard.note_kept(guard.keep_name(&inode, current, name_ttl));
        Ok(OwnedNode::new(self, inode))
    }
}

impl<T: Send + Sync + 'static> Drop for Ticket<T> {
    fn drop(&mut self) {
        if let Some(parked) = self.parked.take() {
            drop(parked.resume(&self.shared.cache));
        }
    }
}

impl<T: Send + Sync + 'static> fmt::Debug for Ticket<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.parked {
            Some(parked) => write!(f, "Ticket({:?})", String::from_utf8_lossy(parked.place().1)),
            None => f.write_str("Ticket"),
        }
    }
}
