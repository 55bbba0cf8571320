//! How a program publishes a value: the [`Attribute`] trait, and closures that implement it.
//!
//! Every call holds an *active reference* to its node. [`Node::remove`] waits for it, and no call begins after the
//! removal has begun. So a call may use the object behind its node without checking that it still exists. No lock of
//! the tree is held meanwhile: a call may change the tree. A call must not wait for the removal of its own node to
//! end, because the removal waits for the call. [`Call::remove_self`] and [`Call::break_protection`] exist for that
//! case. Calls of one attribute may run at the same time, on any thread.

use uvfs::types::{Errno, Op, Result};
use uvfs_sync::active_ref::Active;

use super::node_handle::Node;

/// How an attribute is read and written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Kind {
    /// [`Attribute::show`] makes the whole text, which an open file keeps until it is read from the start
    /// again. [`Attribute::store`] gets the bytes of one write(2).
    #[default]
    Text,
    /// [`Attribute::read_at`] and [`Attribute::write_at`], on `size` bytes.
    Binary {
        /// Bytes that stat(2) reports.
        size: u64,
    },
    /// [`Attribute::record`] makes one record after the other while the file is read; they are never held all
    /// at once. Written like a text.
    Records,
}

/// A value published as a file. Calls without a method fail with EIO, as in sysfs.
#[allow(unused_variables)]
pub trait Attribute: Send + Sync + 'static {
    /// How it is read and written; always the same.
    fn kind(&self) -> Kind {
        Kind::Text
    }
    /// Whether its calls may take long; always the same. If false, a thread that others need makes the calls.
    fn may_block(&self) -> bool {
        true
    }
    /// Appends the text to `out`, which is empty.
    fn show(&self, call: &Call<'_>, out: &mut Vec<u8>) -> Result<()> {
        Err(Errno::IO)
    }
    /// Takes a new value of at most [`STORE_MAX`] bytes: those of one write(2), at any offset in the file. Returns
    /// how many bytes were taken.
    fn store(&self, call: &Call<'_>, data: &[u8]) -> Result<usize> {
        Err(Errno::IO)
    }
    /// Reads at an offset below the size. Returns fewer bytes than asked for only at the end.
    fn read_at(&self, call: &Call<'_>, offset: u64, buf: &mut [u8]) -> Result<usize> {
        Err(Errno::IO)
    }
    /// Writes at an offset; the range lies below the size, if that is not 0.
    fn write_at(&self, call: &Call<'_>, offset: u64, data: &[u8]) -> Result<usize> {
        Err(Errno::IO)
    }
    /// Appends the record at `position` (0: the first) to `out`, and returns the position of the next one.
    /// If there is no record at or after `position`, returns `None` and appends nothing. The protection holds
    /// for one record, so a position must stay meaningful after its record is gone.
    fn record(&self, call: &Call<'_>, position: u64, out: &mut Vec<u8>) -> Result<Option<u64>> {
        Err(Errno::IO)
    }
}

/// Most bytes that [`Attribute::store`] gets at once; the rest of a longer write(2) is not taken.
pub const STORE_MAX: usize = 4096;

/// A read-only text: `|out: &mut Vec<u8>| …`.
impl<F> Attribute for F
where
    F: Fn(&mut Vec<u8>) -> Result<()> + Send + Sync + 'static,
{
    fn show(&self, _: &Call<'_>, out: &mut Vec<u8>) -> Result<()> {
        self(out)
    }
}

/// A text made of two closures; see [`read_write`].
#[derive(Debug)]
pub struct ReadWrite<S, T> {
    show: S,
    store: T,
}

/// A text that `show` makes and `store` takes. `store` gets the call and the bytes of one write(2); it takes all of
/// them or refuses them.
pub fn read_write<S, T>(show: S, store: T) -> ReadWrite<S, T>
where
    S: Fn(&mut Vec<u8>) -> Result<()> + Send + Sync + 'static,
    T: Fn(&Call<'_>, &[u8]) -> Result<()> + Send + Sync + 'static,
{
    ReadWrite { show, store }
}

impl<S, T> Attribute for ReadWrite<S, T>
where
    S: Fn(&mut Vec<u8>) -> Result<()> + Send + Sync + 'static,
    T: Fn(&Call<'_>, &[u8]) -> Result<()> + Send + Sync + 'static,
{
    fn show(&self, _: &Call<'_>, out: &mut Vec<u8>) -> Result<()> {
        (self.show)(out)
    }

    fn store(&self, call: &Call<'_>, data: &[u8]) -> Result<usize> {
        (self.store)(call, data).map(|()| data.len())
    }
}

/// The node of a call.
pub(super) trait Called {
    fn ino(&self) -> u64;
    fn node(&self) -> Node;
    /// See [`Call::remove_self`]; the call's own protection is broken.
    fn remove_self(&self) -> bool;
}

/// One call of an [`Attribute`].
pub struct Call<'a> {
    op: &'a Op,
    called: &'a dyn Called,
    active: &'a Active<'a>,
}

impl std::fmt::Debug for Call<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Call").field("op", self.op).field("ino", &self.called.ino()).finish_non_exhaustive()
    }
}

impl<'a> Call<'a> {
    pub(super) fn new(op: &'a Op, called: &'a dyn Called, active: &'a Active<'a>) -> Self {
        Self { op, called, active }
    }

    /// The caller's credentials, and the time.
    pub fn op(&self) -> &Op {
        self.op
    }

    /// The node. Ask for it only if needed: it counts a reference on a counter that other calls share.
    pub fn node(&self) -> Node {
        self.called.node()
    }

    /// Removes the node, with everything below it, from within its own call. When this returns, no other call is
    /// inside. If two calls do this, the first one removes (true), and the other waits until that is
    /// done (false). The node must not be used as if it existed afterwards.
    pub fn remove_self(&self) -> bool {
        self.active.break_protection();
        let first = self.called.remove_self();
        self.active.unbreak();
        first
    }

    /// Lets the node be removed while this call goes on. For a call that waits for a lock which another
    /// thread may hold while it removes the node.
    pub fn break_protection(&self) {
        self.active.break_protection();
    }

    /// Ends what [`Call::break_protection`] began. False: the removal has begun meanwhile, or is over. It does
    /// not wait for this call, which must not use the node as if it existed.
    pub fn unbreak(&self) -> bool {
        self.active.unbreak()
    }
}
