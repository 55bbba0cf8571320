//! The memory limit of a cache whose names a real kernel holds.

use std::fs;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use uvfs_drivers::generated::{Generated, Spec};
use uvfs_fuse::Options;

use crate::Test;
use crate::fixture::{Fixture, Needs, within};

pub const TESTS: &[Test] = &[
    ("a_tree_larger_than_the_limit_is_walked", Needs::Mount, a_tree_larger_than_the_limit_is_walked),
    ("without_prune_names_are_invalidated", Needs::Mount, without_prune_names_are_invalidated),
    (
        "a_lower_limit_is_reached_through_the_kernel",
        Needs::Mount,
        a_lower_limit_is_reached_through_the_kernel,
    ),
    ("what_is_open_stays", Needs::Mount, what_is_open_stays),
];

const MIB: u64 = 1 << 20;
const SOON: Duration = Duration::from_secs(60);
/// Twice as many names as fit into 4 MiB.
const DIRS: usize = 20;
const FILES: usize = 2000;

fn limited(limit: u64, options: &Options) -> Fixture {
    let spec = format!("depth=1,dirs={DIRS},files={FILES}");
    let driver = Generated::new(spec.parse::<Spec>().expect("a specification")).expect("a driver");
    let mnt = Fixture::new(Arc::new(driver), options);
    mnt.vfs.cache().set_memory_limit(limit);
    mnt
}

/// Lists everything and asks for the attributes of each entry; returns their number.
fn walk(mnt: &Fixture) -> usize {
    let mut seen = 0;
    let mut dirs = vec![mnt.to_path_buf()];
    while let Some(dir) = dirs.pop() {
        for entry in fs::read_dir(&dir).expect("readdir") {
            let entry = entry.expect("an entry");
            let meta = entry.metadata().expect("stat");
            seen += 1;
            if meta.is_dir() {
                dirs.push(entry.path());
            }
        }
        within_limit(mnt);
    }
    seen
}

fn within_limit(mnt: &Fixture) {
    let (bytes, limit) = (mnt.vfs.cache().committed(), mnt.vfs.cache().memory_limit());
    assert!(bytes <= limit + limit / 20, "{bytes} bytes of {limit}");
}

fn walks(options: &Options) -> Fixture {
    let mnt = limited(4 * MIB, options);
    let all = DIRS + FILES * (DIRS + 1);
    thread::scope(|scope| {
        let walkers = [scope.spawn(|| walk(&mnt)), scope.spawn(|| walk(&mnt))];
        for walker in walkers {
            assert_eq!(walker.join().expect("no panic"), all);
        }
    });
    let shortages = mnt.mounted.shortages();
    assert_eq!(shortages.refused, 0, "{shortages:?}");
    mnt
}

/// The kernel is asked to forget in either way, and no request is refused.
fn a_tree_larger_than_the_limit_is_walked() {
    let mnt = walks(&Options::default());
    let shortages = mnt.mounted.shortages();
    assert!(shortages.pruned + shortages.invalidated > 0, "{shortages:?}");
    assert!(mnt.mounted.lookups().forgotten > 0);
}

fn without_prune_names_are_invalidated() {
    let mut options = Options::default();
    options.prune = false;
    let mnt = walks(&options);
    let shortages = mnt.mounted.shortages();
    assert!(shortages.pruned == 0 && shortages.invalidated > 0, "{shortages:?}");
}

fn a_lower_limit_is_reached_through_the_kernel() {
    let mnt = limited(0, &Options::default());
    walk_without_limit(&mnt);
    let cache = mnt.vfs.cache();
    assert!(cache.committed() > 7 * MIB);
    cache.ask_memory_limit(4 * MIB);
    assert!(
        within(SOON, || cache.committed() <= 4 * MIB + 4 * MIB / 64),
        "{} bytes: {:?}",
        cache.committed(),
        mnt.mounted.shortages()
    );
    // The mount keeps working.
    assert_eq!(walk(&mnt), DIRS + FILES * (DIRS + 1));
}

fn walk_without_limit(mnt: &Fixture) {
    for dir in fs::read_dir(&**mnt).expect("readdir") {
        let dir = dir.expect("an entry").path();
        if dir.is_dir() {
            for entry in fs::read_dir(dir).expect("readdir") {
                entry.expect("an entry").metadata().expect("stat");
            }
        }
    }
}

/// Open files cannot be forgotten: their content is there after the cache was driven through.
fn what_is_open_stays() {
    let mnt = limited(4 * MIB, &Options::default());
    let files: Vec<_> = fs::read_dir(&*mnt)
        .expect("readdir")
        .map(|entry| entry.expect("an entry").path())
        .filter(|path| path.is_file())
        .take(500)
        .map(|path| (fs::File::open(&path).expect("open"), fs::metadata(&path).expect("stat")))
        .collect();
    walk(&mnt);
    for (file, meta) in &files {
        use std::os::unix::fs::MetadataExt;
        let now = file.metadata().expect("fstat");
        assert_eq!((now.ino(), now.len()), (meta.ino(), meta.len()));
    }
    assert_eq!(mnt.mounted.shortages().refused, 0);
}
