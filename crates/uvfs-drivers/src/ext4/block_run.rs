//! Runs of a file's blocks, as either kind of block map gives them.

/// File blocks are numbered in 32 bits.
pub(super) const END: u64 = 1 << 32;

/// File blocks in a row, of one kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Run {
    /// How many, at least one.
    pub len: u64,
    /// The image's block of the first one. None if they read as zeros: a hole, or allocated and not written.
    pub block: Option<u64>,
}

impl Run {
    pub(super) fn hole(len: u64) -> Self {
        Self { len: len.max(1), block: None }
    }
}
