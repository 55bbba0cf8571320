//! Hashes of names, which order directory indices: three kinds, each with characters above 127 counted as negative or
//! as positive.
//!
//! The lowest bit of a hash is free: in an index it says that a leaf continues with the hash of the one before.

/// A kind of hash, as the root of an index names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Legacy,
    HalfMd4,
    Tea,
}

/// The ingredients of a name's hash.
#[derive(Clone, Copy, Debug)]
pub(super) struct Hasher {
    pub kind: Kind,
    pub unsigned: bool,
    pub seed: [u32; 4],
}

/// The end of a directory; no name has this hash.
const END: u32 = 0x7fff_ffff << 1;

impl Hasher {
    /// The hasher that an index asks for; none for a number that is not known.
    pub(super) fn new(version: u8, unsigned: bool, seed: [u32; 4]) -> Option<Self> {
        let kind = match version % 3 {
            _ if version > 5 => return None,
            0 => Kind::Legacy,
            1 => Kind::HalfMd4,
            _ => Kind::Tea,
        };
        Some(Self { kind, unsigned: unsigned || version > 2, seed })
    }

    /// The hash of a name, its lowest bit 0.
    pub(super) fn hash(&self, name: &[u8]) -> u32 {
        let mut state = if self.seed == [0; 4] {
            [0x6745_2301, 0xefcd_ab89, 0x98ba_dcfe, 0x1032_5476]
        } else {
            self.seed
        };
        let hash = match self.kind {
            Kind::Legacy => self.legacy(name),
            Kind::HalfMd4 => {
                self.pieces::<8>(name, |words| half_md4(&mut state, words));
                state[1]
            }
            Kind::Tea => {
                self.pieces::<4>(name, |words| tea(&mut state, words));
                state[0]
            }
        };
        match hash & !1 {
            END => END - 2,
            hash => hash,
        }
    }

    fn char(&self, byte: u8) -> u32 {
        if self.unsigned { byte.into() } else { i32::from(byte.cast_signed()).cast_unsigned() }
    }

    fn legacy(&self, name: &[u8]) -> u32 {
        let (mut now, mut before) = (0x12a3_fe2d_u32, 0x37ab_e8f9_u32);
        for &byte in name {
            let mixed = now ^ self.char(byte).wrapping_mul(7_152_373);
            let mut next = before.wrapping_add(mixed);
            if next & 0x8000_0000 != 0 {
                next = next.wrapping_sub(0x7fff_ffff);
            }
            (before, now) = (now, next);
        }
        now << 1
    }

    /// Hands out the name in pieces of `N` words, four characters to a word, filled up with the rest of its length.
    fn pieces<const N: usize>(&self, name: &[u8], mut mix: impl FnMut(&[u32; N])) {
        let mut rest = name;
        while !rest.is_empty() {
            let fill = rest.len() as u32 & 0xff;
            let fill = fill | fill << 8 | fill << 16 | fill << 24;
            let mut words = [fill; N];
            let piece = &rest[..rest.len().min(N * 4)];
            for (word, chars) in words.iter_mut().zip(piece.chunks(4)) {
                *word =
                    chars.iter().fold(fill, |word, &byte| self.char(byte).wrapping_add(word.wrapping_shl(8)));
            }
            mix(&words);
            rest = &rest[piece.len()..];
        }
    }
}

/// Three rounds of MD4, with half of its words.
fn half_md4(state: &mut [u32; 4], words: &[u32; 8]) {
    const ORDER: [[usize; 8]; 3] =
        [[0, 1, 2, 3, 4, 5, 6, 7], [1, 3, 5, 7, 0, 2, 4, 6], [3, 7, 2, 6, 1, 5, 0, 4]];
    const TURN: [[u32; 4]; 3] = [[3, 7, 11, 19], [3, 5, 9, 13], [3, 9, 11, 15]];
    const ADD: [u32; 3] = [0, 0x5a82_7999, 0x6ed9_eba1];
    let [mut a, mut b, mut c, mut d] = *state;
    for round in 0..3 {
        for step in 0..8 {
            let mixed = match round {
                0 => d ^ (b & (c ^ d)),
                1 => (b & c) | (d & (b | c)),
                _ => b ^ c ^ d,
            };
            let word = words[ORDER[round][step]].wrapping_add(ADD[round]);
            let turned = a.wrapping_add(mixed).wrapping_add(word).rotate_left(TURN[round][step % 4]);
            (a, b, c, d) = (d, turned, b, c);
        }
    }
    for (word, more) in state.iter_mut().zip([a, b, c, d]) {
        *word = word.wrapping_add(more);
    }
}

/// The Tiny Encryption Algorithm's sixteen rounds.
fn tea(state: &mut [u32; 4], key: &[u32; 4]) {
    let (mut x, mut y) = (state[0], state[1]);
    let mut sum = 0u32;
    for _ in 0..16 {
        sum = sum.wrapping_add(0x9e37_79b9);
        let mix = |v: u32, k: u32, l: u32| {
            (v << 4).wrapping_add(k) ^ v.wrapping_add(sum) ^ (v >> 5).wrapping_add(l)
        };
        x = x.wrapping_add(mix(y, key[0], key[1]));
        y = y.wrapping_add(mix(x, key[2], key[3]));
    }
    state[0] = state[0].wrapping_add(x);
    state[1] = state[1].wrapping_add(y);
}

#[cfg(test)]
mod tests {
    use super::*;

    const SEED: [u32; 4] = [0x6745_2301, 0xefcd_ab89, 0x6745_2301, 0xefcd_ab89];

    fn hash(version: u8, unsigned: bool, name: &[u8]) -> u32 {
        Hasher::new(version, unsigned, SEED).unwrap().hash(name)
    }

    #[test]
    fn names_hash_as_debugfs_says() {
        let long = b"hello world, this is a long name that takes more than one piece";
        let high = b"caf\xc3\xa9\xff\x80-x";
        for (version, right) in [
            (0, [0xed43_6d3c, 0xb012_35ce, 0x5763_8412]),
            (1, [0xfced_7d2e, 0xed9a_dc16, 0xf060_7d8e]),
            (2, [0xc58d_0402, 0x1b3a_5416, 0x4ffd_a6a8]),
        ] {
            assert_eq!([&b"h"[..], long, high].map(|name| hash(version, false, name)), right, "{version}");
            assert_eq!(hash(version, true, long), hash(version + 3, false, long));
            assert_eq!(hash(version, true, long), right[1]);
            assert_ne!(hash(version, true, high), right[2]);
        }
        assert!(Hasher::new(6, false, SEED).is_none());
    }
}
