//! The memory limit of a mount: the thread that keeps it, and what it listens to and asks for.
//!
//! [`balance`] is that thread. [`ask_to_forget`] asks the kernel to forget nodes. [`psi`] listens to the system's memory
//! pressure, and [`lowered_limit`] lowers the limit by it. [`shortage`] has the requests that wait for memory, and
//! the counters.

mod ask_to_forget;
pub(crate) mod balance;
mod lowered_limit;
mod psi;
pub(crate) mod shortage;
