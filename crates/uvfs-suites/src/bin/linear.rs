//! `linear --dir DIR`: names of one directory must be linearizable.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use clap::Parser;
use uvfs_tests::inproc::new_vfs;
use uvfs_tests::linear::{HostDirectory, PathDirectory, Shape, VfsDirectory, drive};

/// Threads create, rename, exchange, link, remove and stat names of one directory. A checker looks
/// for an order that explains every answer.
#[derive(Parser)]
struct Args {
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
    /// Seed of the first round.
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

fn main() -> Result<ExitCode> {
    let args = Args::parse();
    let shape = Shape { threads: args.threads, ops: args.ops, links: !args.no_links };
    let end = Instant::now() + Duration::from_secs(args.seconds);
    let enough = |_| Instant::now() >= end;
    let result = match &args.dir {
        Some(dir) => {
            let dir = dir.join(format!("linear-{}", std::process::id()));
            std::fs::create_dir(&dir).with_context(|| format!("cannot create {}", dir.display()))?;
            let result = drive(&HostDirectory::new(&dir)?, shape, args.seed, enough);
            std::fs::remove_dir_all(&dir).with_context(|| format!("cannot remove {}", dir.display()))?;
            result
        }
        None => {
            let vfs = new_vfs().context("cannot make a tmpfs")?;
            drive(&PathDirectory(VfsDirectory::new(&vfs, vfs.root())), shape, args.seed, enough)
        }
    };
    match result {
        Ok(rounds) => {
            println!("PASS linear: {rounds} rounds of {} x {} operations", args.threads, args.ops);
            Ok(ExitCode::SUCCESS)
        }
        Err(why) => {
            println!("FAIL linear: {why:#}");
            Ok(ExitCode::FAILURE)
        }
    }
}
