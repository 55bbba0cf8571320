//! Symbolic links: the rules of both walks, and the steps of the lock-free walk.
//!
//! Both walks follow a link if something comes after it, or if the caller wants the end of the path. They follow
//! [`MAX_SYMLINKS`] at most, and never an empty one. `fs.protected_symlinks` judges the last component only. As on
//! Linux, a link is first counted, then judged, then read.
//!
//! The lock-free walk copies the target of a link to its stack, in the same look as the attributes, and walks it from
//! the link's directory or from the root. Then it goes on behind the link. So the depth of its recursion is the
//! nesting depth of the links. It follows only a link whose target the cache has, and whose access time a read would
//! not move. At any other link it stops, and the walk with references follows it.
//!
//! An offset in a target is no offset in the path. So a walk that stops in a target hands over the offset before the
//! link, and the number of links that it had followed by then. Everything here is cold: a path without links pays one
//! branch.

use uvfs_cache::machinery::{Perm, Pos, TARGET_MAX};

use crate::driver::Inode;
use crate::namei::bailout::Bail;
use crate::namei::lock_free_walk::{Mark, NoTrail, Seen, Stop};
use crate::namei::path_components::{Component, Kind, component, split};
use crate::namei::{Goal, Walker};
use crate::permission;
use crate::types::{Attr, Errno, MAX_SYMLINKS, Op, Result, mode};
use crate::vfs::now_coarse;

/// Whether a walk follows what has this type, as the last component: with a slash after it, or if its goal says so.
#[inline(always)]
pub(crate) fn is_followed(fmt: u32, slash: bool, wanted: bool) -> bool {
    fmt == mode::S_IFLNK && (slash || wanted)
}

/// ELOOP if no link may be followed after `links` others.
pub(crate) fn may_be_one_more(links: u32) -> Result<()> {
    if links >= MAX_SYMLINKS { Err(Errno::LOOP) } else { Ok(()) }
}

/// ENOENT if the target is empty.
fn leads_somewhere(target: &[u8]) -> Result<()> {
    if target.is_empty() { Err(Errno::NOENT) } else { Ok(()) }
}

/// Counts the links on the way of a prefix entry.
#[cold]
pub(crate) fn count_more(links: &mut u32, more: u32) -> std::result::Result<(), Stop> {
    *links += more;
    if *links > MAX_SYMLINKS { Err(Stop::Final(Errno::LOOP)) } else { Ok(()) }
}

/// The target of the link `inode`. Never empty. The caller has counted the link.
pub(crate) fn follow<'v>(walker: &Walker<'_, 'v>, op: &Op, inode: &Inode<'v>) -> Result<Vec<u8>> {
    let target = walker.vfs.readlink(op, inode)?;
    leads_somewhere(&target)?;
    Ok(target)
}

/// The text with the component replaced by a link's target, without the part that was already walked.
pub(crate) fn replaced(mut target: Vec<u8>, text: &[u8], c: Component<'_>) -> Vec<u8> {
    if !c.last || c.slash {
        target.push(b'/');
        target.extend_from_slice(&text[c.next..]);
    }
    target
}

/// The component that led to a link: fewer words than a [`Component`], for a hit keeps all of them in registers.
#[derive(Clone, Copy)]
pub(crate) struct Link<'p> {
    name: &'p [u8],
    start: usize,
    /// Whether a slash comes after it, as the last component.
    slash: bool,
}

impl<'p> From<Component<'p>> for Link<'p> {
    #[inline(always)]
    fn from(c: Component<'p>) -> Self {
        Self { name: c.name, start: c.start, slash: c.slash }
    }
}

/// A place in a link's target as the place before the link, with the links before it.
fn before_link(stop: Stop, at: Pos, c: Link<'_>, before: u32, links: &mut u32) -> Stop {
    match stop {
        Stop::BailAt(bail, ..) => {
            *links = before;
            Stop::BailAt(bail, at, c.start)
        }
        Stop::Bail(_) | Stop::Final(_) => stop,
    }
}

impl Walker<'_, '_> {
    /// The directory to which the link `c` in `at` leads, in the middle of a path.
    #[cold]
    #[inline(never)]
    pub(crate) fn through<M: Mark>(
        &self,
        at: Pos,
        c: Link<'_>,
        links: &mut u32,
        trail: &mut M,
    ) -> std::result::Result<Pos, Stop> {
        let (before, mut buffer) = (*links, [0; TARGET_MAX]);
        let target = self.target_of(at, c, false, links, &mut buffer, trail)?;
        let end = self.target_start(at, target, target, trail).and_then(|(start, rest)| {
            if M::KEPT {
                self.walk_dirs(start, rest, links, trail)
            } else {
                self.walk_to_end(start, rest, links)
            }
        });
        end.map_err(|stop| before_link(stop, at, c, before, links))
    }

    /// The attributes of the inode to which the link `c` in `at` leads, as the last component.
    #[cold]
    #[inline(never)]
    pub(crate) fn attr_through(
        &self,
        at: Pos,
        c: Link<'_>,
        follow: bool,
        links: &mut u32,
        attr: &mut Attr,
    ) -> std::result::Result<(), Stop> {
        let (before, mut buffer) = (*links, [0; TARGET_MAX]);
        let target = self.target_of(at, c, true, links, &mut buffer, &mut NoTrail)?;
        let end = self
            .last_of_target(at, c, target, links)
            .and_then(|(at, last)| self.attr_of_end(at, last, target.len(), follow, links, attr));
        end.map_err(|stop| before_link(stop, at, c, before, links))
    }

    /// The inode to which the link `c` in `at` leads, as the last component.
    #[cold]
    #[inline(never)]
    pub(crate) fn end_through<'p>(
        &self,
        at: Pos,
        c: Link<'_>,
        goal: Goal,
        links: &mut u32,
    ) -> std::result::Result<Seen<'p>, Stop> {
        let (before, mut buffer) = (*links, [0; TARGET_MAX]);
        let target = self.target_of(at, c, true, links, &mut buffer, &mut NoTrail)?;
        let end = self.last_of_target(at, c, target, links).and_then(|(at, last)| {
            match self.end_of(at, last, goal, links)? {
                Seen::Child(at, child) => Ok(Seen::Child(at, child)),
                Seen::Node(at) | Seen::Parent { pos: at, .. } => Ok(Seen::Node(at)),
            }
        });
        end.map_err(|stop| before_link(stop, at, c, before, links))
    }

    /// Copies the target of the link `c` in `at`, and counts the link. `last`: it is the last component of its path.
    fn target_of<'b, M: Mark>(
        &self,
        at: Pos,
        c: Link<'_>,
        last: bool,
        links: &mut u32,
        buffer: &'b mut [u8; TARGET_MAX],
        trail: &mut M,
    ) -> std::result::Result<&'b [u8], Stop> {
        let vfs = self.vfs;
        let bail = || Stop::BailAt(Bail::Symlink, at, c.start);
        // Read before the position is checked together with the link.
        let dir = vfs.cache.perm(at);
        let child = self.find(at, c.name, c.start)?;
        if child.fmt() != mode::S_IFLNK {
            return Err(Stop::Bail(Bail::Dentry));
        }
        let Some(found) = vfs.cache.child_target(at, &child, now_coarse, buffer)? else {
            return Err(bail());
        };
        let target = &buffer[..found.len];
        may_be_one_more(*links).map_err(Stop::Final)?;
        if last {
            self.may_follow_at(at, dir, &found.attr)?.then_some(()).ok_or_else(bail)?;
        }
        leads_somewhere(target).map_err(Stop::Final)?;
        // Only the walk with references knows the control directory.
        if vfs.may_mean_control(target) {
            return Err(bail());
        }
        *links += 1;
        match found.link {
            Some(link) => trail.add_link(link),
            None => trail.spoil(),
        }
        Ok(target)
    }

    /// The rule for the last link of a path. False: it is left to the walk with references, because attributes that may
    /// be stale neither forbid nor permit.
    fn may_follow_at(&self, at: Pos, dir: Perm, link: &Attr) -> std::result::Result<bool, Stop> {
        let rules = self.vfs.protected;
        if !rules.symlinks || self.cred.uid == link.uid {
            return Ok(true);
        }
        if self.vfs.cache.is_stale(at) || !self.vfs.cache.believed(at) {
            return Ok(false);
        }
        permission::may_follow(rules, self.cred, dir, link).map(|()| true).map_err(Stop::Final)
    }

    /// The directory of the last component of a target, and that component. It has a slash after it if the link has.
    fn last_of_target<'t>(
        &self,
        at: Pos,
        link: Link<'_>,
        target: &'t [u8],
        links: &mut u32,
    ) -> std::result::Result<(Pos, Option<Component<'t>>), Stop> {
        let (dirs, last) = split(target);
        let (start, rest) = self.target_start(at, target, dirs, &mut NoTrail)?;
        let end = if rest.is_empty() { start } else { self.walk_to_end(start, rest, links)? };
        Ok((end, last.map(|c| Component { slash: c.slash || link.slash, ..c })))
    }

    /// The directory in which the walk of `dirs`, the front part of a target, begins, and the rest of `dirs`. A
    /// relative one often begins with `..`; the rest is then often that of another path too.
    fn target_start<'t, M: Mark>(
        &self,
        at: Pos,
        target: &[u8],
        dirs: &'t [u8],
        trail: &mut M,
    ) -> std::result::Result<(Pos, &'t [u8]), Stop> {
        if target.starts_with(b"/") {
            let root = self.begin(self.root)?;
            trail.add(root);
            self.without_name(root, 0, trail)?;
            return Ok((root, dirs));
        }
        let (mut at, mut offset) = (at, 0);
        while let Some(c) = component(dirs, offset).filter(|c| c.kind != Kind::Name) {
            if !self.may_search(at) {
                return Err(self.denied(at, 0));
            }
            if c.kind == Kind::DotDot {
                // The way out of a mount reads the mount point, which is no position of the walk.
                if M::KEPT && self.vfs.mounts.is_mounted_root(at.id()) {
                    trail.spoil();
                }
                at = self.up(at)?;
                trail.add(at);
                self.without_name(at, 0, trail)?;
            }
            offset = c.next;
        }
        Ok((at, &dirs[offset..]))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_link_is_replaced_by_its_target() {
        for (path, at, target, want) in [
            ("a/link", 2, "t", "t"),
            ("a/link/", 2, "t", "t/"),
            ("a/link//b", 2, "t", "t/b"),
            ("link/b/", 0, "/x/", "/x//b/"),
        ] {
            let c = component(path.as_bytes(), at).unwrap();
            let text = replaced(target.as_bytes().to_vec(), path.as_bytes(), c);
            assert_eq!(String::from_utf8(text).unwrap(), want, "{path}");
        }
    }
}
