//! Calls that need `unsafe`: a shared mapping of a file, file handles, and writes by io_uring.

use std::ffi::CString;
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::ptr::{self, NonNull};

use io_uring::{IoUring, opcode, types};
use rustix::mm::{MapFlags, MsyncFlags, ProtFlags, mmap, msync, munmap};

/// The answer of FS_IOC_FSGETXATTR for a file.
pub fn fsxattr(file: &File) -> io::Result<[u8; 28]> {
    const FSGETXATTR: u32 = 0x801c_581f;
    let mut bytes = [0; 28];
    // SAFETY: the room is that of `struct fsxattr`.
    let done = unsafe { libc::ioctl(file.as_raw_fd(), FSGETXATTR as _, bytes.as_mut_ptr()) };
    if done < 0 { Err(io::Error::last_os_error()) } else { Ok(bytes) }
}

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

/// A file handle, as name_to_handle_at(2) gives it.
#[derive(Clone)]
pub struct Handle(Raw);

/// `struct file_handle` with room for the longest one.
#[repr(C)]
#[derive(Clone)]
struct Raw {
    bytes: u32,
    kind: i32,
    handle: [u8; libc::MAX_HANDLE_SZ as usize],
}

/// The handle of what a path leads to, not through a last symbolic link.
pub fn handle_of(path: &Path) -> io::Result<Handle> {
    let path = CString::new(path.as_os_str().as_bytes())?;
    let mut raw =
        Raw { bytes: libc::MAX_HANDLE_SZ as u32, kind: 0, handle: [0; libc::MAX_HANDLE_SZ as usize] };
    let mut mount = 0;
    // SAFETY: `raw` is laid out as the structure, and says how many bytes follow its head; the path ends with a zero.
    let status = unsafe {
        libc::name_to_handle_at(libc::AT_FDCWD, path.as_ptr(), (&raw mut raw).cast(), &mut mount, 0)
    };
    if status == 0 { Ok(Handle(raw)) } else { Err(io::Error::last_os_error()) }
}

/// Opens what a handle leads to, in the file system that `mount` lies in.
pub fn open_by_handle(mount: &File, handle: &Handle) -> io::Result<File> {
    let mut raw = handle.0.clone();
    // SAFETY: as above; the kernel only reads the structure.
    let fd = unsafe { libc::open_by_handle_at(mount.as_raw_fd(), (&raw mut raw).cast(), libc::O_RDONLY) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the descriptor is new, and nobody else's.
    Ok(unsafe { File::from_raw_fd(fd) })
}

/// Bytes of a page.
pub const PAGE: usize = 4096;

/// A page in memory where pages begin, as direct writes want it.
#[repr(C, align(4096))]
#[derive(Clone)]
struct Page([u8; PAGE]);

/// Many writes of a page each, under way at the same time.
pub struct Writes {
    ring: IoUring,
    pages: Vec<Page>,
}

impl Writes {
    pub fn new(pages: usize) -> io::Result<Self> {
        let ring = IoUring::new(pages.next_power_of_two() as u32)?;
        Ok(Self { ring, pages: vec![Page([0; PAGE]); pages] })
    }

    /// Fills all pages with `byte`, writes them to `file` from `offset` on, and waits for the last.
    pub fn write(&mut self, file: &File, offset: usize, byte: u8) -> io::Result<()> {
        let fd = types::Fd(file.as_raw_fd());
        for (i, page) in self.pages.iter_mut().enumerate() {
            page.0.fill(byte);
            let entry = opcode::Write::new(fd, page.0.as_ptr(), PAGE as u32);
            let entry = entry.offset((offset + i * PAGE) as u64).build();
            // SAFETY: the page is not touched and the file stays open until the write has completed, which is waited for below.
            unsafe { self.ring.submission().push(&entry) }.map_err(io::Error::other)?;
        }
        let mut left = self.pages.len();
        let mut outcome = Ok(());
        self.ring.submit_and_wait(left)?;
        while left > 0 {
            let Some(done) = self.ring.completion().next() else {
                self.ring.submit_and_wait(1)?;
                continue;
            };
            left -= 1;
            if done.result() != PAGE as i32 {
                outcome = Err(io::Error::from_raw_os_error(-done.result()));
            }
        }
        outcome
    }
}

/// truncate(2).
pub fn truncate(path: &Path, len: i64) -> rustix::io::Result<()> {
    let path = CString::new(path.as_os_str().as_bytes()).expect("a path without NUL");
    // SAFETY: the path is a C string.
    let done = unsafe { libc::truncate(path.as_ptr(), len) };
    let error = io::Error::last_os_error();
    if done == 0 { Ok(()) } else { Err(rustix::io::Errno::from_io_error(&error).expect("an errno")) }
}
