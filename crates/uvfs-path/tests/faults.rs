//! A back end that errs: listings that fail in the middle, files that change their type, errors of lookups.

use std::ffi::OsStr;
use std::num::NonZeroU32;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::{Duration, SystemTime};

use fuse3::path::prelude::*;
use fuse3::raw::{Filesystem, Request};
use fuse3::{Errno, Result};
use futures_util::stream::{self, Stream};
use futures_util::{FutureExt, StreamExt};
use parking_lot::Mutex;
use uvfs_path::{PathFs, PathOptions};

const ROOT: u64 = 1;

fn req() -> Request {
    Request::default()
}

fn attr(kind: FileType) -> FileAttr {
    let now = SystemTime::now();
    FileAttr {
        size: 0,
        blocks: 0,
        atime: now,
        mtime: now,
        ctime: now,
        kind,
        perm: 0o755,
        nlink: 1,
        uid: 0,
        gid: 0,
        rdev: 0,
        blksize: 4096,
    }
}

const TTL: Duration = Duration::from_secs(60);

#[derive(Default)]
struct Faulty {
    /// Everything is a directory.
    dirs: AtomicBool,
    /// The errno of lookups, if not 0.
    errno: AtomicU64,
    lookups: AtomicU64,
    /// Changes are made, and never answered.
    hangs: AtomicBool,
    released: Mutex<Vec<(String, u64)>>,
}

impl Faulty {
    fn attr(&self) -> FileAttr {
        attr(if self.dirs.load(Relaxed) { FileType::Directory } else { FileType::RegularFile })
    }
}

impl PathFilesystem for Faulty {
    async fn init(&self, _: Request) -> Result<ReplyInit> {
        Ok(ReplyInit::new(NonZeroU32::MIN))
    }

    async fn destroy(&self, _: Request) {}

    async fn lookup(&self, _: Request, _: &OsStr, _: &OsStr) -> Result<ReplyEntry> {
        self.lookups.fetch_add(1, Relaxed);
        match self.errno.load(Relaxed) {
            0 => Ok(ReplyEntry { ttl: TTL, attr: self.attr() }),
            errno => Err(Errno::from(errno as i32)),
        }
    }

    async fn getattr(&self, _: Request, _: Option<&OsStr>, _: Option<u64>, _: u32) -> Result<ReplyAttr> {
        Ok(ReplyAttr { ttl: TTL, attr: self.attr() })
    }

    async fn setattr(
        &self,
        _: Request,
        _: Option<&OsStr>,
        _: Option<u64>,
        set: SetAttr,
    ) -> Result<ReplyAttr> {
        let perm = set.mode.unwrap_or(0o755) as u16;
        Ok(ReplyAttr { ttl: TTL, attr: FileAttr { perm, ..self.attr() } })
    }

    async fn rmdir(&self, _: Request, _: &OsStr, _: &OsStr) -> Result<()> {
        if self.hangs.load(Relaxed) {
            std::future::pending::<()>().await;
        }
        Ok(())
    }

    #[cfg(feature = "file-lock")]
    async fn getlk(
        &self,
        _: Request,
        _: Option<&OsStr>,
        _: u64,
        _: u64,
        _: u64,
        _: u64,
        _: u32,
        _: u32,
    ) -> Result<ReplyLock> {
        Err(libc::ENOLCK.into())
    }

    #[cfg(feature = "file-lock")]
    async fn setlk(
        &self,
        _: Request,
        _: Option<&OsStr>,
        _: u64,
        _: u64,
        _: u64,
        _: u64,
        _: u32,
        _: u32,
        _: bool,
    ) -> Result<()> {
        Err(libc::ENOLCK.into())
    }

    async fn link(&self, _: Request, _: &OsStr, _: &OsStr, _: &OsStr) -> Result<ReplyEntry> {
        Ok(ReplyEntry { ttl: TTL, attr: self.attr() })
    }

    async fn opendir(&self, _: Request, _: &OsStr, _: u32) -> Result<ReplyOpen> {
        Ok(ReplyOpen { fh: 17, flags: 0 })
    }

    async fn releasedir(&self, _: Request, path: &OsStr, fh: u64, _: u32) -> Result<()> {
        self.released.lock().push((path.to_str().unwrap().into(), fh));
        Ok(())
    }

    async fn readdirplus<'a>(
        &'a self,
        _: Request,
        _: &'a OsStr,
        _: u64,
        _: u64,
        _: u64,
    ) -> Result<ReplyDirectoryPlus<impl Stream<Item = Result<DirectoryEntryPlus>> + Send + 'a>> {
        let entry = |i: i64| DirectoryEntryPlus {
            kind: FileType::RegularFile,
            name: format!("entry{i}").into(),
            offset: i,
            attr: attr(FileType::RegularFile),
            entry_ttl: TTL,
            attr_ttl: TTL,
        };
        let entries = (1..=3).map(move |i| Ok(entry(i))).chain([Err(libc::EIO.into())]);
        Ok(ReplyDirectoryPlus { entries: stream::iter(entries) })
    }
}

fn world() -> PathFs<Faulty> {
    PathFs::new(Faulty::default(), PathOptions::default()).unwrap()
}

fn code(error: Errno) -> i32 {
    i32::from(error).abs()
}

#[tokio::test]
async fn a_listing_that_fails_takes_its_lookups_back() {
    let fs = world();
    let mut entries = Box::pin(fs.readdirplus(req(), ROOT, 0, 0, 0).await.unwrap().entries);
    for _ in 0..3 {
        assert_ne!(entries.next().await.unwrap().unwrap().attr.ino, 0);
    }
    assert_eq!(code(entries.next().await.unwrap().unwrap_err()), libc::EIO);
    assert!(entries.next().await.is_none());
    drop(entries);
    // fuse3 sends the error and none of the entries.
    assert_eq!(fs.handle().lookups(), 0);
    // And the directory is not complete.
    fs.lookup(req(), ROOT, OsStr::new("entry4")).await.unwrap();
    assert_eq!(fs.back_end().lookups.load(Relaxed), 1);
}

#[tokio::test]
async fn errors_are_passed_on_and_not_remembered() {
    let fs = world();
    for (calls, errno) in [libc::EIO, libc::EACCES, libc::ENOMEM].into_iter().enumerate() {
        fs.back_end().errno.store(errno as u64, Relaxed);
        let error = fs.lookup(req(), ROOT, OsStr::new("a")).await.unwrap_err();
        assert_eq!(code(error), errno);
        // The back end's own shortage of memory is no reason to ask it again.
        assert_eq!(fs.back_end().lookups.load(Relaxed), calls as u64 + 1);
    }
    fs.back_end().errno.store(0, Relaxed);
    fs.lookup(req(), ROOT, OsStr::new("a")).await.unwrap();
    for name in ["x".repeat(256), "x".repeat(4000)] {
        assert_eq!(code(fs.lookup(req(), ROOT, OsStr::new(&name)).await.unwrap_err()), libc::ENAMETOOLONG);
        let renamed = fs.rename(req(), ROOT, OsStr::new("a"), ROOT, OsStr::new(&name)).await;
        assert_eq!(code(renamed.unwrap_err()), libc::ENAMETOOLONG);
    }
    assert_eq!(code(fs.getattr(req(), 12_345_678, None, 0).await.unwrap_err()), libc::ESTALE);
}

#[tokio::test]
async fn a_file_that_has_changed_its_type_is_another_file() {
    let fs = world();
    let id = fs.lookup(req(), ROOT, OsStr::new("a")).await.unwrap().attr.ino;
    fs.back_end().dirs.store(true, Relaxed);
    let set = SetAttr { mode: Some(0o700), ..SetAttr::default() };
    assert_eq!(code(fs.setattr(req(), id, None, set).await.unwrap_err()), libc::ESTALE);
    let found = fs.lookup(req(), ROOT, OsStr::new("a")).await.unwrap().attr;
    assert_eq!((found.kind, found.ino != id), (FileType::Directory, true));
    // A directory has one name, whatever the back end would say.
    assert_eq!(code(fs.link(req(), found.ino, ROOT, OsStr::new("b")).await.unwrap_err()), libc::EPERM);
}

#[tokio::test]
async fn a_cancelled_change_is_asked_about() {
    let fs = world();
    fs.back_end().dirs.store(true, Relaxed);
    fs.lookup(req(), ROOT, OsStr::new("d")).await.unwrap();
    fs.back_end().hangs.store(true, Relaxed);
    assert!(fs.rmdir(req(), ROOT, OsStr::new("d")).now_or_never().is_none());
    // Perhaps it was removed before the call was cancelled.
    fs.back_end().errno.store(libc::ENOENT as u64, Relaxed);
    assert_eq!(fs.lookup(req(), ROOT, OsStr::new("d")).await.unwrap().attr.ino, 0);
    assert_eq!(fs.back_end().lookups.load(Relaxed), 2);
}

#[tokio::test]
async fn attributes_that_were_set_are_known() {
    let fs = world();
    let id = fs.lookup(req(), ROOT, OsStr::new("a")).await.unwrap().attr.ino;
    let set = SetAttr { mode: Some(0o640), ..SetAttr::default() };
    assert_eq!(fs.setattr(req(), id, None, set).await.unwrap().attr.perm, 0o640);
    // The back end would say 0o755.
    assert_eq!(fs.getattr(req(), id, None, 0).await.unwrap().attr.perm, 0o640);
    assert_eq!(fs.lookup(req(), ROOT, OsStr::new("a")).await.unwrap().attr.perm, 0o640);
    assert_eq!(fs.back_end().lookups.load(Relaxed), 1);
}

#[tokio::test]
async fn a_handle_of_a_removed_directory_is_released() {
    let fs = world();
    fs.back_end().dirs.store(true, Relaxed);
    let id = fs.lookup(req(), ROOT, OsStr::new("d")).await.unwrap().attr.ino;
    for removed in [false, true] {
        let open = fs.opendir(req(), id, 0).await.unwrap();
        if removed {
            fs.rmdir(req(), ROOT, OsStr::new("d")).await.unwrap();
        }
        fs.releasedir(req(), id, open.fh, 0).await.unwrap();
    }
    assert_eq!(*fs.back_end().released.lock(), [("/d".into(), 17), (String::new(), 17)]);
}
