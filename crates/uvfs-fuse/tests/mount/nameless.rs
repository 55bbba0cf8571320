//! Files without a name (O_TMPFILE), on mounts and on the kernel's own tmpfs.

use std::fs::{self, File, Permissions};
use std::io::{Read, Seek, Write};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use rustix::fs::{AtFlags, CWD, Mode, OFlags, linkat, open, openat};
use rustix::process::Uid;
use rustix::thread::set_thread_res_uid;
use uvfs_drivers::mirror::{DEFAULT_TTL, Mirror};
use uvfs_drivers::tmpfs::{Tmpfs, TmpfsOptions};
use uvfs_fuse::Options;

use crate::Test;
use crate::fixture::{Fixture, Needs, drop_caches, within};

pub const TESTS: &[Test] = &[
    ("nameless_files_are_as_on_the_hosts_tmpfs", Needs::Root, as_on_the_hosts_tmpfs),
    ("nameless_files_of_a_mirror_are_the_hosts", Needs::Root, of_a_mirror),
    ("a_nameless_file_is_gone_with_its_last_user", Needs::Root, gone_with_its_last_user),
    ("who_may_add_no_name_gets_no_nameless_file", Needs::Root, who_may_add_no_name),
    ("drivers_without_nameless_files_say_so", Needs::Mount, drivers_without),
];

/// The host's own tmpfs.
const HOST: &str = "/dev/shm";

fn nameless(dir: &Path, flags: OFlags, mode: u32) -> rustix::io::Result<OwnedFd> {
    open(dir, OFlags::TMPFILE | flags | OFlags::CLOEXEC, Mode::from_raw_mode(mode))
}

fn link(file: &impl AsFd, to: &Path) -> rustix::io::Result<()> {
    let way = format!("/proc/self/fd/{}", file.as_fd().as_raw_fd());
    linkat(CWD, way, CWD, to, AtFlags::SYMLINK_FOLLOW)
}

/// The observable properties of files without names in `dir`, one per line.
fn observe(dir: &Path) -> Vec<String> {
    let mut seen = Vec::new();
    let mut note = |what: &str, is: &dyn std::fmt::Debug| seen.push(format!("{what}: {is:?}"));
    let shape = |file: &File| {
        let meta = file.metadata().expect("fstat");
        (format!("{:o}", meta.mode()), meta.nlink(), meta.len(), meta.uid(), meta.gid())
    };
    fs::set_permissions(dir, Permissions::from_mode(0o2755)).expect("chmod");
    chown(dir, None, Some(7)).expect("chown");
    let times =
        |dir: &Path| fs::metadata(dir).map(|meta| (meta.mtime_nsec(), meta.ctime_nsec())).expect("stat");
    let before = times(dir);

    // The maker's access is not checked against the mode; the group is the directory's.
    let mut file = File::from(nameless(dir, OFlags::RDWR, 0o4040).expect("O_TMPFILE"));
    note("made", &shape(&file));
    file.write_all(b"without a name").expect("write");
    note("entries", &fs::read_dir(dir).expect("opendir").count());
    note("directory unchanged", &(times(dir) == before));
    note("linked", &link(&file, &dir.join("a")));
    note("named", &shape(&file));
    note("linked again", &link(&file, &dir.join("b")));
    note("over a name", &link(&file, &dir.join("a")));
    note("content", &fs::read(dir.join("b")).expect("read"));
    note(
        "same",
        &(fs::metadata(dir.join("a")).expect("stat").ino() == file.metadata().expect("fstat").ino()),
    );
    for name in ["a", "b"] {
        fs::remove_file(dir.join(name)).expect("unlink");
    }
    note("names gone", &shape(&file));
    note("linked after that", &link(&file, &dir.join("c")));
    file.rewind().expect("lseek");
    let mut content = Vec::new();
    file.read_to_end(&mut content).expect("read");
    note("still there", &content);

    let exclusive = nameless(dir, OFlags::WRONLY | OFlags::EXCL, 0o600).expect("O_TMPFILE and O_EXCL");
    note("linked though exclusive", &link(&exclusive, &dir.join("d")));
    note("to read", &nameless(dir, OFlags::RDONLY, 0o600).err());
    fs::write(dir.join("file"), "").expect("write");
    note("in a file", &nameless(&dir.join("file"), OFlags::RDWR, 0o600).err());
    fs::remove_file(dir.join("file")).expect("unlink");
    note("in nothing", &nameless(&dir.join("none"), OFlags::RDWR, 0o600).err());

    // A removed directory still belongs to a file system.
    fs::create_dir(dir.join("gone")).expect("mkdir");
    let gone = File::open(dir.join("gone")).expect("open");
    fs::remove_dir(dir.join("gone")).expect("rmdir");
    let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
    let file = openat(&gone, ".", flags, Mode::from_raw_mode(0o600));
    note("in a removed directory", &file.as_ref().map(|_| ()));
    note("its first name", &file.map(|file| link(&file, &dir.join("e"))));
    note(
        "names",
        &fs::read_dir(dir).expect("opendir").map(|e| e.expect("entry").file_name()).collect::<Vec<_>>(),
    );
    seen
}

fn assert_as_on_the_host(dir: &Path) {
    let host = tempfile::tempdir_in(HOST).expect("a directory in the host's tmpfs");
    assert_eq!(observe(dir), observe(host.path()));
}

fn as_on_the_hosts_tmpfs() {
    for timeout in [None, Some(Duration::ZERO)] {
        let mnt = Fixture::tmpfs_with(|options| options.timeout = timeout);
        assert_as_on_the_host(&mnt);
    }
}

fn of_a_mirror() {
    let source = tempfile::tempdir_in(HOST).expect("a directory in the host's tmpfs");
    let driver = Mirror::new(source.path(), DEFAULT_TTL).expect("a mirror");
    let mut options = Options::default();
    (options.allow_other, options.suid) = (true, true);
    let mnt = Fixture::new(driver, &options);
    assert_as_on_the_host(&mnt);
    let file = nameless(&mnt, OFlags::RDWR, 0o600).expect("O_TMPFILE");
    rustix::io::write(&file, b"seen there").expect("write");
    link(&file, &mnt.path("name")).expect("link");
    assert_eq!(fs::read(source.path().join("name")).expect("read"), b"seen there");
}

fn gone_with_its_last_user() {
    let driver = Tmpfs::new(TmpfsOptions::default()).expect("a tmpfs");
    let mnt = Fixture::new(Arc::clone(&driver) as _, &Options::default());
    let before = driver.usage();
    let file = nameless(&mnt, OFlags::RDWR, 0o600).expect("O_TMPFILE");
    rustix::io::write(&file, &[1; 10_000]).expect("write");
    assert_eq!(driver.usage().inodes, before.inodes + 1);
    assert!(driver.usage().bytes >= before.bytes + 10_000);
    // A user that reaches it in another way keeps it.
    let again = File::open(format!("/proc/self/fd/{}", file.as_raw_fd())).expect("open once more");
    drop(file);
    assert_eq!(again.metadata().expect("fstat").len(), 10_000);
    drop(again);
    let gone = within(Duration::from_secs(10), || {
        drop_caches();
        (driver.usage().inodes, driver.usage().bytes) == (before.inodes, before.bytes)
    });
    assert!(gone, "{:?}, before {before:?}", driver.usage());
}

/// Acts as another user; only this thread changes.
fn as_user<R>(uid: u32, act: impl FnOnce() -> R) -> R {
    set_thread_res_uid(None, Uid::from_raw(uid), Uid::ROOT).expect("setresuid");
    let outcome = act();
    set_thread_res_uid(None, Uid::ROOT, Uid::ROOT).expect("setresuid");
    outcome
}

fn who_may_add_no_name() {
    let mnt = Fixture::tmpfs();
    fs::create_dir(mnt.path("mine")).expect("mkdir");
    for (mode, expected) in [(0o755, Some(rustix::io::Errno::ACCESS)), (0o777, None)] {
        fs::set_permissions(mnt.path("mine"), Permissions::from_mode(mode)).expect("chmod");
        let outcome = as_user(1000, || nameless(&mnt.path("mine"), OFlags::RDWR, 0o600));
        assert_eq!(outcome.as_ref().err(), expected.as_ref(), "{mode:o}");
        if let Ok(file) = outcome {
            let meta = File::from(file).metadata().expect("fstat");
            assert_eq!((meta.uid(), meta.nlink()), (1000, 0));
        }
    }
}

fn drivers_without() {
    let tree =
        uvfs_drivers::kernfs::Kernfs::new(uvfs_drivers::kernfs::KernfsOptions::default()).expect("a tree");
    let mnt = Fixture::new(tree.view(None), &Options::default());
    let outcome = nameless(&mnt, OFlags::RDWR, 0o600);
    assert_eq!(outcome.err(), Some(rustix::io::Errno::OPNOTSUPP));
}
