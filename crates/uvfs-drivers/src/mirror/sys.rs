//! Calls without a safe wrapper: file handles, mounts by number, a thread's user id for file access and what it may
//! execute, the heap.
//!
//! Safe from outside: each call gets buffers with their sizes, and changes nothing but what its name says.
//! `set_fs_uid` changes the calling thread alone; the caller sees to it that the thread gets its own identity back
//! ([`super::caller`]).

use std::mem::size_of;
use std::os::fd::{AsFd, AsRawFd};

use uvfs::types::{Errno, FSXATTR, FileFlags, FlagsForm, Result};

/// Longest handle of any file system (`MAX_HANDLE_SZ`).
pub(super) const HANDLE_MAX: usize = 128;
/// Linux 6.5: a handle that identifies only, which more file systems have.
const AT_HANDLE_FID: i32 = 0x200;

#[repr(C)]
struct RawHandle {
    len: u32,
    kind: i32,
    bytes: [u8; HANDLE_MAX],
}

fn handle_with(fd: i32, raw: &mut RawHandle, flags: i32) -> Result<()> {
    raw.len = HANDLE_MAX as u32;
    let mut mount = 0;
    // SAFETY: the path is a C string; `raw` starts as `struct file_handle` does and has the room that `len` says.
    let done = unsafe {
        libc::syscall(
            libc::SYS_name_to_handle_at,
            fd,
            c"".as_ptr(),
            std::ptr::from_mut(raw),
            std::ptr::from_mut(&mut mount),
            flags | libc::AT_EMPTY_PATH,
        )
    };
    if done == 0 { Ok(()) } else { Err(last_error()) }
}

/// Type and bytes of the file's handle.
///
/// # Errors
/// EOPNOTSUPP if the file system has none, EOVERFLOW if they are longer than any should be.
pub(super) fn handle(fd: impl AsFd, bytes: &mut [u8; HANDLE_MAX]) -> Result<(i32, usize)> {
    const { assert!(size_of::<RawHandle>() == 8 + HANDLE_MAX) };
    let fd = fd.as_fd().as_raw_fd();
    let mut raw = RawHandle { len: 0, kind: 0, bytes: [0; HANDLE_MAX] };
    match handle_with(fd, &mut raw, AT_HANDLE_FID) {
        // An older kernel does not know the flag.
        Err(Errno::INVAL) => handle_with(fd, &mut raw, 0)?,
        done => done?,
    }
    let len = raw.len as usize;
    if len > HANDLE_MAX {
        return Err(Errno::OVERFLOW);
    }
    bytes[..len].copy_from_slice(&raw.bytes[..len]);
    Ok((raw.kind, len))
}

/// Whether the file has a handle that it can be opened by. It has none if its file system has none of its own.
pub(super) fn has_own_handle(fd: impl AsFd) -> bool {
    let mut raw = RawHandle { len: 0, kind: 0, bytes: [0; HANDLE_MAX] };
    handle_with(fd.as_fd().as_raw_fd(), &mut raw, 0).is_ok()
}

/// `statmount` has one number everywhere.
const STATMOUNT: libc::c_long = 457;

#[repr(C)]
struct MountRequest {
    size: u32,
    spare: u32,
    /// The one that is unique for ever.
    mount: u64,
    /// The bits of the fields that are asked for.
    mask: u64,
}

/// Whether there is a mount of this number.
///
/// # Errors
/// ENOSYS before Linux 6.8, EPERM if the caller may not ask.
pub(super) fn mount_lives(mount: u64) -> Result<bool> {
    let request = MountRequest { size: size_of::<MountRequest>() as u32, spare: 0, mount, mask: 0 };
    let mut told = [0u64; 128];
    // SAFETY: a request of the size that it says, and a buffer with the size that is given.
    let done = unsafe {
        libc::syscall(STATMOUNT, std::ptr::from_ref(&request), told.as_mut_ptr(), size_of_val(&told), 0)
    };
    if done == 0 {
        return Ok(true);
    }
    match last_error() {
        Errno::NOENT => Ok(false),
        errno => Err(errno),
    }
}

/// Whether this thread, with its present credentials for files, may execute a file.
///
/// # Errors
/// EACCES if it may not; ENOSYS before Linux 5.8.
pub(super) fn may_execute(fd: impl AsFd) -> Result<()> {
    // By the ids and capabilities that files are opened with, as access(2) does not.
    let flags = libc::AT_EMPTY_PATH | libc::AT_EACCESS;
    // SAFETY: the path is a C string.
    let may = unsafe {
        libc::syscall(libc::SYS_faccessat2, fd.as_fd().as_raw_fd(), c"".as_ptr(), libc::X_OK, flags)
    };
    if may == 0 { Ok(()) } else { Err(last_error()) }
}

/// Sets this thread's user id for file access. The call does not tell whether it was allowed, so that is looked up.
pub(super) fn set_fs_uid(uid: u32) -> Result<()> {
    // SAFETY: changes the calling thread's credentials, no memory. The second call, with an invalid id, changes
    // nothing and returns the present id.
    let now = unsafe {
        libc::syscall(libc::SYS_setfsuid, uid);
        libc::syscall(libc::SYS_setfsuid, u32::MAX)
    };
    if now as u32 == uid { Ok(()) } else { Err(Errno::PERM) }
}

/// `FS_IOC_FSGETXATTR` and `FS_IOC_FSSETXATTR`, on machines that encode ioctl numbers in the usual way.
const FSGETXATTR: u32 = 0x801c_581f;
const FSSETXATTR: u32 = 0x401c_5820;

/// The flags of an open file.
///
/// # Errors
/// ENOTTY and EOPNOTSUPP if its file system has none.
pub(super) fn file_flags(fd: impl AsFd, form: FlagsForm) -> Result<FileFlags> {
    let fd = fd.as_fd().as_raw_fd();
    match form {
        FlagsForm::Inode => {
            // Some file systems write a long.
            let mut flags = [0u32; 2];
            // SAFETY: the room is that of the longest answer.
            let done = unsafe { libc::ioctl(fd, libc::FS_IOC_GETFLAGS as _, flags.as_mut_ptr()) };
            if done < 0 { Err(last_error()) } else { Ok(FileFlags::Inode(flags[0])) }
        }
        FlagsForm::Extended => {
            let mut bytes = [0u8; FSXATTR];
            // SAFETY: the room is that of `struct fsxattr`.
            let done = unsafe { libc::ioctl(fd, FSGETXATTR as _, bytes.as_mut_ptr()) };
            if done < 0 { Err(last_error()) } else { Ok(FileFlags::Extended(bytes)) }
        }
    }
}

/// Sets the flags of an open file.
///
/// # Errors
/// EPERM, and as [`file_flags`].
pub(super) fn set_file_flags(fd: impl AsFd, flags: &FileFlags) -> Result<()> {
    let fd = fd.as_fd().as_raw_fd();
    let done = match flags {
        FileFlags::Inode(flags) => {
            let flags = [*flags, 0];
            // SAFETY: reads an int, or a long, from there.
            unsafe { libc::ioctl(fd, libc::FS_IOC_SETFLAGS as _, flags.as_ptr()) }
        }
        FileFlags::Extended(bytes) => {
            // SAFETY: reads a `struct fsxattr` from there.
            unsafe { libc::ioctl(fd, FSSETXATTR as _, bytes.as_ptr()) }
        }
    };
    if done < 0 { Err(last_error()) } else { Ok(()) }
}

fn last_error() -> Errno {
    let code = std::io::Error::last_os_error().raw_os_error();
    code.map_or(Errno::IO, Errno::from_raw_os_error)
}
