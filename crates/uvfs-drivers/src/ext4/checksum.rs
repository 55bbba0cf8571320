//! The two checksums of the format: CRC-32C without its final inversion, and CRC-16 for group descriptors of file
//! systems without `metadata_csum`.
//!
//! A checksum continues from a seed: the file system's, then the inode's. Plain functions.

/// Whether a checksum counts as right; `is`: whether it is. A fuzzer never finds a right one, so for it all are
/// right.
pub(super) fn right(is: bool) -> bool {
    cfg!(fuzzing) || is
}

/// Continues a CRC-32C, without inverting it before or after.
pub(super) fn crc32c(seed: u32, data: &[u8]) -> u32 {
    !crc32c::crc32c_append(!seed, data)
}

/// `crc32c` over two parts that enclose a checksum, which counts as zero.
pub(super) fn crc32c_around(seed: u32, data: &[u8], hole: std::ops::Range<usize>) -> u32 {
    let zeros = [0; 4];
    let (start, end) = (hole.start.min(data.len()), hole.end.min(data.len()));
    let before = crc32c(seed, &data[..start]);
    crc32c(crc32c(before, &zeros[..(end - start).min(4)]), &data[end..])
}

/// Continues a CRC-16 (reflected, polynomial 0x8005), bit by bit: it is for some dozen bytes.
pub(super) fn crc16(seed: u16, data: &[u8]) -> u16 {
    data.iter().fold(seed, |crc, &byte| {
        (0..8).fold(crc ^ u16::from(byte), |crc, _| if crc & 1 == 1 { crc >> 1 ^ 0xa001 } else { crc >> 1 })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_published_check_values_come_out() {
        assert_eq!(!crc32c(!0, b"123456789"), 0xe306_9283);
        assert_eq!(crc16(0, b"123456789"), 0xbb3d);
        let whole = [1, 2, 0, 0, 0, 0, 7];
        assert_eq!(crc32c_around(5, &[1, 2, 9, 9, 9, 9, 7], 2..6), crc32c(5, &whole));
        assert_eq!(crc32c_around(5, &[1, 2], 2..6), crc32c(5, &[1, 2]));
    }
}
