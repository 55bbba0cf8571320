//! A shared mapping of a file, which needs `unsafe`.

use std::fs::File;
use std::ptr::{self, NonNull};

use rustix::mm::{MapFlags, MsyncFlags, ProtFlags, mmap, msync, munmap};

/// The first `len` bytes of a file, mapped for reading and writing.
pub struct Shared {
    start: NonNull<u8>,
    len: usize,
}

impl Shared {
    pub fn map(file: &File, len: usize) -> Self {
        Self::map_to(file, len, ProtFlags::READ | ProtFlags::WRITE)
    }

    /// Of a file that is open for reading: it is not to be written.
    pub fn map_to_read(file: &File, len: usize) -> Self {
        Self::map_to(file, len, ProtFlags::READ)
    }

    fn map_to(file: &File, len: usize, what: ProtFlags) -> Self {
        // SAFETY: a new mapping at an address of the kernel's choice disturbs nothing.
        let start = unsafe { mmap(ptr::null_mut(), len, what, MapFlags::SHARED, file, 0) };
        let start = NonNull::new(start.expect("a mapping").cast()).expect("no mapping at 0");
        Self { start, len }
    }

    pub fn write(&mut self, at: usize, bytes: &[u8]) {
        assert!(at + bytes.len() <= self.len);
        // SAFETY: within the mapping, which lives as long as `self`; bytes cannot overlap it.
        unsafe { ptr::copy_nonoverlapping(bytes.as_ptr(), self.start.as_ptr().add(at), bytes.len()) }
    }

    pub fn read(&self, at: usize, len: usize) -> Vec<u8> {
        assert!(at + len <= self.len);
        let mut bytes = vec![0; len];
        // SAFETY: as in `write`.
        unsafe { ptr::copy_nonoverlapping(self.start.as_ptr().add(at), bytes.as_mut_ptr(), len) }
        bytes
    }

    /// Writes what was changed back to the file.
    pub fn sync(&self) {
        // SAFETY: the mapping is ours and stays.
        unsafe { msync(self.start.as_ptr().cast(), self.len, MsyncFlags::SYNC) }.expect("msync");
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        // SAFETY: nothing refers to the mapping any more: what was lent was copied.
        let unmapped = unsafe { munmap(self.start.as_ptr().cast(), self.len) };
        debug_assert!(unmapped.is_ok());
    }
}
