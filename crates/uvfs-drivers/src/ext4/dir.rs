//! Directories: entries in blocks or in the inode, read one after the other, and found by name.
//!
//! Reading goes through the blocks in their order, with or without an index: blocks of an index look like unused
//! entries. A position is the offset of an entry. Another offset, which a client made up, leads to the next entry,
//! because each block is read from its beginning. A directory is no longer than the image, which bounds each
//! [`Pass`]. A map may lead to one block again and again, so that the directory is longer than was ever stored; the
//! pass notices that on the way.
//!
//! Names in an encrypted directory are ENOKEY; `.` and `..` are never encrypted.
//!
//! A block is checked as a whole when it is first used: its checksum, and all of its entries. While it stays in
//! memory, only lengths are checked again. If an entry is damaged, those before it are found and shown all the same.
//!
//! A directory has one parent, the one that its `..` names: [`Fs::child`] refuses to find it anywhere else. So the
//! directories reachable from the root form a tree, for any content of the image.

use std::ops::Range;

use uvfs::types::mode;

use super::checksum::{crc32c, right};
use super::dir_cycles::Pass;
use super::endian::{slice, u8_at, u16_at, u32_at};
use super::fault::{Fault, Locate, Result, ensure};
use super::image_blocks::{Block, Checks};
use super::inode::Node;
use super::last_found::{self, Place};
use super::superblock::{ROOT_INO, Superblock};
use super::{Fs, features, htree};

/// Bytes of an entry without its name.
const HEAD: usize = 8;
/// Bytes of an entry with the shortest name; also of the one that holds a block's checksum.
const SHORTEST: usize = 12;
/// Longest name.
const NAME_MAX: usize = 255;
/// The type of the entry that holds a block's checksum.
const CHECKSUM_TYPE: u8 = 0xde;

/// An entry.
#[derive(Clone, Copy, Debug)]
pub(super) struct Entry<'b> {
    /// 0: unused.
    pub ino: u32,
    /// Type bits; 0 if the entry does not tell.
    pub fmt: u32,
    pub name: &'b [u8],
    /// Its begin and end in its block or area.
    pub start: usize,
    pub end: usize,
}

/// The entries of a block, or of a part of an inode. Ends with the first damage.
pub(super) struct Entries<'b> {
    sup: &'b Superblock,
    area: &'b [u8],
    at: usize,
    /// All entries were found right before.
    sound: bool,
}

impl<'b> Entries<'b> {
    fn new(sup: &'b Superblock, area: &'b [u8]) -> Self {
        Self { sup, area, at: 0, sound: false }
    }

    fn entry(&self) -> Result<Entry<'b>> {
        let what = "a directory entry past the end";
        let head = slice(self.area, self.at, HEAD, what)?;
        let len = record_len(u16_at(head, 4), self.sup.block_size);
        ensure(len >= SHORTEST && len.is_multiple_of(4), "length of a directory entry")?;
        let record = slice(self.area, self.at, len, what)?;
        let (name_len, kind) = name_len(self.sup, head);
        let name = slice(record, HEAD, name_len, "a name longer than its entry")?;
        let ino = u32_at(head, 0);
        if ino != 0 && !self.sound {
            ensure(self.sup.is_inode(ino), "a name of no inode")?;
            ensure(!name.is_empty() && !name.iter().any(|b| matches!(b, 0 | b'/')), "a name that is none")?;
        }
        Ok(Entry { ino, fmt: type_bits(kind), name, start: self.at, end: self.at + len })
    }
}

impl<'b> Iterator for Entries<'b> {
    type Item = Result<Entry<'b>>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.at >= self.area.len() {
            return None;
        }
        let entry = self.entry();
        self.at = entry.as_ref().map_or(self.area.len(), |entry| entry.end);
        Some(entry)
    }
}

/// The length of an entry's name, and the entry's type.
///
/// Without the feature the type's byte is the upper half of the length, and zero, because no name is so long. But
/// tools that remove the feature leave the types in place, and then they mean nothing.
fn name_len(sup: &Superblock, head: &[u8]) -> (usize, u8) {
    (u8_at(head, 6).into(), if sup.has_incompat(features::FILETYPE) { u8_at(head, 7) } else { 0 })
}

/// The length of an entry; 64 KiB do not fit into its field.
pub(super) fn record_len(field: u16, block_size: usize) -> usize {
    let field = usize::from(field);
    match field {
        _ if block_size < 65536 => field,
        0 | 65535 => 65536,
        _ => (field & 0xfffc) | (field & 3) << 16,
    }
}

fn type_bits(kind: u8) -> u32 {
    match kind {
        1 => mode::S_IFREG,
        2 => mode::S_IFDIR,
        3 => mode::S_IFCHR,
        4 => mode::S_IFBLK,
        5 => mode::S_IFIFO,
        6 => mode::S_IFSOCK,
        7 => mode::S_IFLNK,
        _ => 0,
    }
}

/// A block of a directory that was checked.
pub(super) struct DirBlock<'f> {
    /// Its block in the image.
    pub at: u64,
    pub block: Block<'f>,
    /// The end of its entries.
    end: usize,
    sound: bool,
}

impl DirBlock<'_> {
    /// Its entries.
    pub(super) fn entries<'b>(&'b self, sup: &'b Superblock) -> Entries<'b> {
        self.entries_from(sup, 0)
    }

    /// Its entries from the begin of one on.
    fn entries_from<'b>(&'b self, sup: &'b Superblock, at: usize) -> Entries<'b> {
        Entries { sound: self.sound, at, ..Entries::new(sup, &self.block[..self.end]) }
    }
}

/// Receives an entry and the offset after it; false ends the reading.
type Look<'l> = &'l mut dyn FnMut(Entry<'_>, u64) -> Result<bool>;

fn each_of(entries: Entries<'_>, base: u64, from: u64, look: Look<'_>) -> Result<bool> {
    for entry in entries {
        let entry = entry?;
        let wanted = entry.ino != 0 && base + entry.start as u64 >= from;
        if wanted && !look(entry, base + entry.end as u64)? {
            return Ok(false);
        }
    }
    Ok(true)
}

impl Fs {
    /// Whether a directory's index is used.
    pub(super) fn is_indexed(&self, dir: &Node) -> bool {
        dir.has_index() && !dir.is_inline() && self.sup.has_compat(features::COMPAT_DIR_INDEX)
    }

    /// Blocks of a directory.
    pub(super) fn dir_blocks(&self, dir: &Node) -> Result<u64> {
        let block_size = self.sup.block_size as u64;
        ensure(dir.size.is_multiple_of(block_size) && dir.size > 0, "a directory's size").of(dir.ino)?;
        Ok(dir.size / block_size)
    }

    /// A block of a directory, with a right checksum.
    pub(super) fn dir_block(&self, dir: &Node, index: u64) -> Result<DirBlock<'_>> {
        let run = self.metadata_run(dir, index)?;
        self.dir_block_at(dir, index, run.at)
    }

    /// [`Fs::dir_block`] for a block that is known to be at `at` in the image.
    pub(super) fn dir_block_at(&self, dir: &Node, index: u64, at: u64) -> Result<DirBlock<'_>> {
        let block = self.blocks.get(at).of(dir.ino)?;
        let checks = self.dir_checks(dir, index);
        let known = checks.are_done(&block);
        let end = self.entries_end(dir, index, &block, known).in_block(at).of(dir.ino)?;
        let sound = known || Entries::new(&self.sup, &block[..end]).all(|entry| entry.is_ok());
        if sound && !known {
            checks.done(&block);
        }
        Ok(DirBlock { at, block, end, sound })
    }

    fn dir_checks(&self, dir: &Node, index: u64) -> Checks {
        self.blocks.checks((b'd', dir.seed, self.is_indexed(dir), index == 0))
    }

    /// The end of a block's entries. The checksum is not checked if it is `known` to be right.
    fn entries_end(&self, dir: &Node, index: u64, block: &[u8], known: bool) -> Result<usize> {
        if !self.sup.checksums() {
            return Ok(block.len());
        }
        let is_whole = u32_at(block, 0) == 0 && record_len(u16_at(block, 4), block.len()) == block.len();
        if self.is_indexed(dir) && (index == 0 || is_whole) {
            if !known {
                htree::check(self, dir, block)?;
            }
            return Ok(block.len());
        }
        let end = block.len().saturating_sub(SHORTEST);
        if known {
            return Ok(end);
        }
        let tail = slice(block, end, SHORTEST, "a directory's block without a checksum")?;
        let is_tail = u32_at(tail, 0) == 0
            && usize::from(u16_at(tail, 4)) == SHORTEST
            && u8_at(tail, 6) == 0
            && u8_at(tail, 7) == CHECKSUM_TYPE;
        ensure(is_tail, "a directory's block without a checksum")?;
        let crc = crc32c(dir.seed, &block[..end]);
        ensure(right(crc == u32_at(tail, 8)), "checksum of a directory's block")?;
        Ok(end)
    }

    /// Shows all used entries that begin at `from` or after it, `.` and `..` too.
    pub(super) fn each_entry(&self, dir: &Node, from: u64, look: Look<'_>) -> Result<()> {
        self.expect_dir(dir)?;
        dir.expect_plain()?;
        if dir.is_inline() {
            return self.each_inline(dir, from, look);
        }
        let block_size = self.sup.block_size as u64;
        let (first, blocks) = (from / block_size, self.dir_blocks(dir)?);
        let mut pass = Pass::new(self, dir);
        if first < blocks {
            pass.look_back(first)?;
        }
        for index in first..blocks {
            let block = pass.block(index)?;
            let base = index * block_size;
            if !each_of(block.entries(&self.sup), base, from, look).in_block(block.at).of(dir.ino)? {
                break;
            }
        }
        Ok(())
    }

    /// The entries in an inode: after the parent's number, and in its attribute.
    fn each_inline(&self, dir: &Node, from: u64, look: Look<'_>) -> Result<()> {
        let pointers = dir.pointers();
        let first = pointers.get(4..).unwrap_or_default();
        if each_of(Entries::new(&self.sup, first), 4, from, look).of(dir.ino)? {
            let rest = Entries::new(&self.sup, self.inline_rest(dir)?);
            each_of(rest, pointers.len() as u64, from, look).of(dir.ino)?;
        }
        Ok(())
    }

    /// The inode that a name in a directory leads to.
    pub(super) fn find(&self, dir: &Node, name: &[u8]) -> Result<Option<u32>> {
        self.expect_dir(dir)?;
        dir.expect_plain()?;
        if dir.is_inline() {
            let mut found = None;
            self.each_inline(dir, 0, &mut |entry, _| {
                if entry.name == name {
                    found = Some(entry.ino);
                }
                Ok(found.is_none())
            })?;
            return Ok(found);
        }
        let place = last_found::after(self.number, dir.ino);
        // An index leads to a name at once: no other block is read first.
        let hint = place.filter(|place| !self.is_indexed(dir) || self.blocks.holds(place.at));
        if let Some(ino) = hint.and_then(|place| self.find_next(dir, name, place)) {
            return Ok(Some(ino));
        }
        if self.is_indexed(dir)
            && let htree::Search::Done(found) = htree::find(self, dir, name)?
        {
            return Ok(found);
        }
        let (blocks, mut pass) = (self.dir_blocks(dir)?, Pass::new(self, dir));
        let first = place.map_or(0, |place| place.index.min(blocks));
        let ahead = self.find_among(first..blocks, &mut pass, dir, name);
        if let Ok(Some(ino)) = ahead {
            return Ok(Some(ino));
        }
        // A name before damage is found.
        let behind = self.find_among(0..first, &mut pass, dir, name)?;
        if behind.is_some() { Ok(behind) } else { ahead }
    }

    fn find_among(
        &self,
        blocks: Range<u64>,
        pass: &mut Pass<'_, '_>,
        dir: &Node,
        name: &[u8],
    ) -> Result<Option<u32>> {
        for index in blocks {
            let found = self.find_in(&pass.block(index)?, dir, index, name)?;
            if found.is_some() {
                return Ok(found);
            }
        }
        Ok(None)
    }

    /// A name in a block of its directory. The place where it was found is remembered.
    pub(super) fn find_in(
        &self,
        block: &DirBlock<'_>,
        dir: &Node,
        index: u64,
        name: &[u8],
    ) -> Result<Option<u32>> {
        for entry in block.entries(&self.sup) {
            let entry = entry.in_block(block.at).of(dir.ino)?;
            if entry.ino != 0 && entry.name == name {
                last_found::found(self.number, dir.ino, Place { index, at: block.at, offset: entry.end });
                return Ok(Some(entry.ino));
            }
        }
        Ok(None)
    }

    /// A name right behind the last found one, in a block that was found right. The entry is copied out: so threads
    /// that look up names of one directory store nothing that the others read.
    fn find_right_behind(&self, dir: &Node, name: &[u8], place: Place) -> Option<u32> {
        let mut raw = [0; HEAD + NAME_MAX];
        let raw = raw.get_mut(..HEAD + name.len())?;
        if raw.len() > self.sup.block_size.saturating_sub(place.offset) {
            return None;
        }
        let note = self.blocks.copy(place.at, place.offset, raw).ok()?;
        if !self.dir_checks(dir, place.index).are_noted(note) {
            return None;
        }
        let (head, found) = raw.split_at(HEAD);
        let (ino, len) = (u32_at(head, 0), record_len(u16_at(head, 4), self.sup.block_size));
        if ino == 0 || found != name || name_len(&self.sup, head).0 != name.len() {
            return None;
        }
        last_found::found(self.number, dir.ino, Place { offset: place.offset + len, ..place });
        Some(ino)
    }

    /// A name behind the last found one. If this finds nothing, a full search follows, which reports damage.
    fn find_next(&self, dir: &Node, name: &[u8], place: Place) -> Option<u32> {
        if let Some(ino) = self.find_right_behind(dir, name, place) {
            return Some(ino);
        }
        let mut block = self.dir_block_at(dir, place.index, place.at).ok()?;
        let (mut index, mut from) = (place.index, place.offset);
        loop {
            let next = block
                .entries_from(&self.sup, from)
                .find(|entry| !matches!(entry, Ok(entry) if entry.ino == 0));
            if let Some(entry) = next {
                let entry = entry.ok().filter(|entry| entry.name == name)?;
                last_found::found(self.number, dir.ino, Place { index, at: block.at, offset: entry.end });
                return Some(entry.ino);
            }
            if from == 0 {
                // The block is empty: going on is not worth it.
                return None;
            }
            (index, from) = (index + 1, 0);
            if index >= self.dir_blocks(dir).ok()? {
                return None;
            }
            let at = self.metadata_run(dir, index).ok()?.at;
            if self.is_indexed(dir) && !self.blocks.holds(at) {
                return None;
            }
            block = self.dir_block_at(dir, index, at).ok()?;
        }
    }

    /// The inode of a name, checked: in use, and if it is a directory, this one's child.
    pub(super) fn child(&self, dir: &Node, ino: u32) -> Result<Node> {
        let node = self.named(ino)?;
        if node.is_dir() {
            let parent = self.parent(&node)?;
            ensure(parent == dir.ino, "a name of a directory that is elsewhere").of(ino)?;
        }
        Ok(node)
    }

    /// The inode that `..` of a directory names.
    fn parent(&self, dir: &Node) -> Result<u32> {
        if dir.is_inline() {
            return Ok(u32_at(dir.pointers(), 0));
        }
        let block = self.dir_block(dir, 0)?;
        let (at, mut entries) = (block.at, block.entries(&self.sup));
        let mut next = |name: &[u8]| match entries.next() {
            Some(Ok(entry)) if entry.name == name => Ok(entry.ino),
            Some(Err(fault)) => Err(fault),
            _ => Err(Fault::damage("a directory without . and ..")),
        };
        let both = next(b".").and_then(|own| Ok((own, next(b"..")?)));
        let (own, parent) = both.in_block(at).of(dir.ino)?;
        ensure(own == dir.ino, "the . of another directory").in_block(at).of(dir.ino)?;
        Ok(parent)
    }

    /// The root directory.
    pub(super) fn root_node(&self) -> Result<Node> {
        let node = self.node(ROOT_INO)?;
        ensure(node.is_dir() && node.links() != 0, "the root is no directory").of(ROOT_INO)?;
        Ok(node)
    }
}
