//! Set-id bits and permissions, from the view of other users.

use std::fs::{self, Permissions};
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};

use rustix::fs::{AtFlags, CWD, StatxFlags, statx};

use crate::Test;
use crate::fixture::{Fixture, Needs, sh_as};

pub const TESTS: &[Test] = &[
    ("others_lose_set_id_bits_by_changing_data", Needs::Root, others_lose_set_id_bits_by_changing_data),
    ("root_keeps_set_id_bits", Needs::Root, root_keeps_set_id_bits),
    ("a_change_of_owner_clears_set_id_bits", Needs::Root, a_change_of_owner_clears_set_id_bits),
    ("a_chown_of_neither_clears_set_id_bits", Needs::Root, a_chown_of_neither_clears_set_id_bits),
    ("permissions_are_checked", Needs::Root, permissions_are_checked),
    ("new_nodes_belong_to_who_made_them", Needs::Root, new_nodes_belong_to_who_made_them),
    ("owners_only_without_allow_other", Needs::Root, owners_only_without_allow_other),
];

const USER: u32 = 4321;

fn mode(path: &std::path::Path) -> u32 {
    fs::metadata(path).expect("stat").mode() & 0o7777
}

/// A world-writable set-id file that root owns.
fn set_id_file(mnt: &Fixture) -> std::path::PathBuf {
    let path = mnt.path("tool");
    fs::write(&path, "data").expect("write");
    fs::set_permissions(&path, Permissions::from_mode(0o6777)).expect("chmod");
    fs::set_permissions(&**mnt, Permissions::from_mode(0o1777)).expect("chmod");
    path
}

/// Ways to change data.
pub const CHANGES: &[(&str, &str)] = &[
    ("write", "printf x | dd of=tool conv=notrunc status=none"),
    ("append", "printf x >> tool"),
    ("truncate", "truncate -s 1 tool"),
    ("extend", "truncate -s 100 tool"),
    ("open with O_TRUNC", ": > tool"),
    ("direct write", "dd if=/dev/zero of=tool bs=4096 count=1 oflag=direct conv=notrunc status=none"),
    ("fallocate", "fallocate -l 9000 tool"),
];

fn others_lose_set_id_bits_by_changing_data() {
    for (what, script) in CHANGES {
        let mnt = Fixture::tmpfs();
        let path = set_id_file(&mnt);
        assert_eq!(mode(&path), 0o6777);
        sh_as(USER, &mnt, script).expect(what);
        // The mode with which the kernel would execute it. After a write the kernel asks for times and size, but
        // not for the mode alone.
        let known = statx(CWD, &path, AtFlags::empty(), StatxFlags::MODE).expect("statx").stx_mode;
        assert_eq!(format!("{:o}", known & 0o7777), "777", "{what}");
        assert_eq!(format!("{:o}", mode(&path)), "777", "{what}");
    }
}

fn root_keeps_set_id_bits() {
    for (what, script) in CHANGES {
        let mnt = Fixture::tmpfs();
        let path = set_id_file(&mnt);
        sh_as(0, &mnt, script).expect(what);
        assert_eq!(format!("{:o}", mode(&path)), "6777", "{what}");
    }
}

fn a_change_of_owner_clears_set_id_bits() {
    let mnt = Fixture::tmpfs();
    let path = set_id_file(&mnt);
    chown(&path, Some(USER), None).expect("chown");
    assert_eq!(format!("{:o}", mode(&path)), "777");
    let dir = mnt.path("dir");
    fs::create_dir(&dir).expect("mkdir");
    fs::set_permissions(&dir, Permissions::from_mode(0o6755)).expect("chmod");
    chown(&dir, Some(USER), Some(USER)).expect("chown");
    assert_eq!(format!("{:o}", mode(&dir)), "6755", "directories keep theirs");
}

/// chown(2) with -1 for both, which the kernel sends as a change of nothing.
fn a_chown_of_neither_clears_set_id_bits() {
    let mnt = Fixture::tmpfs();
    let path = set_id_file(&mnt);
    let chown_as = |uid: u32, bits: u32| {
        fs::set_permissions(&path, Permissions::from_mode(bits)).expect("chmod");
        sh_as(uid, &mnt, "perl -e 'chown -1, -1, q(tool)'").expect("perl");
        format!("{:o}", mode(&path))
    };
    assert_eq!(chown_as(0, 0o6777), "777");
    assert_eq!(chown_as(0, 0o6767), "2767", "who may set the bit without group execute keeps it");
    assert_eq!(chown_as(USER, 0o6777), "6777", "not another's");
    chown(&path, Some(USER), None).expect("chown");
    assert_eq!(chown_as(USER, 0o6777), "777");
    assert_eq!(chown_as(USER, 0o6767), "767", "no member of the group");
    fs::set_permissions(&path, Permissions::from_mode(0o6777)).expect("chmod");
    let file = fs::File::open(&path).expect("open");
    std::os::unix::fs::fchown(&file, None, None).expect("fchown");
    assert_eq!(format!("{:o}", mode(&path)), "777");
    chown(&*mnt, None, None).expect("chown");
    assert_eq!(format!("{:o}", mode(&mnt)), "1777");
}

fn permissions_are_checked() {
    let mnt = Fixture::tmpfs();
    fs::write(mnt.path("secret"), "x").expect("write");
    fs::set_permissions(mnt.path("secret"), Permissions::from_mode(0o600)).expect("chmod");
    fs::set_permissions(&*mnt, Permissions::from_mode(0o755)).expect("chmod");
    for script in
        ["cat secret", "rm -f secret", "mv secret other", "touch new", "mkdir new", "chmod 777 secret"]
    {
        let said = sh_as(USER, &mnt, script).expect_err(script);
        let denied = said.contains("Permission denied") || said.contains("Operation not permitted");
        assert!(denied, "{script}: {said}");
    }
    fs::set_permissions(&*mnt, Permissions::from_mode(0o1777)).expect("chmod");
    sh_as(USER, &mnt, "rm -f secret").expect_err("the directory is sticky");
    assert_eq!(sh_as(USER, &mnt, "echo mine > own; cat own; rm own").as_deref(), Ok("mine"));
}

fn new_nodes_belong_to_who_made_them() {
    let mnt = Fixture::tmpfs();
    fs::set_permissions(&*mnt, Permissions::from_mode(0o777)).expect("chmod");
    sh_as(USER, &mnt, "umask 027; touch file; mkdir dir; ln -s x link; mkfifo fifo").expect("make");
    for (name, bits) in [("file", 0o640), ("dir", 0o750), ("fifo", 0o640), ("link", 0o777)] {
        let meta = fs::symlink_metadata(mnt.path(name)).expect("stat");
        let found = (meta.uid(), meta.gid(), meta.mode() & 0o7777);
        assert_eq!(found, (USER, USER, bits), "{name}");
    }
    fs::create_dir(mnt.path("shared")).expect("mkdir");
    chown(mnt.path("shared"), None, Some(99)).expect("chown");
    fs::set_permissions(mnt.path("shared"), Permissions::from_mode(0o2777)).expect("chmod");
    sh_as(USER, &mnt, "cd shared; touch file; mkdir dir").expect("make");
    assert_eq!(fs::metadata(mnt.path("shared/file")).expect("stat").gid(), 99);
    let dir = fs::metadata(mnt.path("shared/dir")).expect("stat");
    assert_eq!((dir.gid(), dir.mode() & 0o2000), (99, 0o2000));
}

fn owners_only_without_allow_other() {
    let mnt = Fixture::tmpfs_with(|options| options.allow_other = false);
    fs::set_permissions(&*mnt, Permissions::from_mode(0o777)).expect("chmod");
    let path = mnt.display();
    let said = sh_as(USER, std::path::Path::new("/"), &format!("ls {path}")).expect_err("not for others");
    assert!(said.contains("Permission denied"), "{said}");
}
