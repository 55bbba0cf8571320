//! A process that keeps the server's memory until the server has ended, so that a killed server lets its users go at
//! once.
//!
//! A process that ends first frees its memory and then closes its files, and the kernel ends the connection when the
//! device is closed. With hundreds of megabytes in a tmpfs, callers waited for hundreds of milliseconds. The keeper
//! shares the server's memory (`CLONE_VM`), not its files. As long as the keeper lives, an ending thread of the
//! server has nothing to free and closes the device. The keeper waits for the server's last thread, then ends, and
//! the memory goes.
//!
//! It does nothing else. Its one file is the server's pidfd, its working directory is `/`, and signals that ask a
//! server to end do not end it. It is named `uvfs-keeper`. If it cannot be started, or was killed, everything works
//! as without it, but slower.

use rustix::io::Errno;

mod sys;

/// Starts it, once signals are blocked and while there is no other thread.
pub fn start() -> Result<(), Errno> {
    sys::start().inspect_err(|error| tracing::debug!(%error, "no keeper"))
}
