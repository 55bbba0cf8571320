//! A mirror of a host directory, mounted: in whose name operations run, and changes by the host meanwhile.

use std::fs::{self, OpenOptions, Permissions};
use std::io::{Read, Write};
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, chown, symlink};
use std::path::PathBuf;
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use tempfile::TempDir;
use uvfs::Counted;
use uvfs::counters::DriverCall;
use uvfs_drivers::mirror::{FileHandle, Mirror};
use uvfs_fuse::Options;

use crate::Test;
use crate::fixture::{Fixture, Needs, sh_as, within};
use crate::privileges::CHANGES;

pub const TESTS: &[Test] = &[
    ("mirror_does_on_the_host_what_is_done", Needs::Mount, mirror_does_on_the_host_what_is_done),
    ("mirror_shows_what_the_host_changes", Needs::Mount, mirror_shows_what_the_host_changes),
    ("mirror_appends_to_the_end_on_the_host", Needs::Mount, mirror_appends_to_the_end_on_the_host),
    (
        "mirror_keeps_open_files_that_the_host_removes",
        Needs::Mount,
        mirror_keeps_open_files_that_the_host_removes,
    ),
    ("mirror_clears_set_id_bits_as_the_host", Needs::Root, mirror_clears_set_id_bits_as_the_host),
    ("mirror_makes_what_belongs_to_the_user", Needs::Root, mirror_makes_what_belongs_to_the_user),
    ("mirror_heeds_supplementary_groups", Needs::Root, mirror_heeds_supplementary_groups),
    ("mirror_truncates_what_another_opened", Needs::Root, mirror_truncates_what_another_opened),
    (
        "mirror_shows_new_content_to_who_has_a_file_open",
        Needs::Mount,
        mirror_shows_new_content_to_who_has_a_file_open,
    ),
    ("mirror_heeds_lists_when_names_are_looked_up", Needs::Root, mirror_heeds_lists_when_names_are_looked_up),
    ("mirror_believes_no_list_that_is_not_there", Needs::Root, mirror_believes_no_list_that_is_not_there),
    ("mirror_is_asked_nothing_on_a_second_walk", Needs::Root, mirror_is_asked_nothing_on_a_second_walk),
    (
        "mirror_keeps_the_directory_that_one_works_in",
        Needs::Root,
        mirror_keeps_the_directory_that_one_works_in,
    ),
    ("mirror_runs_what_cannot_be_read", Needs::Root, mirror_runs_what_cannot_be_read),
    ("mirror_asks_for_no_groups_of_an_owner", Needs::Root, mirror_asks_for_no_groups_of_an_owner),
];

const USER: u32 = 4321;
const GROUP: u32 = 4399;

struct Mirrored {
    mnt: Fixture,
    src: TempDir,
}

impl Mirrored {
    /// Nothing is trusted: the host is asked each time.
    fn new() -> Self {
        let src = tempfile::tempdir().expect("a temporary directory");
        fs::set_permissions(src.path(), Permissions::from_mode(0o1777)).expect("chmod");
        let mut options = Options::default();
        options.allow_other = rustix::process::geteuid().is_root();
        options.suid = options.allow_other;
        options.timeout = Some(Duration::ZERO);
        let mirror = Mirror::new(src.path(), Duration::ZERO).expect("a mirror");
        Self { mnt: Fixture::new(mirror, &options), src }
    }

    fn host(&self, name: &str) -> PathBuf {
        self.src.path().join(name)
    }
}

/// A mirror that watches its source. `None`, with a message, if that is impossible.
fn watched(test: &str) -> Option<(Fixture, TempDir, Arc<Mirror>)> {
    let src = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).expect("a directory");
    let mirror = Mirror::new(src.path(), Duration::ZERO).expect("a mirror");
    if let Err(why) = mirror.watch() {
        eprintln!("skipped: {test}: changes by others are not seen: {why}");
        return None;
    }
    Some((Fixture::new(Counted::new(mirror.clone()), &Options::default()), src, mirror))
}

/// Driver calls, and nodes handed out.
fn asked(mnt: &Fixture) -> ([u64; 3], u64) {
    let calls = uvfs::counters();
    (
        [DriverCall::Lookup, DriverCall::Getattr, DriverCall::Readdir].map(|call| calls.calls(call)),
        mnt.mounted.lookups().given,
    )
}

/// This process's count of reads: each request of the kernel is one read, and there are few others.
fn requests() -> u64 {
    let io = fs::read_to_string("/proc/self/io").expect("io");
    let reads = io.lines().find_map(|line| line.strip_prefix("syscr: ")).expect("syscr");
    reads.parse().expect("a number")
}

/// The kernel has names, attributes and listings, and asks for none of them. Only opens of directories are left.
fn mirror_is_asked_nothing_on_a_second_walk() {
    let Some((mnt, src, mirror)) = watched("mirror_is_asked_nothing_on_a_second_walk") else { return };
    let (dirs, files) = (5, 200);
    for dir in 0..dirs {
        fs::create_dir(src.path().join(format!("d{dir}"))).expect("mkdir");
        for file in 0..files {
            fs::write(src.path().join(format!("d{dir}/f{file}")), "text").expect("write");
        }
    }
    let walk = || {
        let text =
            sh_as(0, &mnt, "find . -type f -size -9k | wc -l; ls -lR | grep -c 'f[0-9]*$'").expect("a walk");
        text.split_whitespace().map(|n| n.parse().expect("a number")).collect::<Vec<usize>>()
    };
    // A change from just before the mount may still be reported, so repeat until a walk causes no request.
    let quiet = within(Duration::from_secs(60), || {
        assert_eq!(walk(), [dirs * files; 2]);
        let (before, done) = (asked(&mnt), mirror.operations());
        assert_eq!(walk(), [dirs * files; 2]);
        before == asked(&mnt) && done == mirror.operations()
    });
    assert!(quiet, "{:?}, {}", asked(&mnt), mirror.operations());
    let before = requests();
    sh_as(0, &mnt, "find . -type f -size -9k").expect("find");
    // It opens and closes some directories; a request for each file would make a thousand.
    assert!(requests() - before < 200, "{}", requests() - before);
    sh_as(0, src.path(), "echo more > d1/more; rm d2/f7; echo longer text > d3/f8; mv d4 moved")
        .expect("changes");
    let size = || fs::metadata(mnt.path("d3/f8")).map_or(0, |meta| meta.len());
    assert!(within(Duration::from_secs(60), || size() == 12 && mnt.path("moved").exists()));
    assert!(within(Duration::from_secs(60), || walk() == [dirs * files, dirs * files - 1]));
    assert!(!mnt.path("d2/f7").exists() && !mnt.path("d4").exists() && mnt.path("d1/more").exists());
}

/// A process that works in a directory, or has it open, goes on there after the host renames it.
fn mirror_keeps_the_directory_that_one_works_in() {
    let Some((mnt, src, _)) = watched("mirror_keeps_the_directory_that_one_works_in") else { return };
    sh_as(0, src.path(), "mkdir -p a/b/c other; echo text > a/b/c/file").expect("make");
    let moves = "mv a other/a2; mv other/a2/b other/b2";
    // The mount's shell stays where it is. It has seen the new parent.
    let script = format!(
        "stat other >/dev/null && cd a/b/c && cat file && (cd {} && {moves}) && sleep 0.1",
        src.path().display()
    );
    let patience = "for i in $(seq 600); do cat file 2>/dev/null && test \"$(ls)\" = file && exit 0; sleep 0.1; done; ls; exit 1";
    assert_eq!(sh_as(0, &mnt, &format!("{script}; {patience}")), Ok("text\ntext".into()));
}

/// Nothing reports the change here: the kernel sees by the times that its pages are old.
fn mirror_shows_new_content_to_who_has_a_file_open() {
    let it = Mirrored::new();
    fs::write(it.host("file"), "first").expect("write");
    let file = fs::File::open(it.mnt.path("file")).expect("open");
    let read = || {
        let mut text = [0; 5];
        file.read_exact_at(&mut text, 0).map(|()| text).expect("read")
    };
    assert_eq!(&read(), b"first");
    // Repeatedly: two changes within a clock tick may have the same time.
    assert!(within(Duration::from_secs(60), || {
        fs::File::options()
            .write(true)
            .open(it.host("file"))
            .and_then(|host| host.write_all_at(b"other", 0))
            .expect("write");
        &read() == b"other"
    }));
}

/// Gives a file on the host a list: the permissions of the owner, of [`USER`], of the group, the mask, and the
/// permissions of others.
fn give_list(path: &std::path::Path, [owner, user, group, mask, other]: [u16; 5]) -> rustix::io::Result<()> {
    let entry = |tag: u16, bits: u16, id: u32| {
        [&tag.to_le_bytes()[..], &bits.to_le_bytes(), &id.to_le_bytes()].concat()
    };
    let none = u32::MAX;
    let entries = [(1, owner, none), (2, user, USER), (4, group, none), (16, mask, none), (32, other, none)];
    let list = entries.iter().flat_map(|&(tag, bits, id)| entry(tag, bits, id));
    let list: Vec<u8> = 2u32.to_le_bytes().into_iter().chain(list).collect();
    rustix::fs::setxattr(path, "system.posix_acl_access", &list, rustix::fs::XattrFlags::empty())
}

/// The flag that there may be a list is not trusted. If only a list lets a user in, or keeps it out, that holds
/// while there is a list, for the kernel over a mount and for the library. When the list is gone, the mode decides.
fn mirror_believes_no_list_that_is_not_there() {
    const TEST: &str = "mirror_believes_no_list_that_is_not_there";
    let src = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).expect("a directory");
    fs::set_permissions(src.path(), Permissions::from_mode(0o755)).expect("chmod");
    for (name, mode) in [("in", 0o700), ("out", 0o755), ("group", 0o750)] {
        let dir = src.path().join(name);
        fs::create_dir(&dir).expect("mkdir");
        fs::write(dir.join("file"), "text").expect("write");
        fs::set_permissions(&dir, Permissions::from_mode(mode)).expect("chmod");
    }
    // The group's own bits, with attributes that say that there may be a list.
    chown(src.path().join("group"), Some(0), Some(USER)).expect("chown");
    let mirror = Mirror::new(src.path(), Duration::ZERO).expect("a mirror");
    if let Err(why) = mirror.watch() {
        return eprintln!("skipped: {TEST}: changes by others are not seen: {why}");
    }
    let mut options = Options::default();
    options.allow_other = true;
    let mnt = Fixture::new(mirror.clone(), &options);
    // This process's own changes are not reported.
    let tell = |name: &str| {
        let fd = fs::File::open(src.path().join(name)).expect("open");
        mirror.object_changed(&FileHandle::of(&fd).expect("a handle, since it is watched"));
    };
    let by_library = |name: &str| {
        let me = mnt.vfs.context(uvfs::Cred::user(USER, USER));
        me.stat(format!("/{name}/file").as_bytes()).is_ok()
    };
    let by_mount = |name: &str| {
        let script = format!("cd / && stat {0}/file && ls {0} && cat {0}/file", mnt.path(name).display());
        sh_as(USER, std::path::Path::new("/"), &script).is_ok()
    };
    let is = |name: &str, may: bool| {
        let so = within(Duration::from_secs(20), || by_library(name) == may && by_mount(name) == may);
        assert!(so, "{name}: {may} by the host, {} by the library", by_library(name));
        // The result is stable.
        assert_eq!((by_mount(name), by_library(name)), (may, may), "{name}");
    };
    let as_the_mode_says = || {
        is("in", false);
        is("out", true);
        is("group", true);
    };
    as_the_mode_says();
    for _ in 0..3 {
        if give_list(&src.path().join("in"), [7, 5, 0, 5, 0]) == Err(rustix::io::Errno::OPNOTSUPP) {
            return eprintln!("skipped: {TEST}: no lists on the host's file system");
        }
        give_list(&src.path().join("out"), [7, 0, 5, 7, 5]).expect("setxattr");
        give_list(&src.path().join("group"), [7, 0, 5, 5, 0]).expect("setxattr");
        ["in", "out", "group"].into_iter().for_each(tell);
        is("in", true);
        is("out", false);
        is("group", false);
        for name in ["in", "out", "group"] {
            rustix::fs::removexattr(src.path().join(name), "system.posix_acl_access").expect("removexattr");
        }
        // The mask's bits become the group's, on the host as here.
        fs::set_permissions(src.path().join("in"), Permissions::from_mode(0o700)).expect("chmod");
        fs::set_permissions(src.path().join("group"), Permissions::from_mode(0o750)).expect("chmod");
        ["in", "out", "group"].into_iter().for_each(tell);
        as_the_mode_says();
    }
}

/// Over a mount the kernel checks who may look a name up, and lists decide if there are some.
fn mirror_heeds_lists_when_names_are_looked_up() {
    let it = Mirrored::new();
    let acl = |name: &str, other: u16, group: u16, user: u16, mask: u16| {
        give_list(&it.host(name), [7, user, group, mask, other])
    };
    for name in ["shut", "open"] {
        fs::create_dir(it.host(name)).expect("mkdir");
        fs::write(it.host(name).join("file"), "text").expect("write");
    }
    if acl("shut", 5, 5, 0, 7) == Err(rustix::io::Errno::OPNOTSUPP) {
        return eprintln!("skipped: mirror_heeds_lists_when_names_are_looked_up: no lists on $TMPDIR");
    }
    acl("open", 0, 0, 5, 5).expect("setxattr");
    for (user, name, may) in
        [(USER, "shut", false), (USER, "open", true), (USER + 1, "shut", true), (USER + 1, "open", false)]
    {
        for dir in [it.host(name), it.mnt.path(name)] {
            let script = format!("cd / && stat {0}/file && ls {0} && cat {0}/file", dir.display());
            assert_eq!(sh_as(user, std::path::Path::new("/"), &script).is_ok(), may, "{user} {name}");
        }
    }
    // For a group the list decides: the mode shows only the mask.
    chown(it.host("open"), Some(0), Some(USER + 2)).expect("chown");
    sh_as(USER + 2, &it.mnt, "stat open/file").expect_err("the group has nothing");
    // A new node in a directory with a default list gets that list, and no umask.
    let inherit = "setfacl -d -m g::rwx,o::rwx open && umask 077 && : > open/made && stat -c %a open/made";
    match Command::new("setfacl").arg("--version").output() {
        Ok(_) => assert_eq!(sh_as(0, &it.mnt, inherit), Ok("666".into())),
        Err(_) => eprintln!("skipped: a default list over a mirror: no setfacl"),
    }
}

fn mirror_does_on_the_host_what_is_done() {
    let it = Mirrored::new();
    let script = "mkdir -p a/b && echo text > a/b/file && ln -s b/file a/link && ln a/b/file a/hard && mv a/b a/c \
                  && cp -a a copy && rm -r a/c && touch -d @77 a/hard && chmod 640 a/hard && cat a/hard";
    let uid = rustix::process::geteuid().as_raw();
    assert_eq!(sh_as(uid, &it.mnt, script), Ok("text".into()));
    let hard = fs::metadata(it.host("a/hard")).expect("stat");
    assert_eq!((hard.mtime(), hard.mode() & 0o7777, hard.nlink()), (77, 0o640, 1));
    assert_eq!(fs::read_link(it.host("copy/link")).expect("readlink"), PathBuf::from("b/file"));
    assert_eq!(fs::read(it.host("copy/c/file")).expect("read"), b"text\n");
    let ours = fs::metadata(it.mnt.path("a/hard")).expect("stat");
    assert_eq!((ours.mtime(), ours.mode(), ours.size()), (77, hard.mode(), 5));
}

fn mirror_shows_what_the_host_changes() {
    let it = Mirrored::new();
    let read = |name: &str| fs::read_to_string(it.mnt.path(name)).ok();
    assert_eq!(read("dir/file"), None);
    fs::create_dir(it.host("dir")).expect("mkdir");
    fs::write(it.host("dir/file"), "one").expect("write");
    assert_eq!(read("dir/file"), Some("one".into()));
    fs::write(it.host("dir/new"), "longer than it was").expect("write");
    fs::rename(it.host("dir/new"), it.host("dir/file")).expect("rename");
    assert_eq!(read("dir/file"), Some("longer than it was".into()));
    fs::rename(it.host("dir"), it.host("moved")).expect("rename");
    assert_eq!((read("dir/file"), read("moved/file").map(|s| s.len())), (None, Some(18)));
    fs::remove_dir_all(it.host("moved")).expect("rm -r");
    symlink("/etc", it.host("moved")).expect("symlink");
    assert!(fs::symlink_metadata(it.mnt.path("moved")).expect("lstat").is_symlink());
}

fn mirror_appends_to_the_end_on_the_host() {
    let it = Mirrored::new();
    let mut log = OpenOptions::new().create(true).append(true).open(it.mnt.path("log")).expect("open");
    log.write_all(b"one ").expect("write");
    let mut hosts = OpenOptions::new().append(true).open(it.host("log")).expect("open");
    hosts.write_all(b"two ").expect("write");
    log.write_all(b"three").expect("write");
    assert_eq!(fs::read_to_string(it.host("log")).expect("read"), "one two three");
}

fn mirror_keeps_open_files_that_the_host_removes() {
    let it = Mirrored::new();
    let path = it.mnt.path("file");
    let mut file = OpenOptions::new().create_new(true).read(true).write(true).open(path).expect("open");
    file.write_all(b"content").expect("write");
    fs::remove_file(it.host("file")).expect("rm");
    let mut text = String::new();
    file.set_len(4).expect("truncate");
    file.write_all_at(b"C", 0).expect("write");
    std::io::Seek::rewind(&mut file).expect("seek");
    file.read_to_string(&mut text).expect("read");
    assert_eq!((text.as_str(), file.metadata().expect("fstat").len()), ("Cont", 4));
}

fn mirror_clears_set_id_bits_as_the_host() {
    for (uid, want) in [(USER, "777"), (0, "6777")] {
        for (what, script) in CHANGES {
            let it = Mirrored::new();
            fs::write(it.host("tool"), "data").expect("write");
            fs::set_permissions(it.host("tool"), Permissions::from_mode(0o6777)).expect("chmod");
            sh_as(uid, &it.mnt, script).expect(what);
            for path in [it.host("tool"), it.mnt.path("tool")] {
                let mode = fs::metadata(path).expect("stat").mode() & 0o7777;
                assert_eq!(format!("{mode:o}"), want, "{what} by {uid}");
            }
        }
    }
}

fn mirror_makes_what_belongs_to_the_user() {
    let it = Mirrored::new();
    let script = "mkdir dir && : > dir/file && ln -s x dir/link && mkfifo dir/fifo && (umask 277; echo x > dir/readonly)";
    sh_as(USER, &it.mnt, script).expect("make");
    for name in ["dir", "dir/file", "dir/link", "dir/fifo", "dir/readonly"] {
        let host = fs::symlink_metadata(it.host(name)).expect("stat");
        assert_eq!((host.uid(), host.gid()), (USER, USER), "{name}");
    }
    assert_eq!(fs::metadata(it.host("dir/readonly")).expect("stat").mode() & 0o777, 0o400);
    assert_eq!(fs::read(it.host("dir/readonly")).expect("read"), b"x\n");
    sh_as(USER + 1, &it.mnt, "rm -r dir").expect_err("another's");
    sh_as(USER + 1, &it.mnt, "rmdir dir").expect_err("another's");
}

fn mirror_heeds_supplementary_groups() {
    let it = Mirrored::new();
    fs::create_dir(it.host("shared")).expect("mkdir");
    chown(it.host("shared"), Some(0), Some(GROUP)).expect("chown");
    fs::set_permissions(it.host("shared"), Permissions::from_mode(0o2770)).expect("chmod");
    let make = |groups: &str| {
        let ids = [format!("--reuid={USER}"), format!("--regid={USER}"), format!("--groups={groups}")];
        let mut command = Command::new("setpriv");
        command
            .args(ids)
            .args(["sh", "-c", "mkdir shared/dir && echo x > shared/dir/file"])
            .current_dir(&*it.mnt);
        command.output().map(|output| output.status.success())
    };
    match make("1") {
        Err(error) => return println!("skipped: setpriv: {error}"),
        Ok(made) => assert!(!made, "without the group"),
    }
    assert!(make(&GROUP.to_string()).expect("setpriv"), "with the group");
    let made = fs::metadata(it.host("shared/dir/file")).expect("stat");
    assert_eq!((made.uid(), made.gid()), (USER, GROUP));
}

fn mirror_truncates_what_another_opened() {
    let it = Mirrored::new();
    fs::write(it.host("file"), "0123456789").expect("write");
    fs::set_permissions(it.host("file"), Permissions::from_mode(0o600)).expect("chmod");
    let file = OpenOptions::new().write(true).open(it.mnt.path("file")).expect("open");
    // Handed to another user, as standard output is.
    let mut command = Command::new("setpriv");
    command.args([&format!("--reuid={USER}"), "--clear-groups", "truncate", "-s", "3", "/proc/self/fd/1"]);
    command.stdout(file.try_clone().expect("dup"));
    match command.status() {
        Err(error) => return println!("skipped: setpriv: {error}"),
        // The user may not open it by its name.
        Ok(status) => assert!(!status.success()),
    }
    file.set_len(3).expect("truncate");
    assert_eq!(fs::read(it.host("file")).expect("read"), b"012");
    fs::set_permissions(it.host("file"), Permissions::from_mode(0o000)).expect("chmod");
    file.set_len(2).expect("truncate");
    assert_eq!(fs::read(it.host("file")).expect("read"), b"01");
}

/// Programs that others may execute and not read, also lent to the kernel. Files that may not be executed are not.
fn mirror_runs_what_cannot_be_read() {
    let src = tempfile::tempdir().expect("a temporary directory");
    fs::set_permissions(src.path(), Permissions::from_mode(0o755)).expect("chmod");
    for (name, mode) in [("runs", 0o711), ("all", 0o111), ("closed", 0o700), ("group", 0o710)] {
        let path = src.path().join(name);
        fs::copy("/bin/cat", &path).expect("copy");
        // Large enough to be lent.
        fs::File::options().write(true).open(&path).and_then(|file| file.set_len(1 << 20)).expect("extend");
        chown(&path, Some(0), Some(GROUP)).expect("chown");
        fs::set_permissions(&path, Permissions::from_mode(mode)).expect("chmod");
    }
    fs::write(src.path().join("script"), "#!/bin/sh\n").expect("write");
    fs::set_permissions(src.path().join("script"), Permissions::from_mode(0o711)).expect("chmod");
    for passthrough in [false, true] {
        let mirror = Mirror::new(src.path(), Duration::ZERO).expect("a mirror");
        let mut options = Options::default();
        (options.allow_other, options.passthrough) = (true, passthrough);
        let mnt = Fixture::new(mirror, &options);
        for dir in [src.path(), &*mnt] {
            let at = format!("{}, passthrough: {passthrough}", dir.display());
            for name in ["runs", "all"] {
                let read = format!("cat {name} > /dev/null");
                // Before and after: its execution gives nobody the right to read it.
                sh_as(USER, dir, &read).expect_err(&at);
                assert_eq!(sh_as(USER, dir, &format!("echo text | ./{name}")).as_deref(), Ok("text"), "{at}");
                // Nor does an open(2) that claims to be for execution, as the kernel's own open does.
                let forged =
                    format!("perl -e 'exit(sysopen(my $file, q({name}), 0x20) ? 0 : $!{{EACCES}} ? 7 : 8)'");
                assert_eq!(sh_as(USER, dir, &format!("{forged} || echo $?")).as_deref(), Ok("7"), "{at}");
                sh_as(USER, dir, &read).expect_err(&at);
            }
            for name in ["closed", "group", "script"] {
                let said = sh_as(USER, dir, &format!("./{name} < /dev/null")).expect_err(&at);
                assert!(said.contains("Permission denied") || said.contains("an't open"), "{said}");
            }
        }
    }
}

/// Looking the groups up takes two more system calls than the request, one of which reads.
fn mirror_asks_for_no_groups_of_an_owner() {
    let src = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).expect("a directory");
    fs::set_permissions(src.path(), Permissions::from_mode(0o755)).expect("chmod");
    for (name, owner) in [("own", USER), ("others", 0)] {
        let dir = src.path().join(name);
        fs::create_dir(&dir).expect("mkdir");
        fs::set_permissions(&dir, Permissions::from_mode(0o777)).expect("chmod");
        fs::write(dir.join("file"), "").expect("write");
        [dir.join("file"), dir].iter().for_each(|path| chown(path, Some(owner), Some(GROUP)).expect("chown"));
    }
    let mirror = Mirror::new(src.path(), Duration::ZERO).expect("a mirror");
    if let Err(why) = mirror.watch() {
        return eprintln!(
            "skipped: mirror_asks_for_no_groups_of_an_owner: changes by others are not seen: {why}"
        );
    }
    let mut options = Options::default();
    options.allow_other = true;
    let mnt = Fixture::new(mirror, &options);
    let rounds = 200;
    // Each round has three requests that the host checks: opening a file, making one, and removing it.
    let reads = |name: &str| {
        let before = requests();
        let script = format!("cd {name}; for i in $(seq {rounds}); do : < file; : > new; rm new; done");
        sh_as(USER, &mnt, &script).expect(name);
        requests() - before
    };
    // This process also reads the table of mounts when others mount something. An owner's groups would be read
    // every time.
    let mut seen = Vec::new();
    let less = (0..5).any(|_| {
        let (own, others) = (reads("own"), reads("others"));
        seen.push((own, others));
        own + 3 * rounds < others
    });
    assert!(less, "(reads by the owner, by another one): {seen:?}");
}
