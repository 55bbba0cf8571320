//! How mounts end, and how they fail to begin.

use std::fs::{self, File};
use std::io::{Read, Write};
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use uvfs::{Vfs, VfsConfig};
use uvfs_fuse::{MountError, Options, Unmounted};

use crate::Test;
use crate::fixture::{Fixture, Needs, tmpfs};

pub const TESTS: &[Test] = &[
    ("an_idle_mount_goes_cleanly", Needs::Mount, an_idle_mount_goes_cleanly),
    ("a_busy_mount_is_detached", Needs::Mount, a_busy_mount_is_detached),
    ("an_unmount_from_outside_is_noticed", Needs::Root, an_unmount_from_outside_is_noticed),
    ("the_vfs_goes_with_the_mount", Needs::Mount, the_vfs_goes_with_the_mount),
    ("a_mount_over_ours_is_left_alone", Needs::Root, a_mount_over_ours_is_left_alone),
    (
        "a_mount_that_is_gone_is_not_taken_for_its_successor",
        Needs::Mount,
        a_mount_that_is_gone_is_not_taken_for_its_successor,
    ),
    ("bad_mount_points_are_named", Needs::Mount, bad_mount_points_are_named),
    ("a_signal_ends_what_serves_until_one", Needs::Mount, a_signal_ends_what_serves_until_one),
    ("read_only_is_read_only", Needs::Mount, read_only_is_read_only),
    ("what_proc_mounts_says", Needs::Mount, what_proc_mounts_says),
];

const SOON: Duration = Duration::from_secs(10);

fn an_idle_mount_goes_cleanly() {
    let mnt = Fixture::tmpfs();
    fs::write(mnt.path("file"), "x").expect("write");
    assert_eq!(mnt.mounted.unmount().expect("unmount"), Unmounted::Clean);
    mnt.mounted.wait().expect("a clean end");
    assert!(!mnt.path("file").exists());
    assert_eq!(mnt.mounted.unmount().expect("again"), Unmounted::Clean);
}

fn a_busy_mount_is_detached() {
    let mnt = Fixture::tmpfs();
    let mut file =
        File::options().read(true).write(true).create_new(true).open(mnt.path("open")).expect("create");
    assert_eq!(mnt.mounted.unmount().expect("unmount"), Unmounted::Detached);
    assert!(!mnt.path("open").exists(), "the name is gone");
    assert!(!mnt.mounted.wait_for(Duration::from_millis(50)), "the session lives while the file is open");
    file.write_all(b"still here").expect("an open file works on");
    std::io::Seek::rewind(&mut file).expect("rewind");
    let mut read = String::new();
    file.read_to_string(&mut read).expect("read");
    assert_eq!(read, "still here");
    drop(file);
    assert!(mnt.mounted.wait_for(SOON), "the session ends with its last user");
}

fn an_unmount_from_outside_is_noticed() {
    let mnt = Fixture::tmpfs();
    assert!(Command::new("umount").arg(&*mnt).status().expect("umount").success());
    assert!(mnt.mounted.wait_for(SOON));
    mnt.mounted.wait().expect("a clean end");
}

/// The kernel sends no FORGET on unmount; the references must not keep the VFS alive.
fn the_vfs_goes_with_the_mount() {
    let mnt = Fixture::tmpfs();
    for i in 0..100 {
        fs::write(mnt.path(&i.to_string()), "x").expect("write");
    }
    assert!(mnt.outstanding() >= 100);
    let weak = std::sync::Arc::downgrade(&mnt.vfs);
    drop(mnt);
    let gone = crate::fixture::within(SOON, || weak.upgrade().is_none());
    assert!(gone, "somebody holds the VFS of a mount that is gone");
}

/// Waits until this process handles SIGTERM, then sends it. Sent too early, it would end the tests.
fn terminate_when_handled() {
    let handled = || {
        let status = fs::read_to_string("/proc/self/status").expect("a status");
        let caught =
            status.lines().find_map(|line| line.strip_prefix("SigCgt:")).expect("the handled signals");
        u64::from_str_radix(caught.trim(), 16).expect("a mask") & (1 << (libc::SIGTERM - 1)) != 0
    };
    assert!(crate::fixture::within(SOON, handled), "SIGTERM is not handled");
    rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::TERM).expect("kill");
}

fn a_signal_ends_what_serves_until_one() {
    let mnt = Fixture::tmpfs();
    std::thread::scope(|scope| {
        let serving = scope.spawn(|| mnt.mounted.serve_until_signal());
        terminate_when_handled();
        serving.join().expect("no panic").expect("a clean end");
    });
    assert!(mnt.mounted.wait_for(Duration::ZERO), "the session has ended");
    assert_eq!(mnt.mounted.unmount().expect("nothing is left to do"), Unmounted::Clean);
}

/// Numbers of mounts and devices are reused at once, so a mount elsewhere gets those of a mount that has gone.
fn a_mount_that_is_gone_is_not_taken_for_its_successor() {
    for _ in 0..5 {
        let gone = Fixture::tmpfs();
        assert_eq!(gone.mounted.unmount().expect("unmount"), Unmounted::Clean);
        gone.mounted.wait().expect("a clean end");
        let _next = Fixture::tmpfs();
        assert!(!gone.mounted.is_listed());
    }
}

fn a_mount_over_ours_is_left_alone() {
    let below = Fixture::tmpfs();
    fs::write(below.path("below"), "").expect("write");
    let vfs = Vfs::new(VfsConfig::default(), tmpfs()).expect("a VFS");
    let above = uvfs_fuse::mount(vfs, &below, &Options::default()).expect("a mount over a mount");
    let error = below.mounted.unmount().expect_err("covered");
    assert!(matches!(error, MountError::Covered(_)), "{error}");
    assert_eq!(above.unmount().expect("unmount"), Unmounted::Clean);
    assert!(below.path("below").exists());
    assert_eq!(below.mounted.unmount().expect("unmount"), Unmounted::Clean);
}

fn bad_mount_points_are_named() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    fs::write(dir.path().join("file"), "").expect("write");
    let refused = |name: &str| {
        let vfs = Vfs::new(VfsConfig::default(), tmpfs()).expect("a VFS");
        match uvfs_fuse::mount(vfs, &dir.path().join(name), &Options::default()) {
            Ok(_) => panic!("{name} was mounted on"),
            Err(error) => error.to_string(),
        }
    };
    assert!(refused("none").contains("mkdir"));
    assert!(refused("file").contains("not a directory"));
    assert!(refused("file/below").contains("not a directory"));
    let unmount = |path: &Path| uvfs_fuse::unmount(path, false).expect_err("must fail").to_string();
    assert!(unmount(dir.path()).contains("nothing is mounted"));
    assert!(unmount(Path::new("/proc")).contains("proc"));
    assert!(unmount(&dir.path().join("none")).contains("does not exist"));
}

fn read_only_is_read_only() {
    let mnt = Fixture::tmpfs_with(|options| options.read_only = true);
    let error = fs::write(mnt.path("file"), "").expect_err("read-only");
    assert_eq!(error.raw_os_error(), Some(libc::EROFS));
}

fn what_proc_mounts_says() {
    let mnt = Fixture::tmpfs_with(|options| {
        options.fsname = Some("a name,with a comma".into());
        options.exec = false;
        options.suid = false;
    });
    let line = |mnt: &Fixture| {
        let mounts = fs::read_to_string("/proc/self/mounts").expect("mounts");
        let dir = mnt.display().to_string();
        mounts.lines().find(|line| line.contains(&dir)).expect("a line").to_owned()
    };
    assert!(line(&Fixture::tmpfs()).starts_with("tmpfs "), "by default the name of the driver");
    let ours = line(&mnt);
    assert!(ours.starts_with(r"a\040name,with\040a\040comma "), "{ours}");
    for word in [" fuse.uvfs ", "nosuid", "nodev", "noexec", "default_permissions"] {
        assert!(ours.contains(word), "{word}: {ours}");
    }
}
