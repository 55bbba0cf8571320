//! Right checksums behind damage: what is met then are the driver's other checks.
//!
//! A [`ByteMap`] says which structure stands where in a whole image, read here by the format's published layout and not by the driver.
//! [`ByteMap::mend`] makes the checksum of each of them what it must be for the bytes that stand there now. A whole image
//! stays as it is by that, which a test holds it to.

use std::collections::{BTreeMap, VecDeque};

/// Where the superblock stands, and how long it is.
const SUPERBLOCK: usize = 1024;
const ROOT_INO: u32 = 2;

const INCOMPAT_64BIT: u32 = 0x80;
const INCOMPAT_CSUM_SEED: u32 = 0x2000;
const RO_GDT_CSUM: u32 = 0x10;
const RO_METADATA_CSUM: u32 = 0x400;

const INODE_INDEX: u32 = 0x1000;
const INODE_EXTENTS: u32 = 0x8_0000;
const INODE_INLINE: u32 = 0x1000_0000;

/// The kind of a structure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MendKind {
    /// The superblock.
    Super,
    /// The descriptor of a group.
    Group(u32),
    /// An inode.
    Inode(u32),
    /// A node of extents of an inode.
    Extents(u32),
    /// A table of block pointers.
    Table,
    /// A block of a directory, and which one it is.
    Dir(u32, u64),
    /// A block of extended attributes.
    Attributes,
}

/// A structure: what it is, and where.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Part {
    /// The structure's kind.
    pub kind: MendKind,
    /// Byte of the image that it begins at.
    pub at: usize,
    /// Bytes.
    pub len: usize,
}

/// All metadata of an image.
#[derive(Clone, Debug)]
pub struct ByteMap {
    /// Bytes of a block.
    pub block_size: usize,
    inode_size: usize,
    /// Where each group's table of inodes begins, in bytes.
    tables: Vec<usize>,
    group_inodes: u32,
    /// All parts, those of one form together.
    pub parts: Vec<Vec<Part>>,
}

fn u16_at(image: &[u8], at: usize) -> usize {
    usize::from(u16::from_le_bytes([image[at], image[at + 1]]))
}

fn u32_at(image: &[u8], at: usize) -> u32 {
    u32::from_le_bytes([image[at], image[at + 1], image[at + 2], image[at + 3]])
}

pub(super) fn put(image: &mut [u8], at: usize, value: &[u8]) {
    image[at..at + value.len()].copy_from_slice(value);
}

/// Goes on with a CRC-32C that is inverted neither before nor after.
pub(super) fn crc32c(seed: u32, data: &[u8]) -> u32 {
    data.iter().fold(seed, |crc, byte| CRC32C[((crc ^ u32::from(*byte)) & 0xff) as usize] ^ crc >> 8)
}

const CRC32C: [u32; 256] = table(0x82f6_3b78);

/// The effect of each byte on a reflected checksum.
const fn table(polynomial: u32) -> [u32; 256] {
    let (mut table, mut byte) = ([0; 256], 0);
    while byte < 256 {
        let (mut crc, mut bit) = (byte as u32, 0);
        while bit < 8 {
            crc = if crc & 1 == 1 { crc >> 1 ^ polynomial } else { crc >> 1 };
            bit += 1;
        }
        table[byte] = crc;
        byte += 1;
    }
    table
}

/// Goes on with a CRC-16.
fn crc16(seed: u16, data: &[u8]) -> u16 {
    data.iter().fold(seed, |crc, &byte| {
        (0..8).fold(crc ^ u16::from(byte), |crc, _| if crc & 1 == 1 { crc >> 1 ^ 0xa001 } else { crc >> 1 })
    })
}

/// The seed that checksums of metadata go on from.
fn seed_of(image: &[u8]) -> u32 {
    if u32_at(image, SUPERBLOCK + 0x60) & INCOMPAT_CSUM_SEED != 0 {
        u32_at(image, SUPERBLOCK + 0x270)
    } else {
        crc32c(!0, &image[SUPERBLOCK + 0x68..SUPERBLOCK + 0x78])
    }
}

impl ByteMap {
    /// Of a whole image, which is believed.
    pub fn new(image: &[u8]) -> Self {
        let sup = |at| u32_at(image, SUPERBLOCK + at);
        let old = sup(0x4c) == 0;
        let block_size = 1024usize << sup(0x18);
        let first_block = sup(0x14) as usize;
        let groups = (sup(0x4) as usize - first_block).div_ceil(sup(0x20) as usize);
        let wide = sup(0x60) & INCOMPAT_64BIT != 0;
        let descriptor = if wide { u16_at(image, SUPERBLOCK + 0xfe) } else { 32 };
        let inode_size = if old { 128 } else { u16_at(image, SUPERBLOCK + 0x58) };
        // Of clusters of several blocks the first begins before the superblock's block.
        let first = (usize::from(block_size == 1024) + 1) * block_size;
        let tables = (0..groups).map(|n| u32_at(image, first + n * descriptor + 8) as usize * block_size);
        let tables: Vec<usize> = tables.collect();
        let group_inodes = sup(0x28);
        let mut this = Self { block_size, inode_size, tables, group_inodes, parts: Vec::new() };
        let mut all = vec![Part { kind: MendKind::Super, at: SUPERBLOCK, len: 1024 }];
        all.extend((0..groups).map(|n| Part {
            kind: MendKind::Group(n as u32),
            at: first + n * descriptor,
            len: descriptor,
        }));
        for ino in 1..=sup(0) {
            this.inode(image, ino, &mut all);
        }
        let mut families = BTreeMap::<_, Vec<_>>::new();
        for part in all {
            families.entry(this.family(image, &part)).or_default().push(part);
        }
        this.parts = families.into_values().collect();
        this
    }

    /// The family of a part: parts of the same form. Of inodes these are those of one type with the same flags, of
    /// directories' blocks leaves and nodes of indices.
    fn family(&self, image: &[u8], part: &Part) -> (u32, usize) {
        match part.kind {
            MendKind::Super => (0, 0),
            MendKind::Group(_) => (1, 0),
            MendKind::Inode(_) => (2 + u32_at(image, part.at + 0x20), u16_at(image, part.at) >> 12),
            MendKind::Extents(_) => (1, 1),
            MendKind::Table => (1, 2),
            MendKind::Attributes => (1, 3),
            MendKind::Dir(ino, index) => {
                let is_indexed = u32_at(image, self.inode_at(ino) + 0x20) & INODE_INDEX != 0;
                (
                    1,
                    4 + usize::from(
                        is_indexed && (index == 0 || is_whole(&image[part.at..part.at + part.len])),
                    ),
                )
            }
        }
    }

    fn inode_at(&self, ino: u32) -> usize {
        let (group, index) = ((ino - 1) / self.group_inodes, (ino - 1) % self.group_inodes);
        self.tables[group as usize] + index as usize * self.inode_size
    }

    fn inode(&self, image: &[u8], ino: u32, all: &mut Vec<Part>) {
        let at = self.inode_at(ino);
        let (mode, links) = (u16_at(image, at), u16_at(image, at + 0x1a));
        if links == 0 || mode == 0 || ino != ROOT_INO && ino < 11 {
            return;
        }
        all.push(Part { kind: MendKind::Inode(ino), at, len: self.inode_size });
        let block =
            |kind, block: u32| Part { kind, at: block as usize * self.block_size, len: self.block_size };
        let attributes = u32_at(image, at + 0x68);
        if attributes != 0 {
            all.push(block(MendKind::Attributes, attributes));
        }
        let flags = u32_at(image, at + 0x20);
        let (is_dir, is_file) = (mode >> 12 == 4, mode >> 12 == 8);
        if flags & INODE_INLINE != 0 || !is_dir && !is_file {
            return;
        }
        let data = if flags & INODE_EXTENTS != 0 {
            self.extents(image, ino, at + 0x28, all)
        } else {
            self.pointers(image, at + 0x28, all)
        };
        if is_dir {
            all.extend(data.iter().enumerate().map(|(n, at)| block(MendKind::Dir(ino, n as u64), *at)));
        }
    }

    /// The nodes of extents below a root, and the blocks that they lead to, in order.
    fn extents(&self, image: &[u8], ino: u32, root: usize, all: &mut Vec<Part>) -> Vec<u32> {
        let (mut data, mut waiting) = (Vec::new(), VecDeque::from([root]));
        while let Some(at) = waiting.pop_front() {
            let (entries, depth) = (u16_at(image, at + 2), u16_at(image, at + 6));
            for entry in (1..=entries).map(|n| at + 12 * n) {
                if depth == 0 {
                    let first = u32_at(image, entry + 8);
                    data.extend((0..u16_at(image, entry + 4) as u32 & 0x7fff).map(|n| first + n));
                } else {
                    let child = u32_at(image, entry + 4) as usize * self.block_size;
                    all.push(Part { kind: MendKind::Extents(ino), at: child, len: self.block_size });
                    waiting.push_back(child);
                }
            }
        }
        data
    }

    /// The tables that block pointers lead to, and the blocks, in order.
    fn pointers(&self, image: &[u8], first: usize, all: &mut Vec<Part>) -> Vec<u32> {
        let mut data: Vec<u32> = (0..12).map(|n| u32_at(image, first + 4 * n)).collect();
        for level in 0..3 {
            let mut tables = vec![u32_at(image, first + 48 + 4 * level)];
            for _ in 0..=level {
                tables.retain(|table| *table != 0);
                let at = |table: u32| table as usize * self.block_size;
                let part = |&table: &u32| Part { kind: MendKind::Table, at: at(table), len: self.block_size };
                all.extend(tables.iter().map(part));
                let below = tables.iter().flat_map(|&table| {
                    (0..self.block_size / 4).map(move |n| u32_at(image, at(table) + 4 * n))
                });
                tables = below.collect();
            }
            data.extend(tables);
        }
        data.retain(|block| *block != 0);
        data
    }

    /// Makes all checksums right for what stands in the image now. Parts that were cut off stay away.
    pub fn mend(&self, image: &mut [u8]) {
        if image.len() < 2 * SUPERBLOCK {
            return;
        }
        let (ro, incompat) = (u32_at(image, SUPERBLOCK + 0x64), u32_at(image, SUPERBLOCK + 0x60));
        let parts = || self.parts.iter().flatten();
        if ro & RO_METADATA_CSUM == 0 {
            if ro & RO_GDT_CSUM != 0 {
                parts().for_each(|part| old_group(image, part, incompat & INCOMPAT_64BIT != 0));
            }
            return;
        }
        // The seed of each depends on bytes of the superblock and of its inode, which no checksum is among.
        let seed = seed_of(image);
        let len = image.len();
        for part in parts().filter(|part| part.at + part.len <= len) {
            self.mend_part(image, part, seed);
        }
    }

    fn mend_part(&self, image: &mut [u8], part: &Part, seed: u32) {
        let owner = |image: &[u8], ino: u32| {
            let generation = self.inode_at(ino) + 0x64;
            let bytes = image.get(generation..generation + 4).unwrap_or_default();
            crc32c(crc32c(seed, &ino.to_le_bytes()), bytes)
        };
        let whole = part.at..part.at + part.len;
        match part.kind {
            MendKind::Super => {
                let crc = crc32c(!0, &image[SUPERBLOCK..SUPERBLOCK + 0x3fc]);
                put(image, SUPERBLOCK + 0x3fc, &crc.to_le_bytes());
            }
            MendKind::Group(number) => {
                put(image, part.at + 0x1e, &[0; 2]);
                let crc = crc32c(crc32c(seed, &number.to_le_bytes()), &image[whole]);
                put(image, part.at + 0x1e, &(crc as u16).to_le_bytes());
            }
            MendKind::Inode(ino) => {
                let seed = owner(image, ino);
                mend_inode(&mut image[whole], seed);
            }
            MendKind::Extents(ino) => {
                let (seed, tail) = (owner(image, ino), 12 * (u16_at(image, part.at + 4) + 1));
                if tail + 4 <= part.len {
                    let crc = crc32c(seed, &image[part.at..part.at + tail]);
                    put(image, part.at + tail, &crc.to_le_bytes());
                }
            }
            MendKind::Dir(ino, index) => {
                let inode = self.inode_at(ino) + 0x20;
                let seed = owner(image, ino);
                let is_indexed = image.len() >= inode + 4 && u32_at(image, inode) & INODE_INDEX != 0;
                mend_dir(&mut image[whole], seed, is_indexed, index);
            }
            MendKind::Attributes => {
                put(image, part.at + 16, &[0; 4]);
                let number = (part.at / self.block_size) as u64;
                let crc = crc32c(crc32c(seed, &number.to_le_bytes()), &image[whole]);
                put(image, part.at + 16, &crc.to_le_bytes());
            }
            MendKind::Table => {}
        }
    }
}

/// A group's descriptor where only these have checksums.
fn old_group(image: &mut [u8], part: &Part, wide: bool) {
    let MendKind::Group(number) = part.kind else { return };
    if part.at + part.len > image.len() {
        return;
    }
    let crc = crc16(!0, &image[SUPERBLOCK + 0x68..SUPERBLOCK + 0x78]);
    let crc = crc16(crc16(crc, &number.to_le_bytes()), &image[part.at..part.at + 0x1e]);
    let crc = if wide { crc16(crc, &image[part.at + 0x20..part.at + part.len]) } else { crc };
    put(image, part.at + 0x1e, &crc.to_le_bytes());
}

fn mend_inode(raw: &mut [u8], seed: u32) {
    let has_upper = raw.len() > 128 && u16_at(raw, 0x80) >= 4;
    put(raw, 0x7c, &[0; 2]);
    if has_upper {
        put(raw, 0x82, &[0; 2]);
    }
    let crc = crc32c(seed, raw).to_le_bytes();
    put(raw, 0x7c, &crc[..2]);
    if has_upper {
        put(raw, 0x82, &crc[2..]);
    }
}

/// Whether a directory's block is one unused entry.
fn is_whole(block: &[u8]) -> bool {
    let (len, first) = (block.len(), u16_at(block, 4));
    u32_at(block, 0) == 0 && (first == len || len == 65536 && matches!(first, 0 | 65535))
}

fn mend_dir(block: &mut [u8], seed: u32, is_indexed: bool, index: u64) {
    let (len, is_whole) = (block.len(), is_whole(block));
    if is_indexed && (index == 0 || is_whole) {
        let at = if is_whole { 8 } else { 32 };
        let (limit, count) = (u16_at(block, at), u16_at(block, at + 2));
        let tail = at + 8 * limit;
        if count <= limit && tail + 8 <= len {
            let crc = crc32c(crc32c(seed, &block[..at + 8 * count]), &block[tail..tail + 4]);
            let crc = crc32c(crc, &[0; 4]);
            put(block, tail + 4, &crc.to_le_bytes());
        }
        return;
    }
    // With the entry that it stands in, which other checks come after.
    put(block, len - 12, &[0, 0, 0, 0, 12, 0, 0, 0xde]);
    let crc = crc32c(seed, &block[..len - 12]);
    put(block, len - 4, &crc.to_le_bytes());
}
