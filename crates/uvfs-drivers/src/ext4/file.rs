//! Contents of files and links.
//!
//! File data goes from the image into the reader's buffer; it is neither kept nor checked (the format has no
//! checksums of data). Inline data is the 60 bytes of the inode's pointers, and the rest in its attribute
//! `system.data`; the file is zeros beyond that. Encrypted content is ENOKEY, as in a kernel without the key.

use uvfs::types::{Errno, PATH_MAX, Seek, mode};

use super::dir_cycles::Witness;
use super::fault::{Fault, Locate, Result, ensure};
use super::inode::Node;
use super::{Fs, features};

/// Targets of links that are shorter are in the inode itself.
const FAST_LINK: u64 = 60;

impl Fs {
    /// Reads up to the end of the file. Returns how much.
    pub(super) fn read_file(&self, node: &Node, offset: u64, buf: &mut [u8]) -> Result<usize> {
        node.expect_plain()?;
        let len = node.size.saturating_sub(offset).min(buf.len() as u64) as usize;
        let buf = &mut buf[..len];
        if len == 0 {
            return Ok(0);
        }
        if node.is_inline() {
            let data = self.inline_data(node)?;
            // A file that was made longer ends in zeros, which are not stored.
            let found = usize::try_from(offset).ok().and_then(|start| data.get(start..)).unwrap_or_default();
            let (stored, rest) = buf.split_at_mut(found.len().min(len));
            stored.copy_from_slice(&found[..stored.len()]);
            rest.fill(0);
            return Ok(len);
        }
        self.read_blocks(node, offset, buf)?;
        Ok(len)
    }

    /// Fills the buffer, which ends within the file.
    fn read_blocks(&self, node: &Node, offset: u64, buf: &mut [u8]) -> Result<()> {
        let block_size = self.sup.block_size as u64;
        let mut done = 0;
        while done < buf.len() {
            let at = offset + done as u64;
            let skip = at % block_size;
            let run = self.run(node, at / block_size)?;
            let bytes = run.len.saturating_mul(block_size) - skip;
            let take = bytes.min((buf.len() - done) as u64) as usize;
            let part = &mut buf[done..done + take];
            match run.block {
                Some(block) => self.blocks.read(block, skip, part).of(node.ino)?,
                None => part.fill(0),
            }
            done += take;
        }
        Ok(())
    }

    /// The next byte of data, or of a hole, from an offset on. A map may lead to one block again and again, on
    /// purpose. That is damage, except in an image that shares blocks. So are more runs than the image has room for.
    pub(super) fn seek_file(&self, node: &Node, offset: u64, what: Seek) -> Result<u64> {
        node.expect_plain()?;
        if offset >= node.size {
            return Err(Errno::NXIO.into());
        }
        if node.is_inline() {
            return Ok(if what == Seek::Data { offset } else { node.size });
        }
        let block_size = self.sup.block_size as u64;
        let (mut at, mut left, mut witness) =
            (offset, self.sup.blocks.saturating_mul(2), Witness::new(self.number));
        while at < node.size {
            ensure(left > 0, "a map of blocks that goes around").of(node.ino)?;
            left -= 1;
            let run = self.run(node, at / block_size)?;
            if run.block.is_some() == (what == Seek::Data) {
                return Ok(at);
            }
            if let Some(block) = run.block
                && !self.sup.has_ro_compat(features::RO_SHARED_BLOCKS)
            {
                witness.meet(block).of(node.ino)?;
            }
            at = (at / block_size).saturating_add(run.len).saturating_mul(block_size);
        }
        match what {
            Seek::Data => Err(Errno::NXIO.into()),
            Seek::Hole => Ok(node.size),
        }
    }

    /// The target of a symbolic link.
    pub(super) fn link_target(&self, node: &Node) -> Result<Vec<u8>> {
        if node.fmt() != mode::S_IFLNK {
            return Err(Errno::INVAL.into());
        }
        node.expect_plain()?;
        let target = self.read_target(node).of(node.ino)?;
        ensure(!target.contains(&0), "a nul in the target of a link").of(node.ino)?;
        Ok(target)
    }

    fn read_target(&self, node: &Node) -> Result<Vec<u8>> {
        ensure(node.size > 0 && node.size <= PATH_MAX as u64, "length of a link's target")?;
        let len = node.size as usize;
        if node.is_inline() {
            let mut target = self.inline_data(node)?;
            ensure(target.len() >= len, "a link's target ends early")?;
            target.truncate(len);
            return Ok(target);
        }
        if self.is_fast_link(node) {
            let target = node.pointers().get(..len);
            return Ok(target.ok_or_else(|| Fault::damage("length of a link's target"))?.to_vec());
        }
        let mut target = vec![0; len];
        let block = self.blocks.get(self.metadata_run(node, 0)?.at)?;
        // A target takes one block; only one of 1 KiB is shorter than a path may be.
        ensure(len < block.len(), "length of a link's target")?;
        target.copy_from_slice(&block[..len]);
        Ok(target)
    }

    /// Whether the target is in the inode: there is no block but that of its attributes.
    fn is_fast_link(&self, node: &Node) -> bool {
        if self.sup.has_incompat(features::EA_INODE) {
            return node.size < FAST_LINK;
        }
        let attributes = if node.xattr_block == 0 { 0 } else { self.sup.block_size as u64 / 512 };
        node.sectors(self) == attributes
    }

    /// All of the inline data, which may be longer than the file, or shorter.
    pub(super) fn inline_data(&self, node: &Node) -> Result<Vec<u8>> {
        let mut data = node.pointers().to_vec();
        data.extend_from_slice(self.inline_rest(node)?);
        Ok(data)
    }
}
