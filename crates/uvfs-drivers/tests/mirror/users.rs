//! In whose name things are done: the host's kernel decides, also where nobody has checked before.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::path::Path;

use uvfs::{Access, Cred, Errno, SetAttr, SetTime, mode};

use crate::{Fs, is_root};

const USER: u32 = 4711;
const GROUP: u32 = 4712;
const OTHER: u32 = 4800;

fn user() -> Cred {
    Cred { uid: USER, gid: USER, groups: [GROUP].into() }
}

/// A file with this owner and mode.
fn file(path: &Path, owner: (u32, u32), bits: u32) {
    fs::write(path, b"12345").unwrap();
    chown(path, Some(owner.0), Some(owner.1)).unwrap();
    fs::set_permissions(path, fs::Permissions::from_mode(bits)).unwrap();
}

fn bits(path: &Path) -> u32 {
    fs::metadata(path).unwrap().mode() & 0o7777
}

fn open_root(fs: &Fs) {
    fs::set_permissions(fs.src(""), fs::Permissions::from_mode(0o777)).unwrap();
}

#[test]
fn what_a_user_makes_belongs_to_the_user() {
    if !is_root("what_a_user_makes_belongs_to_the_user") {
        return;
    }
    let fs = Fs::new();
    open_root(&fs);
    let op = fs.trusted(&user());
    let root = fs.vfs.root();
    fs.vfs.mknod(&op, &root, b"file", mode::S_IFREG | 0o640, 0).unwrap();
    fs.vfs.mkdir(&op, &root, b"dir", 0o750).unwrap();
    fs.vfs.symlink(&op, &root, b"link", b"x").unwrap();
    fs.vfs.mknod(&op, &root, b"fifo", mode::S_IFIFO | 0o600, 0).unwrap();
    for name in ["file", "dir", "link", "fifo"] {
        let host = fs::symlink_metadata(fs.src(name)).unwrap();
        assert_eq!((host.uid(), host.gid()), (USER, USER), "{name}");
    }
    // A directory that hands its group down, and one that belongs to a group of the user's.
    let shared = fs.src("shared");
    fs::create_dir(&shared).unwrap();
    chown(&shared, Some(OTHER), Some(GROUP)).unwrap();
    fs::set_permissions(&shared, fs::Permissions::from_mode(0o2770)).unwrap();
    let (dir, _) = fs.vfs.mkdir(&op, &fs.inode("/shared"), b"sub", 0o755).unwrap();
    let (made, attr) = fs.vfs.mknod(&op, &dir, b"file", mode::S_IFREG | 0o644, 0).unwrap();
    assert_eq!((attr.uid, attr.gid, dir.attr().mode & 0o7777), (USER, GROUP, 0o2755));
    // The thread has its own credentials again.
    fs.vfs.mknod(&fs.root_op(), &dir, b"roots", mode::S_IFREG | 0o644, 0).unwrap();
    assert_eq!(fs::metadata(fs.src("shared/sub/roots")).unwrap().uid(), 0);
    drop(made);
}

/// Making is opening too; from then on the host's kernel goes by the mode, also for the owner.
#[test]
fn a_file_that_is_made_is_open_whatever_its_mode() {
    if !is_root("a_file_that_is_made_is_open_whatever_its_mode") {
        return;
    }
    let fs = Fs::new();
    open_root(&fs);
    let op = fs.trusted(&user());
    let (both, write) = (Access::READ | Access::WRITE, Access::WRITE);
    let (file, attr, fh) = fs.vfs.create(&op, &fs.vfs.root(), b"closed", 0o000, both).unwrap();
    assert_eq!((attr.uid, attr.mode), (USER, mode::S_IFREG));
    assert_eq!(fs.vfs.write(&op, fh, 0, b"text", false, false), Ok(4));
    let mut buffer = [0; 8];
    assert_eq!(fs.vfs.read(&op, fh, 0, &mut buffer), Ok(4));
    assert_eq!(fs::read(fs.src("closed")).unwrap(), b"text");
    assert_eq!(fs.vfs.open(&op, &file, write, false), Err(Errno::ACCESS));
    let again = fs.vfs.create(&op, &fs.vfs.root(), b"closed", 0o600, write);
    assert_eq!(again.map(|made| made.2), Err(Errno::EXIST));
    fs.vfs.release(fh);
    // The mode in which it was asked for, and no other.
    let (_, _, fh) = fs.vfs.create(&op, &fs.vfs.root(), b"written", 0o600, write).unwrap();
    assert_eq!(fs.vfs.read(&op, fh, 0, &mut buffer), Err(Errno::BADF));
    fs.vfs.release(fh);
}

#[test]
fn the_host_refuses_what_the_user_may_not() {
    if !is_root("the_host_refuses_what_the_user_may_not") {
        return;
    }
    let fs = Fs::new();
    fs::set_permissions(fs.src(""), fs::Permissions::from_mode(0o755)).unwrap();
    file(&fs.src("roots"), (0, 0), 0o600);
    file(&fs.src("groups"), (0, GROUP), 0o060);
    fs::create_dir(fs.src("dir")).unwrap();
    let op = fs.trusted(&user());
    let (root, roots, groups) = (fs.vfs.root(), fs.inode("/roots"), fs.inode("/groups"));
    let denied = Some(Errno::ACCESS);
    let perm = Some(Errno::PERM);
    let set = |set: SetAttr| fs.vfs.setattr(&op, &roots, &set).err();
    assert_eq!(fs.vfs.mknod(&op, &root, b"new", mode::S_IFREG | 0o644, 0).err(), denied);
    assert_eq!(fs.vfs.mkdir(&op, &root, b"new", 0o755).err(), denied);
    assert_eq!(fs.vfs.unlink(&op, &root, b"roots").err(), denied);
    assert_eq!(fs.vfs.rmdir(&op, &root, b"dir").err(), denied);
    assert_eq!(fs.vfs.rename(&op, &root, b"roots", &root, b"mine", uvfs::RenameFlags::empty()).err(), denied);
    assert_eq!(fs.vfs.open(&op, &roots, Access::READ, false).err(), denied);
    assert_eq!(fs.vfs.open(&op, &roots, Access::WRITE, false).err(), denied);
    assert_eq!(set(SetAttr { size: Some(0), ..SetAttr::default() }), denied);
    assert_eq!(set(SetAttr { mode: Some(0o666), ..SetAttr::default() }), perm);
    assert_eq!(set(SetAttr { uid: Some(USER), ..SetAttr::default() }), perm);
    assert!(set(SetAttr { mtime: Some(SetTime::Now), ..SetAttr::default() }).is_some());
    assert_eq!(fs.vfs.getxattr(&op, &roots, b"user.x").err(), denied);
    assert_eq!(fs.vfs.setxattr(&op, &roots, b"user.x", b"", uvfs::XattrFlags::empty()).err(), denied);
    assert!(fs.vfs.setxattr(&op, &roots, b"trusted.x", b"", uvfs::XattrFlags::empty()).is_err());
    assert!(fs.vfs.mknod(&op, &root, b"dev", mode::S_IFCHR | 0o666, 0x103).is_err());
    // One of the supplementary groups may.
    let handle = fs.vfs.open(&op, &groups, Access::READ | Access::WRITE, false).unwrap();
    fs.vfs.release(handle);
    assert_eq!((bits(&fs.src("roots")), fs::read(fs.src("roots")).unwrap().len()), (0o600, 5));
}

#[test]
fn set_id_bits_go_where_the_user_may_not_keep_them() {
    if !is_root("set_id_bits_go_where_the_user_may_not_keep_them") {
        return;
    }
    let fs = Fs::new();
    let path = fs.src("tool");
    let change = |cred: &Cred, what: &str| {
        file(&path, (OTHER, OTHER), 0o6777);
        let op = fs.trusted(cred);
        let tool = fs.inode("/tool");
        let handle = fs.vfs.open(&op, &tool, Access::WRITE, false).unwrap();
        match what {
            "write" => drop(fs.vfs.write(&op, handle, 0, b"x", false, cred.uid != 0).unwrap()),
            "truncate" => {
                let set = SetAttr { size: Some(1), kill_suidgid: cred.uid != 0, ..SetAttr::default() };
                fs.vfs.setattr(&op, &tool, &set).unwrap();
            }
            _ => drop(fs.vfs.setattr(
                &op,
                &tool,
                &SetAttr { uid: Some(USER), kill_suidgid: true, ..SetAttr::default() },
            )),
        }
        fs.vfs.release(handle);
        assert_eq!(fs.vfs.getattr(&op, &tool).unwrap().mode & 0o7777, bits(&path), "{what}");
        bits(&path)
    };
    assert_eq!(change(&user(), "write"), 0o777);
    assert_eq!(change(&user(), "truncate"), 0o777);
    assert_eq!(change(&Cred::root(), "write"), 0o6777);
    assert_eq!(change(&Cred::root(), "truncate"), 0o6777);
    assert_eq!(change(&Cred::root(), "chown"), 0o777);
}

/// By what the host knows, which may not be what was seen last.
#[test]
fn a_chown_of_neither_is_the_hosts() {
    if !is_root("a_chown_of_neither_is_the_hosts") {
        return;
    }
    let fs = Fs::new();
    let path = fs.src("tool");
    file(&path, (USER, OTHER), 0o755);
    let (op, tool) = (fs.trusted(&user()), fs.inode("/tool"));
    let before = fs::metadata(&path).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o6745)).unwrap();
    let attr = fs.vfs.chown(&op, &tool, None, None).unwrap();
    assert_eq!((attr.mode & 0o7777, bits(&path)), (0o745, 0o745));
    let changed = |of: &fs::Metadata| (of.ctime(), of.ctime_nsec());
    assert_ne!(changed(&fs::metadata(&path).unwrap()), changed(&before));
    fs::set_permissions(&path, fs::Permissions::from_mode(0o4755)).unwrap();
    let other = fs.trusted(&Cred::user(OTHER, OTHER));
    assert_eq!(fs.vfs.chown(&other, &tool, None, None).err(), Some(Errno::PERM));
    assert_eq!(bits(&path), 0o4755);
}

#[test]
fn access_control_lists_are_kept_and_heeded_by_the_host() {
    if !is_root("access_control_lists_are_kept_and_heeded_by_the_host") {
        return;
    }
    let fs = Fs::new();
    file(&fs.src("file"), (0, 0), 0o600);
    // Version 2; the owner rw, the user 4711 r, group none, mask r, others none.
    let entry = |tag: u16, perm: u16, id: u32| {
        [&tag.to_le_bytes()[..], &perm.to_le_bytes(), &id.to_le_bytes()].concat()
    };
    let list = [
        2u32.to_le_bytes().to_vec(),
        entry(1, 6, u32::MAX),
        entry(2, 4, USER),
        entry(4, 0, u32::MAX),
        entry(16, 4, u32::MAX),
        entry(32, 0, u32::MAX),
    ]
    .concat();
    let inode = fs.inode("/file");
    let name = b"system.posix_acl_access";
    match fs.vfs.setxattr(&fs.root_op(), &inode, name, &list, uvfs::XattrFlags::empty()) {
        Err(Errno::OPNOTSUPP) => {
            return println!("skipped: no access control lists on the file system of $TMPDIR");
        }
        done => done.unwrap(),
    }
    assert_eq!(fs.vfs.getxattr(&fs.root_op(), &inode, name).unwrap(), list);
    assert_eq!(fs.vfs.getattr(&fs.root_op(), &inode).unwrap().mode & 0o777, 0o640);
    let op = fs.trusted(&user());
    fs.vfs.release(fs.vfs.open(&op, &inode, Access::READ, false).unwrap());
    assert_eq!(fs.vfs.open(&op, &inode, Access::WRITE, false).err(), Some(Errno::ACCESS));
    let other = fs.trusted(&Cred::user(OTHER, OTHER));
    assert_eq!(fs.vfs.open(&other, &inode, Access::READ, false).err(), Some(Errno::ACCESS));
    assert_eq!(fs.vfs.setxattr(&op, &inode, name, &list, uvfs::XattrFlags::empty()).err(), Some(Errno::PERM));
}

/// A call of the library is checked by the VFS, by the host's list: it grants what mode bits do not, and the other way round. Where
/// there is none, that is asked once.
#[test]
fn a_library_call_heeds_the_hosts_lists() {
    if !is_root("a_library_call_heeds_the_hosts_lists") {
        return;
    }
    let fs = Fs::with_ttl(std::time::Duration::from_secs(3600));
    for dir in ["listed", "plain"] {
        fs::create_dir(fs.src(dir)).unwrap();
        fs::write(fs.src(dir).join("file"), "").unwrap();
        std::os::unix::fs::chown(fs.src(dir), Some(0), Some(GROUP)).unwrap();
        fs::set_permissions(fs.src(dir), fs::Permissions::from_mode(0o750)).unwrap();
    }
    let entry = |tag: u16, perm: u16, id: u32| {
        [&tag.to_le_bytes()[..], &perm.to_le_bytes(), &id.to_le_bytes()].concat()
    };
    // The owner rwx, the user 4711 rx, group none, mask rwx, others none: the mode says rwx of the group.
    let none = u32::MAX;
    let entries =
        [entry(1, 7, none), entry(2, 5, USER), entry(4, 0, none), entry(16, 7, none), entry(32, 0, none)];
    let list = [2u32.to_le_bytes().to_vec(), entries.concat()].concat();
    let (name, at) = ("system.posix_acl_access", fs.src("listed"));
    match rustix::fs::setxattr(&at, name, &list, rustix::fs::XattrFlags::empty()) {
        Err(Errno::OPNOTSUPP) => {
            return println!("skipped: no access control lists on the file system of $TMPDIR");
        }
        done => done.unwrap(),
    }
    let [named, member, other] =
        [Cred::user(USER, OTHER), Cred::user(OTHER, GROUP), Cred::user(OTHER, OTHER)];
    let stat = |cred: &Cred, path: &[u8]| fs.vfs.context(cred.clone()).stat(path).map(drop);
    for _ in 0..2 {
        assert_eq!(stat(&named, b"/listed/file"), Ok(()));
        assert_eq!(stat(&member, b"/listed/file"), Err(Errno::ACCESS));
        assert_eq!(stat(&other, b"/listed/file"), Err(Errno::ACCESS));
        assert_eq!(stat(&member, b"/plain/file"), Ok(()));
        assert_eq!(stat(&other, b"/plain/file"), Err(Errno::ACCESS));
    }
    let before = fs.mirror.operations();
    assert_eq!((stat(&member, b"/plain/file"), stat(&other, b"/plain/file")), (Ok(()), Err(Errno::ACCESS)));
    assert_eq!(fs.mirror.operations(), before, "that there is no list is known");
    // Set through the mirror, it is asked about again.
    let plain = fs.inode("/plain");
    fs.vfs.setxattr(&fs.root_op(), &plain, name.as_bytes(), &list, uvfs::XattrFlags::empty()).unwrap();
    assert_eq!((stat(&member, b"/plain/file"), stat(&named, b"/plain/file")), (Err(Errno::ACCESS), Ok(())));
}

/// A list that is inherited takes the place of the umask; elsewhere the umask applies.
#[test]
fn a_default_list_of_the_host_takes_the_place_of_the_umask() {
    if !is_root("a_default_list_of_the_host_takes_the_place_of_the_umask") {
        return;
    }
    let fs = Fs::new();
    fs::create_dir(fs.src("dir")).unwrap();
    // Version 2; owner, group and others may all.
    let entry = |tag: u16| [&tag.to_le_bytes()[..], &7u16.to_le_bytes(), &u32::MAX.to_le_bytes()].concat();
    let list = [&2u32.to_le_bytes()[..], &entry(1), &entry(4), &entry(32)].concat();
    let set = rustix::fs::setxattr(
        fs.src("dir"),
        "system.posix_acl_default",
        &list,
        rustix::fs::XattrFlags::empty(),
    );
    if set == Err(Errno::OPNOTSUPP) {
        return println!("skipped: no access control lists on the file system of $TMPDIR");
    }
    set.unwrap();
    let mut me = fs.vfs.context(Cred::root());
    me.umask(0o027);
    for (name, mode) in [("/dir/inherits", 0o666), ("/not", 0o640)] {
        me.open(name.as_bytes(), uvfs::OpenFlags::WRITE | uvfs::OpenFlags::CREATE, 0o666).unwrap();
        assert_eq!(bits(&fs.src(&name[1..])) & 0o777, mode, "{name}");
    }
}

/// A change that the host refuses is refused, also where it would change nothing.
#[test]
fn a_mode_is_only_set_by_who_may() {
    if !is_root("a_mode_is_only_set_by_who_may") {
        return;
    }
    let fs = Fs::new();
    file(&fs.src("tool"), (0, 0), 0o4755);
    let (op, tool) = (fs.trusted(&user()), fs.inode("/tool"));
    for mode in [0o755, 0o4755] {
        let set = SetAttr { mode: Some(mode), ..SetAttr::default() };
        assert_eq!(fs.vfs.setattr(&op, &tool, &set).err(), Some(Errno::PERM), "{mode:o}");
    }
    assert_eq!(bits(&fs.src("tool")), 0o4755);
}

/// Bits that have to go from a mode go on the host, from the mode that the file has there: the cached mode may be
/// old.
#[test]
fn set_id_bits_go_from_the_mode_that_the_host_has() {
    if !is_root("set_id_bits_go_from_the_mode_that_the_host_has") {
        return;
    }
    let fs = Fs::with_ttl(std::time::Duration::from_secs(3600));
    open_root(&fs);
    let set_size = SetAttr { size: Some(2), ..SetAttr::default() };
    let set_group = SetAttr { gid: Some(GROUP), ..SetAttr::default() };
    let op = fs.trusted(&user());
    for (name, set) in [("truncate", Some(set_size)), ("chown", Some(set_group)), ("write", None)] {
        let path = fs.src(name);
        file(&path, (USER, USER), 0o4755);
        let inode = fs.inode(&format!("/{name}"));
        let handle = fs.vfs.open(&op, &inode, Access::WRITE, false).unwrap();
        // The host's owner takes permissions away, of which the mirror does not know.
        fs::set_permissions(&path, fs::Permissions::from_mode(0o4600)).unwrap();
        match set {
            Some(set) => drop(fs.vfs.setattr(&op, &inode, &SetAttr { kill_suidgid: true, ..set }).unwrap()),
            None => assert_eq!(fs.vfs.write(&op, handle, 0, b"x", false, true).unwrap(), 1),
        }
        assert_eq!(format!("{:o}", bits(&path)), "600", "{name}");
        fs.vfs.release(handle);
    }
}

/// As on the host: a caller that may execute a file has it read to run it, whether or not the caller may read it. Where
/// the caller may not execute it, the host says so, though it was said to have been checked.
#[test]
fn what_may_be_executed_is_opened_to_run_and_not_to_read() {
    if !is_root("what_may_be_executed_is_opened_to_run_and_not_to_read") {
        return;
    }
    let fs = Fs::new();
    let runs = |name: &str, owner: (u32, u32), bits: u32, cred: &Cred| {
        file(&fs.src(name), owner, bits);
        let (op, inode) = (fs.trusted(cred), fs.inode(&format!("/{name}")));
        assert_eq!(fs.vfs.open(&op, &inode, Access::READ, false), Err(Errno::ACCESS), "{name}");
        let handle = fs.vfs.open_to_run(&op, &inode)?;
        let mut text = [0; 8];
        assert_eq!(fs.vfs.read(&op, handle, 0, &mut text), Ok(5), "{name}");
        assert_eq!(fs.vfs.write(&op, handle, 0, b"x", false, false), Err(Errno::BADF), "{name}");
        fs.vfs.release(handle);
        Ok(())
    };
    assert_eq!(runs("others", (0, 0), 0o711, &user()), Ok(()));
    assert_eq!(runs("all", (0, 0), 0o111, &user()), Ok(()));
    assert_eq!(runs("owners", (USER, 0), 0o100, &user()), Ok(()));
    assert_eq!(runs("members", (0, GROUP), 0o710, &user()), Ok(()));
    assert_eq!(runs("no_member", (0, OTHER), 0o710, &user()), Err(Errno::ACCESS));
    assert_eq!(runs("roots", (0, 0), 0o700, &user()), Err(Errno::ACCESS));
    assert_eq!(runs("not_owners", (USER, 0), 0o011, &user()), Err(Errno::ACCESS));
}
