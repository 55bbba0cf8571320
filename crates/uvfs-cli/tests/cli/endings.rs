//! The messages when a mount ends otherwise than by an unmount, over each transport.

use std::fs::{self, File};
use std::io::Read;
use std::os::unix::fs::MetadataExt;
use std::process::Command;

use rustix::process::Signal;

use super::{Dir, SOON, Server, Test, is_mounted, load, reap, run, within};

pub const MOUNTING: &[Test] = &[
    ("each_transport_works_where_it_is_there", each_transport_works_where_it_is_there),
    ("an_unmount_says_nothing", an_unmount_says_nothing),
    ("an_abort_says_one_line", an_abort_says_one_line),
    ("a_forced_unmount_in_use_says_one_line", a_forced_unmount_in_use_says_one_line),
    (
        "the_keeper_of_memory_has_no_files_and_ends_with_its_server",
        the_keeper_of_memory_has_no_files_and_ends_with_its_server,
    ),
];

/// Those that this machine has.
fn transports() -> Vec<&'static str> {
    let switch = fs::read_to_string("/sys/module/fuse/parameters/enable_uring").unwrap_or_default();
    let mut all = vec!["dev"];
    if switch.starts_with('Y') {
        all.push("uring")
    } else {
        eprintln!("skipped: transport=uring: it is switched off")
    }
    all
}

fn start(transport: &str, dir: &Dir) -> Server {
    Server::start(&["-o", &format!("transport={transport}"), "tmpfs", dir.text()])
}

/// Returns whether a server that has ended calls its end a success, and the lines that it said after it had mounted.
fn end(server: &mut Server) -> (bool, Vec<String>) {
    let status = server.ended();
    let mut said = String::new();
    server.0.stderr.as_mut().expect("a pipe").read_to_string(&mut said).expect("read");
    (status.success(), said.lines().map(str::to_owned).collect())
}

fn each_transport_works_where_it_is_there() {
    for transport in transports() {
        let dir = Dir::new();
        let _server = start(transport, &dir);
        fs::write(dir.path().join("file"), "content").expect("write");
        assert_eq!(fs::read_to_string(dir.path().join("file")).expect("read"), "content");
        let through = fs::read_to_string(dir.path().join(".uvfs/transport")).expect("read");
        assert_eq!(through.trim(), transport);
    }
}

fn an_unmount_says_nothing() {
    for transport in transports() {
        for how in [&[][..], &["-l"]] {
            let dir = Dir::new();
            let mut server = start(transport, &dir);
            let users = if how.is_empty() { Vec::new() } else { load(dir.path()) };
            assert!(run(&[&["umount"], how, &[dir.text()]].concat()).status.success());
            for mut user in users {
                // They go on in what is detached.
                let _ = user.kill();
                reap(vec![user]);
            }
            assert_eq!(end(&mut server), (true, Vec::new()), "{transport} {how:?}");
        }
    }
}

fn said_of_an_abort(server: &mut Server, dir: &Dir, transport: &str) {
    let (success, said) = end(server);
    assert!(!success && said.len() == 1, "{transport}: {said:?}");
    assert!(said[0].contains("was aborted") && said[0].contains(dir.text()), "{said:?}");
    assert!(is_mounted(dir.path()));
    assert!(run(&["umount", dir.text()]).status.success(), "as it says");
}

fn an_abort_says_one_line() {
    for transport in transports() {
        let dir = Dir::new();
        let mut server = start(transport, &dir);
        let number = rustix::fs::minor(fs::metadata(dir.path()).expect("stat").dev());
        let abort = format!("/sys/fs/fuse/connections/{number}/abort");
        if !fs::exists(&abort).unwrap_or(false) {
            eprintln!("skipped: an_abort_says_one_line: {abort} is not there");
            return;
        }
        let users = load(dir.path());
        fs::write(&abort, "1").expect("an abort");
        reap(users);
        said_of_an_abort(&mut server, &dir, transport);
    }
}

fn a_forced_unmount_in_use_says_one_line() {
    for transport in transports() {
        let dir = Dir::new();
        let mut server = start(transport, &dir);
        // It is in use, so it is aborted and stays.
        let _open = File::create(dir.path().join("open")).expect("create");
        let users = load(dir.path());
        let output = Command::new("umount").arg("-f").arg(dir.path()).output();
        let Ok(output) = output else {
            eprintln!("skipped: a_forced_unmount_in_use_says_one_line: no umount(8)");
            return;
        };
        assert!(!output.status.success() && is_mounted(dir.path()), "it is busy: {output:?}");
        reap(users);
        said_of_an_abort(&mut server, &dir, transport);
    }
}

/// Processes named `uvfs-keeper` whose parent is `server`.
fn keepers(server: u32) -> Vec<String> {
    let processes = fs::read_dir("/proc").expect("proc").flatten().map(|entry| entry.path());
    let stats = processes.filter_map(|process| fs::read_to_string(process.join("stat")).ok());
    let of = |stat: String| {
        let (pid, rest) = stat.split_once(" (uvfs-keeper) ")?;
        let parent = rest.split(' ').nth(1)?.parse::<u32>().ok()?;
        (parent == server).then(|| pid.to_owned())
    };
    stats.filter_map(of).collect()
}

/// A file that it had open, such as the device, would keep the mount from ending with the server.
fn the_keeper_of_memory_has_no_files_and_ends_with_its_server() {
    for signal in [Signal::TERM, Signal::KILL] {
        let dir = Dir::new();
        let mut server = Server::start(&["tmpfs", dir.text()]);
        fs::write(dir.path().join("file"), vec![1; 1 << 20]).expect("write");
        let found = keepers(server.0.id());
        let [keeper] = &*found else { panic!("one of {:?} is to be the keeper", found) };
        let files = fs::read_dir(format!("/proc/{keeper}/fd")).expect("proc").flatten();
        let files: Vec<_> = files.filter_map(|file| fs::read_link(file.path()).ok()).collect();
        assert!(files.len() == 1 && files[0].display().to_string().contains("pidfd"), "{files:?}");
        server.signal(signal);
        server.ended();
        let process = format!("/proc/{keeper}/stat");
        let is_gone = || fs::read_to_string(&process).map_or(true, |stat| stat.contains(") Z "));
        assert!(within(SOON, is_gone), "it is left behind after {signal:?}");
        assert_eq!(signal == Signal::KILL, is_mounted(dir.path()));
    }
}
