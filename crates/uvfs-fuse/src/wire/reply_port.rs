//! The way back of a request, and the sizes that transports share.

/// Bytes of `struct fuse_in_header`.
pub(crate) const IN_HEADER: usize = 40;
/// Bytes of `struct fuse_out_header`.
pub(crate) const OUT_HEADER: usize = 16;
/// The largest write, and read, of one request.
pub(crate) const MAX_WRITE: u32 = 1 << 20;
/// The greatest length of a request: the header and structure of a write, rounded up to a page as the kernel does,
/// and its data. Other requests are smaller: an extended attribute's name and value have less than 65 KiB + 256.
pub(crate) const MAX_REQUEST: usize = MAX_WRITE as usize + 4096;

/// The way back of one request: it knows the destination of the answer, which consumes it. Dropped unused it sends
/// nothing, as FORGET and INTERRUPT require; [`dispatch`](super::dispatch) makes sure that everything else is answered.
///
/// Any thread may send. While [`Dispatcher::handle`](super::dispatch::Dispatcher::handle) runs, the transport still lends the parts of the request. So a
/// port whose memory is the request's own must not write there before `handle` has returned, except in `room`: see
/// there.
pub(crate) trait Port: Send + 'static {
    /// Memory for the body of the answer: `len` bytes, with arbitrary content; `len` is at most [`MAX_WRITE`].
    /// Called at most once, by the thread that called `handle` and before that returns. Called only for requests
    /// without a payload (READ, READDIR, READDIRPLUS), so it may be the memory of a payload.
    fn room(&mut self, len: usize) -> &mut [u8];

    /// Sends an answer to the request `unique`.
    fn send(self, unique: u64, answer: Answer<'_>);

    /// Whether the kernel may never tell of a signal that the caller got before the request came here.
    fn may_lose_interrupt(&self) -> bool {
        false
    }
}

/// The content of an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Answer<'a> {
    /// An error, and no body.
    Error(uvfs::Errno),
    /// A body: the operation's structure and the data after it.
    Body(&'a [u8]),
    /// A body that is this many first bytes of the port's room.
    Room(usize),
}
