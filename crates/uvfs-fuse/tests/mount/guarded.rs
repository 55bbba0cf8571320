//! Immutable and append-only files and directories of a mirror's source: each call has the host's result.

use std::fs::{self, File, OpenOptions, Permissions};
use std::io::Write;
use std::os::unix::fs::{FileExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fs::{
    AtFlags, CWD, FallocateFlags, FileType, IFlags, Mode, OFlags, RenameFlags, Timestamps, XattrFlags,
};
use rustix::io::Errno;
use tempfile::TempDir;
use uvfs_drivers::mirror::{DEFAULT_TTL, Mirror};
use uvfs_fuse::Options;

use crate::Test;
use crate::fixture::{Fixture, Needs};
use crate::sys::Shared;

pub const TESTS: &[Test] = &[
    ("mirror_guards_files_as_the_host_does", Needs::Root, mirror_guards_files_as_the_host_does),
    ("mirror_appends_to_append_only_files", Needs::Root, mirror_appends_to_append_only_files),
    ("mirror_lends_no_append_only_file", Needs::Root, mirror_lends_no_append_only_file),
];

type Outcome = rustix::io::Result<()>;
type Call = fn(&Path) -> Outcome;

fn errno(error: std::io::Error) -> Errno {
    Errno::from_io_error(&error).expect("an errno")
}

fn open(path: PathBuf, flags: OFlags) -> Outcome {
    rustix::fs::open(path, flags | OFlags::CLOEXEC, Mode::from_raw_mode(0o644)).map(drop)
}

fn rename(from: PathBuf, to: PathBuf, flags: RenameFlags) -> Outcome {
    rustix::fs::renameat_with(CWD, from, CWD, to, flags)
}

fn link(from: PathBuf, to: PathBuf) -> Outcome {
    rustix::fs::linkat(CWD, from, CWD, to, AtFlags::empty())
}

/// Opens `file` for appending and makes one call with it.
fn appender(path: &Path, call: impl FnOnce(&File) -> Outcome) -> Outcome {
    let file = OpenOptions::new().read(true).append(true).open(path.join("file")).map_err(errno)?;
    call(&file)
}

/// Each is given a directory with a `file`, a directory `dir` that has a `leaf`, a `link` and a directory `sub`, and a free
/// file `other`. `file` and `dir` have the flag. No call removes a directory as a file or a file as a directory: the kernel
/// refuses that before it asks a mount, whose flags it does not know (docs/semantics-mirror.md).
const CALLS: &[(&str, Call)] = &[
    ("open to read", |p| open(p.join("file"), OFlags::RDONLY)),
    ("open to write", |p| open(p.join("file"), OFlags::WRONLY)),
    ("open to read and write", |p| open(p.join("file"), OFlags::RDWR)),
    ("open to append", |p| open(p.join("file"), OFlags::WRONLY | OFlags::APPEND)),
    ("open to read and append", |p| open(p.join("file"), OFlags::RDWR | OFlags::APPEND)),
    ("open to read with O_APPEND", |p| open(p.join("file"), OFlags::RDONLY | OFlags::APPEND)),
    ("open to append, O_CREAT", |p| open(p.join("file"), OFlags::WRONLY | OFlags::APPEND | OFlags::CREATE)),
    ("open to write, O_CREAT", |p| open(p.join("file"), OFlags::WRONLY | OFlags::CREATE)),
    ("open with O_EXCL", |p| open(p.join("file"), OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL)),
    ("open to write, O_TRUNC", |p| open(p.join("file"), OFlags::WRONLY | OFlags::TRUNC)),
    ("open to append, O_TRUNC", |p| open(p.join("file"), OFlags::WRONLY | OFlags::APPEND | OFlags::TRUNC)),
    ("append", |p| appender(p, |mut file| file.write_all(b"more").map_err(errno))),
    ("append at an offset", |p| appender(p, |file| file.write_all_at(b"more", 0).map_err(errno))),
    ("fsync", |p| appender(p, |file| rustix::fs::fsync(file))),
    ("ftruncate", |p| appender(p, |file| rustix::fs::ftruncate(file, 1))),
    ("ftruncate to grow", |p| appender(p, |file| rustix::fs::ftruncate(file, 100))),
    ("fallocate", |p| appender(p, |file| rustix::fs::fallocate(file, FallocateFlags::empty(), 0, 9000))),
    ("fallocate, size kept", |p| {
        appender(p, |file| rustix::fs::fallocate(file, FallocateFlags::KEEP_SIZE, 0, 9000))
    }),
    ("punch a hole", |p| {
        let how = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        appender(p, |file| rustix::fs::fallocate(file, how, 0, 1))
    }),
    ("fchmod", |p| appender(p, |file| rustix::fs::fchmod(file, Mode::from_raw_mode(0o600)))),
    ("futimens", |p| appender(p, |file| rustix::fs::futimens(file, &times(false)))),
    ("truncate", |p| {
        OpenOptions::new().write(true).open(p.join("file")).and_then(|f| f.set_len(0)).map_err(errno)
    }),
    ("truncate by name", |p| crate::sys::truncate(&p.join("file"), 0)),
    ("chmod", |p| rustix::fs::chmod(p.join("file"), Mode::from_raw_mode(0o600))),
    ("chown", |p| rustix::fs::chown(p.join("file"), None, Some(rustix::fs::Gid::from_raw(7)))),
    ("utimes now", |p| rustix::fs::utimensat(CWD, p.join("file"), &times(true), AtFlags::empty())),
    ("utimes", |p| rustix::fs::utimensat(CWD, p.join("file"), &times(false), AtFlags::empty())),
    ("setxattr", |p| rustix::fs::setxattr(p.join("file"), "user.new", b"x", XattrFlags::empty())),
    ("removexattr", |p| rustix::fs::removexattr(p.join("file"), "user.old")),
    ("removexattr of none", |p| rustix::fs::removexattr(p.join("file"), "user.none")),
    ("unlink", |p| rustix::fs::unlink(p.join("file"))),
    ("link", |p| link(p.join("file"), p.join("new"))),
    ("rename", |p| rename(p.join("file"), p.join("new"), RenameFlags::empty())),
    ("rename over", |p| rename(p.join("other"), p.join("file"), RenameFlags::empty())),
    ("rename, no replace", |p| rename(p.join("other"), p.join("file"), RenameFlags::NOREPLACE)),
    ("exchange", |p| rename(p.join("other"), p.join("file"), RenameFlags::EXCHANGE)),
    ("create in it", |p| open(p.join("dir/new"), OFlags::WRONLY | OFlags::CREATE)),
    ("create in it, O_EXCL", |p| open(p.join("dir/new"), OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL)),
    ("O_TMPFILE in it", |p| open(p.join("dir"), OFlags::WRONLY | OFlags::TMPFILE)),
    ("open in it", |p| open(p.join("dir/leaf"), OFlags::WRONLY)),
    ("O_CREAT of what is in it", |p| open(p.join("dir/leaf"), OFlags::WRONLY | OFlags::CREATE)),
    ("O_TRUNC of what is in it", |p| open(p.join("dir/leaf"), OFlags::WRONLY | OFlags::TRUNC)),
    ("O_EXCL of what is in it", |p| open(p.join("dir/leaf"), OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL)),
    ("mkdir in it", |p| rustix::fs::mkdir(p.join("dir/new"), Mode::RWXU)),
    ("mkdir of what is in it", |p| rustix::fs::mkdir(p.join("dir/sub"), Mode::RWXU)),
    ("mknod in it", |p| rustix::fs::mknodat(CWD, p.join("dir/new"), FileType::Fifo, Mode::RWXU, 0)),
    ("symlink in it", |p| rustix::fs::symlink("leaf", p.join("dir/new"))),
    ("link into it", |p| link(p.join("other"), p.join("dir/new"))),
    ("link out of it", |p| link(p.join("dir/leaf"), p.join("new"))),
    ("unlink in it", |p| rustix::fs::unlink(p.join("dir/leaf"))),
    ("unlink of a symlink in it", |p| rustix::fs::unlink(p.join("dir/link"))),
    ("unlink of none in it", |p| rustix::fs::unlink(p.join("dir/none"))),
    ("rmdir in it", |p| rustix::fs::rmdir(p.join("dir/sub"))),
    ("rmdir of none in it", |p| rustix::fs::rmdir(p.join("dir/none"))),
    ("rmdir of one that is full in it", |p| rustix::fs::rmdir(p.join("dir/full"))),
    ("rmdir", |p| rustix::fs::rmdir(p.join("dir"))),
    ("rmdir of an empty one", |p| rustix::fs::rmdir(p.join("empty"))),
    ("rename over one that is full", |p| rename(p.join("free"), p.join("dir"), RenameFlags::empty())),
    ("rename over one that is full in it", |p| {
        rename(p.join("free"), p.join("dir/full"), RenameFlags::empty())
    }),
    ("rename of it", |p| rename(p.join("dir"), p.join("new"), RenameFlags::empty())),
    ("rename over it", |p| rename(p.join("free"), p.join("empty"), RenameFlags::empty())),
    ("rename into it", |p| rename(p.join("other"), p.join("dir/new"), RenameFlags::empty())),
    ("rename into it, no replace", |p| rename(p.join("other"), p.join("dir/new"), RenameFlags::NOREPLACE)),
    ("rename over what is in it", |p| rename(p.join("other"), p.join("dir/leaf"), RenameFlags::empty())),
    ("rename out of it", |p| rename(p.join("dir/leaf"), p.join("new"), RenameFlags::empty())),
    ("rename out of it, whiteout", |p| rename(p.join("dir/leaf"), p.join("new"), RenameFlags::WHITEOUT)),
    ("rename in it", |p| rename(p.join("dir/leaf"), p.join("dir/new"), RenameFlags::empty())),
    ("exchange in it", |p| rename(p.join("dir/leaf"), p.join("dir/link"), RenameFlags::EXCHANGE)),
    ("exchange with the outside", |p| rename(p.join("dir/leaf"), p.join("other"), RenameFlags::EXCHANGE)),
    ("chmod of it", |p| rustix::fs::chmod(p.join("dir"), Mode::from_raw_mode(0o700))),
    ("chmod of what is in it", |p| rustix::fs::chmod(p.join("dir/leaf"), Mode::from_raw_mode(0o600))),
    ("chown of it", |p| rustix::fs::chown(p.join("dir"), None, Some(rustix::fs::Gid::from_raw(7)))),
    ("utimes of it, now", |p| rustix::fs::utimensat(CWD, p.join("dir"), &times(true), AtFlags::empty())),
    ("utimes of it", |p| rustix::fs::utimensat(CWD, p.join("dir"), &times(false), AtFlags::empty())),
    ("setxattr of it", |p| rustix::fs::setxattr(p.join("dir"), "user.new", b"x", XattrFlags::empty())),
    ("readdir", |p| fs::read_dir(p.join("dir")).map(drop).map_err(errno)),
];

fn times(now: bool) -> Timestamps {
    let nanoseconds = if now { rustix::fs::UTIME_NOW } else { 5 };
    let time = rustix::fs::Timespec { tv_sec: 1000, tv_nsec: nanoseconds };
    Timestamps { last_access: time, last_modification: time }
}

/// Adds the flag to what is at the path until this is dropped.
struct Flagged(File, IFlags);

impl Flagged {
    /// `None`, with a message, where the host has no flags.
    fn new(path: &Path, flag: IFlags) -> Option<Self> {
        let file = File::open(path).expect("open");
        let set = rustix::fs::ioctl_getflags(&file)
            .and_then(|flags| rustix::fs::ioctl_setflags(&file, flags | flag).map(|()| flags));
        match set {
            Ok(flags) => Some(Self(file, flags)),
            Err(error) => {
                eprintln!("skipped: the host has no file flags here: {error}");
                None
            }
        }
    }
}

impl Drop for Flagged {
    fn drop(&mut self) {
        let _ = rustix::fs::ioctl_setflags(&self.0, self.1);
    }
}

fn mirror(passthrough: bool) -> (Fixture, TempDir) {
    let src = tempfile::tempdir().expect("a temporary directory");
    fs::set_permissions(src.path(), Permissions::from_mode(0o1777)).expect("chmod");
    let mut options = Options::default();
    (options.allow_other, options.passthrough) = (true, passthrough);
    let ttl = if passthrough { Duration::from_secs(3600) } else { DEFAULT_TTL };
    let mirror = Mirror::new(src.path(), ttl).expect("a mirror");
    (Fixture::new(mirror, &options), src)
}

/// The tree that each of [`CALLS`] works on.
fn plant(path: &Path) {
    for dir in ["dir/sub", "dir/full/leaf", "empty", "free"] {
        fs::create_dir_all(path.join(dir)).expect("mkdir");
    }
    for file in ["file", "dir/leaf", "other"] {
        fs::write(path.join(file), "text").expect("create");
    }
    std::os::unix::fs::symlink("leaf", path.join("dir/link")).expect("symlink");
    // Where there are none, the calls fail in the same way on both sides.
    let _ = rustix::fs::setxattr(path.join("file"), "user.old", b"x", XattrFlags::empty());
}

/// Looks at all that is below a directory, so that the mount's caches hold it.
fn look_at_all(dir: &Path) {
    for entry in fs::read_dir(dir).expect("readdir") {
        let path = entry.expect("an entry").path();
        if fs::symlink_metadata(&path).expect("stat").is_dir() {
            look_at_all(&path);
        }
    }
}

fn mirror_guards_files_as_the_host_does() {
    let (mnt, src) = mirror(false);
    let mut different = Vec::new();
    let flags = [(IFlags::IMMUTABLE, "immutable"), (IFlags::APPEND, "append-only")];
    for (flag, word, looked) in
        flags.iter().flat_map(|&(flag, word)| [(flag, word, "new"), (flag, word, "known")])
    {
        for (nth, (name, call)) in CALLS.iter().enumerate() {
            let tree = |side: &str| format!("{side} {word} {looked} {nth}");
            let outcome = |root: &Path, side: &str| {
                let below = src.path().join(tree(side));
                plant(&below);
                let flagged = ["file", "dir", "empty"].map(|name| Flagged::new(&below.join(name), flag));
                if looked == "known" {
                    look_at_all(&root.join(tree(side)));
                }
                flagged.iter().all(Option::is_some).then(|| call(&root.join(tree(side))))
            };
            let Some(theirs) = outcome(src.path(), "host") else { return };
            let ours = outcome(&mnt, "mount").expect("flags");
            if ours != theirs {
                different.push(format!("{word}, {looked}: {name}: {ours:?}, on the host {theirs:?}"));
            }
            let text = |side: &str| fs::read(src.path().join(tree(side)).join("file")).ok();
            if text("mount") != text("host") {
                different.push(format!("{word}, {looked}: {name}: the contents"));
            }
        }
    }
    assert!(different.is_empty(), "{different:#?}");
}

/// Two appenders, one on the host, and what one must not do with an append-only file.
fn mirror_appends_to_append_only_files() {
    let (mnt, src) = mirror(false);
    let (ours, theirs) = (mnt.path("file"), src.path().join("file"));
    fs::write(&theirs, "first ").expect("create");
    let Some(_flagged) = Flagged::new(&theirs, IFlags::APPEND) else { return };
    let append = |path: &Path| OpenOptions::new().read(true).append(true).open(path).expect("open");
    let (mut mine, mut other) = (append(&ours), append(&theirs));
    mine.write_all(b"mount ").expect("append");
    other.write_all(b"host ").expect("append");
    mine.write_all(b"mount again").expect("append");
    assert_eq!(fs::read(&theirs).expect("read"), b"first mount host mount again");
    assert_eq!(fs::read(&ours).expect("read"), b"first mount host mount again");
    let direct = OpenOptions::new().append(true).custom_flags(libc::O_DIRECT).open(&ours).map(drop);
    assert_eq!(direct.map_err(errno), Ok(()));
    // The kernel does not know the flag, so these calls reach the mirror. It changes nothing that is there.
    rustix::fs::fcntl_setfl(&mine, OFlags::empty()).expect("fcntl");
    assert_eq!(mine.write_all_at(b"FIRST", 0).map_err(errno), Err(Errno::PERM));
    let mut map = Shared::map(&mine, 5);
    map.write(0, b"FIRST");
    drop((map, mine));
    assert_eq!(fs::read(&theirs).expect("read"), b"first mount host mount again");
}

/// A kernel that has an append-only file could change all of it through a mapping.
fn mirror_lends_no_append_only_file() {
    let (mnt, src) = mirror(true);
    if !mnt.mounted.passthrough().agreed {
        eprintln!("skipped: this kernel has no FUSE passthrough, or not for $TMPDIR");
        return;
    }
    let theirs = src.path().join("file");
    fs::write(&theirs, vec![b'x'; 1 << 20]).expect("create");
    let Some(_flagged) = Flagged::new(&theirs, IFlags::APPEND) else { return };
    let reader = File::open(mnt.path("file")).expect("open");
    let mut appender = OpenOptions::new().read(true).append(true).open(mnt.path("file")).expect("open");
    assert_eq!(mnt.mounted.passthrough().opens, 0);
    appender.write_all(b"more").expect("append");
    let mut text = [0; 8];
    assert_eq!(reader.read_at(&mut text, (1 << 20) - 2).expect("read"), 6);
    assert_eq!(&text[..6], b"xxmore");
}
