//! The tree on the host: names, attributes and handles are looked up here.
//!
//! All looks go through a mount of our own, a private copy of the one that the tree is on, which nothing is mounted
//! on. So they show what mounts inside the tree cover, and the names are those of one file system: the one whose
//! events are read. The directory is also kept open on the mount that users see. So unmounting it fails with EBUSY
//! while the index is there, as for any program that works in it.
//!
//! Looking changes nothing, access times neither. Any thread may look.

mod covers;
mod sys;

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::fs::{AtFlags, CWD, Mode, OFlags, RawDir, Statx, StatxFlags, fstatvfs, openat, statx};
use rustix::io::Errno;
use rustix::mount::{OpenTreeFlags, open_tree};

pub(crate) use self::covers::Cover;
use self::covers::Covers;
use crate::snapshot::RootIdentity;
use crate::table::{FileFacts, HostHandle};

/// A directory tree of the host.
pub(crate) struct HostTree {
    path: PathBuf,
    /// Keeps the mount that users see busy.
    seen: OwnedFd,
    /// The root, on our own mount.
    root: OwnedFd,
    facts: FileFacts,
    handle: HostHandle,
    covers: Covers,
}

/// A name as a look found it.
pub(crate) struct FoundName {
    pub(crate) facts: FileFacts,
    /// Of a directory on the tree's file system.
    pub(crate) handle: Option<HostHandle>,
}

const LOOK: AtFlags = AtFlags::SYMLINK_NOFOLLOW.union(AtFlags::NO_AUTOMOUNT);
const LOOK_FOR: StatxFlags = StatxFlags::BASIC_STATS.union(StatxFlags::BTIME);

fn facts(from: &Statx) -> FileFacts {
    FileFacts {
        ino: from.stx_ino,
        dev: rustix::fs::makedev(from.stx_dev_major, from.stx_dev_minor),
        size: from.stx_size,
        blocks: from.stx_blocks,
        mtime: (from.stx_mtime.tv_sec, from.stx_mtime.tv_nsec),
        ctime: (from.stx_ctime.tv_sec, from.stx_ctime.tv_nsec),
        nlink: from.stx_nlink,
        uid: from.stx_uid,
        gid: from.stx_gid,
        mode: from.stx_mode,
        birth: birth(from),
    }
}

/// See [`FileFacts::birth`].
fn birth(from: &Statx) -> u32 {
    if from.stx_mask & StatxFlags::BTIME.bits() == 0 {
        return 0;
    }
    let time = from.stx_btime;
    // Files that are born one after the other differ in both parts.
    (time.tv_sec as u32).wrapping_mul(0x9e37_79b1).wrapping_add(time.tv_nsec).max(1)
}

fn facts_at(dir: BorrowedFd<'_>, name: &[u8]) -> Result<FileFacts, Errno> {
    Ok(facts(&statx(dir, name, LOOK, LOOK_FOR)?))
}

/// The attributes of an open file.
pub(crate) fn facts_of(fd: BorrowedFd<'_>) -> Result<FileFacts, Errno> {
    Ok(facts(&statx(fd, c"", AtFlags::EMPTY_PATH, LOOK_FOR)?))
}

/// Says why a step failed; if it was not allowed, the capability that it needs.
fn refused(what: &str, capability: &str, errno: Errno) -> String {
    match errno {
        Errno::PERM => format!("{what}: this needs the capability {capability}"),
        errno => format!("{what}: {errno}"),
    }
}

impl HostTree {
    /// The tree below a directory.
    ///
    /// # Errors
    /// A phrase that says what failed, and the capability that is missing.
    pub(crate) fn open(path: &Path) -> Result<Self, String> {
        const SEARCH: &str = "CAP_DAC_READ_SEARCH";
        let opens = |errno| refused("it cannot be opened", SEARCH, errno);
        let copies = |errno| refused("its file system cannot be watched", "CAP_SYS_ADMIN", errno);
        let looks = |errno| refused("its attributes cannot be read", SEARCH, errno);
        let handles = |errno| refused("its files cannot be opened by handle", SEARCH, errno);
        let dir = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let seen = openat(CWD, path, dir, Mode::empty()).map_err(opens)?;
        let copy =
            OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC | OpenTreeFlags::AT_EMPTY_PATH;
        let mount = open_tree(&seen, c"", copy).map_err(copies)?;
        sys::make_private(mount.as_fd()).map_err(copies)?;
        // Not O_PATH, which older kernels do not take as the mount of a handle.
        let root = openat(&mount, c".", dir, Mode::empty()).map_err(opens)?;
        let facts = facts_of(root.as_fd()).map_err(looks)?;
        let handle = sys::handle(root.as_fd()).map_err(handles)?;
        let covers = Covers::new().map_err(|errno| format!("the table of mounts cannot be read: {errno}"))?;
        let tree = Self { path: path.to_owned(), seen, root, facts, handle, covers };
        let again = tree.open_handle(&tree.handle).map_err(handles)?;
        match facts_of(again.as_fd()) {
            Ok(found) if (found.ino, found.dev) == (facts.ino, facts.dev) => Ok(tree),
            _ => Err("the file system's handles lead to other files".into()),
        }
    }

    /// The path that the tree was opened by.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// The root, on the mount that users see.
    pub(crate) fn seen(&self) -> BorrowedFd<'_> {
        self.seen.as_fd()
    }

    pub(crate) fn root_handle(&self) -> &HostHandle {
        &self.handle
    }

    /// The attributes of the root.
    pub(crate) fn root_facts(&self) -> Result<FileFacts, Errno> {
        facts_of(self.root.as_fd())
    }

    /// The names inside the tree that other mounts cover at this moment.
    ///
    /// # Errors
    /// Of reading the table of mounts.
    pub(crate) fn covers(&self) -> Result<Arc<[Cover]>, Errno> {
        self.covers.of(self.seen())
    }

    /// The identity of the root, the same in another run.
    pub(crate) fn root_identity(&self) -> Result<RootIdentity, Errno> {
        let system = fstatvfs(&self.root)?.f_fsid;
        Ok(RootIdentity::new(self.handle.as_bytes(), self.facts.ino, self.facts.dev, system))
    }

    /// Whether the path still leads to the root: it may have been renamed, unmounted or mounted over.
    pub(crate) fn is_there(&self) -> bool {
        let now = statx(CWD, &self.path, AtFlags::NO_AUTOMOUNT, StatxFlags::BASIC_STATS);
        let known = self.root_facts();
        let same = |now: &Statx| facts(now).ino == self.facts.ino && facts(now).dev == self.facts.dev;
        now.is_ok_and(|now| same(&now)) && known.is_ok_and(|known| known.nlink > 0)
    }

    /// Opens a file for looks only, by its handle.
    ///
    /// # Errors
    /// ESTALE if it is gone.
    pub(crate) fn open_handle(&self, handle: &HostHandle) -> Result<OwnedFd, Errno> {
        sys::open_by_handle(self.root.as_fd(), handle, libc::O_PATH | libc::O_NOFOLLOW)
    }

    /// The present state of a name. ENOENT is `None`.
    ///
    /// # Errors
    /// EAGAIN if the name changed at that moment: an event of that comes. Others as of statx(2).
    pub(crate) fn look(&self, dir: BorrowedFd<'_>, name: &[u8]) -> Result<Option<FoundName>, Errno> {
        let facts = match facts_at(dir, name) {
            Err(Errno::NOENT) => return Ok(None),
            facts => facts?,
        };
        if !facts.is_dir() || facts.dev != self.facts.dev {
            return Ok(Some(FoundName { facts, handle: None }));
        }
        // Attributes and handle of one directory, whatever the name leads to meanwhile.
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let fd = match openat(dir, name, flags, Mode::empty()) {
            Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => return Err(Errno::AGAIN),
            fd => fd?,
        };
        let facts = facts_of(fd.as_fd())?;
        Ok(Some(FoundName { facts, handle: Some(sys::handle(fd.as_fd())?) }))
    }

    /// Opens a directory to list it, by its handle.
    ///
    /// # Errors
    /// ESTALE if it is gone.
    pub(crate) fn open_dir(&self, handle: &HostHandle) -> Result<OwnedFd, Errno> {
        let open =
            |more| sys::open_by_handle(self.root.as_fd(), handle, libc::O_RDONLY | libc::O_DIRECTORY | more);
        match open(libc::O_NOATIME) {
            // Another user's, and we have no CAP_FOWNER: then its access time moves.
            Err(Errno::PERM) => open(0),
            opened => opened,
        }
    }
}

/// The path of an open directory, as it is now.
fn directory(fd: BorrowedFd<'_>) -> Result<PathBuf, Errno> {
    use std::os::fd::AsRawFd;
    let path = std::fs::read_link(format!("/proc/self/fd/{}", fd.as_raw_fd()));
    path.map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::IO))
}

/// A name in a directory, with its inode number.
pub(crate) type ListedName = (u64, Box<[u8]>);

/// The names in an open directory.
///
/// # Errors
/// As of getdents64(2).
pub(crate) fn list(dir: BorrowedFd<'_>, buffer: &mut Vec<u8>) -> Result<Vec<ListedName>, Errno> {
    let mut names = Vec::new();
    let mut entries = RawDir::new(dir, buffer.spare_capacity_mut());
    while let Some(entry) = entries.next() {
        let entry = entry?;
        let name = entry.file_name().to_bytes();
        if name != b"." && name != b".." {
            names.push((entry.ino(), name.into()));
        }
    }
    Ok(names)
}
