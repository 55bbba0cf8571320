//! System calls of the connection that take `unsafe`: one more descriptor (`FUSE_DEV_IOC_CLONE`), the size of a page.

use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

use rustix::ioctl::{Setter, ioctl, opcode};

/// A device of its own on the connection of `device`.
pub(super) fn clone_device(device: BorrowedFd<'_>) -> io::Result<File> {
    /// The number of the connection's descriptor is read from where the argument points, though the kernel's header has the
    /// request as one that reads.
    const CLONE: rustix::ioctl::Opcode = opcode::read::<u32>(229, 0);
    let another = File::options().read(true).write(true).open("/dev/fuse")?;
    let number = device.as_raw_fd().cast_unsigned();
    // SAFETY: the request takes a pointer to a u32, from which it reads only; both descriptors are open for the whole call.
    unsafe { ioctl(&another, Setter::<CLONE, u32>::new(number)) }?;
    Ok(another)
}

/// Bytes of a page of this machine.
pub(crate) fn page_size() -> usize {
    // SAFETY: asks for a number.
    let size = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
    usize::try_from(size).unwrap_or(4096)
}
