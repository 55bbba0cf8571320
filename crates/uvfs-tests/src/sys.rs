//! The two system calls that have no safe wrapper in the crates used here.

use std::ffi::CString;

use rustix::io::Errno;

/// `truncate(2)` by path.
pub fn truncate(path: &[u8], len: u64) -> Result<(), Errno> {
    let path = CString::new(path).map_err(|_| Errno::INVAL)?;
    // SAFETY: the path is a nul-terminated string that outlives the call.
    let r = unsafe { libc::truncate(path.as_ptr(), len as libc::off_t) };
    if r == 0 {
        return Ok(());
    }
    Err(std::io::Error::last_os_error().raw_os_error().map_or(Errno::IO, Errno::from_raw_os_error))
}

/// Gives the calling thread a working directory, root directory and umask of its own.
pub fn unshare_fs() -> Result<(), Errno> {
    // SAFETY: only this thread's root, working directory and umask change; descriptors and memory stay shared.
    unsafe { rustix::thread::unshare_unsafe(rustix::thread::UnshareFlags::FS) }
}
