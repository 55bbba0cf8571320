//! The kernel's dentry in two layouts: before and after the count moved out of the lines that a lookup reads.
//!
//! The offsets are those of the mail "vfs: move d_lockref out of the area used by RCU lookup" (linux-fsdevel, June
//! 2024), on x86-64. A dentry has three cache lines.
//!
//! | bytes | before | after |
//! |---|---|---|
//! | 0 to 55 | flags, sequence, hash chain, parent, hash and length, place of the name, inode | the same |
//! | 56 to 95 | the name, its first eight bytes in line 0, the others in line 1 | the same |
//! | 96 to 103 | **count and lock** | operations |
//! | 104 to 127 | operations, superblock, time | superblock, time, private data |
//! | 128 to 135 | private data | **count and lock** |
//! | to 191 | lists | lists |
//!
//! So a comparison of a name of more than eight bytes reads line 1, in which the count lies before the change. A
//! shorter name is compared in line 0 alone.

use std::mem::offset_of;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use crate::arms::lockref::{CountAndLock, Spinning, StockRef};

/// Longest name that lies in the dentry.
pub const NAME_MAX: usize = 39;
const WORDS: usize = 5;

/// No further dentry in the chain.
pub const END: u32 = u32::MAX;
/// The inode of a name that does not exist.
pub const NEGATIVE: u64 = u64::MAX;

/// The part before the name.
#[repr(C)]
#[derive(Debug)]
pub struct Front {
    flags: u32,
    /// Odd while the dentry changes.
    pub seq: AtomicU32,
    /// The next dentry of the chain.
    pub next: u32,
    chain: [u32; 3],
    /// Number of the parent's dentry.
    pub parent: u64,
    /// Hash of the name, and its length above 32 bits.
    pub hash_len: u64,
    name_at: u64,
    /// Number of the inode.
    pub inode: u64,
}

impl Front {
    /// The front of a dentry that is in no chain.
    pub fn new(parent: u64, hash_len: u64, inode: u64) -> Self {
        let seq = AtomicU32::new(2);
        Self { flags: 0, seq, next: END, chain: [0; 3], parent, hash_len, name_at: 56, inode }
    }
}

/// A name in place, filled up with zeroes. Read as the kernel reads it: eight bytes at a time, each once.
#[repr(C)]
#[derive(Debug)]
pub struct InlineName([AtomicU64; WORDS]);

impl InlineName {
    /// A name of at most [`NAME_MAX`] bytes.
    pub fn new(name: &[u8]) -> Self {
        let mut bytes = [0; WORDS * 8];
        bytes[..name.len()].copy_from_slice(name);
        let (words, _) = bytes.as_chunks::<8>();
        let mut out = [const { AtomicU64::new(0) }; WORDS];
        out.iter_mut().zip(words).for_each(|(out, word)| *out = AtomicU64::new(u64::from_le_bytes(*word)));
        Self(out)
    }

    /// Compares with a name of the same length.
    #[inline]
    pub fn is(&self, name: &[u8]) -> bool {
        let (whole, rest) = name.as_chunks::<8>();
        let mut words = self.0.iter();
        for (bytes, word) in whole.iter().zip(&mut words) {
            if word.load(Ordering::Relaxed) != u64::from_le_bytes(*bytes) {
                return false;
            }
        }
        let rest = rest.iter().rev().fold(0, |word, byte| word << 8 | u64::from(*byte));
        rest == 0 || words.next().is_some_and(|word| word.load(Ordering::Relaxed) == rest)
    }
}

/// A dentry of either layout.
pub trait Dentry: Send + Sync + 'static {
    /// Its count and lock.
    type Ref: CountAndLock;
    /// A dentry with one reference, which stays.
    fn new(front: Front, name: InlineName) -> Self;
    /// The part before the name.
    fn front(&self) -> &Front;
    /// The same, to change it.
    fn front_mut(&mut self) -> &mut Front;
    /// The name.
    fn name(&self) -> &InlineName;
    /// Count and lock.
    fn count(&self) -> &Self::Ref;
}

/// Before the change: name and count share line 1.
#[repr(C, align(64))]
#[derive(Debug)]
pub struct Shared<R> {
    front: Front,
    name: InlineName,
    count: R,
    operations_to_data: [u64; 4],
    lists: [u64; 7],
}

/// After the change: the count lies in line 2.
#[repr(C, align(64))]
#[derive(Debug)]
pub struct Apart<R> {
    front: Front,
    name: InlineName,
    operations_to_data: [u64; 4],
    count: R,
    lists: [u64; 7],
}

macro_rules! layout {
    ($layout:ident, $at:literal) => {
        impl<R: CountAndLock> Dentry for $layout<R> {
            type Ref = R;

            fn new(front: Front, name: InlineName) -> Self {
                Self { front, name, count: R::started(), operations_to_data: [0; 4], lists: [0; 7] }
            }

            #[inline]
            fn front(&self) -> &Front {
                &self.front
            }

            fn front_mut(&mut self) -> &mut Front {
                &mut self.front
            }

            #[inline]
            fn name(&self) -> &InlineName {
                &self.name
            }

            #[inline]
            fn count(&self) -> &R {
                &self.count
            }
        }

        const _: () = assert!(
            offset_of!($layout<StockRef>, name) == 56
                && offset_of!($layout<StockRef>, count) == $at
                && offset_of!($layout<Spinning>, count) == $at
                && size_of::<$layout<StockRef>>() == 192
        );
    };
}

layout!(Shared, 96);
layout!(Apart, 128);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_compared_to_the_last_byte() {
        for len in 1..=NAME_MAX {
            let name: Vec<u8> = (0..len).map(|i| b'a' + i as u8 % 26).collect();
            let kept = InlineName::new(&name);
            assert!(kept.is(&name));
            for wrong in 0..len {
                let mut other = name.clone();
                other[wrong] = b'~';
                assert!(!kept.is(&other), "{len} {wrong}");
            }
        }
    }
}
