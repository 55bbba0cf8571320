//! Calls through the mirror take effect on the host, and the answers are the host's.

use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt, symlink};
use std::time::Duration;

use uvfs::{Access, Cred, Errno, Fallocate, OpenFlags, RenameFlags, Seek, SetTime, Time, XattrFlags, mode};

use crate::{Fs, is_root};

const RW: OpenFlags = OpenFlags::READ.union(OpenFlags::WRITE);

#[test]
fn what_is_made_is_on_the_host() {
    let fs = Fs::new();
    let me = fs.vfs.context(Cred::root());
    me.mkdir(b"/dir", 0o750).unwrap();
    let file = me.open(b"/dir/file", RW | OpenFlags::CREATE | OpenFlags::EXCL, 0o640).unwrap();
    assert_eq!(file.write_at(b"hello", 3).unwrap(), 5);
    me.symlink(b"../outside", b"/link").unwrap();
    me.mknod(b"/fifo", mode::S_IFIFO | 0o600, 0).unwrap();
    assert_eq!(fs::read(fs.src("dir/file")).unwrap(), b"\0\0\0hello");
    assert_eq!(fs::metadata(fs.src("dir")).unwrap().permissions().mode() & 0o7777, 0o750);
    assert_eq!(fs::metadata(fs.src("dir/file")).unwrap().permissions().mode() & 0o7777, 0o640);
    assert_eq!(fs::read_link(fs.src("link")).unwrap().as_os_str().as_bytes(), b"../outside");
    assert!(fs::metadata(fs.src("fifo")).unwrap().file_type().is_fifo());
    assert_eq!(me.readlink(b"/link").unwrap(), b"../outside");
    me.unlink(b"/dir/file").unwrap();
    me.rmdir(b"/dir").unwrap();
    assert!(!fs.src("dir").exists());
    let mut buf = [0; 8];
    assert_eq!(file.read_at(&mut buf, 0).unwrap(), 8);
    assert_eq!(&buf[3..], b"hello");
    file.set_len(4).unwrap();
    assert_eq!((file.attr().unwrap().size, file.attr().unwrap().nlink), (4, 0));
}

#[test]
fn attributes_are_those_of_the_host() {
    let fs = Fs::new();
    fs::write(fs.src("file"), b"12345").unwrap();
    let me = fs.vfs.context(Cred::root());
    me.chmod(b"/file", 0o604).unwrap();
    let at = SetTime::At(Time::new(1_000_000, 7));
    me.utimens(b"/file", Some(at), Some(SetTime::At(Time::new(-5, 999_999_999)))).unwrap();
    me.truncate(b"/file", 3).unwrap();
    me.utimens(b"/file", None, Some(SetTime::At(Time::new(-5, 999_999_999)))).unwrap();
    let (ours, hosts) = (me.stat(b"/file").unwrap(), fs::metadata(fs.src("file")).unwrap());
    assert_eq!((ours.size, ours.mode, u64::from(ours.nlink)), (3, hosts.mode(), hosts.nlink()));
    assert_eq!((ours.ino, ours.uid, ours.gid), (hosts.ino(), hosts.uid(), hosts.gid()));
    assert_eq!((ours.atime, ours.mtime), (Time::new(1_000_000, 7), Time::new(-5, 999_999_999)));
    assert_eq!(ours.ctime, Time::new(hosts.ctime(), hosts.ctime_nsec() as u32));
    assert_eq!(ours.blocks, hosts.blocks());
    symlink("file", fs.src("link")).unwrap();
    me.lutimens(b"/link", None, Some(SetTime::At(Time::new(77, 0)))).unwrap();
    assert_eq!(fs::symlink_metadata(fs.src("link")).unwrap().mtime(), 77);
    assert_eq!(me.lstat(b"/link").unwrap().mtime, Time::new(77, 0));
    assert_eq!(me.stat(b"/file").unwrap().mtime, Time::new(-5, 999_999_999));
    assert!(me.statfs(b"/").unwrap().blocks > 0);
}

#[test]
fn a_truncation_to_the_same_size_is_a_change() {
    let fs = Fs::new();
    fs::write(fs.src("file"), b"12345").unwrap();
    let me = fs.vfs.context(Cred::root());
    me.utimens(b"/file", None, Some(SetTime::At(Time::new(5, 0)))).unwrap();
    me.open(b"/file", RW | OpenFlags::TRUNC, 0).unwrap();
    me.utimens(b"/file", None, Some(SetTime::At(Time::new(5, 0)))).unwrap();
    me.open(b"/file", RW | OpenFlags::TRUNC, 0).unwrap();
    assert!(me.stat(b"/file").unwrap().mtime > Time::new(5, 0));
}

#[test]
fn renames_are_the_hosts() {
    let fs = Fs::with_ttl(Duration::from_secs(3600));
    let me = fs.vfs.context(Cred::root());
    let read = |name: &str| fs::read_to_string(fs.src(name)).ok();
    for (from, to, flags, want) in [
        ("a", "new", RenameFlags::empty(), Ok(())),
        ("a", "b", RenameFlags::empty(), Ok(())),
        ("a", "b", RenameFlags::NOREPLACE, Err(Errno::EXIST)),
        ("a", "b", RenameFlags::EXCHANGE, Ok(())),
        ("a", "new", RenameFlags::EXCHANGE, Err(Errno::NOENT)),
        ("a", "dir", RenameFlags::empty(), Err(Errno::ISDIR)),
        ("dir", "a", RenameFlags::empty(), Err(Errno::NOTDIR)),
        ("dir", "full", RenameFlags::empty(), Err(Errno::NOTEMPTY)),
        ("full", "dir", RenameFlags::empty(), Ok(())),
        ("dir", "a", RenameFlags::EXCHANGE, Ok(())),
        ("full", "full/sub/x", RenameFlags::empty(), Err(Errno::INVAL)),
        ("full/sub", "full", RenameFlags::empty(), Err(Errno::NOTEMPTY)),
        ("full/sub", "dir/sub", RenameFlags::empty(), Ok(())),
        ("full/sub", "full/dir", RenameFlags::EXCHANGE, Err(Errno::NOENT)),
    ] {
        for name in ["a", "b", "new", "dir", "full"] {
            let _ = fs::remove_dir_all(fs.src(name));
            let _ = fs::remove_file(fs.src(name));
        }
        fs::write(fs.src("a"), "a").unwrap();
        fs::write(fs.src("b"), "b").unwrap();
        fs::create_dir(fs.src("dir")).unwrap();
        fs::create_dir_all(fs.src("full/sub/below")).unwrap();
        fs.mirror.all_suspect();
        // Known, and believed for long.
        for entry in ["", "full", "full/sub"] {
            for child in me.readdir(format!("/{entry}").as_bytes()).unwrap() {
                let name = String::from_utf8_lossy(&child.name).into_owned();
                me.lstat(format!("/{entry}/{name}").as_bytes()).unwrap();
            }
        }
        let paths = (format!("/{from}"), format!("/{to}"));
        let got = me.rename(paths.0.as_bytes(), paths.1.as_bytes(), flags);
        assert_eq!(got, want, "{from} to {to}, {flags:?}");
        if got.is_err() {
            continue;
        }
        for name in [from, to, "full/sub/below", "dir/sub/below"] {
            let ours = me.lstat(format!("/{name}").as_bytes()).ok();
            let hosts = fs::symlink_metadata(fs.src(name)).ok();
            assert_eq!(
                ours.map(|a| (a.ino, u64::from(a.nlink))),
                hosts.map(|m| (m.ino(), m.nlink())),
                "{name} after {from} to {to}, {flags:?}"
            );
        }
        if from == "a" && to == "b" && flags == RenameFlags::EXCHANGE {
            assert_eq!((read("a"), read("b")), (Some("b".into()), Some("a".into())));
        }
    }
}

#[test]
fn what_is_appended_goes_to_the_end_on_the_host() {
    let fs = Fs::with_ttl(Duration::from_secs(3600));
    fs::write(fs.src("log"), b"one ").unwrap();
    let me = fs.vfs.context(Cred::root());
    let file = me.open(b"/log", RW | OpenFlags::APPEND, 0).unwrap();
    fs::write(fs.src("log"), b"longer than it was ").unwrap();
    file.write_at(b"end", 0).unwrap();
    assert_eq!(fs::read(fs.src("log")).unwrap(), b"longer than it was end");
    assert_eq!(file.attr().unwrap().size, 22);
}

/// A directory that was made through the mirror is known to have no other names, however many are made in it.
#[test]
fn the_host_is_not_asked_for_names_in_a_directory_of_our_own() {
    let Some(fs) = Fs::watched() else { return };
    let op = fs.root_op();
    for attempt in 0..20 {
        // Other tests change the same file system. Once events are lost, nothing is known.
        let lost = fs.mirror.seen().overflows;
        let name = format!("dir{attempt}");
        let (dir, _) = fs.vfs.mkdir(&op, &fs.vfs.root(), name.as_bytes(), 0o755).unwrap();
        let asked = (0..1000).find(|file| {
            let name = format!("made{file}");
            let (_, _, handle) = fs.vfs.create(&op, &dir, name.as_bytes(), 0o644, Access::WRITE).unwrap();
            fs.vfs.release(handle);
            fs.vfs.unlink(&op, &dir, name.as_bytes()).unwrap();
            let before = fs.mirror.operations();
            assert!(matches!(fs.vfs.lookup(&op, &dir, b"other"), Ok(uvfs::Found::Absent(_))));
            fs.mirror.operations() != before
        });
        if fs.mirror.seen().overflows == lost {
            assert_eq!(asked, None, "the host was asked");
            return;
        }
    }
    println!(
        "skipped: the_host_is_not_asked_for_names_in_a_directory_of_our_own: events are lost all the time"
    );
}

#[test]
fn a_name_that_exists_on_the_host_is_not_made_again() {
    let fs = Fs::with_ttl(Duration::from_secs(3600));
    let me = fs.vfs.context(Cred::root());
    assert_eq!(me.stat(b"/late").unwrap_err(), Errno::NOENT);
    fs::write(fs.src("late"), b"the host's").unwrap();
    let made = me.open(b"/late", RW | OpenFlags::CREATE | OpenFlags::EXCL, 0o600);
    assert_eq!(made.map(|_| ()).unwrap_err(), Errno::EXIST);
    // And it is known from then on.
    assert_eq!(me.stat(b"/late").unwrap().size, 10);
    assert_eq!(fs::read(fs.src("late")).unwrap(), b"the host's");
}

#[test]
fn a_directory_that_was_emptied_on_the_host_can_be_removed() {
    let fs = Fs::with_ttl(Duration::from_secs(3600));
    fs::create_dir_all(fs.src("dir/sub")).unwrap();
    fs::write(fs.src("dir/sub/file"), b"").unwrap();
    let me = fs.vfs.context(Cred::root());
    me.stat(b"/dir/sub/file").unwrap();
    assert_eq!(me.rmdir(b"/dir/sub").unwrap_err(), Errno::NOTEMPTY);
    fs::remove_file(fs.src("dir/sub/file")).unwrap();
    me.rmdir(b"/dir/sub").unwrap();
    me.rmdir(b"/dir").unwrap();
    assert!(!fs.src("dir").exists());
}

#[test]
fn holes_and_space_are_the_hosts() {
    let fs = Fs::new();
    let me = fs.vfs.context(Cred::root());
    let file = me.open(b"/sparse", RW | OpenFlags::CREATE, 0o600).unwrap();
    file.write_at(b"x", 1 << 20).unwrap();
    let host = fs::metadata(fs.src("sparse")).unwrap();
    assert_eq!((file.attr().unwrap().size, file.attr().unwrap().blocks), (host.len(), host.blocks()));
    assert_eq!(file.seek(0, Seek::Hole).unwrap(), 0);
    assert_eq!(file.seek(1 << 21, Seek::Data).unwrap_err(), Errno::NXIO);
    match file.fallocate(Fallocate::Allocate { keep_size: false }, 0, 2 << 20) {
        Ok(()) => assert_eq!(fs::metadata(fs.src("sparse")).unwrap().len(), 2 << 20),
        Err(errno) => assert_eq!(errno, Errno::OPNOTSUPP),
    }
    file.sync(false).unwrap();
}

#[test]
fn extended_attributes_are_the_hosts() {
    let fs = Fs::new();
    fs::write(fs.src("file"), b"").unwrap();
    let me = fs.vfs.context(Cred::root());
    let value = vec![b'v'; 1500];
    match me.setxattr(b"/file", b"user.name", &value, XattrFlags::CREATE) {
        Err(Errno::OPNOTSUPP) => {
            return println!("skipped: no user attributes on the file system of $TMPDIR");
        }
        done => done.unwrap(),
    }
    assert_eq!(me.getxattr(b"/file", b"user.name").unwrap(), value);
    assert_eq!(me.setxattr(b"/file", b"user.name", b"", XattrFlags::CREATE).unwrap_err(), Errno::EXIST);
    assert!(me.listxattr(b"/file").unwrap().contains(&b"user.name".to_vec()));
    let mut hosts = vec![0; 4096];
    let len = rustix::fs::getxattr(fs.src("file"), "user.name", &mut hosts[..]).unwrap();
    assert_eq!(hosts[..len], value);
    me.removexattr(b"/file", b"user.name").unwrap();
    assert_eq!(me.getxattr(b"/file", b"user.name").unwrap_err(), Errno::NODATA);
}

#[test]
fn a_large_directory_is_listed_whole_by_several_readers() {
    let fs = Fs::new();
    fs::create_dir(fs.src("dir")).unwrap();
    let names: Vec<String> = (0..3000).map(|i| format!("file number {i}")).collect();
    for name in &names {
        fs::write(fs.src("dir").join(name), b"").unwrap();
    }
    let dir = fs.inode("/dir");
    let op = fs.root_op();
    let list = |step: usize| {
        let (mut all, mut cookie) = (Vec::new(), 0);
        loop {
            let mut taken = 0;
            fs.vfs
                .readdir(&op, &dir, cookie, &mut |entry| {
                    all.push(String::from_utf8(entry.name.to_vec()).unwrap());
                    cookie = entry.cookie;
                    taken += 1;
                    taken < step
                })
                .unwrap();
            if taken < step {
                all.sort_by_key(|name| name.rsplit(' ').next().unwrap().parse::<u32>().unwrap());
                return all;
            }
        }
    };
    std::thread::scope(|scope| {
        let readers: Vec<_> = [1, 7, 24, 5000]
            .map(|step| {
                scope.spawn({
                    let list = &list;
                    move || list(step)
                })
            })
            .into();
        for reader in readers {
            assert_eq!(reader.join().unwrap(), names);
        }
    });
}

/// A front end asks for more entries than its reply has room for, and goes on before the last ones.
#[test]
fn a_listing_in_steps_opens_the_directory_once() {
    let fs = Fs::new();
    fs::create_dir(fs.src("dir")).unwrap();
    for i in 0..3000 {
        fs::write(fs.src("dir").join(format!("file number {i}")), b"").unwrap();
    }
    let (dir, op) = (fs.inode("/dir"), fs.root_op());
    let before = fs.mirror.listings();
    let (mut all, mut cookie) = (std::collections::BTreeSet::new(), 0);
    loop {
        let mut batch = Vec::new();
        fs.vfs
            .readdir(&op, &dir, cookie, &mut |entry| {
                batch.push((entry.name.to_vec(), entry.cookie));
                batch.len() < 24
            })
            .unwrap();
        let Some((_, last)) = batch.get(16).or(batch.last()) else { break };
        cookie = *last;
        all.extend(batch.into_iter().take(17).map(|(name, _)| name));
    }
    assert_eq!(all.len(), 3000);
    assert_eq!(fs.mirror.listings() - before, 1);
}

/// A directory that has the number of one that was listed is not listed from that one's descriptor.
#[test]
fn a_new_directory_of_the_same_name_is_listed_from_its_beginning() {
    let fs = Fs::new();
    let op = fs.root_op();
    for round in 0..20 {
        fs::create_dir(fs.src("dir")).unwrap();
        for i in 0..50 {
            fs::write(fs.src("dir").join(format!("{round} {i}")), b"").unwrap();
        }
        let (mut seen, mut cookie) = (0, 0);
        for step in [10, 1000] {
            let (dir, mut taken) = (fs.inode("/dir"), 0);
            fs.vfs
                .readdir(&op, &dir, cookie, &mut |entry| {
                    assert!(entry.name.starts_with(format!("{round} ").as_bytes()), "{:?}", entry.name);
                    (cookie, seen, taken) = (entry.cookie, seen + 1, taken + 1);
                    taken < step
                })
                .unwrap();
        }
        assert_eq!(seen, 50);
        fs::remove_dir_all(fs.src("dir")).unwrap();
    }
}

#[test]
fn a_mirror_is_mounted_once() {
    let fs = Fs::new();
    let twice = uvfs::Vfs::new(uvfs::VfsConfig::default(), fs.mirror.clone());
    assert_eq!(twice.err(), Some(Errno::BUSY));
}

#[test]
fn paths_longer_than_the_kernel_takes_are_reached() {
    let fs = Fs::new();
    let op = fs.root_op();
    let name = [b'n'; 200];
    let mut dir = fs.vfs.root();
    for _ in 0..60 {
        dir = fs.vfs.mkdir(&op, &dir, &name, 0o755).unwrap().0;
    }
    let (file, _) = fs.vfs.mknod(&op, &dir, b"file", mode::S_IFREG | 0o644, 0).unwrap();
    let handle = fs.vfs.open(&op, &file, Access::WRITE, false).unwrap();
    assert_eq!(fs.vfs.write(&op, handle, 0, b"deep", false, false).unwrap(), 4);
    fs.vfs.release(handle);
    assert_eq!(fs.vfs.getattr(&op, &file).unwrap().size, 4);
}

#[test]
fn a_mount_inside_the_source_is_shown_empty() {
    if !is_root("a_mount_inside_the_source_is_shown_empty") {
        return;
    }
    let fs = Fs::new();
    fs::create_dir(fs.src("mnt")).unwrap();
    fs::write(fs.src("mnt/below"), b"hidden by the mount").unwrap();
    let mounted =
        rustix::mount::mount("none", fs.src("mnt"), "tmpfs", rustix::mount::MountFlags::empty(), None);
    if let Err(error) = mounted {
        return println!("skipped: cannot mount: {error}");
    }
    let made = fs::write(fs.src("mnt/other"), b"on another file system");
    let me = fs.vfs.context(Cred::root());
    let seen = (
        made.is_ok(),
        me.stat(b"/mnt").map(|attr| attr.is_dir()),
        me.readdir(b"/mnt").map(|entries| entries.iter().filter(|e| !e.name.starts_with(b".")).count()),
        me.stat(b"/mnt/other").map(drop),
        me.stat(b"/mnt/below").map(drop),
        me.mkdir(b"/mnt/new", 0o755),
        me.rmdir(b"/mnt"),
        me.rename(b"/mnt", b"/elsewhere", RenameFlags::empty()),
    );
    rustix::mount::unmount(fs.src("mnt"), rustix::mount::UnmountFlags::DETACH).unwrap();
    let busy = Err(Errno::BUSY);
    let want = (true, Ok(true), Ok(0), Err(Errno::NOENT), Err(Errno::NOENT), Err(Errno::ROFS), busy, busy);
    assert_eq!(seen, want);
    assert_eq!(me.stat(b"/mnt/below").unwrap().size, 19);
}
