//! The command line of `uvfs-tests`: one subcommand for each suite. Each suite's module holds its options and its code.

use std::process::ExitCode;

use clap::Parser;

use crate::harness::{child, report};
use crate::write_watch::{alone, shared_stores};
use crate::{bigdir, ends, ext4, kernfs_storm, linear, lockstep, mirror_storm, model, storm, walks, wire};

/// Tests uvfs as a whole.
///
/// Each command prints PASS, FAIL or "skipped: why" for its checks, and ends with "N passed, N failed, N skipped". It
/// exits with status 1 if a check failed.
#[derive(Parser)]
#[command(name = "uvfs-tests", version)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(clap::Subcommand)]
enum Command {
    Lockstep(lockstep::command::LockstepArgs),
    Model(model::command::ModelArgs),
    Linear(linear::command::LinearArgs),
    Storm(storm::command::StormArgs),
    KernfsStorm(kernfs_storm::command::KernfsStormArgs),
    MirrorStorm(mirror_storm::command::MirrorStormArgs),
    Walks(walks::command::WalksArgs),
    SlowLookups(walks::slow_lookups::SlowLookupsArgs),
    Bigdir(bigdir::command::BigdirArgs),
    Ends(ends::EndsArgs),
    Ext4Compare(ext4::command::CompareArgs),
    Ext4Mutate(ext4::command::MutateArgs),
    FuseFuzz(wire::command::FuseFuzzArgs),
    SharedStores(shared_stores::SharedStoresArgs),
    #[command(hide = true)]
    WalksWalker(walks::walker::WalkerArgs),
    #[command(hide = true)]
    MirrorStormWorker(mirror_storm::worker::WorkerArgs),
    #[command(hide = true)]
    EndsServer(ends::ServerArgs),
}

/// Runs the program.
pub fn main() -> ExitCode {
    ExitCode::from(run(Cli::parse().command))
}

fn run(command: Command) -> u8 {
    match command {
        Command::Lockstep(args) => report("lockstep", |tally| lockstep::command::run(&args, tally)),
        Command::Model(args) => report("model", |tally| model::command::run(&args, tally)),
        Command::Linear(args) => report("linear", |tally| linear::command::run(&args, tally)),
        Command::Storm(args) => report("storm", |tally| storm::command::run(&args, tally)),
        Command::KernfsStorm(args) => {
            report("kernfs-storm", |tally| kernfs_storm::command::run(&args, tally))
        }
        Command::MirrorStorm(args) => {
            report("mirror-storm", |tally| mirror_storm::command::run(&args, tally))
        }
        Command::Walks(args) => report("walks", |tally| walks::command::run(args, tally)),
        Command::SlowLookups(args) => report("slow-lookups", |tally| walks::slow_lookups::run(&args, tally)),
        Command::Bigdir(args) => report("bigdir", |tally| bigdir::command::run(&args, tally)),
        Command::Ends(args) => report("ends", |tally| ends::run(&args, tally)),
        Command::Ext4Compare(args) => report("ext4-compare", |tally| ext4::command::compare(&args, tally)),
        Command::Ext4Mutate(args) => report("ext4-mutate", |tally| ext4::command::mutate(&args, tally)),
        Command::FuseFuzz(args) => report("fuse-fuzz", |tally| wire::command::run(&args, tally)),
        Command::SharedStores(_) => hits(),
        Command::WalksWalker(args) => child("walks-walker", || walks::walker::walk(&args)),
        Command::MirrorStormWorker(args) => {
            child("mirror-storm-worker", || mirror_storm::worker::serve(&args))
        }
        Command::EndsServer(args) => child("ends-server", || ends::serve(&args)),
    }
}

/// The watch needs a process with one thread; its exit code is that of the run.
fn hits() -> u8 {
    match alone(|| report("shared-stores", shared_stores::run)) {
        Ok(code) => u8::try_from(code).unwrap_or(1),
        Err(error) => report("shared-stores", |_| Err(error.into())),
    }
}
