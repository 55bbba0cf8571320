//! The keeper itself: a process that runs in the server's memory, on a stack of its own.
//!
//! It has the thread-local storage of the thread that made it, so it must not use that: no allocation, no panic, no
//! function of the standard library. A system call of `libc` that fails writes `errno` there; the maker waits until
//! the keeper has made all calls that can fail.

use std::ffi::{c_int, c_long, c_void};
use std::sync::atomic::{AtomicI32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use rustix::io::Errno;

/// Bytes of its stack.
const STACK: usize = 64 << 10;
/// How long it may take to start.
const PATIENCE: Duration = Duration::from_secs(1);

/// [`STARTING`], [`WAITING`], or the error number of the failed call.
static STATE: AtomicI32 = AtomicI32::new(STARTING);
const STARTING: i32 = -1;
const WAITING: i32 = 0;

/// Starts the keeper of this process. Nobody waits for it: it is not a child that wait(2) finds.
pub(super) fn start() -> Result<(), Errno> {
    let server = rustix::process::getpid().as_raw_nonzero().get();
    // Until the end of the process, and a little longer.
    let stack = Box::leak(vec![0_u128; STACK / size_of::<u128>()].into_boxed_slice());
    let top = stack.as_mut_ptr_range().end.cast::<c_void>();
    // SAFETY: `keep` runs on a stack that nobody else uses and that stays mapped, since the keeper shares this
    // memory. It follows the rules of the module. The argument is a number.
    let made = unsafe { libc::clone(keep, top, libc::CLONE_VM, server as usize as *mut c_void) };
    if made < 0 {
        return Err(Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::AGAIN));
    }
    let since = Instant::now();
    while STATE.load(Ordering::Acquire) == STARTING {
        if since.elapsed() > PATIENCE {
            return Err(Errno::TIMEDOUT);
        }
        thread::yield_now();
    }
    match STATE.load(Ordering::Acquire) {
        WAITING => Ok(()),
        error => Err(Errno::from_raw_os_error(error)),
    }
}

/// The keeper.
extern "C" fn keep(server: *mut c_void) -> c_int {
    let server = server as c_long;
    // SAFETY: system calls with numbers, a name that lives as long as the program, and the array below, which
    // outlives the call. The descriptors that are closed are the keeper's own: it shares no table.
    unsafe {
        let pidfd = libc::syscall(libc::SYS_pidfd_open, server, 0);
        // A server that has ended already may have lent its number to another process.
        if pidfd < 0 || libc::syscall(libc::SYS_getppid) != server {
            STATE.store(libc::ENOSYS, Ordering::Release);
            return 1;
        }
        // Inherited files could be a pipe whose reader waits for its end, or a lock. Before Linux 5.9 there is no
        // close_range, so there is no keeper.
        if (pidfd != 0 && libc::syscall(libc::SYS_dup3, pidfd, 0, 0) < 0)
            || libc::syscall(libc::SYS_close_range, 1, libc::c_uint::MAX, 0) < 0
        {
            STATE.store(libc::ENOSYS, Ordering::Release);
            return 1;
        }
        libc::syscall(libc::SYS_chdir, c"/".as_ptr());
        libc::syscall(libc::SYS_prctl, libc::PR_SET_NAME, c"uvfs-keeper".as_ptr(), 0, 0, 0);
        STATE.store(WAITING, Ordering::Release);
        let mut ended = [libc::pollfd { fd: 0, events: libc::POLLIN, revents: 0 }];
        let none = std::ptr::null::<c_void>();
        // An error would come again and again: the keeper ends then, too.
        while libc::syscall(libc::SYS_ppoll, ended.as_mut_ptr(), 1, none, none, 8) == 0 {}
    }
    0
}
