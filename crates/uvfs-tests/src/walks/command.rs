//! `uvfs-tests walks`: walks a tree of two million files through a mount with little memory.

use std::path::PathBuf;

use anyhow::Result;

use super::{WalksPlan, WalksReport};
use crate::harness::{Mounter, Verdicts, uvfs_command};

/// Walk a tree of two million files through a mount with little memory. Needs /dev/fuse.
///
/// Mounts a generated tree with a memory limit. Processes walk all of it and compare every entry with its expected
/// value. Prints what that took. Fails if an entry is wrong or missing, if the cache's bytes exceed the
/// limit by more than 5%, or if a request was refused for want of memory.
#[derive(clap::Args)]
pub struct WalksArgs {
    /// The limit, as `-o memory` takes it.
    #[arg(long, default_value = "64M")]
    memory: String,
    /// The tree, as `uvfs mount generated:` takes it.
    #[arg(long, default_value = "depth=1,dirs=200,files=10000,name=8..40")]
    spec: String,
    /// Processes that walk.
    #[arg(long, default_value_t = 2)]
    walkers: usize,
    /// Number of times that each process walks the whole tree.
    #[arg(long, default_value_t = 3)]
    rounds: usize,
    /// Files of one directory that stay open meanwhile.
    #[arg(long, default_value_t = 0)]
    open: usize,
    /// More options of the mount, such as noprune.
    #[arg(long, short, default_value = "")]
    options: String,
    /// The uvfs command [default: the one beside this program].
    #[arg(long)]
    uvfs: Option<PathBuf>,
}

/// Runs the suite.
///
/// # Errors
/// An entry that is wrong or missing, a limit that was exceeded, and errors of the mount.
pub fn run(args: WalksArgs, verdicts: &mut Verdicts) -> Result<()> {
    if verdicts.cannot_mount(Mounter::Anybody) {
        return Ok(());
    }
    let plan = WalksPlan {
        uvfs: uvfs_command(args.uvfs.as_ref())?,
        spec: args.spec,
        memory: args.memory,
        options: args.options,
        walkers: args.walkers,
        rounds: args.rounds,
        open: args.open,
    };
    let report = super::run(&plan)?;
    say(&report);
    report.verdict()?;
    verdicts.pass(format_args!("walks: {} walkers, {} rounds of {}", plan.walkers, plan.rounds, plan.spec));
    Ok(())
}

fn say(report: &WalksReport) {
    let WalksReport { seen, lowered, took, .. } = report;
    let mib = |bytes: u64| bytes as f64 / f64::from(1 << 20);
    println!("walked in {:.1} s; {}", took.as_secs_f64(), seen.last);
    println!(
        "{} looks: at most {:.3} MiB above the limit; resident at most {:.1} MiB beyond it",
        seen.looks,
        mib(seen.over),
        mib(seen.last.most_resident.saturating_sub(seen.last.limit))
    );
    if let Some(most) = seen.most_inodes {
        println!(
            "inodes in the kernel: at most {most}; fell by {} at once where nodes were named to it",
            seen.most_fall
        );
    }
    println!(
        "a quarter of the limit: {:.1} MiB after {:.1} MiB in {:.2} s; inodes in the kernel {:?} after {:?}",
        mib(lowered.bytes.1),
        mib(lowered.bytes.0),
        lowered.took.as_secs_f64(),
        lowered.inodes.1,
        lowered.inodes.0
    );
}
