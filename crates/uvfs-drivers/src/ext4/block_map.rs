//! From a file's blocks to the image's, for both kinds of maps.

use super::Fs;
use super::block_run::Run;
use super::fault::{Fault, Locate, Result, ensure};
use super::inode::Node;
use super::{extents, indirect};

/// A run that is no hole.
#[derive(Clone, Copy, Debug)]
pub(super) struct Stored {
    pub len: u64,
    pub at: u64,
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

    /// Blocks from this one on of a directory, a link, or a file of metadata. These have no holes.
    pub(super) fn metadata_run(&self, node: &Node, block: u64) -> Result<Stored> {
        ensure(!node.is_inline(), "inline data where there are blocks").of(node.ino)?;
        let run = self.run(node, block)?;
        let at = run.block.ok_or_else(|| Fault::damage("a hole where there is none").of(node.ino))?;
        Ok(Stored { len: run.len, at })
    }
}
