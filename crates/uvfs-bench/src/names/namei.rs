//! The namei under which every table is measured: it scans for slashes, checks the permission to search each
//! directory, and does one lookup per component.
//!
//! The code is the same for every arm. It does what uvfs's own walk does for a path of plain names. The
//! workloads' paths have no `.`, `..`, symbolic links or mounts.

use uvfs_cache::Attr;

use crate::names::{DirPerm, Miss, NameTable};

/// The user who walks.
#[derive(Clone, Copy, Debug)]
pub struct Walker {
    /// User id.
    pub uid: u32,
    /// Group id.
    pub gid: u32,
}

/// Why a walk failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Failure {
    /// ENOENT.
    Absent,
    /// EACCES.
    Denied,
    /// Something moved: walk again.
    Moved,
}

impl From<Miss> for Failure {
    #[inline]
    fn from(miss: Miss) -> Self {
        match miss {
            Miss::Absent => Self::Absent,
            Miss::Moved => Self::Moved,
        }
    }
}

/// `stat(2)`.
///
/// # Errors
/// See [`Failure`].
#[inline]
pub fn stat<N: NameTable>(names: &N, cred: Walker, path: &[u8], attr: &mut Attr) -> Result<(), Failure> {
    let mut at = names.root()?;
    let mut rest = path;
    loop {
        while let [b'/', after @ ..] = rest {
            rest = after;
        }
        let end = first_slash(rest).unwrap_or(rest.len());
        let (name, after) = rest.split_at(end);
        if !may_search(cred, names.perm(at)) {
            return Err(Failure::Denied);
        }
        if after.is_empty() {
            return Ok(names.look(at, name, attr)?);
        }
        at = names.down(at, name)?;
        rest = after;
    }
}

/// The first slash, eight bytes at a time, as the library's own walk finds it.
#[inline(always)]
fn first_slash(path: &[u8]) -> Option<usize> {
    const ONES: u64 = u64::MAX / 255;
    let (whole, rest) = path.as_chunks::<8>();
    for (i, bytes) in whole.iter().enumerate() {
        let differs = u64::from_le_bytes(*bytes) ^ (ONES * u64::from(b'/'));
        // The lowest set bit is that of the first slash.
        let slashes = differs.wrapping_sub(ONES) & !differs & (ONES << 7);
        if slashes != 0 {
            return Some(i * 8 + slashes.trailing_zeros() as usize / 8);
        }
    }
    rest.iter().position(|b| *b == b'/').map(|at| whole.len() * 8 + at)
}

/// Whether a directory with these permissions may be searched.
#[inline]
pub fn may_search(cred: Walker, perm: DirPerm) -> bool {
    let class = if cred.uid == perm.uid {
        perm.mode >> 6
    } else if cred.gid == perm.gid {
        perm.mode >> 3
    } else {
        perm.mode
    };
    class & 1 != 0 || cred.uid == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_slash_is_found_at_every_place() {
        for len in 0..40 {
            for first in 0..len {
                let path: Vec<u8> =
                    (0..len).map(|i| if i < first { b'.' + (i % 3) * 64 } else { b'/' }).collect();
                assert_eq!(first_slash(&path), Some(usize::from(first)), "{path:?}");
            }
            assert_eq!(first_slash(&vec![b'0'; usize::from(len)]), None);
        }
    }

    /// `/d/f`, where only its owner, user 7, may search `d`.
    struct Two;

    impl NameTable for Two {
        type At = u64;
        fn root(&self) -> Result<u64, Miss> {
            Ok(1)
        }
        fn down(&self, at: u64, name: &[u8]) -> Result<u64, Miss> {
            if (at, name) == (1, b"d") { Ok(2) } else { Err(Miss::Absent) }
        }
        fn look(&self, at: u64, name: &[u8], attr: &mut Attr) -> Result<(), Miss> {
            attr.ino = 3;
            if (at, name) == (2, b"f") { Ok(()) } else { Err(Miss::Absent) }
        }
        fn perm(&self, at: u64) -> DirPerm {
            DirPerm { mode: if at == 1 { 0o755 } else { 0o700 }, uid: if at == 1 { 0 } else { 7 }, gid: 0 }
        }
    }

    #[test]
    fn walks_and_asks_for_permission() {
        let go =
            |uid, path: &str| stat(&Two, Walker { uid, gid: uid }, path.as_bytes(), &mut Attr::default());
        assert_eq!(go(7, "/d/f"), Ok(()));
        assert_eq!(go(0, "//d//f"), Ok(()));
        assert_eq!(go(8, "/d/f"), Err(Failure::Denied));
        assert_eq!(go(7, "/d/g"), Err(Failure::Absent));
        assert_eq!(go(7, "/e/f"), Err(Failure::Absent));
    }
}
