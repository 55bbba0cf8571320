//! The boundary to C: no panic crosses it, and a missing argument is EINVAL.

use std::ffi::c_int;

use uvfs_cache::Errno;

use crate::values::Res;

/// Runs a call of the boundary. A panic ends here, as -EIO: none may reach C.
pub fn call(f: impl FnOnce() -> Res<c_int>) -> c_int {
    // A panic may leave something half done behind the cache's own locks, which do not poison.
    match std::panic::catch_unwind(std::panic::AssertUnwindSafe(f)) {
        Ok(Ok(value)) => value,
        Ok(Err(errno)) => -errno.raw_os_error(),
        Err(_) => -Errno::IO.raw_os_error(),
    }
}

/// An argument that must be there.
pub fn given<V>(argument: Option<V>) -> Res<V> {
    argument.ok_or(Errno::INVAL)
}
