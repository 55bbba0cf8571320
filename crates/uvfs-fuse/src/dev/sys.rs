//! System calls of the connection that take `unsafe`: one more descriptor (`FUSE_DEV_IOC_CLONE`), files that the kernel is lent
//! (`FUSE_DEV_IOC_BACKING_OPEN` and `_CLOSE`), the size of a page.

use std::ffi::c_void;
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

use rustix::ioctl::{Ioctl, IoctlOutput, Opcode, Setter, ioctl, opcode};

use crate::transport::BackingId;

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

/// `struct fuse_backing_map`.
#[repr(C)]
struct BackingMap {
    fd: i32,
    flags: u32,
    padding: u64,
}

/// `FUSE_DEV_IOC_BACKING_OPEN`, which answers with a number that is not negative.
struct BackingOpen(BackingMap);

// SAFETY: the request reads the structure that the argument points to, of which its number has the size, and writes nothing.
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

/// Lends `file` to the kernel, which works in it with the identity and the rights of this thread. EPERM without CAP_SYS_ADMIN,
/// ELOOP where its file system is stacked on another.
pub(super) fn lend(device: BorrowedFd<'_>, file: BorrowedFd<'_>) -> rustix::io::Result<BackingId> {
    let map = BackingMap { fd: file.as_raw_fd(), flags: 0, padding: 0 };
    // SAFETY: see `BackingOpen`; both descriptors are open for the whole call.
    unsafe { ioctl(device, BackingOpen(map)) }
}

/// Takes back what was lent. The kernel keeps it for those who have it open.
pub(super) fn take_back(device: BorrowedFd<'_>, id: BackingId) -> rustix::io::Result<()> {
    const CLOSE: Opcode = opcode::write::<u32>(229, 2);
    // SAFETY: the request reads a u32 from where the argument points.
    unsafe { ioctl(device, Setter::<CLOSE, u32>::new(id.cast_unsigned())) }
}

/// Bytes of a page of this machine.
pub(crate) fn page_size() -> usize {
    // SAFETY: asks for a number.
    let size = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
    usize::try_from(size).unwrap_or(4096)
}
