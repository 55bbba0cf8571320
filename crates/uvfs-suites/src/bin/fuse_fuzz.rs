//! Sends hostile FUSE messages to the dispatcher for some time, one seed after the other; see `wire`.
//!
//! Ends with an error at the first wrong answer, which `--seed` repeats, or if it used more memory than `--memory`.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use clap::Parser;

/// Sends hostile FUSE messages straight to the dispatcher.
#[derive(Parser)]
struct Args {
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

fn main() -> Result<()> {
    let args = Args::parse();
    let end = Instant::now() + Duration::from_secs(args.seconds);
    let (mut seed, mut messages, mut succeeded) = (args.seed, 0, 0);
    loop {
        let outcome = uvfs_tests::wire::run(seed, args.messages)?;
        messages += outcome.messages;
        succeeded += outcome.succeeded;
        let peak = outcome.peak >> 20;
        ensure!(peak <= args.memory, "{peak} MiB of memory after seed {seed}");
        seed += 1;
        if Instant::now() >= end {
            println!(
                "{messages} messages of {} seeds, {succeeded} succeeded, at most {peak} MiB",
                seed - args.seed
            );
            return Ok(());
        }
    }
}
