//! The walk without references: what `stat` of a cached path costs.
//!
//! Nothing shared is stored and no lock is taken. Each directory is a [`Pos`]: an inode and the
//! walk sequence that was seen. Every step checks that sequence after it has found the child,
//! so the permission that was read for the directory, its name and the child belong to one
//! moment. Absence is final where the cache is certain of it.
//!
//! What cannot be decided here stops the walk with a reason ([`Bail`]): a name that is not
//! cached, a symbolic link, a permission denied by attributes that have expired, a change under
//! our eyes. Where the position is still good it is handed over,
//! and the walk with references goes on from there.
//! Never blocks, calls no driver, allocates nothing.

use std::borrow::Cow;

use uvfs_cache::{Child, InodeId, Pos, Step};

use crate::namei::bailout::Bail;
use crate::namei::path::{Component, Kind, component};
use crate::namei::{Goal, Last, Walker};
use crate::permission;
use crate::types::{Access, Attr, Errno, NAME_MAX, mode};

/// What the walk came to.
#[derive(Debug)]
pub(crate) enum Seen<'p> {
    /// The last name leads there; nothing is known yet of the inode but its type.
    Child(Pos, Child),
    /// The path ends in this directory, by `.`, `..` or because there is no name in it.
    Node(Pos),
    /// The last name is to be looked for here.
    Parent { pos: Pos, last: Last<'p>, slash: bool },
}

/// Why it did not.
#[derive(Debug)]
pub(crate) enum Stop {
    /// The answer is this error.
    Final(Errno),
    /// Not decided; the position is no good either.
    Bail(Bail),
    /// Not decided; the walk stood here, before the component at this offset.
    BailAt(Bail, Pos, usize),
}

impl From<uvfs_cache::Retry> for Stop {
    fn from(retry: uvfs_cache::Retry) -> Self {
        Self::Bail(retry.into())
    }
}

impl Walker<'_, '_> {
    /// Walks from the inode `start`.
    pub(crate) fn walk_lockless<'p>(
        &self,
        start: InodeId,
        path: &'p [u8],
        goal: Goal,
    ) -> Result<Seen<'p>, Stop> {
        let cache = &self.vfs.cache;
        let mut at = cache.pos(start).ok_or(Stop::Bail(Bail::Gone))?;
        let mut offset = 0;
        while let Some(c) = component(path, offset) {
            if !self.may_search(at) {
                return Err(self.denied(at, offset));
            }
            if c.last && goal == Goal::Parent {
                return Ok(Seen::Parent { pos: at, last: last(c), slash: c.slash });
            }
            at = match c.kind {
                Kind::Dot => at,
                Kind::DotDot => self.up(at)?,
                Kind::Name => {
                    let child = self.find(at, c, offset)?;
                    if self.must_follow(&child, c, goal) {
                        return Err(Stop::BailAt(Bail::Symlink, at, offset));
                    }
                    let is_dir = child.fmt() == mode::S_IFDIR;
                    if !is_dir && (!c.last || c.slash) {
                        return Err(Stop::BailAt(Bail::NotDirectory, at, offset));
                    }
                    if c.last {
                        return Ok(Seen::Child(at, child));
                    }
                    self.enter(at, &child)?
                }
            };
            offset = c.next;
        }
        Ok(match goal {
            Goal::Attr { .. } | Goal::Node { .. } => Seen::Node(at),
            Goal::Parent => Seen::Parent { pos: at, last: Last::Root, slash: false },
        })
    }

    /// Whether the directory may be searched, as far as can be seen; the step that follows
    /// checks that what was read here is of the same moment.
    #[inline]
    fn may_search(&self, at: Pos) -> bool {
        if self.cred.is_root() {
            return true;
        }
        let perm = self.vfs.cache.perm(at);
        permission::granted(self.cred, perm.mode, perm.uid, perm.gid, Access::EXEC)
    }

    /// No search permission, as far as could be seen. That is final where the directory is still
    /// what it was, since mode and owner were then of one moment, and where its attributes have not
    /// expired. Else it is for the walk with references to say.
    #[cold]
    fn denied(&self, at: Pos, offset: usize) -> Stop {
        let is_dir = self.vfs.cache.perm(at).mode & mode::S_IFMT == mode::S_IFDIR;
        if is_dir && self.vfs.cache.believed(at) {
            Stop::Final(Errno::ACCESS)
        } else {
            Stop::BailAt(Bail::Denied, at, offset)
        }
    }

    /// One name in one directory.
    #[inline]
    fn find(&self, at: Pos, c: Component<'_>, offset: usize) -> Result<Child, Stop> {
        let cache = &self.vfs.cache;
        if c.name.len() > NAME_MAX {
            return Err(Stop::BailAt(Bail::LongName, at, offset));
        }
        match cache.step(at, c.name) {
            Step::Found(child) => Ok(child),
            // The permission and the absence must be of one directory at one place.
            Step::Absent if cache.check(at) => Err(Stop::Final(Errno::NOENT)),
            Step::Absent => Err(Stop::Bail(Bail::Parent)),
            Step::Unknown => Err(Stop::BailAt(Bail::NotCached, at, offset)),
            Step::Retry(retry) => Err(retry.into()),
        }
    }

    /// A symbolic link is followed where more comes after it, be it a slash, or where the goal
    /// says so.
    fn must_follow(&self, child: &Child, c: Component<'_>, goal: Goal) -> bool {
        child.fmt() == mode::S_IFLNK && (!c.last || c.slash || goal.follows())
    }

    /// Attributes of what a name leads to.
    #[inline]
    pub(crate) fn attr_of(&self, at: Pos, child: &Child, attr: &mut Attr) -> Result<(), Stop> {
        let id;
        (id, *attr) = self.vfs.cache.child_attr(at, child)?;
        match self.vfs.mounts.mounted_on(id) {
            None => Ok(()),
            Some(root) => self.attr_by_id(root, attr, Stop::Bail(Bail::Gone)),
        }
    }

    /// Attributes of a directory that the path ended in. Expired or gone, the walk with
    /// references goes on at the path's `end`, where nothing is left to do but to ask.
    #[inline]
    pub(crate) fn attr_at(&self, at: Pos, end: usize, attr: &mut Attr) -> Result<(), Stop> {
        self.attr_by_id(at.id(), attr, Stop::BailAt(Bail::NotCached, at, end))?;
        // What was permitted on the way here was permitted in a directory that is still this one.
        if self.vfs.cache.check(at) { Ok(()) } else { Err(Stop::Bail(Bail::Parent)) }
    }

    #[inline]
    fn attr_by_id(&self, id: InodeId, attr: &mut Attr, otherwise: Stop) -> Result<(), Stop> {
        match self.vfs.cache.attr(id) {
            Some(found) => {
                *attr = found;
                Ok(())
            }
            None => Err(otherwise),
        }
    }

    /// Into what a name leads to: through a mount point, to what is mounted there.
    #[inline]
    pub(crate) fn enter(&self, at: Pos, child: &Child) -> Result<Pos, Stop> {
        self.across(self.vfs.cache.enter(at, child)?)
    }

    #[inline]
    fn across(&self, at: Pos) -> Result<Pos, Stop> {
        match self.vfs.mounts.mounted_on(at.id()) {
            None => Ok(at),
            Some(root) => self.vfs.cache.pos(root).ok_or(Stop::Bail(Bail::Gone)),
        }
    }

    /// `..`: nowhere from the walker's root, out of the mount from a mounted root.
    fn up(&self, at: Pos) -> Result<Pos, Stop> {
        let cache = &self.vfs.cache;
        if self.is_root(at.id()) {
            return Ok(at);
        }
        let below = match self.vfs.mounts.point_of(at.id()) {
            Some(point) if self.is_root(point) => return Ok(at),
            Some(point) => cache.pos(point).ok_or(Stop::Bail(Bail::Gone))?,
            None => at,
        };
        self.across(cache.parent(below)?)
    }
}

fn last(c: Component<'_>) -> Last<'_> {
    match c.kind {
        Kind::Dot => Last::Dot,
        Kind::DotDot => Last::DotDot,
        Kind::Name => Last::Name(Cow::Borrowed(c.name)),
    }
}
