//! Access control lists, compared with the host kernel's on a tmpfs; and their cost if there is none.

use std::fmt::Write as _;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::common::{Mem, Store, bits, compare, errno, root, touch, user, vfs_of};
use uvfs::{
    Access, Acl, AclEntry, AclKind, AclTag, Attr, Bail, Cred, Driver, Errno, Found, Op, Vfs, VfsConfig,
    XattrFlags, counters, mode,
};

/// A list in the syntax of scripts.
fn list(text: &str) -> Acl {
    Acl::from_xattr(&crate::common::script::acl_bytes(text).unwrap()).unwrap().unwrap()
}

#[test]
fn lists_are_set_shown_and_removed() {
    compare(
        "
        mkfile f 640 : ok
        mkdir d 755 : ok
        getacl f access : ENODATA
        getacl d default : ENODATA
        getacl f default : ENODATA
        setacl f access u::rwx,u:7:r-x,g::r--,g:8:-w-,m::rwx,o::--x : ok
        getacl f access : u::rwx,u:7:r-x,g::r--,g:8:-w-,m::rwx,o::--x
        stat f : -771 0:0 1 0
        listxattr f : system.posix_acl_access
        setxattr f user.a b : ok
        listxattr f : system.posix_acl_access user.a
        rmacl f access : ok
        getacl f access : ENODATA
        stat f : -771 0:0 1 0        # the mask stays, as the group's bits
        rmacl f access : ok
        setacl f access u::rw-,g::r--,o::--- : ok
        getacl f access : ENODATA    # mode bits say it all
        stat f : -640 0:0 1 0
        setacl f access u::rw-,u:7:---,g::rwx,m::r--,o::--- : ok
        setacl f access hex:02000000 : ok
        getacl f access : ENODATA    # no entries, no list
        stat f : -640 0:0 1 0
        setacl d default u::rwx,g::r-x,o::--- : ok
        getacl d default : u::rwx,g::r-x,o::---
        stat d : d755 0:0 2
        listxattr d : system.posix_acl_default
        setacl d access u::rwx,u:7:rwx,g::r-x,m::rwx,o::--- : ok
        listxattr d : system.posix_acl_access system.posix_acl_default
        stat d : d770 0:0 2
        rmacl d default : ok
        getacl d default : ENODATA
        getacl d access : u::rwx,u:7:rwx,g::r-x,m::rwx,o::---
        ",
    );
}

#[test]
fn what_is_refused() {
    compare(
        "
        umask 0 : ok
        mkfile f 666 : ok
        chown f 5 5 : ok
        mkdir d 777 : ok
        mkfifo p 666 : ok
        symlink f l : ok
        setacl f access hex:01000000 : EOPNOTSUPP
        setacl f access hex:0200 : EINVAL
        setacl f access hex:0200000001 : EINVAL
        setacl f access hex:020000000300070000000000 : EINVAL
        @9 setacl f access hex:020000000300070000000000 : EINVAL
        @9 setacl f access u::rwx,g::rwx : EPERM
        @5 setacl f access u::rwx,g::rwx : EINVAL
        @5 setacl f access u::rwx,g::rwx,o::r-x,m::rwx : EINVAL
        @5 setacl f access u::rwx,u:1:rwx,g::rwx,o::r-x : EINVAL
        @5 setacl f access hex:020000000100080000000000 : EINVAL
        setacl f default u::rwx,g::rwx,o::rwx : EACCES
        @9 setacl f default u::rwx,g::rwx,o::rwx : EACCES
        setacl f default u::rwx,g::rwx : EACCES
        rmacl f default : ok
        @9 rmacl f default : ok
        @9 rmacl f access : EPERM
        @9 rmacl d access : EPERM
        @9 rmacl d default : EPERM
        @9 setacl d default u::rwx,g::rwx,o::rwx : EPERM
        setacl p access u::rw-,u:9:rw-,g::---,m::rw-,o::--- : ok
        getacl p access : u::rw-,u:9:rw-,g::---,m::rw-,o::---
        setacl p default u::rwx,g::rwx,o::rwx : EACCES
        @9 setacl x access u::rwx,g::rwx,o::rwx : ENOENT
        @9 getacl f access : ENODATA
        @5 setacl f access u::rw-,u:9:rw-,g::---,m::rw-,o::--- : ok
        chmod f 0 : ok
        @9 getacl f access : u::---,u:9:rw-,g::---,m::---,o::---
        @9 setxattr f system.posix_acl x : EOPNOTSUPP
        ",
    );
}

#[test]
fn a_list_grants_and_denies() {
    let mut text = String::from(
        "
        umask 0 : ok
        mkfile f 666 : ok
        chown f 100 200 : ok
        setacl f access u::r--,u:100:rwx,u:101:-w-,u:102:rwx,g::rw-,g:201:--x,g:202:r-x,m::rwx,o::-w- : ok
        ",
    );
    // The owner's entry; a named user's; groups, each alone; others.
    for (who, may) in [
        ("@100:1", "r"),
        ("@100:200,201", "r"),
        ("@101:1", "w"),
        ("@101:200,202", "w"),
        ("@102:1", "rwx"),
        ("@103:200", "rw"),
        ("@103:1,200", "rw"),
        ("@103:201", "x"),
        ("@103:1,202", "rx"),
        ("@103:200,201", "rwx-alone"),
        ("@103:1", "w"),
    ] {
        for want in ["r", "w", "x", "rw", "rx", "wx", "rwx", "-"] {
            let alone = may == "rwx-alone";
            let granted = if alone {
                !want.contains('x') || want == "x"
            } else {
                want.chars().all(|c| c == '-' || may.contains(c))
            };
            let outcome = if granted { "ok" } else { "EACCES" };
            writeln!(text, "{who} access f {want} : {outcome}").unwrap();
        }
    }
    text += "
        setacl f access u::---,u:101:rwx,g::rwx,g:201:rwx,m::r--,o::rwx : ok
        @100 access f r : EACCES
        @101 access f r : ok
        @101 access f w : EACCES
        @103:200 access f r : ok
        @103:200 access f w : EACCES
        @103:201 access f x : EACCES
        @103:1 access f rwx : ok
        @0 access f rwx : ok
        setacl f access u::rw-,u:101:rwx,g::rwx,m::rw-,o::--- : ok
        access f rw : ok
        access f x : EACCES
        @101 open f READ,WRITE : ok
        @104 open f READ : EACCES
        @103:200 open f WRITE,TRUNC : ok
        @101 truncate f 3 : ok
        @104 truncate f 3 : EACCES
        @101 utimes f now now : ok
        @104 utimes f now now : EACCES
        @101 utimes f 1 1 : EPERM
        @101 setxattr f user.a b : ok
        @104 getxattr f user.a : EACCES
    ";
    compare(&text);
}

/// The kernel does not ask a list whose mask is empty: mode bits decide then.
#[test]
fn an_empty_mask_leaves_it_to_the_mode_bits() {
    compare(
        "
        umask 0 : ok
        mkfile f 666 : ok
        chown f 100 200 : ok
        setacl f access u::---,u:101:rwx,g::rwx,g:201:rwx,m::---,o::r-- : ok
        @101:1 access f r : ok
        @101:200 access f r : EACCES
        @103:201 access f r : ok
        @103:200 access f r : EACCES
        @100:1 access f r : EACCES
        @101:1 access f w : EACCES
        ",
    );
}

#[test]
fn walks_go_where_lists_let_them() {
    compare(
        "
        umask 0 : ok
        mkdir d 700 : ok
        mkdir d/e 755 : ok
        mkfile d/e/f 666 : ok
        mkfile d/f 666 : ok
        @7 stat d/e/f : EACCES
        setacl d access u::rwx,u:7:--x,u:8:r--,u:9:rwx,g::---,g:70:-wx,m::rwx,o::--- : ok
        @7 stat d/e/f : -666 0:0 1 0
        @7 stat d/x : ENOENT
        @7 stat d/e/x/y : ENOENT
        @7 ls d : EACCES
        @7 mkfile d/g 644 : EACCES
        @7 unlink d/f : EACCES
        @7 chdir d : ok
        @7 stat e/f : -666 0:0 1 0
        @8 stat e/f : EACCES
        chdir / : ok
        @8 ls d : e f
        @8 stat d/f : EACCES
        @8 stat d/e/f : EACCES
        @9 ls d : e f
        @9 mkfile d/g 644 : ok
        @9 unlink d/g : ok
        @9 rename d/f d/h : ok
        @10:70 mkdir d/g 755 : ok
        @10:70 rename d/h d/f : ok
        @10:70 ls d : EACCES
        @10:70 rmdir d/g : ok
        @11 stat d/e/f : EACCES
        setacl d access u::rwx,u:7:---,g::rwx,m::rwx,o::rwx : ok
        @7 stat d/e/f : EACCES
        @7 stat d/x : EACCES
        @11 stat d/e/f : -666 0:0 1 0
        rmacl d access : ok
        @7 stat d/e/f : -666 0:0 1 0
        chmod d 1777 : ok
        setacl d access u::rwx,u:7:rwx,g::---,m::rwx,o::rwx : ok
        @7 unlink d/f : EPERM
        @9 unlink d/f : EPERM
        ",
    );
}

#[test]
fn a_change_of_mode_is_one_of_the_mask() {
    compare(
        "
        umask 0 : ok
        mkfile f 666 : ok
        setacl f access u::rwx,u:7:rwx,g::r-x,m::rwx,o::--- : ok
        chmod f 641 : ok
        stat f : -641 0:0 1 0
        getacl f access : u::rw-,u:7:rwx,g::r-x,m::r--,o::--x
        @7 access f r : ok
        @7 access f w : EACCES
        @7 access f x : EACCES
        @8 access f x : ok
        chmod f 7777 : ok
        getacl f access : u::rwx,u:7:rwx,g::r-x,m::rwx,o::rwx
        stat f : -7777 0:0 1 0
        chown f 3 3 : ok
        stat f : -1777 3:3 1 0
        getacl f access : u::rwx,u:7:rwx,g::r-x,m::rwx,o::rwx
        chmod f 4755 : ok
        @7 open f WRITE,TRUNC : EACCES
        setacl f access u::rwx,u:7:rwx,g::r-x,m::rwx,o::--- : ok
        stat f : -4770 3:3 1 0
        @7 open f WRITE,TRUNC : ok
        stat f : -770 3:3 1 0
        getacl f access : u::rwx,u:7:rwx,g::r-x,m::rwx,o::---
        ",
    );
}

/// As a chmod does: set-group-id is cleared if the owner is not a member of the group.
#[test]
fn a_list_may_cost_set_group_id() {
    compare(
        "
        umask 0 : ok
        mkfile f 666 : ok
        chown f 5 50 : ok
        chmod f 6770 : ok
        @5:50 setacl f access u::rwx,u:7:rwx,g::r-x,m::rwx,o::--- : ok
        stat f : -6770 5:50 1 0
        @5:1,50 setacl f access u::rwx,u:7:rwx,g::r-x,m::r--,o::--- : ok
        stat f : -6740 5:50 1 0
        @5:1 setacl f access u::rwx,u:7:rwx,g::r-x,m::rwx,o::--- : ok
        stat f : -4770 5:50 1 0
        chmod f 2770 : ok
        setacl f access u::rwx,g::r-x,o::--- : ok
        stat f : -2750 5:50 1 0
        @5:1 setacl f access u::rwx,g::r-x,o::--- : ok
        stat f : -750 5:50 1 0
        chmod f 2750 : ok
        @5:1 rmacl f access : ok
        stat f : -750 5:50 1 0
        mkdir d 2777 : ok
        chmod d 3777 : ok
        chown d 5 50 : ok
        @5:1 setacl d default u::rwx,g::r-x,o::--- : ok
        stat d : d3777 5:50 2
        @5:1 setacl d access u::rwx,g::r-x,o::--- : ok
        stat d : d1750 5:50 2
        ",
    );
}

#[test]
fn what_is_made_inherits() {
    compare(
        "
        mkdir d 777 : ok
        umask 27 : ok
        mkfile d/plain 666 : ok
        stat d/plain : -640 0:0 1 0
        setacl d default u::rwx,u:7:rwx,g::r-x,g:8:-w-,m::rwx,o::r-x : ok
        umask 77 : ok
        mkfile d/f 666 : ok                # the list takes the place of the umask
        stat d/f : -664 0:0 1 0
        getacl d/f access : u::rw-,u:7:rwx,g::r-x,g:8:-w-,m::rw-,o::r--
        getacl d/f default : ENODATA
        open d/o CREATE,WRITE 640 : ok
        stat d/o : -640 0:0 1 0
        getacl d/o access : u::rw-,u:7:rwx,g::r-x,g:8:-w-,m::r--,o::---
        mkfifo d/p 600 : ok
        getacl d/p access : u::rw-,u:7:rwx,g::r-x,g:8:-w-,m::---,o::---
        stat d/p : p600 0:0 1
        symlink d/f d/l : ok
        lstat d/l : l777 0:0 1 3
        mkdir d/e 777 : ok
        stat d/e : d775 0:0 2
        getacl d/e access : u::rwx,u:7:rwx,g::r-x,g:8:-w-,m::rwx,o::r-x
        getacl d/e default : u::rwx,u:7:rwx,g::r-x,g:8:-w-,m::rwx,o::r-x
        mkdir d/e/e 700 : ok
        stat d/e/e : d700 0:0 2
        getacl d/e/e access : u::rwx,u:7:rwx,g::r-x,g:8:-w-,m::---,o::---
        getacl d/e/e default : u::rwx,u:7:rwx,g::r-x,g:8:-w-,m::rwx,o::r-x
        setacl d default u::rwx,g::r-x,o::--- : ok
        mkfile d/g 666 : ok
        stat d/g : -640 0:0 1 0
        getacl d/g access : ENODATA
        mkdir d/h 777 : ok
        stat d/h : d750 0:0 2
        getacl d/h access : ENODATA
        getacl d/h default : u::rwx,g::r-x,o::---
        rmacl d default : ok
        mkfile d/i 666 : ok
        stat d/i : -600 0:0 1 0
        ",
    );
}

#[test]
fn set_group_id_is_decided_before_the_umask() {
    compare(
        "
        umask 0 : ok
        mkdir d 2777 : ok
        chmod d 2777 : ok
        chown d 0 50 : ok
        umask 77 : ok
        @5:1 open d/f CREATE,WRITE 2775 : ok
        stat d/f : -700 5:50 1 0
        @5:1,50 open d/g CREATE,WRITE 2775 : ok
        stat d/g : -2700 5:50 1 0
        @5:1 mkdir d/e 775 : ok
        stat d/e : d2700 5:50 2
        setacl d default u::rwx,u:7:rwx,g::r-x,m::rwx,o::--- : ok
        @5:1 mkdir d/h 777 : ok
        stat d/h : d2770 5:50 2
        ",
    );
}

/// Under `protected_hardlinks`, the file's list also decides whether it may be linked to.
#[test]
fn lists_count_for_hard_links() {
    let vfs = Vfs::new(VfsConfig::default(), Arc::new(Mem::default())).unwrap();
    let root = root(&vfs);
    root.chmod(b"/", 0o777).unwrap();
    touch(&root, "f");
    root.chmod(b"f", 0o600).unwrap();
    let (seven, eight) = (user(&vfs, 7, 7), user(&vfs, 8, 8));
    assert_eq!(errno(seven.link(b"f", b"g")), Some(Errno::PERM));
    let acl = list("u::rw-,u:7:rw-,g::---,m::rw-,o::---").to_xattr();
    root.setxattr(b"f", AclKind::Access.xattr(), &acl, XattrFlags::empty()).unwrap();
    assert_eq!(errno(seven.link(b"f", b"g")), None);
    assert_eq!(errno(eight.link(b"f", b"h")), Some(Errno::PERM));
}

/// This is one test, because the counters are the process's: no other test in this binary reads them.
#[test]
fn a_list_is_asked_for_only_where_mode_bits_leave_it_open() {
    let mem = Arc::new(Mem::default());
    let vfs = vfs_of(Arc::clone(&mem) as Arc<dyn Driver>);
    let root = root(&vfs);
    root.mkdir(b"d", 0o755).unwrap();
    root.mkdir(b"d/e", 0o755).unwrap();
    touch(&root, "d/e/f");
    root.chown(b"d", Some(5), None).unwrap();
    let (five, seven) = (user(&vfs, 5, 5), user(&vfs, 7, 7));
    let asked = |act: &dyn Fn()| {
        let before = mem.acls_asked.load(Ordering::Relaxed);
        act();
        mem.acls_asked.load(Ordering::Relaxed) - before
    };
    for who in [&root, &five, &seven] {
        assert_eq!(asked(&|| assert!(who.stat(b"d/e/f").is_ok())), 0, "there is no list");
    }
    let acl = list("u::rwx,u:7:--x,g::r-x,m::r-x,o::---").to_xattr();
    root.setxattr(b"d", AclKind::Access.xattr(), &acl, XattrFlags::empty()).unwrap();
    assert!(root.stat(b"d").unwrap().acl && !root.stat(b"d/e").unwrap().acl);
    for (who, times) in [(&root, 0), (&five, 0), (&seven, 1)] {
        let bails = || counters().bails().get(Bail::Acl);
        let before = bails();
        assert_eq!(asked(&|| assert!(who.stat(b"d/e/f").is_ok())), times);
        assert!(bails() - before >= times);
    }
    assert_eq!(errno(user(&vfs, 8, 8).stat(b"d/e/f")), Some(Errno::ACCESS));
    let no = list("u::rwx,u:7:r--,g::r-x,m::r-x,o::---").to_xattr();
    root.setxattr(b"d", AclKind::Access.xattr(), &no, XattrFlags::empty()).unwrap();
    assert_eq!(errno(seven.stat(b"/d/e/f")), Some(Errno::ACCESS));
    assert_eq!(errno(seven.access(b"d", Access::READ)), None);
    assert_eq!(errno(seven.access(b"d", Access::EXEC)), Some(Errno::ACCESS));
}

/// Also if the mode does not change: a new list alone is a change of permissions.
#[test]
fn what_was_kept_of_an_earlier_walk_lets_nobody_through() {
    let vfs = vfs_of(Arc::new(Mem::default()));
    let (root, seven) = (root(&vfs), user(&vfs, 7, 7));
    root.mkdir(b"a-directory", 0o755).unwrap();
    root.mkdir(b"a-directory/another-directory", 0o755).unwrap();
    let path = b"/a-directory/another-directory/file";
    touch(&root, "a-directory/another-directory/file");
    (0..8).for_each(|_| assert!(seven.stat(path).is_ok()));
    let no = list("u::rwx,u:7:---,g::r-x,m::r-x,o::r-x").to_xattr();
    root.setxattr(b"a-directory", AclKind::Access.xattr(), &no, XattrFlags::empty()).unwrap();
    assert_eq!(bits(&root, "a-directory"), 0o755);
    assert_eq!(errno(seven.stat(path)), Some(Errno::ACCESS));
    root.removexattr(b"a-directory", AclKind::Access.xattr()).unwrap();
    assert_eq!(errno(seven.stat(path)), None);
}

/// A front end that looks in the cache first must take the slow way if a list must be asked.
#[test]
fn a_look_in_the_cache_asks_no_driver() {
    let mem = Arc::new(Mem::default());
    let vfs = vfs_of(Arc::clone(&mem) as Arc<dyn Driver>);
    let root = root(&vfs);
    root.mkdir(b"d", 0o700).unwrap();
    touch(&root, "d/f");
    let acl = list("u::rwx,u:7:--x,g::---,m::--x,o::---").to_xattr();
    root.setxattr(b"d", AclKind::Access.xattr(), &acl, XattrFlags::empty()).unwrap();
    let dir = root.resolve(b"d").unwrap();
    let (seven, eight) = (vfs.op(&Cred::user(7, 7)), vfs.op(&Cred::user(8, 8)));
    let asked = mem.acls_asked.load(Ordering::Relaxed);
    assert!(vfs.lookup_cached(&seven, &dir, b"f").is_none());
    assert!(vfs.lookup_cached(&vfs.op(&Cred::root()), &dir, b"f").is_some());
    assert!(vfs.lookup_cached(&Op { trusted: true, ..seven.clone() }, &dir, b"f").is_some());
    assert_eq!(mem.acls_asked.load(Ordering::Relaxed), asked);
    assert!(matches!(vfs.lookup(&seven, &dir, b"f"), Ok(Found::Node(..))));
    assert_eq!(errno(vfs.lookup(&eight, &dir, b"f")), Some(Errno::ACCESS));
}

#[test]
fn a_driver_without_lists_has_none() {
    let store = Arc::new(Store::default());
    store.plant(1, "f", mode::S_IFREG | 0o644);
    let vfs = vfs_of(store);
    let root = root(&vfs);
    let name = AclKind::Access.xattr();
    let acl = list("u::rwx,g::r-x,o::---").to_xattr();
    assert_eq!(errno(root.getxattr(b"f", name)), Some(Errno::OPNOTSUPP));
    assert_eq!(errno(root.setxattr(b"f", name, &acl, XattrFlags::empty())), Some(Errno::OPNOTSUPP));
    assert_eq!(errno(root.removexattr(b"f", name)), Some(Errno::OPNOTSUPP));
    assert_eq!(root.listxattr(b"f"), Ok(Vec::new()));
    assert!(!vfs.keeps_acls(&vfs.root()));
}

/// With a list, the group's permission bits are its mask; without one, they are the group's own. A mix of the two
/// states would grant access that neither grants.
#[test]
fn list_and_mode_are_of_one_moment() {
    let vfs = vfs_of(Arc::new(Mem::default()));
    let root = root(&vfs);
    root.mkdir(b"d", 0o700).unwrap();
    touch(&root, "d/f");
    let states = ["u::rwx,u:7:--x,g::---,m::--x,o::---", "u::rwx,g::---,o::---"];
    let states = states.map(|text| list(text).to_xattr());
    std::thread::scope(|s| {
        let change = s.spawn(|| {
            for round in 0..2000 {
                let value = &states[round % 2];
                root.setxattr(b"d", AclKind::Access.xattr(), value, XattrFlags::empty()).unwrap();
            }
        });
        let group = user(&vfs, 9, 0);
        while !change.is_finished() {
            assert_eq!(errno(group.stat(b"d/f")), Some(Errno::ACCESS));
        }
        change.join().unwrap();
    });
}

#[test]
fn entries_can_be_made_by_hand() {
    let entry = |tag, perm| AclEntry { tag, perm };
    let entries = vec![
        entry(AclTag::UserObj, Access::all()),
        entry(AclTag::User(7), Access::READ),
        entry(AclTag::GroupObj, Access::empty()),
        entry(AclTag::Mask, Access::READ),
        entry(AclTag::Other, Access::empty()),
    ];
    let made = Acl::new(entries.clone()).unwrap();
    assert_eq!(made, list("u::rwx,u:7:r--,g::---,m::r--,o::---"));
    assert_eq!(made.entries(), entries);
    assert!(!Attr::default().acl);
}
