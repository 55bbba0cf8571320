//! Permissions when the kernel may trust nothing and the server checks them, and when the kernel checks. Several
//! users run the same scripts here and on the host's tmpfs, in directories that root has filled.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use uvfs_fuse::{Options, Permissions};

use crate::Test;
use crate::fixture::{Fixture, Needs};
use crate::sys::Shared;

pub const TESTS: &[Test] = &[
    ("who_checks_permissions_is_shown", Needs::Mount, who_checks_permissions_is_shown),
    (
        "the_server_permits_what_the_hosts_kernel_does",
        Needs::Root,
        the_server_permits_what_the_hosts_kernel_does,
    ),
    (
        "what_was_stored_is_written_back_to_set_id_files",
        Needs::Root,
        what_was_stored_is_written_back_to_set_id_files,
    ),
    ("another_namespaces_root_is_none_here", Needs::Root, another_namespaces_root_is_none_here),
];

macro_rules! exchange {
    ($one:literal, $other:literal) => {
        concat!(
            "perl -e '$n = `uname -m` =~ /x86_64/ ? 316 : 276; ($a, $b) = (q(",
            $one,
            "), q(",
            $other,
            ")); syscall($n, -100, $a, -100, $b, 2) == 0 or die $!'"
        )
    };
}

/// Users: an owner, another one, a member of two more groups, root, root without capabilities, users with some.
const WHO: &[(&str, &[&str])] = &[
    ("owner", &["--reuid=1001", "--regid=1001", "--clear-groups"]),
    ("other", &["--reuid=1002", "--regid=1002", "--clear-groups"]),
    ("member", &["--reuid=1002", "--regid=1002", "--groups=1005,1006"]),
    ("root", &[]),
    ("root without capabilities", &["--inh-caps=-all", "--bounding-set=-all"]),
    ("reader", &["--reuid=1002", "--regid=1002", "--clear-groups", READ, "--ambient-caps=+dac_read_search"]),
    (
        "overrider",
        &["--reuid=1002", "--regid=1002", "--clear-groups", OVERRIDE, "--ambient-caps=+dac_override"],
    ),
    (
        "fowner",
        &["--reuid=1002", "--regid=1002", "--clear-groups", "--inh-caps=+fowner", "--ambient-caps=+fowner"],
    ),
    (
        "keeper",
        &["--reuid=1002", "--regid=1002", "--clear-groups", "--inh-caps=+fsetid", "--ambient-caps=+fsetid"],
    ),
    (
        "chowner",
        &["--reuid=1002", "--regid=1002", "--clear-groups", "--inh-caps=+chown", "--ambient-caps=+chown"],
    ),
];
const READ: &str = "--inh-caps=+dac_read_search";
const OVERRIDE: &str = "--inh-caps=+dac_override";

/// The files that root makes: for a user and a group, in and out of reach.
const MADE: &str = "
    umask 0
    printf data >open; printf data >private; printf data >shared; printf data >denied; printf data >nobody
    printf data >sgid; printf data >locking; printf data >listed
    printf '#!/bin/sh\\necho ran\\n' >tool; cp tool runs; cp tool never
    chown 1001:1005 private shared denied sgid locking tool runs listed
    chmod 644 open; chmod 600 private; chmod 660 shared; chmod 606 denied; chmod 000 nobody
    chmod 2777 sgid; chmod 2767 locking; chmod 755 tool; chmod 711 runs; chmod 644 never; chmod 640 listed
    setfacl -m u:1002:rw,g:1006:--- listed
    mkdir hall room tmp pit drop shelf gate
    for dir in hall room tmp pit drop shelf gate; do
        printf data >$dir/file; chmod 666 $dir/file; mkdir $dir/dir
    done
    for name in 1 2 3 4; do
        printf data >drop/file$name; printf data >tmp/file$name; mkdir drop/dir$name drop/theirs$name
    done
    chmod 755 drop/dir?; chown 1002 drop/theirs?; chmod 755 drop/theirs?
    chown 1001:1005 room drop gate; chown 1001 pit/file shelf/file
    chmod 755 hall shelf; chmod 750 room; chmod 711 gate; chmod 1777 tmp; chmod 711 pit; chmod 733 drop
    setfattr -n user.a -v b private
";

const SCRIPTS: &[&str] = &[
    "cat open",
    "cat private",
    "cat shared",
    "cat denied",
    "cat nobody",
    "cat listed",
    "printf x >>open",
    "printf x >>private",
    "printf x >>shared",
    "printf x >>denied",
    "printf x >>listed",
    "ls hall",
    "ls room",
    "ls pit",
    "ls drop",
    "cat room/file",
    "cat pit/file",
    "stat -c %a room/dir",
    "stat -c %a pit/dir",
    "cat drop/file",
    "cd room",
    "cd pit",
    "cd drop",
    "cd pit && ls",
    "cd room && cat file",
    "echo >hall/new",
    "echo >drop/new",
    "echo >tmp/new",
    "mkdir room/new",
    "mkdir drop/new",
    "ln -s x shelf/new",
    "ln -s x drop/new",
    "mkfifo drop/fifo",
    "mknod drop/node c 1 3",
    "ln shared drop/new",
    "ln private drop/new",
    "ln open drop/new",
    "rm -f hall/file",
    "rm -f tmp/file",
    "rm -f drop/file",
    "rm -f shelf/file",
    "rmdir tmp/dir",
    "rmdir drop/dir",
    "echo >gate/new",
    "mkdir gate/newdir",
    "ln -s x gate/newlink",
    "mv drop/file1 gate/moved",
    "mv -T tmp/file1 drop/moved1",
    "mv -T drop/file2 drop/moved2",
    "mv -T drop/dir1 tmp/moved3",
    "mv -T drop/theirs1 tmp/moved4",
    "mv -T drop/dir2 drop/moved5",
    "mv -fT tmp/file2 drop/file3",
    EXCHANGE_FILES,
    EXCHANGE_DIRS,
    EXCHANGE_WITH_DIR,
    "chmod 777 open",
    "chmod 777 private",
    "chmod 6755 private; stat -c %a private",
    "chmod 2770 shared; stat -c %a shared",
    "chown 1002 open",
    "chown 1001 private",
    "chown :1001 private",
    "chown :1006 private",
    "chown :1006 open",
    "touch open",
    "touch private",
    "touch denied",
    "touch -d 2001-01-01 open",
    "touch -d 2001-01-01 private",
    "truncate -s 1 open",
    "truncate -s 1 private",
    "truncate -s 1 denied",
    "truncate -s 1 sgid; stat -c %a sgid",
    "printf x >>sgid; stat -c %a sgid",
    "printf x >>locking; stat -c %a locking",
    "fallocate -l 9000 locking; stat -c %a locking",
    "truncate -s 1 locking; stat -c %a locking",
    GIVE_AWAY,
    "perl -e 'chown -1, -1, qw(locking sgid)'; stat -c %a locking sgid",
    "mknod drop/whiteout c 0 0",
    "mknod drop/block b 0 0",
    "perl -e 'use Fcntl; sysopen(F, q(open), O_RDONLY | O_TRUNC) or die; print -s q(open)'",
    "perl -e 'use Fcntl; sysopen(F, q(shared), O_RDONLY | O_TRUNC) or die; print -s q(shared)'",
    "./tool",
    "./runs",
    "./never",
    "test -x runs",
    "test -r private",
    "test -w shared",
    "getfattr -n user.a private",
    "setfattr -n user.c -v d private",
    "setfattr -n user.c -v d open",
    "setfattr -n user.c -v d tmp",
    "setfattr -x user.a private",
    "setfattr -n trusted.c -v d open",
    "getfacl -cn listed",
    "setfacl -m u:1002:r private",
    "setfacl -m u:1002:r open",
    "setfacl -d -m u:1002:r room",
];

/// Clears set-id bits, which takes more than CAP_CHOWN. A FUSE kernel that checks permissions leaves these bits to
/// the server, and does not check the rest.
const GIVE_AWAY: &str = "chown 1002 locking; stat -c %a locking";
/// renameat2 (x86_64: 316, elsewhere 276) with RENAME_EXCHANGE, in the current directory.
const EXCHANGE_FILES: &str = exchange!("tmp/file3", "drop/file4");
/// Both directories change their parent.
const EXCHANGE_DIRS: &str = exchange!("drop/dir3", "tmp/dir");
const EXCHANGE_WITH_DIR: &str = exchange!("tmp/file4", "drop/dir4");

/// The programs that the scripts use.
const TOOLS: &[&str] = &["setpriv", "setfacl", "getfacl", "setfattr", "getfattr", "perl"];

fn asking() -> Options {
    let mut options = Options::default();
    options.allow_other = rustix::process::geteuid().is_root();
    options.suid = options.allow_other;
    options.dev = options.allow_other;
    options.timeout = Some(Duration::ZERO);
    options.default_permissions = Some(false);
    options
}

/// The kernel checks here.
fn told() -> Options {
    let mut options = asking();
    (options.timeout, options.default_permissions) = (None, None);
    options
}

fn mount(options: &Options) -> Fixture {
    Fixture::new(crate::fixture::tmpfs(), options)
}

/// A tmpfs of the kernel; unmounted when dropped.
struct Host(tempfile::TempDir);

impl Host {
    fn new() -> Self {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let mounted = Command::new("mount").args(["-t", "tmpfs", "uvfs-test"]).arg(dir.path()).status();
        assert!(mounted.expect("mount(8)").success());
        Self(dir)
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(self.0.path()).status();
    }
}

fn run(program: &str, arguments: &[&str], dir: &Path) -> (bool, String) {
    let output = Command::new(program).args(arguments).current_dir(dir).env("LC_ALL", "C").output();
    let output = output.expect(program);
    let text = [output.stdout, output.stderr].concat();
    (output.status.success(), String::from_utf8_lossy(&text).into_owned())
}

/// The scripts' output, one after the other in one directory, so that each finds the results of those before it.
/// Each user begins with another script.
fn outcomes(base: &Path, who: &[&str], number: usize) -> Vec<(&'static str, String)> {
    let dir = base.join(number.to_string());
    fs::create_dir(&dir).expect("mkdir");
    let (made, said) = run("sh", &["-ec", MADE], &dir);
    assert!(made, "{said}");
    let mut scripts = SCRIPTS.to_vec();
    scripts.rotate_left(number * 37 % SCRIPTS.len());
    let each = |script: &&str| format!("({script}) 2>&1 </dev/null; printf '\\n= %s\\n' $?\n");
    let all: String = scripts.iter().map(each).collect();
    let (_, said) = run("setpriv", &[who, &["--", "sh", "-c", &all]].concat(), &dir);
    let mut lines = said.lines();
    let mut next = || {
        let mut outcome = String::new();
        for line in lines.by_ref() {
            outcome.push_str(line);
            if line.starts_with("= ") {
                break;
            }
            outcome.push('\n');
        }
        outcome
    };
    let outcomes: Vec<_> = scripts.into_iter().map(|script| (script, next())).collect();
    // A script that did not run at all would give the same result everywhere.
    for (script, outcome) in &outcomes {
        let status = outcome.lines().last().and_then(|line| line.strip_prefix("= "));
        assert!(
            status.and_then(|status| status.parse().ok()).is_some_and(|status: u8| status != 127),
            "{script}: {outcome}"
        );
    }
    let succeeded = outcomes.iter().filter(|(_, outcome)| outcome.ends_with("= 0")).count();
    assert!(succeeded > 9 && succeeded < outcomes.len(), "{succeeded} of {}: {outcomes:#?}", outcomes.len());
    outcomes
}

fn the_server_permits_what_the_hosts_kernel_does() {
    let is_there = |tool: &&&str| run("sh", &["-c", &format!("command -v {tool}")], Path::new("/")).0;
    if let Some(tool) = TOOLS.iter().find(|tool| !is_there(tool)) {
        return eprintln!("skipped: the_server_permits_what_the_hosts_kernel_does: no {tool}");
    }
    let (host, mounts) = (Host::new(), [mount(&asking()), mount(&told())]);
    for (number, (name, who)) in WHO.iter().enumerate() {
        let theirs = outcomes(host.0.path(), who, number);
        for mnt in &mounts {
            let ours = outcomes(mnt, who, number);
            let permissions = mnt.mounted.permissions();
            let mut differ: Vec<_> =
                theirs.iter().zip(&ours).filter(|(theirs, ours)| theirs != ours).collect();
            differ.retain(|((script, _), _)| (*script, permissions) != (GIVE_AWAY, Permissions::Kernel));
            assert!(differ.is_empty(), "{name}, {permissions:?} checks, the host's first: {differ:#?}");
        }
    }
}

/// The kernel writes stored data back in nobody's name. The open for writing is permission enough, whatever the
/// mode is by now, and set-id bits stay.
fn what_was_stored_is_written_back_to_set_id_files() {
    let host = Host::new();
    let mounts = [mount(&asking()), mount(&told())];
    for dir in [host.0.path(), &mounts[0], &mounts[1]] {
        for (before, after) in [(0o6777, 0o6777), (0o2767, 0o2767), (0o666, 0o6755), (0o666, 0o4000)] {
            let path = dir.join("file");
            fs::write(&path, "data").expect("write");
            let become_ = |mode| fs::set_permissions(&path, PermissionsExt::from_mode(mode)).expect("chmod");
            become_(before);
            let file = fs::File::options().read(true).write(true).open(&path).expect("open");
            let mut shared = Shared::map(&file, 4);
            shared.write(0, b"M");
            become_(after);
            shared.sync();
            shared.write(1, b"N");
            file.sync_all().expect("fsync");
            drop(file);
            // By the mapping, which ends after the descriptor.
            shared.write(2, b"O");
            drop(shared);
            crate::fixture::drop_caches();
            let found =
                (fs::read(&path).expect("read"), fs::metadata(&path).expect("stat").permissions().mode());
            assert_eq!(found, (b"MNOa".to_vec(), 0o100_000 | after), "{} {after:o}", dir.display());
            fs::remove_file(&path).expect("unlink");
        }
    }
}

fn another_namespaces_root_is_none_here() {
    let mnt = mount(&asking());
    fs::write(mnt.path("private"), "data").expect("write");
    std::os::unix::fs::chown(mnt.path("private"), Some(1001), None).expect("chown");
    fs::set_permissions(mnt.path("private"), PermissionsExt::from_mode(0o600)).expect("chmod");
    assert_eq!(run("cat", &["private"], &mnt), (true, "data".into()));
    let (is_root, said) = run("unshare", &["--user", "--map-root-user", "id", "-u"], &mnt);
    if !is_root {
        eprintln!("skipped: another_namespaces_root_is_none_here: no user namespaces: {said}");
        return;
    }
    let (read, said) = run("unshare", &["--user", "--map-root-user", "cat", "private"], &mnt);
    assert!(!read && said.contains("Permission denied"), "{said}");
}

fn who_checks_permissions_is_shown() {
    let shown = |options: &Options| {
        let mnt = mount(options);
        let mounts = fs::read_to_string("/proc/self/mounts").expect("a list");
        let line = mounts.lines().find(|line| line.contains(&mnt.display().to_string()));
        (mnt.mounted.permissions(), line.expect("it is listed").contains("default_permissions"))
    };
    let mut options = asking();
    assert_eq!(shown(&options), (Permissions::Server, false));
    options.default_permissions = Some(true);
    assert_eq!(shown(&options), (Permissions::Kernel, true));
    options.default_permissions = None;
    let kernel = options.allow_other;
    let whose = if kernel { Permissions::Kernel } else { Permissions::Server };
    assert_eq!(shown(&options), (whose, kernel), "what others could have unmounted");
    options.allow_other = false;
    assert_eq!(shown(&options), (Permissions::Server, false));
    options.default_permissions = Some(false);
    options.timeout = Some(Duration::from_nanos(1));
    assert_eq!(shown(&options), (Permissions::Kernel, true));
    options.timeout = None;
    assert_eq!(shown(&options), (Permissions::Kernel, true));
}
