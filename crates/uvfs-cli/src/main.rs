//! The command `uvfs`: mounts the file systems of `uvfs-drivers` through FUSE, and unmounts them.
//!
//! `args` is what can be typed, `options` what may stand after `-o`, `source` makes the file
//! system, `mount` and `daemon` run it, `signals` ends it. Errors are sentences on standard
//! error; the exit status is 0, 1 for a failure, 2 for a command that was not understood.

mod args;
mod daemon;
mod mount;
mod options;
mod signals;
mod source;

use std::process::ExitCode;

use clap::Parser;
use tracing_subscriber::EnvFilter;

use args::{Args, Command};

/// What is logged where UVFS_LOG says nothing.
const DEFAULT_LOG: &str = "warn";

/// `fuser` reports every answer that came after its asker had gone as an error; so it is asked for
/// by name or not at all.
const QUIET: &str = "fuser=off";

fn main() -> ExitCode {
    let args = Args::parse();
    abort_on_panic();
    let outcome = start_log().and_then(|()| match args.command {
        Command::Mount(args) => mount::run(&args),
        Command::Umount(args) => Ok(uvfs_fuse::unmount(&args.dir, args.lazy)?),
    });
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("uvfs: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn start_log() -> anyhow::Result<()> {
    let text = std::env::var("UVFS_LOG").unwrap_or_else(|_| DEFAULT_LOG.to_owned());
    let directives = if text.contains("fuser") { text.clone() } else { format!("{text},{QUIET}") };
    let filter = EnvFilter::try_new(&directives).map_err(|error| {
        anyhow::anyhow!("UVFS_LOG={text:?} is no log filter: {error}; use for instance UVFS_LOG=debug")
    })?;
    tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).init();
    Ok(())
}

/// A server that has lost a thread to a bug would leave its clients waiting for ever; ended, it
/// gives them ENOTCONN.
fn abort_on_panic() {
    let report = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |info| {
        report(info);
        std::process::abort();
    }));
}
