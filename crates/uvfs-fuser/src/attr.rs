//! Attributes: fuser's and the cache's.
//!
//! The cache does not keep `blksize`, `crtime` and `flags`: the table gives the first from its options, the others
//! are `ctime` and 0.

use std::fs::Metadata;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use fuser::{FileAttr, FileType, INodeNo};
use uvfs_cache::attr::mode;
use uvfs_cache::{Attr, Time};

/// Attributes of a host file, with a number of the caller's choice.
pub fn host_attr(number: u64, meta: &Metadata) -> FileAttr {
    let t = meta.file_type();
    let time = |sec, nsec| system_time(Time::new(sec, nsec as u32));
    FileAttr {
        ino: INodeNo(number),
        size: meta.size(),
        blocks: meta.blocks(),
        atime: time(meta.atime(), meta.atime_nsec()),
        mtime: time(meta.mtime(), meta.mtime_nsec()),
        ctime: time(meta.ctime(), meta.ctime_nsec()),
        crtime: time(meta.ctime(), meta.ctime_nsec()),
        kind: match () {
            () if t.is_dir() => FileType::Directory,
            () if t.is_symlink() => FileType::Symlink,
            () if t.is_fifo() => FileType::NamedPipe,
            () if t.is_char_device() => FileType::CharDevice,
            () if t.is_block_device() => FileType::BlockDevice,
            () if t.is_socket() => FileType::Socket,
            () => FileType::RegularFile,
        },
        perm: (meta.mode() & 0o7777) as u16,
        nlink: u32::try_from(meta.nlink()).unwrap_or(u32::MAX),
        uid: meta.uid(),
        gid: meta.gid(),
        rdev: meta.rdev() as u32,
        blksize: meta.blksize() as u32,
        flags: 0,
    }
}

/// The cache's attributes; `ino` is the back end's number.
pub(crate) fn to_cache(attr: &FileAttr) -> Attr {
    let fmt = match attr.kind {
        FileType::NamedPipe => mode::S_IFIFO,
        FileType::CharDevice => mode::S_IFCHR,
        FileType::BlockDevice => mode::S_IFBLK,
        FileType::Directory => mode::S_IFDIR,
        FileType::RegularFile => mode::S_IFREG,
        FileType::Symlink => mode::S_IFLNK,
        FileType::Socket => mode::S_IFSOCK,
    };
    Attr {
        ino: attr.ino.0,
        mode: fmt | u32::from(attr.perm),
        nlink: attr.nlink,
        uid: attr.uid,
        gid: attr.gid,
        rdev: attr.rdev,
        size: attr.size,
        blocks: attr.blocks,
        atime: time(attr.atime),
        mtime: time(attr.mtime),
        ctime: time(attr.ctime),
        acl: false,
    }
}

/// fuser's attributes, for a node number.
pub(crate) fn to_fuser(ino: INodeNo, attr: &Attr, block_size: u32) -> FileAttr {
    FileAttr {
        ino,
        size: attr.size,
        blocks: attr.blocks,
        atime: system_time(attr.atime),
        mtime: system_time(attr.mtime),
        ctime: system_time(attr.ctime),
        crtime: system_time(attr.ctime),
        kind: kind(attr.mode),
        perm: (attr.mode & 0o7777) as u16,
        nlink: attr.nlink,
        uid: attr.uid,
        gid: attr.gid,
        rdev: attr.rdev,
        blksize: block_size,
        flags: 0,
    }
}

/// The attributes of a name that leads nowhere: node number 0.
pub(crate) fn absent() -> FileAttr {
    to_fuser(INodeNo(0), &Attr::default(), 0)
}

fn kind(mode: u32) -> FileType {
    match mode & mode::S_IFMT {
        mode::S_IFIFO => FileType::NamedPipe,
        mode::S_IFCHR => FileType::CharDevice,
        mode::S_IFBLK => FileType::BlockDevice,
        mode::S_IFDIR => FileType::Directory,
        mode::S_IFLNK => FileType::Symlink,
        mode::S_IFSOCK => FileType::Socket,
        _ => FileType::RegularFile,
    }
}

/// The present time.
pub(crate) fn now() -> Time {
    time(SystemTime::now())
}

fn time(time: SystemTime) -> Time {
    match time.duration_since(UNIX_EPOCH) {
        Ok(since) => Time::new(i64::try_from(since.as_secs()).unwrap_or(i64::MAX), since.subsec_nanos()),
        Err(before) => {
            let before = before.duration();
            let sec = -i64::try_from(before.as_secs()).unwrap_or(i64::MAX);
            match before.subsec_nanos() {
                0 => Time::new(sec, 0),
                nsec => Time::new(sec - 1, 1_000_000_000 - nsec),
            }
        }
    }
}

fn system_time(time: Time) -> SystemTime {
    let nsec = Duration::from_nanos(u64::from(time.nsec()));
    let sec = Duration::from_secs(time.sec().unsigned_abs());
    if time.sec() < 0 { UNIX_EPOCH - sec + nsec } else { UNIX_EPOCH + sec + nsec }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attributes_survive_the_way_there_and_back() {
        for kind in [
            FileType::NamedPipe,
            FileType::CharDevice,
            FileType::BlockDevice,
            FileType::Directory,
            FileType::RegularFile,
            FileType::Symlink,
            FileType::Socket,
        ] {
            let ctime = UNIX_EPOCH + Duration::new(7, 9);
            let attr = FileAttr {
                ino: INodeNo(77),
                size: 5000,
                blocks: 16,
                atime: UNIX_EPOCH - Duration::new(3, 250_000_000),
                mtime: UNIX_EPOCH - Duration::from_secs(4),
                ctime,
                crtime: ctime,
                kind,
                perm: 0o4755,
                nlink: 3,
                uid: 1000,
                gid: 1001,
                rdev: 0x501,
                blksize: 4096,
                flags: 0,
            };
            assert_eq!(to_fuser(INodeNo(77), &to_cache(&attr), 4096), attr);
        }
    }
}
