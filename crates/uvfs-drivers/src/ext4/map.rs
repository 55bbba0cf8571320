//! From a file's blocks to the image's, whichever way the inode has it.

use super::Fs;
use super::blocks::Block;
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

    /// A block of a file that is metadata: a directory's, a link's. Such have no holes.
    pub(super) fn file_block(&self, node: &Node, block: u64) -> Result<(u64, Block<'_>)> {
        ensure(!node.is_inline(), "inline data where there are blocks").of(node.ino)?;
        let at = self.run(node, block)?.block;
        let at = at.ok_or_else(|| Fault::damage("a hole where there is none").of(node.ino))?;
        Ok((at, self.blocks.get(at).of(node.ino)?))
    }
}
