//! A tree that is larger than the cache's limit, walked through a mount by several processes.
//!
//! The command `uvfs` mounts a generated tree with a memory limit. The process [`walker`] walks it and compares
//! every name and attribute with those computed from the seed. Meanwhile [`watch`] observes the server from outside:
//! its counters (`.uvfs/stats`), its resident memory (`/proc/PID/status`) and the kernel's inodes (`/proc/slabinfo`).
//! They share only the mount.

pub mod command;
pub mod server;
pub mod slow_lookups;
pub mod walker;
pub mod watch;

use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use server::Server;
use watch::WatchSeen;

/// Least limit that a mount accepts.
const LEAST: u64 = 4 << 20;

/// The parameters of a run.
pub struct WalksPlan {
    /// The command.
    pub uvfs: PathBuf,
    /// The tree, as `generated:` takes it.
    pub spec: String,
    /// The limit in the form of `-o memory=`.
    pub memory: String,
    /// More of `-o`, or nothing.
    pub options: String,
    /// Processes that walk.
    pub walkers: usize,
    /// How often each process walks the whole tree.
    pub rounds: usize,
    /// Files of one directory that are held open meanwhile.
    pub open: usize,
}

/// The results of a run.
pub struct WalksReport {
    /// Observations of the server during the walks.
    pub seen: WatchSeen,
    /// The inodes and bytes that the kernel held at the end, and after the limit was lowered to a quarter (4 MiB at least).
    pub lowered: Lowered,
    /// How long the walks took.
    pub took: Duration,
    /// Whether every walk was complete and right.
    pub right: bool,
}

/// The kernel's inodes of FUSE mounts and the cache's bytes, before the limit was lowered and after.
pub struct Lowered {
    /// Inodes.
    pub inodes: (Option<u64>, Option<u64>),
    /// Bytes.
    pub bytes: (u64, u64),
    /// How long that took.
    pub took: Duration,
}

/// Runs everything.
///
/// # Errors
/// If the tree cannot be mounted, watched or walked.
pub fn run(plan: &WalksPlan) -> Result<WalksReport> {
    let tree = walker::tree(&plan.spec)?;
    let server = Server::start(plan)?;
    let held = hold_open(&server, &tree, plan.open)?;
    let began = Instant::now();
    let mut walkers = (0..plan.walkers).map(|_| start_walker(&server, plan)).collect::<Result<Vec<_>>>()?;
    let mut seen = WatchSeen::default();
    let mut right = true;
    let mut told = Instant::now();
    while !walkers.is_empty() {
        std::thread::sleep(Duration::from_millis(50));
        seen.look(&server)?;
        if told.elapsed() >= Duration::from_secs(10) {
            told = Instant::now();
            println!("{:4} s: {}", began.elapsed().as_secs(), seen.last);
        }
        let mut left = Vec::new();
        for mut walker in walkers {
            match walker.try_wait().context("a walker")? {
                Some(status) => right &= status.success(),
                None => left.push(walker),
            }
        }
        walkers = left;
    }
    let took = began.elapsed();
    right &= held.iter().all(|(file, ino)| walker::is_still(file, &tree, *ino));
    drop(held);
    let lowered = lower(&server, &mut seen)?;
    server.end()?;
    Ok(WalksReport { seen, lowered, took, right })
}

fn start_walker(server: &Server, plan: &WalksPlan) -> Result<Child> {
    let me = std::env::current_exe().context("this program")?;
    let mut command = Command::new(me);
    command.args(["walks-walker", "--spec", &plan.spec, "--rounds", &plan.rounds.to_string()]);
    command.arg(server.mount()).stdin(Stdio::null()).spawn().context("a walker")
}

/// The first files of the first directory, open; and their numbers.
fn hold_open(server: &Server, tree: &walker::WalkedTree, files: usize) -> Result<Vec<(std::fs::File, u64)>> {
    let limit = getrlimit(Resource::Nofile);
    let wanted =
        limit.maximum.unwrap_or(u64::MAX).min(files as u64 + 100).max(limit.current.unwrap_or(u64::MAX));
    setrlimit(Resource::Nofile, Rlimit { current: Some(wanted), maximum: limit.maximum })
        .context("open files")?;
    ensure!(files == 0 || wanted > files as u64 + 20, "only {wanted} files may be open (ulimit -Hn)");
    walker::files_of_one(tree)
        .take(files)
        .map(|(path, ino)| {
            let path = server.mount().join(path);
            let file =
                std::fs::File::open(&path).with_context(|| format!("cannot open {}", path.display()))?;
            Ok((file, ino))
        })
        .collect()
}

/// Lowers the limit to a quarter, and waits until it is reached, or for a minute.
fn lower(server: &Server, seen: &mut WatchSeen) -> Result<Lowered> {
    let before = seen.look(server)?;
    let goal = (before.limit / 4).max(LEAST);
    let began = Instant::now();
    server.set_limit(goal)?;
    let mut after = seen.peek(server)?;
    while after.bytes > goal + goal / 20 && began.elapsed() < Duration::from_secs(60) {
        std::thread::sleep(Duration::from_millis(10));
        after = seen.peek(server)?;
    }
    let took = began.elapsed();
    Ok(Lowered { inodes: (before.inodes, after.inodes), bytes: (before.bytes, after.bytes), took })
}

impl WalksReport {
    /// Whether the limit was kept, as the program's help defines it.
    ///
    /// # Errors
    /// The first violation.
    pub fn verdict(&self) -> Result<()> {
        let WatchSeen { last, over, .. } = &self.seen;
        ensure!(self.right, "a walk was not right");
        ensure!(last.refused == 0, "{} requests were refused for want of memory", last.refused);
        ensure!(*over <= last.limit / 20, "{over} bytes above the limit");
        Ok(())
    }
}
