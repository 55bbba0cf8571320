//! POSIX access control lists: conversion from the stored form to that of extended attributes.
//!
//! In the stored form an entry without an id is shorter. The VFS knows the meaning of an entry; this module knows
//! only which entries there are.

use super::endian::{u16_at, u32_at};
use super::fault::{Fault, Result, ensure};

/// The version of the stored form.
const STORED: u32 = 1;
/// The version of the attribute `system.posix_acl_access`, see acl(5).
const XATTR: u32 = 2;
/// The id of an entry that has none.
const NO_ID: u32 = u32::MAX;

const USER_OBJ: u16 = 0x01;
const USER: u16 = 0x02;
const GROUP_OBJ: u16 = 0x04;
const GROUP: u16 = 0x08;
const MASK: u16 = 0x10;
const OTHER: u16 = 0x20;

/// The attribute's value.
pub(super) fn to_xattr(stored: &[u8]) -> Result<Vec<u8>> {
    ensure(stored.len() >= 4 && u32_at(stored, 0) == STORED, "version of an access control list")?;
    let mut value = XATTR.to_le_bytes().to_vec();
    let mut rest = &stored[4..];
    while !rest.is_empty() {
        let tag = u16_at(rest, 0);
        let (len, id) = match tag {
            USER | GROUP => (8, u32_at(rest, 4)),
            USER_OBJ | GROUP_OBJ | MASK | OTHER => (4, NO_ID),
            _ => return Err(Fault::damage("an entry of an access control list")),
        };
        ensure(rest.len() >= len, "an access control list ends early")?;
        value.extend_from_slice(&rest[..4]);
        value.extend_from_slice(&id.to_le_bytes());
        rest = &rest[len..];
    }
    Ok(value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn short_and_long_entries_become_equal() {
        let stored = [1, 0, 0, 0, 1, 0, 6, 0, 2, 0, 5, 0, 0xe8, 3, 0, 0, 0x20, 0, 4, 0];
        let value = [
            [2, 0, 0, 0].as_slice(),
            &[1, 0, 6, 0, 255, 255, 255, 255],
            &[2, 0, 5, 0, 0xe8, 3, 0, 0],
            &[0x20, 0, 4, 0, 255, 255, 255, 255],
        ];
        assert_eq!(to_xattr(&stored).unwrap(), value.concat());
        for cut in [0, 3, 5, 7, 9, 13, 17] {
            assert!(to_xattr(&stored[..cut]).is_err(), "{cut}");
        }
        assert!(to_xattr(&[2, 0, 0, 0]).is_err() && to_xattr(&[1, 0, 0, 0, 3, 0, 0, 0]).is_err());
    }
}
