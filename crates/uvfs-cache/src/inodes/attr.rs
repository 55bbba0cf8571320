//! The attributes that `stat` reports, and how the published half of an inode packs them.
//!
//! Plain values: nothing here is shared or locked. [`Attr`] is the unpacked form that callers and drivers
//! see; `inode.rs` stores it as atomics.

/// Type bits of a mode, as in `<sys/stat.h>`.
pub mod mode {
    #![allow(missing_docs)]
    pub const S_IFMT: u32 = 0o170000;
    pub const S_IFSOCK: u32 = 0o140000;
    pub const S_IFLNK: u32 = 0o120000;
    pub const S_IFREG: u32 = 0o100000;
    pub const S_IFBLK: u32 = 0o060000;
    pub const S_IFDIR: u32 = 0o040000;
    pub const S_IFCHR: u32 = 0o020000;
    pub const S_IFIFO: u32 = 0o010000;
    pub const S_ISUID: u32 = 0o4000;
    pub const S_ISGID: u32 = 0o2000;
    pub const S_ISVTX: u32 = 0o1000;
}

/// A point in time: seconds since 1970 (may be negative) and nanoseconds, in one word. 34 bits of seconds
/// stand above 30 bits of nanoseconds, the cache's own format, so that a hit only copies it.
///
/// Times before 1901-12-13 or after 2446-05-10 are clamped to that range, as the kernel clamps to a
/// file system's range (`timestamp_truncate`); ext4 has the same one.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Time(u64);

/// Earliest second that [`Time`] can hold: -2^31.
pub const TIME_MIN_SEC: i64 = -(1 << 31);
/// Latest second that [`Time`] can hold: 2^34 - 2^31 - 1.
pub const TIME_MAX_SEC: i64 = (1 << 34) - (1 << 31) - 1;

impl Time {
    /// The time, or the nearest representable one.
    pub const fn new(sec: i64, nsec: u32) -> Self {
        if sec < TIME_MIN_SEC {
            Self(0)
        } else if sec > TIME_MAX_SEC {
            Self(((TIME_MAX_SEC - TIME_MIN_SEC) as u64) << 30)
        } else {
            let nsec = if nsec > 999_999_999 { 999_999_999 } else { nsec };
            Self(((sec - TIME_MIN_SEC) as u64) << 30 | nsec as u64)
        }
    }

    /// Seconds since 1970.
    pub const fn sec(self) -> i64 {
        (self.0 >> 30) as i64 + TIME_MIN_SEC
    }

    /// Nanoseconds, below one second.
    pub const fn nsec(self) -> u32 {
        (self.0 & ((1 << 30) - 1)) as u32
    }
}

// For this project's own crates: see `machinery`.
#[doc(hidden)]
impl Time {
    /// The word; times order as their words do.
    #[inline]
    pub const fn pack(self) -> u64 {
        self.0
    }

    /// The inverse of [`Time::pack`].
    #[inline]
    pub const fn unpack(word: u64) -> Self {
        Self(word)
    }
}

/// The epoch.
impl Default for Time {
    fn default() -> Self {
        Self::new(0, 0)
    }
}

impl std::fmt::Debug for Time {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}.{:09}", self.sec(), self.nsec())
    }
}

/// The attributes of an inode.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Attr {
    /// Inode number, unique within the superblock.
    pub ino: u64,
    /// Type and permission bits, as `st_mode` (16 bits are kept).
    pub mode: u32,
    /// Hard links.
    pub nlink: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Device number of a device node (0 for everything else); in the cache it overlays `size`.
    pub rdev: u32,
    /// Bytes. Directories keep 32 bits of it (saturating).
    pub size: u64,
    /// Units of 512 bytes.
    pub blocks: u64,
    /// Last access.
    pub atime: Time,
    /// Last modification of the content.
    pub mtime: Time,
    /// Last change of the inode.
    pub ctime: Time,
    /// The inode has an access control list, so `mode` alone does not decide permissions.
    pub acl: bool,
}

impl Attr {
    /// Type bits of the mode.
    pub const fn fmt(&self) -> u32 {
        self.mode & mode::S_IFMT
    }
    /// Whether this is a directory.
    pub const fn is_dir(&self) -> bool {
        self.fmt() == mode::S_IFDIR
    }
    /// Whether this is a regular file.
    pub const fn is_reg(&self) -> bool {
        self.fmt() == mode::S_IFREG
    }
    /// Whether this is a symbolic link.
    pub const fn is_symlink(&self) -> bool {
        self.fmt() == mode::S_IFLNK
    }
    /// Whether this is a character or block device.
    pub(crate) const fn is_device(&self) -> bool {
        matches!(self.fmt(), mode::S_IFCHR | mode::S_IFBLK)
    }
}

// For this project's own crates: see `machinery`.
#[doc(hidden)]
impl Attr {
    /// Whether a read now moves the access time, by the rules of the mount option `relatime`: if no read
    /// was stamped since the last change, or for a day. So many readers do not all store here.
    pub fn atime_is_due(&self, now: Time) -> bool {
        self.atime <= self.mtime || self.atime <= self.ctime || now.sec() >= self.atime_due_at()
    }

    /// The second from which on it does, if nothing changes.
    pub(crate) fn atime_due_at(&self) -> i64 {
        const DAY: i64 = 24 * 60 * 60;
        self.atime.sec().saturating_add(DAY)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_survives_packing_over_its_whole_range() {
        for sec in [TIME_MIN_SEC, -1, 0, 1, 1_700_000_000, TIME_MAX_SEC] {
            for nsec in [0, 1, 999_999_999] {
                let t = Time::new(sec, nsec);
                assert_eq!(Time::unpack(t.pack()), t);
            }
        }
        assert_eq!(Time::unpack(Time::new(i64::MIN, 5).pack()), Time::new(TIME_MIN_SEC, 0));
        assert_eq!(Time::unpack(Time::new(i64::MAX, 5).pack()), Time::new(TIME_MAX_SEC, 0));
        assert!(Time::new(-1, 999_999_999).pack() < Time::new(0, 0).pack());
    }
}
