//! The vocabulary that namei, drivers and front ends share: errors, credentials, flags.
//!
//! Plain values: no type here is shared between threads or knows the cache's internals.

use std::ops::Deref;
use std::sync::Arc;

use crate::acl::Acl;
use crate::groups_and_capabilities::Powers;

pub use uvfs_cache::attr::{Attr, Time, mode};
pub use uvfs_cache::machinery::Perm;
pub use uvfs_cache::{Errno, Ttl};

/// The result of every operation; the errors are the kernel's.
pub type Result<T> = std::result::Result<T, Errno>;

/// Longest name of one path component, in bytes (`NAME_MAX`).
pub const NAME_MAX: usize = 255;
/// Longest path, in bytes, without the terminating nul (`PATH_MAX` - 1).
pub const PATH_MAX: usize = 4095;
/// Symbolic links followed in one walk before ELOOP.
pub const MAX_SYMLINKS: u32 = 40;

/// Supplementary groups. Most callers have none, or none that are known. That case takes no memory, and its clones
/// share no reference count.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Groups(Option<Arc<[u32]>>);

impl Deref for Groups {
    type Target = [u32];

    #[inline]
    fn deref(&self) -> &[u32] {
        self.0.as_deref().unwrap_or_default()
    }
}

impl From<&[u32]> for Groups {
    fn from(groups: &[u32]) -> Self {
        Self((!groups.is_empty()).then(|| groups.into()))
    }
}

impl<const N: usize> From<[u32; N]> for Groups {
    fn from(groups: [u32; N]) -> Self {
        groups.as_slice().into()
    }
}

impl From<Vec<u32>> for Groups {
    fn from(groups: Vec<u32>) -> Self {
        groups.as_slice().into()
    }
}

/// The identity an operation runs with. Cheap to clone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cred {
    /// User id that permissions are checked against (the kernel's fsuid).
    pub uid: u32,
    /// Group id that permissions are checked against (the kernel's fsgid).
    pub gid: u32,
    /// Supplementary groups.
    pub groups: Groups,
}

impl Cred {
    /// The superuser.
    pub fn root() -> Self {
        Self { uid: 0, gid: 0, groups: Groups::default() }
    }
    /// A user with one group.
    pub fn user(uid: u32, gid: u32) -> Self {
        Self { uid, gid, groups: Groups::default() }
    }
    /// Whether mode bits do not bind this caller (CAP_DAC_OVERRIDE, CAP_FOWNER and CAP_FSETID in one).
    pub fn is_root(&self) -> bool {
        self.uid == 0
    }
    /// Whether `gid` is the group or one of the supplementary groups.
    #[inline]
    pub fn in_group(&self, gid: u32) -> bool {
        self.gid == gid || self.groups.contains(&gid)
    }
}

/// The context of one operation.
#[derive(Clone, Debug)]
pub struct Op {
    /// The caller.
    pub cred: Cred,
    /// The time to stamp changes with.
    pub now: Time,
    /// The caller of the VFS has checked permissions (a FUSE kernel under `default_permissions`), so the VFS does
    /// not check them again. It always checks type, name, emptiness and loops.
    pub trusted: bool,
    /// The caller's rights beyond `cred`, for front ends that must look them up. Only permission checks ask for it.
    pub powers: Powers,
    /// Permission bits that new nodes do not get. If the directory has a default access control list, that list
    /// replaces the umask.
    pub umask: u32,
}

/// The thing that a name leads to.
#[derive(Clone, Debug)]
pub enum Found<'v> {
    /// The inode and its attributes; if something is mounted there, the mounted root.
    Node(uvfs_cache::InodeRef<'v>, Attr),
    /// There is no such name, and a front end may trust that for this long.
    Absent(Ttl),
}

/// The cache's knowledge of a name.
#[derive(Clone, Debug)]
pub enum Cached<'v> {
    /// The inode; if something is mounted there, the mounted root.
    Node(uvfs_cache::InodeRef<'v>),
    /// There is no such name, and a front end may trust that for this long.
    Absent(Ttl),
}

/// A change of attributes; `None` leaves a field alone.
#[derive(Clone, Copy, Debug, Default)]
pub struct SetAttr {
    /// Permission bits (type bits are ignored).
    pub mode: Option<u32>,
    /// Owner.
    pub uid: Option<u32>,
    /// Group.
    pub gid: Option<u32>,
    /// Size; shorter truncates, longer makes a hole.
    pub size: Option<u64>,
    /// Access time.
    pub atime: Option<SetTime>,
    /// Modification time.
    pub mtime: Option<SetTime>,
    /// Change time as the front end saw it (FUSE writeback); drivers may ignore it.
    pub ctime: Option<Time>,
    /// Clear set-id bits as the kernel does for a write or truncate by an unprivileged caller
    /// (FUSE_HANDLE_KILLPRIV_V2's FATTR_KILL_SUIDGID).
    pub kill_suidgid: bool,
    /// The caller has the file open for writing, so its size may change whatever its mode is by now.
    pub opened: bool,
}

impl SetAttr {
    /// Whether a field is set, or set-id bits may have to go. A driver gets a change without either for chown(2)
    /// with neither owner nor group, which moves the change time.
    pub fn changes_anything(&self) -> bool {
        let Self { mode, uid, gid, size, atime, mtime, ctime, kill_suidgid, opened: _ } = self;
        let times = atime.is_some() || mtime.is_some() || ctime.is_some();
        mode.is_some() || uid.is_some() || gid.is_some() || size.is_some() || times || *kill_suidgid
    }
}

/// A time to set, as `utimensat` distinguishes them (their permission rules differ).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SetTime {
    /// UTIME_NOW.
    Now,
    /// A given time.
    At(Time),
}

/// The description of a new node.
#[derive(Clone, Copy, Debug)]
pub struct Make<'a> {
    /// Type and permission bits (umask or default list already applied).
    pub mode: u32,
    /// Owner.
    pub uid: u32,
    /// Group (a set-gid directory is already taken into account).
    pub gid: u32,
    /// Device number, for device nodes.
    pub rdev: u32,
    /// Target, for symbolic links.
    pub target: Option<&'a [u8]>,
    /// The access list, if it says more than `mode` ([`Attr::acl`] then says so). Always `None` without
    /// [`Features::acl`].
    pub acl: Option<&'a Arc<Acl>>,
    /// The default list, for directories.
    pub default_acl: Option<&'a Arc<Acl>>,
}

/// An inode as a driver describes it to the VFS.
#[derive(Clone, Copy, Debug, Default)]
pub struct NewInode {
    /// Attributes; `ino` identifies the inode within the superblock.
    pub attr: Attr,
    /// The driver's own value, which `Inode::private` returns. An inode that the cache already knows (by
    /// `attr.ino`) keeps its value, and this one is dropped. So derive such values from the number, or set them on
    /// first use with `Inode::init_private`.
    pub private: u64,
    /// The TTL of name and attributes.
    pub ttl: Ttl,
}

/// A driver's answer to a lookup.
#[derive(Clone, Copy, Debug)]
pub enum Answer {
    /// The name leads to this inode.
    Found(NewInode),
    /// There is no such name, and that may be trusted for this long.
    Absent(Ttl),
}

bitflags::bitflags! {
    /// `renameat2` flags.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct RenameFlags: u32 {
        /// Fail with EEXIST if the new name exists.
        const NOREPLACE = 1;
        /// Swap the two names.
        const EXCHANGE = 2;
        /// Leave a whiteout, the character device 0/0, under the old name. Not with `EXCHANGE`.
        const WHITEOUT = 4;
    }

    /// Access wanted, as for `access(2)`; also what an open asks for.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct Access: u32 {
        /// Execute or search.
        const EXEC = 1;
        /// Write.
        const WRITE = 2;
        /// Read.
        const READ = 4;
    }

    /// How [`Context::open`](crate::Context::open) opens, as in `open(2)`. At least one of `READ` and `WRITE` must
    /// be set.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct OpenFlags: u32 {
        /// Reading is wanted (O_RDONLY, O_RDWR).
        const READ = 1;
        /// Writing is wanted (O_WRONLY, O_RDWR).
        const WRITE = 2;
        /// O_CREAT: make a regular file if there is nothing.
        const CREATE = 4;
        /// O_EXCL: with `CREATE`, fail with EEXIST if the name exists.
        const EXCL = 8;
        /// O_TRUNC: truncate a regular file to zero length.
        const TRUNC = 16;
        /// O_APPEND: every write goes to the end.
        const APPEND = 32;
        /// O_DIRECTORY: fail with ENOTDIR on anything but a directory.
        const DIRECTORY = 64;
        /// O_NOFOLLOW: fail with ELOOP if the last component is a symbolic link.
        const NOFOLLOW = 128;
    }

    /// The events an open file is ready for, with the values of `poll(2)`.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct PollEvents: u32 {
        /// POLLIN: a read will not wait.
        const IN = 0x1;
        /// POLLPRI: something exceptional; for an attribute, that it has changed.
        const PRI = 0x2;
        /// POLLOUT: a write will not wait.
        const OUT = 0x4;
        /// POLLERR: comes with `PRI` for a changed attribute. Never requested, always reported.
        const ERR = 0x8;
        /// POLLHUP: the other side is gone. Never requested, always reported.
        const HUP = 0x10;
        /// POLLRDNORM, the same as `IN`.
        const RDNORM = 0x40;
        /// POLLWRNORM, the same as `OUT`.
        const WRNORM = 0x100;
    }

    /// `setxattr` flags.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct XattrFlags: u32 {
        /// Fail with EEXIST if the attribute exists.
        const CREATE = 1;
        /// Fail with ENODATA if it does not.
        const REPLACE = 2;
    }
}

impl RenameFlags {
    /// EINVAL where they exclude each other: what is exchanged leaves no name free.
    pub(crate) fn check(self) -> Result<()> {
        let exclusive = self.intersects(Self::NOREPLACE | Self::WHITEOUT);
        if self.contains(Self::EXCHANGE) && exclusive { Err(Errno::INVAL) } else { Ok(()) }
    }
}

impl PollEvents {
    /// The events of a file that never makes its users wait.
    pub const ALWAYS: Self = Self::IN.union(Self::OUT).union(Self::RDNORM).union(Self::WRNORM);
}

/// `statfs` figures.
#[derive(Clone, Copy, Debug, Default)]
pub struct StatFs {
    /// The block size that the counts below use.
    pub bsize: u32,
    /// Blocks in all.
    pub blocks: u64,
    /// Free blocks.
    pub bfree: u64,
    /// Free blocks for the unprivileged.
    pub bavail: u64,
    /// Inodes in all.
    pub files: u64,
    /// Free inodes.
    pub ffree: u64,
    /// Longest name.
    pub namelen: u32,
}

/// One entry of a directory as it is handed to a reader.
#[derive(Clone, Copy, Debug)]
pub struct DirEntry<'a> {
    /// The name; never `.` or `..` (front ends add those).
    pub name: &'a [u8],
    /// Inode number.
    pub ino: u64,
    /// Type bits of the mode (`S_IFMT`).
    pub fmt: u32,
    /// The cookie to continue *after* this entry. Cookies 0, 1 and 2 are reserved (start, `.`, `..`); entries'
    /// cookies are 3 or more.
    pub cookie: u64,
}

/// The kind of range that `lseek` searches for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Seek {
    /// SEEK_DATA.
    Data,
    /// SEEK_HOLE.
    Hole,
}

/// File flags, as ioctl_iflags(2) has them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FileFlags {
    /// `FS_*_FL` (FS_IOC_GETFLAGS, FS_IOC_SETFLAGS).
    Inode(u32),
    /// `struct fsxattr` as the host lays it out (FS_IOC_FSGETXATTR, FS_IOC_FSSETXATTR).
    Extended([u8; FSXATTR]),
}

/// Bytes of `struct fsxattr`.
pub const FSXATTR: usize = 28;

/// Which form of a file's flags is wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FlagsForm {
    /// [`FileFlags::Inode`].
    Inode,
    /// [`FileFlags::Extended`].
    Extended,
}

/// The operation that `fallocate` is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fallocate {
    /// Allocate; the flag keeps the size.
    Allocate {
        /// FALLOC_FL_KEEP_SIZE.
        keep_size: bool,
    },
    /// Punch a hole (always with KEEP_SIZE).
    PunchHole,
    /// Zero a range; the flag keeps the size.
    ZeroRange {
        /// FALLOC_FL_KEEP_SIZE.
        keep_size: bool,
    },
}

/// The properties of a driver; asked once, at mount.
#[derive(Clone, Copy, Debug, Default)]
pub struct Features {
    /// The cache *is* the directory tree (tmpfs). Nothing is evicted, every directory is complete, and the driver's
    /// `lookup` and `readdir` are never called.
    pub resident: bool,
    /// Calls may wait for something slow. A front end must make them where other requests can be answered
    /// meanwhile.
    pub may_block: bool,
    /// Answers depend on the caller, so concurrent lookups of one name may not share an answer.
    pub lookup_depends_on_cred: bool,
    /// The target of a symbolic link never changes while its inode lives, for any caller. The cache keeps the
    /// target after the first readlink, and walks follow it without a reference. The driver is asked again when
    /// `relatime` would move the access time, unless [`Features::timeless_links`].
    pub fixed_links: bool,
    /// No read of a symbolic link moves its access time. So a cached target is never read from the driver again.
    pub timeless_links: bool,
    /// Changes are refused with EROFS before the driver is asked.
    pub read_only: bool,
    /// A file's content is made when it is read, and may be longer or shorter than its size. A front end must cache
    /// none of it, and must not truncate it at the size.
    pub direct_io: bool,
    /// Others change the file system too, and the driver reports each change to the cache
    /// ([`Cache::name_changed`](uvfs_cache::Cache::name_changed) and related methods), which notifies front ends.
    /// Its answers with [`Ttl::Forever`] then hold until a report, or until everything is suspect.
    pub watched: bool,
    /// File systems that nobody watches may be mounted inside. A front end's kernel must then judge its cached
    /// pages by the file's times.
    pub others_inside: bool,
    /// The driver calls another file system in the caller's name, and others change that file system.
    ///
    /// - Front ends name the caller's supplementary groups for requests that change or open something or read an
    ///   extended attribute's value. The rest they may ask with user and group alone.
    /// - Front ends mark appending writes as such.
    /// - The driver handles extended attributes that the VFS does not know (access control lists), and the umask.
    pub passes_through: bool,
    /// Files of the host stand behind open files, and a front end's kernel may read and write them by itself: see
    /// [`Driver::lender`](crate::Driver::lender).
    pub lends: bool,
    /// The driver may know when files were made: see [`Driver::birth`](crate::Driver::birth).
    pub births: bool,
    /// The driver keeps access control lists: see [`Driver::acls`](crate::Driver::acls). A driver that
    /// `passes_through` is asked for them as extended attributes, by a front end's kernel that checks them.
    pub acl: bool,
    /// The driver keeps nothing for an open file: its `open` allows all, and its `release` does nothing. Neither is
    /// called, and every [`File::handle`](crate::driver::File::handle) is 0.
    pub plain_files: bool,
}
