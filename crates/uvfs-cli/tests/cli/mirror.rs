//! A mirror of a directory with other file systems inside, as users meet it.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use rustix::io::Errno;

use super::{Dir, SOON, Server, Test, within};

pub const MOUNTING: &[Test] = &[
    ("what_is_mounted_inside_is_shown", what_is_mounted_inside_is_shown),
    ("without_time_the_first_look_is_right", without_time_the_first_look_is_right),
];

/// The mount points that a test has mounted.
struct Points(Vec<PathBuf>);

impl Points {
    fn mount(&mut self, point: PathBuf) -> bool {
        fs::create_dir_all(&point).expect("mkdir");
        let mounted = Command::new("mount").args(["-t", "tmpfs", "none"]).arg(&point).status();
        let mounted = mounted.is_ok_and(|status| status.success());
        if mounted {
            self.0.push(point);
        }
        mounted
    }
}

impl Drop for Points {
    fn drop(&mut self) {
        for point in self.0.iter().rev() {
            let _ = Command::new("umount").arg("-l").arg(point).status();
        }
    }
}

fn read(path: &Path) -> Option<String> {
    fs::read_to_string(path).ok()
}

fn what_is_mounted_inside_is_shown() {
    let (src, dir) = (Dir::new(), Dir::new());
    let mut points = Points(Vec::new());
    if !points.mount(src.path().join("a")) {
        return eprintln!("skipped: what_is_mounted_inside_is_shown: cannot mount a tmpfs");
    }
    let host = |name: &str| src.path().join(name);
    let seen = |name: &str| dir.path().join(name);
    fs::write(host("a/file"), "one").expect("write");
    let source = format!("mirror:{}", src.text());
    let server = Server::start(&["-o", "xdev", &source, dir.text()]);
    assert_eq!(read(&seen("a/file")).as_deref(), Some("one"));
    // The kernel knows this as a directory of the same file system.
    fs::create_dir(host("late")).expect("mkdir");
    fs::write(host("late/under"), "under").expect("write");
    assert!(within(SOON, || read(&seen("late/under")).is_some()));
    assert!(points.mount(host("late")));
    fs::write(host("late/upper"), "upper").expect("write");
    assert!(within(SOON, || read(&seen("late/upper")).is_some()));
    assert_eq!(read(&seen("late/under")), None);
    let size = |path: PathBuf| rustix::fs::statvfs(path).map(|it| it.f_blocks * it.f_frsize);
    assert_eq!(size(seen("late/upper")), size(host("late/upper")));
    assert_eq!(size(dir.path().into()), size(src.path().into()));
    // A mount is listed when its watcher has begun.
    let coherence = || read(&seen(".uvfs/coherence")).expect("a file");
    let listed = || coherence().contains("\na: ") && coherence().contains("\nlate: ");
    assert!(within(SOON, listed), "{}", coherence());
    let across = fs::rename(seen("a/file"), seen("late/file")).expect_err("another device");
    assert_eq!(across.raw_os_error(), Some(Errno::XDEV.raw_os_error()));
    // Nothing that is only known keeps it.
    // But what was asked of it a moment ago may.
    let unmounted = || Command::new("umount").arg(host("late")).status().expect("umount").success();
    assert!(within(SOON, unmounted));
    points.0.pop();
    assert!(within(SOON, || read(&seen("late/under")).as_deref() == Some("under")));
    assert_eq!(read(&seen("late/upper")), None);
    assert!(within(SOON, || !read(&seen(".uvfs/coherence")).expect("a file").contains("late")));
    drop(server);
}

/// With `timeout=0` each look asks the host, also where it could be watched: what was changed before a look is seen by it.
fn without_time_the_first_look_is_right() {
    let (src, dir) = (Dir::new(), Dir::new());
    let mut points = Points(Vec::new());
    // A watch is possible there, whatever the temporary directory is on.
    if !points.mount(src.path().to_owned()) || !points.mount(src.path().join("inside")) {
        return eprintln!("skipped: without_time_the_first_look_is_right: cannot mount a tmpfs");
    }
    let server =
        Server::start(&["-o", "timeout=0,xdev,allow_other", &format!("mirror:{}", src.text()), dir.text()]);
    let asked =
        "not watched, the host is asked each time\ninside: not watched, the host is asked each time\n";
    assert_eq!(read(&dir.path().join(".uvfs/coherence")).as_deref(), Some(asked));
    for at in [".", "inside"] {
        let (host, seen) = (src.path().join(at), dir.path().join(at));
        let listed = |name: &str| {
            fs::read_dir(&seen).expect("a listing").flatten().any(|entry| entry.file_name() == *name)
        };
        for round in 0..100 {
            let name = format!("f{round}");
            let (there, here) = (host.join(&name), seen.join(&name));
            assert!(!here.exists() && !listed(&name));
            fs::write(&there, "x").expect("write");
            assert!(here.exists() && listed(&name), "{name} in {at}: it was made");
            fs::write(&there, "longer").expect("write");
            assert_eq!(fs::metadata(&here).expect("stat").len(), 6, "{name} in {at}");
            fs::write(&there, "differ").expect("write");
            assert_eq!(read(&here).as_deref(), Some("differ"), "{name} in {at}");
            fs::rename(&there, host.join("moved")).expect("rename");
            assert!(!here.exists() && !listed(&name) && seen.join("moved").exists(), "{name} in {at}");
            fs::remove_file(host.join("moved")).expect("unlink");
            assert!(!seen.join("moved").exists(), "{name} in {at}: it was removed");
        }
    }
    drop(server);
}
