//! Attributes: those of `stat` and the cache's.
//!
//! The cache does not keep `st_dev` and `st_blksize`, and its number is the store's.

use std::time::{SystemTime, UNIX_EPOCH};

use uvfs_cache::{Attr, Time};

/// The cache's attributes of a file. `ino` is overwritten by the store.
pub fn attr_of(st: &libc::stat64) -> Attr {
    Attr {
        ino: st.st_ino,
        mode: st.st_mode,
        nlink: u32::try_from(st.st_nlink).unwrap_or(u32::MAX),
        uid: st.st_uid,
        gid: st.st_gid,
        rdev: st.st_rdev as u32,
        size: st.st_size.try_into().unwrap_or(0),
        blocks: st.st_blocks.try_into().unwrap_or(0),
        atime: Time::new(st.st_atime, st.st_atime_nsec as u32),
        mtime: Time::new(st.st_mtime, st.st_mtime_nsec as u32),
        ctime: Time::new(st.st_ctime, st.st_ctime_nsec as u32),
        acl: false,
    }
}

/// Write cached attributes into `st`. `st_ino`, `st_dev` and `st_blksize` keep their values.
pub fn write_attr(attr: &Attr, st: &mut libc::stat64) {
    st.st_mode = attr.mode;
    st.st_nlink = attr.nlink.into();
    st.st_uid = attr.uid;
    st.st_gid = attr.gid;
    st.st_rdev = attr.rdev.into();
    st.st_size = attr.size.try_into().unwrap_or(i64::MAX);
    st.st_blocks = attr.blocks.try_into().unwrap_or(i64::MAX);
    (st.st_atime, st.st_atime_nsec) = (attr.atime.sec(), attr.atime.nsec().into());
    (st.st_mtime, st.st_mtime_nsec) = (attr.mtime.sec(), attr.mtime.nsec().into());
    (st.st_ctime, st.st_ctime_nsec) = (attr.ctime.sec(), attr.ctime.nsec().into());
}

/// The present time.
pub(crate) fn now() -> Time {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    Time::new(i64::try_from(since.as_secs()).unwrap_or(i64::MAX), since.subsec_nanos())
}
