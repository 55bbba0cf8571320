//! The workload `fuse` mounts, measures, and leaves nothing behind. Where nothing can be mounted that is printed, and
//! the tests are skipped.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::process::{Command, Output};

use serde_json::Value;

const PHASES: [&str; 7] =
    ["getattr", "stat", "walk-cold", "walk-warm", "find", "create-unlink", "open-read-close"];

/// A run whose directories are below `dir`.
fn bench(dir: &Path, args: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_uvfs-bench"));
    command.arg("fuse").args(args).env("TMPDIR", dir).output().unwrap()
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// The command `uvfs` beside the bench, if there is anything to mount with; else why not.
fn uvfs() -> Option<String> {
    let device = fs::OpenOptions::new().read(true).write(true).open("/dev/fuse");
    let program = Path::new(env!("CARGO_BIN_EXE_uvfs-bench")).with_file_name("uvfs");
    let why = match device {
        _ if !rustix::process::geteuid().is_root() => "not root".to_owned(),
        Err(error) => format!("/dev/fuse: {error}"),
        Ok(_) if !program.is_file() => format!("{} is not built", program.display()),
        Ok(_) => return Some(program.display().to_string()),
    };
    println!("skipped: {why}");
    None
}

fn spread(value: &Value) -> [f64; 3] {
    ["min", "median", "max"].map(|key| value[key].as_f64().unwrap_or_else(|| panic!("{value}")))
}

fn ascending([min, median, max]: [f64; 3]) -> bool {
    min <= median && median <= max
}

/// Directories, mounts and servers of runs below `dir`.
fn left_behind(dir: &Path) -> Vec<String> {
    let text = dir.to_str().unwrap();
    let entries = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path().display().to_string());
    let mounts = fs::read_to_string("/proc/mounts").unwrap();
    let mounts = mounts.lines().filter(|line| line.contains(text)).map(str::to_owned);
    let commands = fs::read_dir("/proc").unwrap().flatten().filter_map(|process| {
        let command = fs::read(process.path().join("cmdline")).ok()?;
        Some(String::from_utf8_lossy(&command).replace('\0', " ")).filter(|line| line.contains(text))
    });
    entries.chain(mounts).chain(commands).collect()
}

#[test]
fn every_arm_does_every_phase_and_nothing_is_left_behind() {
    let Some(uvfs) = uvfs() else { return };
    let dir = tempfile::tempdir().unwrap();
    let peer = format!("peer={uvfs} mount tmpfs {{dir}}");
    let out = bench(dir.path(), &["--quick", "--rounds", "2", "--peer", &peer, "--format", "json"]);
    assert!(out.status.success(), "{}", said(&out));
    let report: Value = serde_json::from_slice(&out.stdout).unwrap();
    let rows = report["rows"].as_array().unwrap();
    assert_eq!(rows.len(), PHASES.len() * 4 * 2, "phases, arms, numbers of clients");
    let seen: BTreeSet<_> = rows
        .iter()
        .map(|r| [&r["phase"], &r["arm"], &r["threads"]].map(|value| value.to_string().replace('"', "")))
        .collect();
    for phase in PHASES {
        for arm in ["host", "uvfs", "uvfs/0", "peer"] {
            for clients in ["1", "2"] {
                assert!(seen.contains(&[phase, arm, clients].map(str::to_owned)), "{phase} {arm} {clients}");
            }
        }
    }
    for row in rows {
        assert!(ascending(spread(&row["ops_per_s"])) && spread(&row["ops_per_s"])[0] > 0.0, "{row}");
        let server = row.get("server_cpu_ns_per_op");
        assert_eq!(server.is_some(), row["arm"] != "host", "{row}");
        if let Some(server) = server {
            assert!(ascending(spread(server)), "{row}");
            // What asks the server uses its time.
            let asks =
                row["arm"] == "uvfs/0" || row["phase"] == "create-unlink" || row["phase"] == "walk-cold";
            assert!(!asks || spread(server)[0] > 0.0, "{row}");
        }
    }
    assert_eq!(report["config"]["options"]["files"], "50");
    assert_eq!(report["config"]["options"]["peer"], peer);
    assert_eq!(left_behind(dir.path()), Vec::<String>::new());
}

#[test]
fn a_peer_shows_a_directory_whose_files_stay() {
    let Some(uvfs) = uvfs() else { return };
    let dir = tempfile::tempdir().unwrap();
    // No server, but a directory of somebody, bound where one would be mounted.
    let theirs = tempfile::tempdir().unwrap();
    fs::write(theirs.path().join("theirs"), "precious").unwrap();
    let shows = format!(
        "bound=mount --bind '{}' {{dir}}; while [ -e {{dir}}/theirs ]; do sleep 0.01; done",
        theirs.path().display()
    );
    let arms = ["--quick", "--arms", "host", "--phases", "stat,create-unlink", "--threads", "1"];
    let out = bench(dir.path(), &[&arms[..], &["--peer", &shows]].concat());
    assert!(out.status.success(), "{uvfs}: {}", said(&out));
    assert!(String::from_utf8_lossy(&out.stdout).contains("bound"));
    assert_eq!(fs::read_to_string(theirs.path().join("theirs")).unwrap(), "precious");
    assert_eq!(fs::read_dir(theirs.path()).unwrap().count(), 1, "what was measured is still there");
    assert_eq!(left_behind(dir.path()), Vec::<String>::new());
}

#[test]
fn peers_that_do_not_mount_are_explained() {
    if uvfs().is_none() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    for (peer, wanted) in [
        (
            "bad=echo no such thing >&2; false {dir}",
            "bad cannot be mounted: it ended (exit status: 1); it said: no such thing",
        ),
        ("host=true {dir}", "two arms would be called host; --peer NAME=CMD gives another name"),
        ("true", "a peer is [NAME=]CMD, and CMD mounts on {dir}"),
    ] {
        let out = bench(dir.path(), &["--quick", "--arms", "host", "--phases", "stat", "--peer", peer]);
        assert!(!out.status.success() && said(&out).contains(wanted), "{peer}: {}", said(&out));
        assert_eq!(said(&out).lines().count(), 1, "{}", said(&out));
    }
    assert_eq!(left_behind(dir.path()), Vec::<String>::new());
}

#[test]
fn without_root_one_sentence_is_said() {
    if uvfs().is_none() {
        return;
    }
    let mut command = Command::new("setpriv");
    command.args(["--reuid", "65534", "--clear-groups", env!("CARGO_BIN_EXE_uvfs-bench"), "fuse", "--quick"]);
    let Ok(out) = command.output() else {
        println!("skipped: no setpriv");
        return;
    };
    let text = said(&out);
    if text.contains("setpriv:") {
        println!("skipped: {text}");
        return;
    }
    assert_eq!(out.status.code(), Some(1), "{text}");
    assert!(text.contains("it needs root") && text.lines().count() == 1, "{text}");
}
