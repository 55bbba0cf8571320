//! `.uvfs` in the root of a mount, and `uvfs stat`.

use std::collections::HashMap;
use std::fs;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread;

use crate::{Dir, SOON, Server, Test, load, reap, refused, run, uvfs, within};

pub const PLAIN: &[Test] = &[("stat_of_no_mount_says_so", stat_of_no_mount_says_so)];

pub const MOUNTING: &[Test] = &[
    ("it_is_there_but_not_listed", it_is_there_but_not_listed),
    ("its_name_is_taken", its_name_is_taken),
    ("figures_count_what_is_done", figures_count_what_is_done),
    ("it_is_read_while_calls_hang", it_is_read_while_calls_hang),
    ("it_is_read_under_load", it_is_read_under_load),
    ("stat_prints_figures", stat_prints_figures),
    ("knobs_turn", knobs_turn),
];

fn listed(dir: &Path) -> bool {
    fs::read_dir(dir).expect("list").any(|entry| entry.expect("an entry").file_name() == ".uvfs")
}

/// The figures in `.uvfs/stats`.
fn figures(dir: &Path) -> HashMap<String, u64> {
    let text = fs::read_to_string(dir.join(".uvfs/stats")).expect("stats");
    let figure = |line: &str| {
        let (name, value) = line.split_once(' ').expect("a name and a value");
        (name.to_owned(), value.parse().expect("a number"))
    };
    text.lines().map(figure).collect()
}

fn stat_of_no_mount_says_so() {
    let dir = Dir::new();
    let (status, said) = refused(&["stat", dir.text()]);
    assert_eq!(status, 1);
    assert!(said.contains("nothing is mounted on"), "{said}");
    assert_eq!(refused(&["stat", "--watch=never", dir.text()]).0, 2);
    let file = dir.path().join("file");
    fs::write(&file, "").expect("write");
    let (_, said) = refused(&["stat", file.to_str().expect("UTF-8")]);
    assert_eq!(said, format!("uvfs: nothing is mounted on {}\n", file.display()));
}

fn it_is_there_but_not_listed() {
    for source in ["tmpfs", "generated:depth=1,files=3"] {
        for (ctl, there, shown) in [("hide", true, false), ("show", true, true), ("off", false, false)] {
            let dir = Dir::new();
            let _server = Server::start(&["-o", &format!("ctl={ctl}"), source, dir.text()]);
            assert_eq!(dir.path().join(".uvfs").is_dir(), there, "{source}, {ctl}");
            assert_eq!(listed(dir.path()), shown, "{source}, {ctl}");
            if there {
                let shown = fs::read_to_string(dir.path().join(".uvfs/source")).expect("read");
                assert_eq!(shown.trim(), source);
                assert!(dir.path().join(".uvfs/../.uvfs/calls/lookup").is_file());
                assert!(fs::read_dir(dir.path().join(".uvfs")).expect("list").count() > 10);
            }
        }
    }
}

fn its_name_is_taken() {
    let dir = Dir::new();
    let _server = Server::start(&["tmpfs", dir.text()]);
    let control = dir.path().join(".uvfs");
    let other = dir.path().join("other");
    fs::create_dir(&other).expect("mkdir");
    let errno = |outcome: std::io::Result<()>| outcome.expect_err("refused").raw_os_error();
    assert_eq!(errno(fs::create_dir(&control)), Some(17), "EEXIST");
    assert_eq!(errno(fs::remove_dir(&control)), Some(16), "EBUSY");
    assert_eq!(errno(fs::remove_file(&control)), Some(21), "EISDIR");
    assert_eq!(errno(fs::rename(&control, dir.path().join("x"))), Some(16), "EBUSY");
    assert_eq!(errno(fs::rename(&other, &control)), Some(16), "EBUSY");
    assert_eq!(errno(fs::write(control.join("new"), "")), Some(1), "EPERM");
    assert!(control.join("stats").is_file());
}

fn figures_count_what_is_done() {
    let dir = Dir::new();
    // A kernel that keeps what it is told would leave nothing for the cache to answer.
    let _server = Server::start(&["-o", "timeout=0", "generated:depth=1,dirs=2,files=10", dir.text()]);
    let before = figures(dir.path());
    let output = Command::new("find").arg(dir.path()).arg("-ls").output().expect("find");
    assert!(output.status.success());
    let after = figures(dir.path());
    let more = |name: &str| after[name] - before[name];
    assert_eq!(more("calls/lookup"), 32, "ten files here, and in each of two directories");
    assert_eq!(more("misses"), 32, "each was asked for once");
    assert!(more("calls/readdir") >= 3 && more("hits") > 0, "{after:?}");
    assert!(after["lookups_held"] >= 32 && after["inodes"] > 32, "{after:?}");
    assert_eq!(after["calls_now"], 0);
    let one = fs::read_to_string(dir.path().join(".uvfs/calls/lookup")).expect("read");
    assert_eq!(one.trim().parse(), Ok(after["calls/lookup"]));
}

/// Many more calls hang than there are threads that read requests.
fn it_is_read_while_calls_hang() {
    let dir = Dir::new();
    let mut server = Server::start(&["generated:depth=0,files=10,fault=lookup:delay:1000s", dir.text()]);
    let hanging: Vec<_> = (0..32)
        .map(|i| {
            let path = dir.path().join(format!("none{i}"));
            thread::spawn(move || fs::metadata(path).is_ok())
        })
        .collect();
    assert!(within(SOON, || figures(dir.path())["calls_now"] == 32), "{:?}", figures(dir.path()));
    assert_eq!(figures(dir.path())["calls/lookup"], 32);
    let output = run(&["stat", dir.text()]);
    assert!(output.status.success(), "{output:?}");
    assert!(!fs::read_dir(dir.path().join(".uvfs/calls")).expect("list").any(|entry| entry.is_err()));
    server.0.kill().expect("kill");
    server.ended();
    for thread in hanging {
        assert!(!thread.join().expect("no panic"));
    }
}

fn it_is_read_under_load() {
    let dir = Dir::new();
    let _server = Server::start(&["tmpfs", dir.text()]);
    let users = load(dir.path());
    let mut last = 0;
    for _ in 0..200 {
        let figures = figures(dir.path());
        let calls: u64 = ["create", "write", "rename", "unlink"]
            .map(|call| figures[&format!("calls/{call}")])
            .iter()
            .sum();
        assert!(calls >= last, "{calls} after {last}");
        last = calls;
    }
    assert!(last > 0);
    run(&["umount", "-l", dir.text()]);
    for mut user in users {
        // Their directories are detached, not gone.
        let _ = user.kill();
        reap(vec![user]);
    }
}

fn stat_prints_figures() {
    let dir = Dir::new();
    let _server = Server::start(&["tmpfs", dir.text()]);
    fs::write(dir.path().join("file"), "x").expect("write");
    let printed = |args: &[&str]| {
        let output = run(&[&["stat"], args, &[dir.text()]].concat());
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stdout).expect("UTF-8")
    };
    let table = printed(&[]);
    assert!(table.lines().any(|line| line.split_whitespace().eq(["calls/create", "1"])), "{table}");
    assert!(!table.contains("calls/setxattr") && printed(&["--all"]).contains("calls/setxattr"));
    let json = printed(&["--json"]);
    assert!(json.starts_with("{\"inodes\": ") && json.contains("\"calls/create\": 1,"), "{json}");
    let mut watch =
        uvfs(&["stat", "--watch=0.05", dir.text()]).stdout(Stdio::piped()).spawn().expect("it starts");
    let mut lines = BufReader::new(watch.stdout.take().expect("a pipe")).lines().map_while(Result::ok);
    assert!(lines.any(|line| line.starts_with("hits") && line.ends_with("/s")), "no second look");
    drop(lines);
    assert!(within(SOON, || watch.try_wait().expect("wait").is_some_and(|status| status.success())));
}

fn knobs_turn() {
    let dir = Dir::new();
    let _server = Server::start(&["generated:depth=1,dirs=2,files=100", dir.text()]);
    let knob = |name: &str| dir.path().join(".uvfs").join(name);
    let read = |name: &str| fs::read_to_string(knob(name)).expect("read").trim().to_owned();
    fs::write(knob("bytes_limit"), "64m").expect("write");
    assert_eq!(read("bytes_limit"), (64 << 20).to_string());
    fs::write(knob("bytes_limit"), "100000000\n").expect("write");
    assert_eq!(read("bytes_limit"), "100000000");
    fs::write(knob("log"), "error").expect("write");
    assert!(read("log").contains("error"));
    let bytes = || read("bytes").parse::<u64>().expect("a number");
    assert!(fs::read_dir(dir.path()).expect("readdir").count() > 100);
    let before = bytes();
    fs::write(knob("shrink"), "0").expect("write");
    // By a thread of its own; the kernel is asked for what it holds.
    assert!(within(SOON, || bytes() < before), "{before} bytes, then {}", bytes());
    let pressure = read("memory/pressure");
    assert!(pressure.starts_with('/') || pressure.starts_with("none ("), "{pressure}");
    // The least is that of `-o memory=`.
    for (name, bad) in
        [("bytes_limit", "much"), ("bytes_limit", "1"), ("shrink", "-1"), ("log", "uvfs=nonsense")]
    {
        assert_eq!(fs::write(knob(name), bad).expect_err("refused").raw_os_error(), Some(22), "{name}");
    }
    assert_eq!(read("bytes_limit"), "100000000");
}
