//! Times and modes of files, and extended attributes.

use uvfs::types::{Attr, Cred, Errno, Fallocate, SetAttr, SetTime, Time, XattrFlags, mode};

use crate::Fs;

fn time(sec: i64) -> Time {
    Time::new(sec, 123_456_789)
}

/// Access, modification, change.
fn times(attr: &Attr) -> (i64, i64, i64) {
    (attr.atime.sec(), attr.mtime.sec(), attr.ctime.sec())
}

#[test]
fn each_operation_stamps_what_it_must() {
    let fs = Fs::new("");
    let (file, _) = fs.vfs.mknod(&fs.at(10), &fs.vfs.root(), b"f", 0o644, 0).unwrap();
    let fh = fs.open(&file);
    let now = |fs: &Fs| times(&fs.vfs.getattr(&fs.op(), &file).unwrap());
    fs.vfs.write(&fs.at(20), fh, 0, b"data", false, false).unwrap();
    assert_eq!(now(&fs), (10, 20, 20));
    // A read updates atime once after a change, then not for a day.
    let mut buf = [0; 4];
    for (sec, atime) in [(30, 30), (40, 30), (30 + 86_399, 30), (30 + 86_400, 30 + 86_400)] {
        fs.vfs.read(&fs.at(sec), fh, 0, &mut buf).unwrap();
        assert_eq!(now(&fs), (atime, 20, 20));
    }
    let atime = 30 + 86_400;
    fs.vfs.truncate(&fs.at(50), fh, 4).unwrap();
    assert_eq!(now(&fs), (atime, 50, 50), "also where the size stays the same");
    fs.vfs.setattr(&fs.at(60), &file, &SetAttr { size: Some(4), ..SetAttr::default() }).unwrap();
    assert_eq!(now(&fs), (atime, 60, 60));
    fs.vfs.fallocate(&fs.at(70), fh, Fallocate::Allocate { keep_size: true }, 0, 9000).unwrap();
    assert_eq!(now(&fs), (atime, 70, 70));
    fs.vfs.fallocate(&fs.at(80), fh, Fallocate::PunchHole, 0, 9000).unwrap();
    assert_eq!(now(&fs), (atime, 80, 80));
    fs.vfs.setattr(&fs.at(90), &file, &SetAttr { mode: Some(0o600), ..SetAttr::default() }).unwrap();
    assert_eq!(now(&fs), (atime, 80, 90));
    fs.vfs.setattr(&fs.at(100), &file, &SetAttr { uid: Some(5), ..SetAttr::default() }).unwrap();
    assert_eq!(now(&fs), (atime, 80, 100));
    let set = SetAttr { atime: Some(SetTime::At(time(1))), mtime: Some(SetTime::Now), ..SetAttr::default() };
    fs.vfs.setattr(&fs.at(110), &file, &set).unwrap();
    assert_eq!(now(&fs), (1, 110, 110));
    assert_eq!(file.attr().mtime, time(110), "nanoseconds too");
    fs.vfs.setxattr(&fs.at(120), &file, b"user.x", b"", XattrFlags::empty()).unwrap();
    assert_eq!(now(&fs), (1, 110, 120));
    fs.vfs.removexattr(&fs.at(130), &file, b"user.x").unwrap();
    assert_eq!(now(&fs), (1, 110, 130));
    assert_eq!(fs.vfs.write(&fs.at(140), fh, 0, b"", false, false), Ok(0));
    assert_eq!(now(&fs), (1, 110, 130), "writing nothing is nothing");
}

#[test]
fn a_refused_write_stamps_nothing() {
    let fs = Fs::new("size=4k");
    let (file, _) = fs.vfs.mknod(&fs.at(10), &fs.vfs.root(), b"f", 0o644, 0).unwrap();
    let fh = fs.open(&file);
    fs.vfs.write(&fs.at(20), fh, 0, b"x", false, false).unwrap();
    let before = file.attr();
    assert_eq!(fs.vfs.write(&fs.at(30), fh, 4096, b"x", false, false), Err(Errno::NOSPC));
    assert_eq!(file.attr(), before);
}

#[test]
fn the_type_is_kept_and_the_owner_changed() {
    let fs = Fs::new("");
    let file = fs.file("f");
    let set =
        SetAttr { mode: Some(mode::S_IFDIR | 0o7777), uid: Some(1), gid: Some(2), ..SetAttr::default() };
    let attr = fs.vfs.setattr(&fs.op(), &file, &set).unwrap();
    assert_eq!((attr.mode & mode::S_IFMT, attr.uid, attr.gid), (mode::S_IFREG, 1, 2));
    let size = SetAttr { size: Some(0), ..SetAttr::default() };
    assert_eq!(fs.vfs.setattr(&fs.op(), &fs.vfs.root(), &size).err(), Some(Errno::ISDIR));
}

#[test]
fn attributes_are_set_listed_and_removed() {
    let fs = Fs::new("");
    let (op, file) = (fs.op(), fs.file("f"));
    let set = |name: &str, value: &[u8], flags| fs.vfs.setxattr(&op, &file, name.as_bytes(), value, flags);
    let get = |name: &str| fs.vfs.getxattr(&op, &file, name.as_bytes());
    assert_eq!(get("user.a"), Err(Errno::NODATA));
    assert_eq!(fs.vfs.listxattr(&op, &file), Ok(Vec::new()));
    assert_eq!(set("user.a", b"1", XattrFlags::REPLACE), Err(Errno::NODATA));
    assert_eq!(set("user.a", b"1", XattrFlags::CREATE), Ok(()));
    assert_eq!(set("user.a", b"2", XattrFlags::CREATE), Err(Errno::EXIST));
    assert_eq!(set("user.a", b"3\0x", XattrFlags::REPLACE), Ok(()));
    assert_eq!(set("trusted.t", b"", XattrFlags::empty()), Ok(()));
    assert_eq!(set("security.s", b"label", XattrFlags::empty()), Ok(()));
    assert_eq!(get("user.a"), Ok(b"3\0x".to_vec()));
    assert_eq!(get("trusted.t"), Ok(Vec::new()));
    let names = fs.vfs.listxattr(&op, &file).unwrap();
    let mut names: Vec<_> = names.split(|b| *b == 0).filter(|n| !n.is_empty()).collect();
    names.sort_unstable();
    assert_eq!(names, [&b"security.s"[..], b"trusted.t", b"user.a"]);
    assert_eq!(set("system.other", b"", XattrFlags::empty()), Err(Errno::OPNOTSUPP));
    assert_eq!(fs.vfs.removexattr(&op, &file, b"user.a"), Ok(()));
    assert_eq!(fs.vfs.removexattr(&op, &file, b"user.a"), Err(Errno::NODATA));
    assert_eq!(get("user.a"), Err(Errno::NODATA));
    // They go with the inode.
    fs.unlink("f");
    drop(file);
    assert_eq!(fs.tmpfs.usage().bytes, 0);
}

#[test]
fn who_may_not_know_of_an_attribute_does_not_see_it() {
    let fs = Fs::new("");
    let (root, file) = (fs.op(), fs.file("f"));
    fs.vfs.setxattr(&root, &file, b"trusted.t", b"secret", XattrFlags::empty()).unwrap();
    let user = fs.vfs.op(&Cred::user(1000, 1000));
    assert_eq!(fs.vfs.getxattr(&user, &file, b"trusted.t"), Err(Errno::NODATA));
    assert_eq!(fs.vfs.listxattr(&user, &file), Ok(Vec::new()));
    assert_eq!(fs.vfs.setxattr(&user, &file, b"trusted.t", b"", XattrFlags::empty()), Err(Errno::PERM));
    let (link, _) = fs.vfs.symlink(&root, &fs.vfs.root(), b"l", b"f").unwrap();
    assert_eq!(fs.vfs.setxattr(&root, &link, b"user.a", b"", XattrFlags::empty()), Err(Errno::PERM));
    assert_eq!(fs.vfs.setxattr(&root, &link, b"trusted.a", b"v", XattrFlags::empty()), Ok(()));
    assert_eq!(fs.vfs.readlink(&root, &link), Ok(b"f".to_vec()), "beside a link's target");
}

#[test]
fn no_more_names_are_taken_than_can_be_listed() {
    let fs = Fs::new("");
    let (op, file) = (fs.op(), fs.file("f"));
    let set = |i: usize| {
        let name = format!("user.{i:0>250}");
        fs.vfs.setxattr(&op, &file, name.as_bytes(), b"", XattrFlags::empty())
    };
    let taken = (0..).take_while(|i| set(*i).is_ok()).count();
    assert_eq!(taken, 65536 / 256);
    assert_eq!(fs.vfs.listxattr(&op, &file).unwrap().len(), 65536);
    assert_eq!(set(taken), Err(Errno::NOSPC));
    assert_eq!(set(0), Ok(()), "one that is there may be set again");
}
