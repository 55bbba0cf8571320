//! The head of the log: where it begins, how its blocks are laid out, and which checksums they have.
//!
//! Read and checked once; plain values afterwards.

use super::super::ImageRefused;
use super::super::checksum::{crc32c, crc32c_around, right};
use super::super::endian::{be32_at, u8_at};
use super::log_block::{Header, Kind};
use super::refused;

/// Its length.
const SIZE: usize = 1024;
/// The offset of its own checksum.
const CHECKSUM: usize = 0xfc;
/// The kind of checksum that versions 2 and 3 have.
const CRC32C: u8 = 4;

/// Transactions have a checksum of all their blocks.
const COMPAT_CHECKSUM: u32 = 0x1;
/// Blocks may be revoked; the commit may be written before the rest is on the disk.
const REVOKE: u32 = 0x1;
const ASYNC_COMMIT: u32 = 0x4;
const WIDE: u32 = 0x2;
const CSUM_V2: u32 = 0x8;
const CSUM_V3: u32 = 0x10;
const FAST_COMMIT: u32 = 0x20;
const READ: u32 = REVOKE | WIDE | ASYNC_COMMIT | CSUM_V2 | CSUM_V3 | FAST_COMMIT;

/// Blocks for fast commits, if the log does not tell.
const FAST_BLOCKS: u64 = 256;
/// The least blocks that a log keeps for itself.
const LEAST: u64 = 1024;

/// The version of a log's checksums.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Sums {
    None,
    /// In a commit: of all blocks of its transaction except revokes.
    V1,
    /// In each block, and 16 bits of it in the tag of each block of data.
    V2,
    /// Likewise, with 32 bits.
    V3,
}

/// The content of the head of the log.
#[derive(Debug)]
pub(super) struct LogHead {
    /// The first block of the log, and the block behind its last.
    pub first: u64,
    pub end: u64,
    /// The block where the oldest transaction begins, and its number. Start 0: there is none.
    pub start: u64,
    pub sequence: u32,
    pub sums: Sums,
    /// The seed of checksums.
    pub seed: u32,
    /// Block numbers have 64 bits.
    pub wide: bool,
    /// The first block of fast commits, if there may be any.
    pub fast: Option<u64>,
    /// Errors were seen.
    pub errno: u32,
}

impl LogHead {
    /// Parses the head; its inode has `blocks` blocks.
    pub(super) fn parse(raw: &[u8], block_size: usize, blocks: u64) -> Result<Self, ImageRefused> {
        let bad = |what: &str| refused(&format!("the head of its journal is damaged ({what})"));
        let within = |holds: bool, what| if holds { Ok(()) } else { Err(bad(what)) };
        let kind = Header::of(raw).map(|header| header.kind);
        let second = kind == Some(Kind::HeadV2);
        within(second || kind == Some(Kind::HeadV1), "no head")?;
        within(be32_at(raw, 0xc) as usize == block_size, "block size")?;
        let feature = |at| if second { be32_at(raw, at) } else { 0 };
        let (compat, incompat, ro_compat) = (feature(0x24), feature(0x28), feature(0x2c));
        let unknown = incompat & !READ;
        if unknown | ro_compat != 0 {
            let text = format!("its journal has features that are not known ({unknown:#x}, {ro_compat:#x})");
            return Err(refused(&text));
        }
        let sums = match (compat & COMPAT_CHECKSUM != 0, incompat & CSUM_V2 != 0, incompat & CSUM_V3 != 0) {
            (false, false, false) => Sums::None,
            (true, false, false) => Sums::V1,
            (false, true, false) => Sums::V2,
            (false, false, true) => Sums::V3,
            _ => return Err(bad("several kinds of checksums")),
        };
        let raw = raw.get(..SIZE).ok_or_else(|| bad("its length"))?;
        if matches!(sums, Sums::V2 | Sums::V3) {
            within(u8_at(raw, 0x50) == CRC32C, "kind of checksums")?;
            let sum = crc32c_around(!0, raw, CHECKSUM..CHECKSUM + 4);
            within(right(sum == be32_at(raw, CHECKSUM)), "checksum")?;
        }
        let (all, first) = (u64::from(be32_at(raw, 0x10)), u64::from(be32_at(raw, 0x14)));
        within(all <= blocks, "more blocks than its inode has")?;
        let (mut end, mut fast) = (all, None);
        if incompat & FAST_COMMIT != 0 {
            let told = u64::from(be32_at(raw, 0x54));
            let kept = if told == 0 { FAST_BLOCKS } else { told };
            end = all.checked_sub(kept).filter(|end| *end >= LEAST).unwrap_or(all);
            fast = Some(end);
        }
        let start = u64::from(be32_at(raw, 0x1c));
        within(first > 0 && first < end, "first block")?;
        within(start == 0 || (first..end).contains(&start), "where it begins")?;
        Ok(Self {
            first,
            end,
            start,
            sequence: be32_at(raw, 0x18),
            sums,
            seed: crc32c(!0, &raw[0x30..0x40]),
            wide: incompat & WIDE != 0,
            fast,
            errno: be32_at(raw, 0x20),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn raw() -> Vec<u8> {
        let mut raw = vec![0; SIZE];
        for (at, value) in
            [(0, 0xc03b_3998), (4, 4), (0xc, 1024), (0x10, 2000), (0x14, 1), (0x18, 7), (0x1c, 5)]
        {
            put(&mut raw, at, value);
        }
        raw
    }

    fn put(raw: &mut [u8], at: usize, value: u32) {
        raw[at..at + 4].copy_from_slice(&value.to_be_bytes());
    }

    fn parsed(changes: &[(usize, u32)], blocks: u64) -> Result<LogHead, String> {
        let mut raw = raw();
        changes.iter().for_each(|(at, value)| put(&mut raw, *at, *value));
        LogHead::parse(&raw, 1024, blocks).map_err(|refused| refused.to_string())
    }

    #[test]
    fn what_cannot_be_is_refused_and_names_noload() {
        let good = parsed(&[], 2000).unwrap();
        assert_eq!((good.first, good.end, good.start, good.sequence, good.sums), (1, 2000, 5, 7, Sums::None));
        for (changes, what) in [
            (&[(0, 0)][..], "no head"),
            (&[(4, 5)], "no head"),
            (&[(0xc, 4096)], "block size"),
            (&[(0x10, 2001)], "more blocks"),
            (&[(0x10, u32::MAX)], "more blocks"),
            (&[(0x14, 0)], "first block"),
            (&[(0x14, 2000)], "first block"),
            (&[(0x1c, 2000)], "where it begins"),
            (&[(0x14, 6)], "where it begins"),
            (&[(0x28, 0x40)], "0x40"),
            (&[(0x2c, 1)], "0x1"),
            (&[(0x28, CSUM_V2 | CSUM_V3)], "several kinds"),
            (&[(0x28, CSUM_V3), (0x24, 1)], "several kinds"),
            (&[(0x28, CSUM_V3)], "kind of checksums"),
            (&[(0x28, CSUM_V3), (0x50, 4 << 24)], "(checksum)"),
        ] {
            let text = parsed(changes, 2000).unwrap_err();
            assert!(text.contains(what) && text.contains("noload"), "{text}");
        }
        // The first version has no features; the bytes there have no meaning.
        assert!(parsed(&[(4, 3), (0x28, u32::MAX)], 2000).is_ok());
    }

    #[test]
    fn fast_commits_have_blocks_of_their_own() {
        let ends =
            |told, all: u32| parsed(&[(0x28, FAST_COMMIT), (0x54, told), (0x10, all)], 3000).map(|h| h.end);
        assert_eq!((ends(0, 2000), ends(100, 2000)), (Ok(1744), Ok(1900)));
        assert_eq!((ends(0, 1100), ends(u32::MAX, 2000)), (Ok(1100), Ok(2000)));
    }
}
