//! `uvfs-tests fuse-fuzz`: hostile FUSE messages for some time, one seed after the other.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};

use crate::harness::Verdicts;

/// Send hostile FUSE messages straight to the dispatcher.
///
/// Fails at the first wrong answer, which --seed repeats, or if it used more memory than --memory.
#[derive(clap::Args)]
pub struct FuseFuzzArgs {
    /// Seconds to run.
    #[arg(long, default_value_t = 60)]
    seconds: u64,
    /// The first seed.
    #[arg(long, default_value_t = 0)]
    seed: u64,
    /// Messages per seed; each seed begins with an empty file system.
    #[arg(long, default_value_t = 100_000)]
    messages: u64,
    /// Most memory in MiB.
    #[arg(long, default_value_t = 512)]
    memory: u64,
}

/// Runs the suite.
///
/// # Errors
/// The first wrong answer, with its seed, or too much memory.
pub fn run(args: &FuseFuzzArgs, verdicts: &mut Verdicts) -> Result<()> {
    let end = Instant::now() + Duration::from_secs(args.seconds);
    let (mut seed, mut messages, mut succeeded) = (args.seed, 0, 0);
    loop {
        let outcome = super::run(seed, args.messages)?;
        messages += outcome.messages;
        succeeded += outcome.succeeded;
        let peak = outcome.peak >> 20;
        ensure!(peak <= args.memory, "{peak} MiB of memory after seed {seed}");
        seed += 1;
        if Instant::now() >= end {
            verdicts.pass(format_args!(
                "fuse-fuzz: {messages} messages of {} seeds, {succeeded} succeeded, at most {peak} MiB",
                seed - args.seed
            ));
            return Ok(());
        }
    }
}
