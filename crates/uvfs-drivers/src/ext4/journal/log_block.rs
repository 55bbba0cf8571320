//! The parser of one block of the log: its header, the tags of a descriptor, the records of a revoke, and its
//! checksums.
//!
//! Plain functions over bytes. Lengths that a block names are limited to the block's own.

use super::super::checksum::{crc32c, crc32c_around, right};
use super::super::endian::{be16_at, be32_at, u8_at};
use super::super::fault::{Result, ensure};
use super::superblock::{LogHead, Sums};

/// The number that a block of the log begins with; a block of data that begins so too is escaped.
pub(super) const MAGIC: [u8; 4] = [0xc0, 0x3b, 0x39, 0x98];
/// Bytes of the header.
const HEADER: usize = 12;
/// Bytes of the file system's id in a tag.
const UUID: usize = 16;
/// The offset of a commit's checksum.
const COMMIT_SUM: usize = 16;
/// The offset of a revoke's records.
const RECORDS: usize = 16;
/// Bytes of the checksum at the end of a descriptor and of a revoke.
const TAIL: usize = 4;

const ESCAPED: u32 = 0x1;
const SAME_UUID: u32 = 0x2;
const LAST: u32 = 0x8;

/// The kind of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Descriptor,
    Commit,
    HeadV1,
    HeadV2,
    Revoke,
}

/// The head of a block of the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Header {
    pub kind: Kind,
    /// The number of its transaction.
    pub sequence: u32,
}

impl Header {
    /// None if the block is not one of the log's own.
    pub(super) fn of(raw: &[u8]) -> Option<Self> {
        let kind = match be32_at(raw, 4) {
            1 => Kind::Descriptor,
            2 => Kind::Commit,
            3 => Kind::HeadV1,
            4 => Kind::HeadV2,
            5 => Kind::Revoke,
            _ => return None,
        };
        raw.starts_with(&MAGIC).then(|| Self { kind, sequence: be32_at(raw, 8) })
    }
}

/// A descriptor's record of a block of data that follows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Tag {
    /// The block of the image that the data is for.
    pub block: u64,
    /// Its first four bytes are the magic number, and zeros in the log.
    pub escaped: bool,
    sum: u32,
}

impl LogHead {
    fn has_tails(&self) -> bool {
        matches!(self.sums, Sums::V2 | Sums::V3)
    }

    /// The end of the content of a descriptor or a revoke.
    fn end_of(&self, raw: &[u8]) -> usize {
        raw.len() - if self.has_tails() { TAIL } else { 0 }
    }

    /// The length of a tag. With the second version of checksums it is two bytes longer than its fields.
    fn tag_len(&self) -> usize {
        match (self.sums, self.wide) {
            (Sums::V3, _) => 16,
            (Sums::V2, true) => 14,
            (Sums::V2, false) => 10,
            (_, true) => 12,
            (_, false) => 8,
        }
    }

    /// The tags of a descriptor, as many as it has room for.
    pub(super) fn tags(&self, raw: &[u8]) -> Vec<Tag> {
        let (len, end) = (self.tag_len(), self.end_of(raw));
        let (mut tags, mut at) = (Vec::new(), HEADER);
        while at + len <= end {
            let v3 = self.sums == Sums::V3;
            let flags = if v3 { be32_at(raw, at + 4) } else { be16_at(raw, at + 6).into() };
            let high = if self.wide { be32_at(raw, at + 8) } else { 0 };
            tags.push(Tag {
                block: u64::from(high) << 32 | u64::from(be32_at(raw, at)),
                escaped: flags & ESCAPED != 0,
                sum: if v3 { be32_at(raw, at + 12) } else { be16_at(raw, at + 4).into() },
            });
            at += len + if flags & SAME_UUID == 0 { UUID } else { 0 };
            if flags & LAST != 0 {
                break;
            }
        }
        tags
    }

    /// The blocks that a revoke names.
    pub(super) fn revoked<'b>(&self, raw: &'b [u8]) -> Result<impl Iterator<Item = u64> + use<'b>> {
        let (used, each) = (be32_at(raw, 12) as usize, if self.wide { 8 } else { 4 });
        ensure(used <= self.end_of(raw), "length of a revoke")?;
        let records = raw.get(RECORDS..used).unwrap_or_default().chunks_exact(each);
        Ok(records.map(|record| record.iter().fold(0, |block, byte| block << 8 | u64::from(*byte))))
    }

    /// Whether the checksum at the end of a descriptor or a revoke is right.
    pub(super) fn is_tail_right(&self, raw: &[u8]) -> bool {
        let at = raw.len() - TAIL;
        !self.has_tails() || right(crc32c_around(self.seed, raw, at..raw.len()) == be32_at(raw, at))
    }

    /// Whether a block of data matches its tag. The checksum is that of the block as it is in the log.
    pub(super) fn is_data_right(&self, tag: &Tag, sequence: u32, raw: &[u8]) -> bool {
        let sum = || crc32c(crc32c(self.seed, &sequence.to_be_bytes()), raw);
        match self.sums {
            Sums::None | Sums::V1 => true,
            Sums::V2 => right(sum() & 0xffff == tag.sum),
            Sums::V3 => right(sum() == tag.sum),
        }
    }

    /// Whether a commit's checksum is right: that of itself, or that of the blocks before it, which is `before`.
    pub(super) fn is_commit_right(&self, raw: &[u8], before: u32) -> bool {
        let found = be32_at(raw, COMMIT_SUM);
        match self.sums {
            Sums::None => true,
            Sums::V1 => {
                let (kind, len) = (u8_at(raw, 12), u8_at(raw, 13));
                // One without a checksum is as good as one with the right one.
                (kind, len, found) == (0, 0, 0) || right((kind, len, found) == (1, 4, before))
            }
            Sums::V2 | Sums::V3 => right(crc32c_around(self.seed, raw, COMMIT_SUM..COMMIT_SUM + 4) == found),
        }
    }
}

/// Continues the checksum of the first version: a CRC-32 that takes the highest bit first and is inverted neither
/// before nor after. It takes eight bytes at a time, because a log may be long and all of it is summed.
pub(super) fn crc32_be(seed: u32, data: &[u8]) -> u32 {
    let (eights, rest) = data.as_chunks::<8>();
    let crc = eights.iter().fold(seed, |crc, eight| {
        let [a, b, c, d] = crc.to_be_bytes();
        let [e, f, g, h, bytes @ ..] = eight;
        let bytes = [a ^ e, b ^ f, c ^ g, d ^ h, bytes[0], bytes[1], bytes[2], bytes[3]];
        let ahead = CRC32_BE.iter().rev();
        bytes.iter().zip(ahead).fold(0, |crc, (byte, table)| crc ^ table[usize::from(*byte)])
    });
    rest.iter().fold(crc, |crc, byte| CRC32_BE[0][(crc >> 24 ^ u32::from(*byte)) as usize] ^ crc << 8)
}

/// The sums of each byte, followed by as many zeros as the number of its table.
static CRC32_BE: [[u32; 256]; 8] = {
    let (mut tables, mut byte) = ([[0; 256]; 8], 0);
    while byte < 256 {
        let (mut crc, mut bit) = ((byte as u32) << 24, 0);
        while bit < 8 * 8 {
            crc = if crc >> 31 == 1 { crc << 1 ^ 0x04c1_1db7 } else { crc << 1 };
            bit += 1;
            if bit % 8 == 0 {
                tables[bit / 8 - 1][byte] = crc;
            }
        }
        byte += 1;
    }
    tables
};

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// A log of so many blocks whose second one begins transaction 1.
    pub(in super::super) fn head(sums: Sums, wide: bool, end: u64) -> LogHead {
        LogHead { first: 1, end, start: 1, sequence: 1, sums, seed: 9, wide, fast: None, errno: 0 }
    }

    #[test]
    fn the_published_check_value_comes_out() {
        // CRC-32/MPEG-2.
        assert_eq!(crc32_be(!0, b"123456789"), 0x0376_e6e7);
    }

    #[test]
    fn the_checksum_is_the_same_however_the_bytes_are_cut() {
        let data: Vec<u8> = (0..100u32).map(|n| (n * n * 7 + 3) as u8).collect();
        for len in 0..data.len() {
            let byte_by_byte = data[..len].chunks(1).fold(0x1234_5678, crc32_be);
            assert_eq!(crc32_be(0x1234_5678, &data[..len]), byte_by_byte, "{len}");
        }
    }

    #[test]
    fn tags_have_the_length_of_their_log() {
        for (sums, wide, len) in [
            (Sums::None, false, 8),
            (Sums::V1, true, 12),
            (Sums::V2, false, 10),
            (Sums::V2, true, 14),
            (Sums::V3, false, 16),
            (Sums::V3, true, 16),
        ] {
            let head = head(sums, wide, 8);
            let mut raw = vec![0; 1024];
            let flags = |raw: &mut [u8], at: usize, flags: u8| raw[at + 7] = flags;
            // The first names the file system, the second is escaped, the third the last one.
            let places = [HEADER, HEADER + len + UUID, HEADER + 2 * len + UUID];
            for (n, at) in places.into_iter().enumerate() {
                raw[at + 3] = n as u8 + 5;
                raw[at + 11] = if wide { 1 } else { raw[at + 11] };
                flags(&mut raw, at, [0, 3, 10][n]);
            }
            let high = if wide { 1 << 32 } else { 0 };
            let found: Vec<_> = head.tags(&raw).iter().map(|tag| (tag.block, tag.escaped)).collect();
            assert_eq!(found, [(high + 5, false), (high + 6, true), (high + 7, false)], "{sums:?} {wide}");
            // Without a last one, and with none that names the file system, the block is full of them.
            let same = vec![2; 1024];
            let most = (1024 - HEADER - if matches!(sums, Sums::V2 | Sums::V3) { 4 } else { 0 }) / len;
            assert_eq!(head.tags(&same).len(), most);
        }
    }

    #[test]
    fn a_revoke_is_no_longer_than_its_block() {
        let records = |sums, wide, used: u32| {
            let mut raw = vec![0; 1024];
            raw[12..16].copy_from_slice(&used.to_be_bytes());
            raw[19] = 7;
            raw[23] = 8;
            head(sums, wide, 8).revoked(&raw).map(|found| found.collect::<Vec<_>>()).ok()
        };
        assert_eq!(records(Sums::None, false, 24), Some(vec![7, 8]));
        assert_eq!(records(Sums::None, true, 24), Some(vec![7 << 32 | 8]));
        assert_eq!(records(Sums::None, true, 23), Some(vec![]));
        assert_eq!(records(Sums::None, false, 0), Some(vec![]));
        assert_eq!(records(Sums::None, false, 1024).map(|r| r.len()), Some(252));
        assert_eq!((records(Sums::None, false, 1025), records(Sums::V3, false, 1021)), (None, None));
        assert_eq!(records(Sums::V2, false, u32::MAX), None);
    }
}
