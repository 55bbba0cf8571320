//! Leases on files of the [pool](super::host_pool): the one call without a safe wrapper.

use std::os::fd::{AsRawFd, BorrowedFd};

/// Sets the signal for the holder of a lease.
const F_SETSIG: i32 = 10;

fn fcntl(fd: BorrowedFd<'_>, command: i32, argument: i32) -> bool {
    // SAFETY: none of these commands takes a pointer.
    unsafe { libc::fcntl(fd.as_raw_fd(), command, argument) == 0 }
}

/// Whether `fd` is the only open file of its inode, in all processes and in the kernel; a mapping counts as one. The
/// kernel grants a lease for writing only then. It is given up at once. If somebody opened the file meanwhile, the
/// signal for the holder would be one that does nothing.
pub(super) fn is_alone(fd: BorrowedFd<'_>) -> bool {
    fcntl(fd, F_SETSIG, libc::SIGURG)
        && fcntl(fd, libc::F_SETLEASE, libc::F_WRLCK)
        && fcntl(fd, libc::F_SETLEASE, libc::F_UNLCK)
}
