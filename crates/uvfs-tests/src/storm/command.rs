//! `uvfs-tests storm`: stats names while everything changes, in this process.

use std::time::Duration;

use anyhow::{Context as _, Result};

use super::{StormPlan, storm};
use crate::harness::Verdicts;
use crate::inproc::new_vfs;

/// Stat names of a uvfs tmpfs while everything changes, in this process.
///
/// Threads stat names while others rename, exchange, remove, create and chmod them and the directories above them. No
/// answer may be lost, torn or invented.
#[derive(clap::Args)]
pub struct StormArgs {
    /// Seconds to run.
    #[arg(long, default_value_t = 60)]
    seconds: u64,
    /// Threads that stat.
    #[arg(long, default_value_t = 2)]
    readers: usize,
    /// Files made and removed in the background.
    #[arg(long, default_value_t = 100_000)]
    crowd: u32,
}

/// Runs the suite.
///
/// # Errors
/// The first wrong answer.
pub fn run(args: &StormArgs, verdicts: &mut Verdicts) -> Result<()> {
    let vfs = new_vfs().context("cannot make a tmpfs")?;
    let plan =
        StormPlan { time: Duration::from_secs(args.seconds), readers: args.readers, crowd: args.crowd };
    let report = storm(&vfs, plan)?;
    println!("{report:?}\nways off the lock-free walk: {:?}", uvfs::counters().bails());
    verdicts.pass(format_args!("storm: {} s", args.seconds));
    Ok(())
}
