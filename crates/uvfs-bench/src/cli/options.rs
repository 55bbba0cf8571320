//! The options that all workloads share, parsed and checked against each other.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use clap::ArgMatches;
use serde_json::{Value, json};

use crate::harness::schedule::{Settings, Width};
use crate::harness::thp::Thp;
use crate::report::write::Format;
use crate::workloads::Workload;
use crate::workloads::target::RunTarget;

/// The options that all workloads share.
pub struct RunOptions {
    /// How a case is run.
    pub settings: Settings,
    /// In-process arms.
    pub arms: Vec<&'static str>,
    /// Whether the user chose these arms explicitly.
    pub chosen: bool,
    /// Where to run: in this process, below a directory, or both.
    pub targets: Vec<RunTarget>,
    /// Huge pages.
    pub thp: Thp,
    /// Whether each turn's seconds are printed.
    pub per_second: bool,
    /// Form of the report.
    pub format: Format,
    /// File to write it to; `None`: standard output.
    pub out: Option<PathBuf>,
}

impl RunOptions {
    /// Reads the options from the command line.
    ///
    /// # Errors
    /// A sentence that says which options contradict each other.
    pub fn read(workload: &dyn Workload, matches: &ArgMatches) -> Result<Self> {
        let numbers = |name| matches.get_many::<u64>(name).into_iter().flatten().map(|n| *n as usize);
        let targets: Vec<RunTarget> = matches.get_many("target").into_iter().flatten().cloned().collect();
        let system_calls = targets.iter().any(|t| *t != RunTarget::InProcess);
        ensure!(
            workload.has_targets() || !system_calls,
            "{} has no system calls; its only target is inproc",
            workload.name()
        );
        let in_process = targets.contains(&RunTarget::InProcess);
        ensure!(
            in_process || !matches.contains_id("arms"),
            "--arms chooses among the arms of this process; add inproc to --target"
        );
        let procs: Vec<_> = numbers("procs").map(Width::Procs).collect();
        ensure!(procs.is_empty() || system_calls, "--procs needs a --target that is a directory, or host");
        let threads = numbers("threads").map(Width::Threads);
        let seconds = matches.get_one::<f64>("seconds").copied().context("--seconds is needed")?;
        Ok(Self {
            settings: Settings {
                widths: once(threads.chain(procs)),
                length: Duration::from_secs_f64(seconds),
                rounds: matches.get_one::<u64>("rounds").copied().context("--rounds is needed")? as usize,
                warm_up: !matches.get_flag("no-warm-up"),
                drop_preempted: !workload.preemption_is_the_subject(),
                companions: workload.companions(matches),
            },
            arms: if in_process { arms(workload, matches)? } else { Vec::new() },
            chosen: matches.contains_id("arms"),
            targets,
            thp: *matches.get_one("thp").context("--thp is needed")?,
            per_second: matches.get_flag("per-second"),
            format: *matches.get_one("format").context("--format is needed")?,
            out: matches.get_one("out").cloned(),
        })
    }

    /// Most workers at once.
    pub fn threads(&self) -> usize {
        self.settings.widths.iter().map(|w| w.workers()).max().unwrap_or(1)
    }

    /// The options in the report's form.
    pub fn config(&self, workload: &dyn Workload, matches: &ArgMatches) -> Value {
        let widths = |procs: bool| -> Vec<usize> {
            let of_kind = |w: &&Width| matches!(w, Width::Procs(_)) == procs;
            self.settings.widths.iter().filter(of_kind).map(|w| w.workers()).collect()
        };
        let own = workload.args().into_iter().filter_map(|arg| {
            let name = arg.get_id().as_str();
            let values = matches.try_get_raw(name).ok().flatten()?;
            let text: Vec<_> = values.map(|v| v.to_string_lossy().into_owned()).collect();
            Some((name.to_owned(), json!(text.join(","))))
        });
        json!({
            "seconds": self.settings.length.as_secs_f64(),
            "rounds": self.settings.rounds,
            "warm_up": self.settings.warm_up,
            "threads": widths(false),
            "procs": widths(true),
            "arms": self.arms,
            "targets": self.targets.iter().map(ToString::to_string).collect::<Vec<_>>(),
            "thp": self.thp,
            "drop_preempted": self.settings.drop_preempted,
            "options": own.collect::<serde_json::Map<_, _>>(),
        })
    }
}

/// The in-process arms that the user chose.
fn arms(workload: &dyn Workload, matches: &ArgMatches) -> Result<Vec<&'static str>> {
    let all = workload.arms();
    let Some(wanted) = matches.get_many::<String>("arms") else { return Ok(all) };
    let find = |word: &String| {
        let arm = all.iter().find(|arm| *arm == word).copied();
        arm.with_context(|| format!("{word:?} is no arm of {}; arms are {}", workload.name(), all.join(", ")))
    };
    Ok(once(wanted.map(find).collect::<Result<Vec<_>>>()?))
}

/// Each of them once, in order of first appearance.
fn once<T: PartialEq>(all: impl IntoIterator<Item = T>) -> Vec<T> {
    all.into_iter().fold(Vec::new(), |mut out, one| {
        if !out.contains(&one) {
            out.push(one);
        }
        out
    })
}
