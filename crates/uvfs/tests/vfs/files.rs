//! Open files: handles, what they allow, and how long they live; reading directories.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::common::{Mem, errno, new_attr, new_inode, root, touch, user, vfs, vfs_of};
use uvfs::{Access, Cred, Errno, Fallocate, OpenFlags, RenameFlags, Seek, Vfs, mode};

fn mem() -> (Arc<Mem>, Arc<Vfs>) {
    let mem = Arc::new(Mem::default());
    let vfs = vfs_of(Arc::clone(&mem) as Arc<dyn uvfs::Driver>);
    (mem, vfs)
}

const RW: OpenFlags = OpenFlags::READ.union(OpenFlags::WRITE);

#[test]
fn handles_allow_what_they_were_opened_for() {
    let vfs = vfs();
    let root = root(&vfs);
    touch(&root, "f");
    let file = root.resolve(b"f").unwrap();
    let op = vfs.op(&Cred::root());
    let mut buf = [0; 8];
    let r = vfs.open(&op, &file, Access::READ, false).unwrap();
    let w = vfs.open(&op, &file, Access::WRITE, false).unwrap();
    assert_ne!(r, w);
    assert_eq!(vfs.write(&op, w, 2, b"abc", false, false), Ok(3));
    assert_eq!(vfs.write(&op, w, 0, b"de", true, false), Ok(2));
    assert_eq!(vfs.read(&op, r, 0, &mut buf), Ok(7));
    assert_eq!(&buf[..7], b"\0\0abcde");
    assert_eq!(vfs.read(&op, w, 0, &mut buf), Err(Errno::BADF));
    assert_eq!(vfs.write(&op, r, 0, b"x", false, false), Err(Errno::BADF));
    assert_eq!(vfs.truncate(&op, r, 0), Err(Errno::INVAL));
    assert_eq!(vfs.write(&op, w, i64::MAX as u64, b"x", false, false), Err(Errno::FBIG));
    assert_eq!(vfs.fallocate(&op, w, Fallocate::PunchHole, 0, 0), Err(Errno::INVAL));
    assert_eq!(vfs.fallocate(&op, w, Fallocate::PunchHole, u64::MAX, 2), Err(Errno::FBIG));
    assert_eq!(vfs.fallocate(&op, r, Fallocate::PunchHole, 0, 2), Err(Errno::BADF));
    assert_eq!(vfs.seek(&op, r, 0, Seek::Data), Err(Errno::OPNOTSUPP));
    assert_eq!(vfs.fsync(&op, r, true), Ok(()));
    vfs.release(r);
    for fh in [r, 0, 12345, u64::MAX] {
        assert_eq!(vfs.read(&op, fh, 0, &mut buf), Err(Errno::BADF));
        assert_eq!(vfs.write(&op, fh, 0, b"x", false, false), Err(Errno::BADF));
        assert_eq!(vfs.fsync(&op, fh, false), Err(Errno::BADF));
        vfs.release(fh);
    }
    vfs.release(w);
}

#[test]
fn a_file_without_names_lives_while_it_is_open() {
    let (mem, vfs) = mem();
    let root = root(&vfs);
    let file = root.open(b"f", RW | OpenFlags::CREATE, 0o644).unwrap();
    file.write_at(b"data", 0).unwrap();
    root.unlink(b"f").unwrap();
    let attr = file.attr().unwrap();
    assert_eq!((attr.nlink, attr.size), (0, 4));
    let mut buf = [0; 4];
    assert_eq!(file.read_at(&mut buf, 0), Ok(4));
    assert!(mem.evicted.lock().is_empty());
    drop(file);
    assert_eq!(mem.open.load(Ordering::Relaxed), 0);
    assert_eq!(*mem.evicted.lock(), [(attr.ino, 0)]);
}

#[test]
fn what_is_replaced_is_let_go() {
    let (mem, vfs) = mem();
    let root = root(&vfs);
    touch(&root, "a");
    touch(&root, "b");
    let gone = root.stat(b"b").unwrap().ino;
    root.rename(b"a", b"b", RenameFlags::empty()).unwrap();
    assert_eq!(*mem.evicted.lock(), [(gone, 0)]);
    root.mkdir(b"d", 0o755).unwrap();
    root.mkdir(b"e", 0o755).unwrap();
    root.rename(b"d", b"e", RenameFlags::empty()).unwrap();
    root.rmdir(b"e").unwrap();
    assert_eq!(mem.evicted.lock().len(), 3);
}

#[test]
fn a_driver_that_fails_changes_nothing() {
    let (mem, vfs) = mem();
    let root = root(&vfs);
    touch(&root, "f");
    root.mkdir(b"d", 0o755).unwrap();
    root.mkdir(b"e", 0o755).unwrap();
    let before = (root.stat(b"f"), root.stat(b"d"), root.stat(b"e"), root.readdir(b"/"));
    let attempts: [&dyn Fn() -> uvfs::Result<()>; 11] = [
        &|| root.mkdir(b"x", 0o755),
        &|| root.mknod(b"x", 0o644, 0),
        &|| root.symlink(b"t", b"x"),
        &|| root.link(b"f", b"x"),
        &|| root.unlink(b"f"),
        &|| root.rmdir(b"d"),
        &|| root.rename(b"f", b"x", RenameFlags::empty()),
        &|| root.rename(b"d", b"e", RenameFlags::empty()),
        &|| root.rename(b"d", b"f", RenameFlags::EXCHANGE),
        &|| root.chmod(b"f", 0o600),
        &|| root.open(b"x", RW | OpenFlags::CREATE, 0o644).map(drop),
    ];
    for (n, attempt) in attempts.iter().enumerate() {
        mem.broken.store(true, Ordering::Relaxed);
        assert_eq!(errno(attempt()), Some(Errno::IO), "attempt {n}");
        let after = (root.stat(b"f"), root.stat(b"d"), root.stat(b"e"), root.readdir(b"/"));
        assert_eq!(after, before, "attempt {n}");
    }
    // Nothing stays behind that would prevent the removal of the directories.
    root.rename(b"d", b"e", RenameFlags::empty()).unwrap();
    root.mkdir(b"e/x", 0o755).unwrap();
    root.rmdir(b"e/x").unwrap();
    root.rmdir(b"e").unwrap();
}

#[test]
fn truncation_at_open_asks_for_write_permission() {
    let vfs = vfs();
    let root = root(&vfs);
    touch(&root, "f");
    root.truncate(b"f", 5).unwrap();
    let other = user(&vfs, 9, 9);
    assert_eq!(errno(other.open(b"f", OpenFlags::READ | OpenFlags::TRUNC, 0)), Some(Errno::ACCESS));
    assert_eq!(root.stat(b"f").unwrap().size, 5);
    drop(root.open(b"f", OpenFlags::READ | OpenFlags::TRUNC, 0).unwrap());
    assert_eq!(root.stat(b"f").unwrap().size, 0);
}

#[test]
fn a_new_files_mode_does_not_bind_its_maker() {
    let vfs = vfs();
    root(&vfs).chmod(b"/", 0o777).unwrap();
    let me = user(&vfs, 9, 9);
    let file = me.open(b"f", RW | OpenFlags::CREATE, 0).unwrap();
    assert_eq!(file.write_at(b"x", 0), Ok(1));
    assert_eq!(errno(me.open(b"f", OpenFlags::READ, 0)), Some(Errno::ACCESS));
    // An open file stays open, whatever the mode becomes.
    assert_eq!(file.set_len(0), Ok(()));
}

#[test]
fn umask_takes_bits_away() {
    let vfs = vfs();
    let mut root = root(&vfs);
    assert_eq!(root.umask(0o027), 0);
    root.mkdir(b"d", 0o777).unwrap();
    root.mknod(b"f", 0o666, 0).unwrap();
    drop(root.open(b"o", RW | OpenFlags::CREATE, 0o4777).unwrap());
    for (path, bits) in [("d", 0o750), ("f", 0o640), ("o", 0o4750)] {
        assert_eq!(crate::common::bits(&root, path), bits, "{path}");
    }
}

#[test]
fn directories_are_read_from_where_one_stopped() {
    let vfs = vfs();
    let root = root(&vfs);
    for n in 0..50 {
        touch(&root, &format!("f{n}"));
    }
    let dir = root.open(b"/", OpenFlags::READ | OpenFlags::DIRECTORY, 0).unwrap();
    let (mut names, mut cookie) = (Vec::new(), 0);
    loop {
        let before = names.len();
        dir.readdir(cookie, &mut |e| {
            assert!(e.cookie >= 3);
            names.push(String::from_utf8(e.name.to_vec()).unwrap());
            cookie = e.cookie;
            names.len() < before + 7
        })
        .unwrap();
        if names.len() == before {
            break;
        }
        // Names added or removed during the listing do not disturb the rest.
        if names.len() == 14 {
            root.unlink(b"f46").unwrap();
            touch(&root, "new");
            root.unlink(names[13].as_bytes()).unwrap();
        }
    }
    let want: Vec<String> = (0..50).rev().map(|n| format!("f{n}")).collect();
    assert_eq!(names, want);
    assert_eq!(errno(dir.read_at(&mut [0], 0)), Some(Errno::ISDIR));
}

#[test]
fn reading_a_directory_needs_permission_once() {
    let vfs = vfs();
    let root = root(&vfs);
    root.mkdir(b"d", 0o755).unwrap();
    let me = user(&vfs, 9, 9);
    let dir = me.open(b"d", OpenFlags::READ, 0).unwrap();
    root.chmod(b"d", 0o700).unwrap();
    dir.readdir(0, &mut |_| true).unwrap();
    assert_eq!(errno(me.readdir(b"d")), Some(Errno::ACCESS));
    assert_eq!(errno(me.open(b"d", OpenFlags::READ, 0)), Some(Errno::ACCESS));
    root.rmdir(b"d").unwrap();
    assert_eq!(errno(dir.readdir(0, &mut |_| true)), Some(Errno::NOENT));
}

#[test]
fn a_full_cache_is_a_full_device() {
    let config = uvfs::VfsConfig {
        cache: uvfs_cache::Config { max_inodes: 1 << 12, ..uvfs_cache::Config::default() },
        ..uvfs::VfsConfig::default()
    };
    let vfs = Vfs::new(config, Arc::new(Mem::default())).unwrap();
    let root = root(&vfs);
    let mut made = 0;
    let full = loop {
        match root.mknod(format!("f{made}").as_bytes(), 0o644, 0) {
            Ok(()) => made += 1,
            Err(errno) => break errno,
        }
        assert!(made < 1 << 20, "no limit");
    };
    assert_eq!(full, Errno::NOSPC);
    assert_eq!(errno(root.mkdir(b"d", 0o755)), Some(Errno::NOSPC));
    assert_eq!(root.readdir(b"/").unwrap().len(), made);
    root.unlink(b"f0").unwrap();
    touch(&root, "again");
}

/// The first open of a thread walks with references, and the next ones do not. Both decide by the same mode. Planted
/// bugs: open-cached-without-permission, open-cached-of-a-directory.
#[test]
fn a_cached_file_is_opened_as_any_other() {
    let (mem, vfs) = mem();
    let (root, other) = (root(&vfs), user(&vfs, 1, 1));
    touch(&root, "f");
    root.mkdir(b"d", 0o755).unwrap();
    for _ in 0..3 {
        let file = other.open(b"f", OpenFlags::READ, 0).unwrap();
        assert_eq!(
            (mem.open.load(Ordering::Relaxed), file.inode().id()),
            (1, root.resolve(b"f").unwrap().id())
        );
        assert_eq!(file.write_at(b"x", 0), Err(Errno::BADF));
        assert_eq!(errno(other.open(b"f", RW, 0)), Some(Errno::ACCESS));
        assert_eq!(errno(other.open(b"f/", OpenFlags::READ, 0)), Some(Errno::NOTDIR));
        assert_eq!(errno(root.open(b"d", RW, 0)), Some(Errno::ISDIR));
        assert_eq!(other.open(b"d", OpenFlags::READ, 0).unwrap().read_at(&mut [0], 0), Err(Errno::ISDIR));
        let appending = root.open(b"f", RW | OpenFlags::APPEND, 0).unwrap();
        assert_eq!(appending.write_at(b"x", 0), Ok(1));
    }
    assert_eq!((root.stat(b"f").unwrap().size, mem.open.load(Ordering::Relaxed)), (3, 0));
    root.chmod(b"f", 0o600).unwrap();
    assert_eq!(errno(other.open(b"f", OpenFlags::READ, 0)), Some(Errno::ACCESS));
}

/// Planted bug: plain-files-are-released.
#[test]
fn plain_files_need_no_call_of_the_driver() {
    let mut mem = Mem::default();
    mem.plain_files = true;
    let mem = Arc::new(mem);
    let vfs = vfs_of(Arc::clone(&mem) as Arc<dyn uvfs::Driver>);
    let root = root(&vfs);
    let made = root.open(b"f", RW | OpenFlags::CREATE, 0o644).unwrap();
    assert_eq!(made.write_at(b"abc", 0), Ok(3));
    let files: Vec<_> = (0..3).map(|_| root.open(b"f", OpenFlags::READ, 0).unwrap()).collect();
    root.unlink(b"f").unwrap();
    for file in &files {
        let mut bytes = [0; 3];
        assert_eq!((file.read_at(&mut bytes, 0), &bytes), (Ok(3), b"abc"));
    }
    assert!(mem.evicted.lock().is_empty());
    drop((files, made));
    assert_eq!((mem.open.load(Ordering::Relaxed), mem.evicted.lock().len()), (0, 1));
}

/// A read-only file system with the file `f`, whose driver lets everything be opened.
struct ReadOnly;

impl uvfs::Driver for ReadOnly {
    fn name(&self) -> &'static str {
        "read-only"
    }
    fn features(&self) -> uvfs::Features {
        uvfs::Features { read_only: true, ..uvfs::Features::default() }
    }
    fn root(&self, op: &uvfs::Op) -> uvfs::Result<uvfs::NewInode> {
        Ok(new_inode(new_attr(1, mode::S_IFDIR | 0o755, 0, 0, op.now)))
    }
    fn statfs(&self, _: &uvfs::Op) -> uvfs::Result<uvfs::StatFs> {
        Ok(uvfs::StatFs::default())
    }
    fn lookup(&self, op: &uvfs::Op, _: &uvfs::Inode<'_>, _: &[u8]) -> uvfs::Result<uvfs::Answer> {
        Ok(uvfs::Answer::Found(new_inode(new_attr(2, mode::S_IFREG | 0o666, 0, 0, op.now))))
    }
}

/// Planted bug: open-cached-writes-what-is-read-only.
#[test]
fn a_cached_file_of_a_read_only_file_system_is_not_opened_for_writing() {
    let vfs = vfs_of(Arc::new(ReadOnly));
    let root = root(&vfs);
    for _ in 0..3 {
        assert!(root.open(b"f", OpenFlags::READ, 0).is_ok());
        assert_eq!(errno(root.open(b"f", RW, 0)), Some(Errno::ROFS));
    }
}
