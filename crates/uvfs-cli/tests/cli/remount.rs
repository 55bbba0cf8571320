//! Changing the options of a mount, by the command and as mount(8) does.

use std::fs::{self, File};
use std::process::{Command, Stdio};

use super::manners::helper;
use super::{Dir, SOON, Server, Test, refused, run, within};

pub const PLAIN: &[Test] = &[("remount_of_what_is_no_mount", remount_of_what_is_no_mount)];

pub const MOUNTING: &[Test] = &[
    ("remount_read_only_and_back", remount_read_only_and_back),
    ("remount_refuses_what_cannot_be_changed", remount_refuses_what_cannot_be_changed),
    ("remount_leaves_what_has_no_name_here", remount_leaves_what_has_no_name_here),
    ("remount_changes_the_memory_limit", remount_changes_the_memory_limit),
    ("remount_without_the_control_directory", remount_without_the_control_directory),
    ("remount_brings_no_suid_to_lent_files", remount_brings_no_suid_to_lent_files),
];

fn remount_of_what_is_no_mount() {
    let dir = Dir::new();
    assert!(refused(&["remount", "-o", "ro", dir.text()]).1.contains("nothing is mounted"));
    assert!(refused(&["remount", "-o", "ro", "/proc"]).1.contains("not a uvfs file system"));
    assert_eq!(refused(&["remount", dir.text()]).0, 2, "nothing is to be changed");
}

/// The flags that the kernel has of the mount.
fn flags(dir: &Dir) -> String {
    let mounts = fs::read_to_string("/proc/self/mounts").expect("mounts");
    let line = mounts.lines().find(|line| line.split(' ').nth(1) == Some(dir.text())).expect("a line");
    line.split(' ').nth(3).expect("flags").to_owned()
}

fn is_writable(dir: &Dir) -> bool {
    match fs::write(dir.path().join("file"), "x") {
        Ok(()) => true,
        Err(error) if error.kind() == std::io::ErrorKind::ReadOnlyFilesystem => false,
        Err(error) => panic!("{error}"),
    }
}

fn remount(dir: &Dir, options: &str) {
    let output = run(&["remount", "-o", options, dir.text()]);
    assert!(output.status.success(), "{options}: {output:?}");
}

fn remount_read_only_and_back() {
    let (place, dir) = (Dir::new(), Dir::new());
    let mut server = Server::start(&["-o", "size=1m,noexec", "tmpfs", dir.text()]);
    // As mount(8) calls it, with the options of fstab(5) and those of the kernel.
    let mut helper = helper(&place);
    helper.args([
        "tmpfs",
        dir.text(),
        "-o",
        "rw,noauto,size=1m,noexec,nosuid,nodev,relatime,user_id=0,remount,ro",
    ]);
    assert!(helper.stdin(Stdio::null()).status().expect("it starts").success());
    assert!(!is_writable(&dir) && flags(&dir).starts_with("ro,nosuid,nodev,noexec"), "{}", flags(&dir));
    // What is not named stays.
    remount(&dir, "exec,noatime");
    assert!(!is_writable(&dir) && !flags(&dir).contains("noexec") && flags(&dir).contains("noatime"));
    remount(&dir, "rw,relatime");
    assert!(is_writable(&dir) && flags(&dir).starts_with("rw,nosuid,nodev,relatime"), "{}", flags(&dir));
    let open = File::create(dir.path().join("open")).expect("create");
    let limit = || fs::read_to_string(dir.path().join(".uvfs/bytes_limit")).expect("read");
    let before = limit();
    let (_, said) = refused(&["remount", "-o", "ro,memory=64m", dir.text()]);
    assert!(said.contains("open for writing") && is_writable(&dir) && limit() == before, "{said}");
    drop(open);
    // The last write to it is on its way.
    assert!(within(SOON, || run(&["remount", "-o", "ro", dir.text()]).status.success()));
    // By mount(8) itself, which asks the kernel.
    let mount = Command::new("mount").args(["-i", "-o", "remount,rw", dir.text()]).status();
    match mount {
        Ok(status) => assert!(status.success() && is_writable(&dir)),
        Err(error) => eprintln!("skipped: remounting by mount(8): {error}"),
    }
    // It is the same mount as before to its server.
    server.signal(rustix::process::Signal::TERM);
    assert!(server.ended().success() && !super::is_mounted(dir.path()));
}

fn remount_refuses_what_cannot_be_changed() {
    let dir = Dir::new();
    let _server = Server::start(&["-o", "size=1m,timeout=1", "tmpfs", dir.text()]);
    for (options, named) in [
        ("size=2m", "size"),
        ("ro,timeout=2", "timeout"),
        ("allow_other", "allow_other"),
        ("ctl=off", "ctl"),
        ("exec,dirsync", "dirsync"),
        ("transport=dev,mode=700", "mode"),
    ] {
        let (status, said) = refused(&["remount", "-o", options, dir.text()]);
        assert!(
            status == 1 && said.contains(named) && said.contains("what can: ro, rw"),
            "{options}: {said}"
        );
    }
    let (_, said) = refused(&["remount", "-o", "colour=red", dir.text()]);
    assert!(said.contains("\"colour\""), "{said}");
    assert!(is_writable(&dir), "nothing was changed by halves");
    remount(&dir, "size=1m,timeout=1");
}

fn remount_leaves_what_has_no_name_here() {
    let dir = Dir::new();
    let _server = Server::start(&["-o", "dirsync,allow_other", "tmpfs", dir.text()]);
    let mount = Command::new("mount").args(["-i", "-o", "remount,bind,nosymfollow", dir.text()]).status();
    let is_set = mount.is_ok_and(|status| status.success()) && flags(&dir).contains("nosymfollow");
    remount(&dir, "ro,dirsync,allow_other");
    assert!(!is_writable(&dir) && flags(&dir).contains("dirsync"), "{}", flags(&dir));
    if is_set {
        assert!(flags(&dir).contains("nosymfollow"), "{}", flags(&dir));
    } else {
        eprintln!("skipped: nosymfollow, which this system has not");
    }
}

fn remount_changes_the_memory_limit() {
    let dir = Dir::new();
    let _server = Server::start(&["generated:depth=1,dirs=2,files=10", dir.text()]);
    let limit = || fs::read_to_string(dir.path().join(".uvfs/bytes_limit")).expect("read");
    remount(&dir, "memory=64m,ro");
    assert_eq!(limit().trim(), (64 << 20).to_string());
    assert!(flags(&dir).starts_with("ro"));
    let (_, said) = refused(&["remount", "-o", "suid,memory=32m", dir.text()]);
    assert!(said.contains("rw first") && flags(&dir).contains("nosuid"), "{said}");
    remount(&dir, "rw,memory=32m");
    assert_eq!(limit().trim(), (32 << 20).to_string());
    assert!(refused(&["remount", "-o", "memory=1k", dir.text()]).1.contains("at least 4m"));
}

fn remount_without_the_control_directory() {
    let dir = Dir::new();
    let _server = Server::start(&["-o", "ctl=off,size=1m,allow_other", "tmpfs", dir.text()]);
    // mount(8) repeats what the kernel shows.
    remount(&dir, "ro,ctl=off,allow_other");
    assert!(!is_writable(&dir));
    let (_, said) = refused(&["remount", "-o", "rw,memory=64m", dir.text()]);
    assert!(said.ends_with("has no .uvfs (ctl=off)\n") && !said.contains("what can"), "{said}");
    assert!(!is_writable(&dir));
    let (_, said) = refused(&["remount", "-o", "rw,size=1m", dir.text()]);
    assert!(said.contains("so its options are not known") && !said.contains("memory=BYTES"), "{said}");
}

/// Files are lent, or not, from the mount to its end, whatever its flags were meanwhile.
fn remount_brings_no_suid_to_lent_files() {
    let source = Dir::new();
    let mirror = format!("mirror:{}", source.text());
    let (lends, keeps) = (Dir::new(), Dir::new());
    let _servers =
        [Server::start(&[&mirror, lends.text()]), Server::start(&["-o", "suid", &mirror, keeps.text()])];
    let (_, said) = refused(&["remount", "-o", "suid", lends.text()]);
    assert!(said.contains("suid cannot be changed") && flags(&lends).contains("nosuid"), "{said}");
    remount(&lends, "noatime");
    for option in ["nosuid", "suid"] {
        remount(&keeps, option);
        assert_eq!(flags(&keeps).contains("nosuid"), option == "nosuid");
    }
}
