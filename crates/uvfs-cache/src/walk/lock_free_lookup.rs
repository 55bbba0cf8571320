//! Lookups without references, without locks and without shared stores.
//!
//! The protocol of a hit (design rule 7):
//!
//! 1. The bucket leads to a dentry. The reader loads the dentry's sequence, its parent and whole name, then
//!    the inode's index.
//! 2. The reader loads the inode's sequence *before* it checks the dentry's again. So that sequence belongs
//!    to the inode that the name led to.
//! 3. The reader copies the attributes, then checks the inode's sequence, the dentry's, and the parent's
//!    walk sequence.
//!
//! If all three stand, the copy is one moment's truth. The dentry led to that inode all the while (it holds
//! a reference, so the slot was not reused). The parent was alive, had these permissions, and was where the
//! walk thought it was.
//!
//! Any failure returns [`Retry`] with what moved. The caller tries again a few times and then takes
//! references. No function here waits.

use uvfs_sync::blhash::{BlHash, Hashes, Scan, View};
use uvfs_sync::primitives::Ordering;
use uvfs_sync::seqcount::GenSeq;

use crate::cache::{Cache, is_dir};
use crate::inodes::attr::Attr;
use crate::inodes::inode::{DEAD, LIVE, Perm, ROOT};
use crate::inodes::inode_ref::InodeRef;
use crate::names::dentry::{self, NameWords};
use crate::types::{InodeId, SbId};
use crate::walk::position::Pos;

/// A view of the name table, taken once for a look or a walk.
#[derive(Clone, Copy, Debug)]
pub struct Names<'c>(pub(crate) View<'c>);

impl<'c> Names<'c> {
    /// Hash a name. A name that is empty or longer than 255 bytes is found nowhere.
    #[inline(always)]
    pub fn hash<'n>(&self, name: &'n [u8]) -> NameHash<'n> {
        let words = NameWords::new(name);
        NameHash { hash: words.hash(self.0.key()), words }
    }
}

/// A name's hash, computed once for any parent.
#[derive(Clone, Copy, Debug)]
pub struct NameHash<'n> {
    pub(crate) words: NameWords<'n>,
    pub(crate) hash: u64,
}

/// A name that was found, and what it leads to.
#[derive(Clone, Copy, Debug)]
pub struct Child {
    pub(crate) dentry: u32,
    pub(crate) seq: u32,
    pub(crate) inode: u32,
    meta: u32,
}

impl Child {
    /// The contents of a dentry, as read under `seq`.
    #[inline]
    pub(crate) fn new(dentry: u32, seq: u32, inode: u32, meta: u32) -> Self {
        Self { dentry, seq, inode, meta }
    }

    /// Type bits (`S_IFMT`) of the inode that the name leads to.
    #[inline(always)]
    pub fn fmt(&self) -> u32 {
        dentry::fmt_of(self.meta)
    }
}

/// The thing that moved under the walk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Retry {
    /// A bucket or the hash keys were being changed.
    Bucket,
    /// The name that was found has changed.
    Dentry,
    /// The inode's attributes were being changed.
    Inode,
    /// The directory was renamed, changed its permissions, or went away.
    Parent,
    /// The directory was removed, or its slot serves another generation.
    Dead,
}

/// One component's result.
#[derive(Clone, Copy, Debug)]
pub enum Step {
    /// The name leads to this child.
    Found(Child),
    /// There is certainly no such name.
    Absent,
    /// The cache does not know (or no longer knows).
    Unknown,
    /// Something moved.
    Retry(Retry),
}

/// An entry that a scan accepted.
pub(crate) enum Match {
    Positive(Child),
    Negative,
    Expired,
}

/// Collisions with writers after which a lock-free helper gives up.
pub(crate) const TRIES: u32 = if cfg!(loom) { 2 } else { 16 };

// For this project's own crates: see `machinery`.
#[doc(hidden)]
impl Cache {
    /// The current view of the name table.
    #[inline(always)]
    pub fn names(&self) -> Names<'_> {
        Names(self.dentries.names().view())
    }

    /// Announce that a name will be looked up soon: prefetch its line in the table, which few processors
    /// have in their cache. Stores nothing.
    #[inline]
    pub fn prefetch(&self, dir: &InodeRef<'_>, name: &[u8]) {
        let names = self.names();
        self.dentries.names().prefetch(names.hash(name).hash as u32 ^ dir.index());
    }

    /// [`Cache::prefetch`] of an entry that a driver has listed, also of the line that its number is searched in if the
    /// name is not known. Not for resident superblocks, which hash no numbers.
    #[inline]
    pub fn prefetch_listed(&self, dir: &InodeRef<'_>, name: &[u8], ino: u64) {
        self.prefetch(dir, name);
        self.inodes.prefetch_number_of(dir.sb(), ino);
    }

    /// The hashes of (directory, name), for locking or scanning.
    pub(crate) fn hashes_at(&self, name: &NameWords<'_>, dir: u32) -> Hashes {
        let hashes = self.dentries.names().hashes(|key| name.hash(key));
        BlHash::derive(&hashes, |h| h ^ u64::from(dir))
    }

    /// The position where a walk starts. `None`: the id's generation is over, or (for a moment) the
    /// directory is being renamed or changes its permissions.
    #[inline(always)]
    pub fn pos(&self, id: InodeId) -> Option<Pos> {
        let published = self.inodes.get(id.index());
        for _ in 0..TRIES {
            let stamp = published.stamp().load();
            let flags = published.mode_and_flags();
            if flags & LIVE == 0
                || GenSeq::generation_of(stamp) != id.generation()
                || !self.inodes.is_slot(id.index())
            {
                return None;
            }
            // An inode that is no directory has no walk sequence, and nothing to walk into.
            if !is_dir(flags) || !GenSeq::is_odd(stamp) {
                return Some(Pos { index: id.index(), stamp });
            }
            uvfs_sync::primitives::spin_loop();
        }
        None
    }

    /// [`Cache::pos`] of a held inode. Its generation continues, so only a writer can be in the way.
    #[inline(always)]
    pub fn pos_of(&self, held: &InodeRef<'_>) -> Option<Pos> {
        let stamp = self.inodes.get(held.index()).stamp().load();
        if GenSeq::is_odd(stamp) {
            return self.pos(held.id());
        }
        Some(Pos { index: held.index(), stamp })
    }

    /// Whether `at` is still as it was.
    #[inline(always)]
    pub fn check(&self, at: Pos) -> bool {
        self.inodes.get(at.index).stamp().check(at.stamp)
    }

    /// Whether `at` is still as it was and its attributes have not expired. Then what was read of it is as
    /// good as its driver's answer.
    pub fn believed(&self, at: Pos) -> bool {
        let deadline = self.inodes.private(at.index).deadline.load(Ordering::Relaxed);
        !self.clock.passed(deadline) && self.check(at)
    }

    /// Whether the attributes of `at` are trusted without a look at the clock. As [`Cache::perm`], this is of `at` if
    /// [`Cache::check`] succeeds afterwards.
    pub fn lasts(&self, at: Pos) -> bool {
        self.clock.stands(self.inodes.private(at.index).deadline.load(Ordering::Relaxed))
    }

    /// Permissions of `at`; valid if [`Cache::check`] succeeds afterwards.
    #[inline]
    pub fn perm(&self, at: Pos) -> Perm {
        self.inodes.get(at.index).perm()
    }

    /// Whether the attributes of `at` are stale; valid as for [`Cache::perm`].
    #[inline]
    pub fn is_stale(&self, at: Pos) -> bool {
        self.inodes.get(at.index).is_stale()
    }

    /// The superblock and inode number of `at`; `None` if it has changed.
    pub fn number(&self, at: Pos) -> Option<(SbId, u64)> {
        let sb = self.inodes.private(at.index).sb_id();
        let ino = self.inodes.get(at.index).ino();
        self.check(at).then_some((sb, ino))
    }

    /// Examine one candidate of a scan.
    pub(crate) fn matches(
        &self,
        dentry: u32,
        dir: u32,
        generation: u32,
        name: &NameWords<'_>,
    ) -> Option<Match> {
        let d = self.dentries.get(dentry);
        // Odd: its writer holds the lock of the bucket that we scan, so a miss proves nothing.
        let seq = d.seq.begin()?;
        if !d.is(dir, name, self.dentries.tails()) {
            return None;
        }
        let inode = d.inode.load(Ordering::Relaxed);
        let deadline = d.deadline.load(Ordering::Relaxed);
        let meta = d.meta();
        let parent_generation = if inode == 0 {
            self.dentries.private(dentry).parent_generation.load(Ordering::Relaxed)
        } else {
            generation
        };
        if !d.seq.check(seq) || parent_generation != generation {
            // Changed under us, or a negative entry of the slot's last directory.
            return None;
        }
        // A lookup of a name also refreshes its inode's attributes, so stale attributes expire the name.
        if self.clock.passed(deadline) || (inode != 0 && self.inodes.get(inode).is_stale()) {
            return Some(Match::Expired);
        }
        Some(if inode == 0 { Match::Negative } else { Match::Positive(Child { dentry, seq, inode, meta }) })
    }

    /// Look one name up below `at`, in all slots and lines. [`Cache::down`] and [`Cache::look`] are the
    /// short way if the caller wants only the result.
    pub fn step(&self, at: Pos, name: &[u8]) -> Step {
        let words = NameWords::new(name);
        if words.is_none() {
            return self.absent(at);
        }
        let accept = |dentry| self.matches(dentry, at.index, at.generation(), &words);
        match self.dentries.names().scan(&self.hashes_at(&words, at.index), accept, || self.is_complete(at)) {
            Scan::Hit(Match::Positive(child)) => Step::Found(child),
            Scan::Hit(Match::Negative) | Scan::Miss(true) => self.absent(at),
            Scan::Hit(Match::Expired) | Scan::Miss(false) => Step::Unknown,
            Scan::Moved => Step::Retry(Retry::Bucket),
        }
    }

    /// Called between the two looks at a bucket's sequence.
    pub(crate) fn is_complete(&self, at: Pos) -> bool {
        self.inodes.dir_state(at.index).is_some_and(|d| d.is_complete(&self.clock))
    }

    /// Absence is trusted only of a directory that is alive and has not moved.
    pub(crate) fn absent(&self, at: Pos) -> Step {
        if self.check(at) { Step::Absent } else { Step::Retry(Retry::Parent) }
    }

    #[inline]
    pub(crate) fn still(&self, child: &Child) -> bool {
        self.dentries.get(child.dentry).seq.check(child.seq)
    }

    /// Step into a directory that `at` leads to.
    ///
    /// # Errors
    /// [`Retry`] says what moved.
    pub fn enter(&self, at: Pos, child: &Child) -> Result<Pos, Retry> {
        let published = self.inodes.get(child.inode);
        // The child's sequence is loaded before the name and the parent are checked again. So it is known
        // to be the sequence of the inode that the name led to.
        let stamp = published.stamp().load();
        if GenSeq::is_odd(stamp) && is_dir(child.fmt()) {
            return Err(Retry::Inode);
        }
        if !self.still(child) {
            return Err(Retry::Dentry);
        }
        if !self.check(at) {
            return Err(Retry::Parent);
        }
        Ok(Pos { index: child.inode, stamp })
    }

    /// Attributes of the inode that `at` leads to: one moment's truth (rule 7).
    ///
    /// # Errors
    /// [`Retry`] says what moved.
    pub fn child_attr(&self, at: Pos, child: &Child) -> Result<(InodeId, Attr), Retry> {
        let published = self.inodes.get(child.inode);
        let seq = published.seq.begin().ok_or(Retry::Inode)?;
        let attr = published.copy(|| self.inodes.private(child.inode));
        let generation = published.generation();
        if !published.seq.check(seq) {
            return Err(Retry::Inode);
        }
        if !self.still(child) {
            return Err(Retry::Dentry);
        }
        if !self.check(at) {
            return Err(Retry::Parent);
        }
        self.used(child.dentry);
        Ok((InodeId::new(child.inode, generation), attr))
    }

    /// `..` of a directory; a root's is the root itself.
    ///
    /// # Errors
    /// [`Retry`] says what moved; it is `Dead` for a directory that was removed.
    pub fn parent(&self, at: Pos) -> Result<Pos, Retry> {
        let flags = self.inodes.get(at.index).mode_and_flags();
        if flags & ROOT != 0 {
            return if self.check(at) { Ok(at) } else { Err(Retry::Parent) };
        }
        if flags & (LIVE | DEAD) != LIVE {
            return Err(Retry::Dead);
        }
        let alias = self.inodes.private(at.index).alias.load(Ordering::Acquire);
        let dentry = self.dentries.get(alias);
        let seq = dentry.seq.begin().ok_or(Retry::Dentry)?;
        if alias == 0 || dentry.inode.load(Ordering::Relaxed) != at.index {
            return Err(Retry::Dentry);
        }
        let parent = dentry.parent.load(Ordering::Relaxed);
        let published = self.inodes.get(parent);
        let stamp = published.stamp().load();
        if GenSeq::is_odd(stamp) {
            return Err(Retry::Inode);
        }
        // The dentry holds its parent, so parent and stamp belong to one directory.
        if !dentry.seq.check(seq) {
            return Err(Retry::Dentry);
        }
        if !self.check(at) {
            return Err(Retry::Parent);
        }
        Ok(Pos { index: parent, stamp })
    }

    /// A reference to the walk's position: get-unless-dead, then check the sequence again.
    ///
    /// # Errors
    /// [`Retry`] says what moved.
    pub fn hold(&self, at: Pos) -> Result<InodeRef<'_>, Retry> {
        let inode = self.get(at.id()).ok_or(Retry::Dead)?;
        if self.check(at) { Ok(inode) } else { Err(Retry::Parent) }
    }

    /// A reference to the inode that a name leads to, while it does.
    pub(crate) fn hold_child(&self, child: &Child) -> Result<InodeRef<'_>, Retry> {
        let generation = self.inodes.get(child.inode).generation();
        let inode = self.get(InodeId::new(child.inode, generation)).ok_or(Retry::Dentry)?;
        self.used(child.dentry);
        if self.still(child) { Ok(inode) } else { Err(Retry::Dentry) }
    }
}

// For this project's own crates: see `machinery`.
#[doc(hidden)]
impl Cache {
    /// Attributes by id, storing nothing. `None`: the generation is over, the attributes expired, or a
    /// writer was in the way all the time.
    pub fn attr(&self, id: InodeId) -> Option<Attr> {
        self.attr_and_sb(id).map(|(attr, _)| attr)
    }

    /// [`Cache::attr`], and the superblock of the same moment.
    #[inline]
    pub(crate) fn attr_and_sb(&self, id: InodeId) -> Option<(Attr, SbId)> {
        if !self.inodes.is_slot(id.index()) {
            return None;
        }
        let published = self.inodes.get(id.index());
        let private = self.inodes.private(id.index());
        for _ in 0..TRIES {
            if let Some(seq) = published.seq.begin() {
                let attr = published.copy(|| private);
                let live = published.mode_and_flags() & LIVE != 0;
                let generation = published.generation();
                let (deadline, sb) = (private.deadline.load(Ordering::Relaxed), private.sb_id());
                if published.seq.check(seq) {
                    let good = live && generation == id.generation() && !self.clock.passed(deadline);
                    return good.then_some((attr, sb));
                }
            }
            uvfs_sync::primitives::spin_loop();
        }
        None
    }
}
