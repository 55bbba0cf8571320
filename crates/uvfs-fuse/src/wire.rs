//! The FUSE protocol as bytes, without a device: requests are decoded, answers encoded, INIT is negotiated.
//!
//! A transport gives each request to [`Dispatcher::handle`](dispatch::Dispatcher::handle) in the protocol's three parts: the header that all
//! requests begin with, the operation's structure, and the rest (names, data). `/dev/fuse` delivers them in one
//! piece, and [`request::split`] finds the end of the second. A ring delivers them apart. The answer goes through a
//! [`Port`](reply_port::Port), the transport's way back for this one request.
//!
//! No code here is unsafe, keeps its input, or waits; arbitrary bytes cause an error, never a panic. All numbers of
//! the protocol are in the machine's byte order.

pub(crate) mod dispatch;
pub(crate) mod init;
pub(crate) mod interrupts;
pub(crate) mod latency_histograms;
pub(crate) mod reply;
pub(crate) mod reply_port;
pub(crate) mod request;

#[cfg(test)]
mod tests;
