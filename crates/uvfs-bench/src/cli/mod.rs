//! The command line: `uvfs-bench WORKLOAD [options]`, `uvfs-bench plot FILE… --out X.svg`, `uvfs-bench --list`.
//!
//! Workloads are subcommands that are made from the registry, each with the common options and its own. What is wrong is
//! said in one sentence that says what is valid; the exit status is then 2, and 1 where a run failed.

mod args;
mod run;

use std::ffi::OsString;
use std::fs;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context as _, Result, ensure};
use clap::ArgMatches;
use clap::error::ErrorKind;

use crate::harness::processes;
use crate::report::{self, Report};
use crate::workloads::{self, Workload, target};

/// Runs the program.
pub fn main(args: impl IntoIterator<Item = OsString>) -> ExitCode {
    let args: Vec<OsString> = args.into_iter().collect();
    if args.get(1).is_some_and(|word| word == processes::WORD) {
        return finish(processes::serve(target::worker_elsewhere));
    }
    let workloads = workloads::all();
    let matches = match args::command(&workloads).try_get_matches_from(args) {
        Ok(matches) => matches,
        Err(error) => return refuse(&error, &workloads),
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

fn refuse(error: &clap::Error, workloads: &[Box<dyn Workload>]) -> ExitCode {
    if matches!(error.kind(), ErrorKind::InvalidSubcommand | ErrorKind::MissingSubcommand) {
        let names: Vec<_> = workloads.iter().map(|w| w.name()).collect();
        let word = error.get(clap::error::ContextKind::InvalidSubcommand).map(ToString::to_string);
        let said =
            word.map_or_else(|| "a workload is needed".to_owned(), |w| format!("{w:?} is no workload"));
        eprintln!("uvfs-bench: {said}; workloads are {}; and there are plot and --list", names.join(", "));
        return ExitCode::from(2);
    }
    // Where the output has gone away there is nobody to tell.
    let _ = error.print();
    ExitCode::from(u8::try_from(error.exit_code()).unwrap_or(2))
}

fn dispatch(matches: &ArgMatches, workloads: &[Box<dyn Workload>]) -> Result<()> {
    if matches.get_flag("list") {
        return list(workloads);
    }
    match matches.subcommand() {
        Some(("plot", matches)) => plot(matches),
        Some((name, matches)) => {
            let workload = workloads.iter().find(|w| w.name() == name).context("no such workload")?;
            run::run(&**workload, matches)
        }
        None => Ok(()),
    }
}

fn list(workloads: &[Box<dyn Workload>]) -> Result<()> {
    for workload in workloads {
        println!("{:14} {}", workload.name(), workload.about());
        println!("{:14}   arms: {}", "", workload.arms().join(", "));
    }
    Ok(())
}

fn plot(matches: &ArgMatches) -> Result<()> {
    let files = matches.get_many::<PathBuf>("file").context("a file is needed")?;
    let out = matches.get_one::<PathBuf>("out").context("--out is needed")?;
    let reports = files
        .map(|file| {
            let text = fs::read_to_string(file).with_context(|| format!("cannot read {}", file.display()))?;
            let report: Report = serde_json::from_str(&text)
                .with_context(|| format!("{} is no report; write one with --format json", file.display()))?;
            ensure!(
                report.version == report::VERSION,
                "{} has version {}, this program reads version {}",
                file.display(),
                report.version,
                report::VERSION
            );
            Ok(report)
        })
        .collect::<Result<Vec<_>>>()?;
    report::plot::plot(&reports, out)
}
