//! Features that few programs ask for: birth times, file flags, whiteouts.

use std::fs::{self, File, Permissions};
use std::io;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::path::Path;

use rustix::fs::{
    AtFlags, CWD, IFlags, RenameFlags, StatxFlags, ioctl_getflags, ioctl_setflags, renameat_with, statx,
};
use rustix::io::Errno;
use tempfile::TempDir;
use uvfs_drivers::mirror::{DEFAULT_TTL, Mirror};
use uvfs_fuse::Options;

use crate::Test;
use crate::fixture::{Fixture, Needs, run, sh_as};

pub const TESTS: &[Test] = &[
    ("mirror_tells_when_files_were_made", Needs::Mount, mirror_tells_when_files_were_made),
    ("tmpfs_leaves_whiteouts", Needs::Mount, tmpfs_leaves_whiteouts),
    ("mirror_leaves_whiteouts", Needs::Root, mirror_leaves_whiteouts),
    ("mirror_has_the_hosts_flags", Needs::Root, mirror_has_the_hosts_flags),
    ("mirror_sets_flags_for_their_owner_only", Needs::Root, mirror_sets_flags_for_their_owner_only),
    ("tmpfs_has_no_flags", Needs::Mount, tmpfs_has_no_flags),
];

const USER: u32 = 4321;

fn mirror() -> (Fixture, TempDir) {
    let src = tempfile::tempdir().expect("a temporary directory");
    fs::set_permissions(src.path(), Permissions::from_mode(0o1777)).expect("chmod");
    let mut options = Options::default();
    options.allow_other = rustix::process::geteuid().is_root();
    let mirror = Mirror::new(src.path(), DEFAULT_TTL).expect("a mirror");
    (Fixture::new(mirror, &options), src)
}

/// Seconds and nanoseconds, where it is told.
fn birth(path: &Path) -> Option<(i64, u32)> {
    let stat = statx(CWD, path, AtFlags::SYMLINK_NOFOLLOW, StatxFlags::BTIME).expect("statx");
    (stat.stx_mask & StatxFlags::BTIME.bits() != 0).then_some((stat.stx_btime.tv_sec, stat.stx_btime.tv_nsec))
}

/// The answers of GETATTR and STATX must be the same, and stay so when the file changes.
fn mirror_tells_when_files_were_made() {
    let (mnt, src) = mirror();
    for name in ["file", "dir", "link"] {
        let path = mnt.path(name);
        match name {
            "file" => fs::write(&path, "x").expect("create"),
            "dir" => fs::create_dir(&path).expect("mkdir"),
            _ => std::os::unix::fs::symlink("file", &path).expect("symlink"),
        }
        assert_eq!(birth(&path), birth(&src.path().join(name)), "{name}");
    }
    let asked = mnt.mounted.requests().getattr;
    for _ in 0..10 {
        birth(&mnt.path("file"));
    }
    assert_eq!(mnt.mounted.requests().getattr, asked, "the kernel keeps it");
    let all = StatxFlags::BASIC_STATS | StatxFlags::BTIME;
    let whole = |path: &Path| {
        let s = statx(CWD, path, AtFlags::SYMLINK_NOFOLLOW | AtFlags::STATX_FORCE_SYNC, all).expect("statx");
        let times = [s.stx_atime, s.stx_btime, s.stx_ctime, s.stx_mtime].map(|t| (t.tv_sec, t.tv_nsec));
        let rest = (s.stx_mode, s.stx_nlink, s.stx_uid, s.stx_gid, s.stx_size, s.stx_blocks);
        (times, rest, (s.stx_rdev_major, s.stx_rdev_minor))
    };
    rustix::fs::mknodat(CWD, mnt.path("fifo"), rustix::fs::FileType::Fifo, 0o600.into(), 0).expect("mknod");
    fs::write(mnt.path("file"), "more than before").expect("write");
    for name in ["", "file", "dir", "link", "fifo"] {
        assert_eq!(whole(&mnt.path(name)), whole(&src.path().join(name)), "{name}");
    }
    // Of what is open and removed, as of what has a name.
    let open = File::open(mnt.path("file")).expect("open");
    let before = birth(&mnt.path("file"));
    fs::remove_file(mnt.path("file")).expect("unlink");
    let removed = statx(&open, "", AtFlags::EMPTY_PATH | AtFlags::STATX_FORCE_SYNC, all).expect("statx");
    assert_eq!((removed.stx_nlink, removed.stx_size), (0, 16));
    assert_eq!(Some((removed.stx_btime.tv_sec, removed.stx_btime.tv_nsec)), before);
}

fn leaves_whiteouts(root: &Path) {
    let rename = |from: &str, to: &str, flags| renameat_with(CWD, root.join(from), CWD, root.join(to), flags);
    let is_whiteout = |name: &str| {
        let meta = fs::symlink_metadata(root.join(name)).expect("a whiteout");
        meta.file_type().is_char_device() && meta.rdev() == 0 && meta.mode() & 0o7777 == 0
    };
    fs::create_dir(root.join("dir")).expect("mkdir");
    fs::write(root.join("file"), "x").expect("create");
    rename("file", "dir/moved", RenameFlags::WHITEOUT).expect("rename");
    assert!(is_whiteout("file"));
    assert_eq!(fs::read(root.join("dir/moved")).expect("read"), b"x");
    fs::write(root.join("other"), "y").expect("create");
    rename("other", "dir/moved", RenameFlags::WHITEOUT).expect("over another");
    assert_eq!(fs::read(root.join("dir/moved")).expect("read"), b"y");
    rename("dir", "dir2", RenameFlags::WHITEOUT | RenameFlags::NOREPLACE).expect("a directory");
    assert!(is_whiteout("other") && is_whiteout("dir"));
    assert_eq!(rename("dir2", "other", RenameFlags::WHITEOUT | RenameFlags::NOREPLACE), Err(Errno::EXIST));
    assert_eq!(rename("dir2", "other", RenameFlags::WHITEOUT | RenameFlags::EXCHANGE), Err(Errno::INVAL));
    assert_eq!(rename("dir2", "dir", RenameFlags::WHITEOUT), Err(Errno::NOTDIR));
    let mut names: Vec<_> =
        fs::read_dir(root).expect("readdir").map(|entry| entry.expect("an entry").file_name()).collect();
    names.sort();
    assert_eq!(names, ["dir", "dir2", "file", "other"]);
    for name in ["dir", "file", "other"] {
        fs::remove_file(root.join(name)).expect("unlink");
    }
    fs::remove_dir_all(root.join("dir2")).expect("remove");
    assert_eq!(fs::metadata(root).expect("stat").nlink(), 2);
}

fn tmpfs_leaves_whiteouts() {
    let mnt = Fixture::tmpfs();
    let before = fs::metadata(&*mnt).expect("stat").size();
    leaves_whiteouts(&mnt);
    assert_eq!(fs::metadata(&*mnt).expect("stat").size(), before);
}

fn mirror_leaves_whiteouts() {
    let (mnt, src) = mirror();
    leaves_whiteouts(&mnt);
    assert_eq!(fs::read_dir(src.path()).expect("readdir").count(), 0);
}

fn mirror_has_the_hosts_flags() {
    let (mnt, src) = mirror();
    fs::write(mnt.path("file"), "x").expect("create");
    fs::create_dir(mnt.path("dir")).expect("mkdir");
    let host = File::open(src.path().join("file")).expect("open");
    if let Err(error) = ioctl_getflags(&host) {
        eprintln!("skipped: the host has no file flags here: {error}");
        return;
    }
    for name in ["file", "dir"] {
        let (ours, theirs) = (File::open(mnt.path(name)), File::open(src.path().join(name)));
        let (ours, theirs) = (ours.expect("open"), theirs.expect("open"));
        assert_eq!(ioctl_getflags(&ours), ioctl_getflags(&theirs), "{name}");
        let flags = ioctl_getflags(&ours).expect("flags");
        ioctl_setflags(&ours, flags | IFlags::NODUMP).expect("set flags");
        assert_eq!(ioctl_getflags(&theirs), Ok(flags | IFlags::NODUMP), "{name}");
    }
    let file = File::open(mnt.path("file")).expect("open");
    let flags = ioctl_getflags(&file).expect("flags");
    // As LTP's setxattr03 does.
    for flag in [IFlags::IMMUTABLE, IFlags::APPEND] {
        ioctl_setflags(&file, flags | flag).expect("set flags");
        let refused =
            rustix::fs::setxattr(mnt.path("file"), "user.word", b"x", rustix::fs::XattrFlags::empty());
        let written = fs::write(mnt.path("file"), "y").map_err(|error| error.kind());
        let unlinked = fs::remove_file(mnt.path("file")).map_err(|error| error.kind());
        ioctl_setflags(&file, flags).expect("set flags");
        assert_eq!(refused, Err(Errno::PERM));
        assert_eq!(
            (written, unlinked),
            (Err(io::ErrorKind::PermissionDenied), Err(io::ErrorKind::PermissionDenied))
        );
    }
    let extended = |file: &File| crate::sys::fsxattr(file).expect("FS_IOC_FSGETXATTR");
    assert_eq!(extended(&file), extended(&host));
    if Path::new("/usr/bin/chattr").exists() {
        let path = mnt.path("file");
        run("chattr", &["+A", path.to_str().expect("a path")]).expect("chattr");
        let listed = run("lsattr", &[path.to_str().expect("a path")]).expect("lsattr");
        assert!(listed.split(' ').next().is_some_and(|flags| flags.contains('A')), "{listed}");
    }
}

/// Not by others, and not what needs a capability.
fn mirror_sets_flags_for_their_owner_only() {
    let (mnt, src) = mirror();
    fs::write(mnt.path("roots"), "x").expect("create");
    if !Path::new("/usr/bin/chattr").exists()
        || File::open(src.path().join("roots")).is_ok_and(|f| ioctl_getflags(f).is_err())
    {
        eprintln!("skipped: no chattr, or the host has no file flags here");
        return;
    }
    let as_user = |script: &str| sh_as(USER, &mnt, script);
    as_user("echo x > theirs; chattr +d theirs; lsattr theirs | grep -q d").expect("the owner may");
    for refused in ["chattr +d roots", "chattr +i theirs", "chattr +a theirs"] {
        let said = as_user(refused).expect_err(refused);
        assert!(said.contains("not permitted"), "{refused}: {said}");
    }
    let roots = File::open(src.path().join("roots")).expect("open");
    assert!(!ioctl_getflags(&roots).expect("flags").contains(IFlags::NODUMP));
}

fn tmpfs_has_no_flags() {
    let mnt = Fixture::tmpfs();
    fs::write(mnt.path("file"), "x").expect("create");
    let file = File::open(mnt.path("file")).expect("open");
    assert_eq!(ioctl_getflags(&file), Err(Errno::NOTTY));
    assert_eq!(ioctl_setflags(&file, IFlags::IMMUTABLE), Err(Errno::NOTTY));
    assert_eq!(birth(&mnt.path("file")), None);
}
