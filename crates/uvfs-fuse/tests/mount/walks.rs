//! The requests of a caching kernel when a tree is walked again.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;

use uvfs::{Cred, mode};
use uvfs_drivers::generated::{Generated, Spec};
use uvfs_fuse::{Options, Requests};

use crate::Test;
use crate::fixture::{Fixture, Needs};

pub const TESTS: &[Test] = &[
    ("a_tmpfs_that_is_walked_again_is_not_asked", Needs::Mount, a_tmpfs_that_is_walked_again_is_not_asked),
    ("a_tree_that_is_walked_again_is_not_asked", Needs::Mount, a_tree_that_is_walked_again_is_not_asked),
    ("entries_that_are_kept_follow_changes", Needs::Mount, entries_that_are_kept_follow_changes),
    ("with_a_timeout_no_entries_are_kept", Needs::Mount, with_a_timeout_no_entries_are_kept),
];

/// The number of walks in which a kernel has time to cache everything.
const WALKS: u32 = 50;

/// The requests that a command with a full walk causes, and its output.
fn walk(mnt: &Fixture, command: &[&str]) -> (Requests, Vec<u8>) {
    let before = mnt.mounted.requests();
    let (program, arguments) = command.split_first().expect("a program");
    let output = Command::new(program).args(arguments).arg(&**mnt).stderr(Stdio::inherit()).output();
    let output = output.expect("it can be run");
    assert!(output.status.success(), "{command:?}");
    let after = mnt.mounted.requests();
    let requests = Requests {
        lookup: after.lookup - before.lookup,
        getattr: after.getattr - before.getattr,
        readdir: after.readdir - before.readdir,
        opendir: after.opendir - before.opendir,
        ..Requests::default()
    };
    (requests, output.stdout)
}

/// The output of a command once it causes no request. The entries are in pages that the kernel may drop at any time
/// (some kernels reclaim them ahead of need). It then reads those directories once more.
fn walk_unasked(mnt: &Fixture, command: &[&str]) -> Vec<u8> {
    let mut last = Requests::default();
    for _ in 0..WALKS {
        let (asked, output) = walk(mnt, command);
        if asked == Requests::default() {
            return output;
        }
        last = asked;
    }
    panic!("{command:?} asks each time, at last {last:?}");
}

/// After the first walk the kernel asks once more for the attributes of each directory that it has read, because
/// reading may have moved the access time. After that it asks for nothing. In all it asks once to open a directory.
fn walk_again(mnt: &Fixture, dirs: u64) {
    // With attributes of everything.
    let find = ["sh", "-c", "find \"$0\" -size -1000000"];
    let list = ["ls", "-lR"];
    let (first, found) = walk(mnt, &find);
    assert!(first.readdir >= dirs && first.lookup == 0, "{first:?}");
    let (second, again) = walk(mnt, &find);
    assert!(second.getattr <= dirs && second.lookup == 0, "{second:?}");
    assert!(found == again && found.len() > 1000);
    assert!(walk_unasked(mnt, &find) == found);
    walk_unasked(mnt, &list);
    assert_eq!(mnt.mounted.requests().opendir, 1);
}

fn a_tmpfs_that_is_walked_again_is_not_asked() {
    let mnt = Fixture::tmpfs();
    for dir in 0..10 {
        let dir = mnt.path(&format!("dir{dir}/sub"));
        fs::create_dir_all(&dir).expect("mkdir");
        (0..50).for_each(|file| fs::write(dir.join(file.to_string()), "x").expect("create"));
    }
    walk_again(&mnt, 21);
}

fn a_tree_that_is_walked_again_is_not_asked() {
    let driver = Generated::new("depth=2,dirs=4,files=40".parse::<Spec>().expect("a specification"));
    let mnt = Fixture::new(Arc::new(driver.expect("a driver")), &Options::default());
    walk_again(&mnt, 21);
}

fn names(dir: &Path) -> Vec<String> {
    let entries = fs::read_dir(dir).expect("readdir").map(|entry| entry.expect("an entry").file_name());
    let mut names: Vec<_> = entries.map(|name| name.to_string_lossy().into_owned()).collect();
    names.sort();
    names
}

/// Through the mount, which is the only way in.
fn entries_that_are_kept_follow_changes() {
    let mnt = Fixture::tmpfs();
    fs::create_dir(mnt.path("other")).expect("mkdir");
    for file in ["a", "b", "c"] {
        fs::write(mnt.path(file), "").expect("create");
    }
    assert_eq!(names(&mnt), ["a", "b", "c", "other"]);
    assert_eq!(names(&mnt), ["a", "b", "c", "other"]);
    fs::remove_file(mnt.path("a")).expect("unlink");
    assert_eq!(names(&mnt), ["b", "c", "other"]);
    fs::rename(mnt.path("b"), mnt.path("other/b")).expect("rename");
    assert_eq!(
        (names(&mnt), names(&mnt.path("other"))),
        (vec!["c".into(), "other".into()], vec!["b".into()])
    );
    fs::hard_link(mnt.path("c"), mnt.path("linked")).expect("link");
    fs::create_dir(mnt.path("made")).expect("mkdir");
    assert_eq!(names(&mnt), ["c", "linked", "made", "other"]);
    fs::remove_dir(mnt.path("made")).expect("rmdir");
    std::os::unix::fs::symlink("c", mnt.path("symlink")).expect("symlink");
    assert_eq!(names(&mnt), ["c", "linked", "other", "symlink"]);
}

fn with_a_timeout_no_entries_are_kept() {
    let mnt = Fixture::tmpfs_with(|options| options.timeout = Some(std::time::Duration::ZERO));
    assert_eq!(names(&mnt), [""; 0]);
    let op = mnt.vfs.op(&Cred::root());
    let made = mnt.vfs.mknod(&op, &mnt.vfs.root(), b"late", mode::S_IFREG | 0o644, 0);
    drop(made.expect("mknod"));
    assert_eq!(names(&mnt), ["late"]);
}
