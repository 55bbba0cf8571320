//! Permissions: mode bits, sticky directories, groups, and the order of errors.

use std::fmt::Write as _;

use crate::common::{compare, host, inside, script};

/// Owner, group member and other against every combination of bits. `access` follows the bits of the right class.
/// Root may do everything, except execute a file that nobody may execute.
#[test]
fn every_mode_for_every_class() {
    let mut text = String::from("mkfile f 0 : ok\nchown f 100 200 : ok\n");
    for bits in 0..8u32 {
        for (class, shift) in [("@100:1", 6), ("@101:200", 3), ("@101:1,200", 3), ("@101:1", 0)] {
            // The other classes have all bits, which must not matter.
            let mode = (0o777 & !(7 << shift)) | (bits << shift);
            writeln!(text, "chmod f {mode:o} : ok").unwrap();
            for (letter, bit) in [("r", 4), ("w", 2), ("x", 1), ("rwx", 7), ("-", 0)] {
                let outcome = if bits & bit == bit { "ok" } else { "EACCES" };
                writeln!(text, "{class} access f {letter} : {outcome}").unwrap();
            }
        }
    }
    for (mode, x) in [("0", "EACCES"), ("1", "ok"), ("10", "ok"), ("100", "ok"), ("666", "EACCES")] {
        writeln!(text, "chmod f {mode} : ok\naccess f rw : ok\naccess f x : {x}").unwrap();
    }
    text += "mkdir d 0 : ok\naccess d rwx : ok\n@5 access d - : ok\n@5 access d x : EACCES\n";
    compare(&text);
}

#[test]
fn searching_directories() {
    compare(
        "
        mkdir d 755 : ok
        mkdir d/e 755 : ok
        mkfile d/e/f 666 : ok
        chmod d 644 : ok
        @9 stat d : d644 0:0 3
        @9 stat d/e : EACCES
        @9 stat d/e/f : EACCES
        @9 stat d/x : EACCES
        @9 stat d/. : EACCES
        @9 stat d/.. : EACCES
        @9 ls d : e
        @9 mkdir d/e 755 : EACCES
        @9 mkdir d/. 755 : EACCES
        @9 unlink d/x : EACCES
        @9 rmdir d/. : EACCES
        @9 chdir d : EACCES
        @9 readlink d/x : EACCES
        stat d/e/f : -666 0:0 1 0
        chmod d 711 : ok
        @9 stat d/e/f : -666 0:0 1 0
        @9 ls d : EACCES
        @9 stat d/x : ENOENT
        @9 chdir d : ok
        chdir / : ok
        chmod d 700 : ok
        chown d 9 9 : ok
        @9 stat d/e/f : -666 0:0 1 0
        @8:9 stat d/e/f : EACCES
        ",
    );
}

#[test]
fn writing_directories() {
    compare(
        "
        mkdir d 755 : ok
        mkfile d/f 666 : ok
        mkdir d/e 777 : ok
        mkdir open 777 : ok
        mkfile open/f 666 : ok
        @9 mkdir d/x 755 : EACCES
        @9 mkfile d/x 644 : EACCES
        @9 symlink t d/x : EACCES
        @9 mkfifo d/x 644 : EACCES
        @9 link open/f d/x : EACCES
        @9 open d/x CREATE,READ 644 : EACCES
        @9 mkdir d/f 755 : EEXIST
        @9 mkfile d/e 644 : EEXIST
        @9 unlink d/f : EACCES
        @9 unlink d/x : ENOENT
        @9 unlink d/e : EACCES
        @9 rmdir d/e : EACCES
        @9 rmdir d/f : EACCES
        @9 rmdir d/x : ENOENT
        @9 rename d/f d/g : EACCES
        @9 rename d/x d/g : ENOENT
        @9 rename d/f open/g : EACCES
        @9 rename open/f d/g : EACCES
        @9 rename open/f d/f : EACCES
        @9 rename d/f d/f : ok
        @9 rename open/f d/f NOREPLACE : EEXIST
        @9 mkfile open/g 644 : ok
        @9 unlink open/f : ok
        @9 mkchar open/c 644 3 : EPERM
        @9 mkchar open/w 644 0 : ok         # a whiteout is nobody's device
        @9 mkchar d/c 644 3 : EACCES
        @9 mkchar d/f 644 3 : EEXIST
        mkchar open/c 644 3 : ok
        @9 mksock open/s 644 : ok
        mknod x 40755 : EPERM
        mknod x 120777 : EINVAL
        mknod x 170000 : EINVAL
        mknod x 644 : ok !host       # rustix has no word for it
        stat x : -644 0:0 1 0 !host
        ",
    );
}

#[test]
fn moving_directories() {
    compare(
        "
        mkdir a 777 : ok
        mkdir b 777 : ok
        @1 mkdir a/mine 755 : ok
        @2 mkdir a/yours 755 : ok
        @2 mkdir b/yours 755 : ok
        @1 rename a/yours a/moved : ok
        @1 rename a/moved b/moved : EACCES
        @1 rename a/mine b/mine : ok
        @1 rename b/mine b/yours EXCHANGE : ok
        @1 rename b/mine a/moved EXCHANGE : EACCES
        @2 rename b/mine a/moved EXCHANGE : ok
        @2 rename b/yours a/moved : EACCES
        chmod a/moved 777 : ok
        @1 rename a/moved b/other : ok
        stat b/other : d777 2:2 2
        stat a : d777 0:0 2
        stat b : d777 0:0 5
        ",
    );
}

#[test]
fn sticky_directories() {
    compare(
        "
        mkdir t 1777 : ok
        chown t 50 50 : ok
        @1 mkfile t/f 666 : ok
        @1 mkdir t/d 777 : ok
        @2 mkfile t/g 666 : ok
        @2 unlink t/f : EPERM
        @2 rmdir t/d : EPERM
        @2 unlink t/d : EPERM
        @2 rmdir t/f : EPERM
        @2 rename t/f t/h : EPERM
        @2 rename t/g t/f : EPERM
        @2 rename t/g t/d : EPERM
        @2 rename t/g t/f EXCHANGE : EPERM
        @2 rename t/g t/h : ok
        @1 unlink t/f : ok
        @50 unlink t/h : ok
        @1 mkfile t/f 666 : ok
        unlink t/f : ok
        @2 chmod t 777 : EPERM
        @2 setxattr t user.a b : EPERM
        @50 setxattr t user.a b : ok
        chmod t 1755 : ok
        @2 unlink t/d : EACCES
        @1 rmdir t/d : EACCES
        ",
    );
}

#[test]
fn groups_of_new_nodes() {
    compare(
        "
        mkdir plain 777 : ok
        mkdir g 777 : ok
        chown g 0 300 : ok
        chmod g 2777 : ok
        @1:10 mkfile plain/f 644 : ok
        stat plain/f : -644 1:10 1 0
        @1:10 mkdir plain/d 2755 : ok
        stat plain/d : d755 1:10 2
        @1:10 mkdir plain/t 1755 : ok
        stat plain/t : d1755 1:10 2
        @1:10 mkfile plain/s 6755 : ok
        stat plain/s : -6755 1:10 1 0
        @1:10 mkfile g/f 644 : ok
        stat g/f : -644 1:300 1 0
        @1:10 mkdir g/d 755 : ok
        stat g/d : d2755 1:300 2
        @1:10 symlink t g/l : ok
        lstat g/l : l777 1:300 1 1
        @1:10 mkfile g/s 2775 : ok
        stat g/s : -775 1:300 1 0
        @1:10 mkfile g/u 6765 : ok
        stat g/u : -6765 1:300 1 0
        @1:10,300 mkfile g/m 2775 : ok
        stat g/m : -2775 1:300 1 0
        @1:300 open g/o CREATE,READ 2775 : ok
        stat g/o : -2775 1:300 1 0
        mkfile g/r 2775 : ok
        stat g/r : -2775 0:300 1 0
        @1:10 mkdir g/d/e 700 : ok
        stat g/d/e : d2700 1:300 2
        @1:10 mkfifo g/p 666 : ok
        stat g/p : p666 1:300 1
        ",
    );
}

#[test]
fn the_order_of_errors() {
    compare(
        "
        mkdir d 755 : ok
        mkdir d/e 755 : ok
        mkdir d/e/full 755 : ok
        mkfile d/f 644 : ok
        mkdir w 777 : ok
        @9 rename d/e d/e/x : EINVAL
        @9 rename d d/x : EINVAL
        @9 rename d d/e/x : EINVAL
        @9 rename d/e/full d : ENOTEMPTY
        @9 rename d/e/full d/e EXCHANGE : EINVAL
        @9 rename d/e d/f : EACCES
        rename d/e d/f : ENOTDIR
        rename d/f d/e : EISDIR
        rename d/e w : ok
        rename w/full d : ENOTEMPTY
        rename d/f w/x/ : ENOTDIR
        rename d/f/ w/x : ENOTDIR
        rename d/x/ w/x : ENOENT
        rename d w/ : ENOTEMPTY
        rename . x : EBUSY
        rename d/.. x : EBUSY
        rename d . : EBUSY
        rename d w/.. : EBUSY
        rename d . NOREPLACE : EEXIST
        rename . d NOREPLACE : EBUSY
        rename / x : EBUSY
        rename x / : EBUSY
        rename d x NOREPLACE,EXCHANGE : EINVAL
        rename d x EXCHANGE : ENOENT
        rename d/f d/f NOREPLACE : EEXIST
        rename d/f/ d/f : ENOTDIR
        ",
    );
}

/// A script that only the Vfs runs, under its own rules for shared sticky directories: the test must not change the
/// host's settings.
fn inside_with(rules: uvfs::Protected, text: &str) {
    let config = uvfs::VfsConfig { protected: rules, ..uvfs::VfsConfig::default() };
    let vfs = uvfs::Vfs::new(config, std::sync::Arc::new(crate::common::Mem::default())).unwrap();
    script::run(text, &mut inside::Inside::new(&vfs), false);
}

#[test]
fn protected_symlinks() {
    let text = |follow: &str| {
        format!(
            "
            mkdir t 1777 : ok
            mkdir plain 777 : ok
            mkfile f 666 : ok
            @1 symlink /f t/l : ok
            @1 symlink /new t/n : ok
            symlink /f t/root : ok
            @1 symlink /t t/dir : ok
            @1 symlink /f plain/l : ok
            @2 stat t/l : {follow}
            @2 lstat t/l : l777 1:1 1 2
            @2 open t/n CREATE,READ 644 : {}
            @2 stat t/dir/l : {follow}
            @2 lstat t/dir/l : l777 1:1 1 2
            @1 stat t/l : -666 0:0 1 0
            @2 stat t/root : -666 0:0 1 0
            @2 stat plain/l : -666 0:0 1 0
            stat t/l : {follow}
            ",
            // The caller may follow the link, but still not make a file in the root directory.
            "EACCES",
        )
    };
    let rules = uvfs::Protected { symlinks: true, ..uvfs::Protected::OFF };
    inside_with(rules, &text("EACCES"));
    inside_with(uvfs::Protected::OFF, &text("-666 0:0 1 0"));
}

/// As on Linux, links are counted before the rule judges the last one. Planted bugs:
/// links-are-judged-before-they-are-counted, links-are-judged-before-they-are-counted-with-references,
/// links-are-judged-before-they-are-counted-by-creat.
#[test]
fn the_rule_for_symlinks_comes_after_their_number() {
    let mut text =
        String::from("mkdir t 1777 : ok\nmkfile f 666 : ok\n@1 symlink /f t/l : ok\nsymlink t/l l1 : ok\n");
    for n in 2..=40 {
        text += &format!("symlink l{} l{n} : ok\n", n - 1);
    }
    // At first with references; then the lock-free walk finds all targets cached, because the last link's owner read them.
    for owner in ["", "@1 stat l39 : -666 0:0 1 0\n"] {
        text += owner;
        text += "@2 stat l40 : ELOOP\n@2 stat l39 : EACCES\n@2 open l40 CREATE,READ 644 : ELOOP\n";
    }
    inside_with(uvfs::Protected { symlinks: true, ..uvfs::Protected::OFF }, &text);
}

#[test]
fn protected_hardlinks() {
    let rules = uvfs::Protected { hardlinks: true, ..uvfs::Protected::OFF };
    let text = "
        mkdir t 777 : ok
        @1 mkfile t/private 600 : ok
        @1 mkfile t/shared 666 : ok
        @1 mkfile t/suid 4777 : ok
        @1 mkfile t/sgid 2777 : ok
        @1 mkfile t/sgid-no-x 2767 : ok
        @1 mkfifo t/fifo 666 : ok
        @1 link t/private t/a : ok
        link t/private t/b : ok
        @2 link t/shared t/c : ok
        @2 link t/sgid-no-x t/d : ok
    ";
    let guarded = ["private", "suid", "sgid", "fifo"];
    let ask = |outcome: &str| {
        guarded.iter().fold(text.to_owned(), |all, n| all + &format!("@2 link t/{n} t/x-{n} : {outcome}\n"))
    };
    inside_with(rules, &ask("EPERM"));
    inside_with(uvfs::Protected::OFF, &ask("ok"));
}

#[test]
fn protected_fifos_and_files() {
    let text = |group: &str, other: &str| {
        format!(
            "
            mkdir t 1777 : ok
            mkdir g 1770 : ok
            chown g 0 7 : ok
            @1:7 mkfile t/f 666 : ok
            @1:7 mkfifo t/p 666 : ok
            @1:7 mkfile g/f 666 : ok
            mkfile t/root 666 : ok
            @2:7 open t/f CREATE,READ 644 : {other}
            @2:7 open t/p CREATE,READ 644 : {other}
            @2:7 open g/f CREATE,READ 644 : {group}
            open t/f CREATE,READ 644 : {other}
            @2:7 open t/root CREATE,READ 644 : ok
            @1:7 open t/f CREATE,READ 644 : ok
            @2:7 open t/f READ : ok
            "
        )
    };
    let level = |n| uvfs::Protected { fifos: n, regular: n, ..uvfs::Protected::OFF };
    inside_with(level(0), &text("ok", "ok"));
    inside_with(level(1), &text("ok", "EACCES"));
    inside_with(level(2), &text("EACCES", "EACCES"));
}

#[test]
fn read_only_file_systems() {
    let mut driver = crate::common::Mem::default();
    driver.read_only = true;
    let vfs = crate::common::vfs_of(std::sync::Arc::new(driver));
    let text = "
        stat / : d755 0:0 2
        ls / : ok
        mkdir d 755 : EROFS
        mkdir / 755 : EEXIST
        mkfile f 644 : EROFS
        open f CREATE,READ 644 : EROFS
        symlink t s : EROFS
        unlink f : EROFS
        rmdir f : EROFS
        rename f g : EROFS
        chmod / 700 : EROFS
        chown / 1 1 : EROFS
        utimes / now now : EROFS
        access / w : EROFS
        access / r : ok
        @9 access / w : EROFS
        setxattr / user.a b : EROFS
        removexattr / user.a : EROFS
        getxattr / user.a : ENODATA
        unlink . : EISDIR
        rmdir . : EINVAL
        rename . g : EBUSY
    ";
    script::run(text, &mut inside::Inside::new(&vfs), false);
}

#[test]
fn trusted_operations_are_not_checked() {
    let vfs = crate::common::vfs();
    let root = crate::common::root(&vfs);
    root.mkdir(b"d", 0o1700).unwrap();
    crate::common::touch(&root, "d/f");
    let op = uvfs::Op { trusted: true, ..vfs.op(&uvfs::Cred::user(9, 9)) };
    let dir = root.resolve(b"d").unwrap();
    vfs.mkdir(&op, &dir, b"e", 0o755).unwrap();
    vfs.unlink(&op, &dir, b"f").unwrap();
    vfs.rename(&op, &dir, b"e", &vfs.root(), b"e", uvfs::RenameFlags::empty()).unwrap();
    let set = uvfs::SetAttr { mode: Some(0o777), ..uvfs::SetAttr::default() };
    assert_eq!(vfs.setattr(&op, &dir, &set).unwrap().mode & 0o7777, 0o777);
    // This is not a question of permission.
    assert_eq!(crate::common::errno(vfs.mkdir(&op, &dir, b".", 0o755)), Some(uvfs::Errno::EXIST));
    assert_eq!(crate::common::errno(vfs.rmdir(&op, &vfs.root(), b"x")), Some(uvfs::Errno::NOENT));
    let _ = host::protected();
}
