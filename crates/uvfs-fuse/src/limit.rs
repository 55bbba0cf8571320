//! The memory limit of a mount: the thread that keeps it, and what it listens to and asks for.
//!
//! [`balance`] is that thread. [`reclaim`] asks the kernel to forget nodes. [`psi`] listens to the system's memory
//! pressure, and [`lowered_limit`] lowers the limit by it. [`shortage`] has the requests that wait for memory, and
//! the counters.

pub(crate) mod balance;
mod lowered_limit;
mod psi;
mod reclaim;
pub(crate) mod shortage;
