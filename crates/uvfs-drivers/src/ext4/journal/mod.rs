//! The journal of an image that was in use when it was copied: its blocks are read in place of the image's.
//!
//! Written from the published layout of jbd2. [`superblock`] tells where the log is and how it is checked,
//! [`mod@log_ring`] maps its blocks, and [`log_block`] parses one of them. [`replay`] goes through the transactions and
//! collects their changes, and [`overlay`] stands in front of the image from then on. The image is never written.
//!
//! Runs once, while the image is opened and before anything else in it is trusted. **Memory**: 16 bytes for each
//! block that is replaced ([`Replayed::memory`]; more while they are collected), because contents stay in the log.
//! **Time**: no block of the log is read more than twice, and a log that is replayed has [`BYTES_MAX`] bytes at most.
//! An image with a sparse log takes up little of the disk, but its log is read and summed like any other. So the
//! bound is in bytes and not in blocks.
//!
//! The log is hostile input. A transaction that is not whole or has a wrong checksum ends it: that is how logs end. A
//! record that cannot be in a whole transaction makes the driver refuse the image; the message names `noload`.

mod log_block;
mod log_ring;
mod overlay;
mod replay;
mod superblock;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use uvfs::types::mode;

use super::endian::{u16_at, u32_at};
use super::fault::{self, Fault, ensure};
use super::image_blocks::ImageSource;
use super::superblock::Superblock;
use super::{Fs, ImageRefused, features};

use log_ring::Ring;
use overlay::Overlay;
use replay::{End, Found};
use superblock::LogHead;

/// Most blocks of a log; mke2fs(8) makes none with more.
const BLOCKS_MAX: u64 = 10_240_000;
/// Most bytes of a log that is replayed. mke2fs(8) makes one of 1 GiB at most, unless it is given a size.
const BYTES_MAX: u64 = 4 << 30;
/// The kind of the record that begins the first block of a fast commit.
const FAST_HEAD: u16 = 9;

/// The changes taken from an image's journal.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Replayed {
    /// Whole transactions.
    pub transactions: u64,
    /// Blocks that are read from the journal since.
    pub blocks: u64,
}

impl Replayed {
    /// Bytes of memory that this takes for as long as the image is open.
    pub fn memory(&self) -> u64 {
        self.blocks * overlay::ENTRY
    }
}

/// The source with its journal's changes in front of it, if there are any and `noload` does not leave them out.
pub(super) fn settle(
    name: &str,
    source: Arc<dyn ImageSource>,
    sup: &Superblock,
    noload: bool,
) -> Result<(Arc<dyn ImageSource>, Replayed), ImageRefused> {
    let needed = sup.has_incompat(features::NEEDS_RECOVERY) && sup.has_compat(features::COMPAT_HAS_JOURNAL);
    if !needed {
        return Ok((source, Replayed::default()));
    }
    if noload {
        tracing::warn!(image = %name, "ext4: its journal is left out (noload): the last changes are missing, and damage may be met");
        return Ok((source, Replayed::default()));
    }
    if sup.journal == 0 {
        return Err(refused("it needs its journal, which is on another device"));
    }
    let fs = Fs::over(Arc::clone(&source), sup.clone())?;
    let ring = ring(&fs, &*source).map_err(damaged)?;
    let mut head = vec![0; sup.block_size];
    ring.read(0, &mut head).map_err(damaged)?;
    let head = LogHead::parse(&head, sup.block_size, ring.blocks())?;
    if head.start == 0 {
        return Ok((source, Replayed::default()));
    }
    expect_short(&head, sup.block_size)?;
    let found = replay::scan(&ring, &head).map_err(damaged)?;
    if has_fast_commits(&ring, &head, found.next).map_err(damaged)? {
        return Err(refused("its journal holds fast commits (fast_commit), which are not read"));
    }
    tell(name, &head, &found);
    let overlay = Overlay::new(source, sup.block_size, found.changes);
    let replayed = Replayed { transactions: found.transactions, blocks: overlay.blocks() };
    Ok((Arc::new(overlay), replayed))
}

/// The blocks of the journal's inode.
fn ring<'s>(fs: &Fs, source: &'s dyn ImageSource) -> fault::Result<Ring<'s>> {
    let node = fs.early_node(fs.sup.journal)?;
    let is_file = node.fmt() == mode::S_IFREG && node.links() != 0 && !node.is_inline();
    ensure(is_file && node.expect_plain().is_ok(), "the inode of the journal")?;
    let blocks = node.size / fs.sup.block_size as u64;
    ensure(blocks <= BLOCKS_MAX.min(fs.sup.blocks), "length of the journal")?;
    Ring::new(fs, &node, source, blocks)
}

/// Refuses a log that would take too long.
fn expect_short(head: &LogHead, block_size: usize) -> Result<(), ImageRefused> {
    if (head.end - head.first).saturating_mul(block_size as u64) > BYTES_MAX {
        return Err(refused("its journal is longer than 4 GiB, which is not replayed here"));
    }
    Ok(())
}

/// Whether a fast commit continues the log's last transaction.
fn has_fast_commits(ring: &Ring<'_>, head: &LogHead, next: u32) -> fault::Result<bool> {
    let Some(first) = head.fast else { return Ok(false) };
    // The kernel leaves the first block behind the log free.
    for block in (first..first + 2).filter(|block| *block < ring.blocks()) {
        let mut raw = vec![0; 12];
        ring.read(block, &mut raw)?;
        if u16_at(&raw, 0) == FAST_HEAD && u32_at(&raw, 8) == next {
            return Ok(true);
        }
    }
    Ok(false)
}

fn tell(name: &str, head: &LogHead, found: &Found) {
    let (transactions, next, blocks) = (found.transactions, found.next, found.changes.len());
    tracing::info!(image = %name, transactions, blocks, "ext4: its journal was replayed in memory");
    match found.end {
        End::Whole => {}
        End::Unfinished => {
            tracing::info!(image = %name, transaction = next, "ext4: the journal's last transaction is not whole and was left out");
        }
        End::Wrong(what) => tracing::warn!(
            image = %name,
            transaction = next,
            replayed = transactions,
            "ext4: the journal was replayed up to a transaction with a wrong checksum ({what}): that one and what follows are left out"
        ),
    }
    if head.errno != 0 {
        tracing::warn!(image = %name, "ext4: the journal says that errors were seen; e2fsck -fy mends what can be mended");
    }
}

fn damaged(fault: Fault) -> ImageRefused {
    refused(&format!("its journal is damaged ({})", fault.place()))
}

fn refused(why: &str) -> ImageRefused {
    ImageRefused::new(format!(
        "{why}: run e2fsck -fy on it, or read it without what is only in the journal: -o noload"
    ))
}
