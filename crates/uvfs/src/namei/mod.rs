//! From paths to inodes, and the operations that take paths.
//!
//! [`lock_free_walk`] goes through the cache without references and stores nothing. If it cannot decide, [`ref_walk`] takes
//! over: it takes a reference to each directory and asks drivers. [`symlinks`] has the rules of symbolic links for both.
//! [`bailout`] names and counts the reasons for giving up. [`path_components`] splits paths, [`open`] has the rules of
//! `open(2)`, [`open_cached`] its usual case, and [`context`] is the interface for callers. Imports run downward: this
//! module knows `ops`, which does not know of paths.

pub(crate) mod bailout;
pub(crate) mod context;
pub(crate) mod cred_numbers;
pub(crate) mod lock_free_walk;
#[cfg(test)]
mod lock_free_walk_tests;
pub(crate) mod open;
pub(crate) mod open_cached;
pub(crate) mod open_handle;
pub(crate) mod path_components;
pub(crate) mod readlink;
pub(crate) mod ref_walk;
pub(crate) mod symlinks;

use std::borrow::Cow;

use uvfs_cache::InodeId;

use crate::counters;
use crate::driver::Inode;
use crate::namei::bailout::Bail;
use crate::namei::lock_free_walk::{Seen, Stop};
use crate::namei::ref_walk::{Arrived, RefWalk};
use crate::types::{Attr, Cred, Errno, PATH_MAX, Result};
use crate::vfs::Vfs;

/// Lock-free attempts before the walk takes references.
const LOCKLESS_ATTEMPTS: u32 = 4;

/// The purpose of a walk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Goal {
    /// The attributes at the end of the path.
    Attr {
        /// Whether a symbolic link at the end is followed.
        follow: bool,
    },
    /// The inode at the end of the path.
    Node {
        /// Whether a symbolic link at the end is followed.
        follow: bool,
    },
    /// The directory in which the last component is to be looked up.
    Parent,
}

impl Goal {
    fn follows(self) -> bool {
        matches!(self, Self::Attr { follow: true } | Self::Node { follow: true })
    }
}

/// The last component of a path whose directory was wanted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Last<'p> {
    /// An ordinary name.
    Name(Cow<'p, [u8]>),
    /// `.`
    Dot,
    /// `..`
    DotDot,
    /// There is none: the path consists of slashes.
    Root,
}

/// A directory, and the name wanted in it.
#[derive(Debug)]
pub(crate) struct Parent<'v, 'p> {
    /// The directory; the caller may search it.
    pub(crate) dir: Inode<'v>,
    /// The last component.
    pub(crate) last: Last<'p>,
    /// Whether slashes came after the last component.
    pub(crate) slash: bool,
    /// Symbolic links followed so far.
    pub(crate) links: u32,
}

/// A caller of a walk, with its starting points.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Walker<'w, 'v> {
    pub(crate) vfs: &'v Vfs,
    pub(crate) cred: &'w Cred,
    /// The number of `cred`; see [`cred_numbers`].
    pub(crate) who: u32,
    pub(crate) root: &'w Inode<'v>,
    pub(crate) cwd: &'w Inode<'v>,
}

/// The outcome of a lock-free walk that did not reach its goal.
enum Fallback<'v> {
    /// The answer is this error.
    Final(Errno),
    /// Go on with references, from this directory and offset, after this many symbolic links.
    From(Inode<'v>, usize, u32),
}

impl<'v> Walker<'_, 'v> {
    /// Stores the attributes of the inode that `path` leads to in `attr`. Returning them through four results would
    /// copy them each time. That costs more than the lookup: a load of 16 bytes waits for the two stores of eight
    /// before it.
    #[inline(always)]
    pub(crate) fn attr(&self, path: &[u8], follow: bool, attr: &mut Attr) -> Result<()> {
        let start = self.start(self.cwd, path)?;
        let mounts = self.vfs.mounts.generation();
        let mut links = 0;
        match self.attr_lockless(start, path, follow, &mut links, attr) {
            Ok(()) => {
                counters::hit();
                Ok(())
            }
            Err(stop) => {
                self.attr_again(start, mounts, (stop, links), path, follow).map(|found| *attr = found)
            }
        }
    }

    /// [`Walker::attr`] after a first attempt that decided nothing.
    #[cold]
    fn attr_again(
        &self,
        start: &Inode<'v>,
        mounts: Option<u32>,
        (stop, links): (Stop, u32),
        path: &[u8],
        follow: bool,
    ) -> Result<Attr> {
        let mut attr = Attr::default();
        let mut attempt = |links: &mut u32| self.attr_lockless(start, path, follow, links, &mut attr);
        let Err(fallback) = self.again(start, path, mounts, (stop, links, 0), &mut attempt) else {
            return Ok(attr);
        };
        match self.attr_held(start, path, follow, fallback) {
            // The walk's end has been replaced by another inode meanwhile.
            Err(Errno::STALE) => self.attr_held(start, path, follow, Fallback::From(start.clone(), 0, 0)),
            outcome => outcome,
        }
    }

    fn attr_held(
        &self,
        start: &Inode<'v>,
        path: &[u8],
        follow: bool,
        fallback: Fallback<'v>,
    ) -> Result<Attr> {
        let arrived = self.held(start, path, Goal::Attr { follow }, fallback, 0)?;
        match arrived.attr {
            Some(attr) => Ok(attr),
            None => self.vfs.attr_now(&self.vfs.op(self.cred), &arrived.inode),
        }
    }

    /// The inode that `path` leads to.
    pub(crate) fn node(&self, path: &[u8], follow: bool) -> Result<Inode<'v>> {
        let goal = Goal::Node { follow };
        let start = self.start(self.cwd, path)?;
        let seen = self
            .lockless(start, path, 0, |links| self.hold_end(self.walk_lockless(start, path, goal, links)?));
        match seen {
            Ok(inode) => Ok(inode),
            Err(fallback) => self.held(start, path, goal, fallback, 0).map(|arrived| arrived.inode),
        }
    }

    /// A reference to the end of a walk.
    fn hold_end(&self, seen: Seen<'_>) -> std::result::Result<Inode<'v>, Stop> {
        let at = match seen {
            Seen::Child(at, child) => self.enter(at, &child)?,
            Seen::Node(at) | Seen::Parent { pos: at, .. } => at,
        };
        Ok(self.vfs.cache.hold(at)?)
    }

    /// The directory of `path`'s last component.
    pub(crate) fn parent<'p>(&self, path: &'p [u8]) -> Result<Parent<'v, 'p>> {
        self.parent_from(self.cwd, path, 0)
    }

    /// [`Walker::parent`] from `start`, after `links` symbolic links.
    pub(crate) fn parent_from<'p>(
        &self,
        start: &Inode<'v>,
        path: &'p [u8],
        links: u32,
    ) -> Result<Parent<'v, 'p>> {
        let start = self.start(start, path)?;
        let seen = self.lockless(start, path, links, |followed| {
            let seen = self.walk_lockless(start, path, Goal::Parent, followed)?;
            let links = *followed;
            match seen {
                Seen::Parent { pos, last, slash } => {
                    Ok(Parent { dir: self.vfs.cache.hold(pos)?, last, slash, links })
                }
                Seen::Child(at, _) | Seen::Node(at) => {
                    Ok(Parent { dir: self.vfs.cache.hold(at)?, last: Last::Root, slash: false, links })
                }
            }
        });
        match seen {
            Ok(parent) => Ok(parent),
            Err(fallback) => {
                let Arrived { inode: dir, last, slash, links, .. } =
                    self.held(start, path, Goal::Parent, fallback, links)?;
                Ok(Parent { dir, last, slash, links })
            }
        }
    }

    /// The start of the path, if the path is valid.
    fn start<'s>(&'s self, relative: &'s Inode<'v>, path: &[u8]) -> Result<&'s Inode<'v>> {
        check_path(path)?;
        Ok(if path.starts_with(b"/") { self.root } else { relative })
    }

    /// Calls `attempt`, which walks without references, until it decides or there are too many attempts. Otherwise
    /// the walk goes on from its last position, if that directory can still be held, or from the start. `before`
    /// symbolic links were followed before `path`; an attempt counts further.
    #[inline(always)]
    fn lockless<T>(
        &self,
        start: &Inode<'v>,
        path: &[u8],
        before: u32,
        mut attempt: impl FnMut(&mut u32) -> std::result::Result<T, Stop>,
    ) -> std::result::Result<T, Fallback<'v>> {
        let mounts = self.vfs.mounts.generation();
        let mut links = before;
        match attempt(&mut links) {
            Ok(wanted) => {
                counters::hit();
                Ok(wanted)
            }
            Err(stop) => self.again(start, path, mounts, (stop, links, before), &mut attempt),
        }
    }

    #[cold]
    fn again<T>(
        &self,
        start: &Inode<'v>,
        path: &[u8],
        mut mounts: Option<u32>,
        (mut stop, mut links, before): (Stop, u32, u32),
        attempt: &mut dyn FnMut(&mut u32) -> std::result::Result<T, Stop>,
    ) -> std::result::Result<T, Fallback<'v>> {
        for _ in 1..LOCKLESS_ATTEMPTS {
            match stop {
                Stop::Bail(bail) if bail.may_pass() => counters::bail(bail),
                // Half of the walk may have been below a mount that came or went.
                Stop::Final(_) if !self.vfs.mounts.stand(mounts) => counters::bail(Bail::Parent),
                _ => break,
            }
            mounts = self.vfs.mounts.generation();
            links = before;
            match attempt(&mut links) {
                Ok(wanted) => {
                    counters::hit();
                    return Ok(wanted);
                }
                Err(other) => stop = other,
            }
        }
        match stop {
            // The cache is certain that the control directory's name is absent: it is never cached.
            Stop::Final(Errno::NOENT) if self.vfs.may_mean_control(path) => counters::bail(Bail::NotCached),
            Stop::Final(errno) if self.vfs.mounts.stand(mounts) => {
                counters::hit();
                return Err(Fallback::Final(errno));
            }
            Stop::Final(_) => counters::bail(Bail::Parent),
            Stop::Bail(bail) => counters::bail(bail),
            Stop::BailAt(bail, pos, rest) => {
                counters::bail(bail);
                if let Ok(dir) = self.vfs.cache.hold(pos) {
                    return Err(Fallback::From(dir, rest, links));
                }
            }
        }
        Err(Fallback::From(start.clone(), 0, before))
    }

    /// Continues with references. If a driver says that a directory on the way has moved (and it has dropped the
    /// name that led there), the walk starts over once, from the start.
    #[cold]
    fn held<'p>(
        &self,
        start: &Inode<'v>,
        path: &'p [u8],
        goal: Goal,
        fallback: Fallback<'v>,
        links: u32,
    ) -> Result<Arrived<'v, 'p>> {
        match fallback {
            Fallback::Final(errno) => Err(errno),
            Fallback::From(dir, rest, before) => {
                match RefWalk::new(self, dir, path, rest, before).run(goal) {
                    Err(Errno::STALE) => RefWalk::new(self, start.clone(), path, 0, links).run(goal),
                    outcome => outcome,
                }
            }
        }
    }

    /// Whether this is the walk's root, above which it may not go.
    pub(crate) fn is_root(&self, id: InodeId) -> bool {
        self.root.id() == id
    }
}

/// ENOENT for an empty path, ENAMETOOLONG for one over the limit.
pub(crate) fn check_path(path: &[u8]) -> Result<()> {
    if path.is_empty() {
        Err(Errno::NOENT)
    } else if path.len() > PATH_MAX {
        Err(Errno::NAMETOOLONG)
    } else {
        Ok(())
    }
}
