//! `fuse`: mounted file systems, as a program that knows nothing of them sees them.
//!
//! It mounts what it measures, in a mount namespace of its own so that no mount can stay behind: the kernel's
//! tmpfs ([`place`]), the command `uvfs` with the timeouts that it has by itself and with none, and what `--peer` says
//! ([`server`]). All of them are filled with the same tree ([`tree`]) and do the same system calls ([`phase`]), in
//! turns. Beside the throughput stands what the servers used of the processors for each operation.
//!
//! Nothing is dropped for preemption: a server that takes the processor from its client is what a mount costs.

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
use crate::harness::{Arm, Seat, Worker};
use crate::workloads::fuse::phase::Phase;
use crate::workloads::fuse::place::Place;
use crate::workloads::fuse::server::{Peer, Server};
use crate::workloads::fuse::tree::Tree;
use crate::workloads::target::Target;
use crate::workloads::{Maker, Prepare, Workload, options};

/// Files of a directory, where nothing else is said.
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

/// Whether it can be run here, and from then on in a mount namespace of its own.
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
    /// The arm of what is mounted at a place.
    fn mounted(&self, name: &str, place: Place, threads: usize) -> Mounted {
        Mounted {
            name: name.to_owned(),
            phases: self.phases.clone(),
            tree: Tree::new(place.mount(), self.files, self.per_dir, threads),
            server: None,
            place,
            leaves: false,
        }
    }

    /// The arm of what a command mounts.
    fn served(&self, name: &str, threads: usize, command: impl FnOnce(&Place) -> Command) -> Result<Mounted> {
        let mut arm = self.mounted(name, Place::new()?, threads);
        arm.server = Some(
            Server::start(command(&arm.place), &arm.place)
                .with_context(|| format!("{name} cannot be mounted"))?,
        );
        Ok(arm)
    }
}

impl Maker for Mounts {
    fn arm(&self, name: &'static str, threads: usize) -> Result<Box<dyn Arm>> {
        let options = match name {
            "host" => {
                let arm = self.mounted(name, Place::new()?, threads);
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

    fn target(&self, target: &Target) -> Result<Box<dyn Arm>> {
        bail!("{target}: fuse mounts what it measures")
    }
}

/// The command `uvfs`, which is built into the same directory.
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

/// The arm. It is unmounted, then the server ends, then the directories go: fields are dropped in their order.
struct Mounted {
    name: String,
    phases: Vec<Phase>,
    tree: Tree,
    server: Option<Server>,
    place: Place,
    /// Whether what is made would still be there after the mount.
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
            self.worker(variant, Seat { index: 0, of: 1 })?.batch(ops)
        })?;
        self.tree.check()
    }

    fn worker<'a>(&'a self, variant: usize, seat: Seat) -> Result<Box<dyn Worker + 'a>> {
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
                // With inodes go the pages of files that nobody has mapped: find's own would come from a disk.
                phase::find(self.place.source())
            }
            // Other arms' turns may have dropped what this one had.
            Some(Phase::WalkWarm) => (0..workers).try_for_each(|seat| self.tree.walk(seat)),
            _ => Ok(()),
        }
    }

    fn server_cpu(&self) -> Option<Duration> {
        self.server.as_ref()?.cpu()
    }
}
