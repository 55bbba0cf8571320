//! Tests of a real mount: the example, on a directory of its own. They need root and /dev/fuse; where that is missing
//! they say so and count as ignored.

mod fixture;
#[allow(dead_code, reason = "the example's main is for the command line")]
#[path = "../../examples/passthrough.rs"]
mod passthrough;
#[allow(dead_code, reason = "the example's main is for the command line")]
#[path = "../../examples/readonly.rs"]
mod readonly;

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use libtest_mimic::{Arguments, Completion, Trial};
use rustix::fs::OFlags;
use uvfs_fuser::{NodesOptions, Ttl};

use fixture::{Fixture, drop_caches, missing, within};

const TESTS: &[(&str, fn())] = &[
    ("names_are_made_found_and_removed", names),
    ("renamed_directories_take_their_children_along", renames),
    ("an_expired_name_is_renamed_and_keeps_its_children", expired_renames),
    ("no_file_is_missing_while_its_directory_is_renamed", rename_storm),
    ("a_directory_is_not_renamed_below_itself", loops),
    ("hard_links_are_one_node", links),
    ("a_replaced_file_is_another_node", replaced),
    ("changes_of_others_show_after_the_ttls", others),
    ("large_directories_are_listed_whole_and_from_anywhere", listings),
    ("a_tree_larger_than_the_limit_stays_within_it", limit),
    ("two_threads_keep_a_tight_limit", two_threads),
    ("open_files_without_a_name_keep_their_attributes", without_a_name),
    ("a_directory_is_removed_while_it_is_listed", removal),
    ("the_read_only_server_serves", read_only),
    ("the_kernel_forgets_all_that_it_looked_up", forgets),
];

fn main() {
    let trials = TESTS.iter().map(|&(name, test)| {
        Trial::ignorable_test(name, move || match missing() {
            Some(reason) => {
                eprintln!("skipped: {name}: {reason}");
                Ok(Completion::ignored_with(reason))
            }
            None => {
                test();
                Ok(Completion::Completed)
            }
        })
    });
    let mut arguments = Arguments::from_args();
    // One after the other: some drop the kernel's caches, which are everybody's.
    arguments.test_threads.get_or_insert(1);
    libtest_mimic::run(&arguments, trials.collect()).exit();
}

fn names() {
    let f = Fixture::new(0);
    fs::create_dir(f.path("d")).unwrap();
    fs::write(f.path("d/file"), "hello").unwrap();
    symlink("file", f.path("d/link")).unwrap();
    assert_eq!(fs::read_to_string(f.path("d/link")).unwrap(), "hello");
    assert_eq!(fs::read_to_string(f.host("d/file")).unwrap(), "hello");
    assert_eq!(fs::metadata(f.path("d/file")).unwrap().len(), 5);
    assert!(!f.path("d/none").exists() && !f.path("d/none").exists());
    fs::create_dir(f.path("d")).unwrap_err();
    fs::remove_dir(f.path("d")).unwrap_err();
    fs::remove_file(f.path("d/file")).unwrap();
    fs::remove_file(f.path("d/link")).unwrap();
    fs::remove_dir(f.path("d")).unwrap();
    assert!(!f.path("d").exists() && !f.host("d").exists());
    // The name again, for another type.
    fs::write(f.path("d"), "file now").unwrap();
    assert_eq!(fs::read_to_string(f.path("d")).unwrap(), "file now");
}

fn renames() {
    let f = Fixture::new(0);
    fs::create_dir_all(f.path("a/b/c")).unwrap();
    fs::create_dir(f.path("to")).unwrap();
    fs::write(f.path("a/b/c/file"), "one").unwrap();
    let held = fs::File::open(f.path("a/b/c")).unwrap();
    fs::rename(f.path("a"), f.path("to/z")).unwrap();
    assert_eq!(fs::read_to_string(f.path("to/z/b/c/file")).unwrap(), "one");
    assert!(!f.path("a").exists());
    // Through a directory that was open before the rename: its path is the new one.
    let inside = Path::new("/proc/self/fd").join(std::os::fd::AsRawFd::as_raw_fd(&held).to_string());
    fs::write(inside.join("second"), "two").unwrap();
    assert_eq!(fs::read_to_string(f.host("to/z/b/c/second")).unwrap(), "two");
    // Over an empty directory, and over a file.
    fs::create_dir(f.path("empty")).unwrap();
    fs::rename(f.path("to"), f.path("empty")).unwrap();
    assert_eq!(fs::read_to_string(f.path("empty/z/b/c/file")).unwrap(), "one");
    fs::write(f.path("other"), "three").unwrap();
    fs::rename(f.path("other"), f.path("empty/z/b/c/file")).unwrap();
    assert_eq!(fs::read_to_string(f.host("empty/z/b/c/file")).unwrap(), "three");
    assert_eq!(fs::read_to_string(f.path("empty/z/b/c/file")).unwrap(), "three");
}

/// The kernel trusts a name for longer than the table does.
fn expired_renames() {
    let f = Fixture::with_options(NodesOptions { name_ttl: Ttl::ZERO, ..NodesOptions::default() });
    fs::create_dir_all(f.path("a/b")).unwrap();
    fs::write(f.path("a/b/file"), "one").unwrap();
    let held = fs::File::open(f.path("a/b")).unwrap();
    fs::rename(f.path("a"), f.path("z")).unwrap();
    // Nobody looks `z` up.
    let mode = rustix::fs::Mode::from_raw_mode(0o644);
    let flags = OFlags::WRONLY | OFlags::CREATE;
    rustix::fs::openat(&held, "second", flags, mode).unwrap();
    assert!(f.host("z/b/second").exists());
}

/// Through an open directory, one thread looks files up that the kernel does not know yet, one lists, one makes and renames
/// files, while another renames a directory on the way.
fn rename_storm() {
    const FILES: usize = 4000;
    let f = Fixture::new(0);
    fs::create_dir_all(f.host("one/a/b")).unwrap();
    fs::create_dir(f.host("two")).unwrap();
    for i in 0..FILES {
        fs::write(f.host(&format!("one/a/b/{i}")), "").unwrap();
    }
    let dir = fs::File::open(f.path("one/a/b")).unwrap();
    let stat = |name: &str| rustix::fs::statat(&dir, name, rustix::fs::AtFlags::empty());
    let looks = |first: usize| {
        for i in (first..FILES).step_by(2) {
            stat(&i.to_string()).unwrap_or_else(|e| panic!("{i}: {e}"));
        }
    };
    let lists = || {
        for _ in 0..20 {
            let count = rustix::fs::Dir::read_from(&dir).unwrap().map(Result::unwrap).count();
            assert!(count >= FILES + 2, "{count} entries");
        }
    };
    let makes = || {
        for i in 0..500 {
            let (new, other) = (format!("new {i}"), format!("other {i}"));
            let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL;
            rustix::fs::openat(&dir, &new, flags, rustix::fs::Mode::from_raw_mode(0o644)).unwrap();
            rustix::fs::renameat(&dir, &new, &dir, &other).unwrap();
            stat(&other).unwrap();
            rustix::fs::unlinkat(&dir, &other, rustix::fs::AtFlags::empty()).unwrap();
        }
    };
    let (one, two) = (f.path("one/a"), f.path("two/z"));
    std::thread::scope(|s| {
        let (looks, lists) = (&looks, &lists);
        let others = [s.spawn(move || looks(0)), s.spawn(move || looks(1)), s.spawn(lists), s.spawn(makes)];
        while !others.iter().all(|other| other.is_finished()) {
            fs::rename(&one, &two).unwrap();
            fs::rename(&two, &one).unwrap();
        }
    });
    assert_eq!(fs::read_dir(f.path("one/a/b")).unwrap().count(), FILES);
}

fn loops() {
    let f = Fixture::new(0);
    fs::create_dir_all(f.path("a/b")).unwrap();
    let error = fs::rename(f.path("a"), f.path("a/b/c")).unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::InvalidInput);
    assert!(f.path("a/b").exists());
}

fn links() {
    let f = Fixture::new(0);
    fs::write(f.path("one"), "text").unwrap();
    fs::create_dir(f.path("d")).unwrap();
    fs::hard_link(f.path("one"), f.path("d/two")).unwrap();
    let (one, two) = (fs::metadata(f.path("one")).unwrap(), fs::metadata(f.path("d/two")).unwrap());
    assert_eq!((one.ino(), one.nlink()), (two.ino(), 2));
    fs::remove_file(f.path("one")).unwrap();
    assert!(within(Duration::from_secs(5), || fs::metadata(f.path("d/two")).unwrap().nlink() == 1));
    assert_eq!(fs::read_to_string(f.path("d/two")).unwrap(), "text");
}

fn replaced() {
    let f = Fixture::new(0);
    for i in 0..50 {
        let text = i.to_string();
        fs::write(f.path("file"), &text).unwrap();
        let before = fs::metadata(f.path("file")).unwrap().ino();
        let held = fs::File::open(f.path("file")).unwrap();
        fs::remove_file(f.path("file")).unwrap();
        drop(held);
        // The host may give the same inode number again.
        fs::write(f.path("file"), "new").unwrap();
        assert_ne!(fs::metadata(f.path("file")).unwrap().ino(), before);
        assert_eq!(fs::read_to_string(f.path("file")).unwrap(), "new");
    }
}

fn others() {
    let f = Fixture::new(0);
    fs::create_dir(f.path("d")).unwrap();
    fs::write(f.path("d/file"), "1").unwrap();
    assert!(!f.path("d/late").exists());
    fs::write(f.host("d/late"), "1").unwrap();
    fs::write(f.host("d/file"), "22").unwrap();
    assert!(within(Duration::from_secs(5), || f.path("d/late").exists()));
    assert!(within(Duration::from_secs(5), || fs::metadata(f.path("d/file")).unwrap().len() == 2));
    // A listing does not revive attributes that have expired.
    fs::write(f.host("d/file"), "333").unwrap();
    let listed =
        || fs::read_dir(f.path("d")).unwrap().map(|e| e.unwrap().metadata().unwrap().len()).sum::<u64>();
    assert!(within(Duration::from_secs(5), || listed() == 4));
    // A directory whose cached entries others removed can be removed.
    fs::remove_file(f.host("d/late")).unwrap();
    fs::remove_file(f.host("d/file")).unwrap();
    fs::remove_dir(f.path("d")).unwrap();
    assert!(!f.path("d").exists());
}

fn listings() {
    let f = Fixture::new(0);
    fs::create_dir(f.host("d")).unwrap();
    for i in 0..3000 {
        fs::write(f.host(&format!("d/a_name_of_some_length_{i}")), "").unwrap();
    }
    let names = |dir: &Path| {
        let mut names: Vec<_> = fs::read_dir(dir).unwrap().map(|e| e.unwrap().file_name()).collect();
        names.sort();
        names
    };
    let host = names(&f.host("d"));
    assert_eq!(names(&f.path("d")), host);
    // Small buffers make the kernel go back into a reply, and seeks go anywhere.
    assert_eq!(fixture::names_in_small_steps(&f.path("d")), host);
    // The directory is complete now: entries lead to nodes that the listing made.
    let nodes = f.nodes().counters().inodes;
    assert!(nodes > 3000, "{nodes}");
    fs::read_dir(f.path("d")).unwrap().for_each(|e| assert!(e.unwrap().metadata().unwrap().is_file()));
    assert_eq!(f.nodes().counters().inodes, nodes);
}

fn limit() {
    const LIMIT: u64 = 8 << 20;
    let f = Fixture::new(LIMIT);
    for d in 0..60 {
        fs::create_dir(f.host(&format!("d{d}"))).unwrap();
        for i in 0..1000 {
            fs::write(f.host(&format!("d{d}/file{i}")), "").unwrap();
        }
    }
    let most = AtomicU64::new(0);
    let walk = |first: usize| {
        for d in 0..120 {
            let dir = f.path(&format!("d{}", (first + d) % 60));
            let entries = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap());
            assert_eq!(entries.filter(|entry| entry.metadata().unwrap().is_file()).count(), 1000);
            most.fetch_max(f.nodes().counters().bytes, Relaxed);
        }
    };
    let walk = &walk;
    // Two walkers, in the same directories at first, each twice through all of them.
    std::thread::scope(|s| [0, 1].map(|first| s.spawn(move || walk(first))).map(|t| t.join().unwrap()));
    let (counters, most) = (f.nodes().counters(), most.into_inner());
    // Requests that the balancing thread waits for may take 4% more, hash lines a 64th.
    assert!(most <= LIMIT + LIMIT / 16, "{most} of {LIMIT} bytes; {counters:?}");
    // Without the limit it would be more than 12 MiB.
    assert!(counters.evicted > 30_000, "{counters:?}");
    // Nodes that the kernel holds are not evicted, so the kernel was asked to forget.
    assert!(counters.inodes < 40_000, "{counters:?}");
}

/// The fewest threads that a limit needs: one reads FORGETs while the other waits for them.
fn two_threads() {
    let f = Fixture::with_threads(8 << 20, 2);
    for d in 0..60 {
        fs::create_dir(f.host(&format!("d{d}"))).unwrap();
        for i in 0..1000 {
            fs::write(f.host(&format!("d{d}/file{i}")), "").unwrap();
        }
    }
    let mut longest = Duration::ZERO;
    let mut time = |begin: Instant| longest = longest.max(begin.elapsed());
    for d in 0..120 {
        let mut entries = fs::read_dir(f.path(&format!("d{}", d % 60))).unwrap();
        let mut count = 0;
        loop {
            let begin = Instant::now();
            let Some(entry) = entries.next() else { break };
            assert!(entry.unwrap().metadata().unwrap().is_file());
            time(begin);
            count += 1;
        }
        assert_eq!(count, 1000);
    }
    assert!(f.nodes().counters().evicted > 30_000, "{:?}", f.nodes().counters());
    eprintln!("the longest request took {longest:?}");
    // A request that waits for FORGETs in vain takes a second.
    assert!(longest < Duration::from_secs(1), "{longest:?}");
}

fn without_a_name() {
    let f = Fixture::new(0);
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
    // By its name, and of a file that is open: both are one node.
    let open = fs::File::create(f.path("named")).unwrap();
    fs::write(f.path("named"), "text").unwrap();
    assert_eq!((open.metadata().unwrap().len(), fs::metadata(f.path("named")).unwrap().len()), (4, 4));
}

/// As `rm -r` does it: a batch is read, removed, and the next one is read.
fn removal() {
    let f = Fixture::new(8 << 20);
    fs::create_dir(f.host("d")).unwrap();
    for i in 0..3000 {
        fs::write(f.host(&format!("d/a_name_of_some_length_{i}")), "").unwrap();
    }
    for entry in fs::read_dir(f.path("d")).unwrap() {
        fs::remove_file(entry.unwrap().path()).unwrap();
    }
    fs::remove_dir(f.path("d")).unwrap();
    assert!(!f.host("d").exists());
}

fn forgets() {
    let f = Fixture::new(0);
    fs::create_dir_all(f.path("a/b")).unwrap();
    for i in 0..100 {
        fs::write(f.path(&format!("a/b/{i}")), "").unwrap();
    }
    fs::hard_link(f.path("a/b/1"), f.path("a/link")).unwrap();
    fs::rename(f.path("a/b"), f.path("c")).unwrap();
    fs::read_dir(f.path("c")).unwrap().for_each(|e| assert!(e.unwrap().metadata().unwrap().is_file()));
    assert!(!f.path("c/none").exists());
    assert!(f.nodes().lookups() >= 103);
    let forgotten = within(Duration::from_secs(10), || {
        drop_caches();
        f.nodes().lookups() == 0
    });
    assert!(forgotten, "{} lookups are left", f.nodes().lookups());
    // What was forgotten is found again.
    assert!(f.path("c/99").exists() && f.path("a/link").exists());
}

fn read_only() {
    let (host, dir) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    fs::create_dir(host.path().join("d")).unwrap();
    fs::write(host.path().join("d/file"), "text").unwrap();
    symlink("file", host.path().join("d/link")).unwrap();
    let session = readonly::serve(host.path(), dir.path()).unwrap();
    assert_eq!(fs::read_to_string(dir.path().join("d/link")).unwrap(), "text");
    assert_eq!(fs::read_dir(dir.path().join("d")).unwrap().count(), 2);
    fs::write(dir.path().join("d/new"), "").unwrap_err();
    fs::rename(host.path().join("d"), host.path().join("e")).unwrap();
    assert!(within(Duration::from_secs(5), || dir.path().join("e/file").exists()));
    session.umount_and_join().unwrap();
}
