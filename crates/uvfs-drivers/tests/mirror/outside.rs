//! Changes behind the mirror that are told to it.

use std::fs;
use std::time::Duration;

use rustix::fs::{Mode, OFlags, open};
use uvfs::{Cred, Errno};
use uvfs_drivers::mirror::FileHandle;

use crate::Fs;

fn handle(fs: &Fs, name: &str) -> Option<FileHandle> {
    let fd = open(fs.src(name), OFlags::PATH, Mode::empty()).unwrap();
    FileHandle::of(fd).ok()
}

#[test]
fn what_is_told_is_looked_at_again() {
    let fs = Fs::with_ttl(Duration::from_secs(3600));
    fs::create_dir(fs.src("dir")).unwrap();
    fs::write(fs.src("dir/file"), b"1").unwrap();
    let (Some(dir), Some(file)) = (handle(&fs, "dir"), handle(&fs, "dir/file")) else {
        return println!("skipped: no file handles on the file system of $TMPDIR");
    };
    let me = fs.vfs.context(Cred::root());
    assert_eq!(me.stat(b"/dir/file").unwrap().size, 1);
    assert_eq!(me.stat(b"/dir/new").unwrap_err(), Errno::NOENT);
    fs::write(fs.src("dir/file"), b"1234").unwrap();
    fs::write(fs.src("dir/new"), b"").unwrap();
    // Believed, until it is told.
    assert_eq!(me.stat(b"/dir/file").unwrap().size, 1);
    assert_eq!(me.stat(b"/dir/new").unwrap_err(), Errno::NOENT);
    fs.mirror.object_changed(&file);
    fs.mirror.name_changed(&dir, b"new");
    assert_eq!(me.stat(b"/dir/file").unwrap().size, 4);
    me.stat(b"/dir/new").unwrap();
    fs::rename(fs.src("dir/file"), fs.src("moved")).unwrap();
    fs.mirror.all_suspect();
    assert_eq!(me.stat(b"/dir/file").unwrap_err(), Errno::NOENT);
    assert_eq!(me.stat(b"/moved").unwrap().size, 4);
}

/// Waits until `so` holds. Another thread makes it hold, and nobody can wait for that thread.
pub(crate) fn until(mut so: impl FnMut() -> bool) {
    let deadline = std::time::Instant::now() + Duration::from_secs(60);
    while !so() {
        assert!(std::time::Instant::now() < deadline, "not so for a minute");
        std::thread::yield_now();
    }
}

/// That a file has no extended attributes is known until somebody says otherwise.
#[test]
fn that_there_are_no_attributes_is_known_while_the_source_is_watched() {
    let base = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).unwrap();
    let mirror = uvfs_drivers::mirror::Mirror::new(base.path(), std::time::Duration::ZERO).unwrap();
    if let Err(why) = mirror.watch() {
        return println!(
            "skipped: that_there_are_no_attributes_is_known: changes by others are not seen: {why}"
        );
    }
    std::fs::write(base.path().join("file"), "").unwrap();
    let vfs = uvfs::Vfs::new(uvfs::VfsConfig::default(), mirror.clone()).unwrap();
    let me = vfs.context(uvfs::Cred::root());
    let label = || me.getxattr(b"/file", b"security.selinux");
    if label() != Err(Errno::NODATA) {
        return println!("skipped: that_there_are_no_attributes_is_known: files have labels here");
    }
    // What was done to the file before may still be told of.
    until(|| {
        let before = (label(), me.listxattr(b"/file").unwrap(), mirror.operations());
        (label(), me.listxattr(b"/file").unwrap(), mirror.operations()) == before
    });
    let names = || me.listxattr(b"/file").unwrap().len();
    let host = |script: &str| {
        let done = std::process::Command::new("python3")
            .arg("-c")
            .arg(script)
            .arg(base.path().join("file"))
            .status();
        done.is_ok_and(|status| status.success())
    };
    me.setxattr(b"/file", b"trusted.ours", b"x", uvfs::XattrFlags::empty()).unwrap();
    assert_eq!(names(), 1);
    me.removexattr(b"/file", b"trusted.ours").unwrap();
    assert_eq!(names() + names(), 0);
    if !host("import os, sys; os.setxattr(sys.argv[1], 'trusted.theirs', b'x')") {
        return println!("skipped: that_there_are_no_attributes_is_known: no python3 to change them with");
    }
    until(|| names() == 1);
    // Events that were lost may have been about any file.
    mirror.all_suspect();
    assert_eq!(names(), 1);
}

/// The host is not asked for names in a directory that was made through the mirror, until others make some there.
#[test]
fn what_is_not_in_a_new_directory_is_known_while_the_source_is_watched() {
    let base = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).unwrap();
    let mirror = uvfs_drivers::mirror::Mirror::new(base.path(), Duration::ZERO).unwrap();
    if let Err(why) = mirror.watch() {
        return println!(
            "skipped: what_is_not_in_a_new_directory_is_known: changes by others are not seen: {why}"
        );
    }
    let vfs = uvfs::Vfs::new(uvfs::VfsConfig::default(), mirror.clone()).unwrap();
    let me = vfs.context(Cred::root());
    me.mkdir(b"/dir", 0o755).unwrap();
    assert_eq!(me.stat(b"/dir/theirs").unwrap_err(), Errno::NOENT);
    let before = mirror.operations();
    for name in [&b"/dir/theirs"[..], b"/dir/other"] {
        assert_eq!(me.stat(name).unwrap_err(), Errno::NOENT);
    }
    assert_eq!(mirror.operations(), before);
    // By another process: this one's changes are not reported.
    let theirs = base.path().join("dir/theirs");
    let done = std::process::Command::new("touch").arg(&theirs).status();
    assert!(done.is_ok_and(|status| status.success()));
    until(|| me.stat(b"/dir/theirs").is_ok());
    // A directory with something in it is not removed.
    assert_eq!(me.rmdir(b"/dir").unwrap_err(), Errno::NOTEMPTY);
    fs::remove_file(theirs).unwrap();
    until(|| me.rmdir(b"/dir").is_ok());
}

#[test]
fn what_is_told_of_the_unknown_is_nothing() {
    let fs = Fs::new();
    for bytes in [&[][..], &[0; 8], &[7; 128]] {
        let handle = FileHandle::new(1, bytes);
        fs.mirror.name_changed(&handle, b"name");
        fs.mirror.object_changed(&handle);
    }
    fs.mirror.all_suspect();
    assert!(fs.vfs.context(Cred::root()).stat(b"/").unwrap().is_dir());
}

#[test]
fn the_source_is_removed_or_no_directory() {
    let fs = Fs::new();
    let me = fs.vfs.context(Cred::root());
    fs::remove_dir(fs.src("")).unwrap();
    assert_eq!(me.mkdir(b"/dir", 0o755).unwrap_err(), Errno::NOENT);
    assert_eq!(me.stat(b"/file").unwrap_err(), Errno::NOENT);
    assert!(me.stat(b"/").unwrap().is_dir());
    fs::write(fs.outside("file"), b"").unwrap();
    for (name, says) in [("file", "is no directory"), ("missing", "does not exist")] {
        let refused = uvfs_drivers::mirror::Mirror::new(&fs.outside(name), Duration::ZERO);
        let refused = refused.map(drop).unwrap_err().to_string();
        assert!(refused.contains(says), "{refused}");
    }
}
