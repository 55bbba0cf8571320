//! Goes through the log, transaction by transaction, and collects the blocks to be read from it.
//!
//! Transactions are numbered one after the other; a block without the magic number or with another number ends the
//! log. A transaction counts once its commit is found and all of its checksums are right. The first one that is not
//! whole ends the replay, and the earlier ones stay. (After a wrong checksum the kernel refuses to mount, or leaves
//! single blocks out. e2fsck replays the transactions before it, as this module does.)
//!
//! A revoke cancels a block's data in its own transaction, before or after the revoke, and in earlier ones. Data in
//! later transactions counts. Transactions come in their order, so this takes one pass: the data of a transaction
//! first, then its revokes.
//!
//! Hostile logs: a scan uses up each block of the log once and then ends, numbers wrap at 2^32, and a number of a
//! block outside of the image is damage.

use std::collections::BTreeMap;

use super::super::fault::{Result, ensure};
use super::log_block::{Header, Kind, Tag, crc32_be};
use super::log_ring::Ring;
use super::overlay::Place;
use super::superblock::{LogHead, Sums};

/// The reason why a log ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum End {
    /// Nothing follows.
    Whole,
    /// A transaction without its commit.
    Unfinished,
    /// A transaction with a wrong checksum; the text names the kind of block.
    Wrong(&'static str),
}

/// The blocks to be read from the log: by the image's block.
pub(super) type Changes = BTreeMap<u64, Place>;

/// The result of a scan.
#[derive(Debug)]
pub(super) struct Found {
    pub transactions: u64,
    /// The number of the transaction that would come next.
    pub next: u32,
    pub changes: Changes,
    pub end: End,
}

/// A transaction whose commit was not found yet: the places of its blocks in the log. Their content is read again
/// once the transaction counts, because a log may have many tags. If a descriptor has more tags by then, because the
/// image changed meanwhile, only as many as it had are used.
struct Transaction {
    /// The place of each, and how many tags it had.
    descriptors: Vec<(u64, usize)>,
    revokes: Vec<u64>,
    /// Checksum of the first version.
    sum: u32,
}

impl Transaction {
    fn new() -> Self {
        Self { descriptors: Vec::new(), revokes: Vec::new(), sum: !0 }
    }
}

struct Scan<'s> {
    ring: &'s Ring<'s>,
    head: &'s LogHead,
    /// The next block, and how many are not used up.
    next: u64,
    left: u64,
    raw: Vec<u8>,
    found: Found,
}

/// Scans the log.
pub(super) fn scan(ring: &Ring<'_>, head: &LogHead) -> Result<Found> {
    let found = Found { transactions: 0, next: head.sequence, changes: Changes::new(), end: End::Whole };
    let raw = vec![0; ring.block_size()];
    let mut scan = Scan { ring, head, next: head.start, left: head.end - head.first, raw, found };
    loop {
        match scan.transaction()? {
            Ok(transaction) => scan.apply(&transaction)?,
            Err(end) => return Ok(Found { end, ..scan.found }),
        }
    }
}

impl Scan<'_> {
    /// The number of the next block, which is then used up; none if all are.
    fn take(&mut self) -> Option<u64> {
        self.left = self.left.checked_sub(1)?;
        let taken = self.next;
        self.next = self.after(taken);
        Some(taken)
    }

    /// The block of the log that comes after another.
    fn after(&self, block: u64) -> u64 {
        if block + 1 == self.head.end { self.head.first } else { block + 1 }
    }

    /// Reads the next block of the log if it belongs to the current transaction. Returns its kind and place.
    fn step(&mut self) -> Result<Option<(Kind, u64)>> {
        let Some(at) = self.take() else { return Ok(None) };
        self.ring.read(at, &mut self.raw)?;
        let header = Header::of(&self.raw).filter(|header| header.sequence == self.found.next);
        Ok(header.map(|header| (header.kind, at)))
    }

    /// The next transaction, or the reason why there is none.
    fn transaction(&mut self) -> Result<std::result::Result<Transaction, End>> {
        let mut transaction = Transaction::new();
        let mut is_begun = false;
        loop {
            let end = match self.step()? {
                Some((Kind::Descriptor, at)) => {
                    let tags = self.head.tags(&self.raw);
                    transaction.descriptors.push((at, tags.len()));
                    self.descriptor(&tags, &mut transaction.sum)?
                }
                Some((Kind::Revoke, at)) => {
                    transaction.revokes.push(at);
                    if self.head.is_tail_right(&self.raw) { None } else { Some(End::Wrong("of a revoke")) }
                }
                Some((Kind::Commit, _)) if self.head.is_commit_right(&self.raw, transaction.sum) => {
                    return Ok(Ok(transaction));
                }
                Some((Kind::Commit, _)) => Some(End::Wrong("of a commit")),
                Some((Kind::HeadV1 | Kind::HeadV2, _)) | None if is_begun => Some(End::Unfinished),
                Some((Kind::HeadV1 | Kind::HeadV2, _)) | None => Some(End::Whole),
            };
            if let Some(end) = end {
                return Ok(Err(end));
            }
            is_begun = true;
        }
    }

    /// Takes the data of the descriptor that was read, and continues the checksum of the first version.
    fn descriptor(&mut self, tags: &[Tag], sum: &mut u32) -> Result<Option<End>> {
        if !self.head.is_tail_right(&self.raw) {
            return Ok(Some(End::Wrong("of a descriptor")));
        }
        let is_summed = self.head.sums == Sums::V1;
        if is_summed {
            *sum = crc32_be(*sum, &self.raw);
        }
        for tag in tags {
            let Some(at) = self.take() else { return Ok(Some(End::Unfinished)) };
            if self.head.sums != Sums::None {
                self.ring.read(at, &mut self.raw)?;
            }
            if is_summed {
                *sum = crc32_be(*sum, &self.raw);
            }
            if !self.head.is_data_right(tag, self.found.next, &self.raw) {
                return Ok(Some(End::Wrong("of data")));
            }
        }
        Ok(None)
    }

    /// A whole transaction: its data counts now, and no earlier data of the blocks that it revokes.
    fn apply(&mut self, transaction: &Transaction) -> Result<()> {
        for (descriptor, count) in &transaction.descriptors {
            self.ring.read(*descriptor, &mut self.raw)?;
            let mut at = *descriptor;
            for tag in self.head.tags(&self.raw).into_iter().take(*count) {
                at = self.after(at);
                ensure(tag.block < self.ring.image_blocks(), "data for a block outside")?;
                self.found.changes.insert(tag.block, Place::new(self.ring.place(at)?, tag.escaped));
            }
        }
        for at in &transaction.revokes {
            self.ring.read(*at, &mut self.raw)?;
            for block in self.head.revoked(&self.raw)? {
                self.found.changes.remove(&block);
            }
        }
        self.found.transactions += 1;
        self.found.next = self.found.next.wrapping_add(1);
        Ok(())
    }
}
