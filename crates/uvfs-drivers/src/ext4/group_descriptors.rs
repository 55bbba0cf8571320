//! Group descriptors: the place of each group's table of inodes, and how much is free.
//!
//! All are read and checked when the image is opened; eight bytes of each are kept. They stand in a row behind the
//! superblock. With `meta_bg`, a block of them stands at the beginning of the groups that it describes.

use super::Fs;
use super::checksum::{crc16, crc32c, crc32c_around, right};
use super::endian::{slice, u16_at, u32_at};
use super::fault::{Fault, Locate, Result, ensure};
use super::features;

/// The group's inodes were never written.
const INODES_UNUSED: u16 = 1;
/// The offset of a descriptor's checksum.
const CHECKSUM: usize = 0x1e;

/// A group's table of inodes: its first block (all of them lie within the file system), or that there are no inodes
/// in it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Table(u64);

const UNUSED: u64 = 1 << 63;

impl Table {
    /// The first block.
    pub(super) fn block(self) -> Result<u64> {
        ensure(self.0 & UNUSED == 0, "an inode in a group that has none")?;
        Ok(self.0)
    }
}

/// The content of a descriptor.
pub(super) struct Group {
    pub table: Table,
    /// In clusters.
    free_blocks: u64,
    free_inodes: u64,
}

impl Fs {
    /// A group's table of inodes.
    pub(super) fn table(&self, group: u32) -> Result<Table> {
        self.tables.get(group as usize).copied().ok_or_else(|| Fault::damage("no such group"))
    }

    /// The descriptor of a group.
    pub(super) fn group(&self, number: u32) -> Result<Group> {
        let sup = &self.sup;
        ensure(number < sup.groups, "no such group")?;
        let at = u64::from(number) * sup.descriptor_size as u64;
        let block = self.descriptor_block(at / sup.block_size as u64);
        self.descriptor(number, block, (at % sup.block_size as u64) as usize).in_block(block)
    }

    /// The place of a block of descriptors.
    fn descriptor_block(&self, index: u64) -> u64 {
        let sup = &self.sup;
        if index < sup.first_meta_bg {
            return sup.own_block + 1 + index;
        }
        let group = index * (sup.block_size / sup.descriptor_size) as u64;
        let first = sup.first_block + group * sup.group_blocks;
        // Group 0 may begin before the superblock's block.
        let skip = if group == 0 { sup.own_block - sup.first_block } else { 0 };
        first + skip + u64::from(u32::try_from(group).is_ok_and(|group| self.has_copy(group)))
    }

    fn descriptor(&self, number: u32, block: u64, at: usize) -> Result<Group> {
        let sup = &self.sup;
        ensure(sup.is_range(block, 1), "group descriptors past the end")?;
        let block = self.blocks.get(block)?;
        let raw = slice(&block, at, sup.descriptor_size, "group descriptor past the end of its block")?;
        ensure(right(self.descriptor_checksum(number, raw)), "checksum of a group descriptor")?;
        let wide = raw.len() >= 64;
        let high16 = |at| if wide { u64::from(u16_at(raw, at)) << 16 } else { 0 };
        let high32 = if wide { u64::from(u32_at(raw, 0x28)) << 32 } else { 0 };
        let table = u64::from(u32_at(raw, 0x8)) | high32;
        ensure(sup.is_range(table, sup.table_blocks()), "table of inodes outside the file system")?;
        let has_flags = sup.checksums() || sup.has_ro_compat(features::RO_GDT_CSUM);
        let unused = has_flags && u16_at(raw, 0x12) & INODES_UNUSED != 0;
        Ok(Group {
            table: Table(table | if unused { UNUSED } else { 0 }),
            free_blocks: u64::from(u16_at(raw, 0xc)) | high16(0x2c),
            free_inodes: u64::from(u16_at(raw, 0xe)) | high16(0x2e),
        })
    }

    fn descriptor_checksum(&self, number: u32, raw: &[u8]) -> bool {
        let sup = &self.sup;
        let found = u16_at(raw, CHECKSUM);
        if sup.checksums() {
            let seed = crc32c(sup.seed, &number.to_le_bytes());
            return crc32c_around(seed, raw, CHECKSUM..CHECKSUM + 2) as u16 == found;
        }
        if !sup.has_ro_compat(features::RO_GDT_CSUM) {
            return true;
        }
        let crc = crc16(crc16(!0, &sup.uuid), &number.to_le_bytes());
        let crc = crc16(crc, raw.get(..CHECKSUM).unwrap_or_default());
        let rest = raw.get(CHECKSUM + 2..).unwrap_or_default();
        found == if sup.has_incompat(features::WIDE) { crc16(crc, rest) } else { crc }
    }

    /// Reads all descriptors; free blocks and inodes in all.
    pub(super) fn read_groups(&mut self) -> Result<(u64, u64)> {
        let (mut blocks, mut inodes) = (0u64, 0u64);
        for number in 0..self.sup.groups {
            let group = self.group(number)?;
            // One by one: their number is only the image's claim until they are read.
            self.tables.push(group.table);
            blocks = blocks.saturating_add(group.free_blocks);
            inodes = inodes.saturating_add(group.free_inodes);
            if number % 4096 == 4095 {
                // No cache limits the kept blocks yet, and each descriptor is needed once.
                self.blocks.forget();
            }
        }
        self.blocks.forget();
        self.tables_are_apart()?;
        let blocks = blocks.saturating_mul(self.sup.cluster_blocks);
        Ok((blocks.min(self.sup.blocks), inodes.min(self.sup.inodes.into())))
    }

    /// Checks that no two inodes have one place. Otherwise a note about one would count for the other.
    fn tables_are_apart(&self) -> Result<()> {
        let mut tables: Vec<u64> = self.tables.iter().map(|table| table.0 & !UNUSED).collect();
        tables.sort_unstable();
        let each = self.sup.table_blocks();
        match tables.windows(2).find(|pair| pair[1] - pair[0] < each) {
            None => Ok(()),
            Some(pair) => Err(Fault::damage("two groups' tables of inodes").in_block(pair[1])),
        }
    }

    /// Blocks that can never hold a file; `statfs` leaves them out.
    pub(super) fn overhead(&self) -> u64 {
        let sup = &self.sup;
        let counted = sup.overhead.saturating_mul(sup.cluster_blocks);
        if counted != 0 && counted < sup.blocks {
            return counted;
        }
        let all = (u64::from(sup.groups) * sup.descriptor_size as u64).div_ceil(sup.block_size as u64);
        let copies = (0..sup.groups).filter(|&group| self.has_copy(group)).count() as u64;
        // Of each descriptor block in the groups there are three copies: in the first two and in the last of its
        // groups.
        let descriptors = all.min(sup.first_meta_bg);
        let in_groups = (all - descriptors).saturating_mul(3);
        let tables = u64::from(sup.groups).saturating_mul(2 + sup.table_blocks());
        let journal = match sup.journal {
            0 => 0,
            ino => self.node(ino).map_or(0, |node| node.size / sup.block_size as u64),
        };
        let each = 1 + descriptors + sup.spare_descriptors;
        let all =
            [in_groups, tables, journal].into_iter().fold(copies.saturating_mul(each), u64::saturating_add);
        sup.first_block.saturating_add(all).min(sup.blocks)
    }

    /// Whether a group has a copy of the superblock and the descriptors.
    fn has_copy(&self, group: u32) -> bool {
        let sup = &self.sup;
        let is_power = |base: u32| {
            let mut power = base;
            while power < group {
                power = power.saturating_mul(base);
            }
            power == group
        };
        if group == 0 {
            true
        } else if sup.has_compat(features::COMPAT_SPARSE_SUPER2) {
            sup.backups.contains(&group)
        } else if sup.has_ro_compat(features::RO_SPARSE_SUPER) {
            group == 1 || [3, 5, 7].into_iter().any(is_power)
        } else {
            true
        }
    }
}
