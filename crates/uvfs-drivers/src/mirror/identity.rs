//! Identities, which tell one file of the host from another, and the attributes of a descriptor's file.
//!
//! A file is identified by its file handle (name_to_handle_at(2)), which names the inode and its generation. So a
//! number that the host uses again for another file is not mistaken for the old one.
//!
//! Some file systems have no handles of their own. The kernel then makes some up, of the number and a generation that
//! mostly is 0 ([`Handles::MadeUp`]). In that case type and time of birth are part of the identity. Other file
//! systems have no handles at all: number, type and time of birth stand in.
//!
//! Handles are compared and never opened. Nothing here is shared.

use std::hash::{Hash, Hasher};
use std::os::fd::AsFd;

use rustix::fs::{AtFlags, Statx, StatxFlags, StatxTimestamp, fstatfs, statx};
use uvfs::types::{Attr, Errno, Result, Time, mode};

use super::sys::{self, HANDLE_MAX};

/// Handles of the usual file systems have 8 to 20 bytes; longer ones are in a box.
const SHORT: usize = 22;
/// `FILEID_INO64_GEN` and the same with a parent: the types of the handles that the kernel makes up. Some file
/// systems with handles of their own use these types too, such as XFS and EROFS.
const GENERIC: [i32; 2] = [0x81, 0x82];
/// The type of FUSE. Its handles are the server's node ids, which it may use again with the same generation.
const FUSE: u32 = 0x6573_5546;

/// A file handle as name_to_handle_at(2) and fanotify(7) give it: a type and bytes.
#[derive(Clone, Debug)]
pub struct FileHandle {
    kind: i32,
    bytes: Bytes,
}

#[derive(Clone, Debug)]
enum Bytes {
    Short(u8, [u8; SHORT]),
    Long(Box<[u8]>),
}

impl FileHandle {
    /// The handle of this type with these bytes.
    pub fn new(kind: i32, bytes: &[u8]) -> Self {
        let stored = if bytes.len() <= SHORT {
            let mut short = [0; SHORT];
            short[..bytes.len()].copy_from_slice(bytes);
            Bytes::Short(bytes.len() as u8, short)
        } else {
            Bytes::Long(bytes.into())
        };
        Self { kind, bytes: stored }
    }

    /// The type.
    pub fn kind(&self) -> i32 {
        self.kind
    }

    /// The bytes.
    pub fn bytes(&self) -> &[u8] {
        match &self.bytes {
            Bytes::Short(len, bytes) => &bytes[..usize::from(*len)],
            Bytes::Long(bytes) => bytes,
        }
    }

    fn heap_bytes(&self) -> usize {
        match &self.bytes {
            Bytes::Short(..) => 0,
            Bytes::Long(bytes) => heap(bytes.len()),
        }
    }

    /// The handle of an open file, O_PATH or not.
    ///
    /// # Errors
    /// EOPNOTSUPP if its file system has none.
    pub fn of(fd: impl AsFd) -> Result<Self> {
        let mut bytes = [0; HANDLE_MAX];
        let (kind, len) = sys::handle(fd, &mut bytes)?;
        Ok(Self::new(kind, &bytes[..len]))
    }
}

impl PartialEq for FileHandle {
    fn eq(&self, other: &Self) -> bool {
        self.kind == other.kind && self.bytes() == other.bytes()
    }
}

impl Eq for FileHandle {}

impl Hash for FileHandle {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.kind.hash(state);
        self.bytes().hash(state);
    }
}

/// The kind of handles that a file system has. All its files have the same kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Handles {
    /// Its own. They identify a file, and a file can be opened by them.
    Own,
    /// The kernel makes them up (Linux 6.5), or a FUSE server does. Those of a [generic](GENERIC) type tell no more
    /// than a number.
    MadeUp,
    None,
}

impl Handles {
    /// The kind of the file system of an open file, O_PATH or not.
    ///
    /// A handle's type does not tell whether the kernel made it up. But without a flag the kernel returns only
    /// handles that a file can be opened by, and it makes up none of these.
    pub(super) fn of(fd: impl AsFd) -> Self {
        let is_fuse = fstatfs(&fd).is_ok_and(|figures| figures.f_type as u32 == FUSE);
        if !is_fuse && sys::has_own_handle(&fd) {
            Self::Own
        } else if FileHandle::of(fd).is_ok() {
            Self::MadeUp
        } else {
            Self::None
        }
    }

    /// Looks at an open file of such a file system, O_PATH or not.
    pub(super) fn look(self, fd: impl AsFd) -> Result<Seen> {
        let stat = stat(&fd)?;
        let id = match FileHandle::of(fd) {
            Ok(handle) => self.identity(handle, fmt(&stat), birth(&stat)),
            Err(Errno::OPNOTSUPP | Errno::OVERFLOW | Errno::NOSYS | Errno::INVAL) => born(&stat),
            Err(errno) => return Err(errno),
        };
        Ok(Seen { id, attr: attr_of(&stat) })
    }

    fn identity(self, handle: FileHandle, fmt: u32, birth: Time) -> Identity {
        if self != Self::Own && GENERIC.contains(&handle.kind) {
            Identity::Weak(Box::new(Weak { handle, fmt, birth }))
        } else {
            Identity::Handle(handle)
        }
    }
}

/// The identity of a file.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum Identity {
    Handle(FileHandle),
    /// Number, type and time of birth, if there are no handles.
    Born(u64, u32, Time),
    /// A handle that tells no more than the number, with type and time of birth.
    Weak(Box<Weak>),
    /// The place of a mount inside the source: the number of its directory, and its name.
    Covered(u64, Box<[u8]>),
}

/// See [`Identity::Weak`].
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Weak {
    handle: FileHandle,
    fmt: u32,
    birth: Time,
}

impl Identity {
    /// Whether an event that names a handle finds it.
    pub(super) fn is_found_by_handle(&self) -> bool {
        matches!(self, Self::Handle(_))
    }

    /// Bytes of memory that are not in place.
    pub(super) fn heap_bytes(&self) -> usize {
        match self {
            Self::Handle(handle) => handle.heap_bytes(),
            Self::Born(..) => 0,
            Self::Weak(weak) => heap(size_of::<Weak>()) + weak.handle.heap_bytes(),
            Self::Covered(_, name) => heap(name.len()),
        }
    }
}

/// The bytes that an allocation of so many takes from the heap: with a word before it, in units of 16 bytes, and at
/// least 32, as in glibc's allocator and others.
pub(super) const fn heap(bytes: usize) -> usize {
    let taken = (bytes + 8).next_multiple_of(16);
    if bytes == 0 {
        0
    } else if taken < 32 {
        32
    } else {
        taken
    }
}

/// A file of the host at one moment.
#[derive(Clone, Debug)]
pub(super) struct Seen {
    pub(super) id: Identity,
    /// With the host's inode number.
    pub(super) attr: Attr,
}

/// File systems that make a file's content when it is read, independently of its size: proc, sysfs, debugfs, tracefs,
/// cgroup, cgroup2, configfs, securityfs, pstore, efivarfs, selinuxfs.
const MADE: [u32; 11] = [
    0x9fa0,
    0x6265_6572,
    0x6462_6720,
    0x7472_6163,
    0x0027_e0eb,
    0x6367_7270,
    0x6265_6570,
    0x7363_6673,
    0x6165_676c,
    0xde5e_81e4,
    0xf97c_ff8c,
];

/// Whether it is on one of those.
pub(super) fn is_made(fd: impl AsFd) -> bool {
    fstatfs(fd).is_ok_and(|figures| MADE.contains(&(figures.f_type as u32)))
}

/// Whether an open file is the one meant.
pub(super) fn is(id: &Identity, fd: impl AsFd) -> Result<bool> {
    match id {
        Identity::Handle(handle) => Ok(FileHandle::of(fd)? == *handle),
        Identity::Weak(weak) => {
            let stat = stat(&fd)?;
            Ok((fmt(&stat), birth(&stat)) == (weak.fmt, weak.birth) && FileHandle::of(fd)? == weak.handle)
        }
        Identity::Born(..) => Ok(born(&stat(fd)?) == *id),
        Identity::Covered(..) => Ok(false),
    }
}

/// The attributes of an open file, with the host's inode number.
pub(super) fn attr(fd: impl AsFd) -> Result<Attr> {
    Ok(attr_of(&stat(fd)?))
}

/// When the file was made; none if its file system does not tell.
pub(super) fn birth_of(fd: impl AsFd) -> Result<Option<Time>> {
    let stat = statx(fd, c"", AtFlags::EMPTY_PATH, StatxFlags::BTIME)?;
    Ok((stat.stx_mask & StatxFlags::BTIME.bits() != 0).then(|| time(&stat.stx_btime)))
}

fn stat(fd: impl AsFd) -> Result<Statx> {
    statx(fd, c"", AtFlags::EMPTY_PATH, StatxFlags::BASIC_STATS | StatxFlags::BTIME)
}

fn fmt(stat: &Statx) -> u32 {
    u32::from(stat.stx_mode) & mode::S_IFMT
}

fn birth(stat: &Statx) -> Time {
    let known = stat.stx_mask & StatxFlags::BTIME.bits() != 0;
    if known { time(&stat.stx_btime) } else { Time::default() }
}

fn born(stat: &Statx) -> Identity {
    Identity::Born(stat.stx_ino, fmt(stat), birth(stat))
}

fn time(t: &StatxTimestamp) -> Time {
    Time::new(t.tv_sec, t.tv_nsec)
}

/// As the kernel packs a device number into 32 bits: 12 for the major number, 20 for the minor.
pub(super) fn pack_dev(major: u32, minor: u32) -> u32 {
    (minor & 0xff) | (major & 0xfff) << 8 | (minor & 0xf_ff00) << 12
}

/// The inverse of [`pack_dev`].
pub(super) fn unpack_dev(dev: u32) -> (u32, u32) {
    (dev >> 8 & 0xfff, dev & 0xff | dev >> 12 & 0xf_ff00)
}

fn attr_of(stat: &Statx) -> Attr {
    Attr {
        ino: stat.stx_ino,
        mode: u32::from(stat.stx_mode),
        nlink: stat.stx_nlink,
        uid: stat.stx_uid,
        gid: stat.stx_gid,
        rdev: pack_dev(stat.stx_rdev_major, stat.stx_rdev_minor),
        size: stat.stx_size,
        blocks: stat.stx_blocks,
        atime: time(&stat.stx_atime),
        mtime: time(&stat.stx_mtime),
        ctime: time(&stat.stx_ctime),
        // Not asked here: see `Mirror::shown`.
        acl: false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn handles_of_any_length_compare_by_type_and_bytes() {
        for len in [0, 1, 8, SHORT, SHORT + 1, HANDLE_MAX] {
            let bytes: Vec<u8> = (0..len as u8).collect();
            let handle = FileHandle::new(1, &bytes);
            assert_eq!((handle.kind(), handle.bytes()), (1, &bytes[..]));
            assert_eq!(handle, FileHandle::new(1, &bytes));
            assert_ne!(handle, FileHandle::new(2, &bytes));
            assert_ne!(handle, FileHandle::new(1, &[&bytes[..], &[0]].concat()));
        }
    }

    /// A file of XFS: the number in 64 bits and the generation in 32, as the generic type 0x81 has them.
    #[test]
    fn a_generic_handle_is_weak_only_where_the_kernel_made_it_up() {
        let bytes = [&128u64.to_ne_bytes()[..], &0u32.to_ne_bytes()].concat();
        for kind in GENERIC {
            let handle = FileHandle::new(kind, &bytes);
            let id = |handles: Handles| handles.identity(handle.clone(), mode::S_IFDIR, Time::new(1, 2));
            assert_eq!(id(Handles::Own), Identity::Handle(handle.clone()));
            assert!(id(Handles::Own).is_found_by_handle());
            assert!(matches!(id(Handles::MadeUp), Identity::Weak(_)));
        }
        let other = FileHandle::new(0xf8, &bytes);
        assert_eq!(Handles::MadeUp.identity(other.clone(), 0, Time::default()), Identity::Handle(other));
    }

    /// These have no handles of their own in any kernel. The tests of a mount check the others.
    #[test]
    fn what_the_kernel_makes_up_is_told_from_what_a_file_system_has() {
        for path in ["/proc", "/sys"] {
            let Ok(dir) = std::fs::File::open(path) else { continue };
            assert_ne!(Handles::of(&dir), Handles::Own, "{path}");
            assert!(!Handles::of(&dir).look(&dir).unwrap().id.is_found_by_handle(), "{path}");
        }
        let shm = std::fs::File::open("/dev/shm").unwrap();
        assert_eq!(Handles::of(&shm), Handles::Own);
        assert!(Handles::of(&shm).look(&shm).unwrap().id.is_found_by_handle());
    }

    #[test]
    fn device_numbers_survive_packing() {
        for (major, minor) in [(0, 0), (1, 3), (8, 255), (8, 256), (259, 0xf_ffff), (0xfff, 1)] {
            assert_eq!(unpack_dev(pack_dev(major, minor)), (major, minor));
        }
        assert_eq!(pack_dev(1, 3), 0x103);
    }
}
