//! The control directory: a name in the root that listings hide and no driver is asked for.

use std::sync::Arc;

use crate::common::{Mem, Store, errno, root, touch, user, vfs_of};
use uvfs::{Cred, DirEntry, Driver, Errno, Found, OpenFlags, RenameFlags, Ttl, Vfs, mode};

/// The root file system of the tree.
enum Root {
    Resident,
    /// A driver that is asked, with a file `.uvfs` of its own (number 2) and a directory `d` (number 3).
    Asked(Arc<Store>),
}

/// The content of the control directory: a file `stats` and a directory `sub`.
fn control() -> Arc<dyn Driver> {
    let store = Store::default();
    store.plant(1, "stats", mode::S_IFREG | 0o444);
    let sub = store.plant(1, "sub", mode::S_IFDIR | 0o755);
    store.plant(sub, "inner", mode::S_IFREG | 0o444);
    Arc::new(store)
}

/// A tree of either kind with a control directory.
fn tree(asked: bool, listed: bool) -> (Arc<Vfs>, Root) {
    let (vfs, kind) = if asked {
        let store = Arc::new(Store::new(Ttl::Forever, false));
        store.plant(1, ".uvfs", mode::S_IFREG | 0o600);
        store.plant(1, "d", mode::S_IFDIR | 0o755);
        (vfs_of(Arc::clone(&store) as Arc<dyn Driver>), Root::Asked(store))
    } else {
        let vfs = vfs_of(Arc::new(Mem::default()));
        root(&vfs).mkdir(b"d", 0o755).unwrap();
        (vfs, Root::Resident)
    };
    vfs.mount_control(control(), listed).unwrap();
    (vfs, kind)
}

fn names(vfs: &Vfs, path: &str) -> Vec<String> {
    let entries = root(vfs).readdir(path.as_bytes()).unwrap();
    entries.into_iter().map(|e| String::from_utf8(e.name).unwrap()).collect()
}

fn sorted(mut names: Vec<String>) -> Vec<String> {
    names.sort();
    names
}

#[test]
fn it_is_found_by_name_and_its_parent_is_the_root() {
    for asked in [false, true] {
        let (vfs, kind) = tree(asked, false);
        for mut c in [root(&vfs), user(&vfs, 1000, 1000)] {
            assert!(c.stat(b"/.uvfs").unwrap().is_dir());
            assert!(c.stat(b".uvfs/stats").unwrap().is_reg());
            assert!(c.stat(b"/d/../.uvfs/sub/inner").unwrap().is_reg());
            assert!(c.open(b"/.uvfs/stats", OpenFlags::READ, 0).is_ok());
            assert_eq!(c.stat(b"/.uvfs/..").unwrap(), c.stat(b"/").unwrap());
            assert_eq!(c.stat(b"/.uvfs/sub/../..").unwrap(), c.stat(b"/").unwrap());
            assert!(c.stat(b"/.uvfs/../d").unwrap().is_dir());
            assert_eq!(errno(c.stat(b"/.uvfs/none")), Some(Errno::NOENT));
            assert_eq!(errno(c.stat(b"/d/.uvfs")), Some(Errno::NOENT), "only in the root");
            assert_eq!(errno(c.stat(b"/.uvfs/.uvfs")), Some(Errno::NOENT));
            c.chdir(b"/.uvfs/sub").unwrap();
            assert!(c.stat(b"inner").unwrap().is_reg());
            assert!(c.stat(b"../stats").unwrap().is_reg());
            assert!(c.stat(b"../../d").unwrap().is_dir());
            assert!(c.stat(b"../../.uvfs/stats").unwrap().is_reg());
        }
        if let Root::Asked(store) = kind {
            assert_eq!(store.asked(".uvfs"), 1, "in /d, and nowhere else");
        }
        assert_eq!(vfs.mount_count(), 1);
    }
}

#[test]
fn lookups_by_inode_find_it_too() {
    for asked in [false, true] {
        let (vfs, _) = tree(asked, false);
        let (op, top) = (vfs.op(&Cred::root()), vfs.root());
        let node = |found| match found {
            Found::Node(inode, _) => inode,
            Found::Absent(_) => panic!("absent"),
        };
        let control = node(vfs.lookup(&op, &top, b".uvfs").unwrap());
        assert_ne!(control.sb(), top.sb());
        assert_eq!(node(vfs.lookup_cached(&op, &top, b".uvfs").unwrap().unwrap()).id(), control.id());
        assert_eq!(node(vfs.lookup(&op, &control, b"..").unwrap()).id(), top.id());
        assert_eq!(errno(vfs.unmount(&control)), Some(Errno::INVAL));
    }
}

#[test]
fn links_lead_there() {
    let (vfs, _) = tree(false, false);
    let root = root(&vfs);
    root.symlink(b".uvfs/sub", b"/link").unwrap();
    root.symlink(b"../.uvfs", b"/d/link").unwrap();
    // The second walk of each finds the target in the cache.
    for _ in 0..3 {
        assert!(root.stat(b"/link/inner").unwrap().is_reg());
        assert!(root.stat(b"/d/link/stats").unwrap().is_reg());
    }
}

#[test]
fn its_name_cannot_be_changed() {
    for asked in [false, true] {
        let (vfs, _) = tree(asked, false);
        let root = root(&vfs);
        let none = RenameFlags::empty();
        touch(&root, "f");
        root.mkdir(b"e", 0o755).unwrap();
        assert_eq!(errno(root.mkdir(b"/.uvfs", 0o755)), Some(Errno::EXIST));
        assert_eq!(errno(root.mknod(b"/.uvfs", mode::S_IFREG | 0o644, 0)), Some(Errno::EXIST));
        assert_eq!(errno(root.symlink(b"x", b"/.uvfs")), Some(Errno::EXIST));
        assert_eq!(errno(root.link(b"/f", b"/.uvfs")), Some(Errno::EXIST));
        assert_eq!(errno(root.link(b"/.uvfs/stats", b"/s")), Some(Errno::XDEV));
        assert_eq!(errno(root.unlink(b"/.uvfs")), Some(Errno::ISDIR));
        assert_eq!(errno(root.rmdir(b"/.uvfs")), Some(Errno::BUSY));
        assert_eq!(errno(root.rename(b"/.uvfs", b"/x", none)), Some(Errno::BUSY));
        assert_eq!(errno(root.rename(b"/e", b"/.uvfs", none)), Some(Errno::BUSY));
        assert_eq!(errno(root.rename(b"/f", b"/.uvfs", none)), Some(Errno::ISDIR));
        assert_eq!(errno(root.rename(b"/f", b"/.uvfs", RenameFlags::NOREPLACE)), Some(Errno::EXIST));
        assert_eq!(errno(root.rename(b"/e", b"/.uvfs", RenameFlags::EXCHANGE)), Some(Errno::BUSY));
        assert_eq!(errno(root.rename(b"/f", b"/.uvfs/f", none)), Some(Errno::XDEV));
        let open = OpenFlags::READ | OpenFlags::WRITE | OpenFlags::CREATE;
        assert_eq!(errno(root.open(b"/.uvfs", open, 0o644)), Some(Errno::ISDIR));
        // Elsewhere the name is ordinary.
        touch(&root, "e/.uvfs");
        assert!(root.stat(b"/e/.uvfs").unwrap().is_reg());
        root.rename(b"/e/.uvfs", b"/g", none).unwrap();
        root.unlink(b"/g").unwrap();
        assert!(root.stat(b"/.uvfs/stats").unwrap().is_reg());
    }
}

#[test]
fn listings_leave_it_out_or_have_it_last() {
    for asked in [false, true] {
        let (hidden, _) = tree(asked, false);
        touch(&root(&hidden), "f");
        assert_eq!(sorted(names(&hidden, "/")), ["d", "f"]);
        assert_eq!(sorted(names(&hidden, "/.uvfs")), ["stats", "sub"]);

        let (shown, _) = tree(asked, true);
        touch(&root(&shown), "f");
        let whole = names(&shown, "/");
        assert_eq!((whole.len(), whole[2].as_str()), (3, ".uvfs"));
        assert_eq!(sorted(whole.clone()), [".uvfs", "d", "f"]);
        // One entry at a time, resumed by cookie, as a front end does.
        let (op, top) = (shown.op(&Cred::root()), shown.root());
        let (mut cookie, mut seen) = (0, Vec::new());
        loop {
            let mut next = None;
            shown
                .readdir(&op, &top, cookie, &mut |entry: DirEntry<'_>| {
                    next = Some((entry.name.to_vec(), entry.cookie));
                    false
                })
                .unwrap();
            let Some((name, at)) = next else { break };
            seen.push(String::from_utf8(name).unwrap());
            cookie = at;
        }
        assert_eq!(seen, whole);
    }
}

#[test]
fn a_changed_root_keeps_it_out_of_sight() {
    for asked in [false, true] {
        let (vfs, _) = tree(asked, false);
        let mut inside = root(&vfs);
        inside.chroot(b"/d").unwrap();
        inside.chdir(b"/").unwrap();
        assert_eq!(errno(inside.stat(b"/.uvfs")), Some(Errno::NOENT));
        assert_eq!(errno(inside.stat(b"/../.uvfs")), Some(Errno::NOENT));
        // A process whose root is in it does not get out of that root.
        let mut control = root(&vfs);
        control.chroot(b"/.uvfs").unwrap();
        control.chdir(b"/").unwrap();
        assert_eq!(control.stat(b"/..").unwrap(), control.stat(b"/").unwrap());
        assert!(control.stat(b"/../sub/../stats").unwrap().is_reg());
    }
}

#[test]
fn there_is_one_and_it_replaces_nothing() {
    let vfs = vfs_of(Arc::new(Mem::default()));
    touch(&root(&vfs), ".uvfs");
    assert_eq!(errno(vfs.mount_control(control(), false)), Some(Errno::EXIST));
    root(&vfs).unlink(b"/.uvfs").unwrap();
    vfs.mount_control(control(), false).unwrap();
    assert_eq!(errno(vfs.mount_control(control(), false)), Some(Errno::EXIST));
    assert!(root(&vfs).stat(b"/.uvfs/stats").unwrap().is_reg());

    // The mount covers the driver's own entry of that name, and the cached state of it.
    let store = Arc::new(Store::new(Ttl::Forever, false));
    store.plant(1, ".uvfs", mode::S_IFREG | 0o600);
    let vfs = vfs_of(Arc::clone(&store) as Arc<dyn Driver>);
    let root = root(&vfs);
    assert!(root.stat(b"/.uvfs").unwrap().is_reg());
    vfs.mount_control(control(), false).unwrap();
    assert!(root.stat(b"/.uvfs").unwrap().is_dir());
    assert_eq!(store.asked(".uvfs"), 1);
}
