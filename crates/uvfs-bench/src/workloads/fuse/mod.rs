//! `fuse`: mounted file systems, as an unmodified program sees them.
//!
//! The workload mounts the arms itself, in a private mount namespace, so that no mount can stay behind. The arms are
//! the kernel's tmpfs ([`place`]), the command `uvfs` with its default timeouts and with none, and the `--peer`
//! commands ([`server`]). All are filled with the same tree ([`tree`]) and make the same system calls ([`phase`]), in
//! turns. The report gives the servers' processor time per operation beside the throughput.
//!
//! Nothing is dropped for preemption: that a server takes the processor from its client is part of a mount's cost.

pub mod phase;
pub mod place;
pub mod server;
pub mod tree;

use std::fs;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use clap::{Arg, ArgMatches};
use serde_json::json;

use crate::harness::schedule::Params;
use crate::harness::{Arm, Worker, WorkerSeat};
use crate::workloads::fuse::phase::Phase;
use crate::workloads::fuse::place::ServerPlace;
use crate::workloads::fuse::server::{BenchServer, Peer};
use crate::workloads::fuse::tree::MountTree;
use crate::workloads::target::RunTarget;
use crate::workloads::{Maker, Prepare, Workload, options};

/// Default number of files in a directory.
const PER_DIR: u64 = 100;

/// The workload.
pub struct Fuse;

impl Workload for Fuse {
    fn name(&self) -> &'static str {
        "fuse"
    }

    fn about(&self) -> &'static str {
        "mounts and measures them: the kernel's tmpfs, uvfs with its own timeouts and with none, peers"
    }

    fn arms(&self) -> Vec<&'static str> {
        vec!["host", "uvfs", "uvfs/0"]
    }

    fn args(&self) -> Vec<Arg> {
        let peer = Arg::new("peer")
            .long("peer")
            .value_name("[NAME=]CMD")
            .action(clap::ArgAction::Append)
            .value_parser(|text: &str| text.parse::<Peer>())
            .help("A command that mounts on {dir} and stays in the foreground; {src} is an empty directory for it");
        vec![options::files("10000"), options::per_dir(), options::phases::<Phase>(), peer, options::quick()]
    }

    fn cases<'w>(&'w self, matches: &ArgMatches) -> Result<Vec<Prepare<'w>>> {
        let phases = options::chosen::<Phase>(matches);
        let peers: Vec<Peer> = matches.get_many("peer").into_iter().flatten().cloned().collect();
        for (i, peer) in peers.iter().enumerate() {
            let taken = |name: &&str| *name == peer.name;
            let before = peers[..i].iter().map(|p| &p.name[..]);
            ensure!(
                !self.arms().into_iter().chain(before).any(|name| taken(&name)),
                "two arms would be called {}; --peer NAME=CMD gives another name",
                peer.name
            );
        }
        can_run(&phases)?;
        let per_dir = matches.get_one::<u64>("per-dir").copied().unwrap_or(PER_DIR);
        let case = |files| Prepare {
            params: Params::from_iter([("files".to_owned(), json!(files))]),
            variants: phases.iter().map(|p| Params::from_iter([("phase".to_owned(), json!(p))])).collect(),
            maker: Box::new(Mounts { files, per_dir, phases: phases.clone(), peers: peers.clone() }),
        };
        Ok(options::numbers(matches, "files")?.into_iter().map(case).collect())
    }

    fn preemption_is_the_subject(&self) -> bool {
        true
    }

    fn has_targets(&self) -> bool {
        false
    }
}

/// Checks that the workload can run here, and moves to a private mount namespace.
fn can_run(phases: &[Phase]) -> Result<()> {
    ensure!(
        rustix::process::geteuid().is_root(),
        "fuse mounts file systems and drops the kernel's caches: it needs root"
    );
    let device = fs::OpenOptions::new().read(true).write(true).open("/dev/fuse");
    device.context("fuse mounts file systems: it needs /dev/fuse")?;
    if phases.contains(&Phase::Find) {
        let out = Command::new("find").arg("--version").stderr(Stdio::null()).output();
        let gnu = out.is_ok_and(|out| String::from_utf8_lossy(&out.stdout).contains("GNU findutils"));
        ensure!(gnu, "the phase find needs GNU find; --phases chooses others");
    }
    place::own_namespace()
}

struct Mounts {
    files: u64,
    per_dir: u64,
    phases: Vec<Phase>,
    peers: Vec<Peer>,
}

impl Mounts {
    /// The arm for the file system mounted at a place.
    fn mounted(&self, name: &str, place: ServerPlace, threads: usize) -> Mounted {
        Mounted {
            name: name.to_owned(),
            phases: self.phases.clone(),
            tree: MountTree::new(place.mount(), self.files, self.per_dir, threads),
            server: None,
            place,
            leaves: false,
        }
    }

    /// The arm for the file system that a command mounts.
    fn served(
        &self,
        name: &str,
        threads: usize,
        command: impl FnOnce(&ServerPlace) -> Command,
    ) -> Result<Mounted> {
        let mut arm = self.mounted(name, ServerPlace::new()?, threads);
        arm.server = Some(
            BenchServer::start(command(&arm.place), &arm.place)
                .with_context(|| format!("{name} cannot be mounted"))?,
        );
        Ok(arm)
    }
}

impl Maker for Mounts {
    fn arm(&self, name: &'static str, threads: usize) -> Result<Box<dyn Arm>> {
        let options = match name {
            "host" => {
                let arm = self.mounted(name, ServerPlace::new()?, threads);
                arm.place.mount_tmpfs()?;
                return arm.filled();
            }
            "uvfs" => &[][..],
            "uvfs/0" => &["-o", "timeout=0"],
            other => bail!("{other:?} is no arm"),
        };
        let program = program()?;
        let arm = self.served(name, threads, |place| {
            let mut command = Command::new(program);
            command.arg("mount").args(options).arg("tmpfs").arg(place.mount());
            command
        })?;
        arm.filled()
    }

    fn more(&self, threads: usize) -> Result<Vec<Box<dyn Arm>>> {
        let arm = |peer: &Peer| {
            let mut arm = self.served(&peer.name, threads, |place| peer.command(place))?;
            arm.leaves = !peer.uses_source();
            arm.filled()
        };
        self.peers.iter().map(arm).collect()
    }

    fn target(&self, target: &RunTarget) -> Result<Box<dyn Arm>> {
        bail!("{target}: fuse mounts what it measures")
    }
}

/// The command `uvfs`, which is built into the same directory as this program.
fn program() -> Result<PathBuf> {
    let own = std::env::current_exe().context("cannot find this program's file")?;
    let program = own.with_file_name("uvfs");
    ensure!(
        program.is_file(),
        "there is no {}; cargo build --release -p uvfs-cli -p uvfs-bench makes both",
        program.display()
    );
    Ok(program)
}

/// The arm. Fields drop in order: it is unmounted, then the server ends, then the directories are removed.
struct Mounted {
    name: String,
    phases: Vec<Phase>,
    tree: MountTree,
    server: Option<BenchServer>,
    place: ServerPlace,
    /// Whether files made in it outlive the mount.
    leaves: bool,
}

impl Mounted {
    fn filled(self) -> Result<Box<dyn Arm>> {
        self.tree.fill().with_context(|| format!("{}: the tree cannot be made", self.name))?;
        Ok(Box::new(self))
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        if self.leaves {
            self.tree.remove();
        }
        self.place.unmount();
    }
}

impl Arm for Mounted {
    fn name(&self) -> &str {
        &self.name
    }

    fn check(&self) -> Result<()> {
        self.tree.check()?;
        (0..self.phases.len()).try_for_each(|variant| {
            let ops = self.grain(variant).unwrap_or(3);
            self.worker(variant, WorkerSeat { index: 0, of: 1 })?.batch(ops)
        })?;
        self.tree.check()
    }

    fn worker<'a>(&'a self, variant: usize, seat: WorkerSeat) -> Result<Box<dyn Worker + 'a>> {
        let phase = *self.phases.get(variant).context("no such phase")?;
        phase.worker(&self.tree, seat.index)
    }

    fn grain(&self, variant: usize) -> Option<u64> {
        self.phases.get(variant)?.walks().then(|| self.tree.entries())
    }

    fn once(&self, variant: usize) -> bool {
        self.phases.get(variant).is_some_and(|phase| phase.cold())
    }

    fn prepare(&self, variant: usize, workers: usize) -> Result<()> {
        match self.phases.get(variant) {
            Some(Phase::WalkCold) => place::drop_dentries(),
            Some(Phase::Find) => {
                place::drop_dentries()?;
                // With their inodes, unmapped files lose their pages: find's own would be read from a disk.
                phase::find(self.place.source())
            }
            // Another arm's turn may have dropped this arm's cache.
            Some(Phase::WalkWarm) => (0..workers).try_for_each(|seat| self.tree.walk(seat)),
            _ => Ok(()),
        }
    }

    fn server_cpu(&self) -> Option<Duration> {
        self.server.as_ref()?.cpu()
    }
}
