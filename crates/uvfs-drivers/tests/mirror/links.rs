//! Files with several names, files whose names go or move on the host, numbers that come again.

use std::fs;
use std::os::unix::fs::{MetadataExt, symlink};
use std::time::Duration;

use rustix::fs::{CWD, FileType, Mode, mknodat};
use uvfs::{Access, Cred, Errno, OpenFlags, SetAttr, mode};

use crate::Fs;

#[test]
fn a_file_is_found_by_any_of_its_names() {
    let fs = Fs::new();
    let op = fs.root_op();
    fs::write(fs.src("a"), b"").unwrap();
    let file = fs.inode("/a");
    let root = fs.vfs.root();
    for name in ["b", "c", "d"] {
        assert_eq!(fs.vfs.link(&op, &file, &root, name.as_bytes()).map(drop), Ok(()));
    }
    assert_eq!(fs.inode("/c").id(), file.id());
    assert_eq!(fs::metadata(fs.src("d")).unwrap().nlink(), 4);
    // The names go, here and on the host; what is left still leads to it.
    for (left, name) in [(3, "d"), (2, "a"), (1, "c")] {
        if name == "a" {
            fs::remove_file(fs.src(name)).unwrap();
        } else {
            fs.vfs.unlink(&op, &root, name.as_bytes()).unwrap();
        }
        assert_eq!(fs.vfs.getattr(&op, &file).unwrap().nlink, left, "after {name}");
    }
    fs.vfs.setattr(&op, &file, &SetAttr { mode: Some(0o600), ..SetAttr::default() }).unwrap();
    assert_eq!(fs::metadata(fs.src("b")).unwrap().mode() & 0o7777, 0o600);
}

#[test]
fn a_file_that_is_removed_on_the_host_stays_usable_while_it_is_open() {
    let fs = Fs::new();
    let op = fs.root_op();
    fs::write(fs.src("file"), b"content").unwrap();
    let file = fs.inode("/file");
    let handle = fs.vfs.open(&op, &file, Access::READ | Access::WRITE, false).unwrap();
    fs::remove_file(fs.src("file")).unwrap();
    assert_eq!(fs.vfs.getattr(&op, &file).unwrap().nlink, 0);
    let mut buf = [0; 7];
    assert_eq!(fs.vfs.read(&op, handle, 0, &mut buf).unwrap(), 7);
    fs.vfs.truncate(&op, handle, 3).unwrap();
    assert_eq!(fs.vfs.getattr(&op, &file).unwrap().size, 3);
    fs.vfs.release(handle);
    // Nobody knows better than the cache now.
    assert_eq!(fs.vfs.getattr(&op, &file).unwrap().nlink, 0);
    assert_eq!(fs.vfs.context(Cred::root()).stat(b"/file").unwrap_err(), Errno::NOENT);
}

#[test]
fn what_lost_its_last_name_can_be_changed_while_it_is_held() {
    let fs = Fs::new();
    let op = fs.root_op();
    let root = fs.vfs.root();
    let set = SetAttr { mode: Some(0o700), ..SetAttr::default() };
    fs.vfs.mknod(&op, &root, b"file", mode::S_IFREG | 0o644, 0).unwrap();
    fs.vfs.mkdir(&op, &root, b"dir", 0o755).unwrap();
    fs.vfs.mknod(&op, &root, b"other", mode::S_IFREG | 0o644, 0).unwrap();
    let (file, dir, other) = (fs.inode("/file"), fs.inode("/dir"), fs.inode("/other"));
    fs.vfs.unlink(&op, &root, b"file").unwrap();
    fs.vfs.rmdir(&op, &root, b"dir").unwrap();
    fs.vfs.mknod(&op, &root, b"new", mode::S_IFREG | 0o644, 0).unwrap();
    fs.vfs.rename(&op, &root, b"new", &root, b"other", uvfs::RenameFlags::empty()).unwrap();
    for (inode, bits) in [(&file, 0o100700), (&dir, 0o40700), (&other, 0o100700)] {
        let attr = fs.vfs.setattr(&op, inode, &set).unwrap();
        assert_eq!((attr.mode, attr.nlink), (bits, 0));
        assert_eq!(fs.vfs.getxattr(&op, inode, b"user.none").unwrap_err(), Errno::NODATA);
    }
    let handle = fs.vfs.open(&op, &file, Access::WRITE, false).unwrap();
    assert_eq!(fs.vfs.write(&op, handle, 0, b"x", false, false), Ok(1));
    fs.vfs.release(handle);
    drop((file, dir, other));
    assert_eq!(fs.mirror.known(), 1, "only the root is left");
}

#[test]
fn what_is_renamed_on_the_host_is_found_where_it_is_now() {
    let fs = Fs::new();
    let op = fs.root_op();
    fs::create_dir_all(fs.src("one/two")).unwrap();
    fs::write(fs.src("one/two/file"), b"1234").unwrap();
    let file = fs.inode("/one/two/file");
    fs::rename(fs.src("one"), fs.src("uno")).unwrap();
    // By its old path it is not there; after it was looked up by the new one it is.
    assert_eq!(fs.vfs.getattr(&op, &file).unwrap_err(), Errno::STALE);
    assert_eq!(fs.inode("/uno/two/file").id(), file.id());
    assert_eq!(fs.vfs.getattr(&op, &file).unwrap().size, 4);
    // Somebody who has it open knows where it is.
    let handle = fs.vfs.open(&op, &file, Access::WRITE, false).unwrap();
    fs::rename(fs.src("uno"), fs.src("eins")).unwrap();
    fs.vfs.truncate(&op, handle, 2).unwrap();
    assert_eq!(fs::metadata(fs.src("eins/two/file")).unwrap().len(), 2);
    fs.vfs.release(handle);
}

/// A caller that asks by path is told at once, however many known directories lie between the one that was moved and
/// the one that is asked for.
#[test]
fn a_way_that_was_moved_is_found_out_from_its_top() {
    let fs = Fs::with_ttl(std::time::Duration::from_secs(3600));
    let op = fs.root_op();
    fs::create_dir_all(fs.src("1/2/3/4/5")).unwrap();
    fs::write(fs.src("1/2/3/4/5/file"), b"1234").unwrap();
    let ctx = fs.vfs.context(Cred::root());
    let file = fs.inode("/1/2/3/4/5/file");
    fs::rename(fs.src("1"), fs.src("one")).unwrap();
    fs::create_dir(fs.src("1")).unwrap();
    // Believed, until somebody has to go there.
    assert_eq!(ctx.stat(b"/1/2/3/4/5/file").unwrap().size, 4);
    assert_eq!(ctx.stat(b"/1/2/3/4/5/none").unwrap_err(), Errno::NOENT);
    assert_eq!(ctx.stat(b"/1/2").unwrap_err(), Errno::NOENT);
    assert_eq!(fs.vfs.getattr(&op, &file).map(|attr| attr.size), Ok(4), "by who holds it, believed");
    assert_eq!(fs.inode("/one/2/3/4/5/file").id(), file.id());
    // The same by inodes, as a front end comes whose kernel believes what it was told.
    let dirs: Vec<_> = ["/one", "/one/2", "/one/2/3"].map(|dir| fs.inode(dir)).into();
    fs::rename(fs.src("one"), fs.src("uno")).unwrap();
    assert_eq!(fs.vfs.lookup(&op, &dirs[2], b"none").map(drop).unwrap_err(), Errno::STALE);
    assert!(matches!(fs.vfs.lookup(&op, &fs.vfs.root(), b"one"), Ok(uvfs::Found::Absent(_))));
}

#[test]
fn one_file_in_the_place_of_another_is_not_taken_for_it() {
    let fs = Fs::new();
    let op = fs.root_op();
    for name in ["file", "other"] {
        fs::write(fs.src(name), name).unwrap();
    }
    let file = fs.inode("/file");
    fs::rename(fs.src("other"), fs.src("file")).unwrap();
    let cut = SetAttr { size: Some(0), ..SetAttr::default() };
    assert_eq!(fs.vfs.setattr(&op, &file, &cut).unwrap_err(), Errno::STALE);
    assert_eq!(fs.vfs.open(&op, &file, Access::WRITE, false).unwrap_err(), Errno::STALE);
    assert_eq!(fs::read(fs.src("file")).unwrap(), b"other");
    assert_ne!(fs.inode("/file").id(), file.id());
}

#[test]
fn a_number_that_comes_again_is_another_file() {
    let fs = Fs::new();
    let op = fs.root_op();
    let mut held = Vec::new();
    // Many file systems give a freed number to the next file.
    for _ in 0..50 {
        fs::write(fs.src("file"), b"x").unwrap();
        let file = fs.inode("/file");
        let handle = fs.vfs.open(&op, &file, Access::READ, false).unwrap();
        fs.vfs.unlink(&op, &fs.vfs.root(), b"file").unwrap();
        fs::write(fs.src("next"), b"xy").unwrap();
        let next = fs.inode("/next");
        assert_ne!(next.id(), file.id());
        assert_ne!(next.ino(), file.ino());
        assert_eq!(fs.vfs.getattr(&op, &next).unwrap().size, 2);
        fs::remove_file(fs.src("next")).unwrap();
        held.push((handle, file.ino()));
    }
    for (handle, _) in held {
        fs.vfs.release(handle);
    }
}

#[test]
fn a_node_goes_with_the_caches_inode() {
    let fs = Fs::with_ttl(Duration::from_secs(3600));
    let me = fs.vfs.context(Cred::root());
    for i in 0..500 {
        let path = format!("/file{i}");
        me.open(path.as_bytes(), OpenFlags::WRITE | OpenFlags::CREATE, 0o600).unwrap();
        me.stat(path.as_bytes()).unwrap();
        me.lstat(path.as_bytes()).unwrap();
    }
    assert!(fs.mirror.known() > 500, "{}", fs.mirror.known());
    for i in 0..500 {
        me.unlink(format!("/file{i}").as_bytes()).unwrap();
    }
    assert_eq!(fs.mirror.known(), 1, "only the root is left");
}

#[test]
fn a_file_made_read_only_can_be_written_by_who_made_it() {
    let fs = Fs::new();
    for cred in [Cred::root(), Cred::user(1234, 1234)] {
        if cred.uid != 0 && !crate::is_root("a_file_made_read_only_can_be_written_by_who_made_it") {
            return;
        }
        let op = fs.trusted(&cred);
        let root = fs.vfs.root();
        fs.vfs.setattr(&fs.root_op(), &root, &SetAttr { mode: Some(0o777), ..SetAttr::default() }).unwrap();
        let name = format!("of {}", cred.uid);
        let (_, _, handle) = fs.vfs.create(&op, &root, name.as_bytes(), 0o400, Access::WRITE).unwrap();
        assert_eq!(fs.vfs.write(&op, handle, 0, b"made", false, false), Ok(4));
        fs.vfs.truncate(&op, handle, 2).unwrap();
        fs.vfs.release(handle);
        assert_eq!(fs::read(fs.src(&name)).unwrap(), b"ma");
    }
}

/// Nobody waits for a reader, and nothing that is no regular file is taken for one.
#[test]
fn what_is_no_file_in_the_place_of_one_is_not_opened() {
    let fs = Fs::new();
    let op = fs.root_op();
    for access in [Access::READ, Access::WRITE, Access::READ | Access::WRITE] {
        for what in ["fifo", "socket", "dir", "link"] {
            fs::write(fs.src("file"), b"text").unwrap();
            let file = fs.inode("/file");
            fs::rename(fs.src("file"), fs.src("away")).unwrap();
            match what {
                "fifo" => mknodat(CWD, fs.src("file"), FileType::Fifo, Mode::RWXU, 0).unwrap(),
                "socket" => mknodat(CWD, fs.src("file"), FileType::Socket, Mode::RWXU, 0).unwrap(),
                "dir" => fs::create_dir(fs.src("file")).unwrap(),
                _ => symlink("away", fs.src("file")).unwrap(),
            }
            assert_eq!(fs.vfs.open(&op, &file, access, false), Err(Errno::STALE), "{what}");
            let remove = if what == "dir" { fs::remove_dir } else { fs::remove_file };
            remove(fs.src("file")).unwrap();
        }
    }
}
