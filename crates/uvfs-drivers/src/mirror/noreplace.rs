//! Renaming to a free name on file systems without a no-replace rename.
//!
//! Some (NFS, FUSE servers without flags) have no RENAME_NOREPLACE. Checking that the name is free and then renaming
//! would replace a file that another process makes in between. So the name is claimed first: an empty file or
//! directory without permissions is made, which fails if the name exists, and the rename replaces it. Other processes
//! may see it meanwhile. If the rename fails, it is removed, unless another file has its name by then.

use std::ffi::OsStr;
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;

use rustix::fs::{AtFlags, Mode, OFlags, mkdirat, openat, renameat, unlinkat};
use uvfs::types::Result;

use super::identity::{self, Handles, Identity};
use super::reach::open_below;

/// Renames `from`, a directory or another file, to `to`.
///
/// # Errors
/// EEXIST if the name exists, whose file then stays as it is; and the host's errors.
pub(super) fn rename_to_free<F: AsFd, T: AsFd>(from: (F, &[u8]), to: (T, &[u8]), is_dir: bool) -> Result<()> {
    let claim = claim(&to.0, to.1, is_dir)?;
    let renamed = renameat(&from.0, OsStr::from_bytes(from.1), &to.0, OsStr::from_bytes(to.1));
    if renamed.is_err() && open_below(&to.0, to.1, OFlags::empty()).is_ok_and(|fd| is(&claim, fd)) {
        remove(&to.0, to.1, is_dir);
    }
    renamed
}

fn is(claim: &Identity, fd: impl AsFd) -> bool {
    identity::is(claim, fd).unwrap_or(false)
}

fn claim(dir: impl AsFd, name: &[u8], is_dir: bool) -> Result<Identity> {
    let path = OsStr::from_bytes(name);
    let made = if is_dir {
        mkdirat(&dir, path, Mode::empty())?;
        open_below(&dir, name, OFlags::DIRECTORY)
    } else {
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        Ok(openat(&dir, path, flags, Mode::empty())?)
    };
    let look = made.and_then(|fd| Handles::of(&fd).look(fd));
    if look.is_err() {
        // This call made it a moment ago, and it would keep the name for good.
        remove(&dir, name, is_dir);
    }
    Ok(look?.id)
}

/// If that fails, another file has the name, or the file system is read-only by now.
fn remove(dir: impl AsFd, name: &[u8], is_dir: bool) {
    let flags = if is_dir { AtFlags::REMOVEDIR } else { AtFlags::empty() };
    let _ = unlinkat(dir, OsStr::from_bytes(name), flags);
}

#[cfg(test)]
mod tests {
    use std::fs::{self, File};
    use std::io::Write;
    use std::path::Path;
    use std::sync::Barrier;
    use std::thread;

    use uvfs::types::Errno;

    use super::*;

    fn rename(dir: &Path, is_dir: bool) -> Result<()> {
        let at = File::open(dir).expect("a directory");
        rename_to_free((&at, b"from"), (&at, b"to"), is_dir)
    }

    #[test]
    fn what_has_the_name_stays() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = |name: &str| dir.path().join(name);
        fs::write(path("from"), "mine").unwrap();
        fs::write(path("to"), "theirs").unwrap();
        assert_eq!(rename(dir.path(), false), Err(Errno::EXIST));
        assert_eq!(fs::read(path("to")).unwrap(), b"theirs");
        fs::remove_file(path("to")).unwrap();
        assert_eq!(rename(dir.path(), false), Ok(()));
        assert_eq!((fs::read(path("to")).unwrap(), path("from").exists()), (b"mine".to_vec(), false));
        fs::create_dir(path("from")).unwrap();
        assert_eq!(rename(dir.path(), true), Err(Errno::EXIST));
        fs::remove_file(path("to")).unwrap();
        fs::write(path("from/inside"), "").unwrap();
        assert_eq!(rename(dir.path(), true), Ok(()));
        assert!(path("to/inside").exists());
    }

    #[test]
    fn nothing_is_left_of_a_claim_that_was_for_nothing() {
        let dir = tempfile::tempdir().expect("a directory");
        for is_dir in [false, true] {
            assert_eq!(rename(dir.path(), is_dir), Err(Errno::NOENT));
            assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
        }
    }

    /// Another process makes a file of the new name meanwhile: one of the two comes first, and the other gets
    /// the error.
    #[test]
    fn of_two_who_want_a_name_one_gets_it() {
        let dir = tempfile::tempdir().expect("a directory");
        let (from, to) = (dir.path().join("from"), dir.path().join("to"));
        for _ in 0..200 {
            fs::write(&from, "mine").unwrap();
            let start = Barrier::new(2);
            let (renamed, made) = thread::scope(|scope| {
                let other = scope.spawn(|| {
                    start.wait();
                    File::create_new(&to).and_then(|mut file| file.write_all(b"theirs")).is_ok()
                });
                start.wait();
                (rename(dir.path(), false).is_ok(), other.join().expect("no panic"))
            });
            assert_ne!(renamed, made, "one of the two");
            assert_eq!(fs::read(&to).unwrap(), if renamed { &b"mine"[..] } else { b"theirs" });
            fs::remove_file(&to).unwrap();
        }
    }
}
