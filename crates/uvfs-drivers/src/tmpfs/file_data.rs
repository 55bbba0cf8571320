//! Contents of regular files: read, write, allocate, punch, seek.
//!
//! Writers of one file (and truncation) hold its mapping's mutex, which also covers every change
//! of its size: appending is atomic. Inside it they take the inode's lock, for the one step in which
//! size, blocks and times change. Readers take no lock: they read the size, copy, and read
//! the size again.
//!
//! Two facts hold whenever the mutex is free. Bytes of a page beyond the file's size are zero, so
//! extending a file shows zeroes. And `blocks` is eight per page.

use std::ops::RangeInclusive;

use uvfs::driver::Inode;
use uvfs::types::{Attr, Errno, Fallocate, Op, Result, Seek, Time};
use uvfs_cache::machinery::mapping::{PAGE_SIZE, Writer};

use super::Tmpfs;

/// Largest size of a file: offsets are signed.
pub(super) const MAX_SIZE: u64 = i64::MAX as u64;
/// [`PAGE_SIZE`] in the type of offsets.
pub(super) const PAGE: u64 = PAGE_SIZE as u64;
/// Units of `blocks` in a page.
pub(super) const PAGE_BLOCKS: u64 = PAGE / 512;

/// A piece of a range that lies in one page.
#[derive(Clone, Copy)]
struct Piece {
    index: u64,
    offset: usize,
    len: usize,
}

/// As much of `data` as a file can have at `start`.
///
/// # Errors
/// EFBIG if that is nothing.
pub(super) fn below_max_size(data: &[u8], start: u64) -> Result<&[u8]> {
    match MAX_SIZE.saturating_sub(start).min(data.len() as u64) {
        0 => Err(Errno::FBIG),
        len => Ok(&data[..len as usize]),
    }
}

/// The pieces of `len` bytes from `start` on.
fn pieces(start: u64, len: u64) -> impl Iterator<Item = Piece> {
    let end = start + len;
    let mut at = start;
    std::iter::from_fn(move || {
        let (index, offset) = (at / PAGE, at % PAGE);
        let len = (end - at).min(PAGE - offset);
        at += len;
        (len != 0).then_some(Piece { index, offset: offset as usize, len: len as usize })
    })
}

/// The pages that a range of at least one byte touches.
fn touched(start: u64, len: u64) -> RangeInclusive<u64> {
    start / PAGE..=(start + len - 1) / PAGE
}

fn pages_in(range: &RangeInclusive<u64>) -> u64 {
    range.end() - range.start() + 1
}

impl Tmpfs {
    pub(super) fn read_file(&self, op: &Op, inode: &Inode<'_>, offset: u64, buf: &mut [u8]) -> Result<usize> {
        // Before the look where the contents are: see `passthrough.rs`.
        let mut attr = inode.attr();
        if let Some(read) = self.read_moved(op, inode, offset, buf) {
            return read;
        }
        let mut len = attr.size.saturating_sub(offset).min(buf.len() as u64);
        if let Some(node) = self.node(inode).filter(|_| len != 0) {
            let mut rest = &mut buf[..len as usize];
            for piece in pieces(offset, len) {
                let (out, after) = rest.split_at_mut(piece.len);
                node.mapping.read(&self.memory, piece.index, piece.offset, out);
                rest = after;
            }
            // If the file was cut meanwhile, the bytes copied past its new end are zeroes that the file never had.
            // If it is cut later, this read came first.
            attr = inode.attr();
            len = len.min(attr.size.saturating_sub(offset));
        } else {
            // Only a file that has a node has a size.
            len = 0;
        }
        touch_atime(inode, &attr, op.now);
        Ok(len as usize)
    }

    pub(super) fn write_file(
        &self,
        op: &Op,
        inode: &Inode<'_>,
        offset: u64,
        data: &[u8],
        append: bool,
    ) -> Result<usize> {
        if data.is_empty() {
            return Ok(0);
        }
        let node = self.node_or_new(inode)?;
        let mut writer = node.mapping.lock(&self.memory);
        if node.home.is_moved() {
            drop(writer);
            return self.write_moved(op, inode, offset, data, append).unwrap_or(Err(Errno::STALE));
        }
        let start = if append { inode.attr().size } else { offset };
        let data = below_max_size(data, start)?;
        let before = writer.count();
        let written = self.fill(&mut writer, start, data);
        if written == 0 {
            return Err(Errno::NOSPC);
        }
        let added = writer.count() - before;
        inode.update(|attr| {
            attr.size = attr.size.max(start + written as u64);
            attr.blocks += added * PAGE_BLOCKS;
            attr.mtime = op.now;
            attr.ctime = op.now;
        });
        Ok(written)
    }

    /// Stores bytes until the space runs out. Returns how many.
    fn fill(&self, writer: &mut Writer<'_>, start: u64, data: &[u8]) -> usize {
        let range = touched(start, data.len() as u64);
        let missing = pages_in(&range) - writer.count_range(range);
        let mut granted = self.bytes.take_up_to(PAGE, missing);
        let mut done = 0;
        for piece in pieces(start, data.len() as u64) {
            let bytes = &data[done..done + piece.len];
            if granted == 0 {
                if !writer.overwrite(piece.index, piece.offset, bytes) {
                    break;
                }
            } else {
                match writer.write(piece.index, piece.offset, bytes) {
                    Ok(added) => granted -= u64::from(added),
                    Err(_) => break,
                }
            }
            done += piece.len;
        }
        self.bytes.give(granted * PAGE);
        done
    }

    pub(super) fn allocate_file(
        &self,
        op: &Op,
        inode: &Inode<'_>,
        how: Fallocate,
        start: u64,
        len: u64,
    ) -> Result<()> {
        let end = start.checked_add(len).filter(|end| *end <= MAX_SIZE).ok_or(Errno::FBIG)?;
        if len == 0 {
            return Err(Errno::INVAL);
        }
        let node = self.node_or_new(inode)?;
        let mut writer = node.mapping.lock(&self.memory);
        if node.home.is_moved() {
            drop(writer);
            return self.allocate_moved(op, inode, how, (start, len)).unwrap_or(Err(Errno::STALE));
        }
        let before = writer.count();
        let keep_size = match how {
            Fallocate::Allocate { keep_size } => {
                self.grow(&mut writer, touched(start, len))?;
                keep_size
            }
            Fallocate::ZeroRange { keep_size } => {
                self.grow(&mut writer, touched(start, len))?;
                for piece in pieces(start, len) {
                    writer.zero(piece.index, piece.offset, piece.len);
                }
                keep_size
            }
            Fallocate::PunchHole => {
                self.punch(&mut writer, start, end);
                true
            }
        };
        let after = writer.count();
        inode.update(|attr| {
            if !keep_size {
                attr.size = attr.size.max(end);
            }
            attr.blocks = attr.blocks + after * PAGE_BLOCKS - before * PAGE_BLOCKS;
            attr.mtime = op.now;
            attr.ctime = op.now;
        });
        Ok(())
    }

    /// Adds the missing pages: all of them, or none with ENOSPC.
    fn grow(&self, writer: &mut Writer<'_>, range: RangeInclusive<u64>) -> Result<()> {
        let missing = pages_in(&range) - writer.count_range(range.clone());
        // Even without a limit, memory is one: do not start what cannot finish.
        if missing > u64::from(self.memory.capacity()) || !self.bytes.take(missing * PAGE) {
            return Err(Errno::NOSPC);
        }
        let mut added: Vec<RangeInclusive<u64>> = Vec::new();
        let mut next = writer.next_absent(*range.start());
        while next <= *range.end() {
            if writer.write(next, 0, &[]).is_err() {
                for run in added {
                    writer.remove_range(run);
                }
                self.bytes.give(missing * PAGE);
                return Err(Errno::NOSPC);
            }
            match added.last_mut() {
                Some(run) if run.end() + 1 == next => *run = *run.start()..=next,
                _ => added.push(next..=next),
            }
            next = writer.next_absent(next + 1);
        }
        Ok(())
    }

    /// Removes the pages that lie wholly in a range, and zeroes the range's bytes in other pages.
    fn punch(&self, writer: &mut Writer<'_>, start: u64, end: u64) {
        let (first, past) = (start.div_ceil(PAGE), end / PAGE);
        if first < past {
            let removed = writer.remove_range(first..=past - 1);
            self.bytes.give(removed * PAGE);
        }
        // The rest is at most the end of one page and the beginning of another, or the middle
        // of one.
        let head = end.min(first * PAGE) - start;
        let tail_start = (past * PAGE).max(start + head);
        for piece in pieces(start, head).chain(pieces(tail_start, end - tail_start)) {
            writer.zero(piece.index, piece.offset, piece.len);
        }
    }

    /// Removes all pages beyond `size` and zeroes the rest of the last page, under the mutex.
    /// Returns how many pages were removed.
    pub(super) fn cut(&self, writer: &mut Writer<'_>, size: u64) -> u64 {
        let removed = writer.remove_range(size.div_ceil(PAGE)..=MAX_SIZE / PAGE);
        self.bytes.give(removed * PAGE);
        let offset = (size % PAGE) as usize;
        if offset != 0 {
            writer.zero(size / PAGE, offset, PAGE_SIZE - offset);
        }
        removed
    }

    pub(super) fn seek_file(&self, inode: &Inode<'_>, offset: u64, what: Seek) -> Result<u64> {
        let Some(node) = self.node(inode) else { return Err(Errno::NXIO) };
        if let Some(found) = self.seek_moved(inode, offset, what) {
            return found;
        }
        let writer = node.mapping.lock(&self.memory);
        let size = inode.attr().size;
        if offset >= size {
            return Err(Errno::NXIO);
        }
        let index = match what {
            Seek::Data => writer.next_present(offset / PAGE).ok_or(Errno::NXIO)?,
            Seek::Hole => writer.next_absent(offset / PAGE),
        };
        let found = index.saturating_mul(PAGE).max(offset);
        match what {
            // Pages beyond the end (allocated with the size kept) are not the file's data.
            Seek::Data if found >= size => Err(Errno::NXIO),
            Seek::Data => Ok(found),
            Seek::Hole => Ok(found.min(size)),
        }
    }
}

/// Updates atime for a read, if `relatime` asks for it.
pub(super) fn touch_atime(inode: &Inode<'_>, attr: &Attr, now: Time) {
    if attr.atime_is_due(now) {
        inode.update(|attr| attr.atime = now);
    }
}
