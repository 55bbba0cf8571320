//! The image as blocks: the seam between this driver and the cache of blocks ([`uvfs_cache::machinery::buffers`]).
//!
//! [`Blocks::get`] returns a pinned block of metadata: it does not change while it is held. [`Blocks::copy`] copies a
//! few bytes out of a block and pins nothing. [`Blocks::read`] reads file data into the reader's buffer. No other
//! code reads the image.
//!
//! Metadata goes through the cache of blocks: memory within the cache's limit, one read for all threads that miss a
//! block, read-ahead, and hits without a lock. File data does not: the reader's kernel keeps pages of the file, and
//! ours keeps those of the image. A third copy would only drive out metadata.
//!
//! A check of a block's bytes need not be repeated while they are in memory. The caller that found them right notes a
//! [`Checks`] mark, which says what they were checked as. The cache of blocks keeps these notes, and drops them with
//! the block.

use std::fs::File;
use std::hash::{BuildHasher, Hash};
use std::io::{self, Seek, SeekFrom, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::sync::{Arc, OnceLock};

use foldhash::fast::RandomState;
use uvfs::types::Errno;
use uvfs_cache::Cache;
use uvfs_cache::machinery::buffers::{BlockSource, Device};
use uvfs_sync::primitives::shard;

use super::block_trace::Record;
use super::fault::{Fault, Result};

/// The source of an image's bytes. Many threads read at once.
pub trait ImageSource: Send + Sync + 'static {
    /// Its length, in bytes.
    fn size(&self) -> u64;
    /// Fills `buf` from `offset` on; an error if the source ends before.
    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<()>;
}

/// An image in memory.
impl ImageSource for Vec<u8> {
    fn size(&self) -> u64 {
        self.len() as u64
    }

    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<()> {
        let start = usize::try_from(offset).ok();
        let found = start.and_then(|start| self.get(start..start.checked_add(buf.len())?));
        buf.copy_from_slice(found.ok_or(io::ErrorKind::UnexpectedEof)?);
        Ok(())
    }
}

/// A file or a block device, opened several times. The kernel counts the calls in progress with an open file in a
/// word of that file. Threads that read at the same time would pass this word's cache line to each other.
pub(super) struct Image {
    /// At least one. By a thread's shard.
    files: Vec<File>,
    size: u64,
}

/// How often it is opened.
const OPENED: usize = 4;

impl Image {
    /// Finds its length; a device tells it only by a seek to its end.
    pub(super) fn new(mut file: File) -> io::Result<Self> {
        let size = file.seek(SeekFrom::End(0))?;
        let again = format!("/proc/self/fd/{}", file.as_raw_fd());
        let mut files = vec![file];
        // If more cannot be opened, one suffices.
        files.extend((1..OPENED).map_while(|_| File::open(&again).ok()));
        Ok(Self { files, size })
    }
}

impl ImageSource for Image {
    fn size(&self) -> u64 {
        self.size
    }

    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<()> {
        self.files[shard() % self.files.len()].read_exact_at(buf, offset)
    }
}

/// A source for the cache of blocks, which reads up to its end.
struct Upto(Arc<dyn ImageSource>);

impl BlockSource for Upto {
    fn read_at(&self, offset: u64, out: &mut [u8]) -> io::Result<usize> {
        let left = self.0.size().saturating_sub(offset);
        let len = usize::try_from(left).unwrap_or(usize::MAX).min(out.len());
        self.0.read_at(&mut out[..len], offset)?;
        Ok(len)
    }
}

/// A block's bytes; as long as the file system's block size.
pub(super) type Block<'f> = uvfs_cache::machinery::buffers::Buffer<'f>;

/// The meaning with which a block's bytes were found right: a keyed hash of it, so that nobody can make an image in
/// which two are surely equal. (If two are equal, the block's content is trusted unchecked, and all code that reads
/// it must end all the same.)
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Checks(u64);

/// The bit of a note that is a [`Checks`]; without it the other bits stand for inodes of a table.
const IS_CHECKS: u64 = 1 << 63;

impl Checks {
    pub(super) fn are_done(self, block: &Block<'_>) -> bool {
        self.are_noted(block.note())
    }

    /// Whether this note is one of them.
    pub(super) fn are_noted(self, note: u64) -> bool {
        note == self.0
    }

    pub(super) fn done(self, block: &Block<'_>) {
        block.set_note(self.0);
    }
}

/// Whether the inode at this place of a block was checked. No place is in two tables: that is checked when the image
/// is opened. (The 64th inode of a block, and later ones, are checked each time.)
pub(super) fn is_inode_checked(note: u64, place: usize) -> bool {
    note & IS_CHECKS == 0 && place < 63 && note >> place & 1 == 1
}

/// Notes that this inode was checked, in a block of a table of inodes.
pub(super) fn inode_checked(block: &Block<'_>, place: usize) {
    if place < 63 {
        let others = if block.note() & IS_CHECKS == 0 { block.note() } else { 0 };
        block.set_note(others | 1 << place);
    }
}

/// The blocks of an image.
pub(super) struct Blocks {
    source: Arc<dyn ImageSource>,
    block_size: usize,
    device: Arc<Device>,
    key: RandomState,
    record: OnceLock<Record>,
}

impl Blocks {
    /// So many blocks of `block_size` bytes, which is a power of two from 1 KiB to 64 KiB.
    pub(super) fn new(source: Arc<dyn ImageSource>, block_size: usize, blocks: u64) -> io::Result<Self> {
        let device = Device::alone(Arc::new(Upto(source.clone())), block_size, blocks)?;
        let (key, record) = (RandomState::default(), OnceLock::new());
        Ok(Self { source, block_size, device, key, record })
    }

    /// Drops all blocks that are not in use.
    pub(super) fn forget(&self) {
        self.device.give(u64::MAX);
    }

    /// From now on metadata counts towards this cache's limit.
    pub(super) fn join(&self, cache: &Arc<Cache>) {
        self.device.join(cache);
    }

    /// Writes the number of each block of metadata that is used from now on. Once.
    pub(super) fn record(&self, out: Box<dyn Write + Send>) -> io::Result<()> {
        let record = Record::new(out, self.block_size)?;
        self.record.set(record).map_err(|_| io::ErrorKind::AlreadyExists.into())
    }

    /// The recorded trace, if any.
    pub(super) fn recorded(&self) -> Option<&Record> {
        self.record.get()
    }

    /// Whether a block of metadata is in memory now.
    pub(super) fn holds(&self, block: u64) -> bool {
        self.device.holds(block)
    }

    fn used(&self, block: u64) {
        if let Some(record) = self.record.get() {
            record.used(block);
        }
    }

    /// A block of metadata.
    pub(super) fn get(&self, block: u64) -> Result<Block<'_>> {
        self.used(block);
        self.device.get(block).map_err(|error| unread(block, &error))
    }

    /// Copies a few bytes out of a block of metadata, and returns the block's note.
    pub(super) fn copy(&self, block: u64, at: usize, out: &mut [u8]) -> Result<u64> {
        self.used(block);
        self.device.read_noted(block, at, out).map_err(|error| unread(block, &error))
    }

    /// The note on a block once it was found right as `what`.
    pub(super) fn checks(&self, what: impl Hash) -> Checks {
        Checks(self.key.hash_one(what) | IS_CHECKS)
    }

    /// Fills `buf` from byte `skip` of a block on, and past its end from the next blocks of the image.
    pub(super) fn read(&self, block: u64, skip: u64, buf: &mut [u8]) -> Result<()> {
        let offset = block.checked_mul(self.block_size as u64).and_then(|start| start.checked_add(skip));
        let offset = offset.ok_or_else(|| Fault::unread(block, Errno::IO))?;
        self.source.read_at(buf, offset).map_err(|error| unread(block, &error))
    }
}

/// To a reader, a truncated file and a failing device are the same. A lack of memory is not the image's fault.
fn unread(block: u64, error: &io::Error) -> Fault {
    match error.raw_os_error().map(Errno::from_raw_os_error) {
        Some(Errno::NOMEM) => Errno::NOMEM.into(),
        _ => Fault::unread(block, Errno::IO),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn blocks() -> Blocks {
        let image: Vec<u8> = (0..8).flat_map(|n| vec![n; 1024]).chain([9; 10]).collect();
        Blocks::new(Arc::new(image), 1024, 8).unwrap()
    }

    #[test]
    fn blocks_are_read_and_ends_are_errors() {
        let blocks = blocks();
        assert!(blocks.get(3).unwrap().iter().all(|&b| b == 3));
        for beyond in [8, 9, 1 << 50, u64::MAX] {
            assert_eq!(blocks.get(beyond).map(drop), Err(Fault::unread(beyond, Errno::IO)));
        }
        let mut two = [0; 1500];
        blocks.read(6, 500, &mut two).unwrap();
        assert!(two[..524].iter().all(|&b| b == 6) && two[524..].iter().all(|&b| b == 7));
        assert!(blocks.read(7, 500, &mut two).is_err() && blocks.read(u64::MAX, 0, &mut two).is_err());
    }

    #[test]
    fn what_was_checked_is_known_as_that_only() {
        let blocks = blocks();
        let (one, two) = (blocks.checks((1, 2)), blocks.checks((2, 1)));
        let block = blocks.get(1).unwrap();
        assert!(!one.are_done(&block));
        one.done(&block);
        assert!(one.are_done(&block) && !two.are_done(&block));
        assert!((0..70).all(|place| !is_inode_checked(block.note(), place)));
        for place in [0, 5, 62, 63, 64] {
            inode_checked(&block, place);
        }
        let note = blocks.copy(1, 0, &mut []).unwrap();
        let known: Vec<_> = (0..70).filter(|place| is_inode_checked(note, *place)).collect();
        assert!(known == [0, 5, 62] && !one.are_done(&block));
    }
}
