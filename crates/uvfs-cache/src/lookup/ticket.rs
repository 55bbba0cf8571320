//! A held name lock, and the directory's state when the lock was taken. A miss returns it as the lookup
//! ticket.
//!
//! A [`NameGuard`] frees its name when it is dropped ([`crate::lookup::name_locks`]). It records the
//! directory's revision, the epoch, and the superblock's count of attribute changes, all read before the
//! driver is asked (rule 10); `driver_answer.rs` refuses an answer that is late by them. It may be kept across a driver call, and completed from any thread that may
//! use the cache.

use rustix::io::Errno;
use uvfs_sync::primitives::Hint;

use crate::cache::Cache;
use crate::coherence::late_attributes::Asked;
use crate::dirs::dir_state::DirState;
use crate::inodes::inode_ref::InodeRef;
use crate::lookup::name_locks::{Outcome, Pending};
use crate::names::dentry::{INLINE, NameWords};
use crate::types::InodeId;

/// A name's bytes; most are short enough to need no memory of their own.
enum Bytes {
    Short([u8; INLINE], u8),
    Long(Box<[u8]>),
}

impl Bytes {
    fn new(name: &[u8]) -> Self {
        let mut short = [0; INLINE];
        match short.get_mut(..name.len()) {
            Some(room) => {
                room.copy_from_slice(name);
                Self::Short(short, name.len() as u8)
            }
            None => Self::Long(name.into()),
        }
    }

    fn get(&self) -> &[u8] {
        match self {
            Self::Short(bytes, len) => &bytes[..usize::from(*len)],
            Self::Long(bytes) => bytes,
        }
    }
}

/// A held name lock; dropping it frees the name.
pub struct NameGuard<'c> {
    pub(crate) cache: &'c Cache,
    pub(crate) dir: InodeRef<'c>,
    /// The state of the directory, which is held.
    pub(crate) state: Option<&'c DirState>,
    name: Bytes,
    /// In a resident directory: the dentry that [`NameGuard::find`] found, the first place to look when the
    /// name goes.
    pub(crate) found: Hint,
    /// `None`: the other guard of a pair of colliding names owns the entry.
    key: Option<u64>,
    /// The directory's revision before the driver is asked (rule 10): at the taking of the name lock, or at
    /// the start of a listing.
    pub(crate) revision: u64,
    /// The epoch and the notes of that moment.
    pub(crate) asked: Asked,
    outcome: Outcome,
}

impl std::fmt::Debug for NameGuard<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("NameGuard")
            .field("dir", &self.dir)
            .field("name", &String::from_utf8_lossy(self.name()))
            .finish_non_exhaustive()
    }
}

impl<'c> NameGuard<'c> {
    fn new(dir: &InodeRef<'c>, name: &[u8], key: Option<u64>) -> Self {
        let state = dir.dir_state();
        Self {
            cache: dir.cache(),
            state,
            revision: state.map_or(0, |d| d.revision()),
            asked: dir.cache().ask_below(dir),
            dir: dir.clone(),
            name: Bytes::new(name),
            found: Hint::new(),
            key,
            outcome: Ok(()),
        }
    }

    /// The second guard of a pair whose names share one lock.
    pub(crate) fn beside(dir: &InodeRef<'c>, name: &[u8]) -> Self {
        Self::new(dir, name, None)
    }

    /// The guard without a borrow of the cache, for an owner that another thread may take it to.
    pub(crate) fn park(mut self) -> Parked {
        Parked {
            dir: self.dir.clone().into_id(),
            name: std::mem::replace(&mut self.name, Bytes::Short([0; INLINE], 0)),
            // So the drop frees no name.
            key: self.key.take(),
            revision: self.revision,
            asked: self.asked,
        }
    }

    pub(crate) fn words(&self) -> NameWords<'_> {
        NameWords::new(self.name())
    }

    /// The question failed: waiters for the same name get this errno.
    pub fn fail(mut self, errno: Errno) {
        self.outcome = Err(errno);
    }
}

/// A [`NameGuard`] that does not borrow the cache. Its owner gives it back with [`Parked::resume`]; if it is
/// dropped, the name stays locked.
#[must_use = "dropped, it keeps its name for good"]
pub(crate) struct Parked {
    dir: InodeId,
    name: Bytes,
    key: Option<u64>,
    revision: u64,
    asked: Asked,
}

impl Parked {
    pub(crate) fn resume(self, cache: &Cache) -> NameGuard<'_> {
        let Self { dir, name, key, revision, asked } = self;
        let dir = InodeRef::new(cache, dir.index(), dir.generation());
        let (state, found) = (dir.dir_state(), Hint::new());
        NameGuard { cache, state, dir, name, found, key, revision, asked, outcome: Ok(()) }
    }

    /// Directory and name.
    pub(crate) fn place(&self) -> (InodeId, &[u8]) {
        (self.dir, self.name.get())
    }
}

impl<'c> NameGuard<'c> {
    /// The directory.
    pub fn dir(&self) -> &InodeRef<'c> {
        &self.dir
    }

    /// The name.
    pub fn name(&self) -> &[u8] {
        self.name.get()
    }
}

impl Drop for NameGuard<'_> {
    fn drop(&mut self) {
        if let Some(key) = self.key {
            self.cache.name_locks.release(key, self.outcome);
        }
    }
}

// For this project's own crates: see `machinery`.
#[doc(hidden)]
impl Cache {
    /// Take a name lock, waiting for its holder. Invalid names (empty, or longer than 255 bytes) can be
    /// locked too, but [`NameGuard::reserve`] refuses them.
    pub fn lock_name<'c>(&'c self, dir: &InodeRef<'c>, name: &[u8]) -> NameGuard<'c> {
        let key = self.name_key(dir, name);
        drop(self.name_locks.take_or_wait(key));
        NameGuard::new(dir, name, Some(key))
    }

    /// The key of a name's lock: two names are locked in the order of their keys.
    pub(crate) fn name_key(&self, dir: &InodeRef<'_>, name: &[u8]) -> u64 {
        self.name_locks.key(dir.index(), &NameWords::new(name))
    }

    /// Take a name lock if it is free.
    pub(crate) fn try_lock_name<'c>(
        &'c self,
        dir: &InodeRef<'c>,
        name: &[u8],
    ) -> Result<NameGuard<'c>, Pending> {
        let key = self.name_key(dir, name);
        self.name_locks.take(key)?;
        Ok(NameGuard::new(dir, name, Some(key)))
    }

    /// Take two name locks, in the one order that all threads use. The names may be the same.
    pub fn lock_names<'c>(
        &'c self,
        a: (&InodeRef<'c>, &[u8]),
        b: (&InodeRef<'c>, &[u8]),
    ) -> (NameGuard<'c>, NameGuard<'c>) {
        let (first, second) = (self.name_key(a.0, a.1), self.name_key(b.0, b.1));
        let _order = self.name_locks.take_or_wait(first.min(second));
        if first != second {
            drop(self.name_locks.take_or_wait(first.max(second)));
        }
        let other = (first != second).then_some(second);
        (NameGuard::new(a.0, a.1, Some(first)), NameGuard::new(b.0, b.1, other))
    }
}
