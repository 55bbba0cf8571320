//! The tree on the host: names, attributes and handles are looked up here.
//!
//! All looks go through a mount of our own, a private copy of the one that the tree is on, which nothing is mounted
//! on. So they show what mounts inside the tree cover, and the names are those of one file system: the one whose
//! events are read. The directory is also kept open on the mount that users see. So unmounting it fails with EBUSY
//! while the index is there, as for any program that works in it.
//!
//! Without capabilities there is no such mount, and no opening by handle: see [`reach`]. Then what users see is
//! looked at. A name that something is mounted on counts as one of another file system. Only its attributes are asked of that
//! one, within a bound: see [`elsewhere`]. Each directory is marked after
//! it is opened and before it is listed, so that each change of a name in it is either listed or has an event.
//!
//! Looking changes nothing, access times neither. Any thread may look.

mod covers;
mod elsewhere;
mod reach;
mod sys;

use std::hash::BuildHasher;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use foldhash::fast::RandomState;
use rustix::fs::{
    AtFlags, CWD, Mode, OFlags, RawDir, ResolveFlags, Statx, StatxFlags, fstatvfs, openat, openat2, statx,
};
use rustix::io::Errno;
use rustix::mount::{OpenTreeFlags, open_tree};
use uvfs_drivers::watch::DirectoryMarks;

use self::covers::Covers;
pub(crate) use self::covers::{Cover, Covered};
use self::elsewhere::Elsewhere;
pub(crate) use self::reach::Way;
use crate::scan::is_shortage;
use crate::snapshot::RootIdentity;
use crate::table::{FileFacts, HostHandle};

/// A directory tree of the host.
pub(crate) struct HostTree {
    path: PathBuf,
    /// Keeps the mount that users see busy.
    seen: OwnedFd,
    /// The root, on our own mount if there is one.
    root: OwnedFd,
    facts: FileFacts,
    handle: HostHandle,
    /// The number of the mount that users see. It is nobody else's while that is kept busy.
    mount: i32,
    covers: Covers,
    /// Without capabilities: the marks of the directories.
    marks: Option<DirectoryMarks>,
    hash: RandomState,
    /// For looks at its path.
    on_path: Elsewhere,
    /// For looks at mounts inside it.
    on_mounts: Elsewhere,
}

/// Why a tree cannot be opened.
pub(crate) struct Refused {
    /// A phrase that says what failed, and the capability that is missing.
    pub(crate) why: String,
    /// Whether it is for lack of a capability.
    pub(crate) is_for_root: bool,
}

impl From<String> for Refused {
    fn from(why: String) -> Self {
        Self { why, is_for_root: false }
    }
}

/// A name as a look found it.
pub(crate) struct FoundName {
    pub(crate) facts: FileFacts,
    /// Of a directory on the tree's file system.
    pub(crate) handle: Option<HostHandle>,
    /// Of another file, in a tree without capabilities: see [`HostTree::object`].
    pub(crate) object: Option<u64>,
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

/// The attributes of an open file.
pub(crate) fn facts_of(fd: BorrowedFd<'_>) -> Result<FileFacts, Errno> {
    Ok(facts(&statx(fd, c"", AtFlags::EMPTY_PATH, LOOK_FOR)?))
}

/// Says why a step failed; if it was not allowed, the capability that it needs.
fn refused(what: &str, capability: &str, errno: Errno) -> Refused {
    match errno {
        Errno::PERM => {
            Refused { why: format!("{what}: this needs the capability {capability}"), is_for_root: true }
        }
        errno => format!("{what}: {errno}").into(),
    }
}

const DIRECTORY: OFlags = OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::CLOEXEC);

impl HostTree {
    /// The tree below a directory.
    ///
    /// # Errors
    /// The step that failed.
    pub(crate) fn open(path: &Path) -> Result<Self, Refused> {
        const SEARCH: &str = "CAP_DAC_READ_SEARCH";
        let opens = |errno| refused("it cannot be opened", SEARCH, errno);
        let copies = |errno| refused("its file system cannot be watched", "CAP_SYS_ADMIN", errno);
        let handles = |errno| refused("its files cannot be opened by handle", SEARCH, errno);
        let seen = openat(CWD, path, DIRECTORY, Mode::empty()).map_err(opens)?;
        let copy =
            OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC | OpenTreeFlags::AT_EMPTY_PATH;
        let mount = open_tree(&seen, c"", copy).map_err(copies)?;
        sys::make_private(mount.as_fd()).map_err(copies)?;
        // Not O_PATH, which older kernels do not take as the mount of a handle.
        let root = openat(&mount, c".", DIRECTORY, Mode::empty()).map_err(opens)?;
        let tree = Self::of(path, seen, root)?;
        let by_handle = sys::open_by_handle(tree.root.as_fd(), &tree.handle, libc::O_PATH);
        match facts_of(by_handle.map_err(handles)?.as_fd()) {
            Ok(found) if (found.ino, found.dev) == (tree.facts.ino, tree.facts.dev) => Ok(tree),
            _ => Err("the file system's handles lead to other files".to_owned().into()),
        }
    }

    /// The same for a process without capabilities. [`HostTree::mark_with`] must follow before the tree is listed.
    ///
    /// # Errors
    /// The step that failed.
    pub(crate) fn open_by_path(path: &Path) -> Result<Self, Refused> {
        let opens = |errno: Errno| format!("it cannot be opened: {errno}");
        let seen = openat(CWD, path, DIRECTORY, Mode::empty()).map_err(opens)?;
        let root = openat(&seen, c".", DIRECTORY, Mode::empty()).map_err(opens)?;
        Self::of(path, seen, root)
    }

    fn of(path: &Path, seen: OwnedFd, root: OwnedFd) -> Result<Self, Refused> {
        let facts =
            facts_of(root.as_fd()).map_err(|errno| format!("its attributes cannot be read: {errno}"))?;
        let handle =
            sys::handle(root.as_fd()).map_err(|errno| format!("its file system has no handles: {errno}"))?;
        let covers = Covers::new().map_err(|errno| format!("the table of mounts cannot be read: {errno}"))?;
        let (_, mount) = sys::handle_and_mount(seen.as_fd())
            .map_err(|errno| format!("its file system has no handles: {errno}"))?;
        let (path, hash) = (path.to_owned(), RandomState::default());
        let (on_path, on_mounts) = Default::default();
        Ok(Self { path, seen, root, facts, handle, mount, covers, marks: None, hash, on_path, on_mounts })
    }

    /// Directories are opened by path from now on, and marked before they are listed.
    pub(crate) fn mark_with(&mut self, marks: DirectoryMarks) {
        self.marks = Some(marks);
    }

    /// Whether directories are opened by path. Then ESTALE does not mean that one is gone.
    pub(crate) fn is_by_path(&self) -> bool {
        self.marks.is_some()
    }

    /// Removes the marks of all directories: each gets one again when it is listed. Those that left the tree have marks
    /// that nobody needs.
    ///
    /// # Errors
    /// As of fanotify_mark(2).
    pub(crate) fn unmark_all(&self) -> Result<(), Errno> {
        self.marks.as_ref().map_or(Ok(()), |marks| marks.remove_all(self.root.as_fd()))
    }

    /// A number for a file that is no directory, made from its handle. Of different files, the numbers are different but for
    /// a chance of 2⁻⁶⁴.
    pub(crate) fn object(&self, handle: &HostHandle) -> u64 {
        self.hash.hash_one(handle.as_bytes())
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
    pub(crate) fn covers(&self) -> Result<Arc<Covered>, Errno> {
        self.covers.of(self.seen()).map(Arc::new)
    }

    /// The identity of the root, the same in another run.
    pub(crate) fn root_identity(&self) -> Result<RootIdentity, Errno> {
        let system = fstatvfs(&self.root)?.f_fsid;
        Ok(RootIdentity::new(self.handle.as_bytes(), self.facts.ino, self.facts.dev, system))
    }

    /// Whether the path still leads to the root: it may have been renamed, unmounted or mounted over. A file system on the path
    /// that does not answer proves nothing.
    pub(crate) fn is_there(&self) -> bool {
        if self.is_there_at_a_glance() {
            return self.root_facts().map_or_else(is_shortage, |root| root.nlink > 0);
        }
        let path = self.path.clone();
        let now = self.on_path.ask(move || statx(CWD, &path, AtFlags::NO_AUTOMOUNT, StatxFlags::BASIC_STATS));
        let Some(now) = now else { return true };
        leads_to(&self.facts, now.map(|now| facts(&now)), self.root_facts())
    }

    /// Opens a file for looks only, by its handle; a directory by its path where that is the way.
    ///
    /// # Errors
    /// ESTALE if it is gone. By path, also if it is not there at this moment.
    pub(crate) fn open_handle(&self, handle: &HostHandle, way: Way<'_>) -> Result<OwnedFd, Errno> {
        if self.is_by_path() {
            return reach::open(self.root.as_fd(), handle, way, OFlags::PATH);
        }
        sys::open_by_handle(self.root.as_fd(), handle, libc::O_PATH | libc::O_NOFOLLOW)
    }

    /// Whether the path leads to the root on its mount, as far as the kernel's dentry cache tells. Asks no file system, so it needs
    /// no bound.
    pub(crate) fn is_there_at_a_glance(&self) -> bool {
        let flags = OFlags::PATH | OFlags::CLOEXEC;
        let found = openat2(CWD, &self.path, flags, Mode::empty(), ResolveFlags::CACHED);
        let found = found.and_then(|found| sys::handle_and_mount(found.as_fd()));
        found.is_ok_and(|(handle, mount)| mount == self.mount && handle == self.handle)
    }

    /// The present state of a name. ENOENT is `None`.
    ///
    /// # Errors
    /// EAGAIN if the name changed at that moment: an event of that comes. By path, ETIMEDOUT if a mount there does not answer.
    /// Others as of statx(2).
    pub(crate) fn look(&self, dir: BorrowedFd<'_>, name: &[u8]) -> Result<Option<FoundName>, Errno> {
        if self.is_by_path() {
            return self.look_by_path(dir, name);
        }
        // Through the mount of our own, on which nothing is mounted.
        let seen = match statx(dir, name, LOOK, LOOK_FOR) {
            Err(Errno::NOENT) => return Ok(None),
            seen => facts(&seen?),
        };
        if seen.dev != self.facts.dev || !seen.is_dir() {
            return Ok(Some(FoundName { facts: seen, handle: None, object: None }));
        }
        // Attributes and handle of one directory, whatever the name leads to meanwhile.
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::DIRECTORY | OFlags::CLOEXEC;
        match openat(dir, name, flags, Mode::empty()) {
            Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => Err(Errno::AGAIN),
            fd => self.found(fd?.as_fd()).map(Some),
        }
    }

    /// The same on the mount that users see.
    fn look_by_path(&self, dir: BorrowedFd<'_>, name: &[u8]) -> Result<Option<FoundName>, Errno> {
        match open_here(dir, name) {
            Err(Errno::NOENT) => Ok(None),
            Err(Errno::XDEV) => self.look_at_mounted(dir, name),
            fd => self.found(fd?.as_fd()).map(Some),
        }
    }

    /// The attributes of an open file, and its handle if that is kept.
    fn found(&self, fd: BorrowedFd<'_>) -> Result<FoundName, Errno> {
        let mut found = FoundName { facts: facts_of(fd)?, handle: None, object: None };
        if found.facts.dev != self.facts.dev {
            return Ok(found);
        }
        if found.facts.is_dir() {
            found.handle = Some(sys::handle(fd)?);
        } else if self.is_by_path() {
            found.object = handle_if_any(sys::handle(fd))?.map(|handle| self.object(&handle));
        }
        Ok(found)
    }

    /// A name that something is mounted on: as users see it, and of another file system even if that is a part of this one.
    fn look_at_mounted(&self, dir: BorrowedFd<'_>, name: &[u8]) -> Result<Option<FoundName>, Errno> {
        let opened = dir.try_clone_to_owned();
        let opened = opened.map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::MFILE))?;
        let name = name.to_vec();
        let seen = self.on_mounts.ask(move || statx(opened, name, LOOK, LOOK_FOR));
        let mut facts = facts(&seen.unwrap_or(Err(Errno::TIMEDOUT))?);
        if facts.dev == self.facts.dev {
            facts.dev = !facts.dev;
        }
        Ok(Some(FoundName { facts, handle: None, object: None }))
    }

    /// Whether a name leads to another file system.
    pub(crate) fn is_foreign(&self, found: &FoundName) -> bool {
        found.facts.dev != self.facts.dev
    }

    /// The device number of a name, and the number of the device that it is. Asks no file system but the tree's.
    ///
    /// # Errors
    /// EXDEV if something is mounted there. Others as of openat2(2).
    pub(crate) fn devices(&self, dir: BorrowedFd<'_>, name: &[u8]) -> Result<(u64, u64), Errno> {
        let seen = statx(open_here(dir, name)?, c"", AtFlags::EMPTY_PATH, StatxFlags::BASIC_STATS)?;
        let own = rustix::fs::makedev(seen.stx_dev_major, seen.stx_dev_minor);
        Ok((own, rustix::fs::makedev(seen.stx_rdev_major, seen.stx_rdev_minor)))
    }

    /// Marks an open directory, if each has a mark of its own. Must be called before it is listed.
    ///
    /// # Errors
    /// ENOSPC at the limit of marks.
    pub(crate) fn mark(&self, dir: BorrowedFd<'_>) -> Result<(), Errno> {
        self.marks.as_ref().map_or(Ok(()), |marks| marks.add(dir))
    }

    /// Opens a directory to list it, by its handle or by its path.
    ///
    /// # Errors
    /// ESTALE as of [`HostTree::open_handle`].
    pub(crate) fn open_dir(&self, handle: &HostHandle, way: Way<'_>) -> Result<OwnedFd, Errno> {
        let open = |more: OFlags| {
            let flags = OFlags::RDONLY | OFlags::DIRECTORY | more;
            if self.is_by_path() {
                return reach::open(self.root.as_fd(), handle, way, flags);
            }
            sys::open_by_handle(self.root.as_fd(), handle, flags.bits() as i32)
        };
        match open(OFlags::NOATIME) {
            // Another user's, and we have no CAP_FOWNER: then its access time moves.
            Err(Errno::PERM) => open(OFlags::empty()),
            opened => opened,
        }
    }
}

/// Opens a name for looks only, of this file system. A mount there is not asked, and this look makes none.
///
/// # Errors
/// EXDEV if something is mounted there.
fn open_here(dir: BorrowedFd<'_>, name: &[u8]) -> Result<OwnedFd, Errno> {
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    openat2(dir, name, flags, Mode::empty(), ResolveFlags::NO_XDEV)
}

/// The handle of a file that was seen a moment ago; nothing if the file has none. Then changes through a former name are not
/// noticed.
///
/// # Errors
/// EAGAIN if the name changed at that moment. Others say nothing about the file.
fn handle_if_any(handle: Result<HostHandle, Errno>) -> Result<Option<HostHandle>, Errno> {
    match handle {
        Ok(handle) => Ok(Some(handle)),
        Err(Errno::OPNOTSUPP | Errno::OVERFLOW) => Ok(None),
        Err(Errno::NOENT) => Err(Errno::AGAIN),
        Err(errno) => Err(errno),
    }
}

/// Whether each mount has a number that no other one gets: from Linux 6.8.
#[cfg(test)]
pub(crate) fn has_mount_numbers() -> bool {
    sys::mount_numbers().is_ok_and(|numbers| !numbers.is_empty())
}

/// Whether a path leads to a root. A look that failed for lack of memory proves nothing.
fn leads_to(root: &FileFacts, path: Result<FileFacts, Errno>, known: Result<FileFacts, Errno>) -> bool {
    let same = path.map_or_else(is_shortage, |path| (path.ino, path.dev) == (root.ino, root.dev));
    same && known.map_or_else(is_shortage, |known| known.nlink > 0)
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

#[cfg(test)]
mod tests {
    use super::*;

    const SHORTAGES: [Errno; 4] = [Errno::NOMEM, Errno::NFILE, Errno::MFILE, Errno::INTR];

    /// Else writes through a former name of the file would not be noticed from then on.
    #[test]
    fn a_lack_of_memory_or_descriptors_does_not_mean_that_a_file_has_no_handle() {
        for errno in SHORTAGES {
            assert_eq!(handle_if_any(Err(errno)), Err(errno));
        }
        assert_eq!(handle_if_any(Err(Errno::OPNOTSUPP)), Ok(None));
        assert_eq!(handle_if_any(Err(Errno::NOENT)), Err(Errno::AGAIN));
    }

    #[test]
    fn a_lack_of_memory_does_not_mean_that_the_path_leads_elsewhere() {
        let root = FileFacts { ino: 1, dev: 2, nlink: 2, ..FileFacts::default() };
        for errno in SHORTAGES {
            assert!(leads_to(&root, Err(errno), Ok(root)) && leads_to(&root, Ok(root), Err(errno)));
        }
        let (other, removed) = (FileFacts { ino: 3, ..root }, FileFacts { nlink: 0, ..root });
        assert!(!leads_to(&root, Ok(other), Ok(root)) && !leads_to(&root, Ok(root), Ok(removed)));
        assert!(!leads_to(&root, Err(Errno::NOENT), Ok(root)));
    }
}
