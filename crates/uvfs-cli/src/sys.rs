//! A call of the C library that takes `unsafe`: how many heaps its allocator may have.

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
