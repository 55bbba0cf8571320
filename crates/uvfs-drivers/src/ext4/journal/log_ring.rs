//! The blocks of the log, and the place of each in the image. The log continues from its last block at its first.
//!
//! The map is read once. It has no holes, leads to no block twice, and has few pieces, so that a small image cannot
//! claim a long log.

use super::super::Fs;
use super::super::fault::{Fault, Result, ensure};
use super::super::image_blocks::ImageSource;
use super::super::inode::Node;
use uvfs::types::Errno;

/// Most pieces that the journal may lie in. It is made in one go, so it has a few, or one for each table of pointers.
const PIECES_MAX: usize = 1 << 16;

/// Blocks in a row.
struct Piece {
    /// The first of them, as the journal counts.
    first: u64,
    /// Its place in the image.
    at: u64,
    len: u64,
}

/// See the module's head.
pub(super) struct Ring<'s> {
    source: &'s dyn ImageSource,
    block_size: usize,
    blocks: u64,
    /// In order.
    pieces: Vec<Piece>,
}

impl<'s> Ring<'s> {
    /// The first `blocks` blocks of an inode.
    pub(super) fn new(fs: &Fs, node: &Node, source: &'s dyn ImageSource, blocks: u64) -> Result<Self> {
        let (mut pieces, mut next) = (Vec::<Piece>::new(), 0);
        while next < blocks {
            let run = fs.run(node, next)?;
            let at = run.block.ok_or_else(|| Fault::damage("a hole in the journal").of(node.ino))?;
            let len = run.len.min(blocks - next);
            match pieces.last_mut() {
                Some(last) if last.at + last.len == at => last.len += len,
                _ => pieces.push(Piece { first: next, at, len }),
            }
            ensure(pieces.len() <= PIECES_MAX, "a journal in too many pieces")?;
            next += len;
        }
        let mut places: Vec<_> = pieces.iter().map(|piece| (piece.at, piece.at + piece.len)).collect();
        places.sort_unstable();
        match places.windows(2).find(|pair| pair[0].1 > pair[1].0) {
            Some(pair) => Err(Fault::damage("a block that is in the journal twice").in_block(pair[1].0)),
            None => Ok(Self { source, block_size: fs.sup.block_size, blocks, pieces }),
        }
    }

    /// The number of blocks.
    pub(super) fn blocks(&self) -> u64 {
        self.blocks
    }

    pub(super) fn block_size(&self) -> usize {
        self.block_size
    }

    /// The number of the image's blocks.
    pub(super) fn image_blocks(&self) -> u64 {
        self.source.size() / self.block_size as u64
    }

    /// The place of a block of the journal in the image.
    pub(super) fn place(&self, block: u64) -> Result<u64> {
        let behind = self.pieces.partition_point(|piece| piece.first <= block);
        let piece = behind.checked_sub(1).and_then(|index| self.pieces.get(index));
        let piece = piece.filter(|piece| block - piece.first < piece.len);
        piece
            .map(|piece| piece.at + (block - piece.first))
            .ok_or_else(|| Fault::damage("a block past the journal"))
    }

    /// Reads the beginning of a block, or all of it.
    pub(super) fn read(&self, block: u64, buf: &mut [u8]) -> Result<()> {
        let at = self.place(block)?;
        let read = self.source.read_at(buf, at * self.block_size as u64);
        read.map_err(|_| Fault::unread(at, Errno::IO))
    }
}

#[cfg(test)]
impl<'s> Ring<'s> {
    /// A whole source, backwards from its end so that no block stands where it is counted.
    pub(super) fn backwards(source: &'s dyn ImageSource, block_size: usize) -> Self {
        let blocks = source.size() / block_size as u64;
        let pieces = (0..blocks).map(|first| Piece { first, at: blocks - 1 - first, len: 1 }).collect();
        Self { source, block_size, blocks, pieces }
    }
}
