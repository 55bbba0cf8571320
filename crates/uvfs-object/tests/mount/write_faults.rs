//! Faults of the store while files are written: whatever was acknowledged is in the store, whole.

use parking_lot::Mutex;
use std::collections::HashMap;
use std::fs::{self, File, OpenOptions};
use std::io::Write as _;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use uvfs_object::ObjectOptions;

use crate::bucket::{Fault, Write};
use crate::faults::errno;
use crate::fixture::{Fixture, Served, bytes, hasty, options, usual_or_full, within};
use crate::writes::two;

const PART: usize = 5 << 20;

fn create(path: &Path) -> File {
    OpenOptions::new().write(true).create_new(true).open(path).expect("a new file")
}

pub fn tried_again() {
    let mount = Fixture::of(|_| {}, &hasty());
    // Each of them is answered with a fault, or done and its answer lost; in the long form twice, which waits longer.
    let times = usual_or_full(1, 2);
    for (n, fault) in [Fault::SlowDown, Fault::Silence, Fault::Lost].into_iter().enumerate() {
        for (kind, len) in [
            (Write::Put, 100),
            (Write::Part, 2 * PART),
            (Write::Complete, 2 * PART),
            (Write::Create, 2 * PART),
        ] {
            let name = format!("{kind:?}{n}");
            mount.bucket().plan_writes(kind, &vec![fault; times]);
            let mut file = create(&mount.path(&name));
            file.write_all(&bytes(len, n as u64)).expect("written");
            file.sync_all().unwrap_or_else(|error| panic!("{kind:?} {fault:?}: {error}"));
            assert!(mount.bucket().content(&name).expect("visible") == bytes(len, n as u64));
            drop(file);
            assert_eq!(mount.path(&name).metadata().expect("there").len(), len as u64);
            assert!(fs::read(mount.path(&name)).expect("read") == bytes(len, n as u64));
        }
        // A lost answer to Create leaves an upload that nobody knows of.
        let known = if fault == Fault::Lost { times } else { 0 };
        assert_eq!(mount.bucket().uploads(), known);
        for (kind, name) in [(Write::Copy, "copied"), (Write::Delete, "deleted")] {
            mount.bucket().plan_writes(kind, &vec![fault; times]);
            fs::rename(mount.path(&format!("Put{n}")), mount.path(&format!("{name}{n}"))).expect("renamed");
            assert!(mount.bucket().content(&format!("{name}{n}")).expect("there") == bytes(100, n as u64));
            assert_eq!(mount.bucket().content(&format!("Put{n}")), None);
            fs::rename(mount.path(&format!("{name}{n}")), mount.path(&format!("Put{n}"))).expect("renamed");
        }
    }
}

pub fn lost() {
    let mount = Fixture::of(|bucket| bucket.put("old", "old"), &hasty());
    // Every attempt is done, and no answer comes: a HEAD decides.
    for (name, kind, len) in
        [("new", Write::Put, 10), ("large", Write::Complete, 2 * PART), ("old", Write::Put, 20)]
    {
        mount.bucket().plan_writes(kind, &[Fault::Lost; 20]);
        let mut file = File::create(mount.path(name)).expect("made");
        file.write_all(&bytes(len, 5)).expect("written");
        file.sync_all().expect("a HEAD tells that it was done");
        mount.bucket().plan_writes(kind, &[]);
        assert!(mount.bucket().content(name).expect("visible") == bytes(len, 5));
    }
    // The first attempt becomes visible after the writer has gone on: that is no conflict.
    let mut file = create(&mount.path("late"));
    file.write_all(b"one").expect("written");
    mount.bucket().plan_writes(Write::Put, &[Fault::Late; 4]);
    assert_eq!(errno(file.sync_all()), libc::EIO);
    mount.bucket().land();
    assert_eq!(mount.bucket().content("late").expect("visible"), "one");
    file.write_all(b" two").expect("written");
    file.sync_all().expect("now");
    assert_eq!(mount.bucket().content("late").expect("visible"), "one two");
    drop(file);
    // Another gives the old name a new version, between the COPY and the DELETE of a rename: it stays.
    mount.bucket().take_writes(Write::Delete);
    mount.bucket().plan_writes(Write::Delete, &[Fault::Silence]);
    std::thread::scope(|scope| {
        let rename = scope.spawn(|| fs::rename(mount.path("late"), mount.path("moved")));
        let is_begun = || mount.bucket().take_writes(Write::Delete) != 0;
        assert!(within(Duration::from_secs(10), is_begun));
        mount.bucket().put("late", "newer");
        rename.join().expect("no panic").expect("renamed");
    });
    assert_eq!(mount.bucket().content("moved").expect("there"), "one two");
    assert_eq!(mount.bucket().content("late").expect("it stays"), "newer");
    assert_eq!(mount.bucket().uploads(), 0);
}

pub fn failed() {
    let mount = Fixture::of(|bucket| bucket.put("old", "old"), &options());
    let faults = [(Fault::Denied, libc::EACCES), (Fault::Expired, libc::EIO), (Fault::Full, libc::EIO)];
    for (n, (fault, expected)) in faults.into_iter().enumerate() {
        for (kind, len) in [(Write::Put, 100), (Write::Part, 3 * PART), (Write::Complete, 2 * PART)] {
            let name = format!("{kind:?}{n}");
            mount.bucket().plan_writes(kind, &[fault; 40]);
            let mut file = create(&mount.path(&name));
            let done = file.write_all(&bytes(len, 1)).and_then(|()| file.sync_all());
            // A completion that fails may have a status of success, and then only its code tells why.
            let is_expected = |errno| errno == expected || (kind == Write::Complete && errno == libc::EIO);
            let errno = errno(done);
            assert!(is_expected(errno), "{kind:?} {fault:?}: {errno}");
            drop(file);
            assert!(within(Duration::from_secs(10), || mount.handle().figures().writing == 0));
            mount.bucket().plan_writes(kind, &[]);
            assert_eq!((mount.bucket().content(&name), mount.bucket().uploads()), (None, 0));
            assert!(!mount.path(&name).exists());
            // A file that cannot be replaced stays.
            mount.bucket().plan_writes(kind, &[fault; 40]);
            let mut file = File::create(mount.path("old")).expect("opened");
            let done = file.write_all(&bytes(len, 1)).and_then(|()| file.sync_all());
            assert!(is_expected(crate::faults::errno(done)));
            drop(file);
            mount.bucket().plan_writes(kind, &[]);
            assert!(within(Duration::from_secs(10), || mount.handle().figures().writing == 0));
            assert_eq!(fs::read(mount.path("old")).expect("read"), b"old");
            assert_eq!(mount.bucket().uploads(), 0);
        }
    }
    // A fault that passes: the same file can be synced again.
    let mut file = create(&mount.path("again"));
    file.write_all(&bytes(2 * PART, 3)).expect("written");
    mount.bucket().plan_writes(Write::Complete, &[Fault::Expired]);
    assert_eq!(errno(file.sync_all()), libc::EIO);
    file.sync_all().expect("the credentials are good again");
    assert!(mount.bucket().content("again").expect("visible") == bytes(2 * PART, 3));
    // A store that does not know If-Match of DELETE.
    fs::write(mount.path("one"), "1").expect("written");
    mount.bucket().plan_writes(Write::Delete, &[Fault::Unknown]);
    fs::rename(mount.path("one"), mount.path("two")).expect("renamed");
    assert_eq!((mount.bucket().content("one"), mount.path("two").exists()), (None, true));
    // Names: what failed is as it was.
    mount.bucket().plan_writes(Write::Delete, &[Fault::Expired]);
    assert_eq!(errno(fs::remove_file(mount.path("old"))), libc::EIO);
    mount.bucket().plan_writes(Write::Copy, &[Fault::Expired]);
    assert_eq!(errno(fs::rename(mount.path("old"), mount.path("new"))), libc::EIO);
    mount.bucket().plan_writes(Write::Put, &[Fault::Expired]);
    assert_eq!(errno(fs::create_dir(mount.path("dir"))), libc::EIO);
    assert!(mount.path("old").exists() && !mount.path("new").exists() && !mount.path("dir").exists());
    fs::create_dir(mount.path("dir")).expect("made");
}

/// A content that says whether it is whole.
pub fn version(name: usize, number: u64) -> Vec<u8> {
    let len = 100 + (number as usize * 7919) % 300_000;
    let mut all = format!("{name} {number} {len}\n").into_bytes();
    let seed = (name as u64) << 32 | number;
    all.extend(bytes(len, seed));
    all
}

/// The name and the number of a content, if it is whole.
pub fn parse(data: &[u8]) -> Option<(usize, u64)> {
    let end = data.iter().position(|byte| *byte == b'\n')?;
    let words = std::str::from_utf8(&data[..end]).ok()?;
    let mut words = words.split(' ').map(|word| word.parse::<u64>().ok());
    let (name, number) = (words.next()?? as usize, words.next()??);
    (data == version(name, number)).then_some((name, number))
}

pub fn storm() {
    storms(true);
}

pub fn storm_without_renames() {
    let mount = storms(false);
    assert_eq!(mount.bucket().blind(), 0, "each write was bound to what it replaced");
}

const NAMES: usize = 6;

/// Counters of a storm, and the name that each number was written to.
#[derive(Default)]
struct Storm {
    next: AtomicU64,
    stop: AtomicBool,
    published: AtomicU64,
    refused: AtomicU64,
    seen: AtomicU64,
    written: Mutex<HashMap<u64, usize>>,
}

impl Storm {
    fn write(&self, path: &Path, name: usize) {
        let number = self.next.fetch_add(1, Relaxed);
        self.written.lock().insert(number, name);
        let open = if number.is_multiple_of(3) { File::create_new(path) } else { File::create(path) };
        let done = open.and_then(|mut file| {
            file.write_all(&version(name, number))?;
            file.sync_all()
        });
        match done {
            Ok(()) => self.published.fetch_add(1, Relaxed),
            Err(error) => {
                let errno = error.raw_os_error().unwrap_or_default();
                let usual = [libc::EEXIST, libc::ESTALE, libc::ENOENT, libc::EBUSY, libc::EISDIR];
                assert!(usual.contains(&errno), "write: {error}");
                self.refused.fetch_add(1, Relaxed)
            }
        };
    }

    fn change(&self, mount: &Fixture, seed: u64, rename: bool) {
        let mut steps = bytes(1 << 16, seed).into_iter().cycle();
        let mut step = || steps.next().map_or(0, usize::from);
        while !self.stop.load(Relaxed) {
            let name = step() % NAMES;
            let path = mount.path(&format!("d/f{name}"));
            match step() % 8 {
                0 => drop(fs::remove_file(&path)),
                1 if rename => {
                    let aside = mount.path(&format!("d/aside{seed}-{name}"));
                    if fs::rename(&path, &aside).is_ok() {
                        drop(fs::rename(&aside, &path));
                    }
                }
                _ => self.write(&path, name),
            }
        }
    }

    fn read(&self, mount: &Fixture) {
        while !self.stop.load(Relaxed) {
            let Ok(dir) = fs::read_dir(mount.path("d")) else { continue };
            for entry in dir {
                let Ok(entry) = entry else { break };
                let name = entry.file_name().into_string().expect("text");
                let Ok(read) = fs::read(entry.path()) else { continue };
                let (of, number) = parse(&read).unwrap_or_else(|| panic!("{name} is not whole"));
                let expected = name.rsplit_once(['f', '-']).map(|(_, n)| n.parse::<usize>().ok());
                assert_eq!(Some(Some(of)), expected, "{name}");
                assert_eq!(self.written.lock().get(&number), Some(&of));
                self.seen.fetch_add(1, Relaxed);
            }
        }
    }
}

fn storms(rename: bool) -> Fixture {
    let served = Served::new();
    served.bucket.put("d/", "");
    let (one, two) = two(served);
    let storm = Storm::default();
    std::thread::scope(|scope| {
        for (mount, seed) in [(&one, 1), (&two, 2), (&one, 3), (&two, 4)] {
            let storm = &storm;
            scope.spawn(move || storm.change(mount, seed, rename));
        }
        scope.spawn(|| storm.read(&one));
        scope.spawn(|| storm.read(&two));
        let begun = Instant::now();
        // The pause is the storm's pace: each step of the clock makes all names stale.
        while begun.elapsed() < Duration::from_secs(usual_or_full(3, 12)) || storm.seen.load(Relaxed) < 100 {
            std::thread::sleep(Duration::from_millis(20));
            one.handle().advance_clock(5_000);
            assert!(begun.elapsed() < Duration::from_secs(60), "too slow: {:?} read", storm.seen);
        }
        storm.stop.store(true, Relaxed);
    });
    let Storm { published, refused, seen, .. } = &storm;
    eprintln!("storm: {published:?} published, {refused:?} refused, {seen:?} read whole");
    assert!(published.load(Relaxed) > 20);
    let idle = |mount: &Fixture| within(Duration::from_secs(10), || mount.handle().figures().writing == 0);
    assert!(idle(&one) && idle(&two));
    is_as_stored(&one);
    is_as_stored(&two);
    assert_eq!(one.bucket().uploads(), 0);
    one
}

/// In the end a mount shows what the store has.
fn is_as_stored(mount: &Fixture) {
    mount.handle().advance_clock(61_000);
    let name = |entry: std::io::Result<fs::DirEntry>| {
        entry.expect("an entry").file_name().into_string().expect("text")
    };
    let mut names: Vec<_> =
        fs::read_dir(mount.path("d")).map(|dir| dir.map(name).collect()).unwrap_or_default();
    names.sort();
    let keys: Vec<_> = mount.bucket().keys()[1..].iter().map(|key| key[2..].to_owned()).collect();
    assert_eq!(names, keys);
    for name in names {
        let stored = mount.bucket().content(&format!("d/{name}")).expect("there");
        let same = || fs::read(mount.path(&format!("d/{name}"))).is_ok_and(|read| read == stored);
        // The kernel's own names may be as old as the TTL, which the test's clock does not move; an open corrects them.
        assert!(within(Duration::from_secs(5), same), "{name}");
    }
}

/// The server of the mount, in a process of its own: `--serve ADDRESS DIR` of this test.
pub fn serve(address: &str, dir: &str) {
    let operator = crate::fixture::operator(address.parse().expect("an address"));
    let fs = uvfs_object::ObjectFs::new(operator, "", &options()).expect("tables");
    let mounted = uvfs_object::mount_fs(fs, "object:test", &options(), dir.as_ref()).expect("a mount");
    println!("mounted");
    let _ = mounted.wait();
}

pub fn server_killed() {
    let served = Served::new();
    let mut most = 0;
    for round in 0..6u64 {
        let dir = tempfile::tempdir().expect("a directory");
        let mut server = Command::new(std::env::current_exe().expect("this test"))
            .args(["--serve", &served.address.to_string()])
            .arg(dir.path())
            .stdout(Stdio::piped())
            .spawn()
            .expect("a server");
        let mut ready = [0; 8];
        std::io::Read::read_exact(&mut server.stdout.take().expect("a pipe"), &mut ready).expect("mounted");
        let acknowledged = Mutex::new(HashMap::new());
        std::thread::scope(|scope| {
            for thread in 0..4usize {
                let (acknowledged, dir) = (&acknowledged, dir.path());
                scope.spawn(move || {
                    for number in 1.. {
                        let name = format!("r{round}-{thread}-{}", number % 3);
                        let content = match number % 5 {
                            0 => bytes(PART + 1000, number),
                            _ => version(thread, number),
                        };
                        let done = File::create(dir.join(&name)).and_then(|mut file| {
                            file.write_all(&content)?;
                            file.sync_all()
                        });
                        if done.is_err() {
                            return;
                        }
                        acknowledged.lock().insert(name, (number, content));
                    }
                });
            }
            // The moment does not matter, so it differs from round to round.
            std::thread::sleep(Duration::from_millis(300 + round * 170));
            server.kill().expect("killed");
            server.wait().expect("ended");
        });
        let _ = Command::new("umount").arg("-l").arg(dir.path()).stderr(Stdio::null()).status();
        let _ = Command::new("fusermount3").args(["-uz"]).arg(dir.path()).stderr(Stdio::null()).status();
        for (name, (number, content)) in acknowledged.into_inner() {
            most = most.max(number);
            let stored = served.bucket.content(&name).expect("what was acknowledged is there");
            // The next version of it may have become visible too, whole.
            let thread: usize = name.split('-').nth(1).and_then(|n| n.parse().ok()).expect("a number");
            let is_next = |number: u64| match number % 5 {
                0 => stored == bytes(PART + 1000, number),
                _ => stored == version(thread, number),
            };
            assert!(stored == content || is_next(number + 3), "{name} {number}");
        }
    }
    assert!(most > 3, "files were written: {most}");
    // Parts of uploads that were under way stay: nobody is left who knows of them. A rule of the store ends them.
    eprintln!("kill -9: up to {most} versions a name, {} uploads left in the store", served.bucket.uploads());
}

pub fn unconditional() {
    let unconditional = ObjectOptions { conditional: false, ..options() };
    let mount = Fixture::of(|bucket| bucket.put("f", "x"), &unconditional);
    let mut file = File::create(mount.path("f")).expect("opened");
    file.write_all(b"mine").expect("written");
    mount.bucket().put("f", "other");
    file.sync_all().expect("the last writer wins");
    assert_eq!(mount.bucket().content("f").expect("there"), "mine");
}
