//! A pass through the blocks of a directory, and the end of one that goes in circles.
//!
//! A block map may lead to one block, or one table, any number of times. So a small image can claim a directory of
//! terabytes. No valid directory has a block twice, but to remember all blocks would take as much memory as the image
//! likes. So a [`Witness`] remembers one block. It takes another one whenever twice as many were met, so that circles
//! are found. In between it takes others at random, because the maker of an image must not know which. A pass that
//! repeats a few blocks ends after a small multiple of their number.
//!
//! A caller that lists a directory a few names at a time begins a pass with each call. The pass compares its first
//! block with an earlier one, which each call chooses anew ([`Pass::look_back`]).
//!
//! The data of files may be shared on purpose (`shared_blocks`): there no witness is asked.
//!
//! The map is asked once for each run of blocks. Everything here belongs to one call.

use std::hash::{BuildHasher, RandomState};

use super::Fs;
use super::block_map::Stored;
use super::dir::DirBlock;
use super::fault::{Locate, Result, ensure};
use super::inode::Node;

/// Remembers one of the blocks that it met.
pub(super) struct Witness {
    block: Option<u64>,
    met: u64,
    random: u64,
}

impl Witness {
    /// `key` is unknown to the image's maker.
    pub(super) fn new(key: u64) -> Self {
        Self { block: None, met: 0, random: key }
    }

    /// Damage if the block is the remembered one.
    #[inline]
    pub(super) fn meet(&mut self, block: u64) -> Result<()> {
        ensure(self.block != Some(block), "a block that is in a file twice").in_block(block)?;
        self.met += 1;
        let doubled = self.met.is_power_of_two();
        if doubled && self.met >= 64 {
            // Most passes end before: a key costs more than a block.
            self.random ^= RandomState::new().hash_one(self.met);
        }
        // A permutation with full period (odd addend, multiplier 1 modulo 4); the upper half is the better one.
        self.random = self.random.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
        // The n-th with a chance of one in n.
        if doubled || (u128::from(self.random) * u128::from(self.met)) >> 64 == 0 {
            self.block = Some(block);
        }
        Ok(())
    }
}

/// Blocks of one directory.
pub(super) struct Pass<'f, 'n> {
    fs: &'f Fs,
    dir: &'n Node,
    /// The run of the last block, and the directory's block with which the run begins.
    run: Stored,
    first: u64,
    witness: Witness,
}

impl<'f, 'n> Pass<'f, 'n> {
    pub(super) fn new(fs: &'f Fs, dir: &'n Node) -> Self {
        Self { fs, dir, run: Stored { len: 0, at: 0 }, first: 0, witness: Witness::new(fs.number) }
    }

    /// The pass begins at block `first`: damage if a random block before it is the same block of the image.
    pub(super) fn look_back(&self, first: u64) -> Result<()> {
        if first == 0 {
            return Ok(());
        }
        let before = RandomState::new().hash_one(first) % first;
        let at = |index| self.fs.metadata_run(self.dir, index).map(|run| run.at);
        // The pass itself reports damage of the map.
        if let (Ok(before), Ok(first)) = (at(before), at(first)) {
            ensure(before != first, "a block that is in a file twice").in_block(first).of(self.dir.ino)?;
        }
        Ok(())
    }

    /// A block with a right checksum. Each is asked for once.
    pub(super) fn block(&mut self, index: u64) -> Result<DirBlock<'f>> {
        if index < self.first || index - self.first >= self.run.len {
            (self.run, self.first) = (self.fs.metadata_run(self.dir, index)?, index);
        }
        let at = self.run.at + (index - self.first);
        self.witness.meet(at).of(self.dir.ino)?;
        self.fs.dir_block_at(self.dir, index, at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_met_again_and_again_is_found_out() {
        for different in [1, 2, 3, 100, 1024] {
            let mut witness = Witness::new(1);
            let met = (0..1_u64 << 24).take_while(|n| witness.meet(1000 + n % different).is_ok()).count();
            assert!(met >= different as usize && met < 1 << 20, "{different} blocks: {met}");
        }
    }

    #[test]
    fn blocks_that_are_all_different_are_no_damage() {
        let mut witness = Witness::new(2);
        assert!((0..100_000).all(|block| witness.meet(block).is_ok()));
    }
}
