//! From a file's blocks to the image's, whichever way the inode has it.

use super::Fs;
use super::fault::{Fault, Locate, Result, ensure};
use super::inode::Node;
use super::{extents, indirect};

/// File blocks are numbered in 32 bits.
pub(super) const END: u64 = 1 << 32;

/// File blocks in a row, of one kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Run {
    /// How many, at least one.
    pub len: u64,
    /// Where the first of them stands; none for what reads as zeros: a hole, or allocated and not written.
    pub block: Option<u64>,
}

/// A run that is no hole.
#[derive(Clone, Copy, Debug)]
pub(super) struct Stored {
    pub len: u64,
    pub at: u64,
}

impl Run {
    pub(super) fn hole(len: u64) -> Self {
        Self { len: len.max(1), block: None }
    }
}

impl Fs {
    /// The run at a file block. (Inline data has no blocks.)
    pub(super) fn run(&self, node: &Node, block: u64) -> Result<Run> {
        let run = if node.has_extents() {
            extents::run(self, node, block)
        } else {
            indirect::run(self, node, block)
        };
        run.of(node.ino)
    }

    /// Blocks of a file that is metadata, a directory or a link: from this one on. Such have no holes.
    pub(super) fn metadata_run(&self, node: &Node, block: u64) -> Result<Stored> {
        ensure(!node.is_inline(), "inline data where there are blocks").of(node.ino)?;
        let run = self.run(node, block)?;
        let at = run.block.ok_or_else(|| Fault::damage("a hole where there is none").of(node.ino))?;
        Ok(Stored { len: run.len, at })
    }
}
