//! Looking names up without references, without locks, without storing anything shared.
//!
//! The protocol of a hit (design rule 7): the bucket leads to a dentry; its sequence is read, then parent
//! and whole name, then the inode's index; the inode's sequence is read *before* the dentry's is
//! checked again, so that the sequence is one of the inode that the name led to; then the
//! attributes are copied and the inode's sequence, the dentry's, and the parent's walk sequence are
//! checked. If all stand, the copy is one moment's truth: the dentry led to that inode all the
//! while (it holds a reference, so the slot was not reused), and the parent was alive, had these
//! permissions, and was where the walk thought it was.
//!
//! Any failure says [`Retry`] with what moved; the caller tries again a few times and then takes
//! references. No function here waits.

use uvfs_sync::blhash::{BlHash, Hashes, Scan};
use uvfs_sync::primitives::Ordering;

use crate::attr::Attr;
use crate::cache::{Cache, is_dir};
use crate::dentry::NameWords;
use crate::inode::{DEAD, LIVE, Perm, ROOT};
use crate::inode_ref::InodeRef;
use crate::types::InodeId;

/// A directory (or the start of a walk) as it was when its walk sequence was read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pos {
    index: u32,
    life: u32,
    walk: u32,
}

impl Pos {
    /// Which inode.
    pub fn id(self) -> InodeId {
        InodeId::new(self.index, self.life)
    }
}

/// A name's hash, computed once for any parent.
#[derive(Clone, Copy, Debug)]
pub struct NameHash<'n> {
    words: NameWords<'n>,
    hashes: Hashes,
}

/// A name that was found, and what it leads to.
#[derive(Clone, Copy, Debug)]
pub struct Child {
    pub(crate) dentry: u32,
    seq: u32,
    pub(crate) inode: u32,
    fmt: u32,
}

impl Child {
    /// Type bits (`S_IFMT`) of what the name leads to.
    pub fn fmt(&self) -> u32 {
        self.fmt
    }
}

/// What moved under the walk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Retry {
    /// A bucket was being changed, or the hash keys were.
    Bucket,
    /// The name that was found changed.
    Dentry,
    /// The inode's attributes were being changed.
    Inode,
    /// The directory was renamed, changed its permissions, or went away.
    Parent,
    /// The directory was removed, or its slot serves another life.
    Dead,
}

/// One component's result.
#[derive(Clone, Copy, Debug)]
pub enum Step {
    /// The name leads there.
    Found(Child),
    /// There is certainly no such name.
    Absent,
    /// The cache does not know (or not any more).
    Unknown,
    /// Something moved.
    Retry(Retry),
}

/// Result of [`Cache::peek`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Peek {
    /// The inode, and its attributes of the moment in which the name led to it.
    Hit(InodeId, Attr),
    /// There is certainly no such name.
    Negative,
    /// Not known without asking.
    Miss,
    /// The directory's id is not (or no longer) a live directory's.
    Stale,
}

/// What a scan accepted.
pub(crate) enum Match {
    Positive(Child),
    Negative,
    Expired,
}

/// Collisions with writers after which a lock-free helper gives up.
const TRIES: u32 = if cfg!(loom) { 2 } else { 16 };

impl Cache {
    /// Hash a name (1 to 255 bytes).
    #[inline]
    pub fn hash_name<'n>(&self, name: &'n [u8]) -> NameHash<'n> {
        let words = NameWords::new(name);
        NameHash { hashes: self.names.hashes(|key| words.hash(key)), words }
    }

    #[inline]
    pub(crate) fn hashes_at(name: &NameHash<'_>, dir: u32) -> Hashes {
        BlHash::derive(&name.hashes, |h| h ^ u64::from(dir))
    }

    /// Where a walk starts. `None`: the id's life is over, or (for a moment) the directory is
    /// being renamed or changes its permissions.
    #[inline]
    pub fn pos(&self, id: InodeId) -> Option<Pos> {
        let published = self.inodes.get(id.index());
        for _ in 0..TRIES {
            // The sequence first: one that was read after the end of a life shows that end below,
            // and could not be told from a present one later.
            let walk = published.walk().raw().load(Ordering::Acquire);
            let flags = published.mode_and_flags();
            if flags & LIVE == 0 || published.life.load(Ordering::Relaxed) != id.life() {
                return None;
            }
            // What is no directory has no walk sequence, and nothing to walk into.
            if !is_dir(flags) || walk & 1 == 0 && published.at(id.life(), walk) {
                return Some(Pos { index: id.index(), life: id.life(), walk });
            }
            uvfs_sync::primitives::spin_loop();
        }
        None
    }

    /// Whether `at` is still as it was.
    #[inline]
    pub fn check(&self, at: Pos) -> bool {
        self.inodes.get(at.index).at(at.life, at.walk)
    }

    /// Whether `at` is still as it was, and its attributes have not expired: what was read of it is
    /// then as good as what its driver would say.
    pub fn believed(&self, at: Pos) -> bool {
        let deadline = self.inodes_private.get(at.index).deadline.load(Ordering::Relaxed);
        !self.clock.passed(deadline) && self.check(at)
    }

    /// Permissions of `at`; true if [`Cache::check`] holds afterwards.
    #[inline]
    pub fn perm(&self, at: Pos) -> Perm {
        self.inodes.get(at.index).perm()
    }

    /// Look at one candidate of a scan.
    #[inline]
    pub(crate) fn matches(&self, dentry: u32, dir: u32, life: u32, name: &NameWords<'_>) -> Option<Match> {
        let d = self.dentries.get(dentry);
        // Odd: its writer holds the lock of the bucket that we scan, so a miss proves nothing.
        let seq = d.seq.begin()?;
        if !d.is(dir, name, &self.tails) {
            return None;
        }
        let inode = d.inode.load(Ordering::Relaxed);
        let deadline = d.deadline.load(Ordering::Relaxed);
        let fmt = d.fmt();
        let parent_life = if inode == 0 {
            self.dentries_private.get(dentry).parent_life.load(Ordering::Relaxed)
        } else {
            life
        };
        if !d.seq.check(seq) || parent_life != life {
            // Changed under us, or a negative entry of the slot's last directory.
            return None;
        }
        if self.clock.passed(deadline) {
            return Some(Match::Expired);
        }
        Some(if inode == 0 { Match::Negative } else { Match::Positive(Child { dentry, seq, inode, fmt }) })
    }

    /// Look one name up below `at`.
    #[inline]
    pub fn step(&self, at: Pos, name: &NameHash<'_>) -> Step {
        let hashes = Self::hashes_at(name, at.index);
        let complete = || self.dir_state(at.index).is_some_and(|d| d.is_complete());
        let accept = |dentry| self.matches(dentry, at.index, at.life, &name.words);
        match self.names.scan(&hashes, accept, complete) {
            Scan::Hit(Match::Positive(child)) => Step::Found(child),
            Scan::Hit(Match::Expired) | Scan::Miss(false) => Step::Unknown,
            // Believed only of a directory that lives and has not moved.
            Scan::Hit(Match::Negative) | Scan::Miss(true) => {
                if self.check(at) {
                    Step::Absent
                } else {
                    Step::Retry(Retry::Parent)
                }
            }
            Scan::Moved => Step::Retry(Retry::Bucket),
        }
    }

    #[inline]
    pub(crate) fn still(&self, child: &Child) -> bool {
        self.dentries.get(child.dentry).seq.check(child.seq)
    }

    /// Step into a directory that `at` leads to.
    ///
    /// # Errors
    /// What moved.
    #[inline]
    pub fn enter(&self, at: Pos, child: &Child) -> Result<Pos, Retry> {
        let published = self.inodes.get(child.inode);
        // The child's sequence is read before the name and the parent are checked again: it is
        // then known to be the sequence of what the name led to.
        let walk = published.walk().raw().load(Ordering::Acquire);
        if walk & 1 != 0 && is_dir(child.fmt) {
            return Err(Retry::Inode);
        }
        let life = published.life.load(Ordering::Relaxed);
        if !self.still(child) {
            return Err(Retry::Dentry);
        }
        if !self.check(at) {
            return Err(Retry::Parent);
        }
        Ok(Pos { index: child.inode, life, walk })
    }

    /// Attributes of what `at` leads to: one moment's truth (rule 7).
    ///
    /// # Errors
    /// What moved.
    #[inline]
    pub fn child_attr(&self, at: Pos, child: &Child) -> Result<(InodeId, Attr), Retry> {
        let published = self.inodes.get(child.inode);
        let seq = published.seq.begin().ok_or(Retry::Inode)?;
        let attr = published.copy(self.inodes_private.get(child.inode));
        let life = published.life.load(Ordering::Relaxed);
        if !published.seq.check(seq) {
            return Err(Retry::Inode);
        }
        if !self.still(child) {
            return Err(Retry::Dentry);
        }
        if !self.check(at) {
            return Err(Retry::Parent);
        }
        Ok((InodeId::new(child.inode, life), attr))
    }

    /// `..` of a directory; a root's is the root itself.
    ///
    /// # Errors
    /// What moved; `Dead` for a directory that was removed.
    pub fn parent(&self, at: Pos) -> Result<Pos, Retry> {
        let flags = self.inodes.get(at.index).mode_and_flags();
        if flags & ROOT != 0 {
            return if self.check(at) { Ok(at) } else { Err(Retry::Parent) };
        }
        if flags & (LIVE | DEAD) != LIVE {
            return Err(Retry::Dead);
        }
        let alias = self.inodes_private.get(at.index).alias.load(Ordering::Acquire);
        let dentry = self.dentries.get(alias);
        let seq = dentry.seq.begin().ok_or(Retry::Dentry)?;
        if alias == 0 || dentry.inode.load(Ordering::Relaxed) != at.index {
            return Err(Retry::Dentry);
        }
        let parent = dentry.parent.load(Ordering::Relaxed);
        let published = self.inodes.get(parent);
        let walk = published.walk().begin().ok_or(Retry::Inode)?;
        let life = published.life.load(Ordering::Relaxed);
        // The dentry holds its parent, so parent, walk and life are of one directory.
        if !dentry.seq.check(seq) {
            return Err(Retry::Dentry);
        }
        if !self.check(at) {
            return Err(Retry::Parent);
        }
        Ok(Pos { index: parent, life, walk })
    }

    /// A reference to where the walk is: get-unless-dead, then the sequence again.
    ///
    /// # Errors
    /// What moved.
    pub fn hold(&self, at: Pos) -> Result<InodeRef<'_>, Retry> {
        let inode = self.get(at.id()).ok_or(Retry::Dead)?;
        if self.check(at) { Ok(inode) } else { Err(Retry::Parent) }
    }

    /// A reference to what a name leads to, while it does.
    pub(crate) fn hold_child(&self, child: &Child) -> Result<InodeRef<'_>, Retry> {
        let life = self.inodes.get(child.inode).life.load(Ordering::Relaxed);
        let inode = self.get(InodeId::new(child.inode, life)).ok_or(Retry::Dentry)?;
        if self.still(child) { Ok(inode) } else { Err(Retry::Dentry) }
    }

    /// Look one name up and copy the attributes of what it leads to, storing nothing: the whole
    /// hit of a front end that needs no reference.
    pub fn peek(&self, dir: InodeId, name: &[u8]) -> Peek {
        for _ in 0..TRIES {
            let hash = self.hash_name(name);
            let Some(at) = self.pos(dir) else { return Peek::Stale };
            match self.step(at, &hash) {
                Step::Found(child) => {
                    if let Ok((id, attr)) = self.child_attr(at, &child) {
                        return Peek::Hit(id, attr);
                    }
                }
                Step::Absent => return Peek::Negative,
                Step::Unknown => return Peek::Miss,
                Step::Retry(_) => {}
            }
            uvfs_sync::primitives::spin_loop();
        }
        Peek::Miss
    }

    /// Attributes by id, storing nothing. `None`: the life is over, or the attributes expired, or a
    /// writer was in the way all the time.
    pub fn attr(&self, id: InodeId) -> Option<Attr> {
        let published = self.inodes.get(id.index());
        let private = self.inodes_private.get(id.index());
        for _ in 0..TRIES {
            if let Some(seq) = published.seq.begin() {
                let attr = published.copy(private);
                let live = published.mode_and_flags() & LIVE != 0;
                let life = published.life.load(Ordering::Relaxed);
                let deadline = private.deadline.load(Ordering::Relaxed);
                if published.seq.check(seq) {
                    let good = live && life == id.life() && !self.clock.passed(deadline);
                    return good.then_some(attr);
                }
            }
            uvfs_sync::primitives::spin_loop();
        }
        None
    }
}
