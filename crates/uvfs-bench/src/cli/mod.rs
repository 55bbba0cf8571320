//! The command line: `uvfs-bench WORKLOAD [options]`, `uvfs-bench figures WHICH`, `uvfs-bench scale [FILE…]`,
//! `uvfs-bench ext4-peers`, `uvfs-bench ext4-threads`, `uvfs-bench plot FILE… --out X.svg`, `uvfs-bench --list`.
//!
//! Workloads are subcommands built from the registry, each with the common options and its own. A usage error is
//! one sentence that names the valid values, with exit status 2. A failed run exits with status 1.

mod args;
mod options;
mod run;

use std::ffi::OsString;
use std::io::{self, Write};
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context as _, Result};
use clap::error::ErrorKind;
use clap::{ArgMatches, Command};

use crate::harness::processes;
use crate::report;
use crate::workloads::{self, Workload};
use crate::{figures, images, scale};

/// Runs the program.
pub fn main(args: impl IntoIterator<Item = OsString>) -> ExitCode {
    let args: Vec<OsString> = args.into_iter().collect();
    if args.get(1).is_some_and(|word| word == processes::WORD) {
        return finish(processes::serve(workloads::worker_elsewhere));
    }
    let workloads = workloads::all();
    let mut command = args::command(&workloads);
    let matches = match command.try_get_matches_from_mut(&args) {
        Ok(matches) if matches.subcommand().is_some() || matches.get_flag("list") => matches,
        Ok(_) => return refuse(&command.error(ErrorKind::MissingSubcommand, ""), &command, None),
        Err(error) => return refuse(&error, &command, args.get(1)),
    };
    finish(dispatch(&matches, &workloads))
}

fn finish(done: Result<()>) -> ExitCode {
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("uvfs-bench: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn refuse(error: &clap::Error, command: &Command, word: Option<&OsString>) -> ExitCode {
    if !error.use_stderr() {
        // Help or version. If the output was closed, nobody can be told.
        let _ = error.print();
        return ExitCode::SUCCESS;
    }
    let chosen = word.and_then(|word| command.get_subcommands().find(|c| c.get_name() == word));
    let said = match (error.kind(), chosen) {
        (ErrorKind::UnknownArgument, Some(chosen)) if !chosen.has_subcommands() => {
            let options: Vec<_> = chosen.get_arguments().filter_map(|a| a.get_long()).collect();
            let (name, options) = (chosen.get_name(), options.join(", --"));
            format!("{}; options of {name} are --{options}", sentence(&error.to_string()))
        }
        (_, Some(_)) => sentence(&error.to_string()),
        (_, None) => {
            let names: Vec<_> = command.get_subcommands().map(Command::get_name).collect();
            let said =
                word.map_or_else(|| "a workload is needed".into(), |w| format!("{w:?} is no workload"));
            format!("{said}; commands are {}, and --list", names.join(", "))
        }
    };
    eprintln!("uvfs-bench: {said}");
    ExitCode::from(2)
}

/// Clap's message on one line, without its usage and hints.
fn sentence(said: &str) -> String {
    let lines = said.lines().map(str::trim).take_while(|line| !line.starts_with("Usage:"));
    let kept: Vec<_> = lines.filter(|line| !line.is_empty() && !line.starts_with("For more")).collect();
    kept.join(" ").trim_start_matches("error: ").to_owned()
}

fn dispatch(matches: &ArgMatches, workloads: &[Box<dyn Workload>]) -> Result<()> {
    if matches.get_flag("list") {
        return list(workloads);
    }
    match matches.subcommand() {
        Some(("plot", matches)) => plot(matches),
        Some(("figures", matches)) => figures::run(matches),
        Some(("scale", matches)) => scale::run(matches),
        Some(("ext4-peers", matches)) => images::peers(matches),
        Some(("ext4-threads", matches)) => images::threads(matches),
        Some((name, matches)) => {
            let workload = workloads.iter().find(|w| w.name() == name).context("no such workload")?;
            run::run(&**workload, matches)
        }
        None => Ok(()),
    }
}

fn list(workloads: &[Box<dyn Workload>]) -> Result<()> {
    let line = |w: &dyn Workload| {
        format!("{:14} {}\n{:14}   arms: {}\n", w.name(), w.about(), "", w.arms().join(", "))
    };
    say(&workloads.iter().map(|w| line(&**w)).collect::<String>())
}

/// Prints to standard output. A closed pipe (`| head`) is not a failure.
fn say(text: &str) -> Result<()> {
    match std::io::stdout().write_all(text.as_bytes()) {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        done => done.context("cannot write to standard output"),
    }
}

fn plot(matches: &ArgMatches) -> Result<()> {
    let files = matches.get_many::<PathBuf>("file").context("a file is needed")?;
    let out = matches.get_one::<PathBuf>("out").context("--out is needed")?;
    let reports = files.map(report::read).collect::<Result<Vec<_>>>()?;
    report::plot::plot(&reports, out)
}
