//! System calls of the connection that need `unsafe`: cloning a descriptor (`FUSE_DEV_IOC_CLONE`), lending files to
//! the kernel (`FUSE_DEV_IOC_BACKING_OPEN` and `_CLOSE`), and the page size.

use std::ffi::c_void;
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

use rustix::ioctl::{Ioctl, IoctlOutput, Opcode, Setter, ioctl, opcode};

use crate::transport::BackingId;

/// A new device descriptor on the connection of `device`.
pub(super) fn clone_device(device: BorrowedFd<'_>) -> io::Result<File> {
    /// The kernel reads the number of the connection's descriptor from the argument's address, although its header
    /// declares the request as one that reads.
    const CLONE: rustix::ioctl::Opcode = opcode::read::<u32>(229, 0);
    let another = File::options().read(true).write(true).open("/dev/fuse")?;
    let number = device.as_raw_fd().cast_unsigned();
    // SAFETY: the request takes a pointer to a u32 and only reads from it. Both descriptors are open for the whole
    // call.
    unsafe { ioctl(&another, Setter::<CLONE, u32>::new(number)) }?;
    Ok(another)
}

/// `struct fuse_backing_map`.
#[repr(C)]
struct BackingMap {
    fd: i32,
    flags: u32,
    padding: u64,
}

/// `FUSE_DEV_IOC_BACKING_OPEN`, which returns a non-negative number.
struct BackingOpen(BackingMap);

// SAFETY: the request reads the structure that the argument points to, whose size is part of its number, and writes
// nothing.
unsafe impl Ioctl for BackingOpen {
    type Output = i32;

    const IS_MUTATING: bool = false;

    fn opcode(&self) -> Opcode {
        opcode::write::<BackingMap>(229, 1)
    }

    fn as_ptr(&mut self) -> *mut c_void {
        (&raw mut self.0).cast()
    }

    unsafe fn output_from_ptr(out: IoctlOutput, _: *mut c_void) -> rustix::io::Result<i32> {
        Ok(out)
    }
}

/// Lends `file` to the kernel, which uses it with the identity and rights of this thread. EPERM without
/// CAP_SYS_ADMIN, ELOOP if its file system is stacked on another.
pub(super) fn lend(device: BorrowedFd<'_>, file: BorrowedFd<'_>) -> rustix::io::Result<BackingId> {
    let map = BackingMap { fd: file.as_raw_fd(), flags: 0, padding: 0 };
    // SAFETY: see `BackingOpen`; both descriptors are open for the whole call.
    unsafe { ioctl(device, BackingOpen(map)) }
}

/// Takes a lent file back. The kernel keeps it for callers that have it open.
pub(super) fn take_back(device: BorrowedFd<'_>, id: BackingId) -> rustix::io::Result<()> {
    const CLOSE: Opcode = opcode::write::<u32>(229, 2);
    // SAFETY: the request reads a u32 from the argument's address.
    unsafe { ioctl(device, Setter::<CLOSE, u32>::new(id.cast_unsigned())) }
}

/// The page size of this machine in bytes.
pub(crate) fn page_size() -> usize {
    // SAFETY: the call only returns a number.
    let size = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
    usize::try_from(size).unwrap_or(4096)
}
