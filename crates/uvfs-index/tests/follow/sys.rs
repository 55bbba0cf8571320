//! The call that needs `unsafe`: a shared mapping of a file, which others may shorten.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::ptr::{self, NonNull};

use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

/// A file mapped for reading and writing, after its descriptor is closed.
pub struct Mapping {
    start: NonNull<u8>,
    len: usize,
    random: File,
}

impl Mapping {
    pub fn of(file: &File, len: usize) -> io::Result<Self> {
        let random = File::open("/dev/urandom")?;
        let what = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping at an address of the kernel's choice disturbs nothing.
        let start = unsafe { mmap(ptr::null_mut(), len, what, MapFlags::SHARED, file, 0) }?;
        let start = NonNull::new(start.cast()).ok_or(io::ErrorKind::Other)?;
        Ok(Self { start, len, random })
    }

    /// Writes through the mapping. The kernel copies, by the same page faults as a program's own store. If the file is
    /// shorter by now, that is EFAULT, and no SIGBUS.
    pub fn write(&self, at: usize, len: usize) -> io::Result<()> {
        let at = at % self.len;
        let len = len.min(self.len - at);
        // SAFETY: within the mapping, which lives as long as `self` and which no reference leads to.
        let done = unsafe { libc::read(self.random.as_raw_fd(), self.start.as_ptr().add(at).cast(), len) };
        if done < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: nothing refers to the mapping any more.
        let unmapped = unsafe { munmap(self.start.as_ptr().cast(), self.len) };
        debug_assert!(unmapped.is_ok());
    }
}
