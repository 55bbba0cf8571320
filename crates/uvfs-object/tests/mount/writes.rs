//! Writing: files of all sizes, two writers, names, and what is refused.

use std::fs::{self, File, OpenOptions};
use std::io::{Read, Seek, SeekFrom, Write as _};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use uvfs_object::ObjectOptions;

use crate::bucket::Write;
use crate::faults::errno;
use crate::fixture::{Fixture, Served, bytes, options, within};

const PART: usize = 5 << 20;

fn create(path: &Path) -> File {
    OpenOptions::new().write(true).create_new(true).open(path).expect("a new file")
}

fn overwrite(path: &Path) -> File {
    OpenOptions::new().write(true).truncate(true).open(path).expect("a file")
}

/// Two mounts of one bucket.
pub fn two(served: Served) -> (Fixture, Fixture) {
    let other = served.again();
    (Fixture::new(served, "", &options()), Fixture::new(other, "", &options()))
}

pub fn sizes() {
    let mount = Fixture::of(|bucket| bucket.put("d/old", "x"), &options());
    for (seed, len) in [0, 1, 4096, 300_000, PART - 1, PART, PART + 1, 3 * PART + 77].into_iter().enumerate()
    {
        let (path, data) = (mount.path(&format!("d/f{len}")), bytes(len, seed as u64));
        let mut file = create(&path);
        for chunk in data.chunks(200_000) {
            file.write_all(chunk).expect("written");
            assert_eq!(mount.bucket().content(&format!("d/f{len}")), None, "not visible before the close");
        }
        assert_eq!(file.metadata().expect("open").len(), len as u64);
        assert_eq!(path.metadata().expect("its name").len(), len as u64);
        drop(file);
        assert_eq!(path.metadata().expect("closed").len(), len as u64);
        assert!(mount.bucket().content(&format!("d/f{len}")).expect("visible") == data);
        assert!(fs::read(&path).expect("read") == data);
    }
    assert_eq!(mount.bucket().uploads(), 0);
    // Overwritten, by longer and shorter ones.
    for len in [2 * PART, 10, 0] {
        fs::write(mount.path("d/old"), bytes(len, 9)).expect("written");
        assert!(mount.bucket().content("d/old").expect("visible") == bytes(len, 9));
        assert!(fs::read(mount.path("d/old")).expect("read") == bytes(len, 9));
    }
    assert_eq!(mount.bucket().uploads(), 0);
}

pub fn synced() {
    let mount = Fixture::of(|_| {}, &options());
    let mut file = create(&mount.path("log"));
    let mut all = Vec::new();
    // Each fsync makes all so far visible; the third and later ones copy within the store.
    for (seed, len) in [10, 300_000, PART, 10, 2 * PART, 0, 5].into_iter().enumerate() {
        let data = bytes(len, seed as u64);
        file.write_all(&data).expect("written");
        all.extend(data);
        file.sync_all().expect("synced");
        assert!(mount.bucket().content("log").expect("visible") == all, "{seed}");
    }
    drop(file);
    assert!(fs::read(mount.path("log")).expect("read") == all);
    assert_eq!(mount.bucket().uploads(), 0);
    // A shell duplicates descriptors, and each close publishes.
    let sh = |script: &str| {
        let status = Command::new("sh").args(["-ec", script]).current_dir(mount.path("")).status();
        assert!(status.expect("sh").success(), "{script}");
    };
    sh(
        "{ echo a; /bin/echo b; (echo c); } > out; : > empty; echo new > empty; head -c 12000000 /dev/zero > zeros",
    );
    assert_eq!(mount.bucket().content("out").expect("visible"), "a\nb\nc\n");
    assert_eq!(mount.bucket().content("empty").expect("visible"), "new\n");
    assert_eq!(mount.bucket().content("zeros").expect("visible").len(), 12_000_000);
}

pub fn places() {
    let mount = Fixture::of(|_| {}, &options());
    let open = |name| OpenOptions::new().read(true).write(true).create_new(true).open(mount.path(name));
    // Within one part a file is written at any place, and read back.
    let mut small = open("small").expect("a new file");
    small.write_all_at(b"world", 6).expect("written");
    small.write_all_at(b"hello ", 0).expect("written");
    small.set_len(20).expect("longer");
    small.set_len(11).expect("shorter");
    let mut text = String::new();
    small.seek(SeekFrom::Start(0)).expect("sought");
    small.read_to_string(&mut text).expect("read");
    assert_eq!(text, "hello world");
    drop(small);
    assert_eq!(mount.bucket().content("small").expect("visible"), "hello world");
    // Beyond that only at its end, and not read before it is closed.
    let large = open("large").expect("a new file");
    large.write_all_at(&bytes(PART + 10, 1), 0).expect("written");
    assert_eq!(errno(large.write_all_at(b"x", 3)), libc::EOPNOTSUPP);
    assert_eq!(errno(large.read_at(&mut [0; 10], 0)), libc::EBUSY);
    assert_eq!(errno(large.set_len(5)), libc::EOPNOTSUPP);
    large.write_all_at(b"end", (PART + 10) as u64).expect("written");
    drop(large);
    assert_eq!(mount.bucket().content("large").expect("visible").len(), PART + 13);
    let large = overwrite(&mount.path("large"));
    large.write_all_at(&bytes(PART + 10, 2), 0).expect("written");
    large.set_len(0).expect("anew");
    large.write_all_at(b"short", 0).expect("written");
    drop(large);
    assert_eq!(mount.bucket().content("large").expect("visible"), "short");
    assert_eq!(mount.bucket().uploads(), 0);
    fs::metadata(mount.path("large")).expect("there");
    let truncate = ["-c", "import os, sys; os.truncate(sys.argv[1], 0)"];
    let truncated = Command::new("python3").args(truncate).arg(mount.path("large")).status();
    assert!(truncated.expect("python3").success());
    assert_eq!(mount.bucket().content("large").expect("visible"), "");
    assert_eq!(mount.path("large").metadata().expect("there").len(), 0);
}

pub fn changed() {
    let mount = Fixture::of(|bucket| bucket.put("f", "content"), &options());
    mount.bucket().put("large", bytes(PART + 1, 1));
    // An open that changes nothing writes nothing.
    drop(OpenOptions::new().write(true).open(mount.path("f")).expect("opened"));
    let mut file = OpenOptions::new().read(true).write(true).open(mount.path("f")).expect("opened");
    assert_eq!(mount.bucket().take_writes(Write::Put), 0);
    let mut text = String::new();
    file.read_to_string(&mut text).expect("read");
    assert_eq!(text, "content");
    file.write_all_at(b"x", 3).expect("written");
    file.write_all(b"ed").expect("written");
    drop(file);
    assert_eq!(mount.bucket().content("f").expect("visible"), "conxented");
    // At the end: also of a large file, which is copied within the store.
    for (name, before) in [("f", b"conxented".to_vec()), ("large", bytes(PART + 1, 1)), ("none", Vec::new())]
    {
        let mut file = OpenOptions::new().append(true).create(true).open(mount.path(name)).expect("opened");
        file.write_all(b" and").expect("written");
        file.write_all(b" more").expect("written");
        drop(file);
        let after = [before, b" and more".to_vec()].concat();
        assert!(mount.bucket().content(name).expect("visible") == after, "{name}");
        assert!(fs::read(mount.path(name)).expect("read") == after, "{name}");
    }
    assert_eq!(mount.bucket().take_writes(Write::PartCopy), 1);
    // One that the mount does not know of.
    for written in [" two", ""] {
        let path = mount.path(&format!("behind{written}"));
        assert!(!path.exists());
        mount.bucket().put(&format!("behind{written}"), "one");
        let mut file = OpenOptions::new().append(true).create(true).open(&path).expect("opened");
        assert_eq!(file.metadata().expect("open").len(), 3);
        file.write_all(written.as_bytes()).expect("written");
        drop(file);
        let is_there = || fs::read_to_string(&path).is_ok_and(|read| read == format!("one{written}"));
        assert!(within(Duration::from_secs(5), is_there));
    }
    // Another version meanwhile.
    let mut file = OpenOptions::new().append(true).open(mount.path("f")).expect("opened");
    mount.bucket().put("f", "other");
    assert_eq!(errno(file.write_all(b"x")), libc::ESTALE);
    drop(file);
    let mut file = OpenOptions::new().append(true).open(mount.path("f")).expect("opened");
    file.write_all(b"wise").expect("written");
    mount.bucket().put("f", "third");
    assert_eq!(errno(file.sync_all()), libc::ESTALE);
    drop(file);
    assert_eq!(mount.bucket().content("f").expect("there"), "third");
    assert_eq!(mount.bucket().uploads(), 0);
}

pub fn refused() {
    let mount = Fixture::of(|bucket| bucket.put("large", bytes(PART + 1, 1)), &options());
    mount.bucket().put("f", "content");
    let (path, large) = (mount.path("f"), mount.path("large"));
    assert_eq!(errno(OpenOptions::new().read(true).write(true).open(&large)), libc::EOPNOTSUPP);
    assert_eq!(errno(OpenOptions::new().write(true).open(&large)), libc::EOPNOTSUPP);
    assert_eq!(errno(OpenOptions::new().write(true).create_new(true).open(&path)), libc::EEXIST);
    assert_eq!(errno(fs::hard_link(&path, mount.path("g"))), libc::EPERM);
    assert_eq!(errno(std::os::unix::fs::symlink("f", mount.path("g"))), libc::EPERM);
    assert_eq!(errno(fs::create_dir(&path)), libc::EEXIST);
    assert_eq!(errno(fs::remove_dir(&path)), libc::ENOTDIR);
    assert_eq!(errno(create(&mount.path("x")).set_len(1 << 40)), libc::EOPNOTSUPP);
    // A name that no key has.
    assert!(File::create(mount.path("ends in white space ")).is_err());
    // Accepted, and not kept.
    use std::os::unix::fs::PermissionsExt;
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).expect("accepted");
    File::open(&path).expect("open").set_modified(std::time::UNIX_EPOCH).expect("accepted");
    assert_eq!(path.metadata().expect("there").mode() & 0o7777, 0o644);
    assert_eq!(fs::read(&path).expect("read"), b"content");
    assert_eq!(mount.bucket().keys(), ["f", "large", "x"]);
}

pub fn conflicts() {
    let served = Served::new();
    served.bucket.put("old", "before");
    let (one, two) = two(served);
    // Two new files of one name: the second to be published gets the error, and the first stays.
    let (mut a, mut b) = (create(&one.path("new")), create(&two.path("new")));
    a.write_all(b"first").expect("written");
    b.write_all(b"second").expect("written");
    a.sync_all().expect("the first");
    assert_eq!(errno(b.sync_all()), libc::EEXIST);
    assert_eq!(errno(b.write_all(b"more")), libc::EEXIST);
    drop((a, b));
    assert_eq!(one.bucket().content("new").expect("visible"), "first");
    assert!(within(Duration::from_secs(5), || fs::read(two.path("new")).is_ok_and(|read| read == b"first")));
    // Two that overwrite one version, also by several parts.
    for len in [7, 2 * PART] {
        let (mut a, mut b) = (overwrite(&one.path("old")), overwrite(&two.path("old")));
        a.write_all(&bytes(len, 1)).expect("written");
        b.write_all(&bytes(len, 2)).expect("written");
        b.sync_all().expect("the first");
        assert_eq!(errno(a.sync_all()), libc::ESTALE);
        drop((a, b));
        assert!(one.bucket().content("old").expect("visible") == bytes(len, 2));
        assert!(fs::read(two.path("old")).expect("read") == bytes(len, 2));
        assert!(within(Duration::from_secs(5), || fs::read(one.path("old")).expect("read") == bytes(len, 2)));
    }
    // A version that the mount did not know yet is no conflict: the open looks.
    fs::write(one.path("old"), "third").expect("written");
    fs::write(two.path("old"), "fourth").expect("written");
    fs::write(one.path("old"), "fifth").expect("written");
    assert_eq!(one.bucket().content("old").expect("visible"), "fifth");
    assert!(!two.path("fresh").exists() && !one.path("fresh").exists());
    fs::write(one.path("fresh"), "1").expect("written");
    fs::write(two.path("fresh"), "2").expect("written");
    assert_eq!(one.bucket().content("fresh").expect("visible"), "2");
    // Removed meanwhile.
    let mut a = overwrite(&one.path("old"));
    a.write_all(b"x").expect("written");
    fs::remove_file(two.path("old")).expect("removed");
    assert_eq!(errno(a.sync_all()), libc::ESTALE);
    drop(a);
    assert_eq!(one.bucket().content("old"), None);
    assert_eq!(one.bucket().uploads(), 0);
    // Close tells, too: cat(1) looks at the answer.
    let mut cat = Command::new("sh")
        .args(["-c", "exec cat > late"])
        .current_dir(one.path(""))
        .stdin(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .expect("sh");
    assert!(
        within(Duration::from_secs(10), || one.bucket().content("late").is_some()),
        "opened, and one close"
    );
    fs::write(two.path("late"), "other").expect("written");
    cat.stdin.take().expect("a pipe").write_all(b"mine").expect("sent");
    assert!(!cat.wait().expect("ended").success());
    assert_eq!(one.bucket().content("late").expect("visible"), "other");
}

pub fn overwriting_is_not_seen_before_the_close() {
    let mount = Fixture::of(|bucket| bucket.put("f", bytes(300_000, 1)), &options());
    let reader = File::open(mount.path("f")).expect("opened");
    let mut file = overwrite(&mount.path("f"));
    file.write_all(&bytes(50_000, 2)).expect("written");
    // The writer sees its own, others the version that the store has.
    assert_eq!(file.metadata().expect("open").len(), 50_000);
    assert_eq!(mount.path("f").metadata().expect("there").len(), 300_000);
    assert!(fs::read(mount.path("f")).expect("read") == bytes(300_000, 1));
    let ino = mount.path("f").metadata().expect("there").ino();
    drop(file);
    assert_eq!(mount.path("f").metadata().expect("there").len(), 50_000);
    assert!(fs::read(mount.path("f")).expect("read") == bytes(50_000, 2));
    assert_ne!(mount.path("f").metadata().expect("there").ino(), ino);
    // An open file stays the version that it was.
    let mut old = vec![0; 300_000];
    if reader.read_exact_at(&mut old, 0).is_ok() {
        assert!(old == bytes(300_000, 1));
    }
}

pub fn coherent() {
    let mount = Fixture::of(|bucket| bucket.put("d/old", "x"), &options());
    assert!(!mount.path("d/new").exists());
    mount.bucket().take_requests();
    // The mount knows its own changes without a LIST or a HEAD.
    for n in 0..50 {
        let path = mount.path(&format!("d/new{n}"));
        assert!(!path.exists());
        create(&path).write_all(b"data").expect("written");
        assert_eq!(path.metadata().expect("there").len(), 4);
    }
    fs::create_dir(mount.path("d/sub")).expect("made");
    assert!(!mount.path("d/sub/none").exists());
    create(&mount.path("d/sub/f")).write_all(b"1").expect("written");
    assert_eq!(mount.bucket().take_requests().lists, 0);
    assert_eq!(mount.bucket().take_writes(Write::Put), 52);
    assert_eq!(mount.bucket().take_requests().heads, 0);
    fs::remove_file(mount.path("d/new0")).expect("removed");
    assert!(!mount.path("d/new0").exists());
    fs::rename(mount.path("d/new1"), mount.path("d/sub/moved")).expect("renamed");
    assert!(!mount.path("d/new1").exists() && mount.path("d/sub/moved").exists());
    assert_eq!(fs::read(mount.path("d/sub/moved")).expect("read"), b"data");
    assert_eq!(mount.bucket().take_requests().lists, 0);
    let names = |dir: &str| {
        let read = fs::read_dir(mount.path(dir)).expect("opened");
        let mut names: Vec<_> =
            read.map(|entry| entry.expect("an entry").file_name().into_string().expect("text")).collect();
        names.sort();
        names
    };
    assert_eq!(names("d/sub"), ["f", "moved"]);
    assert_eq!(names("d").len(), 50);
    // A new file is in the directory while it is being written.
    let file = create(&mount.path("d/sub/open"));
    assert_eq!(names("d/sub"), ["f", "moved", "open"]);
    assert_eq!(mount.bucket().content("d/sub/open"), None);
    drop(file);
    assert_eq!(names("d/sub"), ["f", "moved", "open"]);
    assert!(within(Duration::from_secs(5), || names("d/sub") == ["f", "moved", "open"]));
    // After the TTL all is as the store tells.
    mount.handle().advance_clock(61_000);
    assert_eq!(names("d/sub"), ["f", "moved", "open"]);
    assert!(mount.path("d/new2").exists() && !mount.path("d/new1").exists());
}

pub fn names() {
    let mount = Fixture::of(|bucket| bucket.put("implied/f", "x"), &options());
    fs::create_dir(mount.path("d")).expect("made");
    assert_eq!(mount.bucket().keys(), ["d/", "implied/f"]);
    assert_eq!(errno(fs::create_dir(mount.path("d"))), libc::EEXIST);
    fs::write(mount.path("d/f"), "1").expect("written");
    assert_eq!(errno(fs::remove_dir(mount.path("d"))), libc::ENOTEMPTY);
    let open = create(&mount.path("d/open"));
    fs::remove_file(mount.path("d/f")).expect("removed");
    assert_eq!(errno(fs::remove_dir(mount.path("d"))), libc::ENOTEMPTY);
    fs::remove_file(mount.path("d/open")).expect("removed");
    fs::remove_dir(mount.path("d")).expect("removed");
    drop(open);
    assert!(!mount.path("d").exists());
    // Another has put a key there that the mount does not know.
    assert_eq!(fs::read_dir(mount.path("implied")).expect("opened").count(), 1);
    mount.bucket().put("implied/g", "x");
    fs::remove_file(mount.path("implied/f")).expect("removed");
    assert_eq!(errno(fs::remove_dir(mount.path("implied"))), libc::ENOTEMPTY);
    mount.bucket().remove("implied/g");
    fs::remove_dir(mount.path("implied")).expect("removed");
    assert_eq!(mount.bucket().keys(), Vec::<String>::new());
    // Renames: over another file, into a directory, of a directory.
    fs::create_dir(mount.path("to")).expect("made");
    fs::write(mount.path("a"), "a").expect("written");
    fs::write(mount.path("b"), "b").expect("written");
    let (a, b) = (File::open(mount.path("a")).expect("opened"), File::open(mount.path("b")).expect("opened"));
    let noreplace = rustix::fs::RenameFlags::NOREPLACE;
    let cwd = rustix::fs::CWD;
    let exists = rustix::fs::renameat_with(cwd, mount.path("a"), cwd, mount.path("b"), noreplace);
    assert_eq!(exists, Err(rustix::io::Errno::EXIST));
    let ino = mount.path("a").metadata().expect("there").ino();
    fs::rename(mount.path("a"), mount.path("b")).expect("renamed");
    assert_eq!(mount.path("b").metadata().expect("there").ino(), ino);
    assert_eq!(fs::read(mount.path("b")).expect("read"), b"a");
    let mut read = [0];
    a.read_exact_at(&mut read, 0).expect("the file that was renamed");
    assert_eq!(&read, b"a");
    drop((a, b));
    rustix::fs::renameat_with(cwd, mount.path("b"), cwd, mount.path("to/c"), noreplace).expect("renamed");
    assert_eq!(mount.bucket().keys(), ["to/", "to/c"]);
    assert_eq!(errno(fs::rename(mount.path("to"), mount.path("elsewhere"))), libc::EXDEV);
    assert!(Command::new("mv").arg(mount.path("to")).arg(mount.path("else")).status().expect("mv").success());
    assert_eq!(mount.bucket().keys(), ["else/", "else/c"]);
    // An object of several parts has another ETag as a copy.
    fs::write(mount.path("large"), bytes(2 * PART, 1)).expect("written");
    let large = File::open(mount.path("large")).expect("opened");
    fs::rename(mount.path("large"), mount.path("larger")).expect("renamed");
    let mut read = vec![0; 2 * PART];
    large.read_exact_at(&mut read, 0).expect("the file that was renamed");
    assert!(read == bytes(2 * PART, 1) && fs::read(mount.path("larger")).expect("read") == read);
}

pub fn open_files() {
    let mount = Fixture::of(|bucket| bucket.put("old", "old"), &options());
    // Removed while it is written: nothing becomes visible, and the writer has no error.
    for len in [10, 2 * PART] {
        let mut file = create(&mount.path("f"));
        file.write_all(&bytes(len, 1)).expect("written");
        fs::remove_file(mount.path("f")).expect("removed");
        file.write_all(b"more").expect("taken");
        file.sync_all().expect("nothing to be done");
        drop(file);
        assert_eq!(mount.bucket().keys(), ["old"]);
        assert_eq!(mount.bucket().uploads(), 0);
    }
    let mut file = overwrite(&mount.path("old"));
    file.write_all(b"new").expect("written");
    fs::remove_file(mount.path("old")).expect("removed");
    file.sync_all().expect("nothing to be done");
    drop(file);
    assert_eq!(mount.bucket().keys(), Vec::<String>::new());
    // Renamed while it is written, as editors and downloads do.
    let mut file = create(&mount.path("part"));
    file.write_all(b"begin").expect("written");
    fs::rename(mount.path("part"), mount.path("whole")).expect("renamed");
    assert_eq!(mount.bucket().content("whole").expect("visible"), "begin");
    file.write_all(b" and end").expect("written");
    drop(file);
    assert_eq!(mount.bucket().content("whole").expect("visible"), "begin and end");
    assert_eq!(mount.bucket().keys(), ["whole"]);
    assert_eq!(mount.path("whole").metadata().expect("there").len(), 13);
    // Replaced by a rename while it is written.
    let mut file = create(&mount.path("victim"));
    file.write_all(b"lost").expect("written");
    fs::rename(mount.path("whole"), mount.path("victim")).expect("renamed");
    file.sync_all().expect("nothing to be done");
    drop(file);
    assert_eq!(mount.bucket().content("victim").expect("visible"), "begin and end");
    assert!(within(Duration::from_secs(5), || mount.handle().figures().writing == 0));
}

/// A file with O_CLOEXEC is closed in execve(2), while the kernel holds locks that some files of /proc wait for.
pub fn executed() {
    let mount = Fixture::of(|_| {}, &options());
    let mut file = create(&mount.path("f"));
    file.write_all(b"before").expect("written");
    let (done, is_done) = std::sync::mpsc::channel();
    std::thread::spawn(move || done.send(Command::new("true").status().expect("true").success()));
    // A mount that hangs is ended by the fixture.
    assert_eq!(is_done.recv_timeout(Duration::from_secs(20)), Ok(true));
    file.write_all(b" after").expect("written");
    drop(file);
    assert_eq!(mount.bucket().content("f").expect("visible"), "before after");
}

/// The kernel sends RELEASE after close(2) has returned, so a rename may come in its middle. One thread runs all tasks: the
/// release gets as far as its first wait, for the abort of an upload, before the other change begins.
pub fn changed_at_its_close() {
    use fuse3::raw::{Filesystem, Request};
    let request = Request { unique: 1, uid: 0, gid: 0, pid: std::process::id() };
    let served = Served::new();
    let fs = uvfs_object::ObjectFs::new(served.operator(), "", &options()).expect("tables");
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.expect("a runtime").block_on(async {
        for is_rename in [true, false] {
            let published = bytes(2 * PART, 1);
            let flags = (libc::O_CREAT | libc::O_WRONLY) as u32;
            let made = fs.create(request, 1, "f".as_ref(), 0o644, flags).await.expect("made");
            let (ino, fh) = (made.attr.ino, made.fh);
            fs.write(request, ino, fh, 0, &published, 0, 0).await.expect("written");
            fs.flush(request, ino, fh, 0).await.expect("published");
            let end = published.len() as u64;
            fs.write(request, ino, fh, end, &bytes(PART, 2), 0, 0).await.expect("written");
            assert_eq!(served.bucket.uploads(), 1);
            fs.release(request, ino, fh, 0, 0, false).await.expect("closed");
            tokio::task::yield_now().await;
            assert_eq!(fs.handle().figures().writing, 1, "its end waits for the store");
            let changed = if is_rename {
                fs.rename(request, 1, "f".as_ref(), 1, "g".as_ref()).await
            } else {
                let set = fuse3::SetAttr { size: Some(end), ..fuse3::SetAttr::default() };
                fs.setattr(request, ino, None, set).await.map(drop)
            };
            changed.expect("the writer has ended");
            let name = if is_rename { "g" } else { "f" };
            assert!(served.bucket.content(name).expect("visible") == published);
            assert_eq!((served.bucket.uploads(), fs.handle().figures().writing), (0, 0));
        }
    });
}

pub fn killed() {
    let mount = Fixture::of(|bucket| bucket.put("old", "old"), &options());
    for (name, len) in [("new", 1000), ("large", 2 * PART), ("old", 1000)] {
        let script = format!("head -c {len} /dev/zero >&3; echo ready; read never");
        let mut child = Command::new("bash")
            .args(["-c", &format!("exec 3> {name}; {script}")])
            .current_dir(mount.path(""))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("bash");
        let mut ready = [0; 6];
        child.stdout.take().expect("a pipe").read_exact(&mut ready).expect("ready");
        child.kill().expect("killed");
        assert_eq!(child.wait().expect("ended").signal(), Some(libc::SIGKILL));
        assert!(within(Duration::from_secs(10), || mount.handle().figures().writing == 0), "{name}");
        assert_eq!(mount.bucket().uploads(), 0);
    }
    // head(1) was not killed: what it has closed is published, as a shell's children do.
    let _ = mount.bucket().content("new");
    // One process, whose file is half written.
    for (name, len) in [("one", 1000), ("two", 2 * PART)] {
        let python = format!(
            "import os,sys\nf=os.open('{name}',os.O_WRONLY|os.O_CREAT|os.O_TRUNC)\nos.write(f,b'x'*{len})\nprint('ready',flush=True)\nsys.stdin.read()"
        );
        let mut child = Command::new("python3")
            .args(["-c", &python])
            .current_dir(mount.path(""))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("python3");
        let mut ready = [0; 6];
        child.stdout.take().expect("a pipe").read_exact(&mut ready).expect("ready");
        child.kill().expect("killed");
        child.wait().expect("ended");
        assert!(within(Duration::from_secs(10), || mount.handle().figures().writing == 0), "{name}");
        assert_eq!(mount.bucket().content(name), None);
        assert_eq!(mount.bucket().uploads(), 0);
        assert!(!mount.path(name).exists());
    }
}

pub fn bounded() {
    let served = Served::new();
    // A quarter of it is for data: 40 MiB, and a file of several parts takes 15 at least.
    let options = ObjectOptions { memory: 160 << 20, ..options() };
    let mount = Fixture::new(served, "", &options);
    std::thread::scope(|scope| {
        for seed in 0..6 {
            let path = mount.path(&format!("f{seed}"));
            scope.spawn(move || {
                let mut file = create(&path);
                bytes(4 * PART, seed).chunks(100_000).for_each(|part| file.write_all(part).expect("written"));
            });
        }
    });
    for seed in 0..6 {
        assert!(mount.bucket().content(&format!("f{seed}")).expect("visible") == bytes(4 * PART, seed));
    }
    let (now, most) = mount.handle().figures().data;
    assert!(now == 0 && most <= (40 + 15) << 20, "{now} {most}");
    // One thread that fills more files than fit is told so, and has lost nothing.
    let files: Vec<_> = (0..12).map(|n| create(&mount.path(&format!("slow{n}")))).collect();
    let mut full = 0;
    for file in &files {
        let written = (&*file).write_all(&vec![1; PART - 1]);
        full += usize::from(written.is_err_and(|error| error.raw_os_error() == Some(libc::ENOMEM)));
        if full == 1 {
            break;
        }
    }
    assert!(full == 1, "the bound is kept");
    drop(files);
    assert!(within(Duration::from_secs(5), || mount.handle().figures().data.0 == 0));
}

pub fn unmounted() {
    let mount = Fixture::of(|_| {}, &options());
    let mut file = create(&mount.path("f"));
    file.write_all(&bytes(2 * PART, 1)).expect("written");
    assert_eq!(mount.bucket().uploads(), 1);
    let (served, dir) = mount.end();
    assert_eq!(served.bucket.uploads(), 0);
    assert_eq!(served.bucket.keys(), Vec::<String>::new());
    assert!(file.write_all(b"x").is_err());
    drop((file, dir));
}

/// Whether two trees have the same names and contents. (Empty directories are not git's.)
fn same(one: &Path, other: &Path) -> bool {
    Command::new("diff")
        .args(["-r", "-x", "empty"])
        .arg(one)
        .arg(other)
        .stdout(Stdio::null())
        .status()
        .expect("diff")
        .success()
}

pub fn programs() {
    let mount = Fixture::of(|_| {}, &options());
    let host = tempfile::tempdir().expect("a directory");
    let source = host.path().join("source");
    fs::create_dir_all(source.join("a/b/empty")).expect("made");
    for n in 0..40 {
        fs::write(source.join(format!("a/f{n}")), bytes(n * 999, n as u64)).expect("written");
    }
    fs::write(source.join("a/b/large"), bytes(3 * PART, 7)).expect("written");
    let run = |program: &str, args: &[&str]| {
        let done = Command::new(program).args(args).current_dir(host.path()).output().expect("it runs");
        assert!(done.status.success(), "{program} {args:?}: {}", String::from_utf8_lossy(&done.stderr));
    };
    let to = |name: &str| mount.path(name).into_os_string().into_string().expect("text");
    run("cp", &["-a", "source", &to("copied")]);
    assert!(same(&source, &mount.path("copied")) && mount.path("copied/a/b/empty").is_dir());
    run("tar", &["-cf", "all.tar", "source"]);
    run("tar", &["-xf", "all.tar", "-C", &to("")]);
    assert!(same(&source, &mount.path("source")));
    run("tar", &["-cf", &to("own.tar"), "source"]);
    run("cmp", &["all.tar", &to("own.tar")]);
    run("rm", &["-r", &to("copied"), &to("source")]);
    assert_eq!(mount.bucket().keys(), ["own.tar"]);
    if Command::new("git").arg("--version").output().is_ok() {
        let git = |args: &[&str]| {
            let name = ["-c", "user.name=t", "-c", "user.email=t@t"];
            run("git", &[&name[..], args].concat());
        };
        git(&["init", "-q", "source"]);
        git(&["-C", "source", "add", "."]);
        git(&["-C", "source", "commit", "-qm", "one"]);
        git(&["clone", "-q", "--no-local", "source", &to("clone")]);
        git(&["-C", &to("clone"), "fsck", "--strict"]);
        git(&["-C", &to("clone"), "status"]);
        assert!(same(&source.join("a"), &mount.path("clone/a")));
        fs::write(mount.path("clone/a/f1"), "changed").expect("written");
        git(&["-C", &to("clone"), "commit", "-qam", "two"]);
        git(&["-C", &to("clone"), "gc", "-q"]);
        git(&["-C", &to("clone"), "fsck", "--strict"]);
    }
    assert_eq!(mount.bucket().uploads(), 0);
}
