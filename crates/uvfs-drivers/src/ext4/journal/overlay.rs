//! The image with its journal in front of it: reads of a block that is in the log go to the log.
//!
//! Only the place of each such block is kept, so the contents take no memory. Sorted once, read by any number of
//! threads.

use std::io;
use std::sync::Arc;

use super::super::image_blocks::ImageSource;
use super::log_block::MAGIC;
use super::replay::Changes;

/// Bytes of memory for a block.
pub(super) const ENTRY: u64 = size_of::<(u64, Place)>() as u64;

/// The block of the image that is read for another one, and whether its first bytes are escaped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Place(u64);

/// Block numbers have 48 bits.
const ESCAPED: u64 = 1 << 63;

impl Place {
    pub(super) fn new(block: u64, escaped: bool) -> Self {
        Self(block | if escaped { ESCAPED } else { 0 })
    }

    fn block(self) -> u64 {
        self.0 & !ESCAPED
    }

    fn is_escaped(self) -> bool {
        self.0 & ESCAPED != 0
    }
}

/// See the module's head.
pub(super) struct Overlay {
    source: Arc<dyn ImageSource>,
    block_size: u64,
    /// By block, in order.
    changed: Box<[(u64, Place)]>,
}

impl Overlay {
    pub(super) fn new(source: Arc<dyn ImageSource>, block_size: usize, changes: Changes) -> Self {
        Self { source, block_size: block_size as u64, changed: changes.into_iter().collect() }
    }

    /// The number of blocks that are read from the log.
    pub(super) fn blocks(&self) -> u64 {
        self.changed.len() as u64
    }

    /// Fills `buf` from byte `skip` of a block that is in the log.
    fn read_logged(&self, place: Place, skip: u64, buf: &mut [u8]) -> io::Result<()> {
        self.source.read_at(buf, place.block() * self.block_size + skip)?;
        if place.is_escaped() {
            let magic = MAGIC.get(skip.min(4) as usize..).unwrap_or_default();
            buf.iter_mut().zip(magic).for_each(|(byte, right)| *byte = *right);
        }
        Ok(())
    }
}

impl ImageSource for Overlay {
    fn size(&self) -> u64 {
        self.source.size()
    }

    fn read_at(&self, mut buf: &mut [u8], mut offset: u64) -> io::Result<()> {
        let mut next = self.changed.partition_point(|(block, _)| *block < offset / self.block_size);
        while !buf.is_empty() {
            let (block, skip) = (offset / self.block_size, offset % self.block_size);
            let changed = self.changed.get(next).copied();
            let logged = changed.filter(|(changed, _)| *changed == block);
            let end = match (logged, changed) {
                (Some(_), _) => (block + 1) * self.block_size,
                (None, Some((changed, _))) => changed * self.block_size,
                (None, None) => u64::MAX,
            };
            let (part, rest) = buf.split_at_mut((end - offset).min(buf.len() as u64) as usize);
            if part.is_empty() {
                // Nothing is at this offset, which is the last one.
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            match logged {
                Some((_, place)) => {
                    self.read_logged(place, skip, part)?;
                    next += 1;
                }
                None => self.source.read_at(part, offset)?,
            }
            offset = offset.checked_add(part.len() as u64).ok_or(io::ErrorKind::UnexpectedEof)?;
            buf = rest;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_of_any_length_go_to_the_log_where_a_block_is_in_it() {
        let image: Vec<u8> = (0..8).flat_map(|n| vec![n; 1024]).collect();
        let changes = Changes::from([
            (1, Place::new(6, false)),
            (2, Place::new(7, true)),
            (4, Place::new(4, false)),
            (5, Place::new(0, false)),
        ]);
        let overlay = Overlay::new(Arc::new(image.clone()), 1024, changes);
        let mut right = image;
        right[1024..2048].fill(6);
        right[2048..3072].fill(7);
        right[2048..2052].copy_from_slice(&MAGIC);
        right[5120..6144].fill(0);
        for start in
            [0, 1, 1023, 1024, 1500, 2047, 2048, 2049, 2051, 2052, 3000, 4096, 5119, 6144, 8191, 8192]
        {
            for len in [0, 1, 2, 3, 1024, 1025, 3000, 8192] {
                let mut found = vec![99; len];
                let read = overlay.read_at(&mut found, start as u64);
                match right.get(start..start + len) {
                    Some(right) => assert!(read.is_ok() && found == right, "{start} {len}"),
                    None => assert!(read.is_err(), "{start} {len}"),
                }
            }
        }
        assert!(overlay.read_at(&mut [0; 9], u64::MAX - 4).is_err());
        assert!(overlay.read_at(&mut [0; 9], u64::MAX).is_err());
        assert_eq!((overlay.blocks(), overlay.size(), ENTRY), (4, 8192, 16));
    }
}
