//! The index of a directory: blocks of pairs, hash and block, up to three levels above the leaves.
//!
//! The root stands in the directory's first block behind `.` and `..`, other nodes in blocks that look like one
//! unused entry. A lookup goes down by the name's hash, and on to the next leaf as long as that begins with the same
//! hash. An index may lead to one block again and again, on purpose. A search that has been in more leaves than the
//! directory has blocks is given up, and most end sooner ([`Pass`]).

use super::Fs;
use super::checksum::{crc32c, right};
use super::dir::{DirBlock, record_len};
use super::dir_cycles::Pass;
use super::endian::{slice, u8_at, u16_at, u32_at};
use super::fault::{Fault, Locate, Result, ensure};
use super::features;
use super::inode::Node;
use super::name_hash::Hasher;

/// The offset of the root's own fields, behind `.` and `..`.
const ROOT_INFO: usize = 24;
/// The offset of the pairs: in the root, and in other nodes.
const ROOT_PAIRS: usize = 32;
const NODE_PAIRS: usize = 8;
/// Bytes of a pair, and of the checksum at the end.
const PAIR: usize = 8;

/// The outcome of a search.
pub(super) enum Search {
    Done(Option<u32>),
    /// The index is ordered by an unknown hash; entries can be read one after the other.
    NoIndex,
}

/// The begin of a node's pairs, and how many there are and may be.
struct Pairs {
    at: usize,
    count: usize,
    limit: usize,
}

fn pairs(block: &[u8]) -> Result<Pairs> {
    let len = block.len();
    let first = record_len(u16_at(block, 4), len);
    let at = if first == len {
        NODE_PAIRS
    } else {
        let second = record_len(u16_at(block, 16), len);
        ensure(first == 12 && second == len - 12, "root of a directory's index")?;
        let (reserved, length) = (u32_at(block, ROOT_INFO), u8_at(block, ROOT_INFO + 5));
        ensure(reserved == 0 && length == 8, "root of a directory's index")?;
        ROOT_PAIRS
    };
    // The first pair has no hash: limit and count are there.
    let (limit, count) = (usize::from(u16_at(block, at)), usize::from(u16_at(block, at + 2)));
    ensure(count > 0 && count <= limit && at + limit * PAIR <= len, "size of a directory's index")?;
    Ok(Pairs { at, count, limit })
}

/// Checks the checksum of a node.
pub(super) fn check(fs: &Fs, dir: &Node, block: &[u8]) -> Result<()> {
    debug_assert!(fs.sup.checksums());
    let Pairs { at, count, limit } = pairs(block)?;
    let tail = slice(block, at + limit * PAIR, 8, "an index without a checksum")?;
    let crc = crc32c(dir.seed, &block[..at + count * PAIR]);
    let crc = crc32c(crc32c(crc, &tail[..4]), &[0; 4]);
    ensure(right(crc == u32_at(tail, 4)), "checksum of a directory's index")
}

/// A node on the way down, and the pair that was taken.
struct Level<'f> {
    node: DirBlock<'f>,
    pairs: Pairs,
    taken: usize,
}

impl Level<'_> {
    fn hash(&self, index: usize) -> u32 {
        if index == 0 { 0 } else { u32_at(&self.node.block, self.pairs.at + index * PAIR) }
    }

    fn child(&self) -> u64 {
        (u32_at(&self.node.block, self.pairs.at + self.taken * PAIR + 4) & 0x0fff_ffff).into()
    }

    /// The last pair whose hash is not above.
    fn take(&mut self, hash: u32) {
        let (mut low, mut high) = (1, self.pairs.count);
        while low < high {
            let middle = low + (high - low) / 2;
            if self.hash(middle) <= hash { low = middle + 1 } else { high = middle }
        }
        self.taken = low - 1;
    }
}

/// A search on its way.
struct Way<'s> {
    fs: &'s Fs,
    dir: &'s Node,
    hash: u32,
    /// Levels below the root.
    depth: usize,
    levels: Vec<Level<'s>>,
}

/// Looks a name up.
pub(super) fn find(fs: &Fs, dir: &Node, name: &[u8]) -> Result<Search> {
    let blocks = fs.dir_blocks(dir)?;
    let root = fs.dir_block(dir, 0)?;
    let (version, depth) = root_info(fs, &root.block).in_block(root.at).of(dir.ino)?;
    let Some(hasher) = Hasher::new(version, fs.sup.hash_unsigned, fs.sup.hash_seed) else {
        return Ok(Search::NoIndex);
    };
    let mut way = Way { fs, dir, hash: hasher.hash(name), depth, levels: Vec::with_capacity(depth + 1) };
    way.down(0, true)?;
    let mut pass = Pass::new(fs, dir);
    for _ in 0..blocks {
        let index = way.leaf(blocks)?;
        if let Some(ino) = fs.find_in(&pass.block(index)?, dir, index, name)? {
            return Ok(Search::Done(Some(ino)));
        }
        if !way.next()? {
            return Ok(Search::Done(None));
        }
    }
    Err(Fault::damage("an index that goes around").of(dir.ino))
}

/// Kind of hash and levels below the root.
fn root_info(fs: &Fs, root: &[u8]) -> Result<(u8, usize)> {
    let found = pairs(root)?;
    ensure(found.at == ROOT_PAIRS, "root of a directory's index")?;
    let levels = usize::from(u8_at(root, ROOT_INFO + 6));
    let most = if fs.sup.has_incompat(features::LARGE_DIR) { 3 } else { 2 };
    ensure(levels < most && u8_at(root, ROOT_INFO + 7) & 1 == 0, "depth of a directory's index")?;
    Ok((u8_at(root, ROOT_INFO + 4), levels))
}

impl<'s> Way<'s> {
    /// Goes down from block `at` of the directory: by the hash, or leftmost if a search goes on.
    fn down(&mut self, mut at: u64, by_hash: bool) -> Result<()> {
        loop {
            let mut level = self.level(at)?;
            if by_hash {
                level.take(self.hash);
            }
            at = level.child();
            self.levels.push(level);
            if self.levels.len() > self.depth {
                return Ok(());
            }
        }
    }

    fn level(&self, index: u64) -> Result<Level<'s>> {
        let blocks = self.fs.dir_blocks(self.dir)?;
        ensure(index < blocks, "an index that leads out of its directory").of(self.dir.ino)?;
        let node = self.fs.dir_block(self.dir, index)?;
        let pairs = pairs(&node.block).in_block(node.at).of(self.dir.ino)?;
        let is_root = pairs.at == ROOT_PAIRS;
        let in_order = ensure(is_root == (index == 0), "a directory's index in disorder");
        in_order.in_block(node.at).of(self.dir.ino)?;
        Ok(Level { node, pairs, taken: 0 })
    }

    /// The leaf that the way leads to.
    fn leaf(&self, blocks: u64) -> Result<u64> {
        let leaf = self.levels.last().map_or(0, Level::child);
        if leaf == 0 || leaf >= blocks {
            return Err(Fault::damage("an index that leads out of its directory").of(self.dir.ino));
        }
        Ok(leaf)
    }

    /// Moves on to the next leaf, if it begins with the same hash.
    fn next(&mut self) -> Result<bool> {
        while let Some(level) = self.levels.last_mut() {
            level.taken += 1;
            if level.taken == level.pairs.count {
                self.levels.pop();
                continue;
            }
            if level.hash(level.taken) & !1 != self.hash {
                return Ok(false);
            }
            let child = level.child();
            if self.levels.len() <= self.depth {
                self.down(child, false)?;
            }
            return Ok(true);
        }
        Ok(false)
    }
}
