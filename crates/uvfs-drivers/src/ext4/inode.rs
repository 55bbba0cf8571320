//! Inodes: found by number, checked, and parsed.
//!
//! Between calls nothing is kept of an inode but its block in the cache of blocks. A [`Node`] is copied from there
//! when it is needed, which stores nothing that other threads read.

use uvfs::types::{Attr, Time, mode};

use super::checksum::{crc32c, crc32c_around, right};
use super::endian::{slice, split_u64, u16_at, u32_at};
use super::fault::{Fault, Locate, Result, ensure};
use super::group_descriptors::Table;
use super::image_blocks::{inode_checked, is_inode_checked};
use super::{Fs, features};

/// The least size of an inode; longer ones have `extra` fields.
const OLD_SIZE: usize = 128;
/// The usual size of inodes, or less.
const USUAL_SIZE: usize = 256;
/// `i_block`: block pointers, the root of extents, a link's target, or inline data.
const POINTERS: std::ops::Range<usize> = 0x28..0x64;

/// Directory with an index.
const INDEX: u32 = 0x1000;
/// Content is encrypted, with a key that only its owner has.
const ENCRYPTED: u32 = 0x800;
/// `i_blocks` counts blocks of the file system.
const HUGE_FILE: u32 = 0x4_0000;
const EXTENTS: u32 = 0x8_0000;
/// Holds the value of another inode's attribute.
const EA_VALUE: u32 = 0x20_0000;
const INLINE_DATA: u32 = 0x1000_0000;
const CASEFOLD: u32 = 0x4000_0000;

/// An inode.
pub(super) struct Node {
    pub ino: u32,
    raw: Raw,
    /// The bytes used beyond 128.
    extra: usize,
    /// Type and permissions.
    pub mode: u32,
    /// Bytes.
    pub size: u64,
    flags: u32,
    /// The seed of its blocks' checksums.
    pub seed: u32,
    /// The block of its extended attributes; 0: none.
    pub xattr_block: u64,
}

/// An inode's bytes.
#[expect(clippy::large_enum_variant, reason = "the large one is the usual one, and is not to be allocated")]
enum Raw {
    /// So many of them.
    Usual([u8; USUAL_SIZE], usize),
    Large(Vec<u8>),
}

impl Raw {
    fn new(len: usize) -> Self {
        if len <= USUAL_SIZE { Self::Usual([0; USUAL_SIZE], len) } else { Self::Large(vec![0; len]) }
    }

    fn bytes(&mut self) -> &mut [u8] {
        match self {
            Self::Usual(bytes, len) => &mut bytes[..*len],
            Self::Large(bytes) => bytes,
        }
    }
}

impl Node {
    fn new(ino: u32, raw: Raw) -> Self {
        Self { ino, raw, extra: 0, mode: 0, size: 0, flags: 0, seed: 0, xattr_block: 0 }
    }

    /// All of it.
    pub(super) fn raw(&self) -> &[u8] {
        match &self.raw {
            Raw::Usual(bytes, len) => &bytes[..*len],
            Raw::Large(bytes) => bytes,
        }
    }

    /// The 60 bytes of `i_block`.
    pub(super) fn pointers(&self) -> &[u8] {
        self.raw().get(POINTERS).unwrap_or_default()
    }

    /// The bytes after the fields, where attributes may stand.
    pub(super) fn after_fields(&self) -> &[u8] {
        if self.extra == 0 {
            return &[];
        }
        self.raw().get(OLD_SIZE + self.extra..).unwrap_or_default()
    }

    pub(super) fn fmt(&self) -> u32 {
        self.mode & mode::S_IFMT
    }

    pub(super) fn is_dir(&self) -> bool {
        self.fmt() == mode::S_IFDIR
    }

    pub(super) fn has_index(&self) -> bool {
        self.flags & INDEX != 0
    }

    pub(super) fn has_extents(&self) -> bool {
        self.flags & EXTENTS != 0
    }

    pub(super) fn is_inline(&self) -> bool {
        self.flags & INLINE_DATA != 0
    }

    /// ENOKEY if the content is encrypted: a file's data, a directory's names, a link's target. Attributes never are.
    pub(super) fn expect_plain(&self) -> Result<()> {
        if self.flags & ENCRYPTED == 0 { Ok(()) } else { Err(Fault::from(uvfs::Errno::NOKEY)) }
    }

    pub(super) fn is_value(&self) -> bool {
        self.flags & EA_VALUE != 0
    }

    /// The flags that FS_IOC_GETFLAGS shows.
    pub(super) fn user_flags(&self) -> u32 {
        visible_flags(self.fmt(), self.flags)
    }

    pub(super) fn generation(&self) -> u32 {
        u32_at(self.raw(), 0x64)
    }

    /// Seconds of a time, without the bits beyond 32.
    pub(super) fn seconds(&self, which: Stamp) -> u32 {
        u32_at(self.raw(), which.places().0)
    }

    pub(super) fn links(&self) -> u32 {
        u16_at(self.raw(), 0x1a).into()
    }

    /// Units of 512 bytes, as the inode counts them.
    pub(super) fn sectors(&self, fs: &Fs) -> u64 {
        let raw = self.raw();
        let low = u64::from(u32_at(raw, 0x1c));
        if !fs.sup.has_ro_compat(features::RO_HUGE_FILE) {
            return low;
        }
        let count = low | u64::from(u16_at(raw, 0x74)) << 32;
        if self.flags & HUGE_FILE == 0 { count } else { count * (fs.sup.block_size as u64 / 512) }
    }

    /// A time. The field beyond 128 bytes has two more bits of seconds, and nanoseconds.
    fn time(&self, which: Stamp) -> Time {
        let (low, extra) = which.places();
        let seconds = i64::from(u32_at(self.raw(), low).cast_signed());
        if extra + 4 > OLD_SIZE + self.extra {
            return Time::new(seconds, 0);
        }
        let more = u32_at(self.raw(), extra);
        Time::new(seconds + (i64::from(more & 3) << 32), more >> 2)
    }

    /// The answer of `stat`.
    pub(super) fn attr(&self, fs: &Fs) -> Attr {
        let raw = self.raw();
        let id = |low, high| u32::from(u16_at(raw, low)) | u32::from(u16_at(raw, high)) << 16;
        let inline =
            if self.is_inline() && self.fmt() == mode::S_IFREG { self.size.div_ceil(512) } else { 0 };
        Attr {
            ino: self.ino.into(),
            mode: self.mode,
            nlink: self.links(),
            uid: id(0x2, 0x78),
            gid: id(0x18, 0x7a),
            rdev: self.device(),
            size: self.size,
            blocks: self.sectors(fs).saturating_add(inline),
            atime: self.time(Stamp::Access),
            mtime: self.time(Stamp::Modify),
            ctime: self.time(Stamp::Change),
            acl: fs.has_list(self),
        }
    }

    /// The device number: eight and eight bits in the first word, or in the second as the kernel has it.
    fn device(&self) -> u32 {
        match self.fmt() {
            mode::S_IFCHR | mode::S_IFBLK => match u32_at(self.pointers(), 0) {
                0 => u32_at(self.pointers(), 4),
                old => old & 0xffff,
            },
            _ => 0,
        }
    }
}

/// Which of the times.
#[derive(Clone, Copy)]
pub(super) enum Stamp {
    Access,
    Change,
    Modify,
}

impl Stamp {
    /// The offsets of its seconds and of its further bits.
    fn places(self) -> (usize, usize) {
        match self {
            Self::Access => (0x8, 0x8c),
            Self::Change => (0xc, 0x84),
            Self::Modify => (0x10, 0x88),
        }
    }
}

impl Fs {
    /// The inode with a number.
    pub(super) fn node(&self, ino: u32) -> Result<Node> {
        self.read_node(ino).of(ino)
    }

    /// The inode that a name leads to, which must be in use.
    pub(super) fn named(&self, ino: u32) -> Result<Node> {
        ensure(self.sup.may_have_name(ino), "a name leads to an inode that is not for names").of(ino)?;
        let node = self.node(ino)?;
        ensure(node.links() != 0, "a name leads to a deleted inode").of(ino)?;
        ensure(!node.is_value(), "a name leads to an attribute's value").of(ino)?;
        Ok(node)
    }

    fn read_node(&self, ino: u32) -> Result<Node> {
        ensure(self.sup.is_inode(ino), "no such inode")?;
        self.read_from(self.table((ino - 1) / self.sup.group_inodes)?, ino)
    }

    /// The inode with a number, while the tables of other groups are not known yet.
    pub(super) fn early_node(&self, ino: u32) -> Result<Node> {
        ensure(self.sup.is_inode(ino), "no such inode").of(ino)?;
        let group = self.group((ino - 1) / self.sup.group_inodes).of(ino)?;
        self.read_from(group.table, ino).of(ino)
    }

    /// An inode of the group that has this table.
    fn read_from(&self, table: Table, ino: u32) -> Result<Node> {
        let sup = &self.sup;
        let (table, index) = (table.block()?, (ino - 1) % sup.group_inodes);
        let offset = u64::from(index) * sup.inode_size as u64;
        let block = table + offset / sup.block_size as u64;
        let at = (offset % sup.block_size as u64) as usize;
        ensure(at + sup.inode_size <= sup.block_size, "an inode past the end of its block")?;
        let (mut raw, place) = (Raw::new(sup.inode_size), at / sup.inode_size);
        let note = self.blocks.copy(block, at, raw.bytes())?;
        if is_inode_checked(note, place) {
            let mut node = Node::new(ino, raw);
            self.fill(&mut node, true).in_block(block)?;
            return Ok(node);
        }
        // With a pin, so that the checked bytes are those of the note.
        let bytes = self.blocks.get(block)?;
        raw.bytes().copy_from_slice(slice(&bytes, at, sup.inode_size, "an inode past the end of its block")?);
        let mut node = Node::new(ino, raw);
        self.fill(&mut node, false).in_block(block)?;
        inode_checked(&bytes, place);
        Ok(node)
    }

    /// Checks the inode (its checksum too, unless that was found right) and copies the fields that are often used.
    fn fill(&self, node: &mut Node, is_checked: bool) -> Result<()> {
        let sup = &self.sup;
        let raw = node.raw();
        let extra = if sup.inode_size > OLD_SIZE { usize::from(u16_at(raw, 0x80)) } else { 0 };
        ensure(
            OLD_SIZE + extra <= sup.inode_size && extra.is_multiple_of(4),
            "length of an inode's extra fields",
        )?;
        let seed = crc32c(crc32c(sup.seed, &node.ino.to_le_bytes()), &u32_at(raw, 0x64).to_le_bytes());
        if sup.checksums() && !is_checked {
            ensure(right(checksum(seed, raw, extra)), "checksum of an inode")?;
        }
        let mode = u32::from(u16_at(raw, 0x0));
        let flags = u32_at(raw, 0x20);
        let low = u64::from(u32_at(raw, 0x4));
        let wide = mode & mode::S_IFMT == mode::S_IFREG
            || mode & mode::S_IFMT == mode::S_IFDIR && sup.has_incompat(features::LARGE_DIR);
        let size = if wide { split_u64(raw, 0x4, 0x6c) } else { low };
        let high = if sup.has_incompat(features::WIDE) { u64::from(u16_at(raw, 0x76)) << 32 } else { 0 };
        let xattr_block = u64::from(u32_at(raw, 0x68)) | high;
        ensure(is_type(mode), "an inode of no type")?;
        ensure(size <= i64::MAX as u64, "an inode's size")?;
        ensure(xattr_block == 0 || sup.is_range(xattr_block, 1), "block of attributes outside")?;
        ensure(
            flags & INLINE_DATA == 0 || sup.has_incompat(features::INLINE_DATA),
            "inline data, which the file system does not have",
        )?;
        ensure(flags & CASEFOLD == 0, "an inode that folds case")?;
        ensure(
            flags & ENCRYPTED == 0 || sup.has_incompat(features::ENCRYPT),
            "an encrypted inode, which the file system does not have",
        )?;
        let longest = sup.blocks.saturating_mul(sup.block_size as u64);
        ensure(mode & mode::S_IFMT != mode::S_IFDIR || size <= longest, "a directory longer than the image")?;
        (node.extra, node.mode, node.flags) = (extra, mode, flags);
        (node.size, node.seed, node.xattr_block) = (size, seed, xattr_block);
        Ok(())
    }

    /// ENOTDIR for anything else.
    pub(super) fn expect_dir(&self, node: &Node) -> Result<()> {
        if node.is_dir() { Ok(()) } else { Err(Fault::from(uvfs::Errno::NOTDIR)) }
    }
}

/// Flags as FS_IOC_GETFLAGS shows them. Only a directory shows the flag that passes its project on to new files.
fn visible_flags(fmt: u32, flags: u32) -> u32 {
    const VISIBLE: u32 = 0x725b_dfff;
    const PROJECT_INHERITED: u32 = 0x2000_0000;
    let of_directories = if fmt == mode::S_IFDIR { 0 } else { PROJECT_INHERITED };
    flags & VISIBLE & !of_directories
}

fn is_type(mode: u32) -> bool {
    matches!(
        mode & mode::S_IFMT,
        mode::S_IFREG
            | mode::S_IFDIR
            | mode::S_IFLNK
            | mode::S_IFCHR
            | mode::S_IFBLK
            | mode::S_IFIFO
            | mode::S_IFSOCK
    )
}

/// Whether the checksum is right. Its upper half is in the extra fields, if they reach so far.
fn checksum(seed: u32, raw: &[u8], extra: usize) -> bool {
    let low = u16_at(raw, 0x7c);
    let (start, rest) = raw.split_at(OLD_SIZE.min(raw.len()));
    let crc = crc32c_around(seed, start, 0x7c..0x7e);
    if extra >= 4 {
        let crc = crc32c_around(crc, rest, 2..4);
        return crc == u32::from(low) | u32::from(u16_at(rest, 2)) << 16;
    }
    crc32c(crc, rest) as u16 == low
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_directories_show_that_they_hand_down_their_project() {
        assert_eq!(visible_flags(mode::S_IFDIR, u32::MAX), 0x725b_dfff);
        assert_eq!(visible_flags(mode::S_IFREG, u32::MAX), 0x525b_dfff);
    }
}
