//! Numbers as the image has them: little-endian (in the journal big-endian), at any offset.
//!
//! Nothing here can panic: bytes past the end read as zero, and a slice past the end is damage. The code that parses
//! a structure checks lengths; this is the net below that.

use super::fault::{Fault, Result};

fn array<const N: usize>(data: &[u8], at: usize) -> [u8; N] {
    at.checked_add(N).and_then(|end| data.get(at..end)?.try_into().ok()).unwrap_or([0; N])
}

/// The byte at an offset.
pub(super) fn u8_at(data: &[u8], at: usize) -> u8 {
    data.get(at).copied().unwrap_or(0)
}

/// The 16-bit number at an offset.
pub(super) fn u16_at(data: &[u8], at: usize) -> u16 {
    u16::from_le_bytes(array(data, at))
}

/// The 32-bit number at an offset.
pub(super) fn u32_at(data: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(array(data, at))
}

/// The 16-bit number at an offset of the journal, which is big-endian.
pub(super) fn be16_at(data: &[u8], at: usize) -> u16 {
    u16_at(data, at).swap_bytes()
}

/// The 32-bit number at an offset of the journal.
pub(super) fn be32_at(data: &[u8], at: usize) -> u32 {
    u32_at(data, at).swap_bytes()
}

/// A number whose halves are at two offsets.
pub(super) fn split_u64(data: &[u8], low: usize, high: usize) -> u64 {
    u64::from(u32_at(data, high)) << 32 | u64::from(u32_at(data, low))
}

/// `len` bytes from an offset on; damage, with the finding `what`, if they are not all there.
pub(super) fn slice<'d>(data: &'d [u8], at: usize, len: usize, what: &'static str) -> Result<&'d [u8]> {
    at.checked_add(len).and_then(|end| data.get(at..end)).ok_or_else(|| Fault::damage(what))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn past_the_end_is_zero_or_damage() {
        let data = [1, 2, 3, 4, 5];
        assert_eq!((u16_at(&data, 1), u32_at(&data, 1), u8_at(&data, 4)), (0x0302, 0x0504_0302, 5));
        assert_eq!((be16_at(&data, 1), be32_at(&data, 1), be32_at(&data, 2)), (0x0203, 0x0203_0405, 0));
        assert_eq!((u16_at(&data, 4), u32_at(&data, 2), u8_at(&data, 5)), (0, 0, 0));
        assert_eq!((u32_at(&data, usize::MAX), split_u64(&data, 0, 1)), (0, 0x0504_0302_0403_0201));
        assert_eq!(slice(&data, 3, 2, "x").unwrap(), [4, 5]);
        assert!(slice(&data, 3, 3, "x").is_err() && slice(&data, usize::MAX, 2, "x").is_err());
    }
}
