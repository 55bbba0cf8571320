//! `uvfs-tests kernfs-storm`: reads and writes attributes while they are added, moved and removed.

use std::time::Duration;

use anyhow::Result;

use super::{KernfsStormPlan, storm};
use crate::harness::Verdicts;

/// Read and write attributes of a kernfs while other threads add, move and remove them, and report errors.
#[derive(clap::Args)]
pub struct KernfsStormArgs {
    /// Seconds.
    #[arg(long, default_value_t = 60)]
    seconds: u64,
    /// Threads that read and write.
    #[arg(long, default_value_t = 8)]
    users: usize,
    /// Seconds without any change after which the storm counts as hung.
    #[arg(long, default_value_t = 30)]
    patience: u64,
}

/// Runs the suite.
///
/// # Errors
/// The first wrong answer, or a storm that hangs.
pub fn run(args: &KernfsStormArgs, verdicts: &mut Verdicts) -> Result<()> {
    let debug = if cfg!(debug_assertions) { "with" } else { "without" };
    let plan = KernfsStormPlan {
        time: Duration::from_secs(args.seconds),
        users: args.users,
        patience: Duration::from_secs(args.patience),
    };
    let report = storm(plan)?;
    verdicts.pass(format_args!("kernfs-storm: {} s, {debug} debug assertions: {report:?}", args.seconds));
    Ok(())
}
