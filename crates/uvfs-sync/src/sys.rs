//! System calls: reserve address space and give pages back; barriers in all threads.
//!
//! The interface is safe: a [`Reservation`] owns its mapping and hands out only its base pointer and
//! length. [`crate::arena`] governs the use of the memory. Under Miri the memory comes from the allocator
//! instead, already committed; loom's arenas are built without it.

#[cfg(not(loom))]
mod memory {
    use super::PAGE;
    use std::io;
    use std::ptr::NonNull;
    #[cfg(not(miri))]
    use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

    /// A zero-filled, page-aligned range of address space whose pages are committed by touching.
    #[derive(Debug)]
    pub(crate) struct Reservation {
        base: NonNull<u8>,
        len: usize,
        /// Bytes mapped in front of `base`.
        #[cfg(not(miri))]
        colour: usize,
        /// Bytes from the base on for which huge pages were requested; [`NO_MORE`].
        #[cfg(not(miri))]
        huge: AtomicUsize,
        /// Huge pages are wanted for all of it, whatever is given back.
        #[cfg(not(miri))]
        always_huge: AtomicBool,
    }

    /// Fewest bytes of address space that a reservation must leave to others. A heap that finds none ends the process,
    /// while a reservation that fails is an error.
    #[cfg(not(miri))]
    const LEFT_MIN: usize = 4 << 20;

    /// Most bytes of address space that a reservation must leave to others.
    #[cfg(not(miri))]
    const LEFT_MAX: usize = 64 << 30;

    /// Huge pages are not to be requested.
    #[cfg(not(miri))]
    const NO_MORE: usize = usize::MAX;

    /// Reservations begin at different distances from the powers of two at which large mappings are placed.
    /// Otherwise slots of the same number in two arenas would have the same low address bits. Caches that
    /// guess by a hash of these (AMD's L1 way predictor) then guess wrong each time: six components took 96
    /// ns instead of 60.
    #[cfg(not(miri))]
    fn next_colour() -> usize {
        static NEXT: AtomicUsize = AtomicUsize::new(0);
        NEXT.fetch_add(1, Ordering::Relaxed) % 64 * 9 * PAGE
    }

    // SAFETY: a Reservation is a range of memory. It has no thread affinity, and all access goes through
    // the atomics that its owner lays over it.
    unsafe impl Send for Reservation {}
    // SAFETY: as above; the methods take &self and only pass the range to the kernel.
    unsafe impl Sync for Reservation {}

    impl Reservation {
        /// Reserve `len` bytes (rounded up to pages), all zero, without committing any. `of` times as much must be free, within
        /// [`LEFT_MIN`] and [`LEFT_MAX`] more: what a first reservation takes under a limit must leave address space for those that follow, and for
        /// threads. Mapping the range shows whether so much is free, so every limit of the system's counts.
        ///
        /// # Errors
        /// ENOMEM if the address space or an overcommit limit is too small.
        #[cfg(not(miri))]
        pub(crate) fn new(len: usize, of: usize) -> io::Result<Self> {
            let len = len.next_multiple_of(PAGE);
            let colour = next_colour();
            let left = len.saturating_mul(of.saturating_sub(1)).clamp(LEFT_MIN, LEFT_MAX);
            // SAFETY: an anonymous private mapping at an address of the kernel's choice; it cannot overlap
            // anything that exists.
            let p = unsafe {
                libc::mmap(
                    std::ptr::null_mut(),
                    len.saturating_add(colour + left),
                    libc::PROT_READ | libc::PROT_WRITE,
                    libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE,
                    -1,
                    0,
                )
            };
            if p == libc::MAP_FAILED {
                return Err(io::Error::last_os_error());
            }
            match NonNull::new(p.cast::<u8>()) {
                Some(map) => {
                    // SAFETY: within the mapping, which is `colour` longer than `len`.
                    let base = unsafe { map.add(colour) };
                    // SAFETY: the end of the mapping that was just made; nobody knows of it. An error means that the
                    // system keeps it mapped, which costs address space and nothing else.
                    unsafe { libc::munmap(base.as_ptr().add(len).cast(), left) };
                    let (huge, always_huge) = (AtomicUsize::new(0), AtomicBool::new(false));
                    Ok(Self { base, len, colour, huge, always_huge })
                }
                None => Err(io::Error::from_raw_os_error(libc::ENOMEM)),
            }
        }

        /// As above, from the allocator.
        #[cfg(miri)]
        pub(crate) fn new(len: usize, _of: usize) -> io::Result<Self> {
            let len = len.next_multiple_of(PAGE);
            let layout = std::alloc::Layout::from_size_align(len, PAGE).map_err(io::Error::other)?;
            // SAFETY: the layout has a size above zero: callers reserve at least one slot.
            let p = unsafe { std::alloc::alloc_zeroed(layout) };
            NonNull::new(p)
                .map(|base| Self { base, len })
                .ok_or_else(|| io::Error::from_raw_os_error(libc::ENOMEM))
        }

        pub(crate) fn base(&self) -> NonNull<u8> {
            self.base
        }

        /// Ask for huge pages (`MADV_HUGEPAGE`). Advice: a system without them continues as before.
        #[cfg(not(miri))]
        pub(crate) fn advise_huge(&self) {
            self.always_huge.store(true, Ordering::Relaxed);
            self.huge.store(NO_MORE, Ordering::Relaxed);
            self.advise(0, self.len, libc::MADV_HUGEPAGE);
        }

        /// Memory is used from the base on, and use has reached byte `at`. From `first` bytes on, huge
        /// pages are requested ahead of that, for as much again as is in use. So there are fewer faults and
        /// TLB misses, for at most one huge page that is used in part.
        #[cfg(not(miri))]
        #[inline]
        pub(crate) fn reached(&self, at: usize, first: usize) {
            let asked = self.huge.load(Ordering::Relaxed);
            if at >= first && at >= asked {
                self.ask_ahead(asked, at, first);
            }
        }

        #[cfg(not(miri))]
        #[cold]
        fn ask_ahead(&self, asked: usize, at: usize, first: usize) {
            let to = (at + 1).next_power_of_two().min(self.len);
            let from = asked.max(first) / PAGE * PAGE;
            // Nothing is left to request: `at` may lie behind the end.
            if from >= to {
                return;
            }
            // Several threads may come here at once; one of them asks.
            if self.huge.compare_exchange(asked, to, Ordering::Relaxed, Ordering::Relaxed).is_ok() {
                self.advise(from, to, libc::MADV_HUGEPAGE);
            }
        }

        /// Memory is given back piece by piece: the part that is used again may be a small part of a huge page.
        #[cfg(not(miri))]
        fn small_pages(&self) {
            if self.huge.load(Ordering::Relaxed) != NO_MORE {
                let asked = self.huge.swap(NO_MORE, Ordering::Relaxed);
                if asked != 0 && asked != NO_MORE {
                    self.advise(0, self.len, libc::MADV_NOHUGEPAGE);
                }
            }
        }

        /// Almost nothing is used: memory will again be used from the base on, as for
        /// [`Reservation::reached`].
        #[cfg(not(miri))]
        pub(crate) fn begin_anew(&self) {
            if !self.always_huge.load(Ordering::Relaxed) {
                self.huge.store(0, Ordering::Relaxed);
            }
        }

        #[cfg(not(miri))]
        fn advise(&self, from: usize, to: usize, advice: libc::c_int) {
            // SAFETY: within our own mapping (from and to are at most len). The advice changes how the
            // memory is backed, not its contents. If it is refused, nothing changes.
            unsafe { libc::madvise(self.base.as_ptr().add(from).cast(), to - from, advice) };
        }

        /// Commit the pages of `from..to` (bytes) at once, which costs less than a fault for each. If that
        /// is refused (before Linux 5.14; short of memory), they are committed as they are touched.
        #[cfg(not(miri))]
        pub(crate) fn populate(&self, from: usize, to: usize) {
            let (from, to) = (from / PAGE * PAGE, to.min(self.len));
            if from < to {
                self.advise(from, to, libc::MADV_POPULATE_WRITE);
            }
        }

        /// Committed by the allocator.
        #[cfg(miri)]
        pub(crate) fn populate(&self, _from: usize, _to: usize) {}

        /// Nothing to advise the allocator.
        #[cfg(miri)]
        pub(crate) fn advise_huge(&self) {}

        /// As above.
        #[cfg(miri)]
        pub(crate) fn reached(&self, _at: usize, _first: usize) {}

        /// As above.
        #[cfg(miri)]
        pub(crate) fn begin_anew(&self) {}

        /// Return the whole pages of `from..to` (bytes) to the system; they read as zero afterwards.
        ///
        /// # Errors
        /// The error of `madvise(2)`; the memory is then unchanged or partly zero.
        #[cfg(not(miri))]
        pub(crate) fn give_back(&self, from: usize, to: usize) -> io::Result<()> {
            let from = from.next_multiple_of(PAGE);
            let to = to.min(self.len) / PAGE * PAGE;
            if from >= to {
                return Ok(());
            }
            if !system_pages_fit() {
                return Err(io::Error::from_raw_os_error(libc::ENOSYS));
            }
            self.small_pages();
            // SAFETY: the range lies inside our own mapping (from < to <= len). Dropping anonymous
            // pages makes them read as zero, which is a valid value of every slot type (all atomics).
            let r =
                unsafe { libc::madvise(self.base.as_ptr().add(from).cast(), to - from, libc::MADV_DONTNEED) };
            if r == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
        }

        /// The allocator's memory stays, and is zeroed.
        #[cfg(miri)]
        pub(crate) fn give_back(&self, from: usize, to: usize) -> io::Result<()> {
            let from = from.next_multiple_of(PAGE);
            let to = to.min(self.len) / PAGE * PAGE;
            for at in (from..to).step_by(8) {
                // SAFETY: the word lies inside our own allocation, which is aligned to a page. The slots
                // over it are atomics, so it is shared as one.
                let word = unsafe { self.base.add(at).cast::<std::sync::atomic::AtomicU64>().as_ref() };
                word.store(0, std::sync::atomic::Ordering::Relaxed);
            }
            Ok(())
        }
    }

    /// Whether the system's pages are not larger than [`PAGE`]: madvise(2) rounds lengths up to whole
    /// pages, and would take neighbours that are in use.
    #[cfg(not(miri))]
    fn system_pages_fit() -> bool {
        // SAFETY: sysconf(3) takes a number and touches no memory of ours.
        unsafe { libc::sysconf(libc::_SC_PAGESIZE) == PAGE as libc::c_long }
    }

    impl Drop for Reservation {
        fn drop(&mut self) {
            #[cfg(not(miri))]
            // SAFETY: our own mapping, unmapped once; the owner of the arena is going away, and all
            // references into it borrow from that owner.
            unsafe {
                libc::munmap(self.base.as_ptr().sub(self.colour).cast(), self.len + self.colour);
            }
            #[cfg(miri)]
            // SAFETY: allocated in `new` with exactly this layout.
            unsafe {
                std::alloc::dealloc(
                    self.base.as_ptr(),
                    std::alloc::Layout::from_size_align_unchecked(self.len, PAGE),
                );
            }
        }
    }
}
#[cfg(not(loom))]
pub(crate) use memory::Reservation;

/// Page size assumed for accounting (x86-64 and aarch64 with 4 KiB pages).
pub(crate) const PAGE: usize = 4096;

#[cfg(all(not(loom), not(miri)))]
fn membarrier_cmd(command: libc::c_int) -> std::io::Result<()> {
    // SAFETY: membarrier(2) takes three numbers and touches no memory of ours.
    let r = unsafe { libc::syscall(libc::SYS_membarrier, command, 0, 0) };
    if r < 0 { Err(std::io::Error::last_os_error()) } else { Ok(()) }
}

/// Announce that this process will use [`membarrier`].
///
/// # Errors
/// The error of membarrier(2): ENOSYS, EINVAL, or a sandbox's answer.
#[cfg(all(not(loom), not(miri)))]
pub(crate) fn register_membarrier() -> std::io::Result<()> {
    membarrier_cmd(libc::MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED)
}

/// A full barrier in every running thread of this process.
///
/// # Errors
/// As above; nothing was done then.
#[cfg(all(not(loom), not(miri)))]
pub(crate) fn membarrier() -> std::io::Result<()> {
    membarrier_cmd(libc::MEMBARRIER_CMD_PRIVATE_EXPEDITED)
}

/// Miri has no system calls of this kind: both sides fence.
#[cfg(miri)]
pub(crate) fn register_membarrier() -> std::io::Result<()> {
    Err(std::io::Error::from_raw_os_error(libc::ENOSYS))
}

/// As above.
#[cfg(miri)]
pub(crate) fn membarrier() -> std::io::Result<()> {
    Err(std::io::Error::from_raw_os_error(libc::ENOSYS))
}
