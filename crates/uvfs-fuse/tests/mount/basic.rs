//! Basic functions of every file system, through the kernel.

use std::fs::{self, File, OpenOptions, Permissions};
use std::io::{ErrorKind, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt, OpenOptionsExt, PermissionsExt, symlink};
use std::process::Command;

use rustix::fs::{
    AtFlags, CWD, FallocateFlags, FileType, FlockOperation, Mode, OFlags, RenameFlags, Timespec, Timestamps,
    XattrFlags,
};

use crate::Test;
use crate::fixture::{Fixture, Needs};
use crate::sys::Shared;

pub const TESTS: &[Test] = &[
    ("files_are_written_and_read", Needs::Mount, files_are_written_and_read),
    ("names_are_made_and_removed", Needs::Mount, names_are_made_and_removed),
    ("rename_has_its_flags", Needs::Mount, rename_has_its_flags),
    ("nodes_of_all_types", Needs::Mount, nodes_of_all_types),
    ("a_removed_file_stays_usable", Needs::Mount, a_removed_file_stays_usable),
    ("two_appenders_lose_nothing", Needs::Mount, two_appenders_lose_nothing),
    ("shared_mappings_and_writes_agree", Needs::Mount, shared_mappings_and_writes_agree),
    ("direct_io_bypasses_the_page_cache", Needs::Mount, direct_io_bypasses_the_page_cache),
    ("holes_are_found_made_and_filled", Needs::Mount, holes_are_found_made_and_filled),
    ("extended_attributes", Needs::Mount, extended_attributes),
    ("times_before_1970_and_now", Needs::Mount, times_before_1970_and_now),
    ("a_running_program_is_not_cut", Needs::Mount, a_running_program_is_not_cut),
    ("opening_with_o_trunc_touches", Needs::Mount, opening_with_o_trunc_touches),
    ("statfs_has_figures", Needs::Mount, statfs_has_figures),
    ("locks_are_the_kernels", Needs::Mount, locks_are_the_kernels),
    ("a_negative_entry_does_not_hide_a_new_name", Needs::Mount, a_negative_entry_does_not_hide_a_new_name),
];

fn files_are_written_and_read() {
    let mnt = Fixture::tmpfs();
    let path = mnt.path("file");
    let data: Vec<u8> = (0..3_000_000u32).map(|i| (i % 251) as u8).collect();
    fs::write(&path, &data).expect("write");
    assert_eq!(fs::read(&path).expect("read"), data);
    let meta = fs::metadata(&path).expect("stat");
    assert_eq!((meta.len(), meta.nlink(), meta.blksize()), (data.len() as u64, 1, 4096));

    let mut file = OpenOptions::new().read(true).write(true).open(&path).expect("open");
    file.seek(SeekFrom::Start(1_000_000)).expect("seek");
    file.write_all(b"over").expect("overwrite");
    file.set_len(1_000_004).expect("truncate");
    file.sync_all().expect("fsync");
    let mut read = Vec::new();
    file.rewind().expect("rewind");
    file.read_to_end(&mut read).expect("read again");
    assert_eq!(read.len(), 1_000_004);
    assert_eq!(&read[1_000_000..], b"over");
    assert_eq!(read[..1_000_000], data[..1_000_000]);

    File::create(&path).expect("open with O_TRUNC");
    assert_eq!(fs::metadata(&path).expect("stat").len(), 0);
    assert_eq!(fs::read(&path).expect("read"), b"");
}

fn names_are_made_and_removed() {
    let mnt = Fixture::tmpfs();
    fs::create_dir_all(mnt.path("a/b/c")).expect("mkdir");
    fs::write(mnt.path("a/b/c/f"), "x").expect("write");
    fs::hard_link(mnt.path("a/b/c/f"), mnt.path("a/g")).expect("link");
    assert_eq!(fs::metadata(mnt.path("a/g")).expect("stat").nlink(), 2);
    symlink("b/c/f", mnt.path("a/l")).expect("symlink");
    assert_eq!(fs::read_link(mnt.path("a/l")).expect("readlink").as_os_str(), "b/c/f");
    assert_eq!(fs::read(mnt.path("a/l")).expect("through the link"), b"x");
    assert_eq!(fs::metadata(mnt.path("a")).expect("stat").nlink(), 3);

    let error = |outcome: std::io::Result<()>| outcome.expect_err("must fail").kind();
    assert_eq!(error(fs::remove_dir(mnt.path("a/b"))), ErrorKind::DirectoryNotEmpty);
    assert_eq!(error(fs::remove_file(mnt.path("a/b"))), ErrorKind::IsADirectory);
    assert_eq!(error(fs::create_dir(mnt.path("a/g"))), ErrorKind::AlreadyExists);
    assert_eq!(error(fs::remove_file(mnt.path("none"))), ErrorKind::NotFound);
    let long = "n".repeat(256);
    assert_eq!(error(fs::write(mnt.path(&long), "")), ErrorKind::InvalidFilename);
    fs::write(mnt.path(&long[1..]), "").expect("255 bytes are allowed");

    fs::remove_file(mnt.path("a/b/c/f")).expect("unlink");
    assert_eq!(fs::metadata(mnt.path("a/g")).expect("stat").nlink(), 1);
    fs::remove_dir_all(mnt.path("a")).expect("remove all");
    assert!(!mnt.path("a").exists());
}

fn rename_has_its_flags() {
    let mnt = Fixture::tmpfs();
    let (a, b) = (mnt.path("a"), mnt.path("b"));
    fs::write(&a, "a").expect("write");
    fs::write(&b, "b").expect("write");
    let with = |flags| rustix::fs::renameat_with(CWD, &a, CWD, &b, flags);
    assert_eq!(with(RenameFlags::NOREPLACE), Err(rustix::io::Errno::EXIST));
    with(RenameFlags::EXCHANGE).expect("exchange");
    assert_eq!(fs::read(&a).expect("read"), b"b");
    assert_eq!(fs::read(&b).expect("read"), b"a");
    let both = RenameFlags::WHITEOUT | RenameFlags::EXCHANGE;
    assert_eq!(with(both), Err(rustix::io::Errno::INVAL));
    fs::rename(&a, &b).expect("replace");
    assert_eq!(fs::read(&b).expect("read"), b"b");
    assert!(!a.exists());
    fs::create_dir_all(mnt.path("d/e")).expect("mkdir");
    let below = fs::rename(mnt.path("d"), mnt.path("d/e/d")).expect_err("a loop");
    assert_eq!(below.kind(), ErrorKind::InvalidInput);
    fs::rename(mnt.path("d/e"), mnt.path("e")).expect("move a directory");
    assert_eq!(fs::metadata(mnt.path("d")).expect("stat").nlink(), 2);
}

fn nodes_of_all_types() {
    let mnt = Fixture::tmpfs();
    let make = |name: &str, kind| {
        rustix::fs::mknodat(CWD, mnt.path(name), kind, Mode::from(0o640), 0).expect("mknod");
        fs::symlink_metadata(mnt.path(name)).expect("stat").file_type()
    };
    assert!(make("fifo", FileType::Fifo).is_fifo());
    assert!(make("socket", FileType::Socket).is_socket());
    assert!(make("file", FileType::RegularFile).is_file());
    // The kernel implements the FIFO itself; the file system only keeps its name.
    let echo = format!("echo hello > {0} & cat {0}", mnt.path("fifo").display());
    let output = Command::new("sh").args(["-c", &echo]).output().expect("sh");
    assert_eq!(output.stdout, b"hello\n");
}

fn a_removed_file_stays_usable() {
    let mnt = Fixture::tmpfs();
    let path = mnt.path("gone");
    let mut file =
        OpenOptions::new().read(true).write(true).create(true).truncate(true).open(&path).expect("open");
    file.write_all(b"before").expect("write");
    fs::remove_file(&path).expect("unlink");
    file.write_all(b" after").expect("write to a removed file");
    let mut read = [0; 12];
    file.read_exact_at(&mut read, 0).expect("read from a removed file");
    assert_eq!(&read, b"before after");
    let meta = file.metadata().expect("fstat");
    assert_eq!((meta.nlink(), meta.len()), (0, 12));
    file.set_permissions(Permissions::from_mode(0o600)).expect("fchmod");
    fs::write(&path, "another").expect("the name is free");
    assert_eq!(file.metadata().expect("fstat").len(), 12);
}

fn two_appenders_lose_nothing() {
    let mnt = Fixture::tmpfs();
    let path = mnt.path("log");
    let script = |word: &str| format!("for i in $(seq 500); do echo {word}$i; done >> {}", path.display());
    let spawn = |word| Command::new("sh").args(["-c", &script(word)]).spawn().expect("sh");
    let mut writers = [spawn("a"), spawn("b")];
    for writer in &mut writers {
        assert!(writer.wait().expect("wait").success());
    }
    let text = fs::read_to_string(&path).expect("read");
    for word in ["a", "b"] {
        let lines: Vec<&str> = text.lines().filter(|line| line.starts_with(word)).collect();
        let expected: Vec<String> = (1..=500).map(|i| format!("{word}{i}")).collect();
        assert_eq!(lines, expected);
    }
}

fn shared_mappings_and_writes_agree() {
    let mnt = Fixture::tmpfs();
    let path = mnt.path("mapped");
    let file =
        OpenOptions::new().read(true).write(true).create(true).truncate(true).open(&path).expect("open");
    file.set_len(8192).expect("size");
    let mut map = Shared::map(&file, 8192);
    map.write(4000, b"through the mapping");
    file.write_all_at(b"through write", 100).expect("write");
    assert_eq!(map.read(100, 13), b"through write");
    map.sync();
    drop(map);
    drop(file);
    let read = fs::read(&path).expect("read");
    assert_eq!(&read[4000..4019], b"through the mapping");
    assert_eq!(&read[100..113], b"through write");
    // The content in the driver, not only in the page cache:
    let direct = OpenOptions::new().read(true).custom_flags(libc::O_DIRECT).open(&path).expect("O_DIRECT");
    let mut page = [0; 8192];
    direct.read_exact_at(&mut page, 0).expect("read");
    assert_eq!(page[..], read[..]);
}

fn direct_io_bypasses_the_page_cache() {
    let mnt = Fixture::tmpfs();
    let path = mnt.path("direct");
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true).truncate(false).custom_flags(libc::O_DIRECT);
    let direct = options.open(&path).expect("O_DIRECT");
    direct.write_all_at(&[7; 8192], 4096).expect("write");
    assert_eq!(direct.metadata().expect("fstat").len(), 12288);
    let cached = fs::read(&path).expect("read");
    assert_eq!(cached.iter().filter(|&&byte| byte == 7).count(), 8192);
    direct.write_all_at(&[8; 4096], 0).expect("write");
    assert_eq!(fs::read(&path).expect("read")[..4096], [8; 4096]);
}

fn holes_are_found_made_and_filled() {
    let mnt = Fixture::tmpfs();
    let path = mnt.path("sparse");
    let file =
        OpenOptions::new().read(true).write(true).create(true).truncate(true).open(&path).expect("open");
    file.write_all_at(&[1; 4096], 1 << 20).expect("write");
    let seek = |from| rustix::fs::seek(&file, from);
    assert_eq!(seek(rustix::fs::SeekFrom::Data(0)), Ok(1 << 20));
    assert_eq!(seek(rustix::fs::SeekFrom::Hole(1 << 20)), Ok((1 << 20) + 4096));
    assert_eq!(seek(rustix::fs::SeekFrom::Data(2 << 20)), Err(rustix::io::Errno::NXIO));
    let fallocate = |flags, offset, len| rustix::fs::fallocate(&file, flags, offset, len);
    fallocate(FallocateFlags::empty(), 0, 2 << 20).expect("fallocate");
    assert_eq!(file.metadata().expect("fstat").len(), 2 << 20);
    fallocate(FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE, 1 << 20, 4096).expect("punch");
    let mut read = [9; 4096];
    file.read_exact_at(&mut read, 1 << 20).expect("read");
    assert_eq!(read, [0; 4096]);
    assert_eq!(fallocate(FallocateFlags::COLLAPSE_RANGE, 0, 4096), Err(rustix::io::Errno::OPNOTSUPP));
}

fn extended_attributes() {
    let mnt = Fixture::tmpfs();
    let path = mnt.path("file");
    fs::write(&path, "").expect("write");
    let set = |name: &str, value: &[u8], flags| rustix::fs::setxattr(&path, name, value, flags);
    let get = |name: &str, buffer: &mut [u8]| rustix::fs::getxattr(&path, name, buffer);
    set("user.one", b"value", XattrFlags::empty()).expect("setxattr");
    set("user.two", b"", XattrFlags::CREATE).expect("setxattr");
    assert_eq!(set("user.one", b"", XattrFlags::CREATE), Err(rustix::io::Errno::EXIST));
    assert_eq!(set("user.three", b"", XattrFlags::REPLACE), Err(rustix::io::Errno::NODATA));
    let mut buffer = [0; 64];
    assert_eq!(rustix::fs::getxattr_query(&path, "user.one"), Ok(5));
    assert_eq!(get("user.one", &mut buffer[..4]), Err(rustix::io::Errno::RANGE));
    assert_eq!(get("user.one", &mut buffer), Ok(5));
    assert_eq!(&buffer[..5], b"value");
    assert_eq!(get("user.two", &mut buffer), Ok(0));
    assert_eq!(get("user.none", &mut buffer), Err(rustix::io::Errno::NODATA));
    assert_eq!(rustix::fs::listxattr_query(&path), Ok("user.one\0user.two\0".len()));
    rustix::fs::removexattr(&path, "user.one").expect("removexattr");
    assert_eq!(get("user.one", &mut buffer), Err(rustix::io::Errno::NODATA));
}

fn times_before_1970_and_now() {
    let mnt = Fixture::tmpfs();
    let path = mnt.path("old");
    fs::write(&path, "").expect("write");
    for (tv_sec, tv_nsec) in [(-2, 800_000_000), (-1_000_000_000, 1), (0, 0), (4_000_000_000, 999_999_999)] {
        let time = Timespec { tv_sec, tv_nsec };
        let times = Timestamps { last_access: time, last_modification: time };
        rustix::fs::utimensat(CWD, &path, &times, AtFlags::empty()).expect("utimensat");
        // Not the kernel's copy from the call: a new lookup of the file system's own answer.
        let seen = mnt.vfs_attr("old");
        assert_eq!((seen.mtime.sec(), i64::from(seen.mtime.nsec())), (tv_sec, tv_nsec));
        let meta = fs::metadata(&path).expect("stat");
        assert_eq!((meta.mtime(), meta.mtime_nsec()), (tv_sec, tv_nsec));
        assert_eq!((meta.atime(), meta.atime_nsec()), (tv_sec, tv_nsec));
    }
    // As far as the kernel lets a caller go; stored as near as possible.
    for tv_sec in [i64::MIN, i64::MIN + 1, i64::MAX] {
        let time = Timespec { tv_sec, tv_nsec: 999_999_999 };
        let times = Timestamps { last_access: time, last_modification: time };
        rustix::fs::utimensat(CWD, &path, &times, AtFlags::empty()).expect("utimensat");
        assert_eq!(fs::metadata(&path).expect("stat").mtime() < 0, tv_sec < 0);
    }
    let before = fs::metadata(&path).expect("stat").mtime();
    fs::write(&path, "x").expect("write");
    assert!(fs::metadata(&path).expect("stat").mtime() < before, "a write sets the time to now");
}

fn a_running_program_is_not_cut() {
    let mnt = Fixture::tmpfs();
    let path = mnt.path("program");
    fs::copy("/bin/sleep", &path).expect("copy");
    fs::set_permissions(&path, Permissions::from_mode(0o755)).expect("chmod");
    let mut program = Command::new(&path).arg("100").spawn().expect("it runs");
    for flags in [OFlags::WRONLY, OFlags::RDWR, OFlags::RDONLY | OFlags::TRUNC] {
        let outcome = rustix::fs::open(&path, flags, Mode::empty()).map(drop);
        assert_eq!(outcome, Err(rustix::io::Errno::TXTBSY), "{flags:?}");
    }
    program.kill().expect("kill");
    program.wait().expect("wait");
    assert_eq!(fs::read(&path).expect("read"), fs::read("/bin/sleep").expect("read"));
}

fn opening_with_o_trunc_touches() {
    let mnt = Fixture::tmpfs();
    let path = mnt.path("stamp");
    fs::write(&path, "").expect("write");
    let old = Timespec { tv_sec: 1, tv_nsec: 0 };
    let times = Timestamps { last_access: old, last_modification: old };
    rustix::fs::utimensat(CWD, &path, &times, AtFlags::empty()).expect("utimensat");
    File::create(&path).expect("open with O_TRUNC");
    assert!(fs::metadata(&path).expect("stat").mtime() > 1);
}

fn statfs_has_figures() {
    let mnt = Fixture::tmpfs();
    let figures = rustix::fs::statvfs(&*mnt).expect("statvfs");
    assert_eq!(figures.f_namemax, 255);
    assert!(figures.f_blocks > 0 && figures.f_bfree <= figures.f_blocks && figures.f_bsize >= 512);
}

fn locks_are_the_kernels() {
    let mnt = Fixture::tmpfs();
    let path = mnt.path("locked");
    let open = || OpenOptions::new().write(true).create(true).truncate(true).open(&path).expect("open");
    let (one, two) = (open(), open());
    let lock = |file: &File, how| rustix::fs::flock(file, how);
    lock(&one, FlockOperation::NonBlockingLockExclusive).expect("a first lock");
    let second = lock(&two, FlockOperation::NonBlockingLockExclusive);
    assert_eq!(second, Err(rustix::io::Errno::WOULDBLOCK), "a second lock while the first is held");
    lock(&one, FlockOperation::Unlock).expect("unlock");
    lock(&two, FlockOperation::NonBlockingLockExclusive).expect("a lock after that");
}

/// The kernel has cached that there is no such name. Then the name appears without the kernel's doing. An open with
/// O_CREAT must find it, and neither fail nor make another file.
fn a_negative_entry_does_not_hide_a_new_name() {
    let mnt = Fixture::tmpfs();
    let path = mnt.path("late");
    assert!(!path.exists());
    mnt.make_behind_the_kernels_back("late", b"theirs");
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true).truncate(false);
    let mut file = options.open(&path).expect("open what appeared");
    let mut read = String::new();
    file.read_to_string(&mut read).expect("read");
    assert_eq!(read, "theirs");

    assert!(!mnt.path("exclusive").exists());
    mnt.make_behind_the_kernels_back("exclusive", b"");
    let flags = OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY;
    let outcome = rustix::fs::open(mnt.path("exclusive"), flags, Mode::from(0o600));
    assert_eq!(outcome.map(drop), Err(rustix::io::Errno::EXIST));
}
