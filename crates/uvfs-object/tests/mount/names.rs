//! Names: listings, lookups, TTLs, limits.

use std::collections::BTreeSet;
use std::fs;
use std::io::ErrorKind;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::Barrier;
use std::time::Duration;

use fuse3::raw::Request;
use uvfs_object::{Flags, ObjectFs, ObjectOptions};

use crate::bucket::Fault;
use crate::fixture::{Fixture, Served, options, usual_or_full, within};

/// A request without a kernel.
const REQUEST: Request = Request { unique: 1, uid: 0, gid: 0, pid: 0 };

fn walk(dir: &Path, found: &mut BTreeSet<String>, root: &Path) {
    for entry in fs::read_dir(dir).expect("a directory") {
        let entry = entry.expect("an entry");
        let relative = entry.path().strip_prefix(root).expect("below").display().to_string();
        // The kernel asks about what readdirplus did not tell.
        if entry.metadata().expect("attributes").is_dir() {
            walk(&entry.path(), found, root);
        } else {
            assert!(found.insert(relative), "listed twice");
        }
    }
}

/// Runs a test until the kernel has kept all names that it had read: it may give them up at any time, as for another
/// program's write to drop_caches, and then asks again. `test` checks that each such question is at most one LIST, and
/// returns [`ObjectFigures::rereads`](uvfs_object::ObjectFigures).
fn until_the_kernel_keeps_names(test: fn() -> u64) {
    assert!((0..8).any(|_| test() == 0), "the kernel has given up names in each run");
}

pub fn find() {
    until_the_kernel_keeps_names(find_twice);
}

fn find_twice() -> u64 {
    const DIRS: usize = 20;
    let keys: BTreeSet<String> = (0..10_000).map(|n| format!("d{:02}/f{n:05}", n % DIRS)).collect();
    let mount = Fixture::of(|bucket| keys.iter().for_each(|key| bucket.put(key, key.clone())), &options());
    for _ in 0..2 {
        let mut found = BTreeSet::new();
        walk(&mount.path(""), &mut found, &mount.path(""));
        assert_eq!(found, keys);
    }
    for n in (0..10_000).step_by(97) {
        let path = mount.path(&format!("d{:02}/f{n:05}", n % DIRS));
        assert_eq!(path.metadata().expect("known").size(), 10);
        assert!(!mount.path(&format!("d{:02}/absent{n}", n % DIRS)).exists());
    }
    let requests = mount.bucket().take_requests();
    let rereads = mount.handle().figures().rereads;
    // The root, and two directories that make a walk. The other 9,000 names fill nine pages, and a last one tells that they end.
    assert_eq!((requests.lists, requests.heads, requests.gets), (1 + 2 + 9 + 1 + rereads, 0, 0));
    rereads
}

pub fn cold() {
    let mount = Fixture::of(|bucket| (0..64).for_each(|n| bucket.put(&format!("d/f{n}"), "x")), &options());
    mount.path("d").metadata().expect("a directory");
    mount.bucket().take_requests();
    mount.bucket().set_latency(Duration::from_millis(100));
    let barrier = Barrier::new(64);
    std::thread::scope(|scope| {
        for n in 0..64 {
            let (mount, barrier) = (&mount, &barrier);
            scope.spawn(move || {
                barrier.wait();
                // Half of the names are absent.
                let there = mount.path(&format!("d/f{}", 2 * n)).exists();
                assert_eq!(there, n < 32);
            });
        }
    });
    let requests = mount.bucket().take_requests();
    assert_eq!((requests.lists, requests.heads), (1, 0));
}

pub fn readers() {
    let names: BTreeSet<String> = (0..2500).map(|n| format!("f{n:04}")).collect();
    let mount =
        Fixture::of(|bucket| names.iter().for_each(|name| bucket.put(&format!("d/{name}"), "x")), &options());
    mount.path("d").metadata().expect("a directory");
    mount.bucket().take_requests();
    mount.bucket().set_latency(Duration::from_millis(100));
    let barrier = Barrier::new(3);
    std::thread::scope(|scope| {
        for n in 0..3 {
            let (mount, barrier, names) = (&mount, &barrier, &names);
            scope.spawn(move || {
                barrier.wait();
                if n == 2 {
                    return assert_eq!(mount.path("d/f0007").metadata().expect("known").size(), 1);
                }
                let listed = fs::read_dir(mount.path("d")).expect("a directory");
                let listed: Vec<_> = listed
                    .map(|entry| entry.expect("an entry").file_name().into_string().expect("text"))
                    .collect();
                assert_eq!(listed.len(), names.len());
                assert_eq!(&BTreeSet::from_iter(listed), names);
            });
        }
    });
    assert_eq!(mount.bucket().take_requests().lists, 3, "pages of 1000");
}

pub fn expiry() {
    // The kernel's own time cannot be advanced, so the TTL is short, and real.
    let ttl = Duration::from_millis(400);
    let served = Served::new();
    ["d/stays", "d/changes", "d/goes"].iter().for_each(|key| served.bucket.put(key, "old"));
    let mount = Fixture::new(served, "", &ObjectOptions { ttl, ..options() });
    assert_eq!(fs::read(mount.path("d/changes")).expect("read"), b"old");
    let before = mount.path("d/stays").metadata().expect("known").ino();
    mount.bucket().put("d/changes", "newer");
    mount.bucket().put("d/comes", "x");
    mount.bucket().remove("d/goes");
    let seen = within(Duration::from_secs(10), || {
        !mount.path("d/goes").exists()
            && mount.path("d/comes").exists()
            && mount.path("d/changes").metadata().is_ok_and(|attr| attr.size() == 5)
    });
    assert!(seen, "the names are asked for again");
    assert_eq!(fs::read(mount.path("d/changes")).expect("read"), b"newer");
    assert_eq!(
        mount.path("d/stays").metadata().expect("known").ino(),
        before,
        "the same version is the same file"
    );
    let names: BTreeSet<_> = fs::read_dir(mount.path("d"))
        .expect("a directory")
        .map(|e| e.expect("an entry").file_name())
        .collect();
    assert_eq!(names, BTreeSet::from(["stays".into(), "changes".into(), "comes".into()]));
    // A removed directory goes too.
    ["d/stays", "d/changes", "d/comes"].iter().for_each(|key| mount.bucket().remove(key));
    assert!(within(Duration::from_secs(10), || !mount.path("d").exists()));
}

pub fn large() {
    const NAMES: usize = 9_500;
    let fill = |bucket: &crate::bucket::Bucket| {
        (0..NAMES).for_each(|n| bucket.put(&format!("d/f{n:05}"), "x"));
        bucket.put("d/sub/x", "x");
    };
    let mount = Fixture::of(fill, &options());
    assert!(
        mount.path("d/f09000").exists() && mount.path("d/sub").is_dir() && !mount.path("d/none").exists()
    );
    let requests = mount.bucket().take_requests();
    // The root; four pages; then each name by itself, unless it was among the first 4,000.
    assert_eq!((requests.lists, requests.heads), (1 + 4 + 3, 3));
    assert!(mount.path("d/f00001").exists() && !mount.path("d/none").exists());
    assert_eq!(mount.bucket().take_requests().lists, 0, "told by the listing, and by the question");
    assert_eq!(fs::read_dir(mount.path("d")).expect("a directory").count(), NAMES + 1);
    assert_eq!(mount.bucket().take_requests().lists, 10, "pages of 1000");
    assert!(!mount.path("d/other").exists() && mount.path("d/f09001").exists());
    let requests = mount.bucket().take_requests();
    assert_eq!((requests.lists, requests.heads), (0, 0), "the directory is complete");
}

pub fn unshown() {
    let keys = [
        "good",
        "a//b",
        "a/good",
        "./x",
        "../y",
        "both",
        "both/below",
        "marked/",
        "marked/x",
        "empty/",
        " lead",
    ];
    let long = "n".repeat(256);
    let fill = |bucket: &crate::bucket::Bucket| {
        keys.iter().for_each(|key| bucket.put(key, "x"));
        bucket.put(&long, "x");
    };
    let mount = Fixture::of(fill, &options());
    let mut found = BTreeSet::new();
    walk(&mount.path(""), &mut found, &mount.path(""));
    let expected = ["good", "a/good", "both/below", "marked/x"].map(String::from);
    assert_eq!(found, BTreeSet::from(expected));
    assert!(mount.path("empty").is_dir() && mount.path("both").is_dir());
    // "a//", ".", "..", the object "both", the long name, and " lead".
    assert_eq!(mount.handle().figures().unshown_keys, 6);
}

pub fn prefix() {
    let served = Served::new();
    ["in/x", "in/d/y", "inside", "out/z"].iter().for_each(|key| served.bucket.put(key, *key));
    let mount = Fixture::new(served, "in/", &options());
    let mut found = BTreeSet::new();
    walk(&mount.path(""), &mut found, &mount.path(""));
    assert_eq!(found, BTreeSet::from(["x".to_owned(), "d/y".to_owned()]));
    assert_eq!(fs::read(mount.path("d/y")).expect("read"), b"in/d/y");
}

pub fn read_only() {
    let read_only = ObjectOptions { read_only: true, ..options() };
    let mount = Fixture::of(|bucket| bucket.put("f", "x"), &read_only);
    let is_refused =
        |done: std::io::Result<()>| assert_eq!(done.unwrap_err().kind(), ErrorKind::ReadOnlyFilesystem);
    is_refused(fs::write(mount.path("new"), "x"));
    is_refused(fs::write(mount.path("f"), "x"));
    is_refused(fs::create_dir(mount.path("new")));
    is_refused(fs::remove_file(mount.path("f")));
    is_refused(fs::rename(mount.path("f"), mount.path("g")));
}

pub fn flags() {
    let flags_of = |flags: Flags| {
        let mount = Fixture::of(|bucket| bucket.put("f", "x"), &ObjectOptions { flags, ..options() });
        let mounts = fs::read_to_string("/proc/self/mounts").expect("mounts");
        let dir = format!(" {} ", mount.path("").display().to_string().trim_end_matches('/'));
        let line = mounts.lines().find(|line| line.contains(&dir)).expect("the mount").to_owned();
        let shown = line.split(' ').nth(3).expect("options").to_owned();
        ["nosuid", "nodev", "noexec", "noatime"].map(|word| shown.split(',').any(|one| one == word))
    };
    assert_eq!(flags_of(Flags::default()), [true, true, false, false]);
    let other = Flags { noexec: true, atime: Some("noatime"), ..Flags::default() };
    assert_eq!(flags_of(other), [true; 4]);
    if rustix::process::geteuid().is_root() {
        assert_eq!(flags_of(Flags { suid: true, dev: true, ..Flags::default() }), [false; 4]);
    }
}

pub fn limit() {
    const DIRS: usize = 40;
    const NAMES: usize = 500;
    let served = Served::new();
    (0..DIRS).for_each(|d| (0..NAMES).for_each(|n| served.bucket.put(&format!("d{d}/f{n}"), "x")));
    let memory = 4 << 20;
    let mount = Fixture::new(served, "", &ObjectOptions { memory, ..options() });
    for _ in 0..2 {
        let mut found = BTreeSet::new();
        walk(&mount.path(""), &mut found, &mount.path(""));
        assert_eq!(found.len(), DIRS * NAMES);
    }
    let requests = mount.bucket().take_requests();
    // Names that were evicted are listed again, not asked for one by one.
    assert!(requests.lists + requests.heads < 4000, "{requests:?}");
    let figures = mount.handle().figures();
    assert!(figures.names < (DIRS * NAMES * 3 / 4) as u64, "names were evicted: {figures:?}");
}

/// The names of a directory, read without a kernel.
async fn names(fs: &ObjectFs, dir: u64) -> Vec<String> {
    use fuse3::raw::Filesystem;
    use futures_util::StreamExt;
    let fh = fs.opendir(REQUEST, dir, 0).await.expect("a directory").fh;
    let (mut names, mut at) = (Vec::new(), 0);
    loop {
        let entries = fs.readdir(REQUEST, dir, fh, at).await.expect("entries").entries;
        let more: Vec<_> = entries.map(|entry| entry.expect("an entry")).collect().await;
        let Some(last) = more.last() else { break };
        at = last.offset;
        names.extend(more.into_iter().map(|entry| entry.name.into_string().expect("UTF-8")));
    }
    fs.releasedir(REQUEST, dir, fh, 0).await.expect("closed");
    names.retain(|name| name != "." && name != "..");
    names
}

/// A walk like that of find(1), with memory for fewer names than it meets, and no kernel that holds any: names are evicted
/// before it comes to them.
pub fn evicted() {
    use fuse3::raw::Filesystem;
    const DIRS: usize = 40;
    const NAMES: usize = 300;
    let served = Served::new();
    (0..DIRS).for_each(|d| (0..NAMES).for_each(|n| served.bucket.put(&format!("d{d:02}/f{n:03}"), "x")));
    let options = ObjectOptions { memory: 4 << 20, ..options() };
    let fs = ObjectFs::new(served.operator(), "", &options).expect("tables");
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().expect("a runtime");
    let walk = async || {
        let dirs = names(&fs, 1).await;
        assert_eq!(dirs.len(), DIRS);
        for name in dirs {
            let dir = fs.lookup(REQUEST, 1, name.as_ref()).await.expect("an answer").attr.ino;
            assert_eq!(names(&fs, dir).await.len(), NAMES, "{name}");
            fs.forget(REQUEST, dir, 1).await;
        }
        let requests = served.bucket.take_requests();
        (requests.lists, requests.heads)
    };
    runtime.block_on(async {
        // The root; two directories that make a walk; then 11,400 keys in pages.
        assert_eq!(walk().await, (1 + 2 + 12, 0));
        assert!(fs.handle().figures().names < (DIRS * NAMES * 3 / 4) as u64, "names were evicted");
        // Names that another mount has removed are believed for the TTL, and not longer.
        (0..NAMES).for_each(|n| served.bucket.remove(&format!("d07/f{n:03}")));
        fs.handle().advance_clock(61_000);
        assert_eq!(fs.lookup(REQUEST, 1, "d07".as_ref()).await.expect("an answer").attr.ino, 0);
        assert_eq!(names(&fs, 1).await.len(), DIRS - 1);
        // Own changes hold at once, also of names that were evicted.
        served.bucket.put("d03/", "");
        (0..NAMES).for_each(|n| served.bucket.remove(&format!("d03/f{n:03}")));
        fs.rmdir(REQUEST, 1, "d03".as_ref()).await.expect("removed");
        assert_eq!(fs.lookup(REQUEST, 1, "d03".as_ref()).await.expect("an answer").attr.ino, 0);
        assert!(names(&fs, 1).await.iter().all(|name| name != "d03"));
    });
}

pub fn walks() {
    until_the_kernel_keeps_names(walk_thrice);
}

fn walk_thrice() -> u64 {
    const DIRS: usize = 60;
    let keys: BTreeSet<String> = (0..DIRS)
        .flat_map(|d| (0..40).map(move |f| format!("t/d{d:02}/f{f:02}")))
        .chain((0..DIRS).map(|d| format!("t/d{d:02}/deep/er/f")))
        .chain([format!("t/d{:02}-beside/f", 7)])
        .collect();
    let mount = Fixture::of(|bucket| keys.iter().for_each(|key| bucket.put(key, "x")), &options());
    let found = || {
        let mut found = BTreeSet::new();
        walk(&mount.path(""), &mut found, &mount.path(""));
        found
    };
    assert_eq!(found(), keys);
    // Without the walk: a LIST for each of 183 directories.
    let requests = mount.bucket().take_requests();
    assert!(requests.lists <= 20 && requests.heads == 0, "{requests:?}");
    // Directories that were told ahead are complete: absent names cost nothing, and a second walk neither.
    assert!((0..DIRS).all(|d| !mount.path(&format!("t/d{d:02}/absent")).exists()));
    assert_eq!(found(), keys);
    let rereads = mount.handle().figures().rereads;
    assert!(mount.bucket().take_requests().lists <= rereads);
    // It is believed for the TTL and no longer.
    mount.bucket().put("t/d50/new", "x");
    mount.bucket().remove("t/d51/f00");
    mount.handle().advance_clock(61_000);
    let now = found();
    assert!(now.contains("t/d50/new") && !now.contains("t/d51/f00") && now.len() == keys.len());
    rereads
}

/// The end of a page is gone on with only while nothing is known to have changed, and its names are believed from the first
/// page on.
pub fn rests() {
    use fuse3::raw::Filesystem;
    const NAMES: usize = 300;
    let served = Served::new();
    (0..8).for_each(|d| (0..NAMES).for_each(|n| served.bucket.put(&format!("d{d:02}/f{n:03}"), "x")));
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().expect("a runtime");
    // A mount whose walk has come to d05, of which a page has told a third; then another removes a name there.
    let walked = async || {
        served.bucket.put("d05/f000", "x");
        let fs = ObjectFs::new(served.operator(), "", &options()).expect("tables");
        assert_eq!(names(&fs, 1).await.len(), 8);
        for name in ["d00", "d01", "d02", "d03", "d04"] {
            let dir = fs.lookup(REQUEST, 1, name.as_ref()).await.expect("an answer").attr.ino;
            assert_eq!(names(&fs, dir).await.len(), NAMES, "{name}");
        }
        served.bucket.remove("d05/f000");
        served.bucket.take_requests();
        fs
    };
    let read = async |fs: &ObjectFs| {
        let dir = fs.lookup(REQUEST, 1, "d05".as_ref()).await.expect("an answer").attr.ino;
        (dir, names(fs, dir).await.len())
    };
    runtime.block_on(async {
        let fs = walked().await;
        fs.handle().advance_clock(20_000);
        let (dir, known) = read(&fs).await;
        assert_eq!((known, served.bucket.take_requests().lists), (NAMES, 1), "the page goes on");
        fs.handle().advance_clock(41_000);
        let gone = fs.lookup(REQUEST, dir, "f000".as_ref()).await.expect("an answer").attr.ino;
        assert_eq!(gone, 0, "the TTL counts from the first page");
        let fs = walked().await;
        fs.handle().advance_clock(31_000);
        assert_eq!(read(&fs).await.1, NAMES - 1, "it was old");
        let fs = walked().await;
        let other = fs.lookup(REQUEST, 1, "d00".as_ref()).await.expect("an answer").attr.ino;
        fs.mkdir(REQUEST, other, "e".as_ref(), 0o755, 0).await.expect("made");
        assert_eq!(read(&fs).await.1, NAMES - 1, "this mount has changed a name");
    });
}

pub fn large_walk() {
    const DIRS: usize = 12;
    let keys = (0..DIRS).flat_map(|d| (0..1200).map(move |f| format!("t/d{d:02}/f{f:04}")));
    let keys: BTreeSet<String> = keys.collect();
    let mount = Fixture::of(|bucket| keys.iter().for_each(|key| bucket.put(key, "x")), &options());
    let mut found = BTreeSet::new();
    walk(&mount.path(""), &mut found, &mount.path(""));
    assert_eq!(found, keys);
    // Two pages each, and two for the root and `t`.
    assert_eq!(mount.bucket().take_requests().lists, 2 * DIRS as u64 + 2);
}

pub fn control() {
    let mount = Fixture::of(|bucket| bucket.put("d/f", vec![0; 5000]), &options());
    assert_eq!(fs::read(mount.path("d/f")).expect("read").len(), 5000);
    let names = |path: &str| -> Vec<_> {
        let entries = fs::read_dir(mount.path(path)).expect("a directory");
        entries.map(|entry| entry.expect("an entry").file_name()).collect()
    };
    assert_eq!(names(""), ["d"]);
    assert_eq!(names(".uvfs"), ["stats", "pid"]);
    let pid = fs::read_to_string(mount.path(".uvfs/pid")).expect("read");
    assert_eq!(pid, format!("{}\n", std::process::id()));
    let text = fs::read_to_string(mount.path(".uvfs/stats")).expect("read");
    let of = |name: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        line.and_then(|value| value.parse::<u64>().ok())
    };
    let requests = mount.bucket().take_requests();
    assert_eq!((of("calls/list"), of("calls/get")), (Some(requests.lists), Some(requests.gets)));
    assert_eq!((of("bytes_read"), of("calls/head")), (Some(5000), Some(0)));
    assert!(of("bytes").is_some_and(|bytes| bytes > 0) && of("dentries").is_some_and(|names| names >= 2));
    assert!(!mount.path(".uvfs/absent").exists());
    assert!(fs::write(mount.path(".uvfs/stats"), "x").is_err());
    // Each open has new figures, and the store is not asked.
    assert!(fs::read_to_string(mount.path(".uvfs/stats")).is_ok_and(|now| now.starts_with("calls/list ")));
    assert_eq!(mount.bucket().take_requests().lists, 0);
}

/// The kernel may have the beginning of a directory in pages of its own, and asks another handle for the rest.
pub fn resumed() {
    use fuse3::raw::Filesystem;
    use futures_util::StreamExt;
    const NAMES: usize = 9000;
    let served = Served::new();
    (0..NAMES).for_each(|n| served.bucket.put(&format!("d/f{n:05}"), "x"));
    let fs = ObjectFs::new(served.operator(), "", &options()).expect("tables");
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().expect("a runtime");
    let request = REQUEST;
    runtime.block_on(async {
        let d = fs.lookup(request, 1, "d".as_ref()).await.expect("a directory").attr.ino;
        // Reads from a place on; returns the names, and the place after each.
        let read = async |from: i64| {
            let fh = fs.opendir(request, d, 0).await?.fh;
            let (mut names, mut at) = (Vec::new(), from);
            loop {
                let mut entries = fs.readdir(request, d, fh, at).await?.entries;
                let before = names.len();
                while let Some(entry) = entries.next().await {
                    let entry = entry?;
                    at = entry.offset;
                    names.push((entry.name.into_string().expect("UTF-8"), at));
                }
                if names.len() == before {
                    break;
                }
            }
            fs.releasedir(request, d, fh, 0).await?;
            fuse3::Result::Ok(names)
        };
        let all = read(0).await.expect("read");
        assert_eq!(all.len(), NAMES + 2);
        let usual = [0, 3999, 4001, 8500].as_slice();
        for &after in usual_or_full(usual, &[0, 1, 2, 3999, 4000, 4001, 4002, 8500, NAMES + 1]) {
            assert!(read(all[after].1).await.expect("the same names before") == all[after + 1..], "{after}");
        }
        fs.handle().advance_clock(61_000);
        served.bucket.put("d/f99999", "x");
        assert_eq!(read(all[5000].1).await.expect("a name behind").len(), NAMES + 2 - 5001 + 1);
        fs.handle().advance_clock(61_000);
        served.bucket.remove("d/f00100");
        let refused = read(all[5000].1).await.expect_err("others before");
        assert_eq!(refused, fuse3::Errno::from(libc::ESTALE));
    });
}

pub fn slow() {
    use fuse3::raw::Filesystem;
    let served = Served::new();
    (0..4100).for_each(|n| served.bucket.put(&format!("d/f{n:05}"), "x"));
    let fs = ObjectFs::new(served.operator(), "", &options()).expect("tables");
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .max_blocking_threads(8)
        .thread_name("slow-lookups")
        .enable_all()
        .build()
        .expect("a runtime");
    let fs = std::sync::Arc::new(fs);
    let request = |unique| Request { unique, uid: 0, gid: 0, pid: 0 };
    runtime.block_on(async {
        let d = fs.lookup(request(1), 1, "d".as_ref()).await.expect("a directory").attr.ino;
        fs.lookup(request(2), d, "f00001".as_ref()).await.expect("a file");
        // However slow the machine is, none ends before all have begun.
        served.bucket.plan_lists(&[Fault::Held; 1000]);
        served.bucket.take_requests();
        let tasks: Vec<_> = (0..1000)
            .map(|n| {
                let fs = fs.clone();
                tokio::spawn(async move { fs.lookup(request(n + 10), d, format!("none{n}").as_ref()).await })
            })
            .collect();
        assert!(
            within(Duration::from_secs(20), || fs.handle().figures().running == 1000),
            "all wait at once"
        );
        let threads = fs::read_dir("/proc/self/task").expect("threads").filter_map(Result::ok);
        let threads = threads.filter(|thread| {
            fs::read_to_string(thread.path().join("comm")).is_ok_and(|name| name.trim() == "slow-lookups")
        });
        assert!(threads.count() <= 10);
        served.bucket.release_lists(1000);
        for task in tasks {
            assert_eq!(task.await.expect("no panic").expect("an absence").attr.ino, 0);
        }
    });
}
