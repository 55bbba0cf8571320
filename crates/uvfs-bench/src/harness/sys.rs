//! How this process's memory is mapped: huge pages, and returning free memory to the system. And grace periods.
//!
//! Asking for huge pages, or collapsing existing pages into them, changes how memory is mapped and never its
//! content. So the calls are safe for any range: the kernel refuses unmapped ones.

use std::io;
use std::ops::Range;

/// Since Linux 6.1; not in every C library's headers.
const MADV_COLLAPSE: libc::c_int = 25;

/// Asks for huge pages in a range of whole pages.
///
/// # Errors
/// The error of `madvise(2)`.
pub fn want_huge_pages(range: Range<usize>) -> io::Result<()> {
    advise(range, libc::MADV_HUGEPAGE)
}

/// Collapses a range of whole pages into huge pages now.
///
/// # Errors
/// The error of `madvise(2)`: EINVAL if part of the range could not become a huge page.
pub fn collapse(range: Range<usize>) -> io::Result<()> {
    advise(range, MADV_COLLAPSE)
}

fn advise(range: Range<usize>, advice: libc::c_int) -> io::Result<()> {
    let start = std::ptr::without_provenance_mut(range.start);
    // SAFETY: neither advice changes the content of memory or removes a mapping, and the kernel checks the
    // range.
    match unsafe { libc::madvise(start, range.len(), advice) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Returns the allocator's free memory to the system. Otherwise the next case's arms would get memory from the
/// holes that the last case's arms left.
pub fn trim() {
    // SAFETY: no condition; only free memory is touched.
    #[cfg(target_env = "gnu")]
    unsafe {
        libc::malloc_trim(0);
    }
}

/// Waits until every processor has passed a quiescent state of the kernel's RCU: a grace period.
///
/// # Errors
/// The error of membarrier(2): ENOSYS, or EINVAL with full dynticks.
pub fn grace_period() -> io::Result<()> {
    // SAFETY: the command takes no memory, and has no effect on this process but the wait.
    match unsafe { libc::syscall(libc::SYS_membarrier, libc::MEMBARRIER_CMD_GLOBAL, 0, 0) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}
