//! A table as bytes, for a snapshot: all names that lead somewhere, with their files. Clocks and changes are left out.
//!
//! The bytes are *blocks* of *records*; a block can be read once those before it were. The first byte of a record has
//! its kind and flags. Numbers are LEB128, and signed ones zigzag. Values that repeat are left out, or are differences from
//! the record before in the same block, so a name takes about 30 bytes.
//!
//! | kind | record |
//! |---|---|
//! | [`FILE`] | a name and a file that no earlier name leads to |
//! | [`DIRECTORY`] | the same of a directory, with its handle; it has the next number, the root has 0 |
//! | [`AGAIN`] | a name of a file with several names that was [`LINKED`], by its number among those |
//! | [`CONTENT`] | the names that follow are in the directory of this number; the first record of each block |
//!
//! A directory's number is smaller than those below it, so a tree that is read from these bytes has no cycle, whatever
//! they are.

use std::collections::HashMap;
use std::io;

use super::{FileFacts, NONE, NameTable, ROOT};

pub(super) const KIND: u8 = 3;
pub(super) const FILE: u8 = 0;
pub(super) const DIRECTORY: u8 = 1;
pub(super) const AGAIN: u8 = 2;
pub(super) const CONTENT: u8 = 3;

/// On another file system.
pub(super) const FOREIGN: u8 = 4;
/// Both times are the same.
pub(super) const ONE_TIME: u8 = 8;
/// Owner, group and mode of the record before.
pub(super) const SAME_OWNER: u8 = 16;
/// More names follow.
pub(super) const LINKED: u8 = 32;
/// As many blocks as [`usual_blocks`].
pub(super) const USUAL_BLOCKS: u8 = 64;
/// One name.
pub(super) const ONE_LINK: u8 = 128;

/// Bytes after which a block ends. One record more may be in it.
const BLOCK: usize = 256 << 10;
/// Most bytes of a block.
pub(crate) const BLOCK_MAX: usize = BLOCK + 4096;

/// How much was written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Dumped {
    /// Names, the root not among them.
    pub(crate) names: u64,
    /// Directories, the root among them.
    pub(crate) dirs: u64,
}

/// The record before, in the same block.
#[derive(Default)]
pub(super) struct Previous {
    pub(super) ino: u64,
    pub(super) mtime: i64,
    pub(super) owner: (u32, u32, u16),
}

/// Blocks of 512 bytes that a file of this size usually has.
pub(super) fn usual_blocks(size: u64) -> u64 {
    size.div_ceil(4096).saturating_mul(8)
}

fn number(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

fn signed(out: &mut Vec<u8>, value: i64) {
    number(out, (value << 1 ^ value >> 63) as u64);
}

/// A dump that is being written.
struct Dump<F> {
    block: Vec<u8>,
    previous: Previous,
    /// Numbers of files with several names.
    linked: HashMap<u32, u32>,
    dumped: Dumped,
    each: F,
}

impl NameTable {
    /// Passes all blocks to `each`.
    ///
    /// # Errors
    /// Those of `each`.
    pub(crate) fn dump(&self, each: impl FnMut(&[u8]) -> io::Result<()>) -> io::Result<Dumped> {
        let mut dump = Dump {
            block: Vec::with_capacity(BLOCK_MAX),
            previous: Previous::default(),
            linked: HashMap::new(),
            dumped: Dumped { names: 0, dirs: 1 },
            each,
        };
        let mut dirs = vec![(ROOT, 0)];
        while let Some((dir, number)) = dirs.pop() {
            dump.content(number);
            for (name, file) in self.children(dir) {
                if dump.block.len() >= BLOCK {
                    dump.end_block()?;
                    dump.content(number);
                }
                if dump.name(self, name, file) {
                    dirs.push((file, dump.dumped.dirs - 1));
                }
            }
            if dump.block.len() >= BLOCK {
                dump.end_block()?;
            }
        }
        dump.end_block()?;
        Ok(dump.dumped)
    }
}

impl<F: FnMut(&[u8]) -> io::Result<()>> Dump<F> {
    fn end_block(&mut self) -> io::Result<()> {
        if !self.block.is_empty() {
            (self.each)(&self.block)?;
        }
        self.block.clear();
        self.previous = Previous::default();
        Ok(())
    }

    fn content(&mut self, dir: u64) {
        self.block.push(CONTENT);
        number(&mut self.block, dir);
    }

    /// Returns whether it leads to a directory whose names follow later.
    fn name(&mut self, table: &NameTable, name: &[u8], file: u32) -> bool {
        self.dumped.names += 1;
        let out = &mut self.block;
        let record = &table.files[file as usize];
        let text = |out: &mut Vec<u8>| {
            out.push(name.len() as u8);
            out.extend_from_slice(name);
        };
        if let Some(number_of) = self.linked.get(&file) {
            out.push(AGAIN);
            text(out);
            number(out, u64::from(*number_of));
            return false;
        }
        let facts = record.facts(table.dev);
        let is_dir = record.dir != NONE;
        let mut tag = if is_dir { DIRECTORY } else { FILE };
        let several = table.names[record.names as usize].next_link != NONE;
        if several && !is_dir {
            tag |= LINKED;
            self.linked.insert(file, self.linked.len() as u32);
        }
        let flags = [
            (record.foreign, FOREIGN),
            (facts.mtime == facts.ctime, ONE_TIME),
            ((facts.uid, facts.gid, facts.mode) == self.previous.owner, SAME_OWNER),
            (facts.blocks == usual_blocks(facts.size), USUAL_BLOCKS),
            (facts.nlink == 1, ONE_LINK),
        ];
        tag |= flags.iter().filter(|(is, _)| *is).fold(0, |all, (_, flag)| all | flag);
        out.push(tag);
        text(out);
        self.facts(tag, &facts);
        if let Some(handle) = table.handle(file) {
            // At most 132 bytes.
            self.block.push(handle.as_bytes().len() as u8);
            self.block.extend_from_slice(handle.as_bytes());
            self.dumped.dirs += 1;
        }
        is_dir
    }

    fn facts(&mut self, tag: u8, facts: &FileFacts) {
        let (out, previous) = (&mut self.block, &mut self.previous);
        signed(out, facts.ino.wrapping_sub(previous.ino) as i64);
        // Like a random number: a short form would be a longer one.
        out.extend_from_slice(&facts.birth.to_le_bytes());
        number(out, facts.size);
        if tag & USUAL_BLOCKS == 0 {
            number(out, facts.blocks);
        }
        signed(out, facts.mtime.0.wrapping_sub(previous.mtime));
        number(out, facts.mtime.1.into());
        if tag & ONE_TIME == 0 {
            signed(out, facts.ctime.0.wrapping_sub(facts.mtime.0));
            number(out, facts.ctime.1.into());
        }
        if tag & ONE_LINK == 0 {
            number(out, facts.nlink.into());
        }
        let owner = (facts.uid, facts.gid, facts.mode);
        if tag & SAME_OWNER == 0 {
            number(out, owner.0.into());
            number(out, owner.1.into());
            number(out, owner.2.into());
        }
        *previous = Previous { ino: facts.ino, mtime: facts.mtime.0, owner };
    }
}
