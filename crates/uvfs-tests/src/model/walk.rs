//! Walks from paths to nodes, and permission checks.

use rustix::io::Errno;

use super::{Answer, EXEC, Ino, Kind, Model, ROOT, S_ISVTX, Stop, WRITE, err};
use crate::ops::{At, Who};

/// Links followed in one walk.
const MAX_LINKS: u32 = 40;

/// The kind of a path's end.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum End {
    Name,
    Dot,
    DotDot,
    Root,
}

/// A path up to its last component, which is not looked up.
pub(super) struct Last {
    pub dir: Ino,
    pub name: Vec<u8>,
    pub end: End,
    /// Whether slashes follow the last component.
    pub slash: bool,
}

impl Model {
    /// Whether `who` may; mask of READ, WRITE, EXEC.
    pub(super) fn may(&self, who: Who, ino: Ino, mask: u32) -> bool {
        let node = self.node(ino);
        let (uid, gid, groups) = who.ids();
        if uid == 0 {
            return mask & EXEC == 0 || node.is_dir() || node.mode & 0o111 != 0;
        }
        let shift = match () {
            () if node.uid == uid => 6,
            () if node.gid == gid || groups.contains(&node.gid) => 3,
            () => 0,
        };
        (node.mode >> shift) & mask == mask
    }

    pub(super) fn need(&self, who: Who, ino: Ino, mask: u32) -> Answer<()> {
        if self.may(who, ino, mask) { Ok(()) } else { err(Errno::ACCESS) }
    }

    pub(super) fn owns(&self, who: Who, ino: Ino) -> bool {
        who == Who::Root || who.ids().0 == self.node(ino).uid
    }

    pub(super) fn in_group(who: Who, gid: u32) -> bool {
        let (_, own, groups) = who.ids();
        own == gid || groups.contains(&gid)
    }

    pub(super) fn start(&self, at: &At) -> Answer<Ino> {
        let base = self.base(at)?;
        match at.path.len() {
            0 => err(Errno::NOENT),
            4096.. => err(Errno::NAMETOOLONG),
            _ => Ok(base),
        }
    }

    /// One name of one directory.
    pub(super) fn child(&self, dir: Ino, name: &[u8]) -> Answer<Option<Ino>> {
        if name.len() > 255 {
            return err(Errno::NAMETOOLONG);
        }
        Ok(self.entries(dir).get(name).copied())
    }

    pub(super) fn parent(&self, dir: Ino) -> Answer<Ino> {
        let node = self.node(dir);
        if node.nlink == 0 && self.habits.dead_dotdot_unspecified {
            return Err(Stop::Unspecified);
        }
        match node.kind {
            Kind::Dir { parent, .. } => Ok(parent),
            _ => err(Errno::NOTDIR),
        }
    }

    /// Walks all components but the last.
    pub(super) fn walk(&self, who: Who, from: Ino, path: &[u8], links: &mut u32) -> Answer<Last> {
        let mut dir = if path[0] == b'/' { ROOT } else { from };
        let parts: Vec<&[u8]> = path.split(|&b| b == b'/').filter(|p| !p.is_empty()).collect();
        let slash = path.ends_with(b"/");
        let Some((last, before)) = parts.split_last() else {
            return Ok(Last { dir, name: Vec::new(), end: End::Root, slash });
        };
        let enter = |dir| {
            if !self.node(dir).is_dir() {
                return err(Errno::NOTDIR);
            }
            self.need(who, dir, EXEC)
        };
        for part in before {
            enter(dir)?;
            let next = match *part {
                b"." => dir,
                b".." => self.parent(dir)?,
                name => self.child(dir, name)?.ok_or(Errno::NOENT)?,
            };
            dir = self.follow(who, dir, next, links)?;
        }
        enter(dir)?;
        let end = match *last {
            b"." => End::Dot,
            b".." => End::DotDot,
            _ => End::Name,
        };
        Ok(Last { dir, name: last.to_vec(), end, slash })
    }

    /// The target of `ino`, found in `dir`, if it is a symbolic link.
    fn follow(&self, who: Who, dir: Ino, ino: Ino, links: &mut u32) -> Answer<Ino> {
        let Kind::Link(target) = &self.node(ino).kind else { return Ok(ino) };
        *links += 1;
        if *links > MAX_LINKS {
            return err(Errno::LOOP);
        }
        let last = self.walk(who, dir, target, links)?;
        self.finish(who, &last, true, links)
    }

    /// Looks up the last component.
    pub(super) fn finish(&self, who: Who, last: &Last, follow: bool, links: &mut u32) -> Answer<Ino> {
        let ino = match last.end {
            End::Root | End::Dot => last.dir,
            End::DotDot => self.parent(last.dir)?,
            End::Name => {
                let ino = self.child(last.dir, &last.name)?.ok_or(Errno::NOENT)?;
                if follow || last.slash { self.follow(who, last.dir, ino, links)? } else { ino }
            }
        };
        if last.slash && !self.node(ino).is_dir() {
            return err(Errno::NOTDIR);
        }
        Ok(ino)
    }

    /// The node at a path.
    pub(super) fn resolve(&self, who: Who, at: &At, follow: bool) -> Answer<Ino> {
        let from = self.start(at)?;
        let mut links = 0;
        let last = self.walk(who, from, &at.path, &mut links)?;
        self.finish(who, &last, follow, &mut links)
    }

    /// A path at which nothing exists yet.
    pub(super) fn vacant(&self, who: Who, at: &At, for_dir: bool) -> Answer<Last> {
        let last = self.walk(who, self.start(at)?, &at.path, &mut 0)?;
        if last.end != End::Name || self.child(last.dir, &last.name)?.is_some() {
            return err(Errno::EXIST);
        }
        if last.slash && !for_dir {
            return err(Errno::NOENT);
        }
        Ok(last)
    }

    pub(super) fn may_create(&self, who: Who, dir: Ino) -> Answer<()> {
        if self.node(dir).nlink == 0 {
            return err(Errno::NOENT);
        }
        self.need(who, dir, WRITE | EXEC)
    }

    /// Whether `who` may remove `victim` from `dir`, as a directory or as something else.
    pub(super) fn may_delete(&self, who: Who, dir: Ino, victim: Ino, as_dir: bool) -> Answer<()> {
        self.need(who, dir, WRITE | EXEC)?;
        if self.node(dir).mode & S_ISVTX != 0 && !self.owns(who, victim) && !self.owns(who, dir) {
            return err(Errno::PERM);
        }
        match (as_dir, self.node(victim).is_dir()) {
            (true, false) => err(Errno::NOTDIR),
            (false, true) => err(Errno::ISDIR),
            _ => Ok(()),
        }
    }
}
