//! Names as a keyed bijection of the entry's index in its directory.
//!
//! A name is a code of fixed length followed by padding. The code is the index, permuted under the directory's key, in
//! base 32. The padding depends on key and index and gives the name a length within the
//! wanted bounds. Decoding takes the code, undoes the permutation and checks that encoding the
//! index again gives the same bytes, so a name that was not made here never decodes.
//! Any character outside `0-9a-v` therefore makes a name surely absent.
//!
//! Pure functions: no state, no allocation, cost linear in the length of the name.

use std::ops::Deref;

use super::mixing::{hash, mix};

const ALPHABET: &[u8; 32] = b"0123456789abcdefghijklmnopqrstuv";
const BITS_PER_CHAR: u32 = 5;

/// Odd multipliers of the permutation's rounds and their inverses modulo 2^64 (which serve
/// modulo every smaller power of two as well).
const ROUNDS: [(u64, u64); 3] = [
    (0x9e37_79b9_7f4a_7c15, inverse(0x9e37_79b9_7f4a_7c15)),
    (0xbf58_476d_1ce4_e5b9, inverse(0xbf58_476d_1ce4_e5b9)),
    (0x94d0_49bb_1331_11eb, inverse(0x94d0_49bb_1331_11eb)),
];

/// The inverse of an odd number modulo 2^64, by Newton's iteration: each step doubles the
/// number of correct low bits, of which an odd number's own value has three.
const fn inverse(odd: u64) -> u64 {
    let mut x = odd;
    let mut i = 0;
    while i < 5 {
        x = x.wrapping_mul(2u64.wrapping_sub(odd.wrapping_mul(x)));
        i += 1;
    }
    x
}

/// A name without allocation; dereferences to its bytes.
#[derive(Clone)]
pub struct Name {
    bytes: [u8; 255],
    len: u8,
}

impl Deref for Name {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        &self.bytes[..usize::from(self.len)]
    }
}

impl std::fmt::Debug for Name {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&String::from_utf8_lossy(self))
    }
}

/// How the entries of one directory are named.
#[derive(Clone, Copy, Debug)]
pub(super) struct Naming {
    key: u64,
    /// Entries of the directory.
    count: u64,
    /// Shortest and longest name, in bytes.
    bounds: (u8, u8),
}

/// Characters that the code of one of `count` entries takes: 1 to 13.
pub(super) fn code_len(count: u64) -> u8 {
    code_bits(count).div_ceil(BITS_PER_CHAR) as u8
}

fn code_bits(count: u64) -> u32 {
    (u64::BITS - count.saturating_sub(1).leading_zeros()).max(1)
}

impl Naming {
    /// `bounds` must lie within `code_len(count)..=255`, in order; the specification checks this.
    pub(super) fn new(key: u64, count: u64, bounds: (u8, u8)) -> Self {
        debug_assert!(bounds.0 >= code_len(count) && bounds.0 <= bounds.1);
        Self { key, count, bounds }
    }

    /// The name of the entry with this index.
    pub(super) fn encode(&self, index: u64) -> Name {
        let digest = hash(self.key, index, 1);
        let (low, high) = self.bounds;
        let len = low + (digest % (u64::from(high - low) + 1)) as u8;
        let mut name = Name { bytes: [0; 255], len };
        let (code, padding) = name.bytes[..usize::from(len)].split_at_mut(usize::from(code_len(self.count)));
        let mut rest = self.permute(index);
        for byte in code {
            *byte = ALPHABET[(rest % 32) as usize];
            rest /= 32;
        }
        let mut word = digest;
        for chunk in padding.chunks_mut(12) {
            word = mix(word);
            for (i, byte) in chunk.iter_mut().enumerate() {
                *byte = ALPHABET[(word >> (i as u32 * BITS_PER_CHAR)) as usize % 32];
            }
        }
        name
    }

    /// The index of the entry with this name; `None` if no entry has it.
    pub(super) fn decode(&self, name: &[u8]) -> Option<u64> {
        let mut code: u128 = 0;
        for &byte in name.get(..usize::from(code_len(self.count)))?.iter().rev() {
            let digit = match byte {
                b'0'..=b'9' => byte - b'0',
                b'a'..=b'v' => byte - b'a' + 10,
                _ => return None,
            };
            code = code * 32 + u128::from(digit);
        }
        if code > u128::from(self.mask()) {
            return None;
        }
        let index = self.unpermute(code as u64);
        (index < self.count && *self.encode(index) == *name).then_some(index)
    }

    fn mask(&self) -> u64 {
        u64::MAX >> (u64::BITS - code_bits(self.count))
    }

    /// A permutation of the numbers of `code_bits` bits. Each round is invertible: a
    /// multiplication by an odd number and an addition modulo 2^bits, and an exclusive-or with
    /// the upper half, which undoes itself.
    fn permute(&self, index: u64) -> u64 {
        let half = code_bits(self.count).div_ceil(2);
        ROUNDS.iter().fold(index, |x, (odd, _)| {
            let x = x.wrapping_mul(*odd).wrapping_add(mix(self.key ^ odd)) & self.mask();
            x ^ x >> half
        })
    }

    fn unpermute(&self, code: u64) -> u64 {
        let half = code_bits(self.count).div_ceil(2);
        ROUNDS.iter().rev().fold(code, |x, (odd, inverse)| {
            let x = x ^ x >> half;
            x.wrapping_sub(mix(self.key ^ odd)).wrapping_mul(*inverse) & self.mask()
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn multipliers_invert() {
        for (odd, inverse) in ROUNDS {
            assert_eq!(odd.wrapping_mul(inverse), 1);
        }
    }

    #[test]
    fn the_code_is_a_permutation_for_every_small_count() {
        for count in 1..=70u64 {
            let naming = Naming::new(mix(count), count, (2, 9));
            let mut seen = vec![false; naming.mask() as usize + 1];
            for code in 0..=naming.mask() {
                let permuted = naming.permute(code);
                assert!(permuted <= naming.mask() && !std::mem::replace(&mut seen[permuted as usize], true));
                assert_eq!(naming.unpermute(permuted), code);
            }
        }
    }

    #[test]
    fn widest_codes_fit() {
        assert_eq!((code_len(0), code_len(1), code_len(32), code_len(33)), (1, 1, 1, 2));
        assert_eq!(code_len(u64::MAX), 13);
        let naming = Naming::new(7, u64::MAX, (13, 13));
        for index in [0, 1, u64::MAX / 2, u64::MAX - 1] {
            assert_eq!(naming.decode(&naming.encode(index)), Some(index));
        }
        // Thirteen characters hold 65 bits: a code beyond 64 bits is not a name.
        assert_eq!(naming.decode(b"vvvvvvvvvvvvv"), None);
    }
}
