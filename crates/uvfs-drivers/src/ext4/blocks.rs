//! The image as blocks: the seam between this driver and a cache of blocks.
//!
//! [`Blocks::get`] answers with a block of metadata that stays as it is for as long as it is held;
//! [`Blocks::read`] puts file data into the reader's buffer. Nobody else looks at the image.
//!
//! The cache is as simple as one can be: a block has one place, [`CACHE`] bytes in all, each place under
//! a lock of its own that is held for a copy of a pointer and never while the image is read. So
//! two threads that miss the same block may both read it. File data is not cached.

use std::fs::File;
use std::io::{self, Seek, SeekFrom};
use std::ops::Deref;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use parking_lot::Mutex;
use uvfs::types::Errno;

use super::fault::{Fault, Result};

/// Most bytes of metadata that are kept.
const CACHE: usize = 8 << 20;

/// Where an image is read from. Many threads read at once.
pub trait Source: Send + Sync + 'static {
    /// Its length, in bytes.
    fn size(&self) -> u64;
    /// Fills `buf` from `offset` on; an error where not all of it is there.
    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<()>;
}

/// An image in memory.
impl Source for Vec<u8> {
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

/// A file or a block device.
pub(super) struct Image {
    file: File,
    size: u64,
}

impl Image {
    /// Finds out how long it is; a device says so only at its end.
    pub(super) fn new(mut file: File) -> io::Result<Self> {
        let size = file.seek(SeekFrom::End(0))?;
        Ok(Self { file, size })
    }
}

impl Source for Image {
    fn size(&self) -> u64 {
        self.size
    }

    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<()> {
        self.file.read_exact_at(buf, offset)
    }
}

/// A block's bytes; as long as the file system's block size.
#[derive(Clone)]
pub(super) struct Block(Arc<Vec<u8>>);

impl Deref for Block {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        &self.0
    }
}

type Place = Mutex<Option<(u64, Block)>>;

/// The blocks of an image.
pub(super) struct Blocks {
    source: Box<dyn Source>,
    block_size: usize,
    places: Box<[Place]>,
}

impl Blocks {
    /// Blocks of `block_size` bytes, which is a power of two from 1 KiB to 64 KiB.
    pub(super) fn new(source: Box<dyn Source>, block_size: usize) -> Self {
        let places = (0..(CACHE / block_size).max(1)).map(|_| Mutex::default()).collect();
        Self { source, block_size, places }
    }

    /// A block of metadata.
    pub(super) fn get(&self, block: u64) -> Result<Block> {
        let place = &self.places[(block % self.places.len() as u64) as usize];
        if let Some((number, found)) = &*place.lock()
            && *number == block
        {
            return Ok(found.clone());
        }
        let mut bytes = vec![0; self.block_size];
        self.read(block, 0, &mut bytes)?;
        let found = Block(Arc::new(bytes));
        // What stood there is dropped after the lock.
        let _before = place.lock().replace((block, found.clone()));
        Ok(found)
    }

    /// Fills `buf` from byte `skip` of a block on, past its end too: the blocks stand in a row.
    pub(super) fn read(&self, block: u64, skip: u64, buf: &mut [u8]) -> Result<()> {
        let offset = block.checked_mul(self.block_size as u64).and_then(|start| start.checked_add(skip));
        let offset = offset.ok_or_else(|| Fault::unread(block, Errno::IO))?;
        // A file that was cut off and a device that fails are the same to who reads.
        self.source.read_at(buf, offset).map_err(|_| Fault::unread(block, Errno::IO))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_are_read_once_and_ends_are_errors() {
        let image: Vec<u8> = (0..8).flat_map(|n| vec![n; 1024]).collect();
        let blocks = Blocks::new(Box::new(image), 1024);
        let first = blocks.get(3).unwrap();
        assert!(first.iter().all(|&b| b == 3) && Arc::ptr_eq(&first.0, &blocks.get(3).unwrap().0));
        assert_eq!(blocks.get(8).map(drop), Err(Fault::unread(8, Errno::IO)));
        assert_eq!(blocks.get(u64::MAX).map(drop), Err(Fault::unread(u64::MAX, Errno::IO)));
        let mut two = [0; 1500];
        blocks.read(6, 500, &mut two).unwrap();
        assert!(two[..524].iter().all(|&b| b == 6) && two[524..].iter().all(|&b| b == 7));
        assert!(blocks.read(7, 500, &mut two).is_err());
    }
}
