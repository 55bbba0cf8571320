//! Calls that take `unsafe`: how many heaps the C library's allocator may have, and what a new program inherits.

/// Lets all threads allocate from one heap, if the C library is glibc. To be called early. Without it, glibc reserves
/// 64 MiB of address space for each of many threads, and twice as much for a moment. The memory of a mirror's nodes
/// comes and goes. With a heap for each thread, the others cannot use one heap's free memory, and all heaps together
/// grow to half as much again.
pub fn one_heap() {
    #[cfg(target_env = "gnu")]
    // SAFETY: sets a number of the allocator's; heaps that exist already stay in use.
    unsafe {
        libc::mallopt(libc::M_ARENA_MAX, 1);
    }
}

/// Has exec(2) close all descriptors of this process from `first` on (close_range(2), Linux 5.11; earlier kernels do
/// nothing). None is closed here.
pub fn close_at_exec_from(first: u32) {
    // SAFETY: sets a flag of descriptors, of which none is closed, and touches no memory.
    unsafe {
        libc::syscall(libc::SYS_close_range, first, u32::MAX, libc::CLOSE_RANGE_CLOEXEC);
    }
}
