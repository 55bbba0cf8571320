//! (to come: the seam only)
//!
//! `dev.rs` opens the connection: it reads INIT, asks `uring::Rings::prepare()` (before INIT is answered) whether rings can
//! be had, answers INIT, then runs its own readers (one if rings are on, for FORGET and INTERRUPT) and
//! `rings.run(device, dispatcher)`; see the end of this file for what it expects of `uring`.
//!
//! ```ignore
//! // in uring/mod.rs or uring.rs
//! pub(crate) struct Rings { .. }
//! impl Rings {
//!     /// Makes rings and reserves memory; nothing of the kernel's FUSE is asked but enable_uring. The error says why not.
//!     pub(crate) fn prepare() -> io::Result<Self>;
//!     /// Registers all queues on the connection `device`, whose INIT has been answered with OVER_IO_URING, and starts its threads.
//!     /// They end when the connection does.
//!     pub(crate) fn start(self, device: Arc<File>, dispatcher: Arc<Dispatcher>) -> io::Result<Running>;
//! }
//! impl Running {
//!     /// Waits until the queues' threads have ended (after the connection's end).
//!     pub(crate) fn join(self) -> io::Result<()>;
//! }
//! ```
