//! Messages about a wrong command line say what is wrong, and what would be right.

use std::process::Command;

/// Exit status and what was said.
fn refused(args: &[&str]) -> (i32, String) {
    let out = Command::new(env!("CARGO_BIN_EXE_uvfs-bench")).args(args).output().unwrap();
    assert!(!out.status.success(), "{args:?} should fail");
    (out.status.code().unwrap(), String::from_utf8(out.stderr).unwrap())
}

#[test]
fn wrong_arguments_are_explained() {
    for (args, said) in [
        (&["stat-sam"][..], "\"stat-sam\" is no workload; commands are table, stat-same"),
        (&[], "a workload is needed; commands are table"),
        (&["table", "--threads", "0"], "1..=512"),
        (&["table", "--threads", "x"], "--threads"),
        (&["table", "--depth", "17"], "1..=16"),
        (&["table", "--files", "0"], "1..=100000000"),
        (&["table", "--seconds", "-1"], "--seconds"),
        (&["table", "--seconds", "1e9"], "from 0.001 to 3600"),
        (&["table", "--rounds", "0"], "1..=100000"),
        (&["table", "--format", "xml"], "table, json, csv, markdown"),
        (&["table", "--thp", "maybe"], "on, off, system"),
        (&["stat-same", "--files", "3"], "'--files' found; options of stat-same are --threads, --procs"),
        (&["stat-same", "--target", "/nowhere/at/all"], "a target is inproc, host"),
        (&["plot", "--out", "x.svg"], "FILE"),
    ] {
        let (status, text) = refused(args);
        assert!(status == 2 && text.contains(said), "{args:?}: {status} {text}");
        assert_eq!(text.lines().count(), 1, "{text}");
    }
}

#[test]
fn what_cannot_be_run_is_explained() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("not.json");
    std::fs::write(&file, "{}").unwrap();
    let file = file.to_str().unwrap();
    for (args, said) in [
        (&["table", "--arms", "papaja"][..], "\"papaja\" is no arm of table; arms are null, hashbrown"),
        (&["table", "--target", "host"], "its only target is inproc"),
        (&["stat-same", "--target", "host", "--arms", "uvfs"], "add inproc to --target"),
        (&["table", "--out", "/nowhere/x.json"], "cannot write /nowhere/x.json"),
        (&["stat-same", "--procs", "2"], "--procs needs a --target"),
        (&["plot", "/nowhere.json", "--out", "/tmp/x.svg"], "cannot read /nowhere.json"),
        (&["plot", file, "--out", "/tmp/x.svg"], "is no report; write one with --format json"),
    ] {
        let (status, text) = refused(args);
        assert!(status == 1 && text.contains(said), "{args:?}: {status} {text}");
        assert_eq!(text.lines().count(), 1, "{text}");
    }
}
