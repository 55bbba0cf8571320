//! How the memory of this process is mapped: huge pages, and giving back what is free.
//!
//! Asking for huge pages, or for existing pages to be collapsed into them, changes how memory is mapped and
//! never what it holds, so the calls are safe for any range: what is not mapped is refused.

use std::io;
use std::ops::Range;

/// Since Linux 6.1; not in every C library's headers.
const MADV_COLLAPSE: libc::c_int = 25;

/// Asks for huge pages in a range of whole pages.
///
/// # Errors
/// What `madvise(2)` says.
pub fn want_huge_pages(range: Range<usize>) -> io::Result<()> {
    advise(range, libc::MADV_HUGEPAGE)
}

/// Makes huge pages of a range of whole pages now.
///
/// # Errors
/// What `madvise(2)` says: EINVAL where a part of the range could not become one.
pub fn collapse(range: Range<usize>) -> io::Result<()> {
    advise(range, MADV_COLLAPSE)
}

fn advise(range: Range<usize>, advice: libc::c_int) -> io::Result<()> {
    let start = std::ptr::without_provenance_mut(range.start);
    // SAFETY: neither advice changes the content of memory or makes a mapping go away; the kernel checks the
    // range.
    match unsafe { libc::madvise(start, range.len(), advice) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Gives free memory of the allocator back to the system, so that the next case does not find its arms' memory
/// in the holes that the last one's left.
pub fn trim() {
    // SAFETY: no condition; only free memory is touched.
    #[cfg(target_env = "gnu")]
    unsafe {
        libc::malloc_trim(0);
    }
}
