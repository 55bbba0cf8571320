//! Block maps: twelve blocks in the inode, then tables of pointers one, two and three levels deep.
//!
//! A pointer of zero is a hole, even if it would lead to a table. There are no checksums. Each step of a walk goes
//! down one level, so the walk ends.

use super::Fs;
use super::block_run::{END, Run};
use super::endian::u32_at;
use super::fault::{Locate, Result, ensure};
use super::inode::Node;

/// Blocks that the inode itself points to.
const DIRECT: u64 = 12;

/// The run at a file block.
pub(super) fn run(fs: &Fs, node: &Node, block: u64) -> Result<Run> {
    // No file has more blocks, although three levels of large blocks could map more.
    if block >= END {
        return Ok(Run::hole(u64::MAX));
    }
    let pointers = node.pointers();
    if block < DIRECT {
        return row(fs, &pointers[..48.min(pointers.len())], block as usize);
    }
    let each = fs.sup.block_size as u64 / 4;
    let mut rest = block - DIRECT;
    let mut reach = each;
    for level in 0..3u32 {
        if rest < reach {
            let table = u32_at(pointers, 48 + 4 * level as usize).into();
            return below(fs, table, rest, level, each);
        }
        rest -= reach;
        reach *= each;
    }
    Ok(Run::hole(u64::MAX))
}

/// Goes down `level` more tables after this one.
fn below(fs: &Fs, mut table: u64, mut rest: u64, mut level: u32, each: u64) -> Result<Run> {
    loop {
        // File blocks that one pointer of this table maps.
        let span = each.pow(level);
        if table == 0 {
            return Ok(Run::hole(span * each - rest));
        }
        ensure(fs.sup.is_range(table, 1), "a table of blocks outside")?;
        let raw = fs.blocks.get(table)?;
        let index = (rest / span) as usize;
        rest %= span;
        if level == 0 {
            return row(fs, &raw, index).in_block(table);
        }
        table = u32_at(&raw, index * 4).into();
        if table == 0 {
            // With its neighbours: a table is a few runs, however many pointers it has.
            let holes =
                (index..raw.len() / 4).take_while(|index| u32_at(&raw, index * 4) == 0).count() as u64;
            return Ok(Run::hole(span.saturating_mul(holes) - rest));
        }
        level -= 1;
    }
}

/// The run at a pointer of a table: as far as pointers go on by one, or are zero.
fn row(fs: &Fs, table: &[u8], index: usize) -> Result<Run> {
    let pointer = |index: usize| u64::from(u32_at(table, index * 4));
    let first = pointer(index);
    let goes_on = |&n: &u64| pointer(index + n as usize) == if first == 0 { 0 } else { first + n };
    let room = (table.len() / 4).saturating_sub(index) as u64;
    let len = 1 + (1..room).take_while(goes_on).count() as u64;
    if first == 0 {
        return Ok(Run::hole(len));
    }
    ensure(fs.sup.is_range(first, len), "a block outside")?;
    Ok(Run { len, block: Some(first) })
}
