//! The hit: one name below a directory, and what it leads to, in a few dozen instructions.
//!
//! `lock_free_lookup.rs` describes the protocol. Here it is done in one piece for the two things that a walk nearly
//! always wants: the next directory ([`Cache::down`]) and the attributes at the end ([`Cache::look`]).
//! `step` handles everything unusual: a negative entry, one that may expire, one that is being changed, one
//! with stale attributes, and a name in a later slot or line. That call takes and returns plain words and
//! is marked cold. So a hit saves no compared value for that call.
//!
//! Stores nothing shared, except that an armed cache marks the name as used. Waits for nobody.

use uvfs_sync::blhash::Seen;
use uvfs_sync::primitives::Ordering;

use crate::cache::Cache;
use crate::inodes::attr::{Attr, mode};
use crate::names::dentry::fmt_of;
use crate::types::InodeId;
use crate::walk::lock_free_lookup::{NameHash, Names, Retry, Step, TRIES};
use crate::walk::position::Pos;

/// Result of [`Cache::peek`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Peek {
    /// The inode, and its attributes at the moment when the name led to it.
    Hit(InodeId, Attr),
    /// There is certainly no such name.
    Negative,
    /// Not known without asking the driver.
    Miss,
    /// The id is not (or no longer) that of a live directory.
    Stale,
}

/// Why a name did not lead on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stuck {
    /// There is certainly no such name.
    Absent,
    /// The cache does not know (or no longer knows).
    Unknown,
    /// The name leads to a symbolic link, not a directory.
    Symlink,
    /// The name leads to neither a directory nor a symbolic link.
    NotDirectory,
    /// Something moved.
    Retry(Retry),
}

// For this project's own crates: see `machinery`.
#[doc(hidden)]
impl Cache {
    /// The directory that a name below `at` leads to.
    ///
    /// # Errors
    /// Why there is none.
    #[inline(always)]
    pub fn down(&self, names: &Names<'_>, at: Pos, name: &NameHash<'_>) -> Result<Pos, Stuck> {
        let hash = name.hash ^ u64::from(at.index);
        let glance = names.0.glance(hash);
        for dentry in glance {
            self.inodes.prefetch(likely_inode(dentry));
            let d = self.dentries.get(dentry);
            let seq = d.seq.raw().load(Ordering::Acquire);
            if !d.is(at.index, &name.words, self.dentries.tails()) {
                continue;
            }
            let index = d.inode.load(Ordering::Relaxed);
            if fmt_of(d.meta()) != mode::S_IFDIR || !self.clock.stands(d.deadline.load(Ordering::Relaxed)) {
                break;
            }
            // The child's sequence is loaded before the name and the parent are checked. So it is known to
            // be the sequence of the inode that the name led to.
            let published = self.inodes.get(index);
            let stamp = published.stamp().load();
            let moving = (u64::from(seq) | stamp) & 1 != 0 || published.is_stale();
            if !moving && d.seq.check(seq) && self.check(at) {
                return Ok(Pos { index, stamp });
            }
            break;
        }
        unpack(self.down_slowly(at.index, at.stamp, name.words.name()))
    }

    /// Attributes of the inode that a name below `at` leads to: one moment's truth. On success they are in
    /// `attr`; on failure `attr` may have been overwritten.
    ///
    /// # Errors
    /// Why there are none; never `Symlink` or `NotDirectory`.
    #[inline(always)]
    pub fn look(
        &self,
        names: &Names<'_>,
        at: Pos,
        name: &NameHash<'_>,
        attr: &mut Attr,
    ) -> Result<InodeId, Stuck> {
        self.look_for::<true>(names, at, name, attr)
    }

    /// [`Cache::look`], without the attributes if `COPY` is false.
    #[inline(always)]
    fn look_for<const COPY: bool>(
        &self,
        names: &Names<'_>,
        at: Pos,
        name: &NameHash<'_>,
        attr: &mut Attr,
    ) -> Result<InodeId, Stuck> {
        let hash = name.hash ^ u64::from(at.index);
        let glance = names.0.glance(hash);
        let (seen, mut matched) = (glance.seen(), false);
        for dentry in glance {
            self.inodes.prefetch(likely_inode(dentry));
            let d = self.dentries.get(dentry);
            let seq = d.seq.raw().load(Ordering::Acquire);
            if !d.is(at.index, &name.words, self.dentries.tails()) {
                continue;
            }
            matched = true;
            let index = d.inode.load(Ordering::Relaxed);
            if index == 0 || !self.clock.stands(d.deadline.load(Ordering::Relaxed)) {
                break;
            }
            let published = self.inodes.get(index);
            let inode_seq = published.seq.raw().load(Ordering::Acquire);
            if COPY {
                *attr = published.copy(|| self.inodes.private(index));
            }
            let generation = published.generation();
            let moving = (seq | inode_seq) & 1 != 0 || published.is_stale();
            if !moving && published.seq.check(inode_seq) && d.seq.check(seq) && self.check(at) {
                self.used(dentry);
                return Ok(InodeId::new(index, generation));
            }
            break;
        }
        let name = name.words.name();
        if matched {
            self.look_slowly(at.index, at.stamp, name, attr)
        } else {
            self.look_missed(at.index, at.stamp, name, (names.0.epoch(), hash, seen), attr)
        }
    }

    /// [`Cache::down`] of an unusual case. The position is returned in two words, because a result would be
    /// returned in memory. Index 0 stands for an error.
    #[cold]
    fn down_slowly(&self, index: u32, stamp: u64, name: &[u8]) -> (u32, u64) {
        let at = Pos { index, stamp };
        let result = match self.step(at, name) {
            Step::Found(child) if child.fmt() == mode::S_IFLNK => Err(Stuck::Symlink),
            Step::Found(child) if child.fmt() != mode::S_IFDIR => Err(Stuck::NotDirectory),
            Step::Found(child) => self.enter(at, &child).map_err(Stuck::Retry),
            Step::Absent => Err(Stuck::Absent),
            Step::Unknown => Err(Stuck::Unknown),
            Step::Retry(retry) => Err(Stuck::Retry(retry)),
        };
        match result {
            Ok(pos) => (pos.index, pos.stamp),
            Err(stuck) => (0, stuck.code()),
        }
    }

    /// [`Cache::look`] of an unusual case.
    #[cold]
    fn look_slowly(&self, index: u32, stamp: u64, name: &[u8], attr: &mut Attr) -> Result<InodeId, Stuck> {
        let at = Pos { index, stamp };
        match self.step(at, name) {
            Step::Found(child) => {
                let id;
                (id, *attr) = self.child_attr(at, &child).map_err(Stuck::Retry)?;
                Ok(id)
            }
            Step::Absent => Err(Stuck::Absent),
            Step::Unknown => Err(Stuck::Unknown),
            Step::Retry(retry) => Err(Stuck::Retry(retry)),
        }
    }

    /// No slot that a glance shows has the name: most often it is in none.
    #[cold]
    fn look_missed(
        &self,
        index: u32,
        stamp: u64,
        name: &[u8],
        (epoch, hash, seen): (u32, u64, Seen),
        attr: &mut Attr,
    ) -> Result<InodeId, Stuck> {
        let at = Pos { index, stamp };
        let complete = self.is_complete(at);
        if complete && self.dentries.names().rules_out(epoch, hash, seen) && self.check(at) {
            return Err(Stuck::Absent);
        }
        self.look_slowly(index, stamp, name, attr)
    }

    /// [`Cache::peek`] for a caller that takes a reference and reads the attributes from the inode itself. Returns
    /// `Some(None)` if there is certainly no such name, and `None` if the driver must be asked.
    pub fn peek_id(&self, dir: InodeId, name: &[u8]) -> Option<Option<InodeId>> {
        match self.peek_for::<false>(dir, name, &mut Attr::default()) {
            Ok(id) => Some(Some(id)),
            Err(Some(Stuck::Absent)) => Some(None),
            Err(_) => None,
        }
    }

    /// The error `None` stands for a directory that is stale.
    #[inline(always)]
    fn peek_for<const COPY: bool>(
        &self,
        dir: InodeId,
        name: &[u8],
        attr: &mut Attr,
    ) -> Result<InodeId, Option<Stuck>> {
        for _ in 0..TRIES {
            let names = self.names();
            let at = self.pos(dir).ok_or(None)?;
            match self.look_for::<COPY>(&names, at, &names.hash(name), attr) {
                Err(Stuck::Retry(_)) => uvfs_sync::primitives::spin_loop(),
                outcome => return outcome.map_err(Some),
            }
        }
        Err(Some(Stuck::Unknown))
    }
}

// For this project's own crates: see `machinery`.
#[doc(hidden)]
impl Cache {
    /// Look one name up and copy the attributes of its inode, storing nothing. This is the whole hit of a
    /// front end that needs no reference.
    pub fn peek(&self, dir: InodeId, name: &[u8]) -> Peek {
        let mut attr = Attr::default();
        match self.peek_for::<true>(dir, name, &mut attr) {
            Ok(id) => Peek::Hit(id, attr),
            Err(Some(Stuck::Absent)) => Peek::Negative,
            Err(Some(_)) => Peek::Miss,
            Err(None) => Peek::Stale,
        }
    }
}

/// The inode that a dentry most likely leads to. Both are made together, from slabs that hand slots out in
/// the same order, and the root's inode has no name. If the guess is right and the working set is larger
/// than the processor's caches, two of a hit's three misses become one.
#[inline(always)]
fn likely_inode(dentry: u32) -> u32 {
    dentry.wrapping_add(1)
}

#[inline(always)]
fn unpack((index, stamp): (u32, u64)) -> Result<Pos, Stuck> {
    if index == 0 { Err(Stuck::of_code(stamp)) } else { Ok(Pos { index, stamp }) }
}

impl Stuck {
    /// For [`unpack`]. Exhaustive, so that the compiler finds a variant that is missing.
    const fn code(self) -> u64 {
        match self {
            Self::Absent => 0,
            Self::Unknown => 1,
            Self::Symlink => 2,
            Self::NotDirectory => 3,
            Self::Retry(Retry::Bucket) => 4,
            Self::Retry(Retry::Dentry) => 5,
            Self::Retry(Retry::Inode) => 6,
            Self::Retry(Retry::Parent) => 7,
            Self::Retry(Retry::Dead) => 8,
        }
    }

    /// The inverse of [`Stuck::code`]. Any other code is [`Stuck::Unknown`], which asks the driver: a variant that is
    /// missing here costs time, and is never a false ENOENT.
    const fn of_code(code: u64) -> Self {
        match code {
            0 => Self::Absent,
            2 => Self::Symlink,
            3 => Self::NotDirectory,
            4 => Self::Retry(Retry::Bucket),
            5 => Self::Retry(Retry::Dentry),
            6 => Self::Retry(Retry::Inode),
            7 => Self::Retry(Retry::Parent),
            8 => Self::Retry(Retry::Dead),
            _ => Self::Unknown,
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_code_is_one_reason() {
        for code in 0..=8 {
            assert_eq!(Stuck::of_code(code).code(), code);
        }
        assert_eq!(Stuck::of_code(9), Stuck::Unknown);
    }
}
