//! Memory that is read-only for a while: the protection of ranges, and the signal that a store into
//! one raises.
//!
//! The handler runs on the thread's own stack (which stays writable, unlike the runtime's stack for
//! overflows). It records the address and the instruction of the store, and makes that one page writable.
//! So the store completes, and a store to another page is seen too. There is one watch in a process. The handler
//! stays installed for good, and leaves unexpected faults to the default action.

use std::mem::MaybeUninit;
use std::ops::Range;
use std::ptr;
use std::sync::atomic::{AtomicPtr, AtomicUsize, Ordering};

use rustix::io::Errno;

/// Most stores recorded for one call; later ones are only counted.
const NOTED: usize = 64;
const PAGE: usize = 4096;

/// The handler's own pages, which are never protected.
pub(super) struct Notes {
    armed: AtomicUsize,
    count: AtomicUsize,
    stores: [(AtomicUsize, AtomicUsize); NOTED],
}

static NOTES: AtomicPtr<Notes> = AtomicPtr::new(ptr::null_mut());

impl Notes {
    /// Maps the notes and installs the handler.
    ///
    /// # Errors
    /// ENOMEM; EBUSY if there is a watch already.
    pub(super) fn install() -> Result<&'static Self, Errno> {
        let len = size_of::<Self>().next_multiple_of(PAGE);
        // SAFETY: a new anonymous mapping, zero-filled and never unmapped; zero is a valid value of
        // all the atomics.
        let notes = unsafe {
            let p = libc::mmap(
                ptr::null_mut(),
                len,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
                -1,
                0,
            );
            if p == libc::MAP_FAILED {
                return Err(errno());
            }
            &*p.cast::<Self>()
        };
        let here = ptr::from_ref(notes).cast_mut();
        if NOTES.compare_exchange(ptr::null_mut(), here, Ordering::AcqRel, Ordering::Acquire).is_err() {
            return Err(Errno::BUSY);
        }
        let mut action = MaybeUninit::<libc::sigaction>::zeroed();
        // SAFETY: a zeroed sigaction is a valid one; the handler only does what a signal handler
        // may (loads and stores of atomics, mprotect, signal).
        let r = unsafe {
            let action = action.assume_init_mut();
            action.sa_sigaction = on_fault as extern "C" fn(_, _, _) as usize;
            action.sa_flags = libc::SA_SIGINFO;
            libc::sigaction(libc::SIGSEGV, action, ptr::null_mut())
        };
        if r == 0 { Ok(notes) } else { Err(errno()) }
    }

    /// The range of the notes themselves, which stays writable.
    pub(super) fn range(&self) -> Range<usize> {
        let start = ptr::from_ref(self) as usize;
        start..start + size_of::<Self>().next_multiple_of(PAGE)
    }

    /// Sets whether stores are expected from now on.
    pub(super) fn arm(&self, armed: bool) {
        if armed {
            self.count.store(0, Ordering::Relaxed);
        }
        self.armed.store(usize::from(armed), Ordering::SeqCst);
    }

    /// The number of pages stored to.
    pub(super) fn count(&self) -> usize {
        self.count.load(Ordering::Relaxed)
    }

    /// Address of the store and of the instruction, of the first [`NOTED`] ones.
    pub(super) fn stores(&self) -> impl Iterator<Item = (usize, usize)> + '_ {
        let noted = self.stores.iter().take(self.count());
        noted.map(|(at, by)| (at.load(Ordering::Relaxed), by.load(Ordering::Relaxed)))
    }
}

extern "C" fn on_fault(_signal: libc::c_int, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    // SAFETY: `install` put a mapping there that is never unmapped; the kernel hands a valid
    // siginfo to a handler installed with SA_SIGINFO.
    let (notes, at) = unsafe { (NOTES.load(Ordering::Acquire).as_ref(), (*info).si_addr() as usize) };
    let expected = notes.filter(|notes| notes.armed.load(Ordering::SeqCst) != 0);
    let page = at & !(PAGE - 1)..(at & !(PAGE - 1)) + PAGE;
    match expected {
        Some(notes) if protect(&page, true).is_ok() => {
            let i = notes.count.fetch_add(1, Ordering::Relaxed);
            if let Some((address, by)) = notes.stores.get(i) {
                address.store(at, Ordering::Relaxed);
                by.store(instruction(context), Ordering::Relaxed);
            }
        }
        // A fault of another kind: the default action follows when the instruction runs again.
        // SAFETY: resetting a signal's action is allowed in a handler.
        _ => unsafe {
            libc::signal(libc::SIGSEGV, libc::SIG_DFL);
        },
    }
}

/// The instruction that a signal interrupted.
fn instruction(context: *mut libc::c_void) -> usize {
    // SAFETY: the third argument of a handler with SA_SIGINFO points to a ucontext.
    let context = unsafe { &(*context.cast::<libc::ucontext_t>()).uc_mcontext };
    #[cfg(target_arch = "x86_64")]
    return context.gregs[libc::REG_RIP as usize] as usize;
    #[cfg(target_arch = "aarch64")]
    return context.pc as usize;
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    {
        let _ = context;
        0
    }
}

/// Runs `f` in a child of this process that has only the calling thread. Returns the child's
/// exit code (or that of a signal, above 128).
///
/// # Errors
/// The error of `fork(2)` or `waitpid(2)`.
pub(super) fn in_a_child(f: impl FnOnce() -> u8) -> Result<i32, Errno> {
    // SAFETY: the child has a copy of all memory and this thread. Locks that another thread holds
    // at this moment stay locked in it: the C library sees to its own, and callers to theirs.
    match unsafe { libc::fork() } {
        -1 => Err(errno()),
        0 => std::process::exit(i32::from(f())),
        child => {
            let status = rustix::process::waitpid(
                rustix::process::Pid::from_raw(child),
                rustix::process::WaitOptions::empty(),
            )?;
            let code = status.and_then(|(_, s)| s.exit_status().or(s.terminating_signal().map(|n| 128 + n)));
            Ok(code.unwrap_or(255))
        }
    }
}

/// Makes whole pages read-only, or writable again.
///
/// # Errors
/// The error of `mprotect(2)`.
pub(super) fn protect(range: &Range<usize>, writable: bool) -> Result<(), Errno> {
    let how = if writable { libc::PROT_READ | libc::PROT_WRITE } else { libc::PROT_READ };
    // SAFETY: nothing is unmapped; the range was writable before the watch and becomes so again, and
    // a store meanwhile is caught by the handler.
    let r = unsafe { libc::mprotect(range.start as *mut libc::c_void, range.len(), how) };
    if r == 0 { Ok(()) } else { Err(errno()) }
}

/// The calling thread's stack, with what the thread library keeps at its end (thread-local storage).
///
/// # Errors
/// The error of `pthread_getattr_np(3)`.
pub(super) fn own_stack() -> Result<Range<usize>, Errno> {
    let mut attr = MaybeUninit::<libc::pthread_attr_t>::zeroed();
    let (mut start, mut len) = (ptr::null_mut(), 0);
    // SAFETY: the attributes are initialised by the first call, read by the second and destroyed
    // once by the third.
    let r = unsafe {
        let r = libc::pthread_getattr_np(libc::pthread_self(), attr.as_mut_ptr());
        if r == 0 {
            libc::pthread_attr_getstack(attr.as_ptr(), &mut start, &mut len);
            libc::pthread_attr_destroy(attr.as_mut_ptr());
        }
        r
    };
    let start = start as usize;
    if r == 0 { Ok(start..start + len) } else { Err(Errno::from_raw_os_error(r)) }
}

fn errno() -> Errno {
    std::io::Error::last_os_error().raw_os_error().map_or(Errno::IO, Errno::from_raw_os_error)
}
