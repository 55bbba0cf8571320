//! `storm --seconds 60`: stats names while everything changes, in this process.

use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context as _, Result};
use clap::Parser;
use uvfs_tests::inproc::new_vfs;
use uvfs_tests::storm::{Plan, storm};

/// Threads stat names of a uvfs tmpfs while others rename, exchange, remove, create and chmod them and the
/// directories above them. No answer may be lost, torn or invented.
#[derive(Parser)]
struct Args {
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

fn main() -> Result<ExitCode> {
    let args = Args::parse();
    let vfs = new_vfs().context("cannot make a tmpfs")?;
    let plan = Plan { time: Duration::from_secs(args.seconds), readers: args.readers, crowd: args.crowd };
    match storm(&vfs, plan) {
        Ok(report) => {
            println!("{report:?}\nways off the lock-free walk: {:?}", uvfs::counters().bails());
            println!("PASS storm: {} s", args.seconds);
            Ok(ExitCode::SUCCESS)
        }
        Err(why) => {
            println!("FAIL storm: {why:#}");
            Ok(ExitCode::FAILURE)
        }
    }
}
