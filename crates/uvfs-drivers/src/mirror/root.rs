//! Where a mirror begins: the source, held open; or a mount inside it, which is not.
//!
//! A descriptor of a mount inside would keep the host from unmounting it. So its root is opened for each operation,
//! by its path from the source and across mounts, and compared with the mount that this mirror shows. Every mount has
//! a number of its own for ever (Linux 6.8; before that the number may be given out again, so device and root are
//! compared too). From there on nothing crosses a mount. The path is where the mount was last seen. Directories above
//! it may have been renamed, and then the table of mounts says where it is.
//!
//! The mutex protects the path and is not held across a system call.

use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use parking_lot::Mutex;
use rustix::fs::{AtFlags, OFlags, StatxFlags, fstatvfs, statx};
use uvfs::types::{Errno, Result};

use super::identity::{Handles, Identity};
use super::mounts::{self, Mount};
use super::reach::{At, moved, open_across, proc_path};
use super::sys;

/// `STATX_MNT_ID_UNIQUE`.
const UNIQUE: StatxFlags = StatxFlags::from_bits_retain(0x4000);

/// See the module.
pub(super) enum Base {
    Source(Arc<OwnedFd>),
    Inside(Inside),
}

/// A mount inside the source.
pub(super) struct Inside {
    source: Arc<OwnedFd>,
    /// Its number in the table of mounts.
    id: u64,
    which: Which,
    /// Its path from the source.
    path: Mutex<PathBuf>,
}

/// Tells one mount from all others.
#[derive(PartialEq, Eq)]
struct Which {
    number: u64,
    device: (u32, u32),
    /// If the number is not unique.
    root: Option<Identity>,
}

impl Which {
    fn of(fd: impl AsFd) -> Result<Self> {
        let stat = statx(&fd, c"", AtFlags::EMPTY_PATH, UNIQUE | StatxFlags::INO)?;
        let unique = stat.stx_mask & UNIQUE.bits() != 0;
        let root = if unique { None } else { Some(Handles::of(&fd).look(&fd)?.id) };
        Ok(Self { number: stat.stx_mnt_id, device: (stat.stx_dev_major, stat.stx_dev_minor), root })
    }
}

/// The number that the table of mounts has for the mount of an open file. EOPNOTSUPP before Linux 5.8.
pub(super) fn mount_of(fd: impl AsFd) -> Result<u64> {
    let stat = statx(fd, c"", AtFlags::EMPTY_PATH, StatxFlags::MNT_ID)?;
    if stat.stx_mask & StatxFlags::MNT_ID.bits() == 0 { Err(Errno::OPNOTSUPP) } else { Ok(stat.stx_mnt_id) }
}

/// The values that tell the device of an open file from others, as far as inode numbers go: the number that stat(2)
/// shows, and the file system's own id, which is the same when it is mounted again.
pub(super) fn device_of(fd: impl AsFd) -> Result<((u32, u32), u64)> {
    let stat = statx(&fd, c"", AtFlags::EMPTY_PATH, StatxFlags::INO)?;
    Ok(((stat.stx_dev_major, stat.stx_dev_minor), fstatvfs(fd)?.f_fsid))
}

impl Base {
    /// The root of `mount`, which is at `path` from the source.
    pub(super) fn inside(&self, mount: &Mount, path: &Path) -> Result<Self> {
        let source = Arc::clone(self.source());
        let fd = open_across(&source, path.as_os_str().as_bytes(), OFlags::DIRECTORY)?;
        if mount_of(&fd)? != mount.id {
            return Err(Errno::STALE);
        }
        let which = Which::of(&fd)?;
        Ok(Self::Inside(Inside { source, id: mount.id, which, path: Mutex::new(path.to_owned()) }))
    }

    /// The source, from which all mounts inside are reached.
    pub(super) fn source(&self) -> &Arc<OwnedFd> {
        match self {
            Self::Source(source) => source,
            Self::Inside(inside) => &inside.source,
        }
    }

    /// Whether the mount exists. If the kernel can be asked (Linux 6.8), nothing is opened: the host may be about to
    /// unmount it. Before that, a mount that must not be `touched`, because it may not answer, counts as existing.
    pub(super) fn lives(&self, touched: bool) -> bool {
        match self {
            Self::Source(_) => true,
            Self::Inside(inside) if inside.which.root.is_none() => {
                sys::mount_lives(inside.which.number).unwrap_or(true)
            }
            Self::Inside(_) if !touched => true,
            Self::Inside(inside) => !matches!(inside.open(), Err(errno) if moved(errno)),
        }
    }

    /// Its root directory.
    ///
    /// # Errors
    /// ESTALE if that mount is gone; the host's errors.
    pub(super) fn open(&self) -> Result<At<'_>> {
        match self {
            Self::Source(source) => Ok(At::Root(source.as_fd())),
            Self::Inside(inside) => inside.open().map(At::Own),
        }
    }
}

impl Inside {
    fn open(&self) -> Result<OwnedFd> {
        let path = self.path.lock().clone();
        match self.open_at(&path) {
            Err(errno) if moved(errno) => {
                let now = self.find()?;
                let fd =
                    self.open_at(&now).map_err(|errno| if moved(errno) { Errno::STALE } else { errno })?;
                *self.path.lock() = now;
                Ok(fd)
            }
            opened => opened,
        }
    }

    fn open_at(&self, path: &Path) -> Result<OwnedFd> {
        let fd = open_across(&self.source, path.as_os_str().as_bytes(), OFlags::DIRECTORY)?;
        if Which::of(&fd)? == self.which { Ok(fd) } else { Err(Errno::STALE) }
    }

    /// Its present path, by the table.
    fn find(&self) -> Result<PathBuf> {
        let all = mounts::all()?;
        let mount = all.iter().find(|mount| mount.id == self.id).ok_or(Errno::STALE)?;
        let below = mount.point.strip_prefix(path_of(&self.source)?);
        below.map(Path::to_owned).map_err(|_| Errno::STALE)
    }
}

/// The path of an open directory.
pub(super) fn path_of(fd: impl AsFd) -> Result<PathBuf> {
    std::fs::read_link(proc_path(fd)).map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::IO))
}
