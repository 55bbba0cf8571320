//! Sends hostile FUSE messages to the dispatcher for a time, with one seed after the other; see `wire`.
//!
//! Ends with an error at the first wrong answer, which `--seed` repeats, and where more memory than `--memory` was used.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use clap::Parser;

/// Hostile FUSE messages, straight into the dispatcher.
#[derive(Parser)]
struct Args {
    /// How long.
    #[arg(long, default_value_t = 60)]
    seconds: u64,
    /// The first seed.
    #[arg(long, default_value_t = 0)]
    seed: u64,
    /// Messages of one seed, each of which begins with an empty file system.
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
