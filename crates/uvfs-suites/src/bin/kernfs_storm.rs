//! `kernfs_storm --seconds 60`: reads and writes attributes while they are added, moved and removed.

use std::process::ExitCode;
use std::time::Duration;

use clap::Parser;
use uvfs_tests::kernfs_storm::{Plan, storm};

/// Reads and writes attributes of a kernfs while other threads add, move and remove them, and reports errors.
#[derive(Parser)]
struct Args {
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

fn main() -> ExitCode {
    let args = Args::parse();
    let debug = if cfg!(debug_assertions) { "with" } else { "without" };
    let plan = Plan {
        time: Duration::from_secs(args.seconds),
        users: args.users,
        patience: Duration::from_secs(args.patience),
    };
    match storm(plan) {
        Ok(report) => {
            println!("{} s, {debug} debug assertions: {report:?}", args.seconds);
            ExitCode::SUCCESS
        }
        Err(why) => {
            eprintln!("{why:#}");
            ExitCode::FAILURE
        }
    }
}
