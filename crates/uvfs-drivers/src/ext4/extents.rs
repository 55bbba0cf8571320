//! Extents: a tree from file blocks to runs of blocks, at most five levels below the inode.
//!
//! Each node on the way is checked as a whole before it is used (once, as long as its block is in memory). Its depth
//! must be right. Its entries must be in order, not overlap, stay within the range that the node above gives it, and
//! lead into the file system. Each step of a walk goes down one level, so the walk ends.

use std::ops::Range;

use super::Fs;
use super::block_run::{END, Run};
use super::checksum::{crc32c, right};
use super::endian::{u16_at, u32_at};
use super::fault::{Locate, Result, ensure};
use super::inode::Node;

const MAGIC: u16 = 0xf30a;
const MAX_DEPTH: u16 = 5;
/// Bytes of the header, and of an entry.
const ENTRY: usize = 12;
/// A greater length marks an extent that was allocated and not written. Its real length is less by this number.
const WRITTEN: u64 = 32768;

/// A node whose header was checked.
struct Tree<'b> {
    raw: &'b [u8],
    entries: usize,
    depth: u16,
    /// The file blocks that it maps.
    range: Range<u64>,
}

/// The range that an entry of a leaf maps.
struct Extent {
    first: u64,
    len: u64,
    block: u64,
    written: bool,
}

impl<'b> Tree<'b> {
    fn new(raw: &'b [u8], room: usize, range: Range<u64>) -> Result<Self> {
        ensure(u16_at(raw, 0) == MAGIC, "a node of extents without its magic number")?;
        let (entries, max, depth) = (u16_at(raw, 2), u16_at(raw, 4), u16_at(raw, 6));
        let max = usize::from(max);
        ensure(max > 0 && max <= room && usize::from(entries) <= max, "number of entries of extents")?;
        ensure(depth <= MAX_DEPTH, "depth of extents")?;
        ensure(depth == 0 || entries > 0, "an empty node of extents")?;
        Ok(Self { raw, entries: entries.into(), depth, range })
    }

    fn at(&self, index: usize) -> usize {
        ENTRY * (index + 1)
    }

    /// First file block of an entry.
    fn first(&self, index: usize) -> u64 {
        u32_at(self.raw, self.at(index)).into()
    }

    fn extent(&self, index: usize) -> Extent {
        let at = self.at(index);
        let len = u64::from(u16_at(self.raw, at + 4));
        let written = len <= WRITTEN;
        Extent {
            first: self.first(index),
            len: if written { len } else { len - WRITTEN },
            block: u64::from(u32_at(self.raw, at + 8)) | u64::from(u16_at(self.raw, at + 6)) << 32,
            written,
        }
    }

    /// The node that an entry leads to.
    fn child(&self, index: usize) -> u64 {
        let at = self.at(index);
        u64::from(u32_at(self.raw, at + 4)) | u64::from(u16_at(self.raw, at + 8)) << 32
    }

    /// Checks all entries.
    fn check(&self, fs: &Fs) -> Result<()> {
        let mut from = self.range.start;
        for index in 0..self.entries {
            let first = self.first(index);
            ensure(first >= from && first < self.range.end, "extents out of order")?;
            if self.depth > 0 {
                ensure(fs.sup.is_range(self.child(index), 1), "a node of extents outside")?;
                from = first + 1;
            } else {
                let extent = self.extent(index);
                ensure(extent.len > 0 && first + extent.len <= self.range.end, "length of an extent")?;
                ensure(fs.sup.is_range(extent.block, extent.len), "an extent outside")?;
                from = first + extent.len;
            }
        }
        Ok(())
    }

    /// The last entry that begins at or before a file block.
    fn find(&self, block: u64) -> Option<usize> {
        let (mut low, mut high) = (0, self.entries);
        while low < high {
            let middle = low + (high - low) / 2;
            if self.first(middle) <= block { low = middle + 1 } else { high = middle }
        }
        low.checked_sub(1)
    }

    /// The end of an entry's range.
    fn end(&self, index: usize) -> u64 {
        if index + 1 < self.entries { self.first(index + 1) } else { self.range.end }
    }

    /// The run at a file block, in a leaf.
    fn run(&self, block: u64) -> Run {
        let before = self.find(block);
        if let Some(extent) = before.map(|index| self.extent(index))
            && block < extent.first + extent.len
        {
            let skip = block - extent.first;
            return Run { len: extent.len - skip, block: extent.written.then_some(extent.block + skip) };
        }
        let end = before.map_or_else(
            || if self.entries > 0 { self.first(0) } else { self.range.end },
            |index| self.end(index),
        );
        Run::hole(end.saturating_sub(block))
    }
}

/// The run at a file block.
pub(super) fn run(fs: &Fs, node: &Node, block: u64) -> Result<Run> {
    if block >= END {
        return Ok(Run::hole(u64::MAX));
    }
    let root = Tree::new(node.pointers(), room(node.pointers()), 0..END)?;
    root.check(fs)?;
    let mut step = step(&root, block);
    let mut depth = root.depth;
    loop {
        let (next, range) = match step {
            Step::Run(run) => return Ok(run),
            Step::Down(next, range) => (next, range),
        };
        depth -= 1;
        step = below(fs, node, next, block, depth, range).in_block(next)?;
    }
}

/// The most entries that fit after the header.
fn room(raw: &[u8]) -> usize {
    (raw.len() / ENTRY).saturating_sub(1)
}

/// A node's answer about a file block.
enum Step {
    Run(Run),
    /// Ask this node, which maps these file blocks.
    Down(u64, Range<u64>),
}

fn step(tree: &Tree<'_>, block: u64) -> Step {
    if tree.depth == 0 {
        return Step::Run(tree.run(block));
    }
    match tree.find(block) {
        Some(index) => Step::Down(tree.child(index), tree.first(index)..tree.end(index)),
        None => Step::Run(Run::hole(tree.first(0).saturating_sub(block))),
    }
}

fn below(fs: &Fs, node: &Node, at: u64, block: u64, depth: u16, range: Range<u64>) -> Result<Step> {
    let raw = fs.blocks.get(at)?;
    let checks = fs.blocks.checks((b'x', node.seed, range.start, range.end, depth));
    let tree = Tree::new(&raw, room(&raw), range)?;
    ensure(tree.depth == depth, "depth of a node of extents")?;
    if checks.are_done(&raw) {
        return Ok(step(&tree, block));
    }
    if fs.sup.checksums() {
        let tail = ENTRY * (usize::from(u16_at(&raw, 4)) + 1);
        ensure(tail + 4 <= raw.len(), "number of entries of extents")?;
        ensure(right(crc32c(node.seed, &raw[..tail]) == u32_at(&raw, tail)), "checksum of extents")?;
    }
    tree.check(fs)?;
    checks.done(&raw);
    Ok(step(&tree, block))
}
