//! Node ids and the kernel's references to them.

use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::time::Duration;

use uvfs::{Cred, Found};

use crate::Test;
use crate::fixture::{Fixture, Needs, drop_caches};

pub const TESTS: &[Test] = &[
    ("every_lookup_is_forgotten", Needs::Root, every_lookup_is_forgotten),
    ("readdir_counts_what_the_kernel_took", Needs::Root, readdir_counts_what_the_kernel_took),
    ("removing_all_leaves_no_inode", Needs::Root, removing_all_leaves_no_inode),
    ("a_stale_id_is_estale", Needs::Root, a_stale_id_is_estale),
    ("inode_numbers_are_unique_and_stay", Needs::Root, inode_numbers_are_unique_and_stay),
    ("timeout_zero_sees_all_changes", Needs::Mount, timeout_zero_sees_all_changes),
    ("missing_names_are_remembered", Needs::Mount, missing_names_are_remembered),
];

/// Every kind of request that hands out a node, then the return of all of them.
fn every_lookup_is_forgotten() {
    let mnt = Fixture::tmpfs();
    fs::create_dir(mnt.path("dir")).expect("mkdir");
    fs::write(mnt.path("dir/created"), "x").expect("create");
    std::os::unix::fs::symlink("created", mnt.path("dir/symlink")).expect("symlink");
    fs::hard_link(mnt.path("dir/created"), mnt.path("dir/linked")).expect("link");
    let fifo = rustix::fs::FileType::Fifo;
    rustix::fs::mknodat(rustix::fs::CWD, mnt.path("dir/fifo"), fifo, 0o600.into(), 0).expect("mknod");
    // dir, created, symlink, created again as linked, fifo
    assert_eq!(mnt.outstanding(), 5);
    assert!(mnt.all_forgotten());
    fs::metadata(mnt.path("dir/linked")).expect("a lookup of two names");
    assert_eq!(mnt.outstanding(), 2);
    assert!(!mnt.path("dir/none").exists());
    assert_eq!(mnt.outstanding(), 2, "a missing name is no node");
    assert!(mnt.all_forgotten());
    // The files themselves are still there.
    assert_eq!(fs::read(mnt.path("dir/symlink")).expect("read"), b"x");
}

/// 2000 entries in buffers of many sizes: each time the last one does not fit.
fn readdir_counts_what_the_kernel_took() {
    let mnt = Fixture::tmpfs();
    for i in 0..2000 {
        fs::write(mnt.path(&format!("{i}{}", "x".repeat(i % 200))), "").expect("create");
    }
    assert!(mnt.all_forgotten());
    let before = mnt.mounted.lookups().given;
    assert_eq!(fs::read_dir(&*mnt).expect("readdir").count(), 2000);
    // `.` and `..` do not count.
    assert_eq!(mnt.mounted.lookups().given - before, 2000);
    assert!(mnt.all_forgotten());
}

fn removing_all_leaves_no_inode() {
    let mnt = Fixture::tmpfs();
    let live = || mnt.vfs.cache().counters().inodes;
    let before = live();
    for round in 0..3 {
        fs::create_dir_all(mnt.path("a/b/c")).expect("mkdir");
        for i in 0..100 {
            fs::write(mnt.path(&format!("a/b/c/{i}")), "x").expect("create");
        }
        assert!(live() >= before + 103, "round {round}");
        fs::remove_dir_all(mnt.path("a")).expect("remove");
        assert!(mnt.all_forgotten());
        let gone = crate::fixture::within(Duration::from_secs(10), || live() == before);
        assert!(gone, "round {round}: {} inodes before and {} after", before, live());
    }
}

/// Removes the kernel's own reference, as no correct front end would. So the slot of a removed file is released
/// while the kernel still holds its id.
fn a_stale_id_is_estale() {
    let mnt = Fixture::tmpfs_with(|options| options.timeout = Some(Duration::ZERO));
    fs::write(mnt.path("victim"), "x").expect("create");
    let held =
        OpenOptions::new().read(true).custom_flags(libc::O_PATH).open(mnt.path("victim")).expect("O_PATH");
    assert!(held.metadata().is_ok());
    // The answer for the written and closed file may still come: its RELEASE is not waited for.
    let vfs = &mnt.vfs;
    let op = vfs.op(&Cred::root());
    let id = match vfs.lookup(&op, &vfs.root(), b"victim") {
        Ok(Found::Node(inode, _)) => inode.id(),
        _ => panic!("the victim is there"),
    };
    vfs.unlink(&op, &vfs.root(), b"victim").expect("unlink");
    vfs.cache().forget_lookups(id, mnt.outstanding());
    let stale = crate::fixture::within(Duration::from_secs(10), || vfs.inode(id).is_err());
    assert!(stale, "the inode is gone once nobody holds it");
    let error = held.metadata().expect_err("an id that nobody issued");
    assert_eq!(error.raw_os_error(), Some(libc::ESTALE));
    // The FORGET that the kernel still sends for it must not affect the slot's next owner.
    fs::write(mnt.path("next"), "y").expect("create");
    drop(held);
    drop_caches();
    assert_eq!(fs::read(mnt.path("next")).expect("read"), b"y");
}

fn inode_numbers_are_unique_and_stay() {
    let mnt = Fixture::tmpfs();
    let numbers = || -> Vec<u64> {
        (0..100).map(|i| fs::metadata(mnt.path(&i.to_string())).expect("stat").ino()).collect()
    };
    for i in 0..100 {
        File::create(mnt.path(&i.to_string())).expect("create");
    }
    let first = numbers();
    let mut unique = first.clone();
    unique.sort_unstable();
    unique.dedup();
    assert_eq!(unique.len(), 100);
    assert!(mnt.all_forgotten());
    assert_eq!(numbers(), first);
    // readdir and stat agree.
    use std::os::unix::fs::DirEntryExt;
    for entry in fs::read_dir(&*mnt).expect("readdir") {
        let entry = entry.expect("an entry");
        assert_eq!(entry.ino(), entry.metadata().expect("stat").ino());
    }
}

fn timeout_zero_sees_all_changes() {
    let mnt = Fixture::tmpfs_with(|options| options.timeout = Some(Duration::ZERO));
    assert!(!mnt.path("late").exists());
    mnt.make_behind_the_kernels_back("late", b"12345");
    assert_eq!(fs::metadata(mnt.path("late")).expect("stat").len(), 5);
    let op = mnt.vfs.op(&Cred::root());
    mnt.vfs.unlink(&op, &mnt.vfs.root(), b"late").expect("unlink");
    assert!(!mnt.path("late").exists());
}

/// The counterpart of the test above: without a timeout the kernel does not ask again.
fn missing_names_are_remembered() {
    let mnt = Fixture::tmpfs();
    assert!(!mnt.path("late").exists());
    mnt.make_behind_the_kernels_back("late", b"");
    assert!(!mnt.path("late").exists(), "the kernel asked again for a name that it was told to trust");
}
