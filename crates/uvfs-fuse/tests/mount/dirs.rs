//! Reading directories while they change.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::mem::MaybeUninit;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use rustix::fs::{Mode, OFlags, RawDir};

use crate::Test;
use crate::fixture::{Fixture, Needs};

pub const TESTS: &[Test] = &[
    ("untouched_entries_are_seen_once", Needs::Mount, untouched_entries_are_seen_once),
    ("dot_and_dotdot", Needs::Mount, dot_and_dotdot),
    ("a_stream_can_be_rewound_and_resumed", Needs::Mount, a_stream_can_be_rewound_and_resumed),
    ("a_removed_directory_is_empty", Needs::Mount, a_removed_directory_is_empty),
    (
        "a_stream_ends_whatever_is_done_to_what_was_read",
        Needs::Mount,
        a_stream_ends_whatever_is_done_to_what_was_read,
    ),
    (
        "a_name_that_is_replaced_meanwhile_is_seen_once",
        Needs::Mount,
        a_name_that_is_replaced_meanwhile_is_seen_once,
    ),
];

fn names(dir: &Path) -> BTreeSet<String> {
    let entries = fs::read_dir(dir).expect("readdir");
    entries.map(|entry| entry.expect("an entry").file_name().to_string_lossy().into_owned()).collect()
}

/// While the stream is read in small pieces, files come and go around those that stay.
fn untouched_entries_are_seen_once() {
    let mnt = Fixture::tmpfs();
    let make = |kind: &str, i: u32| fs::write(mnt.path(&format!("{kind}{i:04}")), "").expect("create");
    for i in 0..500 {
        make("stays", i);
        make("goes", i);
    }
    let dir = rustix::fs::open(&*mnt, OFlags::RDONLY | OFlags::DIRECTORY, Mode::empty()).expect("opendir");
    let mut buffer = [MaybeUninit::uninit(); 600];
    let mut stream = RawDir::new(&dir, &mut buffer);
    let mut seen = BTreeMap::new();
    let mut step = 0;
    while let Some(entry) = stream.next() {
        let entry = entry.expect("an entry");
        *seen.entry(entry.file_name().to_string_lossy().into_owned()).or_insert(0) += 1;
        if step < 500 {
            fs::remove_file(mnt.path(&format!("goes{step:04}"))).expect("unlink");
            make("comes", step);
        }
        step += 1;
    }
    for i in 0..500 {
        assert_eq!(seen.get(&format!("stays{i:04}")), Some(&1), "stays{i:04}");
    }
    assert!(seen.values().all(|&times| times == 1), "{seen:?}");
    assert_eq!(names(&mnt).len(), 1000);
}

fn dot_and_dotdot() {
    let mnt = Fixture::tmpfs();
    fs::create_dir_all(mnt.path("a/b")).expect("mkdir");
    let numbers = |path: &str| {
        let dir = rustix::fs::open(mnt.path(path), OFlags::RDONLY, Mode::empty()).expect("opendir");
        let mut buffer = Vec::with_capacity(4096);
        let mut stream = RawDir::new(&dir, buffer.spare_capacity_mut());
        let mut found = BTreeMap::new();
        while let Some(entry) = stream.next() {
            let entry = entry.expect("an entry");
            found.insert(entry.file_name().to_string_lossy().into_owned(), entry.ino());
        }
        found
    };
    let ino = |path: &str| rustix::fs::stat(mnt.path(path)).expect("stat").st_ino;
    let in_b = numbers("a/b");
    assert_eq!(in_b.keys().collect::<Vec<_>>(), [".", ".."]);
    assert_eq!((in_b["."], in_b[".."]), (ino("a/b"), ino("a")));
    let in_a = numbers("a");
    assert_eq!((in_a["."], in_a[".."], in_a["b"]), (ino("a"), ino("."), ino("a/b")));
    // In the root, `..` is the root: the directory above does not belong to this file system.
    assert_eq!(numbers(".")["."], numbers(".")[".."]);
}

fn a_stream_can_be_rewound_and_resumed() {
    let mnt = Fixture::tmpfs();
    for i in 0..300 {
        fs::write(mnt.path(&format!("{i:03}")), "").expect("create");
    }
    let dir = rustix::fs::open(&*mnt, OFlags::RDONLY | OFlags::DIRECTORY, Mode::empty()).expect("opendir");
    let read = |cookie: u64| -> Vec<(String, u64)> {
        rustix::fs::seek(&dir, rustix::fs::SeekFrom::Start(cookie)).expect("seekdir");
        let mut buffer = Vec::with_capacity(1024);
        let mut stream = RawDir::new(&dir, buffer.spare_capacity_mut());
        let mut list = Vec::new();
        while let Some(entry) = stream.next() {
            let entry = entry.expect("an entry");
            list.push((entry.file_name().to_string_lossy().into_owned(), entry.next_entry_cookie()));
        }
        list
    };
    let all = read(0);
    assert_eq!(all.len(), 302);
    for at in [0, 1, 2, 17, 150, 300, 301] {
        assert_eq!(read(all[at].1), all[at + 1..], "after {}", all[at].0);
    }
}

fn a_removed_directory_is_empty() {
    let mnt = Fixture::tmpfs();
    let path = mnt.path("dir");
    fs::create_dir(&path).expect("mkdir");
    let dir = rustix::fs::open(&path, OFlags::RDONLY | OFlags::DIRECTORY, Mode::empty()).expect("opendir");
    fs::remove_dir(&path).expect("rmdir");
    let mut buffer = Vec::with_capacity(1024);
    let mut stream = RawDir::new(&dir, buffer.spare_capacity_mut());
    while let Some(entry) = stream.next() {
        match entry {
            Ok(entry) => assert!(entry.file_name().to_bytes().starts_with(b".")),
            // As on other file systems.
            Err(error) => return assert_eq!(error, rustix::io::Errno::NOENT),
        }
    }
    let create = rustix::fs::openat(&dir, "file", OFlags::CREATE | OFlags::WRONLY, 0o600.into());
    assert_eq!(create.map(drop), Err(rustix::io::Errno::NOENT));
}

/// Reads the directory a buffer of 600 bytes at a time. Calls `each` with every name except `.` and `..`, most
/// often before the next buffer is read. Returns how often each name came.
fn read_slowly(dir: &Path, most: usize, mut each: impl FnMut(&str)) -> BTreeMap<String, usize> {
    let dir = rustix::fs::open(dir, OFlags::RDONLY | OFlags::DIRECTORY, Mode::empty()).expect("opendir");
    let mut buffer = [MaybeUninit::uninit(); 600];
    let mut stream = RawDir::new(&dir, &mut buffer);
    let (mut seen, mut total) = (BTreeMap::new(), 0);
    while let Some(entry) = stream.next() {
        let name = entry.expect("an entry").file_name().to_string_lossy().into_owned();
        if !name.starts_with('.') {
            total += 1;
            assert!(total <= most, "the listing does not end");
            each(&name);
            *seen.entry(name).or_default() += 1;
        }
    }
    seen
}

/// Each entry changes after it was read: it is renamed, replaced, moved away and back, or others are added.
fn a_stream_ends_whatever_is_done_to_what_was_read() {
    const FILES: usize = 1000;
    type Change = fn(&Path, &str);
    let changes: [Change; 4] = [
        |dir, name| fs::rename(dir.join(name), dir.join(format!("{name}.new"))).expect("rename"),
        |dir, name| {
            fs::write(dir.join("temporary"), "new").expect("create");
            fs::rename(dir.join("temporary"), dir.join(name)).expect("rename");
        },
        |dir, name| {
            fs::rename(dir.join(name), dir.join("../away")).expect("rename");
            fs::rename(dir.join("../away"), dir.join(name)).expect("rename");
        },
        |dir, name| fs::write(dir.join(format!("{name}.more")), "").expect("create"),
    ];
    let mnt = Fixture::tmpfs();
    for (i, change) in changes.into_iter().enumerate() {
        let dir = mnt.path(&format!("dir{i}"));
        fs::create_dir(&dir).expect("mkdir");
        for file in 0..FILES {
            fs::write(dir.join(format!("{file:04}")), "").expect("create");
        }
        let seen = read_slowly(&dir, 4 * FILES, |name| change(&dir, name));
        for file in 0..FILES {
            let name = format!("{file:04}");
            assert_eq!(seen.get(&name), Some(&1), "{name}, change {i}");
        }
        // A new listing sees everything that is there.
        let now = read_slowly(&dir, 4 * FILES, |_| ());
        let made = if i == 3 { 2 * FILES } else { FILES };
        assert_eq!(now.len(), made, "change {i}");
        assert!(now.values().all(|&times| times == 1), "change {i}: {now:?}");
    }
}

/// Names that another thread keeps replacing are in each listing, once.
fn a_name_that_is_replaced_meanwhile_is_seen_once() {
    const FILES: usize = 300;
    let mnt = Fixture::tmpfs();
    let (dir, done) = (mnt.path("dir"), AtomicBool::new(false));
    fs::create_dir(&dir).expect("mkdir");
    for file in 0..FILES {
        fs::write(dir.join(format!("{file:03}")), "").expect("create");
    }
    let replace = |from: &Path, step: usize| {
        let files = (0..).map(|i| i * step % FILES).take_while(|_| !done.load(Ordering::Relaxed));
        for file in files {
            fs::write(from, "new").expect("create");
            fs::rename(from, dir.join(format!("{file:03}"))).expect("rename");
        }
    };
    thread::scope(|scope| {
        scope.spawn(|| replace(&dir.join("temporary"), 7));
        scope.spawn(|| replace(&mnt.path("elsewhere"), 11));
        let lister = scope.spawn(|| {
            for round in 0..30 {
                let seen = read_slowly(&dir, 2 * FILES, |_| ());
                for file in 0..FILES {
                    assert_eq!(seen.get(&format!("{file:03}")), Some(&1), "{file:03} in round {round}");
                }
            }
        });
        let outcome = lister.join();
        done.store(true, Ordering::Relaxed);
        assert!(outcome.is_ok(), "a listing was wrong");
    });
}
