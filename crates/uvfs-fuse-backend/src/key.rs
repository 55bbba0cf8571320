//! Keys: what says that two answers of the back end are about one file.
//!
//! A key is a file handle, or device, inode number and mount. It also has the file's type, because a freed inode
//! number may come back as another type.

use std::fmt;

/// Longest key in bytes, as of `uvfs_cache::NodeKeys`.
const LONGEST: usize = 64;
/// First bytes of the two kinds of key. The type is in the upper half of the byte.
const HANDLE: u8 = 1;
const INODE: u8 = 2;

/// The identity of a file in the back end.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct InodeKey {
    bytes: [u8; LONGEST],
    len: u8,
    number: Option<u64>,
}

impl InodeKey {
    /// By the file handle (`name_to_handle_at`) in a mount. `None`: it is longer than 51 bytes. Then use
    /// [`InodeKey::of_inode`], and keep a descriptor in the data, so that the number is not used again.
    pub fn of_handle(mount: u64, handle_type: i32, handle: &[u8]) -> Option<Self> {
        Self::from_parts(HANDLE, &[&mount.to_le_bytes(), &handle_type.to_le_bytes(), handle])
    }

    /// By device, inode number and mount id.
    pub fn of_inode(dev: u64, ino: u64, mount: u64) -> Self {
        let parts = [dev, ino, mount].map(u64::to_le_bytes);
        Self::from_parts(INODE, &[&parts[0], &parts[1], &parts[2]]).expect("25 bytes")
    }

    /// The inode has this number towards the client, instead of one from the store, for instance the host's. Two
    /// files may not have one number at the same time. 0 and 1 are refused (1 is the root).
    #[must_use]
    pub fn with_number(self, number: u64) -> Self {
        Self { number: Some(number), ..self }
    }

    fn from_parts(kind: u8, parts: &[&[u8]]) -> Option<Self> {
        let (mut bytes, mut len) = ([0; LONGEST], 1);
        bytes[0] = kind;
        for part in parts {
            bytes.get_mut(len..len + part.len())?.copy_from_slice(part);
            len += part.len();
        }
        Some(Self { bytes, len: len as u8, number: None })
    }

    /// The key of a file of the type in `mode`.
    pub(crate) fn typed(mut self, mode: u32) -> Self {
        self.bytes[0] = self.bytes[0] & 0xf | (mode >> 8) as u8 & 0xf0;
        self
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        &self.bytes[..usize::from(self.len)]
    }

    pub(crate) fn number(&self) -> Option<u64> {
        self.number
    }
}

impl fmt::Debug for InodeKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "InodeKey({:x?})", self.bytes())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_differ_in_each_part() {
        let keys = [
            InodeKey::of_inode(1, 2, 3),
            InodeKey::of_inode(9, 2, 3),
            InodeKey::of_inode(1, 9, 3),
            InodeKey::of_inode(1, 2, 9),
            InodeKey::of_inode(1, 2, 3).typed(libc::S_IFDIR),
            InodeKey::of_inode(1, 2, 3).typed(libc::S_IFREG),
            InodeKey::of_handle(1, 2, b"three").unwrap(),
            InodeKey::of_handle(9, 2, b"three").unwrap(),
            InodeKey::of_handle(1, 9, b"three").unwrap(),
            InodeKey::of_handle(1, 2, b"thre").unwrap(),
        ];
        for (at, key) in keys.iter().enumerate() {
            assert_eq!(keys.iter().position(|other| other.bytes() == key.bytes()), Some(at));
        }
    }

    #[test]
    fn a_handle_has_51_bytes_at_most() {
        assert_eq!(InodeKey::of_handle(1, 2, &[7; 51]).unwrap().bytes().len(), LONGEST);
        assert_eq!(InodeKey::of_handle(1, 2, &[7; 52]), None);
    }
}
