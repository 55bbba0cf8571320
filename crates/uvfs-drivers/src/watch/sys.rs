//! fanotify_init(2) and fanotify_mark(2), safe from outside.
#![allow(unsafe_code)]

use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use rustix::io::Errno;

fn errno() -> Errno {
    Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO)
}

/// The object of a mark.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Marked {
    /// A whole file system. Needs CAP_SYS_ADMIN.
    FileSystem,
    /// A directory and the names in it.
    Directory,
}

impl Marked {
    fn flag(self) -> u32 {
        match self {
            Self::FileSystem => libc::FAN_MARK_FILESYSTEM,
            Self::Directory => libc::FAN_MARK_INODE,
        }
    }
}

/// A group whose events name files by handle, and directories by handle with the name in them. With `target` (Linux 5.17)
/// they also name the file that a name led to. Marks on directories count against the user's limit.
pub(super) fn group(marked: Marked, target: bool) -> Result<OwnedFd, Errno> {
    let report = libc::FAN_REPORT_DIR_FID | libc::FAN_REPORT_NAME | libc::FAN_REPORT_FID;
    let report = if target { report | libc::FAN_REPORT_TARGET_FID } else { report };
    let unlimited = if marked == Marked::FileSystem { libc::FAN_UNLIMITED_MARKS } else { 0 };
    let flags = libc::FAN_CLASS_NOTIF | unlimited | libc::FAN_CLOEXEC | libc::FAN_NONBLOCK | report;
    // SAFETY: takes two numbers.
    let fd = unsafe { libc::fanotify_init(flags, 0) };
    if fd < 0 {
        return Err(errno());
    }
    // SAFETY: just made, and nobody else's.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

fn change(group: &OwnedFd, flags: u32, mask: u64, at: BorrowedFd<'_>) -> Result<(), Errno> {
    // SAFETY: two descriptors that are open, and a path of the program's own that ends with a nul.
    let outcome =
        unsafe { libc::fanotify_mark(group.as_raw_fd(), flags, mask, at.as_raw_fd(), c".".as_ptr()) };
    if outcome == 0 { Ok(()) } else { Err(errno()) }
}

/// Marks the file system of the directory `at`, or itself. `renames` (Linux 5.17): renames come as one event, and events of
/// names tell which file a name led to.
pub(super) fn mark(group: &OwnedFd, marked: Marked, at: BorrowedFd<'_>, renames: bool) -> Result<(), Errno> {
    let moves = if renames { libc::FAN_RENAME } else { libc::FAN_MOVED_FROM | libc::FAN_MOVED_TO };
    let names = libc::FAN_CREATE | libc::FAN_DELETE | moves;
    let files = libc::FAN_ATTRIB | libc::FAN_MODIFY | libc::FAN_CLOSE_WRITE;
    // A file that loses a name changes its attributes, wherever the name was. With `renames`, the event that removes
    // a directory's name tells which directory it was. So the end of the last link tells nothing new then.
    let files = if renames { files } else { files | libc::FAN_DELETE_SELF };
    let children = if marked == Marked::Directory { libc::FAN_EVENT_ON_CHILD } else { 0 };
    change(group, libc::FAN_MARK_ADD | marked.flag(), names | files | children | libc::FAN_ONDIR, at)
}

/// Makes the mark at `at` report opens too, or no longer.
pub(super) fn tell_of_opens(
    group: &OwnedFd,
    marked: Marked,
    at: BorrowedFd<'_>,
    tell: bool,
) -> Result<(), Errno> {
    // FAN_ONDIR is not removed: the other events need it.
    let (act, mask) = if tell {
        (libc::FAN_MARK_ADD, libc::FAN_OPEN | libc::FAN_ONDIR)
    } else {
        (libc::FAN_MARK_REMOVE, libc::FAN_OPEN)
    };
    change(group, act | marked.flag(), mask, at)
}

/// Removes all marks of directories.
pub(super) fn unmark_directories(group: &OwnedFd, at: BorrowedFd<'_>) -> Result<(), Errno> {
    change(group, libc::FAN_MARK_FLUSH | Marked::Directory.flag(), 0, at)
}

/// Type and bytes of a file's handle, as name_to_handle_at(2) gives them.
#[cfg(test)]
pub(super) fn handle_of(path: &std::path::Path) -> Result<(i32, Vec<u8>), Errno> {
    use std::os::unix::ffi::OsStrExt;

    #[repr(C)]
    struct Space {
        bytes: libc::c_uint,
        kind: libc::c_int,
        handle: [u8; 128],
    }
    let path = std::ffi::CString::new(path.as_os_str().as_bytes()).map_err(|_| Errno::INVAL)?;
    let mut space = Space { bytes: 128, kind: 0, handle: [0; 128] };
    let mut mount = 0;
    // SAFETY: a path that ends with a nul, a struct file_handle with as much space as it says, and a number.
    let outcome = unsafe {
        libc::name_to_handle_at(libc::AT_FDCWD, path.as_ptr(), (&raw mut space).cast(), &raw mut mount, 0)
    };
    if outcome != 0 {
        return Err(errno());
    }
    let bytes = space.handle.get(..space.bytes as usize).ok_or(Errno::OVERFLOW)?;
    Ok((space.kind, bytes.to_vec()))
}
