//! `host` files of a kernfs tree that lead back into the mount, and servers that wait for each other: no thread is lost, and
//! SIGTERM ends the server soon.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::mount::{UnmountFlags, mount_bind, unmount};
use rustix::process::Signal;

use super::{Dir, Server, Test, within};

pub const MOUNTING: &[Test] = &[
    ("a_host_file_in_the_mount_itself_is_refused", a_host_file_in_the_mount_itself_is_refused),
    (
        "a_host_file_that_comes_to_be_in_the_mount_is_refused",
        a_host_file_that_comes_to_be_in_the_mount_is_refused,
    ),
    ("sigterm_ends_servers_that_wait_for_each_other", sigterm_ends_servers_that_wait_for_each_other),
];

/// The end of a mount takes a second of grace, and five in all at the most.
const BOUND: Duration = Duration::from_secs(15);

/// Serves a tree of host files (path, host) on `dir`.
fn serve(files: &Path, dir: &Dir, hosts: &[(&str, &Path)]) -> Server {
    let spec: String = hosts
        .iter()
        .map(|(path, host)| format!("[[file]]\npath = {path:?}\nhost = {host:?}\nmode = 0o644\n"))
        .collect();
    let file = files.join(format!("{}.toml", dir.path().file_name().expect("a name").display()));
    fs::write(&file, spec).expect("write");
    Server::start(&[&format!("kernfs:{}", file.display()), dir.text()])
}

fn ends_in_time(server: &mut Server, signal: Signal) {
    let start = Instant::now();
    server.signal(signal);
    let mut ended = false;
    within(BOUND, || {
        ended = server.0.try_wait().expect("wait").is_some();
        ended
    });
    assert!(ended, "the server lives on {:?} after {signal:?}", start.elapsed());
}

/// The answers that a reader and a writer of `path` get, in a program of their own that is killed where it waits.
fn told(path: &Path) -> [String; 2] {
    ["cat \"$0\"", "/bin/echo new > \"$0\""].map(|script| {
        let mut command = Command::new("timeout");
        command.args(["-s", "KILL", "10", "sh", "-c", script]).arg(path).stdin(Stdio::null());
        let output = command.output().expect("timeout(1)");
        assert!(output.status.code() != Some(137), "{script} {} hangs", path.display());
        String::from_utf8_lossy(&output.stderr).into_owned()
    })
}

fn threads(server: &Server) -> usize {
    fs::read_dir(format!("/proc/{}/task", server.0.id())).expect("proc").count()
}

fn a_host_file_in_the_mount_itself_is_refused() {
    let files = tempfile::tempdir().expect("a temporary directory");
    let dir = Dir::new();
    let (link, deep) = (files.path().join("link"), files.path().join("deep"));
    symlink(dir.path().join("linked"), &link).expect("a link");
    symlink(dir.path(), &deep).expect("a link");
    let direct = dir.path().join("direct");
    let around = dir.path().join("direct/../a");
    let hosts = [
        ("direct", &*direct),
        ("linked", &*link),
        ("a", &*dir.path().join("b")),
        ("b", &*deep.join("a")),
        ("c", &*around),
    ];
    let mut server = serve(files.path(), &dir, &hosts);
    for name in ["direct", "linked", "a", "b"] {
        for said in told(&dir.path().join(name)) {
            assert!(said.contains("deadlock"), "{name}: {said}");
        }
    }
    // `direct` is no directory, so nothing is found behind it.
    assert!(told(&dir.path().join("c")).iter().all(|said| said.contains("Not a directory")));
    assert!(threads(&server) < 30, "{} threads", threads(&server));
    ends_in_time(&mut server, Signal::TERM);
}

/// By a bind mount and by a rename, after the file was read well.
fn a_host_file_that_comes_to_be_in_the_mount_is_refused() {
    let files = tempfile::tempdir().expect("a temporary directory");
    let dir = Dir::new();
    let (place, name) = (files.path().join("place"), files.path().join("name"));
    fs::create_dir(&place).expect("a directory");
    for file in [place.join("bound"), name.clone()] {
        fs::write(file, "good").expect("write");
    }
    let mut server = serve(files.path(), &dir, &[("bound", &place.join("bound")), ("renamed", &name)]);
    for file in ["bound", "renamed"] {
        assert_eq!(fs::read_to_string(dir.path().join(file)).expect("read"), "good");
    }
    mount_bind(dir.path(), &place).expect("a bind mount");
    symlink(dir.path().join("renamed"), files.path().join("new")).expect("a link");
    fs::rename(files.path().join("new"), &name).expect("a rename");
    let said = ["bound", "renamed"].map(|file| told(&dir.path().join(file)));
    unmount(&place, UnmountFlags::DETACH).expect("unmount");
    assert!(said.iter().flatten().all(|said| said.contains("deadlock")), "{said:?}");
    assert_eq!(fs::read_to_string(dir.path().join("bound")).expect("read"), "good");
    ends_in_time(&mut server, Signal::INT);
}

/// A reader that is killed, and waited for, when the test ends.
struct Reader(Child);

impl Drop for Reader {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn sigterm_ends_servers_that_wait_for_each_other() {
    for signal in [Signal::TERM, Signal::INT] {
        let files = tempfile::tempdir().expect("a temporary directory");
        let (one, other) = (Dir::new(), Dir::new());
        let mut first = serve(files.path(), &one, &[("x", &other.path().join("x"))]);
        let mut second = serve(files.path(), &other, &[("x", &one.path().join("x"))]);
        let mut cat = Command::new("cat");
        cat.arg(one.path().join("x")).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let mut reader = Reader(cat.spawn().expect("cat(1)"));
        // Each question makes the next one, until no thread is left for it.
        let mut before = 0;
        within(BOUND, || {
            let now = threads(&first) + threads(&second);
            std::mem::replace(&mut before, now) == now && now > 20
        });
        ends_in_time(&mut first, signal);
        let mut ended = false;
        within(BOUND, || {
            ended = reader.0.try_wait().expect("wait").is_some();
            ended
        });
        assert!(ended, "the reader waits for a server that is gone");
        ends_in_time(&mut second, signal);
    }
}
