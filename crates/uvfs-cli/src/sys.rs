//! A call of the C library that takes `unsafe`: how many heaps its allocator may have.

/// Has all threads allocate from one heap. The GNU C library otherwise reserves 64 MiB of address space for each of many threads, and twice as
/// much for a moment.
pub fn one_heap() {
    #[cfg(target_env = "gnu")]
    // SAFETY: two numbers; it is called while there is no other thread.
    unsafe {
        libc::mallopt(libc::M_ARENA_MAX, 1);
    }
}
