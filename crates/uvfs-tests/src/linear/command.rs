//! `uvfs-tests linear`: names of one directory must be linearizable.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};

use super::{DriveShape, HostDirectory, PathDirectory, VfsDirectory, drive};
use crate::harness::{Seed, Verdicts, in_subdirectory};
use crate::inproc::new_vfs;

/// Check that the names of one directory are linearizable.
///
/// Threads create, rename, exchange, link, remove and stat names of one directory. A checker looks for an order that
/// explains every answer.
#[derive(clap::Args)]
pub struct LinearArgs {
    /// Directory to work in (a subdirectory is made). Without it: a uvfs tmpfs in this process.
    #[arg(long)]
    dir: Option<PathBuf>,
    /// Threads.
    #[arg(long, default_value_t = 3)]
    threads: usize,
    /// Operations per thread and round.
    #[arg(long, default_value_t = 100)]
    ops: usize,
    /// Make no hard links: on a FUSE mount the kernel's own link count can be wrong for a while.
    #[arg(long)]
    no_links: bool,
    /// Seconds to run.
    #[arg(long, default_value_t = 30)]
    seconds: u64,
    #[command(flatten)]
    seed: Seed,
}

/// Runs the suite.
///
/// # Errors
/// A history that no order explains, and errors of the file system.
pub fn run(args: &LinearArgs, verdicts: &mut Verdicts) -> Result<()> {
    let shape = DriveShape { threads: args.threads, ops: args.ops, links: !args.no_links };
    let seed = args.seed.announce();
    let end = Instant::now() + Duration::from_secs(args.seconds);
    let enough = |_| Instant::now() >= end;
    let rounds = match &args.dir {
        Some(dir) => {
            in_subdirectory(dir, "linear", |dir| drive(&HostDirectory::new(dir)?, shape, seed, enough))?
        }
        None => {
            let vfs = new_vfs().context("cannot make a tmpfs")?;
            drive(&PathDirectory(VfsDirectory::new(&vfs, vfs.root())), shape, seed, enough)?
        }
    };
    verdicts.pass(format_args!("linear: {rounds} rounds of {} x {} operations", args.threads, args.ops));
    Ok(())
}
