//! File systems mounted inside file systems.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::common::{Mem, errno, root, touch, user, vfs, vfs_of};
use uvfs::{Errno, OpenFlags, RenameFlags, Vfs};

/// A tree with a second file system on `d`, which has `f` and `e`.
fn mounted() -> (Arc<Vfs>, Arc<Mem>) {
    let vfs = vfs();
    let inner = Arc::new(Mem::default());
    {
        let root = root(&vfs);
        root.mkdir(b"d", 0o755).unwrap();
        touch(&root, "d/covered");
        vfs.mount(&root.resolve(b"d").unwrap(), Arc::clone(&inner) as Arc<dyn uvfs::Driver>).unwrap();
        touch(&root, "d/f");
        root.mkdir(b"d/e", 0o755).unwrap();
    }
    (vfs, inner)
}

#[test]
fn walks_cross_mounts_both_ways() {
    let (vfs, _inner) = mounted();
    let mut root = root(&vfs);
    assert_eq!(errno(root.stat(b"d/covered")), Some(Errno::NOENT));
    assert!(root.stat(b"d/f").unwrap().is_reg());
    assert!(root.stat(b"d/e/../f").unwrap().is_reg());
    assert!(root.stat(b"d/../d/f").unwrap().is_reg());
    assert_eq!(root.stat(b"d").unwrap(), root.stat(b"d/.").unwrap());
    assert_eq!(root.stat(b"d/..").unwrap(), root.stat(b"/").unwrap());
    root.chdir(b"d/e").unwrap();
    assert!(root.stat(b"../f").unwrap().is_reg());
    assert!(root.stat(b"../../d/f").unwrap().is_reg());
    root.symlink(b"../../d/f", b"up").unwrap();
    root.symlink(b"/d/f", b"abs").unwrap();
    assert!(root.stat(b"up").unwrap().is_reg());
    assert!(root.stat(b"abs").unwrap().is_reg());
    assert!(root.open(b"/d/new", OpenFlags::CREATE | OpenFlags::READ, 0o644).is_ok());
    let names: Vec<_> = root.readdir(b"/d").unwrap().into_iter().map(|e| e.name).collect();
    assert_eq!(names, [b"new".to_vec(), b"e".to_vec(), b"f".to_vec()]);
}

#[test]
fn lookups_by_inode_cross_too() {
    let (vfs, _inner) = mounted();
    let op = vfs.op(&uvfs::Cred::root());
    let top = vfs.root();
    let node = |found| match found {
        uvfs::Found::Node(inode, _) => inode,
        uvfs::Found::Absent(_) => panic!("absent"),
    };
    let inner = node(vfs.lookup(&op, &top, b"d").unwrap());
    assert_ne!(inner.sb(), top.sb());
    assert_eq!(node(vfs.lookup_cached(&op, &top, b"d").unwrap().unwrap()).id(), inner.id());
    assert_eq!(node(vfs.lookup(&op, &inner, b"..").unwrap()).id(), top.id());
    assert_eq!(node(vfs.lookup(&op, &inner, b".").unwrap()).id(), inner.id());
    assert_eq!(node(vfs.lookup(&op, &top, b"..").unwrap()).id(), top.id());
}

#[test]
fn mount_points_stay_and_file_systems_are_apart() {
    let (vfs, _inner) = mounted();
    let root = root(&vfs);
    root.mkdir(b"other", 0o755).unwrap();
    touch(&root, "file");
    assert_eq!(errno(root.rmdir(b"d")), Some(Errno::BUSY));
    assert_eq!(errno(root.rename(b"d", b"x", RenameFlags::empty())), Some(Errno::BUSY));
    assert_eq!(errno(root.rename(b"other", b"d", RenameFlags::empty())), Some(Errno::BUSY));
    assert_eq!(errno(root.rename(b"other", b"d", RenameFlags::EXCHANGE)), Some(Errno::BUSY));
    assert_eq!(errno(root.unlink(b"d")), Some(Errno::ISDIR));
    assert_eq!(errno(root.rename(b"file", b"d/x", RenameFlags::empty())), Some(Errno::XDEV));
    assert_eq!(errno(root.rename(b"d/f", b"x", RenameFlags::empty())), Some(Errno::XDEV));
    assert_eq!(errno(root.link(b"file", b"d/x")), Some(Errno::XDEV));
    assert_eq!(errno(root.link(b"file", b"d/f")), Some(Errno::EXIST));
    assert_eq!(errno(root.rmdir(b"d/.")), Some(Errno::INVAL));
}

#[test]
fn unmounting() {
    let (vfs, inner) = mounted();
    let root = root(&vfs);
    let mounted = root.resolve(b"d").unwrap();
    assert_eq!(errno(vfs.unmount(&root.resolve(b"d/e").unwrap())), Some(Errno::INVAL));
    assert_eq!(errno(vfs.unmount(&vfs.root())), Some(Errno::INVAL));
    let deeper = root.resolve(b"d/e").unwrap();
    vfs.mount(&deeper, Arc::new(Mem::default())).unwrap();
    assert_eq!(vfs.mount_count(), 3);
    assert_eq!(errno(vfs.unmount(&mounted)), Some(Errno::BUSY));
    vfs.unmount(&root.resolve(b"d/e").unwrap()).unwrap();
    drop(deeper);
    let file = root.open(b"d/f", OpenFlags::READ | OpenFlags::WRITE, 0).unwrap();
    vfs.unmount(&mounted).unwrap();
    assert_eq!(vfs.mount_count(), 1);
    assert!(root.stat(b"d/covered").unwrap().is_reg());
    assert_eq!(errno(root.stat(b"d/f")), Some(Errno::NOENT));
    // An open file keeps working. A call on an inode that is only referenced reports that its file system is gone.
    assert_eq!(file.write_at(b"still", 0), Ok(5));
    let op = vfs.op(&uvfs::Cred::root());
    assert_eq!(errno(vfs.mkdir(&op, &mounted, b"x", 0o755)), Some(Errno::STALE));
    drop((file, mounted));
    assert_eq!(inner.open.load(Ordering::Relaxed), 0);
    assert_eq!(inner.evicted.lock().len(), 3);
    root.rename(b"d", b"x", RenameFlags::empty()).unwrap();
}

/// Counted by the driver's own `Arc`: the test holds one, and each thread with open files holds one.
#[test]
fn after_an_unmount_only_open_files_keep_the_driver() {
    let (vfs, inner) = mounted();
    let root = root(&vfs);
    let open = || root.open(b"d/f", OpenFlags::READ, 0).unwrap();
    // Opened by three threads, closed by this one.
    let files: Vec<_> = std::thread::scope(|s| {
        let threads: Vec<_> = (0..3).map(|_| s.spawn(|| [open(), open()])).collect();
        threads.into_iter().flat_map(|t| t.join().unwrap()).collect()
    });
    let op = vfs.op(&uvfs::Cred::root());
    let stray = root.resolve(b"d/f").unwrap();
    vfs.unmount(&root.resolve(b"d").unwrap()).unwrap();
    assert_eq!(inner.open.load(Ordering::Relaxed), 6);
    assert!(Arc::strong_count(&inner) > 1);
    drop(files);
    assert_eq!((inner.open.load(Ordering::Relaxed), Arc::strong_count(&inner)), (0, 1));
    assert_eq!(vfs.open(&op, &stray, uvfs::Access::READ, false), Err(Errno::STALE));
}

#[test]
fn mounts_are_stacked() {
    let (vfs, _inner) = mounted();
    let root = root(&vfs);
    let first = root.resolve(b"d").unwrap();
    vfs.mount(&first, Arc::new(Mem::default())).unwrap();
    touch(&root, "d/second");
    assert_eq!(errno(root.stat(b"d/f")), Some(Errno::NOENT));
    assert_eq!(root.stat(b"d/..").unwrap(), root.stat(b"/").unwrap());
    assert_eq!(errno(vfs.unmount(&first)), Some(Errno::BUSY));
    vfs.unmount(&root.resolve(b"d").unwrap()).unwrap();
    assert!(root.stat(b"d/f").unwrap().is_reg());
}

#[test]
fn mounts_that_cannot_be() {
    let vfs = vfs();
    let root = root(&vfs);
    touch(&root, "f");
    root.mkdir(b"gone", 0o755).unwrap();
    let gone = root.resolve(b"gone").unwrap();
    root.rmdir(b"gone").unwrap();
    assert_eq!(errno(vfs.mount(&root.resolve(b"f").unwrap(), Arc::new(Mem::default()))), Some(Errno::NOTDIR));
    assert_eq!(errno(vfs.mount(&gone, Arc::new(Mem::default()))), Some(Errno::NOENT));
    assert_eq!(vfs.mount_count(), 1);
}

#[test]
fn a_root_on_the_root() {
    let vfs = vfs();
    touch(&root(&vfs), "below");
    vfs.mount(&vfs.root(), Arc::new(Mem::default())).unwrap();
    let root = root(&vfs);
    assert_eq!(errno(root.stat(b"/below")), Some(Errno::NOENT));
    touch(&root, "above");
    assert_eq!(root.stat(b"/..").unwrap(), root.stat(b"/").unwrap());
    assert!(root.stat(b"../above").unwrap().is_reg());
}

#[test]
fn a_mount_is_no_way_out_of_a_root() {
    let vfs = vfs();
    let free = root(&vfs);
    free.mkdir(b"jail", 0o755).unwrap();
    free.mkdir(b"jail/d", 0o755).unwrap();
    let mut jailed = root(&vfs);
    jailed.chroot(b"jail").unwrap();
    jailed.chdir(b"/").unwrap();
    assert_eq!(jailed.stat(b"../..").unwrap(), free.stat(b"jail").unwrap());
    // Now its root is covered, and `d/..` leads to the covering root.
    vfs.mount(&free.resolve(b"jail").unwrap(), Arc::new(Mem::default())).unwrap();
    let covering = free.stat(b"jail").unwrap();
    for path in [&b"d/.."[..], b"d/../..", b"d/../../..", b"/d/../../.."] {
        assert_eq!(jailed.stat(path).unwrap(), covering);
        // The same with references.
        assert_eq!(jailed.resolve(path).unwrap().attr(), covering);
    }
    free.symlink(b"../..", b"jail/up").unwrap();
    assert_eq!(jailed.stat(b"d/../up").unwrap(), free.stat(b"jail").unwrap());
    assert_eq!(errno(user(&vfs, 9, 9).chroot(b"jail")), Some(Errno::PERM));
}

#[test]
fn a_mount_and_a_removal_exclude_each_other() {
    for _ in 0..200 {
        let vfs = vfs_of(Arc::new(Mem::default()));
        let context = root(&vfs);
        context.mkdir(b"d", 0o755).unwrap();
        let dir = context.resolve(b"d").unwrap();
        let barrier = std::sync::Barrier::new(2);
        let (mounted, removed) = std::thread::scope(|s| {
            let mount = s.spawn(|| {
                barrier.wait();
                vfs.mount(&dir, Arc::new(Mem::default()))
            });
            barrier.wait();
            let removed = root(&vfs).rmdir(b"d");
            (mount.join().unwrap(), removed)
        });
        match (mounted, removed) {
            // Not empty: the mount was in progress.
            (Ok(()), Err(Errno::BUSY | Errno::NOTEMPTY)) => assert!(context.stat(b"d").unwrap().is_dir()),
            (Err(Errno::NOENT), Ok(())) => assert_eq!(errno(context.stat(b"d")), Some(Errno::NOENT)),
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn everything_is_let_go_in_the_end() {
    let outer = Arc::new(Mem::default());
    let inner = Arc::new(Mem::default());
    let vfs = vfs_of(Arc::clone(&outer) as Arc<dyn uvfs::Driver>);
    {
        let root = root(&vfs);
        root.mkdir(b"d", 0o755).unwrap();
        vfs.mount(&root.resolve(b"d").unwrap(), Arc::clone(&inner) as Arc<dyn uvfs::Driver>).unwrap();
        touch(&root, "d/f");
        // A handle that is never released.
        let op = vfs.op(&uvfs::Cred::root());
        let file = root.resolve(b"d/f").unwrap();
        assert_ne!(vfs.open(&op, &file, uvfs::Access::READ, false).unwrap(), 0);
    }
    drop(vfs);
    assert_eq!(inner.open.load(Ordering::Relaxed), 0);
    assert_eq!(inner.evicted.lock().len(), 2);
    assert_eq!(outer.evicted.lock().len(), 2);
    assert_eq!((Arc::strong_count(&outer), Arc::strong_count(&inner)), (1, 1));
}

#[test]
fn a_root_under_a_stacked_mount_is_not_left() {
    let vfs = vfs();
    let root = root(&vfs);
    root.mkdir(b"d", 0o755).unwrap();
    touch(&root, "secret");
    vfs.mount(&root.resolve(b"d").unwrap(), Arc::new(Mem::default())).unwrap();
    root.mkdir(b"d/sub", 0o755).unwrap();
    root.symlink(b"/sub/../../secret", b"d/link").unwrap();
    let mut jail = root.clone();
    jail.chroot(b"/d").unwrap();
    jail.chdir(b"/").unwrap();
    // A user outside mounts once more on the same directory, so the jail's root is now in the middle.
    vfs.mount(&root.resolve(b"d").unwrap(), Arc::new(Mem::default())).unwrap();
    for path in [&b"/sub/../../secret"[..], b"/link"] {
        assert_eq!(errno(jail.stat(path)), Some(Errno::NOENT));
    }
    assert!(root.stat(b"/d/../secret").unwrap().is_reg());
}

#[test]
fn an_unmounted_driver_is_let_go() {
    let (vfs, inner) = mounted();
    let root = root(&vfs);
    vfs.unmount(&root.resolve(b"d").unwrap()).unwrap();
    assert_eq!(Arc::strong_count(&inner), 1);
}

/// A path that exists whatever is mounted is found while mounts come and go.
#[test]
fn a_path_through_a_mount_that_comes_and_goes_exists() {
    let vfs = vfs();
    let context = root(&vfs);
    context.mkdir(b"d", 0o755).unwrap();
    context.mkdir(b"etc", 0o755).unwrap();
    std::thread::scope(|scope| {
        let reader = scope.spawn(|| {
            let context = root(&vfs);
            for _ in 0..200_000 {
                assert_eq!(errno(context.stat(b"/d/../etc")), None);
            }
        });
        while !reader.is_finished() {
            vfs.mount(&context.resolve(b"d").unwrap(), Arc::new(Mem::default())).unwrap();
            vfs.unmount(&context.resolve(b"d").unwrap()).unwrap();
        }
        reader.join().unwrap();
    });
}
