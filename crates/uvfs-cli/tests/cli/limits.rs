//! Servers that the system gives little: they work with it, or say in one sentence why they cannot.

use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::process::{Command, Stdio};

use rustix::process::Signal;

use super::{Dir, SOON, Server, Test, is_mounted, within};

pub const MOUNTING: &[Test] = &[
    ("little_address_space_is_enough", little_address_space_is_enough),
    ("a_limit_that_is_too_low_is_a_sentence", a_limit_that_is_too_low_is_a_sentence),
];

/// `uvfs mount` of `source` with a limit of the shell's (`-v 1000`), and the first line that it says.
fn start(limit: &str, source: &str, dir: &Dir) -> (Server, String) {
    let script = format!("ulimit {limit} && exec \"$@\"");
    let mut command = Command::new("sh");
    command.args(["-c", &script, "sh", env!("CARGO_BIN_EXE_uvfs"), "mount", source, dir.text()]);
    let mut child =
        command.env_remove("UVFS_LOG").stdin(Stdio::null()).stderr(Stdio::piped()).spawn().expect("sh(1)");
    let mut said = String::new();
    BufReader::new(child.stderr.as_mut().expect("a pipe")).read_line(&mut said).expect("it says something");
    (Server(child), said)
}

/// Makes files in directories, with data, removes half of them, and reads the rest.
fn use_it(dir: &Path) {
    let data = vec![7; 300_000];
    for number in 0..200 {
        let below = dir.join(format!("d{}", number % 10));
        fs::create_dir_all(&below).expect("a directory");
        fs::write(below.join(format!("a name that is longer than others {number}")), &data[..number * 100])
            .expect("write");
    }
    fs::write(dir.join("large"), &data).expect("write");
    assert!(fs::read(dir.join("large")).expect("read") == data);
    let files: Vec<_> =
        (0..10).flat_map(|d| fs::read_dir(dir.join(format!("d{d}"))).expect("list")).collect();
    assert_eq!(files.len(), 200);
    for (number, file) in files.into_iter().enumerate() {
        let path = file.expect("an entry").path();
        if number % 2 == 0 {
            fs::remove_file(path).expect("remove");
        } else {
            fs::read(path).expect("read");
        }
    }
}

fn little_address_space_is_enough() {
    for kib in ["-v 1048576", "-v 524288"] {
        let dir = Dir::new();
        let (mut server, said) = start(kib, "tmpfs", &dir);
        assert!(said.contains("is mounted on"), "ulimit {kib}: {said}");
        use_it(dir.path());
        server.signal(Signal::TERM);
        assert!(server.ended().success(), "ulimit {kib}");
    }
}

fn a_limit_that_is_too_low_is_a_sentence() {
    for limit in ["-v 262144", "-d 262144", "-v 65536", "-n 4"] {
        let dir = Dir::new();
        let (mut server, said) = start(limit, "tmpfs", &dir);
        if said.contains("is mounted on") {
            use_it(dir.path());
            server.signal(Signal::TERM);
            assert!(server.ended().success(), "ulimit {limit}");
            continue;
        }
        let status = server.ended();
        let mut rest = String::new();
        server.0.stderr.as_mut().expect("a pipe").read_to_string(&mut rest).expect("read");
        assert!(!status.success() && rest.is_empty(), "ulimit {limit}: {said}{rest}");
        // "uvfs: what cannot be done: why"
        assert!(
            said.starts_with("uvfs: cannot ") && said.matches(": ").count() > 1,
            "ulimit {limit}: {said}"
        );
        assert!(within(SOON, || !is_mounted(dir.path())), "ulimit {limit} left a mount behind");
    }
}
