//! Tests of a real mount: the example's store. They need /dev/fuse, and root or fusermount3; where that is missing they
//! say so and count as ignored.

mod fixture;
#[allow(dead_code, reason = "the example uses the rest")]
#[path = "../../examples/store/objects.rs"]
mod objects;

use std::fs;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use libtest_mimic::{Arguments, Completion, Trial};
use rustix::fs::{CWD, RenameFlags, renameat_with};
use uvfs_path::{PathOptions, Ttl};

use fixture::{Fixture, drop_caches, has_helper, is_root, missing, within};
use objects::Store;

const TESTS: &[(&str, fn())] = &[
    ("names_are_made_found_and_removed", names),
    ("renamed_directories_take_their_children_along", renames),
    ("names_are_exchanged", exchanges),
    ("hard_links_are_one_node", links),
    ("changes_of_others_show_after_the_ttls", others),
    ("large_directories_are_listed_whole", listings),
    ("a_slow_call_delays_no_other_name", slow),
    ("a_tree_larger_than_the_limit_stays_within_it", limit),
    ("open_files_without_a_name_keep_their_attributes", without_a_name),
    ("a_directory_is_removed_while_it_is_listed", removal),
];

/// Tests that need root: drop_caches, and a helper beside it.
const ROOT_TESTS: &[(&str, fn())] = &[
    ("the_kernel_forgets_all_that_it_looked_up", forgets),
    ("a_mount_through_fusermount3_keeps_its_limit", through_the_helper),
];

fn main() {
    let all = TESTS.iter().map(|test| (test, false)).chain(ROOT_TESTS.iter().map(|test| (test, true)));
    let trials = all.map(|(&(name, test), root)| {
        Trial::ignorable_test(name, move || {
            let helper = has_helper() || !name.contains("fusermount3");
            let here = missing()
                .or_else(|| (root && !is_root()).then(|| "not root".into()))
                .or_else(|| (!helper).then(|| "no fusermount3".into()));
            match here {
                Some(reason) => {
                    eprintln!("skipped: {name}: {reason}");
                    Ok(Completion::ignored_with(reason))
                }
                None => {
                    test();
                    Ok(Completion::Completed)
                }
            }
        })
    });
    let mut arguments = Arguments::from_args();
    // One after the other: some drop the kernel's caches, which are everybody's, and a session's device is found only
    // if no other mount begins at the same time.
    arguments.test_threads.get_or_insert(1);
    libtest_mimic::run(&arguments, trials.collect()).exit();
}

fn short(milliseconds: u64) -> PathOptions {
    let ttl = Ttl::For(Duration::from_millis(milliseconds));
    let kernel_ttl = Duration::from_millis(milliseconds);
    PathOptions {
        name_ttl: Some(ttl),
        attr_ttl: Some(ttl),
        absent_ttl: ttl,
        kernel_ttl,
        ..PathOptions::default()
    }
}

fn names() {
    let f = Fixture::new(PathOptions::default());
    fs::create_dir(f.path("d")).unwrap();
    fs::write(f.path("d/file"), "hello").unwrap();
    symlink("file", f.path("d/link")).unwrap();
    assert_eq!(fs::read_to_string(f.path("d/link")).unwrap(), "hello");
    assert_eq!(fs::metadata(f.path("d/file")).unwrap().len(), 5);
    assert!(!f.path("d/none").exists() && !f.path("d/none").exists());
    assert_eq!(fs::create_dir(f.path("d")).unwrap_err().kind(), std::io::ErrorKind::AlreadyExists);
    assert_eq!(fs::remove_dir(f.path("d")).unwrap_err().kind(), std::io::ErrorKind::DirectoryNotEmpty);
    let long = "x".repeat(300);
    assert_eq!(fs::metadata(f.path(&long)).unwrap_err().raw_os_error(), Some(libc::ENAMETOOLONG));
    assert_eq!(fs::create_dir(f.path(&long)).unwrap_err().raw_os_error(), Some(libc::ENAMETOOLONG));
    fs::remove_file(f.path("d/file")).unwrap();
    fs::remove_file(f.path("d/link")).unwrap();
    fs::remove_dir(f.path("d")).unwrap();
    assert!(!f.path("d").exists());
    // The name again, for another type.
    fs::write(f.path("d"), "file now").unwrap();
    assert_eq!(fs::read_to_string(f.path("d")).unwrap(), "file now");
}

fn renames() {
    let f = Fixture::new(PathOptions::default());
    fs::create_dir_all(f.path("a/b/c")).unwrap();
    fs::create_dir(f.path("to")).unwrap();
    fs::write(f.path("a/b/c/file"), "one").unwrap();
    let held = fs::File::open(f.path("a/b/c")).unwrap();
    fs::rename(f.path("a"), f.path("to/z")).unwrap();
    assert_eq!(fs::read_to_string(f.path("to/z/b/c/file")).unwrap(), "one");
    assert!(!f.path("a").exists());
    // Through a directory that was open before the rename: its path is the new one.
    let inside = Path::new("/proc/self/fd").join(held.as_raw_fd().to_string());
    fs::write(inside.join("second"), "two").unwrap();
    assert_eq!(f.store.read("/to/z/b/c/second").unwrap(), b"two");
    // Over an empty directory, and over a file.
    fs::create_dir(f.path("empty")).unwrap();
    fs::rename(f.path("to"), f.path("empty")).unwrap();
    assert_eq!(fs::read_to_string(f.path("empty/z/b/c/file")).unwrap(), "one");
    fs::write(f.path("other"), "three").unwrap();
    fs::rename(f.path("other"), f.path("empty/z/b/c/file")).unwrap();
    assert_eq!(f.store.read("/empty/z/b/c/file").unwrap(), b"three");
    assert_eq!(fs::read_to_string(f.path("empty/z/b/c/file")).unwrap(), "three");
    let below = fs::rename(f.path("empty"), f.path("empty/z/b/y")).unwrap_err();
    assert_eq!(below.kind(), std::io::ErrorKind::InvalidInput);
}

fn exchanges() {
    let f = Fixture::new(PathOptions::default());
    fs::create_dir_all(f.path("d/sub")).unwrap();
    fs::write(f.path("d/sub/file"), "in the directory").unwrap();
    fs::write(f.path("file"), "a file").unwrap();
    for _ in 0..2 {
        renameat_with(CWD, f.path("d"), CWD, f.path("file"), RenameFlags::EXCHANGE).unwrap();
        assert_eq!(fs::read_to_string(f.path("d")).unwrap(), "a file");
        assert_eq!(fs::read_to_string(f.path("file/sub/file")).unwrap(), "in the directory");
        renameat_with(CWD, f.path("d"), CWD, f.path("file"), RenameFlags::EXCHANGE).unwrap();
        assert_eq!(fs::read_to_string(f.path("d/sub/file")).unwrap(), "in the directory");
    }
}

fn links() {
    let f = Fixture::new(PathOptions::default());
    fs::write(f.path("one"), "text").unwrap();
    fs::create_dir(f.path("d")).unwrap();
    fs::hard_link(f.path("one"), f.path("d/two")).unwrap();
    let (one, two) = (fs::metadata(f.path("one")).unwrap(), fs::metadata(f.path("d/two")).unwrap());
    assert_eq!((one.ino(), one.nlink()), (two.ino(), 2));
    fs::remove_file(f.path("one")).unwrap();
    assert!(within(Duration::from_secs(5), || fs::metadata(f.path("d/two")).unwrap().nlink() == 1));
    assert_eq!(fs::read_to_string(f.path("d/two")).unwrap(), "text");
}

fn others() {
    let f = Fixture::new(short(100));
    fs::create_dir(f.path("d")).unwrap();
    fs::write(f.path("d/file"), "1").unwrap();
    assert!(!f.path("d/late").exists());
    f.store.put("/d/late", b"1");
    f.store.put("/d/file", b"22");
    let soon = Duration::from_secs(5);
    assert!(within(soon, || f.path("d/late").exists()));
    assert!(within(soon, || fs::metadata(f.path("d/file")).unwrap().len() == 2));
    // A directory whose cached entries others removed can be removed, and replaced.
    for replace in [false, true] {
        f.store.take("/d/late");
        f.store.take("/d/file");
        if replace {
            fs::create_dir(f.path("new")).unwrap();
            fs::write(f.path("new/inside"), "x").unwrap();
            fs::rename(f.path("new"), f.path("d")).unwrap();
            assert_eq!(fs::read_to_string(f.path("d/inside")).unwrap(), "x");
        } else {
            fs::remove_dir(f.path("d")).unwrap();
            assert!(!f.path("d").exists());
            fs::create_dir(f.path("d")).unwrap();
            fs::write(f.path("d/file"), "again").unwrap();
        }
    }
}

fn listings() {
    let f = Fixture::new(PathOptions::default());
    f.store.put_dir("/d");
    let mut expected = Vec::new();
    for i in 0..3000 {
        let name = format!("a_name_of_some_length_{i:04}");
        f.store.put(&format!("/d/{name}"), b"x");
        expected.push(name);
    }
    let names = || {
        let entries = fs::read_dir(f.path("d")).unwrap();
        let mut names: Vec<_> = entries.map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    };
    assert_eq!(names(), expected);
    assert_eq!(names(), expected);
    fs::read_dir(f.path("d")).unwrap().for_each(|e| assert_eq!(e.unwrap().metadata().unwrap().len(), 1));
    for name in &expected {
        assert_eq!(fs::metadata(f.path("d").join(name)).unwrap().len(), 1);
    }
}

/// As many calls as threads are at the back end at once, though all are about one directory's names.
fn slow() {
    let store = Store::new(Duration::from_millis(100));
    for i in 0..8 {
        store.put_dir(&format!("/d{i}"));
    }
    let f = Fixture::with(store, PathOptions::default(), !is_root());
    std::thread::scope(|s| {
        for i in 0..8 {
            let path = f.path(&format!("d{i}/none"));
            s.spawn(move || assert!(!path.exists()));
        }
    });
    // The kernel locks a directory for each lookup of a name that it does not know, so there is one a directory.
    assert!(f.store.calls().most_at_once() >= 4, "{:?}", f.store.calls());
}

fn fill(store: &Store) {
    for d in 0..60 {
        store.put_dir(&format!("/d{d}"));
        for i in 0..1000 {
            store.put(&format!("/d{d}/file{i}"), b"");
        }
    }
}

fn walk_twice(f: &Fixture, limit: u64) {
    let most = AtomicU64::new(0);
    let walk = |first: usize| {
        for d in 0..120 {
            let dir = f.path(&format!("d{}", (first + d) % 60));
            let entries = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap());
            assert_eq!(entries.filter(|entry| entry.metadata().unwrap().is_file()).count(), 1000);
            most.fetch_max(f.handle.counters().bytes, Relaxed);
        }
    };
    let walk = &walk;
    // Two walkers, in the same directories at first, each twice through all of them.
    std::thread::scope(|s| [0, 1].map(|first| s.spawn(move || walk(first))).map(|t| t.join().unwrap()));
    let (counters, most) = (f.handle.counters(), most.into_inner());
    // Requests that the balancing thread waits for may take 4% more, hash lines a 64th.
    assert!(most <= limit + limit / 16, "{most} of {limit} bytes; {counters:?}");
    // Without the limit it would be more than 12 MiB.
    assert!(counters.evicted > 30_000, "{counters:?}");
    // Nodes that the kernel holds are not evicted, so the kernel was asked to forget.
    assert!(f.handle.asks_kernel() && counters.inodes < 40_000, "{counters:?}");
}

fn limit() {
    const LIMIT: u64 = 8 << 20;
    let f = Fixture::new(PathOptions { limit: LIMIT, ..PathOptions::default() });
    fill(&f.store);
    walk_twice(&f, LIMIT);
}

fn through_the_helper() {
    const LIMIT: u64 = 8 << 20;
    let store = Store::new(Duration::ZERO);
    fill(&store);
    let f = Fixture::with(store, PathOptions { limit: LIMIT, ..PathOptions::default() }, true);
    walk_twice(&f, LIMIT);
}

fn without_a_name() {
    let f = Fixture::new(PathOptions::default());
    for replace in [false, true] {
        fs::write(f.path("file"), "hello").unwrap();
        let open = fs::OpenOptions::new().read(true).write(true).open(f.path("file")).unwrap();
        let second = fs::File::open(f.path("file")).unwrap();
        if replace {
            fs::write(f.path("other"), "another one").unwrap();
            fs::rename(f.path("other"), f.path("file")).unwrap();
        } else {
            fs::remove_file(f.path("file")).unwrap();
        }
        let meta = open.metadata().unwrap();
        assert_eq!((meta.len(), meta.nlink()), (5, 0));
        open.set_len(3).unwrap();
        open.set_permissions(fs::Permissions::from_mode(0o640)).unwrap();
        drop(open);
        let meta = second.metadata().unwrap();
        assert_eq!((meta.len(), meta.mode() & 0o7777), (3, 0o640));
        assert_eq!(std::io::read_to_string(second).unwrap(), "hel");
        if replace {
            assert_eq!(fs::metadata(f.path("file")).unwrap().len(), 11);
        }
    }
}

/// As `rm -r` does it: a batch is read, removed, and the next one is read.
fn removal() {
    let f = Fixture::new(PathOptions { limit: 8 << 20, ..PathOptions::default() });
    f.store.put_dir("/d");
    for i in 0..1000 {
        f.store.put(&format!("/d/a_name_of_some_length_{i}"), b"");
    }
    let names: Vec<_> = fs::read_dir(f.path("d")).unwrap().map(|entry| entry.unwrap().path()).collect();
    assert_eq!(names.len(), 1000);
    names.into_iter().for_each(|name| fs::remove_file(name).unwrap());
    fs::remove_dir(f.path("d")).unwrap();
    assert!(f.store.read("/d").is_none() && !f.path("d").exists());
}

fn forgets() {
    let f = Fixture::new(PathOptions::default());
    fs::create_dir_all(f.path("a/b")).unwrap();
    for i in 0..300 {
        fs::write(f.path(&format!("a/b/{i}")), "").unwrap();
    }
    assert_eq!(
        fs::read_dir(f.path("a/b"))
            .unwrap()
            .filter(|entry| entry.as_ref().unwrap().metadata().is_ok())
            .count(),
        300
    );
    assert!(f.handle.lookups() >= 302, "{}", f.handle.lookups());
    let forgotten = || {
        drop_caches();
        f.handle.lookups() == 0
    };
    assert!(within(Duration::from_secs(10), forgotten), "{} lookups are left", f.handle.lookups());
}
