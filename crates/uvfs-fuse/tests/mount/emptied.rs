//! Large directories that are emptied while they are listed.

use std::collections::HashSet;
use std::fs;
use std::io::ErrorKind;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use uvfs::{Cred, Driver, Found, mode};
use uvfs_drivers::mirror::Mirror;
use uvfs_fuse::Options;

use crate::Test;
use crate::fixture::{Fixture, Needs, usual_or_full};

pub const TESTS: &[Test] = &[
    ("a_large_directory_is_emptied_while_it_is_listed", Needs::Mount, on_tmpfs),
    ("a_large_directory_of_a_mirror_is_emptied_while_it_is_listed", Needs::Mount, on_mirror),
];

/// Entries of the directory, usually and with `UVFS_FULL`.
const ENTRIES: [usize; 2] = [20_000, 100_000];
/// For a mirror, where each entry takes the host some calls.
const MIRRORED: [usize; 2] = [10_000, 30_000];
/// The most listings: each takes time from the removing threads.
const LISTS: usize = 5;
/// One in this many entries stays.
const KEPT: usize = 1000;

fn on_tmpfs() {
    let mnt = Fixture::tmpfs();
    fs::create_dir(mnt.path("dir")).expect("mkdir");
    // Made behind the kernel, which is faster; the kernel has not looked at the directory yet.
    let (vfs, op) = (&mnt.vfs, mnt.vfs.op(&Cred::root()));
    let dir = vfs.lookup(&op, &vfs.root(), b"dir").expect("a lookup");
    let Found::Node(dir, _) = dir else { panic!("dir is missing") };
    let entries = usual_or_full(ENTRIES[0], ENTRIES[1]);
    for i in 0..entries {
        vfs.mknod(&op, &dir, name(i).as_bytes(), mode::S_IFREG | 0o644, 0).expect("mknod");
    }
    empty(&mnt.path("dir"), entries);
}

fn on_mirror() {
    let src = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).expect("a directory");
    fs::create_dir(src.path().join("dir")).expect("mkdir");
    let entries = usual_or_full(MIRRORED[0], MIRRORED[1]);
    for i in 0..entries {
        fs::write(src.path().join("dir").join(name(i)), "").expect("create");
    }
    let mirror = Mirror::new(src.path(), std::time::Duration::from_secs(1)).expect("a mirror");
    let mnt = Fixture::new(mirror as Arc<dyn Driver>, &Options::default());
    empty(&mnt.path("dir"), entries);
    assert_eq!(fs::read_dir(src.path()).expect("readdir").count(), 0, "on the host");
}

fn name(i: usize) -> String {
    format!("entry-{i:06}")
}

/// Two threads remove what they list, while a third lists. Each listing has the entries that stay once.
fn empty(dir: &Path, entries: usize) {
    let kept: HashSet<_> = (0..entries).step_by(KEPT).map(name).collect();
    let done = AtomicBool::new(false);
    let remove = || {
        for entry in fs::read_dir(dir).expect("opendir") {
            let entry = entry.expect("readdir");
            if kept.contains(&*entry.file_name().to_string_lossy()) {
                continue;
            }
            // The other thread may have been first.
            if let Err(error) = fs::remove_file(entry.path()) {
                assert_eq!(error.kind(), ErrorKind::NotFound, "{:?}", entry.path());
            }
        }
    };
    let lists = thread::scope(|s| {
        let removers = [s.spawn(remove), s.spawn(remove)];
        let lister = s.spawn(|| {
            let mut lists = 0;
            while !done.load(Ordering::Relaxed) && lists < LISTS {
                list(dir, &kept, entries);
                lists += 1;
            }
            lists
        });
        for remover in removers {
            remover.join().expect("a remover");
        }
        done.store(true, Ordering::Relaxed);
        lister.join().expect("the lister")
    });
    assert!(lists > 0);
    // A single pass removes everything that was there at its start.
    let left: HashSet<_> = names(dir).into_iter().collect();
    assert_eq!(left, kept);
    for name in &kept {
        fs::remove_file(dir.join(name)).expect("rm");
    }
    fs::remove_dir(dir).expect("rmdir");
}

fn names(dir: &Path) -> Vec<String> {
    let entries = fs::read_dir(dir).expect("opendir");
    entries.map(|e| e.expect("readdir").file_name().into_string().expect("UTF-8")).collect()
}

/// One listing: it ends, it invents and repeats no name, and it contains the names that stay.
fn list(dir: &Path, kept: &HashSet<String>, entries: usize) {
    let names = names(dir);
    let seen: HashSet<_> = names.iter().collect();
    assert_eq!(seen.len(), names.len(), "a name was listed twice");
    assert!(
        names
            .iter()
            .all(|n| n.strip_prefix("entry-").is_some_and(|i| i.parse::<usize>().is_ok_and(|i| i < entries)))
    );
    assert!(kept.iter().all(|name| seen.contains(name)), "a name that stays is missing");
}
