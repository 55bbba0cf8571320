//! Fills a directory with one of everything that a file system stores in a way of its own.
//!
//! Steps that the file system or the user may not do (attributes on some file systems, devices without root) are left
//! out; the later comparison is of what is there.

use std::fs::{self, File};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, symlink};
use std::path::Path;

use anyhow::Result;
use fastrand::Rng;
use rustix::fs::{
    AtFlags, CWD, FallocateFlags, FileType, Gid, Mode, Timespec, Timestamps, Uid, XattrFlags, fallocate,
    lsetxattr, makedev, mknodat, utimensat,
};
use rustix::io::Errno;

/// How much there shall be.
#[derive(Clone, Copy, Debug)]
pub struct Amount {
    /// Names in the large directory.
    pub names: usize,
    /// Pieces of data in the sparse file, each a hole apart.
    pub pieces: u64,
    /// Where the last byte of the sparse file stands.
    pub far: u64,
    /// Bytes of the large file.
    pub large: usize,
    /// Longest value of an attribute: mke2fs fails where one does not fit, the kernel says so. 0: no attributes.
    pub value: usize,
}

impl Amount {
    /// For images of some dozen MiB.
    pub const USUAL: Self = Self { names: 700, pieces: 800, far: 70 << 20, large: 300_000, value: 500 };
    /// For images of a MiB or two.
    pub const SMALL: Self = Self { names: 120, pieces: 40, far: 3 << 20, large: 20_000, value: 500 };
}

/// Nothing, where the file system or the user may not.
fn may<T>(result: Result<T, Errno>) -> Result<()> {
    match result {
        Ok(_) | Err(Errno::OPNOTSUPP | Errno::NOSPC | Errno::PERM | Errno::TOOBIG | Errno::RANGE) => Ok(()),
        Err(errno) => Err(errno.into()),
    }
}

/// Fills `dir`. The same seed makes the same tree.
pub fn populate(dir: &Path, amount: Amount, seed: u64) -> Result<()> {
    let mut rng = Rng::with_seed(seed);
    files(dir, amount, &mut rng)?;
    sparse(&dir.join("sparse"), amount)?;
    links(dir)?;
    nodes(dir)?;
    names(&dir.join("names"), amount.names)?;
    if amount.value > 0 {
        attributes(dir, amount, &mut rng)?;
    }
    owners_and_times(dir)
}

fn files(dir: &Path, amount: Amount, rng: &mut Rng) -> Result<()> {
    let mut sizes = vec![0, 1, 59, 60, 61, 90, 130, 160, 1000, 1023, 1024, 4095, 4096, 4097, 13_000];
    sizes.push(amount.large);
    for size in sizes {
        let data: Vec<u8> = (0..size).map(|_| rng.u8(..)).collect();
        fs::write(dir.join(format!("file-{size}")), data)?;
    }
    // Longer than what was written: with inline data nothing of it is stored. (Of longer ones mke2fs 1.47 gets the size wrong.)
    for size in [30, 100] {
        File::create(dir.join(format!("grown-{size}")))?.set_len(size)?;
    }
    let deep = (0..12).fold(dir.join("deep"), |path, n| path.join(format!("d{n}")));
    fs::create_dir_all(&deep)?;
    fs::write(deep.join("end"), "x")?;
    fs::create_dir(dir.join("empty"))?;
    Ok(())
}

/// Data and holes in turn, so that extents cannot be joined; one byte far away; and room without data.
fn sparse(path: &Path, amount: Amount) -> Result<()> {
    let file = File::create(path)?;
    for piece in 0..amount.pieces {
        file.write_all_at(&(piece + 1).to_le_bytes(), piece * 16384)?;
    }
    file.write_all_at(b"far", amount.far)?;
    let unwritten = File::create(path.with_file_name("unwritten"))?;
    unwritten.write_all_at(b"begin", 0)?;
    may(fallocate(&unwritten, FallocateFlags::empty(), 8192, 100_000))?;
    unwritten.write_all_at(b"middle", 50_000)?;
    unwritten.write_all_at(b"end", 150_000)?;
    Ok(())
}

fn links(dir: &Path) -> Result<()> {
    for len in [1, 58, 59, 60, 61, 150, 900] {
        let target: String = (0..len).map(|i| if i % 10 == 9 { '/' } else { 'a' }).collect();
        symlink(target, dir.join(format!("link-{len}")))?;
    }
    fs::hard_link(dir.join("file-1000"), dir.join("deep/hard"))?;
    Ok(())
}

fn nodes(dir: &Path) -> Result<()> {
    let mode = Mode::from_raw_mode(0o640);
    let make = |name: &str, kind, dev| may(mknodat(CWD, dir.join(name), kind, mode, dev));
    make("fifo", FileType::Fifo, 0)?;
    make("socket", FileType::Socket, 0)?;
    make("char", FileType::CharacterDevice, makedev(1, 3))?;
    make("block", FileType::BlockDevice, makedev(8, 255))?;
    make("large-numbers", FileType::CharacterDevice, makedev(0xabc, 0xdef12))
}

/// A large directory, from which some names are gone again; names of all lengths and bytes.
fn names(dir: &Path, count: usize) -> Result<()> {
    fs::create_dir(dir)?;
    for n in 0..count {
        let name = dir.join(format!("name-{n}-{}", "x".repeat(n % 23)));
        if n % 5 == 0 { fs::create_dir(&name)? } else { drop(File::create(&name)?) }
    }
    for n in (0..count).step_by(7).filter(|n| n % 5 != 0) {
        fs::remove_file(dir.join(format!("name-{n}-{}", "x".repeat(n % 23))))?;
    }
    for len in [1, 2, 3, 4, 5, 31, 32, 33, 254, 255] {
        let high: Vec<u8> = (0..len).map(|i| 0x80 | (i * 7 % 0x7f) as u8).collect();
        File::create(dir.join(std::ffi::OsStr::from_bytes(&high)))?;
        File::create(dir.join("l".repeat(len)))?;
    }
    Ok(())
}

/// An access control list in the form of the attribute: owner, one more user, group, mask, others.
fn list(extra: u32) -> Vec<u8> {
    let entries =
        [(1u16, 7u16, u32::MAX), (2, 5, extra), (4, 4, u32::MAX), (0x10, 5, u32::MAX), (0x20, 0, u32::MAX)];
    let mut value = 2u32.to_le_bytes().to_vec();
    for (tag, perm, id) in entries {
        value.extend(tag.to_le_bytes());
        value.extend(perm.to_le_bytes());
        value.extend(id.to_le_bytes());
    }
    value
}

fn attributes(dir: &Path, amount: Amount, rng: &mut Rng) -> Result<()> {
    let set = |name: &str, key: &str, value: &[u8]| {
        if value.len() > amount.value {
            return Ok(());
        }
        may(lsetxattr(dir.join(name), key, value, XattrFlags::empty()))
    };
    set("file-1", "user.small", b"value")?;
    set("file-1", "user.empty", b"")?;
    set("file-60", "user.beside-inline-data", b"0123456789")?;
    set("empty", "user.of-a-directory", b"x")?;
    set("link-60", "trusted.of-a-link", b"x")?;
    set("fifo", "security.of-a-fifo", b"x")?;
    let value = |len: usize, rng: &mut Rng| (0..len).map(|_| rng.u8(..)).collect::<Vec<_>>();
    for n in 0..12 {
        set("file-1000", &format!("user.number-{n}"), &value(n * 2, rng))?;
    }
    set("file-4096", "user.medium", &value(500, rng))?;
    set("file-4097", "user.large", &value(3500, rng))?;
    set("file-4095", "user.larger", &value(20_000, rng))?;
    set("file-4095", "user.beside-larger", b"x")?;
    set("file-1023", "system.posix_acl_access", &list(70_000))?;
    set("deep", "system.posix_acl_default", &list(5))?;
    set("deep", "system.posix_acl_access", &list(6))
}

fn owners_and_times(dir: &Path) -> Result<()> {
    let own = |name: &str, uid, gid| {
        let (uid, gid) = (Some(Uid::from_raw(uid)), Some(Gid::from_raw(gid)));
        may(rustix::fs::chownat(CWD, dir.join(name), uid, gid, AtFlags::SYMLINK_NOFOLLOW))
    };
    own("file-59", 1, 2)?;
    own("file-61", 70_000, 4_000_000_000)?;
    own("link-1", 99_999, 3)?;
    for (name, mode) in [("file-59", 0o4755), ("file-61", 0o2000), ("empty", 0o1777), ("file-0", 0)] {
        may(rustix::fs::chmodat(CWD, dir.join(name), Mode::from_raw_mode(mode), AtFlags::empty()))?;
    }
    let times = [
        ("file-0", -2_000_000_000, 1),
        ("file-1", -1, 999_999_999),
        ("file-59", 2_147_483_647, 5),
        ("file-60", 2_147_483_648, 123_456_789),
        ("file-61", 15_000_000_000, 7),
        ("link-1", 4_294_967_296, 8),
    ];
    for (name, sec, nsec) in times {
        let last_modification = Timespec { tv_sec: sec, tv_nsec: nsec };
        let last_access = Timespec { tv_sec: sec, tv_nsec: nsec / 2 };
        let times = Timestamps { last_access, last_modification };
        utimensat(CWD, dir.join(name), &times, AtFlags::SYMLINK_NOFOLLOW).map_err(io::Error::from)?;
    }
    Ok(())
}
