//! A server whose control group may have little memory: it stays within `-o memory`, and is not killed.

use std::fs;
use std::path::{Path, PathBuf};

use super::{Dir, Server, Test};

pub const MOUNTING: &[Test] =
    &[("a_limit_keeps_a_server_within_its_control_group", a_limit_keeps_a_server_within_its_control_group)];

const LIMIT: &str = "8M";
/// The memory that the group may have: the limit, and what a server takes in a debug build whatever is mounted.
const GROUP: u64 = 48 << 20;

/// A control group with a limit on memory, of either version; removed when dropped.
struct Group(PathBuf);

impl Group {
    fn new() -> Result<Self, String> {
        let v1 = Path::new("/sys/fs/cgroup/memory");
        let (parent, limit) = if v1.join("memory.limit_in_bytes").exists() {
            (v1, "memory.limit_in_bytes")
        } else {
            (Path::new("/sys/fs/cgroup"), "memory.max")
        };
        let dir = parent.join(format!("uvfs-test-{}", std::process::id()));
        fs::create_dir(&dir).map_err(|error| format!("{}: {error}", dir.display()))?;
        let group = Self(dir);
        let limit = group.0.join(limit);
        fs::write(&limit, GROUP.to_string()).map_err(|error| format!("{}: {error}", limit.display()))?;
        Ok(group)
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        // The server has left it.
        let _ = super::within(super::SOON, || fs::remove_dir(&self.0).is_ok());
    }
}

fn walk(dir: &Path) -> usize {
    let entries = fs::read_dir(dir).expect("opendir").map(|entry| entry.expect("readdir"));
    entries.map(|e| 1 + if e.metadata().expect("stat").is_dir() { walk(&e.path()) } else { 0 }).sum()
}

fn a_limit_keeps_a_server_within_its_control_group() {
    let group = match Group::new() {
        Ok(group) => group,
        Err(why) => {
            eprintln!(
                "skipped: a_limit_keeps_a_server_within_its_control_group: no control group for memory: {why}"
            );
            return;
        }
    };
    let dir = Dir::new();
    // Some 25 MB of names and attributes.
    let spec = "generated:depth=1,dirs=100,files=1000";
    let options = format!("memory={LIMIT},ctl=show");
    let server = Server::start(&["-o", &options, spec, dir.text()]);
    fs::write(group.0.join("cgroup.procs"), server.0.id().to_string()).expect("into the group");
    for _ in 0..2 {
        let ctl = 1 + walk(&dir.path().join(".uvfs"));
        // The root has files too.
        assert_eq!(walk(dir.path()) - ctl, 100 + 101 * 1000);
    }
    let bytes = fs::read_to_string(dir.path().join(".uvfs/bytes")).expect("read");
    assert!(bytes.trim().parse::<u64>().expect("a number") <= 8 << 20, "{bytes}");
}
