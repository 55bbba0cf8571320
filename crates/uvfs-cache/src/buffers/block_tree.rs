//! Block number to block: a 64-way radix tree that is read without locks.
//!
//! An inner entry is the frame of a node, a leaf's entry a [`BlockId`]; the root's word also has its level.
//! The tree is as high as its largest block number needs, and never becomes lower.
//!
//! Protection: a thread that changes the tree holds the device's mutex. Readers take no lock. They load an entry,
//! then check that the node which held it is still in its generation. A node is filled before it is published
//! (release), and freed when its last entry goes, which moves its generation. So a reader under way, or one that
//! remembers a leaf ([`super::lookaside`]), notices. An entry that passes the check was the block's at that time. An
//! empty entry or a freed node proves nothing to a reader: it looks again under the mutex.
//!
//! Cost of a walk: two loads for each six bits of the number.

use std::io;

use uvfs_sync::page_frames::{FrameAt, FrameId, Frames};
use uvfs_sync::pinned_blocks::BlockId;
use uvfs_sync::primitives::{AtomicU64, Ordering};

/// Bits of the number that one node resolves. One under loom, which counts every access.
pub(super) const FAN_BITS: u32 = if cfg!(loom) { 1 } else { 6 };
/// Entries of a node.
const FAN: usize = 1 << FAN_BITS;
/// Bits of a block number. The remaining bits of a word beside a leaf's number name the device.
pub(super) const NUMBER_BITS: u32 = if cfg!(loom) { 10 } else { 46 };
/// The highest block number.
pub const MAX_BLOCK: u64 = (1 << NUMBER_BITS) - 1;

/// Shift of the root's level, above its frame.
const LEVEL_SHIFT: u32 = 60;

/// A block's slot in a node of `level`.
#[inline]
fn slot(block: u64, level: u32) -> usize {
    (block >> (FAN_BITS * (level - 1))) as usize % FAN
}

/// The lowest level of a root that covers a block.
fn level_for(block: u64) -> u32 {
    (u64::BITS - block.leading_zeros()).div_ceil(FAN_BITS).max(1)
}

/// There is no room for another node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Full;

/// The tree of one device.
#[derive(Debug)]
pub(super) struct Index {
    root: AtomicU64,
    nodes: Frames<FAN>,
}

impl Index {
    /// Address space for a tree of `blocks` blocks, whatever their numbers.
    pub(super) fn reserve(blocks: u32) -> io::Result<Self> {
        // Enough if each block has a leaf of its own and some share the nodes above. If they are even
        // farther apart, an insertion finds no node, and other blocks have to go.
        let nodes =
            Frames::reserve(blocks.saturating_mul(2).saturating_add(if cfg!(loom) { 2 } else { 64 }))?;
        Ok(Self { root: AtomicU64::new(0), nodes })
    }

    /// Bytes of memory that nodes have touched and not given back.
    pub(super) fn committed_bytes(&self) -> u64 {
        self.nodes.committed_bytes()
    }

    /// The leaf of a block, if there is one and it was not freed meanwhile.
    #[inline]
    pub(super) fn leaf(&self, block: u64) -> Option<FrameId> {
        // Acquire: pairs with the release store that published the root, so the node is filled.
        let root = self.root.load(Ordering::Acquire);
        let bits = FAN_BITS * (root >> LEVEL_SHIFT) as u32;
        if bits == 0 || block >> bits != 0 {
            return None;
        }
        let (mut node, mut shift) = (FrameId::from_bits(root), bits - FAN_BITS);
        while shift != 0 {
            match self.nodes.load(node, (block >> shift) as usize % FAN) {
                None | Some(0) => return None,
                Some(word) => node = FrameId::from_bits(word),
            }
            shift -= FAN_BITS;
        }
        Some(node)
    }

    /// The address of a leaf, as [`Index::entry`] takes it.
    #[inline]
    pub(super) fn at(&self, leaf: FrameId) -> FrameAt {
        self.nodes.at(leaf)
    }

    /// A block's entry in its leaf, if the leaf is still in its generation.
    #[inline(always)]
    pub(super) fn entry(&self, leaf: FrameAt, block: u64) -> Entry {
        match self.nodes.load_at(leaf, slot(block, 1)) {
            None => Entry::Stale,
            // The leaf is still in its generation, so this is an entry, or 0.
            Some(word) => Entry::Is(BlockId::from_own_word(word)),
        }
    }

    /// A block's entry; the caller holds the mutex.
    pub(super) fn get(&self, block: u64) -> Option<BlockId> {
        BlockId::from_word(self.nodes.own_word(self.leaf(block)?, slot(block, 1)))
    }

    /// Insert a block that is not there. The mutex is held.
    pub(super) fn insert(&self, block: u64, id: BlockId) -> Result<(), Full> {
        let mut node = self.root_covering(block)?;
        for level in (2..=self.level()).rev() {
            let at = slot(block, level);
            let word = self.nodes.own_word(node, at);
            node = if word == 0 {
                // Empty, and it stays so if the level below cannot be allocated.
                let new = self.nodes.allocate(0, &[]).ok_or(Full)?;
                self.nodes.store(node, at, new.to_bits());
                new
            } else {
                FrameId::from_bits(word)
            };
        }
        self.nodes.store(node, slot(block, 1), id.to_word());
        Ok(())
    }

    fn level(&self) -> u32 {
        (self.root.load(Ordering::Relaxed) >> LEVEL_SHIFT) as u32
    }

    /// The root, after it has grown as high as this block needs.
    fn root_covering(&self, block: u64) -> Result<FrameId, Full> {
        let wanted = level_for(block);
        if self.level() == 0 {
            let node = self.nodes.allocate(0, &[]).ok_or(Full)?;
            self.set_root(wanted, node);
        }
        while self.level() < wanted {
            let old = FrameId::from_bits(self.root.load(Ordering::Relaxed));
            let node = self.nodes.allocate(0, &old.to_bits().to_ne_bytes()).ok_or(Full)?;
            self.set_root(self.level() + 1, node);
        }
        Ok(FrameId::from_bits(self.root.load(Ordering::Relaxed)))
    }

    fn set_root(&self, level: u32, node: FrameId) {
        // Release: a reader that loads the entry with acquire finds the node filled.
        self.root.store(u64::from(level) << LEVEL_SHIFT | node.to_bits(), Ordering::Release);
    }

    /// Remove a block's entry, and the nodes that become empty. The mutex is held.
    pub(super) fn remove(&self, block: u64) {
        let mut level = self.level();
        if level == 0 || block >> (FAN_BITS * level) != 0 {
            return;
        }
        // The path down, by level.
        let mut node = FrameId::from_bits(self.root.load(Ordering::Relaxed));
        let mut way = [node; (NUMBER_BITS.div_ceil(FAN_BITS) + 1) as usize];
        while level > 1 {
            way[level as usize] = node;
            let word = self.nodes.own_word(node, slot(block, level));
            if word == 0 {
                return;
            }
            node = FrameId::from_bits(word);
            level -= 1;
        }
        self.nodes.store(node, slot(block, level), 0);
        while level < self.level() && (0..FAN).all(|at| self.nodes.own_word(node, at) == 0) {
            level += 1;
            let above = way[level as usize];
            // Cleared before the node below is freed: otherwise a reader would meet a moved generation
            // again and again.
            self.nodes.store(above, slot(block, level), 0);
            self.nodes.free(node);
            node = above;
        }
    }
}

/// A leaf's answer about a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Entry {
    /// It is no longer a leaf, or is another one.
    Stale,
    /// The block's entry, if it has one.
    Is(Option<BlockId>),
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use std::collections::BTreeMap;
    use uvfs_sync::pinned_blocks::Blocks;

    fn found(index: &Index, block: u64) -> Option<BlockId> {
        match index.entry(index.at(index.leaf(block)?), block) {
            Entry::Is(id) => id,
            Entry::Stale => panic!("a leaf that was just found is stale"),
        }
    }

    /// The tree against a map, with numbers far apart and close together.
    #[test]
    fn the_tree_is_a_map() {
        let (index, blocks) = (Index::reserve(4096).unwrap(), Blocks::reserve(512, 1024).unwrap());
        let (mut map, mut random) = (BTreeMap::new(), 88_172_645_463_325_252_u64);
        for round in 0..4000_u32 {
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            let block = (random >> 20 & 0xff) << [0, 6, 12, 38][(random % 4) as usize];
            if map.remove(&block).is_some() {
                index.remove(block);
                assert_eq!(found(&index, block), None);
            } else {
                let slot = 1 + round % 1000;
                let id = blocks.fill(slot, &[]).unwrap().id();
                assert!(blocks.kill(id));
                index.insert(block, id).unwrap();
                map.insert(block, id);
            }
            if round % 97 == 0 {
                assert!(map.iter().all(|(block, id)| found(&index, *block) == Some(*id)));
            }
        }
        let all: Vec<u64> = map.keys().copied().collect();
        all.iter().for_each(|block| index.remove(*block));
        assert!(all.iter().all(|block| found(&index, *block).is_none()));
        // All nodes but the root are free again.
        assert!(index.committed_bytes() > 0);
    }

    #[test]
    fn a_leaf_that_was_freed_is_stale_also_when_it_is_a_leaf_again() {
        let (index, blocks) = (Index::reserve(64).unwrap(), Blocks::reserve(512, 8).unwrap());
        let ids = [1, 2].map(|slot| blocks.fill(slot, &[]).unwrap().id());
        index.insert(1 << 20, ids[0]).unwrap();
        index.insert(7, ids[0]).unwrap();
        let leaf = index.at(index.leaf(7).unwrap());
        assert_eq!(index.entry(leaf, 7), Entry::Is(Some(ids[0])));
        index.remove(7);
        assert_eq!(index.entry(leaf, 7), Entry::Stale);
        index.insert(7, ids[1]).unwrap();
        assert_eq!(index.entry(leaf, 7), Entry::Stale);
        assert_eq!(found(&index, 7), Some(ids[1]));
    }

    #[test]
    fn numbers_of_all_sizes_have_a_place() {
        let (index, blocks) = (Index::reserve(64).unwrap(), Blocks::reserve(512, 8).unwrap());
        let id = blocks.fill(1, &[]).unwrap().id();
        let numbers = [0, 63, 64, 4095, 4096, 1 << 30, MAX_BLOCK];
        for block in numbers {
            assert_eq!(found(&index, block), None, "{block}");
            index.insert(block, id).unwrap();
            assert_eq!((found(&index, block), index.get(block)), (Some(id), Some(id)), "{block}");
        }
        assert!(numbers.iter().all(|block| found(&index, *block) == Some(id)));
        assert!(found(&index, MAX_BLOCK - 1).is_none());
    }
}
