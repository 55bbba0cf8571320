//! How changes of names affect link counts, sizes and times of inodes and directories.

use uvfs::driver::Inode;
use uvfs::types::{Access, Attr, Cred, Errno, RenameFlags, SetTime, Time, mode};

use crate::Fs;

fn time(sec: i64) -> Time {
    Time::new(sec, 123_456_789)
}

fn assert_changed(attr: &Attr, sec: i64) {
    assert_eq!((attr.mtime, attr.ctime), (time(sec), time(sec)));
}

fn shape(inode: &Inode<'_>) -> (u64, u32) {
    (inode.attr().size, inode.attr().nlink)
}

#[test]
fn the_root_directory_is_as_the_options_say() {
    let fs = Fs::new("mode=750,uid=7,gid=8");
    let attr = fs.root_attr();
    assert_eq!((attr.mode, attr.uid, attr.gid), (mode::S_IFDIR | 0o750, 7, 8));
    assert_eq!((attr.ino, attr.nlink, attr.size, attr.blocks), (1, 2, 40, 0));
    assert_eq!(Fs::new("").root_attr().mode, mode::S_IFDIR | 0o1777);
}

#[test]
fn new_nodes_are_what_was_asked_for_and_numbers_are_never_used_again() {
    let fs = Fs::new("");
    let (op, root) = (fs.at(100), fs.vfs.root());
    let mut numbers = vec![1];
    for (name, kind, rdev) in [
        ("reg", mode::S_IFREG, 0),
        ("fifo", mode::S_IFIFO, 0),
        ("sock", mode::S_IFSOCK, 0),
        ("chr", mode::S_IFCHR, 0x0501),
        ("blk", mode::S_IFBLK, 0x0800),
    ] {
        let (inode, attr) = fs.vfs.mknod(&op, &root, name.as_bytes(), kind | 0o640, rdev).unwrap();
        assert_eq!(attr, inode.attr());
        assert_eq!((attr.mode, attr.nlink, attr.rdev), (kind | 0o640, 1, rdev), "{name}");
        assert_eq!((attr.size, attr.blocks), (0, 0));
        assert_eq!((attr.atime, attr.mtime, attr.ctime), (time(100), time(100), time(100)));
        numbers.push(attr.ino);
        fs.unlink(name);
    }
    let (link, attr) = fs.vfs.symlink(&op, &root, b"link", b"where/to").unwrap();
    assert_eq!((attr.mode, attr.size, attr.blocks), (mode::S_IFLNK | 0o777, 8, 0));
    assert_eq!(fs.vfs.readlink(&op, &link), Ok(b"where/to".to_vec()));
    numbers.push(attr.ino);
    numbers.push(fs.file("last").attr().ino);
    assert!(numbers.windows(2).all(|two| two[0] < two[1]), "{numbers:?}");
}

/// The cache keeps a link's target for the next reader. The target goes with its link, and the access time
/// moves as it would without the cache.
#[test]
fn kept_targets_are_the_links_own() {
    let fs = Fs::new("");
    let context = fs.vfs.context(Cred::root());
    for len in [1, 7, 8, 9, 119, 120, 121, 4095] {
        let target: Vec<u8> = (0..len).map(|i| b'a' + (i % 23) as u8).collect();
        context.symlink(&target, b"link").unwrap();
        for round in 0..3 {
            assert_eq!(context.readlink(b"link"), Ok(target.clone()), "{len} bytes, round {round}");
        }
        let mut buffer = [0; 5];
        assert_eq!(context.readlink_into(b"link", &mut buffer), Ok(len.min(5)));
        assert_eq!(buffer[..len.min(5)], target[..len.min(5)]);
        context.rename(b"link", b"moved", RenameFlags::empty()).unwrap();
        assert_eq!(context.readlink(b"link"), Err(Errno::NOENT));
        assert_eq!(context.readlink(b"moved"), Ok(target));
        context.unlink(b"moved").unwrap();
    }
    context.symlink(b"t", b"link").unwrap();
    context.readlink(b"link").unwrap();
    let read = context.lstat(b"link").unwrap().atime;
    context.readlink(b"link").unwrap();
    assert_eq!(context.lstat(b"link").unwrap().atime, read, "relatime: a second read moves nothing");
    context.lutimens(b"link", Some(SetTime::At(time(100))), None).unwrap();
    context.readlink(b"link").unwrap();
    assert!(context.lstat(b"link").unwrap().atime >= read, "relatime: a change since the last read");
    assert_eq!(context.readlink(b"/"), Err(Errno::INVAL));
}

#[test]
fn making_and_removing_change_the_parent() {
    let fs = Fs::new("");
    let root = fs.vfs.root();
    fs.vfs.mknod(&fs.at(10), &root, b"f", 0o644, 0).unwrap();
    assert_changed(&root.attr(), 10);
    assert_eq!(shape(&root), (60, 2));
    let (dir, _) = fs.vfs.mkdir(&fs.at(20), &root, b"d", 0o755).unwrap();
    assert_changed(&root.attr(), 20);
    assert_eq!(shape(&root), (80, 3));
    assert_eq!(shape(&dir), (40, 2));
    fs.vfs.unlink(&fs.at(30), &root, b"f").unwrap();
    assert_changed(&root.attr(), 30);
    assert_eq!(shape(&root), (60, 3));
    fs.vfs.rmdir(&fs.at(40), &root, b"d").unwrap();
    assert_changed(&root.attr(), 40);
    assert_eq!(shape(&root), (40, 2));
    assert_eq!(dir.attr().nlink, 0);
    assert_eq!(dir.attr().ctime, time(40));
}

#[test]
fn links_change_the_inode_and_the_parent() {
    let fs = Fs::new("");
    let root = fs.vfs.root();
    let (file, _) = fs.vfs.mknod(&fs.at(10), &root, b"a", 0o644, 0).unwrap();
    fs.vfs.link(&fs.at(20), &file, &root, b"b").unwrap();
    assert_eq!((file.attr().nlink, file.attr().mtime, file.attr().ctime), (2, time(10), time(20)));
    assert_changed(&root.attr(), 20);
    assert_eq!(shape(&root), (80, 2));
    fs.vfs.unlink(&fs.at(30), &root, b"a").unwrap();
    assert_eq!((file.attr().nlink, file.attr().ctime), (1, time(30)));
    fs.vfs.unlink(&fs.at(40), &root, b"b").unwrap();
    assert_eq!((file.attr().nlink, file.attr().ctime), (0, time(40)));
    assert_eq!(fs.vfs.link(&fs.at(50), &file, &root, b"c").err(), Some(Errno::NOENT));
}

#[test]
fn renames_move_entries_and_subdirectories() {
    let fs = Fs::new("");
    let (op, root) = (fs.at(10), fs.vfs.root());
    let (a, _) = fs.vfs.mkdir(&op, &root, b"a", 0o755).unwrap();
    let (b, _) = fs.vfs.mkdir(&op, &root, b"b", 0o755).unwrap();
    let (sub, _) = fs.vfs.mkdir(&op, &a, b"sub", 0o755).unwrap();
    let (file, _) = fs.vfs.mknod(&op, &b, b"file", 0o644, 0).unwrap();
    let (old, _) = fs.vfs.mknod(&op, &a, b"old", 0o644, 0).unwrap();
    let none = RenameFlags::empty();

    fs.vfs.rename(&fs.at(20), &a, b"sub", &b, b"sub", none).unwrap();
    assert_eq!((shape(&a), shape(&b)), ((60, 2), (80, 3)));
    for dir in [&a, &b] {
        assert_changed(&dir.attr(), 20);
    }
    assert_eq!((sub.attr().ctime, sub.attr().mtime), (time(20), time(10)));

    // Replacing a file takes a link from it.
    fs.vfs.rename(&fs.at(30), &b, b"file", &a, b"old", none).unwrap();
    assert_eq!((shape(&a), shape(&b)), ((60, 2), (60, 3)));
    assert_eq!((old.attr().nlink, old.attr().ctime), (0, time(30)));
    assert_eq!(file.attr().ctime, time(30));

    // Swapping a directory with a file swaps the parents' share of subdirectories only.
    fs.vfs.rename(&fs.at(40), &a, b"old", &b, b"sub", RenameFlags::EXCHANGE).unwrap();
    assert_eq!((shape(&a), shape(&b)), ((60, 3), (60, 2)));
    assert_eq!((file.attr().nlink, sub.attr().nlink), (1, 2));
    assert_eq!((file.attr().ctime, sub.attr().ctime), (time(40), time(40)));

    // Within one directory only times change; replacing an empty directory removes it.
    fs.vfs.rename(&fs.at(50), &b, b"sub", &b, b"file", none).unwrap();
    assert_eq!(shape(&b), (60, 2));
    assert_changed(&b.attr(), 50);
    fs.vfs.rename(&fs.at(60), &a, b"old", &root, b"b2", none).unwrap();
    let (victim, _) = fs.vfs.mkdir(&fs.at(60), &root, b"victim", 0o755).unwrap();
    assert_eq!(shape(&root), (120, 6));
    fs.vfs.rename(&fs.at(70), &root, b"b2", &root, b"victim", none).unwrap();
    assert_eq!(shape(&root), (100, 5));
    assert_eq!((victim.attr().nlink, sub.attr().nlink), (0, 2));
    drop((a, b, sub, file, old, victim));
    assert_eq!(fs.tmpfs.usage().inodes, 5, "root, a, b, victim and the file");
}

/// Each such file counts as an inode from the start. Its first name is free. A file that had a name and lost it can
/// get no new one.
#[test]
fn files_without_a_name_count_as_inodes_and_are_named_once() {
    let fs = Fs::new("nr_inodes=3");
    let (op, root) = (fs.at(100), fs.vfs.root());
    let make = |linkable| fs.vfs.tmpfile(&op, &root, 0o640, Access::WRITE, linkable);
    let before = shape(&root);
    let (file, attr, fh) = make(true).unwrap();
    assert_eq!((attr.mode, attr.nlink), (mode::S_IFREG | 0o640, 0));
    let (bound, _, bound_fh) = make(false).unwrap();
    assert_eq!(make(true).err(), Some(Errno::NOSPC));
    assert_eq!(shape(&root), before);
    assert_eq!(fs.vfs.link(&op, &bound, &root, b"bound").err(), Some(Errno::NOENT));
    fs.vfs.release(bound_fh);
    drop(bound);
    assert_eq!(fs.vfs.write(&op, fh, 0, b"data", false, false), Ok(4));
    // Its first name costs nothing, the second does.
    assert_eq!(fs.vfs.link(&op, &file, &root, b"first").unwrap().nlink, 1);
    assert_eq!(fs.vfs.link(&op, &file, &root, b"second").unwrap().nlink, 2);
    assert_eq!(make(true).err(), Some(Errno::NOSPC));
    fs.unlink("first");
    fs.unlink("second");
    assert_eq!(file.attr().nlink, 0);
    assert_eq!(fs.vfs.link(&op, &file, &root, b"third").err(), Some(Errno::NOENT));
    fs.vfs.release(fh);
    drop(file);
    assert_eq!(fs.tmpfs.usage().inodes, 1);
    assert_eq!(fs.tmpfs.usage().bytes, 0);
}
