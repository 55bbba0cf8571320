//! From paths to inodes, and the operations that take paths.
//!
//! [`walk`] goes through the cache without references and stores nothing; what it cannot decide
//! it leaves to [`refwalk`], which takes a reference to each directory and asks drivers.
//! [`bailout`] names and counts the reasons. [`path`] splits, [`open`] has the rules of
//! `open(2)`, [`context`] is what callers see.
//! Imports run downward: this module knows `ops`, which does not know of paths.

pub(crate) mod bailout;
pub(crate) mod context;
pub(crate) mod handle;
pub(crate) mod open;
pub(crate) mod path;
pub(crate) mod refwalk;
pub(crate) mod walk;

use std::borrow::Cow;

use uvfs_cache::InodeId;

use crate::driver::Inode;
use crate::namei::bailout::Bail;
use crate::namei::refwalk::RefWalk;
use crate::namei::walk::{Seen, Stop};
use crate::types::{Attr, Cred, Errno, PATH_MAX, Result};
use crate::vfs::Vfs;

/// Attempts without references before the walk takes them.
const LOCKLESS_ATTEMPTS: u32 = 4;

/// What a walk is after.
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
    /// The directory that the last component is to be looked for in.
    Parent,
}

impl Goal {
    fn follows(self) -> bool {
        matches!(self, Self::Attr { follow: true } | Self::Node { follow: true })
    }
}

/// The last component of a path whose directory was looked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Last<'p> {
    /// An ordinary name.
    Name(Cow<'p, [u8]>),
    /// `.`
    Dot,
    /// `..`
    DotDot,
    /// There is none: the path is slashes only.
    Root,
}

/// A directory and what is wanted in it.
#[derive(Debug)]
pub(crate) struct Parent<'v, 'p> {
    /// The directory; may be searched by the caller.
    pub(crate) dir: Inode<'v>,
    /// The last component.
    pub(crate) last: Last<'p>,
    /// Whether slashes came after it.
    pub(crate) slash: bool,
    /// Symbolic links followed so far.
    pub(crate) links: u32,
}

/// Where a walk ended.
#[derive(Debug)]
pub(crate) enum Walked<'v, 'p> {
    Attr(Attr),
    Node(Inode<'v>),
    Parent(Parent<'v, 'p>),
}

/// Who walks, and from where.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Walker<'w, 'v> {
    pub(crate) vfs: &'v Vfs,
    pub(crate) cred: &'w Cred,
    pub(crate) root: &'w Inode<'v>,
    pub(crate) cwd: &'w Inode<'v>,
}

impl<'v> Walker<'_, 'v> {
    /// The attributes of what `path` leads to.
    pub(crate) fn attr(&self, path: &[u8], follow: bool) -> Result<Attr> {
        match self.walk(self.cwd, path, Goal::Attr { follow }, 0)? {
            Walked::Attr(attr) => Ok(attr),
            Walked::Node(inode) => Ok(inode.attr()),
            Walked::Parent(parent) => Ok(parent.dir.attr()),
        }
    }

    /// The inode that `path` leads to.
    pub(crate) fn node(&self, path: &[u8], follow: bool) -> Result<Inode<'v>> {
        match self.walk(self.cwd, path, Goal::Node { follow }, 0)? {
            Walked::Node(inode) => Ok(inode),
            Walked::Parent(parent) => Ok(parent.dir),
            Walked::Attr(_) => Err(Errno::INVAL),
        }
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
        match self.walk(start, path, Goal::Parent, links)? {
            Walked::Parent(parent) => Ok(parent),
            Walked::Node(_) | Walked::Attr(_) => Err(Errno::INVAL),
        }
    }

    /// Walks without references as long as that decides, then with them: from where the first
    /// walk stood, if that directory can still be held, or else from the start.
    fn walk<'p>(&self, start: &Inode<'v>, path: &'p [u8], goal: Goal, links: u32) -> Result<Walked<'v, 'p>> {
        check_path(path)?;
        let start = if path.starts_with(b"/") { self.root } else { start };
        for _ in 0..LOCKLESS_ATTEMPTS {
            let bail = match self.walk_lockless(start.id(), path, goal) {
                Ok(seen) => match self.keep(seen, links) {
                    Ok(walked) => return Ok(walked),
                    Err(bail) => bail,
                },
                Err(Stop::Final(errno)) => return Err(errno),
                Err(Stop::Bail(bail)) => bail,
                Err(Stop::BailAt(bail, pos, rest)) => {
                    bailout::count(bail);
                    let (dir, rest) = match self.vfs.cache.hold(pos) {
                        Ok(dir) => (dir, rest),
                        Err(_) => (start.clone(), 0),
                    };
                    return RefWalk::new(self, dir, path, rest, links).run(goal);
                }
            };
            bailout::count(bail);
            if !bail.may_pass() {
                break;
            }
        }
        RefWalk::new(self, start.clone(), path, 0, links).run(goal)
    }

    /// Takes the references that the goal needs.
    fn keep<'p>(&self, seen: Seen<'p>, links: u32) -> std::result::Result<Walked<'v, 'p>, Bail> {
        let cache = &self.vfs.cache;
        Ok(match seen {
            Seen::Attr(attr) => Walked::Attr(attr),
            Seen::Node(pos) => Walked::Node(cache.hold(pos)?),
            Seen::Parent { pos, last, slash } => {
                Walked::Parent(Parent { dir: cache.hold(pos)?, last, slash, links })
            }
        })
    }

    /// Whether the walk may not go further up than here.
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
