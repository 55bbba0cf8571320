//! The lock-free walk: the cost of `stat` of a cached path.
//!
//! It stores nothing shared and takes no lock. Each directory is a [`Pos`]: an inode and the walk sequence that the
//! walk saw. Every step checks that sequence after it has found the child. So the directory's permission, the
//! directory's name, and the child were valid together at one moment. Steps without a child check it too: `.`, and
//! `..`, even if it leaves a mount. ENOENT is final if the cache is certain that the name does not exist.
//!
//! The walk stops with a reason ([`Bail`]) at anything that it cannot decide: a name that is not cached, a symbolic
//! link without a cached target ([`super::symlinks`] follows the others), a permission denied by expired attributes,
//! a concurrent change. If the position still stands, the walk with references takes it over and goes on from there.
//! The walk never blocks and calls no driver. It allocates nothing but the positions of a long path that the prefix
//! cache does not have.

use std::borrow::Cow;

use uvfs_cache::InodeId;
use uvfs_cache::machinery::prefix::{Question, Way};
use uvfs_cache::machinery::{Child, Followed, PassedLink, Pos, Retry, Step, Stuck};

use crate::driver::Inode;
use crate::namei::bailout::Bail;
use crate::namei::cred_numbers::NOBODY;
use crate::namei::path_components::{Component, Kind, component, split};
use crate::namei::symlinks::{count_more, is_followed};
use crate::namei::{Goal, Last, Walker};
use crate::permission::{self, Verdict};
use crate::types::{Access, Attr, Errno, NAME_MAX, mode};
use crate::vfs::now_coarse;

/// Shorter directory parts are walked: one or two components take no longer than a look in the prefix cache.
const WORTH_KEEPING: usize = 16;

/// The result of a walk.
#[derive(Debug)]
pub(crate) enum Seen<'p> {
    /// The last name leads there; of the inode only its type is known yet.
    Child(Pos, Child),
    /// The path ends in this directory, by `.`, `..` or because it has no name.
    Node(Pos),
    /// The last name is to be looked up here.
    Parent { pos: Pos, last: Last<'p>, slash: bool },
}

/// The reason for a walk without a result.
#[derive(Debug)]
pub(crate) enum Stop {
    /// The answer is this error.
    Final(Errno),
    /// Not decided, and the position is not good either.
    Bail(Bail),
    /// Not decided; the walk stood here, before the component at this offset.
    BailAt(Bail, Pos, usize),
}

impl From<Retry> for Stop {
    fn from(retry: Retry) -> Self {
        Self::Bail(retry.into())
    }
}

impl Mark for Way {
    const KEPT: bool = true;

    #[inline(always)]
    fn add(&mut self, at: Pos) {
        Way::add(self, at);
    }

    fn add_link(&mut self, link: PassedLink) {
        Way::add_link(self, link);
    }

    fn spoil(&mut self) {
        Way::spoil(self);
    }
}

/// A recorder of the positions of a walk.
pub(crate) trait Mark {
    /// Whether it needs all positions, so that no prefix entry may lead over some.
    const KEPT: bool;
    fn add(&mut self, at: Pos);
    fn add_link(&mut self, link: PassedLink);
    /// Nothing of this walk may be kept.
    fn spoil(&mut self);
}

/// Forgets the positions.
pub(crate) struct NoTrail;

impl Mark for NoTrail {
    const KEPT: bool = false;

    #[inline(always)]
    fn add(&mut self, _: Pos) {}

    #[inline(always)]
    fn add_link(&mut self, _: PassedLink) {}

    #[inline(always)]
    fn spoil(&mut self) {}
}

impl Walker<'_, '_> {
    /// Walks from the inode `start`.
    pub(crate) fn walk_lockless<'p>(
        &self,
        start: &Inode<'_>,
        path: &'p [u8],
        goal: Goal,
        links: &mut u32,
    ) -> Result<Seen<'p>, Stop> {
        let at = self.begin(start)?;
        let (dirs, last_one) = split(path);
        let at = self.walk_dirs(at, dirs, links, &mut NoTrail)?;
        self.end_of(at, last_one, goal, links)
    }

    /// The end of a walk that reached the last component's directory.
    #[inline]
    pub(crate) fn end_of<'p>(
        &self,
        at: Pos,
        last_one: Option<Component<'p>>,
        goal: Goal,
        links: &mut u32,
    ) -> Result<Seen<'p>, Stop> {
        let Some(c) = last_one else {
            return Ok(match goal {
                Goal::Attr { .. } | Goal::Node { .. } => Seen::Node(at),
                Goal::Parent => Seen::Parent { pos: at, last: Last::Root, slash: false },
            });
        };
        if !self.may_search(at) {
            return Err(self.denied(at, c.start));
        }
        if goal == Goal::Parent {
            return Ok(Seen::Parent { pos: at, last: last(c), slash: c.slash });
        }
        match c.kind {
            Kind::Dot => Ok(Seen::Node(at)),
            Kind::DotDot => Ok(Seen::Node(self.up(at)?)),
            Kind::Name => {
                let child = self.find(at, c.name, c.start)?;
                if is_followed(child.fmt(), c.slash, goal.follows()) {
                    return self.end_through(at, c.into(), goal, links);
                }
                if child.fmt() != mode::S_IFDIR && c.slash {
                    return Err(Stop::BailAt(Bail::NotDirectory, at, c.start));
                }
                Ok(Seen::Child(at, child))
            }
        }
    }

    /// The start of a walk. No name led there that would have been looked up again, so its mode must still be
    /// trusted. Directories further on were found by names that are as fresh as they are; for others see
    /// [`Walker::without_name`]. (Root may search them all.)
    #[inline]
    pub(crate) fn begin(&self, start: &Inode<'_>) -> Result<Pos, Stop> {
        let at = self.vfs.cache.pos_of(start).ok_or(Stop::Bail(Bail::Gone))?;
        if !self.cred.is_root() && start.expired() {
            return Err(Stop::BailAt(Bail::Denied, at, 0));
        }
        Ok(at)
    }

    /// To be called at a directory in the middle of a walk that no name led to, before it is searched: a mounted root,
    /// a parent, the walker's root behind a link. No lookup has renewed its attributes, so they must still be trusted.
    /// Otherwise the walk with references goes on there, at `offset`. A walk by a prefix entry does not come here, so an
    /// entry is kept only if the trust outlives the look. Not inlined: few walks come here.
    #[inline(never)]
    pub(crate) fn without_name<M: Mark>(&self, at: Pos, offset: usize, trail: &mut M) -> Result<(), Stop> {
        if self.cred.is_root() || self.vfs.cache.lasts(at) {
            return Ok(());
        }
        trail.spoil();
        if self.vfs.cache.believed(at) { Ok(()) } else { Err(Stop::BailAt(Bail::Denied, at, offset)) }
    }

    /// Walks through `dirs`, the front part of a path, all of whose components are to be entered. `trail` has the
    /// start, and gets all positions after it. `links` counts the symbolic links that were followed, at an error those
    /// before its place.
    #[inline(always)]
    pub(crate) fn walk_dirs<M: Mark>(
        &self,
        mut at: Pos,
        dirs: &[u8],
        links: &mut u32,
        trail: &mut M,
    ) -> Result<Pos, Stop> {
        let cache = &self.vfs.cache;
        let names = cache.names();
        let mut offset = 0;
        while let Some(c) = component(dirs, offset) {
            if !self.may_search(at) {
                return Err(self.denied(at, offset));
            }
            match c.kind {
                Kind::Dot => {}
                Kind::DotDot => {
                    at = self.up(at)?;
                    trail.spoil();
                    self.without_name(at, c.next, trail)?;
                }
                Kind::Name => {
                    if c.name.len() > NAME_MAX {
                        return Err(Stop::BailAt(Bail::LongName, at, offset));
                    }
                    match cache.down(&names, at, &names.hash(c.name)) {
                        Ok(covered) => {
                            trail.add(covered);
                            at = self.across(covered)?;
                            if at != covered {
                                trail.add(at);
                                self.without_name(at, c.next, trail)?;
                            }
                        }
                        Err(Stuck::Symlink) => at = self.through(at, c.into(), links, trail)?,
                        Err(stuck) => return Err(stop(stuck, at, offset)),
                    }
                }
            }
            offset = c.next;
        }
        Ok(at)
    }

    /// Stores the attributes of the inode that `path` leads to from `start` in `attr`.
    #[inline(always)]
    pub(crate) fn attr_lockless(
        &self,
        start: &Inode<'_>,
        path: &[u8],
        follow: bool,
        links: &mut u32,
        attr: &mut Attr,
    ) -> Result<(), Stop> {
        let start = self.begin(start)?;
        let (dirs, last) = split(path);
        let at = if dirs.is_empty() { start } else { self.walk_to_end(start, dirs, links)? };
        self.attr_of_end(at, last, path.len(), follow, links, attr)
    }

    /// Walks through a path's directories. Not inlined: the look at the last component is
    /// nearly all of many a `stat`, and inlining would put its registers into memory.
    #[inline(never)]
    pub(crate) fn walk_to_end(&self, start: Pos, dirs: &[u8], links: &mut u32) -> Result<Pos, Stop> {
        if dirs.len() >= WORTH_KEEPING && self.who != NOBODY {
            self.walk_by_prefix(start, dirs, links)
        } else {
            self.walk_dirs(start, dirs, links, &mut NoTrail)
        }
    }

    /// The attributes of a path of `len` bytes that was walked to its last component.
    #[inline(always)]
    pub(crate) fn attr_of_end(
        &self,
        at: Pos,
        last: Option<Component<'_>>,
        len: usize,
        follow: bool,
        links: &mut u32,
        attr: &mut Attr,
    ) -> Result<(), Stop> {
        let Some(c) = last else { return self.attr_at(at, len, attr) };
        if !self.may_search(at) {
            return Err(self.denied(at, c.start));
        }
        match c.kind {
            Kind::Name => self.attr_of_last(at, c, follow, links, attr),
            Kind::Dot => self.attr_at(at, len, attr),
            Kind::DotDot => self.attr_at(self.up(at)?, len, attr),
        }
    }

    /// [`Walker::walk_dirs`] through the prefix cache.
    #[inline(always)]
    fn walk_by_prefix(&self, start: Pos, dirs: &[u8], links: &mut u32) -> Result<Pos, Stop> {
        // While mounts change, the two halves of a walk may see different ones.
        let Some(mounts) = self.vfs.mounts.generation() else {
            return self.walk_dirs(start, dirs, links, &mut NoTrail);
        };
        let cache = &self.vfs.cache;
        match Question::new(cache, (start.id(), self.root.id()), self.who, mounts, dirs) {
            Some(question) => match cache.prefix(&question) {
                Some((at, Followed::NONE)) => Ok(at),
                Some((at, followed)) if cache.may_follow(followed, now_coarse) => {
                    count_more(links, followed.links()).map(|()| at)
                }
                _ => self.walk_and_note(start, dirs, &question, links),
            },
            None => self.walk_dirs(start, dirs, links, &mut NoTrail),
        }
    }

    #[inline(never)]
    fn walk_and_note(
        &self,
        start: Pos,
        dirs: &[u8],
        question: &Question,
        links: &mut u32,
    ) -> Result<Pos, Stop> {
        let mut way = Way::new(start);
        let at = self.walk_dirs(start, dirs, links, &mut way)?;
        self.vfs.cache.note_prefix(question, &way);
        Ok(at)
    }

    /// The last component's attributes.
    #[inline(always)]
    fn attr_of_last(
        &self,
        at: Pos,
        c: Component<'_>,
        follow: bool,
        links: &mut u32,
        attr: &mut Attr,
    ) -> Result<(), Stop> {
        let cache = &self.vfs.cache;
        if c.name.len() > NAME_MAX {
            return Err(Stop::BailAt(Bail::LongName, at, c.start));
        }
        let names = cache.names();
        let looked = cache.look(&names, at, &names.hash(c.name), attr);
        let id = looked.map_err(|stuck| stop(stuck, at, c.start))?;
        if attr.is_dir() {
            return match self.vfs.mounts.mounted_on(id) {
                None => Ok(()),
                Some(root) => self.attr_by_id(root, attr, Stop::Bail(Bail::Gone)),
            };
        }
        if is_followed(attr.fmt(), c.slash, follow) {
            return self.attr_through(at, c.into(), follow, links, attr);
        }
        if c.slash { Err(Stop::BailAt(Bail::NotDirectory, at, c.start)) } else { Ok(()) }
    }

    /// Whether the directory may be searched, as far as the walk can see. The step that follows checks that the
    /// values read here are of the same moment.
    #[inline]
    pub(crate) fn may_search(&self, at: Pos) -> bool {
        #[cfg(test)]
        if super::lock_free_walk_tests::changes_now(self, at) {
            return true;
        }
        if self.cred.is_root() {
            return true;
        }
        // Stale attributes permit nothing: see `denied`.
        permission::granted(self.cred, self.vfs.cache.perm(at), Access::EXEC) && !self.vfs.cache.is_stale(at)
    }

    /// There was no search permission, as far as the walk could see. That is final if two things hold. The
    /// directory has not changed, so mode and owner were of one moment, and its attributes have not expired.
    /// Otherwise the walk with references decides. It also decides if a list must be asked.
    #[cold]
    pub(crate) fn denied(&self, at: Pos, offset: usize) -> Stop {
        let perm = self.vfs.cache.perm(at);
        if permission::verdict(self.cred, perm, Access::EXEC) == Verdict::List {
            return Stop::BailAt(Bail::Acl, at, offset);
        }
        let is_dir = perm.mode & mode::S_IFMT == mode::S_IFDIR;
        if is_dir && self.vfs.cache.believed(at) {
            Stop::Final(Errno::ACCESS)
        } else {
            Stop::BailAt(Bail::Denied, at, offset)
        }
    }

    /// Finds one name, which stands at `start` of the path, in one directory.
    pub(crate) fn find(&self, at: Pos, name: &[u8], start: usize) -> Result<Child, Stop> {
        let cache = &self.vfs.cache;
        if name.len() > NAME_MAX {
            return Err(Stop::BailAt(Bail::LongName, at, start));
        }
        match cache.step(at, name) {
            Step::Found(child) => Ok(child),
            Step::Absent => Err(stop(Stuck::Absent, at, start)),
            Step::Unknown => Err(Stop::BailAt(Bail::NotCached, at, start)),
            Step::Retry(retry) => Err(retry.into()),
        }
    }

    /// The attributes of the directory in which the path ended. If it is expired or gone, the walk with references
    /// goes on at the path's `end`, where it only has to ask.
    #[inline]
    pub(crate) fn attr_at(&self, at: Pos, end: usize, attr: &mut Attr) -> Result<(), Stop> {
        self.attr_by_id(at.id(), attr, Stop::BailAt(Bail::NotCached, at, end))?;
        // The permissions on the way here were checked in a directory that is still the same.
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

    /// Enters the inode that a name leads to; at a mount point, the root mounted there.
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

    /// `..`: stays at the walker's root, and leaves the mount at a mounted root.
    pub(crate) fn up(&self, at: Pos) -> Result<Pos, Stop> {
        let cache = &self.vfs.cache;
        if self.is_root(at.id()) {
            return Ok(at);
        }
        let up = match self.vfs.mounts.hidden_in(at.id()) {
            Some(up) => cache.pos(up).ok_or(Stop::Bail(Bail::Gone))?,
            None => {
                let mut below = at;
                // Mounts may be stacked, so this goes one mount at a time: the walker's root may be in the middle.
                while let Some(point) = self.vfs.mounts.point_of(below.id()) {
                    if self.is_root(point) {
                        return Ok(at);
                    }
                    below = cache.pos(point).ok_or(Stop::Bail(Bail::Gone))?;
                }
                cache.parent(below)?
            }
        };
        let up = self.across(up)?;
        // The way out of a mount reads nothing else of the mounted root, whose permission was trusted. If that
        // permission changed before this check, the walk starts over. If it changes later, it was granted when the
        // step was taken.
        if cache.check(at) { Ok(up) } else { Err(Stop::Bail(Bail::Parent)) }
    }
}

/// Converts the reason why a name did not lead on into the walk's reason.
#[cold]
fn stop(stuck: Stuck, at: Pos, offset: usize) -> Stop {
    match stuck {
        // The directory was checked again after its permissions were read, so they and the absence are of one
        // moment.
        Stuck::Absent => Stop::Final(Errno::NOENT),
        Stuck::Unknown => Stop::BailAt(Bail::NotCached, at, offset),
        Stuck::Symlink => Stop::BailAt(Bail::Symlink, at, offset),
        Stuck::NotDirectory => Stop::BailAt(Bail::NotDirectory, at, offset),
        Stuck::Retry(retry) => retry.into(),
    }
}

fn last(c: Component<'_>) -> Last<'_> {
    match c.kind {
        Kind::Dot => Last::Dot,
        Kind::DotDot => Last::DotDot,
        Kind::Name => Last::Name(Cow::Borrowed(c.name)),
    }
}
