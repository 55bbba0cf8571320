//! The cache on a disk.

use std::fs::{self, File};
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use uvfs_object::{ObjectFs, ObjectOptions};

use crate::fixture::{Fixture, Served, bytes, options, within};

const CHUNK: usize = 128 << 10;

fn with(dir: &Path, size: u64) -> ObjectOptions {
    ObjectOptions { cache_dir: Some(dir.to_owned()), cache_size: size, ..options() }
}

/// Files of entries, and their bytes on the disk.
fn entries(dir: &Path) -> Vec<(PathBuf, u64)> {
    let all = fs::read_dir(dir).expect("a directory").map(|entry| entry.expect("an entry").path());
    let all = all.filter(|path| path.file_name().is_some_and(|name| name.len() == 64));
    all.map(|path| (path.clone(), path.metadata().map_or(0, |meta| meta.blocks() * 512))).collect()
}

fn kept(mount: &Fixture, dir: &Path, files: usize) -> bool {
    within(Duration::from_secs(10), || {
        entries(dir).len() == files && mount.handle().figures().disk_bytes != 0
    })
}

pub fn restart() {
    let host = tempfile::tempdir().expect("a directory");
    let dir = host.path().join("cache");
    let served = Served::new();
    let len = 8 * CHUNK + 77;
    served.bucket.put("large", bytes(len, 1));
    served.bucket.put("small", "old");
    let mount = Fixture::new(served, "", &with(&dir, 1 << 30));
    assert_eq!(dir.metadata().expect("made").mode() & 0o7777, 0o700);
    assert!(fs::read(mount.path("large")).expect("read") == bytes(len, 1));
    assert_eq!(fs::read(mount.path("small")).expect("read"), b"old");
    assert!(kept(&mount, &dir, 9 + 1), "{:?}", entries(&dir).len());
    // Nobody else may use it meanwhile.
    let refused = ObjectFs::new(mount.served.operator(), "", &with(&dir, 1 << 30)).expect_err("in use");
    assert!(refused.to_string().ends_with("another mount uses it"), "{refused}");
    let (served, _dir) = mount.end();
    fs::write(dir.join("tmp-7"), "half").expect("written");
    fs::write(dir.join("notes"), "mine").expect("written");
    let mount = Fixture::new(served, "", &with(&dir, 1 << 30));
    assert!(!dir.join("tmp-7").exists() && dir.join("notes").exists());
    // Another mount reads without the store, but for the question which version it has.
    mount.bucket().take_requests();
    assert!(fs::read(mount.path("large")).expect("read") == bytes(len, 1));
    let requests = mount.bucket().take_requests();
    assert_eq!((requests.gets, requests.heads), (0, 1));
    // A new version is seen at the next open.
    mount.bucket().put("small", "newer");
    assert_eq!(fs::read(mount.path("small")).expect("read"), b"newer");
}

pub fn damaged() {
    let host = tempfile::tempdir().expect("a directory");
    let (len, mut served) = (6 * CHUNK, Served::new());
    served.bucket.put("f", bytes(len, 1));
    let damages: [fn(&Path); 4] = [
        |path| {
            let file = File::options().read(true).write(true).open(path).expect("an entry");
            let mut byte = [0];
            file.read_exact_at(&mut byte, 5000).expect("read");
            file.write_all_at(&[byte[0] ^ 1], 5000).expect("written");
        },
        |path| File::options().write(true).open(path).expect("an entry").set_len(1000).expect("torn"),
        |path| File::options().write(true).open(path).expect("an entry").set_len(1 << 20).expect("longer"),
        |path| fs::remove_file(path).expect("removed"),
    ];
    for damage in damages {
        let mount = Fixture::new(served, "", &with(host.path(), 1 << 30));
        assert!(fs::read(mount.path("f")).expect("read") == bytes(len, 1));
        assert!(kept(&mount, host.path(), 6));
        let (again, _dir) = mount.end();
        entries(host.path()).iter().for_each(|(path, _)| damage(path));
        let mount = Fixture::new(again, "", &with(host.path(), 1 << 30));
        assert!(fs::read(mount.path("f")).expect("read") == bytes(len, 1));
        // Fetched again, and kept.
        assert!(mount.bucket().take_requests().gets > 0);
        assert!(kept(&mount, host.path(), 6));
        (served, _) = mount.end();
    }
    // Entries of another name are not this one's.
    let all = entries(host.path());
    fs::rename(&all[0].0, &all[1].0).expect("renamed");
    let mount = Fixture::new(served, "", &with(host.path(), 1 << 30));
    assert!(fs::read(mount.path("f")).expect("read") == bytes(len, 1));
}

pub fn bounded() {
    let host = tempfile::tempdir().expect("a directory");
    let served = Served::new();
    (0..12).for_each(|n| served.bucket.put(&format!("f{n}"), bytes(4 * CHUNK, n)));
    let size = 2 << 20;
    let mount = Fixture::new(served, "", &with(host.path(), size));
    let used = || entries(host.path()).iter().map(|(_, bytes)| bytes).sum::<u64>();
    std::thread::scope(|scope| {
        for reader in 0..4u64 {
            let mount = &mount;
            scope.spawn(move || {
                for n in 0..12 {
                    let n = (n + reader * 3) % 12;
                    assert!(fs::read(mount.path(&format!("f{n}"))).expect("read") == bytes(4 * CHUNK, n));
                    assert!(mount.handle().figures().disk_bytes <= size);
                }
            });
        }
    });
    assert!(within(Duration::from_secs(10), || used() <= size));
    assert!(used() > size / 2, "{}", used());
    // A smaller bound removes entries at start.
    let (served, _dir) = mount.end();
    let mount = Fixture::new(served, "", &with(host.path(), size / 4));
    assert!(used() <= size / 4 && mount.handle().figures().disk_bytes <= size / 4);
}

pub fn refused() {
    let host = tempfile::tempdir().expect("a directory");
    let served = Served::new();
    let said = |dir: &Path| {
        ObjectFs::new(served.operator(), "", &with(dir, 1 << 20)).expect_err("refused").to_string()
    };
    let open = host.path().join("open");
    fs::create_dir(&open).expect("made");
    fs::set_permissions(&open, fs::Permissions::from_mode(0o777)).expect("changed");
    assert!(said(&open).contains("other users may write it"));
    std::os::unix::fs::symlink(host.path(), host.path().join("link")).expect("made");
    assert!(said(&host.path().join("link")).ends_with("it is no directory"));
    assert!(said(&host.path().join("no/such")).contains("No such file"));
}

/// A disk without room: a tmpfs of a few pages. Only root can mount one.
pub fn full() {
    if !rustix::process::geteuid().is_root() {
        return;
    }
    let host = tempfile::tempdir().expect("a directory");
    let tmpfs = |args: &[&str]| Command::new(args[0]).args(&args[1..]).arg(host.path()).status();
    let mounted = tmpfs(&["mount", "-t", "tmpfs", "-o", "size=300k,mode=700", "tmpfs"]).expect("mount(8)");
    assert!(mounted.success());
    let served = Served::new();
    served.bucket.put("f", bytes(8 * CHUNK, 1));
    let mount = Fixture::new(served, "", &with(host.path(), 1 << 30));
    for _ in 0..2 {
        assert!(fs::read(mount.path("f")).expect("a full disk is no error") == bytes(8 * CHUNK, 1));
    }
    assert!(entries(host.path()).len() <= 2);
    drop(mount);
    assert!(tmpfs(&["umount"]).expect("umount(8)").success());
}
