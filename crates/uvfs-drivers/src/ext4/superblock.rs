//! The superblock: the image's layout, and whether it can be read.
//!
//! Read and checked once; plain values afterwards. Its sizes are checked here, so that arithmetic on group, block and
//! inode numbers elsewhere cannot overflow.

use super::ImageRefused;
use super::checksum::{crc32c, right};
use super::endian::{split_u64, u8_at, u16_at, u32_at};
use super::features;
use super::image_blocks::ImageSource;

/// Its offset, for any block size.
const OFFSET: u64 = 1024;
/// How long it is.
const SIZE: usize = 1024;
/// Its magic number, which is near its beginning.
const MAGIC: u16 = 0xef53;
/// The offset of its own checksum.
const CHECKSUM: usize = 0x3fc;
/// The root directory's inode.
pub(super) const ROOT_INO: u32 = 2;
/// The first inode for users, if the image does not tell.
const FIRST_INO: u32 = 11;

/// Whether the bytes from `start` on may begin with a file system of this kind.
pub(super) fn has_magic(source: &dyn ImageSource, start: u64) -> bool {
    let mut magic = [0; 2];
    let at = start.checked_add(OFFSET + 0x38);
    at.is_some_and(|at| source.read_at(&mut magic, at).is_ok()) && u16::from_le_bytes(magic) == MAGIC
}

/// The content of the superblock.
#[derive(Clone, Debug)]
pub(super) struct Superblock {
    pub block_size: usize,
    pub blocks: u64,
    /// Of `blocks`, those kept for root.
    pub reserved: u64,
    pub inodes: u32,
    /// The first block of group 0.
    pub first_block: u64,
    /// The block that contains the superblock.
    pub own_block: u64,
    pub group_blocks: u64,
    /// Blocks of a cluster, the unit in which free and used blocks are counted; 1 without `bigalloc`.
    pub cluster_blocks: u64,
    pub group_inodes: u32,
    pub groups: u32,
    pub inode_size: usize,
    pub descriptor_size: usize,
    /// Smallest number of an inode that names may lead to, the root aside.
    first_ino: u32,
    /// Inodes beyond that to which no name leads: quotas and the list of orphans.
    hidden: [u32; 4],
    pub uuid: [u8; 16],
    compat: u32,
    incompat: u32,
    ro_compat: u32,
    /// The seed of metadata checksums.
    pub seed: u32,
    pub hash_seed: [u32; 4],
    /// Characters above 127 count as positive in hashes of names.
    pub hash_unsigned: bool,
    /// With `meta_bg`: the first block of descriptors that is in its groups.
    pub first_meta_bg: u64,
    /// Clusters that hold no files, as mke2fs counted them; 0 if it did not.
    pub overhead: u64,
    /// Blocks of group descriptors kept for growing.
    pub spare_descriptors: u64,
    /// The two groups with backups, if there are only two.
    pub backups: [u32; 2],
    pub journal: u32,
    /// An earlier mount saw errors.
    pub marked_damaged: bool,
}

impl Superblock {
    /// Reads it.
    pub(super) fn read(source: &dyn ImageSource) -> Result<Self, ImageRefused> {
        let mut raw = [0; SIZE];
        if source.size() < OFFSET + SIZE as u64 {
            return Err(ImageRefused::new(
                "it is too short to hold an ext2, ext3 or ext4 file system".into(),
            ));
        }
        source.read_at(&mut raw, OFFSET).map_err(|e| ImageRefused::new(format!("it cannot be read: {e}")))?;
        if u16_at(&raw, 0x38) != MAGIC {
            return Err(ImageRefused::new("it is no ext2, ext3 or ext4 file system".into()));
        }
        let this = Self::parse(&raw)?;
        this.check_checksum(&raw)?;
        let bytes = this.blocks.checked_mul(this.block_size as u64);
        if bytes.is_none_or(|bytes| bytes > source.size()) {
            let text = format!(
                "it ends early: the file system has {} blocks of {} bytes, the image {} bytes; bring the rest",
                this.blocks,
                this.block_size,
                source.size()
            );
            return Err(ImageRefused::new(text));
        }
        Ok(this)
    }

    fn parse(raw: &[u8]) -> Result<Self, ImageRefused> {
        let (compat, incompat, ro_compat) = match u32_at(raw, 0x4c) {
            0 => (0, 0, 0),
            _ => (u32_at(raw, 0x5c), u32_at(raw, 0x60), u32_at(raw, 0x64)),
        };
        features::check(incompat)?;
        let old = u32_at(raw, 0x4c) == 0;
        let wide = incompat & features::WIDE != 0;
        let count = |low, high| if wide { split_u64(raw, low, high) } else { u64::from(u32_at(raw, low)) };
        let log_block_size = u32_at(raw, 0x18);
        if log_block_size > 6 {
            return Err(bad("block size"));
        }
        let mut uuid = [0; 16];
        uuid.copy_from_slice(&raw[0x68..0x78]);
        let seed = match incompat & features::CSUM_SEED {
            0 => crc32c(!0, &uuid),
            _ => u32_at(raw, 0x270),
        };
        let mut this = Self {
            block_size: 1024 << log_block_size,
            blocks: count(0x4, 0x150),
            reserved: count(0x8, 0x154),
            inodes: u32_at(raw, 0x0),
            first_block: u64::from(u32_at(raw, 0x14)),
            own_block: u64::from(log_block_size == 0),
            cluster_blocks: cluster_blocks(raw, ro_compat, log_block_size)?,
            group_blocks: u64::from(u32_at(raw, 0x20)),
            group_inodes: u32_at(raw, 0x28),
            groups: 0,
            inode_size: if old { 128 } else { usize::from(u16_at(raw, 0x58)) },
            descriptor_size: if wide { usize::from(u16_at(raw, 0xfe)) } else { 32 },
            first_ino: if old { FIRST_INO } else { u32_at(raw, 0x54) },
            hidden: [0x240, 0x244, 0x26c, 0x280].map(|at| u32_at(raw, at)),
            uuid,
            compat,
            incompat,
            ro_compat,
            seed,
            hash_seed: [0xec, 0xf0, 0xf4, 0xf8].map(|at| u32_at(raw, at)),
            hash_unsigned: u32_at(raw, 0x160) & 2 != 0,
            first_meta_bg: if incompat & features::META_BG == 0 {
                u64::MAX
            } else {
                u64::from(u32_at(raw, 0x104))
            },
            overhead: u64::from(u32_at(raw, 0x248)),
            spare_descriptors: u64::from(u16_at(raw, 0xce)),
            backups: [u32_at(raw, 0x24c), u32_at(raw, 0x250)],
            journal: u32_at(raw, 0xe0),
            marked_damaged: u16_at(raw, 0x3a) & 2 != 0,
        };
        this.check_layout()?;
        Ok(this)
    }

    /// The facts on which the rest of the driver relies.
    fn check_layout(&mut self) -> Result<(), ImageRefused> {
        let bits = self.block_size as u64 * 8;
        let within = |holds: bool, what| if holds { Ok(()) } else { Err(bad(what)) };
        // Groups of whole clusters begin at block 0, even if the superblock is in block 1.
        let first = self.first_block == self.own_block || self.first_block == 0 && self.cluster_blocks > 1;
        within(first, "first data block")?;
        within(self.blocks > self.own_block + 1 && self.blocks < 1 << 48, "number of blocks")?;
        let most = bits.saturating_mul(self.cluster_blocks);
        let whole = self.group_blocks.is_multiple_of(self.cluster_blocks);
        within(self.group_blocks > 0 && self.group_blocks <= most && whole, "blocks per group")?;
        within(self.group_inodes > 0 && u64::from(self.group_inodes) <= bits, "inodes per group")?;
        let size = self.inode_size;
        within(size.is_power_of_two() && (128..=self.block_size).contains(&size), "inode size")?;
        let descriptor = self.descriptor_size;
        let least = if self.has_incompat(features::WIDE) { 64 } else { 32 };
        within(
            descriptor.is_power_of_two() && (least..=1024).contains(&descriptor),
            "size of group descriptors",
        )?;
        let groups = (self.blocks - self.first_block).div_ceil(self.group_blocks);
        self.groups = u32::try_from(groups).map_err(|_| bad("number of groups"))?;
        let inodes = self.groups.checked_mul(self.group_inodes);
        within(inodes == Some(self.inodes), "number of inodes")?;
        within(self.first_ino >= FIRST_INO && self.first_ino <= self.inodes, "first inode")?;
        self.reserved = self.reserved.min(self.blocks);
        Ok(())
    }

    fn check_checksum(&self, raw: &[u8]) -> Result<(), ImageRefused> {
        if !self.checksums() {
            return Ok(());
        }
        if u8_at(raw, 0x175) != 1 {
            return Err(bad("type of checksums"));
        }
        if !right(crc32c(!0, &raw[..CHECKSUM]) == u32_at(raw, CHECKSUM)) {
            return Err(bad("checksum"));
        }
        Ok(())
    }

    /// Whether metadata has checksums.
    pub(super) fn checksums(&self) -> bool {
        self.ro_compat & features::RO_METADATA_CSUM != 0
    }

    pub(super) fn has_incompat(&self, feature: u32) -> bool {
        self.incompat & feature != 0
    }

    pub(super) fn has_ro_compat(&self, feature: u32) -> bool {
        self.ro_compat & feature != 0
    }

    pub(super) fn has_compat(&self, feature: u32) -> bool {
        self.compat & feature != 0
    }

    /// Whether the number is that of an inode.
    pub(super) fn is_inode(&self, ino: u32) -> bool {
        ino != 0 && ino <= self.inodes
    }

    /// Whether a name may lead to it. (None leads to the root, which is no directory's child.)
    pub(super) fn may_have_name(&self, ino: u32) -> bool {
        self.is_inode(ino) && ino >= self.first_ino && !self.hidden.contains(&ino)
    }

    /// Whether `count` blocks from this one on may be file or metadata blocks.
    pub(super) fn is_range(&self, block: u64, count: u64) -> bool {
        block > self.own_block && block.checked_add(count).is_some_and(|end| end <= self.blocks)
    }

    /// Blocks that a group's table of inodes takes.
    pub(super) fn table_blocks(&self) -> u64 {
        (u64::from(self.group_inodes) * self.inode_size as u64).div_ceil(self.block_size as u64)
    }
}

/// Blocks of a cluster.
fn cluster_blocks(raw: &[u8], ro_compat: u32, log_block_size: u32) -> Result<u64, ImageRefused> {
    if ro_compat & features::RO_BIGALLOC == 0 {
        return Ok(1);
    }
    // Both are logarithms above 1 KiB. Clusters have 1 GiB at most.
    let log = u32_at(raw, 0x1c);
    let ratio = log.checked_sub(log_block_size).filter(|_| log <= 20).map(|ratio| 1u64 << ratio);
    let ratio = ratio.ok_or_else(|| bad("cluster size"))?;
    if u64::from(u32_at(raw, 0x24)).checked_mul(ratio) != Some(u64::from(u32_at(raw, 0x20))) {
        return Err(bad("clusters per group"));
    }
    Ok(ratio)
}

fn bad(what: &str) -> ImageRefused {
    ImageRefused::new(format!("its superblock is damaged ({what}): run e2fsck -fy on it"))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The least that is taken for an ext2: one group of 64 blocks of 1 KiB.
    fn raw() -> Vec<u8> {
        let mut raw = vec![0; SIZE];
        let mut put = |at: usize, value: u32, len: usize| {
            raw[at..at + len].copy_from_slice(&value.to_le_bytes()[..len]);
        };
        for (at, value) in [(0x0, 16), (0x4, 64), (0x14, 1), (0x20, 8192), (0x28, 16), (0x4c, 1), (0x54, 11)]
        {
            put(at, value, 4);
        }
        put(0x38, MAGIC.into(), 2);
        put(0x58, 128, 2);
        raw
    }

    #[test]
    fn what_cannot_be_is_refused() {
        assert_eq!(Superblock::parse(&raw()).unwrap().groups, 1);
        for (at, value, what) in [
            (0x18, 7, "block size"),
            (0x14, 0, "first data block"),
            (0x4, 2, "number of blocks"),
            (0x20, 0, "blocks per group"),
            (0x20, 8193, "blocks per group"),
            (0x28, 0, "inodes per group"),
            (0x0, 17, "number of inodes"),
            (0x58, 0, "inode size"),
            (0x58, 384, "inode size"),
            (0x54, 17, "first inode"),
            (0x54, 1, "first inode"),
        ] {
            let mut raw = raw();
            raw[at..at + 2].copy_from_slice(&(value as u16).to_le_bytes());
            let text = Superblock::parse(&raw).unwrap_err().to_string();
            assert!(text.contains(what) && text.contains("e2fsck"), "{at:#x}: {text}");
        }
    }

    #[test]
    fn groups_of_clusters_may_have_more_blocks() {
        let with = |changes: &[(usize, u32)]| {
            let mut raw = raw();
            let bigalloc =
                [(0x64, features::RO_BIGALLOC), (0x1c, 4), (0x20, 8192 * 16), (0x24, 8192), (0x14, 0)];
            for (at, value) in bigalloc.iter().chain(changes) {
                raw[*at..at + 4].copy_from_slice(&value.to_le_bytes());
            }
            Superblock::parse(&raw).map_err(|e| e.to_string())
        };
        let good = with(&[]).unwrap();
        assert_eq!((good.cluster_blocks, good.groups, good.own_block, good.first_block), (16, 1, 1, 0));
        for (at, value, what) in [
            (0x1c, 21, "cluster size"),
            (0x1c, u32::MAX, "cluster size"),
            (0x24, 0, "clusters per group"),
            (0x24, 8191, "clusters per group"),
            (0x14, 2, "first data block"),
        ] {
            assert!(with(&[(at, value)]).unwrap_err().contains(what), "{at:#x}");
        }
        assert!(with(&[(0x24, 8193), (0x20, 8193 * 16)]).unwrap_err().contains("blocks per group"));
        assert!(with(&[(0x18, 5)]).unwrap_err().contains("cluster size"));
    }

    #[test]
    fn an_image_is_no_shorter_than_its_file_system() {
        let image = |len: usize| {
            let mut image = vec![0; len];
            image[1024..2048].copy_from_slice(&raw());
            Superblock::read(&image).map(drop).map_err(|e| e.to_string())
        };
        assert_eq!(image(64 << 10), Ok(()));
        assert!(image((64 << 10) - 1).unwrap_err().contains("ends early"));
        assert!(Superblock::read(&vec![0; 2047]).unwrap_err().to_string().contains("too short"));
        assert!(Superblock::read(&vec![0; 4096]).unwrap_err().to_string().contains("no ext2"));
    }
}
