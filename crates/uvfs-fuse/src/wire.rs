//! The FUSE protocol as bytes, without a device: requests are taken apart, answers put together, INIT is negotiated.
//!
//! A transport gives each request to [`Dispatcher::handle`] in the three parts that the protocol has: the header that all
//! requests begin with, the structure that belongs to the operation, and what follows it (names, data). `/dev/fuse`
//! delivers them in one piece, for which [`request::split`] knows where the second ends; a ring delivers them
//! apart. The answer goes through a [`Port`], the transport's own way back for this one request.
//!
//! Nothing here is unsafe, keeps what it is given, or waits; arbitrary bytes make an error, never a panic. All numbers of the
//! protocol are the machine's own.

pub(crate) mod dispatch;
pub(crate) mod init;
pub(crate) mod interrupts;
pub(crate) mod reply;
pub(crate) mod request;

#[cfg(test)]
mod tests;

pub(crate) use dispatch::Dispatcher;

/// Bytes of `struct fuse_in_header`.
pub(crate) const IN_HEADER: usize = 40;
/// Bytes of `struct fuse_out_header`.
pub(crate) const OUT_HEADER: usize = 16;
/// Largest write, and read, of one request.
pub(crate) const MAX_WRITE: u32 = 1 << 20;
/// Bytes that a request can be long: the header and structure of a write, rounded up to a page as the kernel does, and
/// its data. What is not a write is smaller: an extended attribute's name and value have less than 65 KiB + 256.
pub(crate) const MAX_REQUEST: usize = MAX_WRITE as usize + 4096;

/// The way back of one request: it knows where the answer goes, and is used up by it. Dropped unused it says nothing,
/// as FORGET and INTERRUPT want it; that everything else is answered is [`dispatch`]'s business.
///
/// Any thread may send. While [`Dispatcher::handle`] runs, the parts of the request are still borrowed from the
/// transport, so that a port whose memory is the request's own must not write there before `handle` has returned,
/// `room` excepted: see there.
pub(crate) trait Port: Send + 'static {
    /// Memory for the body of the answer, `len` bytes, which may hold anything; `len` is at most [`MAX_WRITE`]. Asked for
    /// at most once, by the thread that called `handle` and before that returns, and only for requests that have no
    /// payload (READ, READDIR, READDIRPLUS), so that it may be where a payload would have been.
    fn room(&mut self, len: usize) -> &mut [u8];

    /// Sends an answer to the request `unique`.
    fn send(self, unique: u64, answer: Answer<'_>);
}

/// What is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Answer<'a> {
    /// An error, and no body.
    Error(uvfs::Errno),
    /// A body: the operation's structure and what follows it.
    Body(&'a [u8]),
    /// A body that is the first so many bytes of the port's room.
    Room(usize),
}
