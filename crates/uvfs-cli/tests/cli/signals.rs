//! Signals to a server, and `uvfs reload`.

use std::fs;
use std::io::Read;
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::SeqCst};
use std::thread;

use rustix::process::{Pid, Resource, Rlimit, Signal, prlimit};

use crate::{Dir, SOON, Server, Test, is_mounted, refused, run, uvfs, within};

pub const MOUNTING: &[Test] = &[
    ("no_signal_ends_a_server_by_mistake", no_signal_ends_a_server_by_mistake),
    ("signals_that_ask_for_the_end_unmount", signals_that_ask_for_the_end_unmount),
    ("a_server_that_gets_no_thread_unmounts", a_server_that_gets_no_thread_unmounts),
    ("sighup_is_logged_where_nothing_is_reloaded", sighup_is_logged_where_nothing_is_reloaded),
    ("reload_prints_what_it_did", reload_prints_what_it_did),
    ("reload_says_why_it_cannot", reload_says_why_it_cannot),
    ("no_read_fails_because_of_a_reload", no_read_fails_because_of_a_reload),
    ("a_reload_waits_for_no_reader", a_reload_waits_for_no_reader),
    ("root_cannot_write_what_has_no_write_bit", root_cannot_write_what_has_no_write_bit),
    ("a_server_outlives_its_standard_error", a_server_outlives_its_standard_error),
    ("a_server_waits_for_no_reader_of_its_messages", a_server_waits_for_no_reader_of_its_messages),
];

/// The signals whose default is the end of the process, but for faults, SIGKILL and those that ask for the end.
fn harmless() -> Vec<i32> {
    let rest =
        [Signal::ABORT, Signal::BUS, Signal::FPE, Signal::ILL, Signal::SEGV, Signal::SYS, Signal::TRAP];
    let ending = [Signal::INT, Signal::TERM, Signal::QUIT, Signal::KILL];
    let stopping = [Signal::STOP, Signal::TSTP, Signal::TTIN, Signal::TTOU];
    let skipped: Vec<i32> =
        [&rest[..], &ending, &stopping].concat().iter().map(|signal| signal.as_raw()).collect();
    // 32 and 33 are the C library's own.
    (1..=64).filter(|signal| !skipped.contains(signal) && ![32, 33].contains(signal)).collect()
}

fn no_signal_ends_a_server_by_mistake() {
    let dir = Dir::new();
    let mut server = Server::start(&["tmpfs", dir.text()]);
    fs::write(dir.path().join("file"), "kept").expect("write");
    for signal in harmless() {
        let pid = server.0.id();
        let sent = Command::new("sh").args(["-c", &format!("kill -{signal} {pid}")]).status().expect("sh");
        assert!(sent.success(), "signal {signal}");
        assert_eq!(
            fs::read_to_string(dir.path().join("file")).expect("read"),
            "kept",
            "after signal {signal}"
        );
    }
    // The end is asked for last, and signals of a lower number are taken first: all of them have had their effect.
    server.signal(Signal::TERM);
    assert!(server.ended().success());
}

fn signals_that_ask_for_the_end_unmount() {
    for signal in [Signal::TERM, Signal::INT, Signal::QUIT] {
        let dir = Dir::new();
        let mut server = Server::start(&["tmpfs", dir.text()]);
        server.signal(signal);
        assert!(server.ended().success(), "{signal:?}");
        assert!(!is_mounted(dir.path()), "{signal:?}");
    }
}

fn has_thread(pid: Pid, name: &str) -> bool {
    let tasks = fs::read_dir(format!("/proc/{}/task", pid.as_raw_nonzero())).expect("tasks");
    let mut names = tasks.filter_map(|task| fs::read_to_string(task.ok()?.path().join("comm")).ok());
    names.any(|found| found.trim_end() == name)
}

/// The bytes of a process's address space.
fn address_space(pid: Pid) -> u64 {
    let status = fs::read_to_string(format!("/proc/{}/status", pid.as_raw_nonzero())).expect("status");
    let line = status.lines().find_map(|line| line.strip_prefix("VmSize:")).expect("VmSize");
    line.trim().trim_end_matches(" kB").parse::<u64>().expect("a number") << 10
}

/// Fails if the mount stays after the server: the unmount needs no thread, but what bounds its time does.
fn a_server_that_gets_no_thread_unmounts() {
    let dir = Dir::new();
    // The C library keeps the stacks of threads that have ended. A new thread would get one without any address space.
    // A stack is far larger than anything else that the server may still have to allocate: a thread that has started
    // late its buffer of a request, the log its lines. Without memory for them it would abort, and the mount with it.
    const STACK: u64 = 64 << 20;
    let mut server = Server::of(
        uvfs(&["mount", "tmpfs", dir.text()])
            .env("GLIBC_TUNABLES", "glibc.pthread.stack_cache_size=0")
            .env("RUST_MIN_STACK", STACK.to_string()),
    );
    fs::write(dir.path().join("file"), "kept").expect("write");
    let pid = Pid::from_child(&server.0);
    // The last thread that starts by itself has to be there.
    assert!(within(SOON, || has_thread(pid, "uvfs-signals")), "the server waits for signals");
    // A thread's stack is address space: half of one is left.
    let left = address_space(pid) + STACK / 2;
    prlimit(Some(pid), Resource::As, Rlimit { current: Some(left), maximum: None }).expect("prlimit(2)");
    server.signal(Signal::TERM);
    let status = server.ended();
    let mut said = String::new();
    server.0.stderr.as_mut().expect("a pipe").read_to_string(&mut said).expect("read");
    assert!(said.contains("no thread"), "a thread was had, so nothing was tested: {said}");
    assert!(status.success() && !is_mounted(dir.path()), "{status}: {said}");
}

fn sighup_is_logged_where_nothing_is_reloaded() {
    let dir = Dir::new();
    let mut server = Server::start(&["tmpfs", dir.text()]);
    fs::write(dir.path().join("file"), "kept").expect("write");
    server.signal(Signal::HUP);
    assert_eq!(fs::read_to_string(dir.path().join("file")).expect("read"), "kept");
    server.signal(Signal::TERM);
    assert!(server.ended().success());
    let mut said = String::new();
    server.0.stderr.as_mut().expect("a pipe").read_to_string(&mut said).expect("read");
    assert_eq!(said.lines().count(), 1, "{said}");
    assert!(said.contains("SIGHUP is ignored") && said.contains("tmpfs"), "{said}");
}

fn reload_prints_what_it_did() {
    let (files, dir) = (Dir::new(), Dir::new());
    let spec = files.path().join("tree.toml");
    let value = |value: &str| {
        fs::write(&spec, format!("[[value]]\npath = \"a\"\nvalue = \"{value}\"\n")).expect("write")
    };
    value("one");
    let _server = Server::start(&[&format!("kernfs:{}", spec.display()), dir.text()]);
    for content in ["two", "three", "four"] {
        value(content);
        let output = run(&["reload", dir.text()]);
        assert!(output.status.success(), "{output:?}");
        assert_eq!(String::from_utf8_lossy(&output.stdout), "0 added, 1 changed, 0 removed\n");
        assert_eq!(fs::read_to_string(dir.path().join("a")).expect("read"), format!("{content}\n"));
    }
    fs::write(&spec, "[[value]]\npath = 7\n").expect("write");
    let (status, said) = refused(&["reload", dir.text()]);
    assert_eq!(status, 1);
    assert!(said.starts_with("uvfs: not reloaded: ") && said.contains("tree.toml:2:8:"), "{said}");
    assert_eq!(said.lines().count(), 1, "{said}");
    assert_eq!(fs::read_to_string(dir.path().join("a")).expect("read"), "four\n");
}

fn reload_says_why_it_cannot() {
    let dir = Dir::new();
    assert!(refused(&["reload", dir.text()]).1.contains("nothing is mounted on"));
    assert!(refused(&["reload", "/proc"]).1.contains("is not a uvfs file system but proc"));
    assert!(
        refused(&["reload", "/nowhere/at/all"]).1.contains("does not exist, so nothing is mounted there")
    );
    let server = Server::start(&["tmpfs", dir.text()]);
    let (_, said) = refused(&["reload", dir.text()]);
    assert!(
        said.contains("nothing to reload") && said.contains("tmpfs") && said.contains("kernfs:FILE"),
        "{said}"
    );
    server.signal(Signal::KILL);
    assert!(within(SOON, || refused(&["reload", dir.text()]).1.contains("has died; clear it")));
    run(&["umount", dir.text()]);
    let _server = Server::start(&["-o", "ctl=off", "tmpfs", dir.text()]);
    let (_, said) = refused(&["reload", dir.text()]);
    assert!(said.contains("ctl=off") && said.contains("SIGHUP"), "{said}");
}

/// Messages after the other side of standard error has gone must not panic: a panic ends the server.
fn a_server_outlives_its_standard_error() {
    let (files, dir) = (Dir::new(), Dir::new());
    let spec = files.path().join("tree.toml");
    fs::write(&spec, "[[counter]]\npath = \"n\"\n").expect("write");
    let mut server = Server::start(&[&format!("kernfs:{}", spec.display()), dir.text()]);
    drop(server.0.stderr.take());
    fs::write(dir.path().join("n"), "7").expect("write");
    fs::write(&spec, "nonsense").expect("write");
    // Said on standard error, too.
    assert!(refused(&["reload", dir.text()]).1.contains("not reloaded"));
    server.signal(Signal::USR1);
    assert_eq!(fs::read_to_string(dir.path().join("n")).expect("read"), "7\n");
    server.signal(Signal::TERM);
    assert!(server.ended().success());
}

/// A pipe that is full: each read is logged there with half a kilobyte, and so is the end.
fn a_server_waits_for_no_reader_of_its_messages() {
    let (files, dir) = (Dir::new(), Dir::new());
    let spec = files.path().join("tree.toml");
    let run = "yes why | head -c 2000 >&2; exit 1";
    fs::write(&spec, format!("[[command]]\npath = \"bad\"\nrun = [\"sh\", \"-c\", \"{run}\"]\n"))
        .expect("write");
    let mut server = Server::start(&[&format!("kernfs:{}", spec.display()), dir.text()]);
    // In use: that is told at the end, too.
    let _open = fs::File::open(dir.path()).expect("open");
    let mut readers = Command::new("sh");
    readers.args(["-c", "for i in $(seq 150); do cat \"$0\"; done"]).arg(dir.path().join("bad"));
    let mut readers = readers.stderr(std::process::Stdio::null()).spawn().expect("sh");
    let answered = within(SOON, || readers.try_wait().expect("wait").is_some());
    server.signal(Signal::TERM);
    let ended = within(SOON, || server.0.try_wait().expect("wait").is_some());
    let mounted = is_mounted(dir.path());
    drop(server);
    readers.wait().expect("wait");
    assert!(answered, "a user waits for the reader of the log");
    assert!(ended && !mounted, "SIGTERM does not end the server");
}

fn no_read_fails_because_of_a_reload() {
    let (files, dir) = (Dir::new(), Dir::new());
    let spec = files.path().join("tree.toml");
    let value = |value: u32| {
        fs::write(files.path().join("new"), format!("[[value]]\npath = \"d/a\"\nvalue = {value}\n"))
            .expect("write");
        fs::rename(files.path().join("new"), &spec).expect("rename");
    };
    value(0);
    let _server = Server::start(&[&format!("kernfs:{}", spec.display()), dir.text()]);
    let (file, done) = (dir.path().join("d/a"), AtomicBool::new(false));
    let newest = AtomicU32::new(0);
    thread::scope(|s| {
        let reader = s.spawn(|| {
            let mut reads = 0;
            while !done.load(SeqCst) {
                let before = newest.load(SeqCst);
                let text = fs::read_to_string(&file).expect("it is always there");
                assert!(text.trim().parse::<u32>().expect("a number") >= before, "{text} after {before}");
                reads += 1;
            }
            reads
        });
        for new in 1..=100 {
            value(new);
            assert!(run(&["reload", dir.text()]).status.success());
            // The kernel has been told when the command returns.
            newest.store(new, SeqCst);
        }
        done.store(true, SeqCst);
        assert!(reader.join().expect("no read failed") > 0);
    });
}

/// The command waits for a pipe that is written only when the reload is over.
fn a_reload_waits_for_no_reader() {
    let (files, dir) = (Dir::new(), Dir::new());
    let (spec, pipe, begun) =
        (files.path().join("tree.toml"), files.path().join("pipe"), files.path().join("begun"));
    assert!(Command::new("mkfifo").arg(&pipe).status().expect("mkfifo").success());
    let tree = |name: &str, value: &str| {
        let run = format!(": > {}; read line < {}; echo {name}", begun.display(), pipe.display());
        let command =
            format!("[[command]]\npath = \"slow\"\nrun = [\"sh\", \"-c\", \"{run}\"]\ntimeout = 3600\n");
        fs::write(&spec, format!("{command}[[value]]\npath = \"v\"\nvalue = \"{value}\"\n")).expect("write");
    };
    tree("old", "one");
    let _server = Server::start(&[&format!("kernfs:{}", spec.display()), dir.text()]);
    for gone in [false, true] {
        let slow = dir.path().join("slow");
        let reader = thread::spawn(move || fs::read_to_string(slow));
        assert!(within(SOON, || begun.exists()), "the command runs");
        fs::remove_file(&begun).expect("unlink");
        if gone {
            fs::write(&spec, "[[value]]\npath = \"v\"\nvalue = \"three\"\n").expect("write");
        } else {
            tree("new", "two");
        }
        assert!(run(&["reload", dir.text()]).status.success());
        let value = fs::read_to_string(dir.path().join("v")).expect("read");
        assert_eq!(value, if gone { "three\n" } else { "two\n" });
        assert!(!reader.is_finished(), "nobody has written to the pipe");
        fs::write(&pipe, "go\n").expect("the command reads");
        let text = reader.join().expect("no panic").expect("read");
        assert_eq!(text, if gone { "new\n" } else { "old\n" });
    }
    assert!(!dir.path().join("slow").exists());
}

fn root_cannot_write_what_has_no_write_bit() {
    let (files, dir) = (Dir::new(), Dir::new());
    let spec = files.path().join("tree.toml");
    fs::write(&spec, "[[value]]\npath = \"v\"\nvalue = 1\n").expect("write");
    let _server = Server::start(&[&format!("kernfs:{}", spec.display()), dir.text()]);
    let error = fs::write(dir.path().join("v"), "2").expect_err("mode 0444");
    assert_eq!(error.raw_os_error(), Some(13), "EACCES");
    assert_eq!(fs::read_to_string(dir.path().join("v")).expect("read"), "1\n");
}
