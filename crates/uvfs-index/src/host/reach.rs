//! Opening a directory by the path that it is expected at, without capabilities.
//!
//! Only CAP_DAC_READ_SEARCH opens a file by its handle. Other users ask for the handle of what they have opened. So a
//! directory is opened below the root by the path in the table, through no link and no mount, and its handle is
//! compared. If that differs, or there is nothing, a directory on the path was renamed or removed: ESTALE. This is no proof that
//! the directory is gone.

use std::os::fd::{BorrowedFd, OwnedFd};

use rustix::fs::{Mode, OFlags, ResolveFlags, openat2};
use rustix::io::Errno;

use super::sys;
use crate::table::HostHandle;

/// Finds the path of a directory below the root; nothing if it is in no directory at this moment. Called without a lock of
/// the table's, unless the caller has one.
pub(crate) type Way<'a> = &'a dyn Fn() -> Option<Vec<u8>>;

/// Bytes of a path that are opened at a time. The kernel takes 4,095, and directories may be nested deeper.
const STRETCH: usize = 3800;

/// Opens the directory with this handle.
///
/// # Errors
/// ESTALE if it is not there at this moment; others as of openat2(2).
pub(super) fn open(
    root: BorrowedFd<'_>,
    handle: &HostHandle,
    way: Way<'_>,
    flags: OFlags,
) -> Result<OwnedFd, Errno> {
    let path = way().ok_or(Errno::STALE)?;
    let fd = match below(root, &path, flags) {
        Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP | Errno::XDEV | Errno::AGAIN) => {
            return Err(Errno::STALE);
        }
        fd => fd?,
    };
    use std::os::fd::AsFd;
    if sys::handle(fd.as_fd())? == *handle { Ok(fd) } else { Err(Errno::STALE) }
}

/// Opens a directory by its path below another one.
fn below(root: BorrowedFd<'_>, path: &[u8], flags: OFlags) -> Result<OwnedFd, Errno> {
    use std::os::fd::AsFd;
    let (mut at, mut rest): (Option<OwnedFd>, _) = (None, path);
    loop {
        // A name has at most 255 bytes, so there is a slash.
        let cut = (rest.len() > STRETCH).then(|| memchr::memrchr(b'/', &rest[..STRETCH])).flatten();
        let (now, later) = cut.map_or((rest, &[][..]), |cut| (&rest[..cut], &rest[cut + 1..]));
        let from = at.as_ref().map_or(root, |fd| fd.as_fd());
        let how = if cut.is_some() { OFlags::PATH } else { flags };
        let fd = step(from, if now.is_empty() { b"." } else { now }, how)?;
        if cut.is_none() {
            return Ok(fd);
        }
        (at, rest) = (Some(fd), later);
    }
}

fn step(from: BorrowedFd<'_>, path: &[u8], flags: OFlags) -> Result<OwnedFd, Errno> {
    let flags = flags | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let within = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_XDEV;
    // EAGAIN: something was renamed meanwhile, and the kernel cannot tell whether the path led outside.
    const TRIES: usize = 4;
    let mut tries = (0..TRIES).map(|_| openat2(from, path, flags, Mode::empty(), within));
    tries.find(|opened| !matches!(opened, Err(Errno::AGAIN))).unwrap_or(Err(Errno::AGAIN))
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::fd::AsFd;

    use super::*;

    #[test]
    fn a_directory_is_opened_only_where_it_is() {
        let dir = tempfile::tempdir().expect("a directory");
        for name in ["a/b", "other"] {
            fs::create_dir_all(dir.path().join(name)).expect("mkdir");
        }
        std::os::unix::fs::symlink("a", dir.path().join("link")).expect("a link");
        let root = fs::File::open(dir.path()).expect("open");
        let b = fs::File::open(dir.path().join("a/b")).expect("open");
        let Ok(handle) = sys::handle(b.as_fd()) else { return eprintln!("skipped: no handles") };
        let opens =
            |path: &[u8]| open(root.as_fd(), &handle, &|| Some(path.to_vec()), OFlags::RDONLY).map(drop);
        assert_eq!(opens(b"a/b"), Ok(()));
        for elsewhere in [&b"other"[..], b"", b"a/c", b"link/b", b"../x"] {
            assert_eq!(opens(elsewhere), Err(Errno::STALE), "{}", elsewhere.escape_ascii());
        }
        assert_eq!(open(root.as_fd(), &handle, &|| None, OFlags::PATH).map(drop), Err(Errno::STALE));
        fs::rename(dir.path().join("a"), dir.path().join("c")).expect("rename");
        assert_eq!((opens(b"a/b"), opens(b"c/b")), (Err(Errno::STALE), Ok(())));
    }

    /// Deeper than any path that the kernel takes.
    #[test]
    fn a_deep_directory_is_opened_in_stretches() {
        let dir = tempfile::tempdir().expect("a directory");
        let root = fs::File::open(dir.path()).expect("open");
        let name = [b'n'; 200];
        let (mut path, mut at) = (Vec::new(), root.try_clone().map(OwnedFd::from).expect("a descriptor"));
        for _ in 0..60 {
            rustix::fs::mkdirat(&at, &name[..], Mode::RWXU).expect("mkdir");
            at = step(at.as_fd(), &name, OFlags::RDONLY).expect("open");
            path.extend(if path.is_empty() { &b""[..] } else { b"/" });
            path.extend(name);
        }
        let Ok(handle) = sys::handle(at.as_fd()) else { return eprintln!("skipped: no handles") };
        let opened = open(root.as_fd(), &handle, &|| Some(path.clone()), OFlags::RDONLY);
        assert!(opened.is_ok(), "{opened:?}");
        assert_eq!(
            below(root.as_fd(), &[&path[..], b"/x"].concat(), OFlags::PATH).map(drop),
            Err(Errno::NOENT)
        );
    }
}
