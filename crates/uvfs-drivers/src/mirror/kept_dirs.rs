//! Directories that are used again and again, such as one in which many files are made: their descriptors (O_PATH)
//! are kept while the source is watched.
//!
//! A kept descriptor tells which directory it is. It does not tell whether that is still below the source: the host
//! may have moved it out, and an event tells that later. So before each use the way to it is looked at, from the
//! source on ([`Mirror::kept_dir`]): statx(2) of each name below the directory above, which is kept too. While a
//! directory is held open, no other file gets its inode number. So the mount, the device, the number and the time of
//! birth tell whether the name leads to the kept directory. No symbolic link is followed. A mount on the name shows
//! another file. Its server is not asked if it is one of FUSE (`AT_STATX_DONT_SYNC`), and that of NFS only until the
//! mount is noticed. That is one call for each level, in place of three (openat2, name_to_handle_at, close).
//!
//! **A use against a move by the host.** If the move comes before the look at a name, the look finds no file or
//! another one, and the caller walks the path ([`Mirror::reach`]). If the move comes later, the call began before it.
//! The same holds for a directory that openat2(2) has just opened.
//!
//! **A use against a removal by the host.** The name is missing, or leads elsewhere, and the descriptor is closed. If
//! nobody uses the directory, the event of the removal closes it. Until then the host has the removed inode, and
//! inotify(7) does not report its end. An event about a name on the way closes all below it, as a removed subvolume
//! of Btrfs is there until its last directory is closed.
//!
//! **The first use against a removal**, by the host or the mirror itself, or against the end of the watch. The
//! descriptor is put among the kept ones, and then the way is looked at once more. If the removal comes before that
//! look, the look finds it. If it comes later, it finds the descriptor, and closes it.
//!
//! Only file systems of local disks and memory are treated so ([`are_told_apart`]), and never a mount
//! inside the source, which a descriptor would keep from being unmounted. A directory is kept at its second use in a
//! row, and closed when others are used more often. The mutex is a leaf and is held across no system call.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Weak};

use parking_lot::Mutex;
use rustix::fs::{AtFlags, StatxFlags, fstatfs, statx};
use rustix::path::Arg;
use uvfs::types::{Errno, Result, mode};

use super::Mirror;
use super::lend::is_plain;
use super::node::{Node, Place};
use super::reach::At;

/// The most directories, below the source, on the way to one that is kept, itself included. More looks cost as much as
/// walking the path.
const LEVELS: usize = 3;

/// Snapshots of bcachefs have the device, the numbers and the times of birth of their originals.
const BCACHEFS: u32 = 0xca45_1a4e;

/// Whether a [`HeldFile`] tells the files of this file system apart.
pub(super) fn are_told_apart(fd: impl AsFd) -> bool {
    is_plain(&fd) && fstatfs(fd).is_ok_and(|figures| figures.f_type as u32 != BCACHEFS)
}

/// Tells a file that is held open from all others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct HeldFile {
    mount: u64,
    device: (u32, u32),
    number: u64,
    birth: (i64, u32),
}

impl HeldFile {
    /// # Errors
    /// EOPNOTSUPP if the kernel does not tell the mount (before Linux 5.8); the host's errors.
    fn of(dir: impl AsFd, path: impl Arg, flags: AtFlags) -> Result<Self> {
        let asked = StatxFlags::INO | StatxFlags::BTIME | StatxFlags::MNT_ID;
        let stat = statx(dir, path, flags | AtFlags::NO_AUTOMOUNT | AtFlags::STATX_DONT_SYNC, asked)?;
        if stat.stx_mask & StatxFlags::MNT_ID.bits() == 0 {
            return Err(Errno::OPNOTSUPP);
        }
        Ok(Self {
            mount: stat.stx_mnt_id,
            device: (stat.stx_dev_major, stat.stx_dev_minor),
            number: stat.stx_ino,
            birth: (stat.stx_btime.tv_sec, stat.stx_btime.tv_nsec),
        })
    }
}

/// See the module.
pub(super) struct KeptDir {
    fd: OwnedFd,
    file: HeldFile,
    /// Also keeps the node's address from being used for another node.
    node: Weak<Node>,
}

impl KeptDir {
    fn is_of(&self, node: &Arc<Node>) -> bool {
        self.node.as_ptr() == Arc::as_ptr(node)
    }

    /// The directory is known as another node by now, or not at all.
    fn is_forgotten(&self) -> bool {
        self.node.strong_count() == 0
    }
}

impl AsFd for KeptDir {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// Places in which the last directories that were used are noted, by the remainder of their numbers.
const LAST: usize = 16;

#[derive(Default)]
struct State {
    last: [u64; LAST],
    /// Those that are used more often come later.
    kept: Vec<Arc<KeptDir>>,
}

/// See the module.
pub(super) struct KeptDirs {
    most: usize,
    state: Mutex<State>,
}

impl KeptDirs {
    /// For so many directories; none if these are too few for one way.
    pub(super) fn new(most: usize) -> Self {
        Self { most: if most < LEVELS { 0 } else { most }, state: Mutex::default() }
    }

    pub(super) fn len(&self) -> usize {
        self.state.lock().kept.len()
    }

    fn get(&self, node: &Arc<Node>) -> Option<Arc<KeptDir>> {
        if self.most == 0 || node.fmt() != mode::S_IFDIR {
            return None;
        }
        let mut state = self.state.lock();
        let at = state.kept.iter().position(|kept| kept.is_of(node))?;
        let kept = Arc::clone(&state.kept[at]);
        if at + 1 < state.kept.len() {
            state.kept.swap(at, at + 1);
        }
        Some(kept)
    }

    /// Whether the use of a node is the second in a row among those that have the same place in `last`.
    fn is_again(&self, node: &Node) -> bool {
        let at = (node.number % LAST as u64) as usize;
        self.most > 0 && std::mem::replace(&mut self.state.lock().last[at], node.number) == node.number
    }

    fn keep(&self, kept: Arc<KeptDir>) {
        let mut state = self.state.lock();
        let is_same = |old: &Arc<KeptDir>| old.is_forgotten() || old.node.ptr_eq(&kept.node);
        let mut gone: Vec<_> = state.kept.extract_if(.., |old| is_same(old)).collect();
        if state.kept.len() >= self.most {
            gone.push(state.kept.remove(0));
        }
        state.kept.push(kept);
        drop(state);
        // Closed outside the lock.
        drop(gone);
    }

    /// Closes those that `which` names. A thread that uses one at this moment closes it later.
    fn forget(&self, which: impl Fn(&KeptDir) -> bool) {
        let mut state = self.state.lock();
        let gone: Vec<_> = state.kept.extract_if(.., |kept| which(kept)).collect();
        drop(state);
        drop(gone);
    }

    /// A directory was removed.
    pub(super) fn forget_node(&self, node: &Arc<Node>) {
        self.forget(|kept| kept.is_of(node) || kept.is_forgotten());
    }

    /// A name leads elsewhere. `root`: the number of the source's beginning.
    pub(super) fn forget_name(&self, root: u64, dir: u64, name: &[u8]) {
        let mut gone = self.state.lock().kept.clone();
        gone.retain(|kept| kept.node.upgrade().is_none_or(|node| leads_through(&node, root, dir, name)));
        if !gone.is_empty() {
            self.forget(|kept| gone.iter().any(|gone| std::ptr::eq(&**gone, kept)));
        }
    }

    /// Anything may have changed.
    pub(super) fn forget_all(&self) {
        self.forget(|_| true);
    }
}

/// Whether the way to a directory leads through a name, or is not known.
fn leads_through(node: &Node, root: u64, dir: u64, name: &[u8]) -> bool {
    let mut place = node.place();
    for _ in 0..LEVELS {
        let Some(at) = place else { return true };
        if at.dir.number == dir && *at.name == *name {
            return true;
        }
        if at.dir.number == root {
            return false;
        }
        place = at.dir.place();
    }
    true
}

impl Mirror {
    /// The descriptor that is kept of a directory, if the directory is below the source.
    pub(super) fn kept_dir(&self, node: &Arc<Node>) -> Option<Arc<KeptDir>> {
        self.kept_below(node, LEVELS)
    }

    fn kept_below(&self, node: &Arc<Node>, levels: usize) -> Option<Arc<KeptDir>> {
        let kept = self.dirs.get(node).filter(|_| levels > 0)?;
        let Place { dir, name } = node.place()?;
        let flags = AtFlags::SYMLINK_NOFOLLOW;
        let seen = if dir.number == self.root_number() {
            HeldFile::of(self.base.open().ok()?, &*name, flags)
        } else {
            HeldFile::of(&self.kept_below(&dir, levels - 1)?.fd, &*name, flags)
        };
        if seen != Ok(kept.file) {
            self.dirs.forget_node(node);
            return None;
        }
        Some(kept)
    }

    /// Keeps the descriptor of a directory that was found at its place, if the directory is used again and again.
    pub(super) fn keep_dir(&self, node: &Arc<Node>, fd: OwnedFd) -> At<'_> {
        let wanted = node.fmt() == mode::S_IFDIR && self.coherence.watches() && self.dirs.is_again(node);
        match wanted.then(|| self.way_is_kept(node)) {
            Some(true) => self.keep(node, fd),
            _ => At::Own(fd),
        }
    }

    fn keep(&self, node: &Arc<Node>, fd: OwnedFd) -> At<'_> {
        let Ok(file) = HeldFile::of(&fd, c"", AtFlags::EMPTY_PATH) else { return At::Own(fd) };
        let kept = Arc::new(KeptDir { fd, file, node: Arc::downgrade(node) });
        self.dirs.keep(Arc::clone(&kept));
        if self.kept_dir(node).is_none() || !self.coherence.watches() {
            self.dirs.forget_node(node);
        }
        At::Dir(kept)
    }

    /// Whether all directories above this one are kept from now on, and few enough.
    fn way_is_kept(&self, node: &Node) -> bool {
        let mut way = Vec::new();
        let mut above = node.place().map(|place| place.dir);
        while let Some(dir) = above.filter(|dir| dir.number != self.root_number()) {
            if way.len() + 1 >= LEVELS {
                return false;
            }
            above = dir.place().map(|place| place.dir);
            way.push(dir);
        }
        // From the source on: the look at one needs those above.
        way.iter().rev().all(|dir| {
            if self.dirs.get(dir).is_none() {
                let Some(fd) = self.look_for(dir) else { return false };
                self.keep(dir, fd);
            }
            true
        })
    }
}
