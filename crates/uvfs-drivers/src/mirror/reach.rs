//! From a node to its file: a path below the source, opened without leaving it, and the file compared with the node.
//!
//! Every access begins here. The path is put together from the places where the node and its directories were last
//! seen. openat2(2) opens it from the beginning of the mirror (see `root`): it follows no symbolic link, and reaches
//! nothing above that or on another mount. The file there is compared with the node's identity. So a file or
//! directory that has replaced another one is not taken for it: the answer is ESTALE, and the cache forgets the name
//! that led there. The result is an O_PATH descriptor, which is used for this operation and closed. Those of some
//! directories are kept, and compared in another way (`kept_dirs`).
//!
//! Opening a regular file to read or write it takes one call less. The file is opened at once, in the same way and no
//! further than below the source, and compared afterwards ([`Mirror::open_directly`]).
//!
//! A path of more than 4095 bytes is opened in parts.

use std::ffi::OsStr;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;

use rustix::fs::{Mode, OFlags, ResolveFlags, open, openat, openat2};
use rustix::path::DecInt;
use uvfs::Inode;
use uvfs::types::{Errno, Op, Result, mode};

use super::Mirror;
use super::file::{Opened, again};
use super::identity;
use super::kept_dirs::KeptDir;
use super::moves::WALKS;
use super::node::{Node, Place};
use super::root::path_of;

/// Longest path that is opened in one call.
const PART: usize = 4000;
/// The most components of a path. More are those of a circle, which places can form for a moment while the host moves
/// directories.
const DEPTH: usize = 1 << 17;

/// The most levels that are looked at, one by one, to find the name that leads elsewhere.
const LEVELS: usize = 1 << 10;

/// A descriptor of a node.
pub(super) enum At<'m> {
    Root(BorrowedFd<'m>),
    Own(OwnedFd),
    /// That of a file that somebody has open, or that is still known though it has no name.
    Kept(Arc<Opened>),
    /// That of a directory that is used again and again.
    Dir(Arc<KeptDir>),
}

impl AsFd for At<'_> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Root(fd) => *fd,
            Self::Own(fd) => fd.as_fd(),
            Self::Kept(open) => open.fd.as_fd(),
            Self::Dir(kept) => kept.as_fd(),
        }
    }
}

/// The directory in which the kernel finds open files again, even if their names change: `/proc/self/fd`. It is kept
/// open to save a walk to it each time. It is that of the process that opened it.
pub(super) struct Links(OwnedFd);

impl Links {
    /// # Errors
    /// There is no such directory.
    pub(super) fn new() -> Result<Self> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        open(c"/proc/self/fd", flags, Mode::empty()).map(Self)
    }

    /// The name of an open file in it. To be used while the file is open.
    pub(super) fn name(fd: impl AsFd) -> DecInt {
        DecInt::from_fd(fd)
    }

    /// Opens the file behind a descriptor anew.
    pub(super) fn open(&self, fd: impl AsFd, flags: OFlags) -> Result<OwnedFd> {
        openat(self, Self::name(fd), flags | OFlags::CLOEXEC | OFlags::NOCTTY, Mode::empty())
    }
}

impl AsFd for Links {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// The path under which the kernel finds an open file again, for calls that take only paths.
pub(super) fn proc_path(fd: impl AsFd) -> String {
    format!("/proc/self/fd/{}", fd.as_fd().as_raw_fd())
}

/// Opens the file at `path` below `dir` itself: a symbolic link is opened, not followed.
pub(super) fn open_below(dir: impl AsFd, path: &[u8], flags: OFlags) -> Result<OwnedFd> {
    resolve(dir, path, flags | OFlags::PATH, ResolveFlags::NO_XDEV)
}

/// [`open_below`], across mounts of other file systems on the way.
pub(super) fn open_across(dir: impl AsFd, path: &[u8], flags: OFlags) -> Result<OwnedFd> {
    resolve(dir, path, flags | OFlags::PATH, ResolveFlags::empty())
}

fn resolve(dir: impl AsFd, path: &[u8], flags: OFlags, how: ResolveFlags) -> Result<OwnedFd> {
    let how = how | ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
    let flags = flags | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    openat2(dir, OsStr::from_bytes(path), flags, Mode::empty(), how)
}

fn add_component(path: &mut Vec<u8>, name: &[u8]) {
    if !path.is_empty() {
        path.push(b'/');
    }
    path.extend_from_slice(name);
}

/// Whether a failure means that a place has changed.
pub(super) fn moved(errno: Errno) -> bool {
    matches!(
        errno,
        Errno::NOENT | Errno::NOTDIR | Errno::LOOP | Errno::XDEV | Errno::STALE | Errno::NAMETOOLONG
    )
}

impl Mirror {
    /// The node behind an inode of the cache.
    pub(super) fn node(&self, inode: &Inode<'_>) -> Result<Arc<Node>> {
        self.table.of(inode.ino()).ok_or(Errno::STALE)
    }

    /// A node whose file is to be changed, and its file: in the source, or without a name anywhere. A file that was
    /// moved out of the source is not changed through the mirror, even if somebody has it open. EROFS for a mount
    /// inside the source.
    pub(super) fn reach_inode(&self, inode: &Inode<'_>) -> Result<(Arc<Node>, At<'_>)> {
        let node = self.node(inode)?;
        if node.covered() {
            return Err(Errno::ROFS);
        }
        let at = match self.reach(&node) {
            Err(Errno::STALE) => {
                let open = node.find_open(|_| true).ok_or(Errno::STALE)?;
                if identity::attr(&open.fd)?.nlink != 0 {
                    return Err(Errno::STALE);
                }
                At::Kept(open)
            }
            at => at?,
        };
        Ok((node, at))
    }

    /// The file of a node.
    ///
    /// # Errors
    /// ESTALE if it is at none of its places; the host's errors. A rename by the mirror itself causes no ESTALE,
    /// unless the host takes long over it: see `moves`.
    pub(super) fn reach(&self, node: &Arc<Node>) -> Result<At<'_>> {
        if node.number == self.root_number() {
            return self.base.open();
        }
        if let Some(kept) = self.kept_dir(node) {
            return Ok(At::Dir(kept));
        }
        let mut ended = self.moves.ended();
        let (mut found, mut wrong) = self.try_places(node)?;
        if found.is_none() && self.moves.may_have_crossed(ended) {
            let _stopped = self.moves.stop();
            for _ in 0..WALKS {
                ended = self.moves.ended();
                (found, wrong) = self.try_places(node)?;
                if found.is_some() || !self.moves.may_have_crossed(ended) {
                    break;
                }
            }
        }
        for place in &wrong {
            self.mark_name_stale(&place.dir, &place.name);
            self.mark_path_stale(&place.dir);
        }
        found.map(|fd| self.keep_dir(node, fd)).ok_or(Errno::STALE)
    }

    /// The file of a node if it is at one of its places.
    pub(super) fn look_for(&self, node: &Arc<Node>) -> Option<OwnedFd> {
        self.try_places(node).ok()?.0
    }

    /// The node's file, and the places that it was not at.
    fn try_places(&self, node: &Arc<Node>) -> Result<(Option<OwnedFd>, Vec<Place>)> {
        let mut wrong = Vec::new();
        if let Some(place) = node.place() {
            if let Some(fd) = self.try_place(node, &place)? {
                return Ok((Some(fd), wrong));
            }
            wrong.push(place);
            for place in node.other_places() {
                if let Some(fd) = self.try_place(node, &place)? {
                    node.seen_at(place, true);
                    return Ok((Some(fd), wrong));
                }
                wrong.push(place);
            }
        }
        Ok((self.ask_open_file(node)?, wrong))
    }

    /// The node's file if it is at this place.
    fn try_place(&self, node: &Node, place: &Place) -> Result<Option<OwnedFd>> {
        // If the cache has let go of a directory and found it again, there is a newer node than the one that the
        // place names. The newer one knows its present place.
        for newest in [false, true] {
            match self.open_place(place, newest) {
                Ok(fd) if identity::is(&node.id, &fd)? => return Ok(Some(fd)),
                Ok(_) => {}
                Err(errno) if moved(errno) => {}
                Err(errno) => return Err(errno),
            }
        }
        Ok(None)
    }

    /// The path to a directory may be another one now. The highest name on it that leads elsewhere is forgotten. So
    /// the next walk notices there, and not level by level from below. Costs a look at each level, from above.
    fn mark_path_stale(&self, below: &Arc<Node>) {
        let newest = |dir: &Arc<Node>| self.table.of(dir.number).unwrap_or_else(|| Arc::clone(dir));
        let mut way = Vec::new();
        let mut dir = newest(below);
        while dir.number != self.root_number() {
            let Some(place) = dir.place().filter(|_| way.len() < LEVELS) else { return };
            let above = newest(&place.dir);
            way.push((place, dir));
            dir = above;
        }
        let mut base = None;
        for (place, dir) in way.iter().rev() {
            match self.open_part(base.as_ref(), &place.name, OFlags::DIRECTORY) {
                Ok(fd) if identity::is(&dir.id, &fd).unwrap_or(false) => base = Some(fd),
                Err(errno) if !moved(errno) => return,
                _ => return self.mark_name_stale(&place.dir, &place.name),
            }
        }
    }

    fn open_place(&self, place: &Place, newest: bool) -> Result<OwnedFd> {
        let components = self.components(place, newest)?;
        let mut path = Vec::with_capacity(256);
        let mut base = None;
        for name in components.iter().rev() {
            if path.len() + name.len() >= PART {
                base = Some(self.open_part(base.as_ref(), &path, OFlags::DIRECTORY)?);
                path.clear();
            }
            add_component(&mut path, name);
        }
        self.open_part(base.as_ref(), &path, OFlags::empty())
    }

    /// The names that lead to a place, from below.
    fn components(&self, place: &Place, newest: bool) -> Result<Vec<Box<[u8]>>> {
        let mut components = vec![place.name.clone()];
        let mut dir = Arc::clone(&place.dir);
        while dir.number != self.root_number() {
            if components.len() > DEPTH {
                return Err(Errno::STALE);
            }
            if newest {
                dir = self.table.of(dir.number).unwrap_or(dir);
            }
            let up = dir.place().ok_or(Errno::STALE)?;
            components.push(up.name);
            dir = up.dir;
        }
        Ok(components)
    }

    /// Opens a regular file in the caller's name where it was last seen, without looking at it first. None if that
    /// fails for any reason, or if it is not the node's file: then [`Mirror::reach`] finds the cause.
    ///
    /// If the host has replaced that file by another one, this opens the other for a moment, as any user of the host
    /// could just then. It does so in the name and with the rights of the caller, and without waiting. It never makes
    /// or truncates a file.
    pub(super) fn open_directly(&self, op: &Op, node: &Node, how: OFlags) -> Option<OwnedFd> {
        let components = self.components(&node.place()?, false).ok()?;
        let mut path = Vec::with_capacity(256);
        components.iter().rev().for_each(|name| add_component(&mut path, name));
        // Other owners are judged by the file, which is not known yet.
        if path.len() > PART || node.covered() || self.owners.is_some() {
            return None;
        }
        let base = self.base.open().ok()?;
        let flags = how | OFlags::NONBLOCK | OFlags::NOCTTY;
        let acting = self.server.act_as(&op.cred).ok()?;
        let opened = again(|| resolve(&base, &path, flags, ResolveFlags::NO_XDEV));
        drop(acting);
        opened.ok().filter(|fd| identity::is(&node.id, fd).unwrap_or(false))
    }

    fn open_part(&self, base: Option<&OwnedFd>, path: &[u8], flags: OFlags) -> Result<OwnedFd> {
        match base {
            Some(base) => open_below(base, path, flags),
            None => open_below(self.base.open()?, path, flags),
        }
    }

    /// The kernel knows the path of an open file, even if the host has moved the file. The path is a hint: it is
    /// opened below the source like any other.
    fn ask_open_file(&self, node: &Node) -> Result<Option<OwnedFd>> {
        let Some(open) = node.find_open(|_| true) else { return Ok(None) };
        let base = self.base.open()?;
        let (Ok(source), Ok(file)) = (path_of(&base), path_of(&open.fd)) else { return Ok(None) };
        let Ok(below) = file.strip_prefix(&source).map(Path::to_owned) else { return Ok(None) };
        self.open_hint(node, &base, &below)
    }

    fn open_hint(&self, node: &Node, base: &At<'_>, below: &Path) -> Result<Option<OwnedFd>> {
        match open_below(base, below.as_os_str().as_bytes(), OFlags::empty()) {
            Ok(fd) if identity::is(&node.id, &fd)? => Ok(Some(fd)),
            Ok(_) => Ok(None),
            Err(errno) if moved(errno) => Ok(None),
            Err(errno) => Err(errno),
        }
    }

    /// The name in a directory may lead elsewhere: the cache asks again.
    pub(super) fn mark_name_stale(&self, dir: &Node, name: &[u8]) {
        self.with_cached(dir.number, mode::S_IFDIR, |inode| inode.cache().invalidate(inode, name));
    }

    /// Opens the file that has this name in a directory, O_PATH.
    pub(super) fn open_child(&self, dir: &At<'_>, name: &[u8]) -> Result<OwnedFd> {
        open_below(dir, name, OFlags::empty())
    }
}
