//! The mixing function from which names, attributes and content are drawn.
//!
//! Not for secrets, and not for tables that hostile input fills. It only has to look random, be
//! the same on every machine and never change, because a seed identifies a tree.

/// A bijection of 64 bits that spreads every input bit (the finalizer of SplitMix64; Steele,
/// Lea and Flood, "Fast splittable pseudorandom number generators", OOPSLA 2014).
pub(super) const fn mix(x: u64) -> u64 {
    let x = x.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

/// One word from a key and two words.
pub(super) const fn hash(key: u64, a: u64, b: u64) -> u64 {
    mix(mix(mix(key) ^ a) ^ b)
}
