//! Attributes: the back end's, the cache's, and those that fuse3 sends.
//!
//! A path file system has no inode numbers, so the adapter gives each inode one. The cache does not keep `blksize`:
//! the options have it.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use fuse3::path::reply::FileAttr as PathAttr;
use fuse3::raw::reply::FileAttr;
use fuse3::{FileType, Timestamp};
use uvfs_cache::attr::mode;
use uvfs_cache::{Attr, Time};

/// The type bits of a mode.
pub(crate) fn fmt_of(kind: FileType) -> u32 {
    match kind {
        FileType::NamedPipe => mode::S_IFIFO,
        FileType::CharDevice => mode::S_IFCHR,
        FileType::BlockDevice => mode::S_IFBLK,
        FileType::Directory => mode::S_IFDIR,
        FileType::RegularFile => mode::S_IFREG,
        FileType::Symlink => mode::S_IFLNK,
        FileType::Socket => mode::S_IFSOCK,
    }
}

fn kind_of(bits: u32) -> FileType {
    match bits & mode::S_IFMT {
        mode::S_IFIFO => FileType::NamedPipe,
        mode::S_IFCHR => FileType::CharDevice,
        mode::S_IFBLK => FileType::BlockDevice,
        mode::S_IFDIR => FileType::Directory,
        mode::S_IFLNK => FileType::Symlink,
        mode::S_IFSOCK => FileType::Socket,
        _ => FileType::RegularFile,
    }
}

/// The cache's attributes of the back end's, for an inode number of the adapter's.
pub(crate) fn to_cache(ino: u64, attr: &PathAttr) -> Attr {
    Attr {
        ino,
        mode: fmt_of(attr.kind) | u32::from(attr.perm & 0o7777),
        nlink: attr.nlink,
        uid: attr.uid,
        gid: attr.gid,
        rdev: attr.rdev,
        size: attr.size,
        blocks: attr.blocks,
        atime: to_time(attr.atime),
        mtime: to_time(attr.mtime),
        ctime: to_time(attr.ctime),
        acl: false,
    }
}

/// The attributes that the kernel gets, for a node id.
pub(crate) fn to_kernel(node: u64, attr: &Attr, block_size: u32) -> FileAttr {
    FileAttr {
        ino: node,
        size: attr.size,
        blocks: attr.blocks,
        atime: timestamp(attr.atime),
        mtime: timestamp(attr.mtime),
        ctime: timestamp(attr.ctime),
        kind: kind_of(attr.mode),
        perm: (attr.mode & 0o7777) as u16,
        nlink: attr.nlink,
        uid: attr.uid,
        gid: attr.gid,
        rdev: attr.rdev,
        blksize: block_size,
    }
}

/// The present time.
pub(crate) fn now() -> Time {
    to_time(SystemTime::now())
}

fn to_time(time: SystemTime) -> Time {
    match time.duration_since(UNIX_EPOCH) {
        Ok(since) => Time::new(i64::try_from(since.as_secs()).unwrap_or(i64::MAX), since.subsec_nanos()),
        Err(before) => before_epoch(before.duration()),
    }
}

fn before_epoch(before: Duration) -> Time {
    let sec = -i64::try_from(before.as_secs()).unwrap_or(i64::MAX);
    match before.subsec_nanos() {
        0 => Time::new(sec, 0),
        nsec => Time::new(sec - 1, 1_000_000_000 - nsec),
    }
}

fn timestamp(time: Time) -> Timestamp {
    Timestamp::new(time.sec(), time.nsec())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attributes_survive_the_way_to_the_kernel() {
        for kind in [
            FileType::NamedPipe,
            FileType::CharDevice,
            FileType::BlockDevice,
            FileType::Directory,
            FileType::RegularFile,
            FileType::Symlink,
            FileType::Socket,
        ] {
            let from = PathAttr {
                size: 5000,
                blocks: 16,
                atime: UNIX_EPOCH - Duration::new(3, 250_000_000),
                mtime: UNIX_EPOCH - Duration::from_secs(4),
                ctime: UNIX_EPOCH + Duration::new(7, 9),
                kind,
                perm: 0o4755,
                nlink: 3,
                uid: 1000,
                gid: 1001,
                rdev: 0x501,
                blksize: 4096,
            };
            let to = to_kernel(77, &to_cache(5, &from), 4096);
            assert_eq!((to.ino, to.size, to.blocks, to.kind, to.perm), (77, 5000, 16, kind, 0o4755));
            assert_eq!((to.nlink, to.uid, to.gid, to.rdev, to.blksize), (3, 1000, 1001, 0x501, 4096));
            assert_eq!(to.atime, Timestamp::new(-4, 750_000_000));
            assert_eq!((to.mtime, to.ctime), (Timestamp::new(-4, 0), Timestamp::new(7, 9)));
        }
    }
}
