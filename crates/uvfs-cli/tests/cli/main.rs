//! The command as users meet it. Most tests need root and /dev/fuse; where that is missing they
//! say so and count as ignored. Here is what all share, and the tests of mounting itself.

mod confined;
mod control;
mod endings;
mod first_hour;
mod index;
mod kernfs;
mod limits;
mod loops;
mod manners;
mod manual;
mod metrics;
mod mirror;
mod remount;
mod shares;
mod signals;

use std::fs::{self, File, OpenOptions};
use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use libtest_mimic::{Arguments, Completion, Trial};
use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

const SOON: Duration = Duration::from_secs(20);

/// A test that needs no mount, or one that does.
type Test = (&'static str, fn());

const PLAIN: &[Test] = &[
    ("help_and_version", help_and_version),
    ("usage_errors_name_what_is_valid", usage_errors_name_what_is_valid),
    ("mount_errors_are_sentences", mount_errors_are_sentences),
];

const MOUNTING: &[Test] = &[
    ("mount_in_the_foreground_until_sigterm", mount_in_the_foreground_until_sigterm),
    ("mount_in_the_background", mount_in_the_background),
    ("a_background_failure_comes_back", a_background_failure_comes_back),
    ("umount_says_when_busy", umount_says_when_busy),
    ("sigint_under_load_detaches_and_ends", sigint_under_load_detaches_and_ends),
    ("kill_under_load_leaves_nothing_hanging", kill_under_load_leaves_nothing_hanging),
    ("tmpfs_options_take_effect", tmpfs_options_take_effect),
    ("generated_trees", generated_trees),
    ("ext4_images", ext4_images),
];

fn main() {
    let reason = missing();
    let plain = [
        PLAIN,
        control::PLAIN,
        first_hour::PLAIN,
        index::PLAIN,
        kernfs::PLAIN,
        manners::PLAIN,
        manual::PLAIN,
        metrics::PLAIN,
        remount::PLAIN,
    ]
    .into_iter()
    .flatten()
    .map(|&(name, test)| {
        Trial::test(name, move || {
            test();
            Ok(())
        })
    });
    let mounting = [
        MOUNTING,
        confined::MOUNTING,
        control::MOUNTING,
        endings::MOUNTING,
        first_hour::MOUNTING,
        index::MOUNTING,
        kernfs::MOUNTING,
        limits::MOUNTING,
        loops::MOUNTING,
        manners::MOUNTING,
        manual::MOUNTING,
        metrics::MOUNTING,
        mirror::MOUNTING,
        remount::MOUNTING,
        shares::MOUNTING,
        signals::MOUNTING,
    ];
    let mounting = mounting.into_iter().flatten().map(|&(name, test)| {
        let reason = reason.clone();
        Trial::ignorable_test(name, move || match reason {
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
    libtest_mimic::run(&Arguments::from_args(), plain.chain(mounting).collect()).exit();
}

fn missing() -> Option<String> {
    if !rustix::process::geteuid().is_root() {
        return Some("not root".into());
    }
    let device = OpenOptions::new().read(true).write(true).open("/dev/fuse");
    device.err().map(|error| format!("/dev/fuse: {error}"))
}

fn uvfs(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_uvfs"));
    command.args(args).env_remove("UVFS_LOG");
    command
}

fn run(args: &[&str]) -> Output {
    uvfs(args).stdin(Stdio::null()).output().expect("the command starts")
}

/// Runs it, expecting failure; the exit status and what it said.
fn refused(args: &[&str]) -> (i32, String) {
    let output = run(args);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success(), "{args:?} succeeded");
    (output.status.code().expect("an exit status"), said)
}

fn within(time: Duration, mut holds: impl FnMut() -> bool) -> bool {
    let deadline = Instant::now() + time;
    loop {
        if holds() {
            return true;
        }
        if Instant::now() > deadline {
            return false;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn is_mounted(dir: &Path) -> bool {
    let mounts = fs::read_to_string("/proc/self/mounts").expect("mounts");
    mounts.lines().any(|line| line.split(' ').nth(1) == dir.to_str())
}

/// A directory that is unmounted at the end, however the test ends.
struct Dir(TempDir);

impl Dir {
    fn new() -> Self {
        Self(tempfile::tempdir().expect("a temporary directory"))
    }
    fn path(&self) -> &Path {
        self.0.path()
    }
    fn text(&self) -> &str {
        self.0.path().to_str().expect("a path in UTF-8")
    }
}

impl Drop for Dir {
    fn drop(&mut self) {
        if is_mounted(self.path()) {
            run(&["umount", "-l", self.text()]);
        }
    }
}

/// A server in the foreground, mounted; killed when dropped.
struct Server(Child);

impl Server {
    fn start(args: &[&str]) -> Self {
        Self::of(&mut uvfs(&[&["mount"], args].concat()))
    }

    fn of(command: &mut Command) -> Self {
        let mut child = command.stderr(Stdio::piped()).spawn().expect("it starts");
        let mut said = String::new();
        BufReader::new(child.stderr.as_mut().expect("a pipe"))
            .read_line(&mut said)
            .expect("it says something");
        assert!(said.contains("is mounted on"), "{said}");
        Self(child)
    }

    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.0), signal).expect("kill");
    }

    /// Its exit status and how long it took to end.
    fn ended(&mut self) -> std::process::ExitStatus {
        let mut status = None;
        let ended = within(SOON, || {
            status = self.0.try_wait().expect("wait");
            status.is_some()
        });
        assert!(ended, "the server does not end");
        status.expect("an exit status")
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn help_and_version() {
    let version = String::from_utf8(run(&["--version"]).stdout).expect("UTF-8");
    assert_eq!(version.trim(), format!("uvfs {}", env!("CARGO_PKG_VERSION")));
    let help = String::from_utf8(run(&["--help"]).stdout).expect("UTF-8");
    for word in ["mount", "umount", "stat", "Examples:", "uvfs mount -d tmpfs", "UVFS_LOG"] {
        assert!(help.contains(word), "{word}:\n{help}");
    }
    let help = String::from_utf8(run(&["mount", "--help"]).stdout).expect("UTF-8");
    for word in [
        "SOURCE",
        "DIR",
        "--daemon",
        "allow_other",
        "timeout=SECONDS",
        "size=BYTES",
        "ctl=show|hide|off",
        "kernfs:",
    ] {
        assert!(help.contains(word), "{word}:\n{help}");
    }
}

fn usage_errors_name_what_is_valid() {
    let (status, said) = refused(&["mount", "-o", "ro,colour=red", "tmpfs", "/"]);
    assert_eq!(status, 1);
    assert!(
        said.starts_with("uvfs: ") && said.contains("\"colour\"") && said.contains("nr_inodes"),
        "{said}"
    );
    let (_, said) = refused(&["mount", "-o", "size=lots", "tmpfs", "/"]);
    assert!(said.contains("size") && said.contains("lots"), "{said}");
    let (_, said) = refused(&["mount", "ext9", "/"]);
    assert!(said.contains("ext9") && said.contains("tmpfs") && said.contains("generated:"), "{said}");
    let (_, said) = refused(&["mount", "ext4:/none", "/"]);
    assert!(said.contains("/none") && said.contains("cannot be opened"), "{said}");
    let (_, said) = refused(&["mount", "ext4:/proc/self/exe", "/"]);
    assert!(said.contains("no ext2, ext3 or ext4"), "{said}");
    let (_, said) = refused(&["mount", "ext4:/dev/null", "/"]);
    assert!(said.contains("/dev/null") && said.contains("a character device"), "{said}");
    let (_, said) = refused(&["mount", "generated:depth=deep", "/"]);
    assert!(said.contains("deep"), "{said}");
    let (status, said) = refused(&["mount", "tmpfs"]);
    assert_eq!(status, 2);
    assert!(said.contains("DIR"), "{said}");
}

fn mount_errors_are_sentences() {
    let dir = Dir::new();
    let none = dir.path().join("none");
    let none = none.to_str().expect("UTF-8");
    for daemon in [&[][..], &["-d"]] {
        let (status, said) = refused(&[&["mount"], daemon, &["tmpfs", none]].concat());
        assert_eq!(status, 1);
        assert_eq!(
            said.trim(),
            format!("uvfs: {none} does not exist; make the directory first: mkdir {none}")
        );
    }
    fs::write(none, "").expect("write");
    assert!(refused(&["mount", "tmpfs", none]).1.contains("is not a directory"));
    assert!(refused(&["umount", dir.text()]).1.contains("nothing is mounted"));
    assert!(refused(&["umount", "/proc"]).1.contains("not a uvfs file system"));
    assert!(refused(&["umount", none]).1.contains("nothing is mounted on"), "a file");
    for nowhere in
        [format!("{none}/below"), dir.text().to_owned() + "/nodir", dir.text().to_owned() + "/nodir/below"]
    {
        for command in [&["umount"][..], &["remount", "-o", "ro"], &["reload"]] {
            let (status, said) = refused(&[command, &[&nowhere]].concat());
            let sentence = format!("uvfs: {nowhere} does not exist, so nothing is mounted there");
            assert_eq!((status, said.trim()), (1, &*sentence), "{command:?}");
        }
    }
}

fn mount_in_the_foreground_until_sigterm() {
    let dir = Dir::new();
    let mut server = Server::start(&["tmpfs", dir.text()]);
    assert!(is_mounted(dir.path()));
    fs::write(dir.path().join("file"), "x").expect("write");
    server.signal(Signal::TERM);
    assert!(server.ended().success());
    assert!(!is_mounted(dir.path()));
    assert!(!dir.path().join("file").exists());
}

fn mount_in_the_background() {
    let dir = Dir::new();
    let output = run(&["mount", "--daemon", "-o", "allow_other,fsname=mine", "tmpfs", dir.text()]);
    assert!(output.status.success(), "{output:?}");
    // It answers: no waiting here.
    fs::write(dir.path().join("file"), "x").expect("write");
    let mounts = fs::read_to_string("/proc/self/mounts").expect("mounts");
    assert!(mounts.contains(&format!("mine {} fuse.uvfs", dir.text())), "{mounts}");
    let output = run(&["umount", dir.text()]);
    assert!(output.status.success(), "{output:?}");
    assert!(!is_mounted(dir.path()));
}

fn a_background_failure_comes_back() {
    let dir = Dir::new();
    // The specification is good, but its root cannot be had: that is found out by the child.
    let (status, said) = refused(&["mount", "-d", "generated:fault=root:EIO", dir.text()]);
    assert_eq!(status, 1);
    assert!(said.contains("generated"), "{said}");
    assert!(!is_mounted(dir.path()));
}

fn umount_says_when_busy() {
    let dir = Dir::new();
    let mut server = Server::start(&["tmpfs", dir.text()]);
    let file = File::create(dir.path().join("open")).expect("create");
    let (status, said) = refused(&["umount", dir.text()]);
    assert_eq!(status, 1);
    assert!(said.contains("or a mount inside;") && said.contains("uvfs umount -l"), "{said}");
    assert!(run(&["umount", "-l", dir.text()]).status.success());
    assert!(!is_mounted(dir.path()));
    assert!(server.0.try_wait().expect("wait").is_none(), "the file is still open");
    drop(file);
    assert!(server.ended().success());
}

/// Shell loops that write, list, rename and remove below `dir`, until they fail.
fn load(dir: &Path) -> Vec<Child> {
    let script = |i: usize| {
        format!(
            "mkdir d{i} && cd d{i} && : > ready || exit 1; while echo x > f; do mv f g; ls > /dev/null; cat g > /dev/null; \
             rm g; done 2> /dev/null"
        )
    };
    let start = |i| Command::new("sh").args(["-c", &script(i)]).current_dir(dir).spawn().expect("sh");
    let children: Vec<Child> = (0..4).map(start).collect();
    assert!(within(SOON, || (0..4).all(|i| dir.join(format!("d{i}/ready")).exists())), "the load starts");
    children
}

fn reap(children: Vec<Child>) {
    for mut child in children {
        let ended = within(SOON, || child.try_wait().expect("wait").is_some());
        if !ended {
            let _ = child.kill();
        }
        assert!(ended, "a user of the mount hangs");
    }
}

fn sigint_under_load_detaches_and_ends() {
    let dir = Dir::new();
    let mut server = Server::start(&["tmpfs", dir.text()]);
    let users = load(dir.path());
    server.signal(Signal::INT);
    assert!(server.ended().success());
    assert!(!is_mounted(dir.path()));
    let mut said = String::new();
    std::io::Read::read_to_string(server.0.stderr.as_mut().expect("a pipe"), &mut said).expect("read");
    assert!(said.contains("was in use and has been detached"), "{said}");
    reap(users);
}

fn kill_under_load_leaves_nothing_hanging() {
    let dir = Dir::new();
    let mut server = Server::start(&["tmpfs", dir.text()]);
    let users = load(dir.path());
    let mut open = File::create(dir.path().join("open")).expect("create");
    server.signal(Signal::KILL);
    assert_eq!(server.ended().signal(), Some(9));
    let gone = |error: std::io::Error| matches!(error.raw_os_error(), Some(107 | 103));
    assert!(open.write_all(b"x").is_err_and(gone), "ENOTCONN or ECONNABORTED");
    assert!(fs::metadata(dir.path()).is_err_and(gone));
    reap(users);
    // The next mount says what is wrong and how to clear it.
    let (_, said) = refused(&["mount", "tmpfs", dir.text()]);
    assert!(said.contains("server has died") && said.contains("uvfs umount"), "{said}");
    // Also while a file is open in it: there is nothing left to lose.
    let output = run(&["umount", dir.text()]);
    assert!(output.status.success(), "{output:?}");
    assert!(!is_mounted(dir.path()));
    drop(open);
    drop(Server::start(&["tmpfs", dir.text()]));
}

fn tmpfs_options_take_effect() {
    let dir = Dir::new();
    let options = "suid,dev,allow_other,default_permissions,size=1m,nr_inodes=50,mode=2750,uid=12,gid=34";
    let _server = Server::start(&["-o", options, "tmpfs", dir.text()]);
    let root = rustix::fs::stat(dir.path()).expect("stat");
    assert_eq!((root.st_mode & 0o7777, root.st_uid, root.st_gid), (0o2750, 12, 34));
    let error = fs::write(dir.path().join("big"), vec![0; 2 << 20]).expect_err("more than size=");
    assert_eq!(error.raw_os_error(), Some(28));
    fs::remove_file(dir.path().join("big")).expect("unlink");
    let made = (0..100).take_while(|i| File::create(dir.path().join(i.to_string())).is_ok()).count();
    assert!((40..=50).contains(&made), "{made} files with nr_inodes=50");
}

fn generated_trees() {
    let dir = Dir::new();
    let _server = Server::start(&["generated:depth=2,dirs=3,files=5,seed=7", dir.text()]);
    let script = format!("find {} -type f | wc -l", dir.text());
    let output = Command::new("sh").args(["-c", &script]).output().expect("sh");
    assert_eq!(String::from_utf8_lossy(&output.stdout).trim(), (5 * (1 + 3 + 9)).to_string());
}

/// A disk with one partition of an MBR, in which the image is.
fn partitioned(image: &str, dir: &str) {
    let disk = format!("{image}-disk");
    let mut bytes = vec![0; 1 << 20];
    bytes[446..462].copy_from_slice(&[0, 0, 0, 0, 0x83, 0, 0, 0, 0, 8, 0, 0, 0, 32, 0, 0]);
    bytes[510..512].copy_from_slice(&[0x55, 0xaa]);
    bytes.extend(fs::read(image).expect("read"));
    fs::write(&disk, bytes).expect("write");
    let source = format!("ext4:{disk}");
    let (_, said) = refused(&["mount", &source, dir]);
    assert!(said.contains("partition table (MBR)") && said.contains("partition=1 (offset=1048576"), "{said}");
    for (option, what) in [
        ("partition=2", "no partition 2"),
        ("partition=x", "a number"),
        ("offset=x", "expected bytes"),
        ("offset=1m,partition=1", "one of them"),
        ("offset=2m", "no ext2"),
    ] {
        let (_, said) = refused(&["mount", "-o", option, &source, dir]);
        assert!(said.contains(what), "{option}: {said}");
    }
    for option in ["partition=1", "offset=1m", "offset=1048576"] {
        let mut server = Server::start(&["-o", option, &source, dir]);
        assert_eq!(fs::read_to_string(Path::new(dir).join("file")).expect("read"), "content", "{option}");
        server.signal(Signal::TERM);
        assert!(server.ended().success());
    }
}

fn ext4_images() {
    let (dir, files) = (Dir::new(), Dir::new());
    let image = files.path().join("image");
    let image = image.to_str().expect("UTF-8");
    let tree = files.path().join("tree");
    fs::create_dir(&tree).expect("mkdir");
    fs::write(tree.join("file"), "content").expect("write");
    let script = format!("PATH=$PATH:/usr/sbin mke2fs -q -t ext4 -d {} {image} 4M", tree.display());
    let made = Command::new("sh").args(["-c", &script]).status().expect("sh");
    if !made.success() {
        eprintln!("skipped: ext4_images: no mke2fs");
        return;
    }
    let (source, trace) = (format!("ext4:{image}"), files.path().join("trace"));
    let record = format!("record={}", trace.display());
    let mut server = Server::start(&["-o", &record, &source, dir.text()]);
    assert_eq!(fs::read_to_string(dir.path().join("file")).expect("read"), "content");
    let looked_up = |place: &str| -> u64 {
        let text = fs::read_to_string(dir.path().join(".uvfs/lookaside").join(place)).expect("a figure");
        text.trim().parse().expect("a number")
    };
    // The first block's leaf cannot have been remembered, but a later block of the same leaf finds it.
    let (missed, hits) = (looked_up("misses"), looked_up("last") + looked_up("table"));
    assert!(missed >= 1 && hits >= 1, "{missed} misses, {hits} hits");
    let error = fs::write(dir.path().join("new"), "x").expect_err("read-only");
    assert_eq!(error.raw_os_error(), Some(rustix::io::Errno::ROFS.raw_os_error()));
    let mounts = fs::read_to_string("/proc/self/mounts").expect("mounts");
    assert!(mounts.lines().any(|line| line.contains(dir.text()) && line.contains(" ro,")), "{mounts}");
    // Nor does a remount make it another.
    assert!(run(&["remount", "-o", "rw", dir.text()]).status.success());
    let mounts = fs::read_to_string("/proc/self/mounts").expect("mounts");
    assert!(mounts.lines().any(|line| line.contains(dir.text()) && line.contains(" ro,")), "{mounts}");
    server.signal(Signal::TERM);
    assert!(server.ended().success());
    let trace = fs::read_to_string(trace).expect("a trace");
    let (heads, lines): (Vec<&str>, Vec<&str>) = trace.lines().partition(|line| line.starts_with('#'));
    let is_block = |line: &&str| line.split(' ').all(|number| number.parse::<u64>().is_ok());
    assert!(heads.len() == 1 && lines.len() > 2 && lines.iter().all(is_block), "{trace}");
    partitioned(image, dir.text());
    // Nothing is overwritten, least of all the image.
    for taken in [record, format!("record={image}")] {
        let (_, said) = refused(&["mount", "-o", &taken, &source, dir.text()]);
        assert!(said.contains("exists already"), "{said}");
    }
}
