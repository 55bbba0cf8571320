//! Keys of the map arms: the parent's inode number and the name, stored inline.
//!
//! A stored key owns its bytes in place, so that no map follows a pointer to the name. A lookup
//! borrows the name. It hashes and compares as the stored key does. All maps use the same hasher.

use std::hash::{BuildHasher, Hash, Hasher};

use hashbrown::Equivalent;

/// Longest name that a key holds, in bytes.
pub const NAME_MAX: usize = 39;

/// The hasher of every map.
pub type Hashing = foldhash::fast::FixedState;

/// A hasher with the seed that all maps share.
pub fn hashing() -> Hashing {
    Hashing::with_seed(0x7576_6673)
}

/// A stored key: 48 bytes.
#[derive(Clone, Copy, Debug)]
pub struct Key {
    parent: u64,
    len: u8,
    bytes: [u8; NAME_MAX],
}

impl Key {
    /// The key of a name of at most [`NAME_MAX`] bytes; longer names are cut.
    pub fn new(parent: u64, name: &[u8]) -> Self {
        let len = name.len().min(NAME_MAX);
        let mut bytes = [0; NAME_MAX];
        bytes[..len].copy_from_slice(&name[..len]);
        Self { parent, len: len as u8, bytes }
    }

    #[inline]
    fn name(&self) -> &[u8] {
        &self.bytes[..usize::from(self.len).min(NAME_MAX)]
    }

    /// The same key with its name borrowed.
    #[inline]
    pub fn borrowed(&self) -> BorrowedKey<'_> {
        BorrowedKey { parent: self.parent, name: self.name() }
    }
}

impl PartialEq for Key {
    fn eq(&self, other: &Self) -> bool {
        self.borrowed() == other.borrowed()
    }
}

impl Eq for Key {}

impl Hash for Key {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.borrowed().hash(state);
    }
}

/// A key to look up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BorrowedKey<'n> {
    /// Inode number of the directory.
    pub parent: u64,
    /// The name.
    pub name: &'n [u8],
}

impl Hash for BorrowedKey<'_> {
    #[inline]
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write_u64(self.parent);
        state.write(self.name);
    }
}

impl BorrowedKey<'_> {
    /// The hash that every map computes.
    #[inline]
    pub fn hash_once(&self, hashing: &Hashing) -> u64 {
        hashing.hash_one(self)
    }
}

impl Equivalent<Key> for BorrowedKey<'_> {
    #[inline]
    fn equivalent(&self, key: &Key) -> bool {
        *self == key.borrowed()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stored_and_borrowed_are_the_same_key() {
        for name in [&b""[..], b"a", b"level0", &[b'x'; NAME_MAX]] {
            let (key, borrowed) = (Key::new(7, name), BorrowedKey { parent: 7, name });
            assert!(borrowed.equivalent(&key));
            assert_eq!(hashing().hash_one(key), borrowed.hash_once(&hashing()));
            assert!(!BorrowedKey { parent: 8, name }.equivalent(&key));
        }
        assert!(!BorrowedKey { parent: 7, name: b"ab" }.equivalent(&Key::new(7, b"abc")));
        assert_eq!(size_of::<Key>(), 48);
    }
}
