//! The memory limit of a mount: the thread that keeps it, and what it listens to and asks for.
//!
//! [`balancing_thread`] is that thread. [`ask_to_forget`] asks the kernel to forget nodes. [`psi`] listens to the system's memory
//! pressure, and [`lowered_limit`] lowers the limit by it. [`memory_shortage`] has the requests that wait for memory, and
//! the counters.

mod ask_to_forget;
pub(crate) mod balancing_thread;
mod lowered_limit;
pub(crate) mod memory_shortage;
mod psi;
