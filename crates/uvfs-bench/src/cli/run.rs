//! One run: from the options to a written report.

use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use clap::ArgMatches;
use indicatif::{ProgressBar, ProgressStyle};
use serde_json::{Value, json};

use crate::harness::machine::{Machine, Ticks};
use crate::harness::schedule::{self, Case, Settings, Slot, Width};
use crate::harness::sys;
use crate::harness::thp::{self, Thp};
use crate::report::write::{Format, write};
use crate::report::{Report, VERSION, build, per_second};
use crate::workloads::target::Target;
use crate::workloads::{Prepare, Workload};

/// The options that all workloads have.
struct Options {
    settings: Settings,
    arms: Vec<&'static str>,
    /// Whether somebody asked for just these arms.
    chosen: bool,
    targets: Vec<Target>,
    thp: Thp,
    per_second: bool,
}

/// Runs a workload and writes its report.
///
/// # Errors
/// A sentence for the user.
pub fn run(workload: &dyn Workload, matches: &ArgMatches) -> Result<()> {
    let options = Options::read(workload, matches)?;
    let cases = workload.cases(matches)?;
    options.thp.begin()?;
    let mut report = Report {
        version: VERSION,
        workload: workload.name().to_owned(),
        machine: Machine::here(),
        config: options.config(matches),
        notes: Vec::new(),
        rows: Vec::new(),
        ratios: Vec::new(),
        scaling: Vec::new(),
    };
    let before = Ticks::now();
    let bar = progress(cases.len() as u64);
    for prepare in cases {
        let case = set_up(prepare, &options, &mut report.notes)?;
        measure(workload, &case, &options, &bar, &mut report)?;
        drop(case);
        sys::trim();
    }
    bar.finish_and_clear();
    report.machine.steal = Ticks::now().stolen_since(before);
    emit(&report, matches)
}

impl Options {
    fn read(workload: &dyn Workload, matches: &ArgMatches) -> Result<Self> {
        let numbers = |name| matches.get_many::<u64>(name).into_iter().flatten().map(|n| *n as usize);
        let targets: Vec<Target> = matches.get_many("target").into_iter().flatten().cloned().collect();
        let system_calls = targets.iter().any(|t| *t != Target::InProcess);
        ensure!(
            workload.has_targets() || !system_calls,
            "{} has no system calls; its only target is inproc",
            workload.name()
        );
        let procs: Vec<_> = numbers("procs").map(Width::Procs).collect();
        ensure!(procs.is_empty() || system_calls, "--procs needs a --target that is a directory, or host");
        let threads = numbers("threads").map(Width::Threads);
        let seconds = matches.get_one::<f64>("seconds").copied().context("--seconds is needed")?;
        Ok(Self {
            settings: Settings {
                widths: threads.chain(procs).collect(),
                length: Duration::from_secs_f64(seconds),
                rounds: matches.get_one::<u64>("rounds").copied().context("--rounds is needed")? as usize,
                drop_preempted: !workload.preemption_is_the_subject(),
                companions: workload.companions(),
            },
            arms: arms(workload, matches, &targets)?,
            chosen: matches.contains_id("arms"),
            targets,
            thp: *matches.get_one("thp").context("--thp is needed")?,
            per_second: matches.get_flag("per-second"),
        })
    }

    /// Threads at the most.
    fn threads(&self) -> usize {
        self.settings.widths.iter().map(|w| w.workers()).max().unwrap_or(1)
    }

    fn config(&self, matches: &ArgMatches) -> Value {
        let widths = |procs: bool| -> Vec<usize> {
            let of_kind = |w: &&Width| matches!(w, Width::Procs(_)) == procs;
            self.settings.widths.iter().filter(of_kind).map(|w| w.workers()).collect()
        };
        let own =
            ["depth", "files", "per-dir", "renames", "hold-us", "every-ms"].into_iter().filter_map(|name| {
                let values = matches.try_get_raw(name).ok().flatten()?;
                let text: Vec<_> = values.map(|v| v.to_string_lossy().into_owned()).collect();
                Some((name.to_owned(), json!(text.join(","))))
            });
        json!({
            "seconds": self.settings.length.as_secs_f64(),
            "rounds": self.settings.rounds,
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

/// The in-process arms that are asked for.
fn arms(workload: &dyn Workload, matches: &ArgMatches, targets: &[Target]) -> Result<Vec<&'static str>> {
    if !targets.contains(&Target::InProcess) {
        return Ok(Vec::new());
    }
    let all = workload.arms();
    let Some(wanted) = matches.get_many::<String>("arms") else { return Ok(all) };
    let find = |word: &String| {
        let arm = all.iter().find(|arm| *arm == word).copied();
        arm.with_context(|| format!("{word:?} is no arm of {}; arms are {}", workload.name(), all.join(", ")))
    };
    wanted.map(find).collect()
}

/// Makes a case's arms and looks whether each does what it shall.
fn set_up(prepare: Prepare<'_>, options: &Options, notes: &mut Vec<String>) -> Result<Case> {
    let Prepare { params, variants, maker } = prepare;
    let mut case = Case { params, variants, arms: Vec::new(), huge: Vec::new() };
    for name in &options.arms {
        let before = thp::in_use().unwrap_or(0);
        match maker.arm(name, options.threads()) {
            Ok(arm) => case.arms.push(arm),
            Err(why) if options.chosen => return Err(why.context(format!("{name} is not available"))),
            Err(why) => {
                note(notes, format!("{name} is not available: {why:#}"));
                continue;
            }
        }
        options.thp.settle()?;
        case.huge.push(thp::in_use().unwrap_or(0).saturating_sub(before));
    }
    for target in options.targets.iter().filter(|t| **t != Target::InProcess) {
        let arm = maker.target(target)?;
        note(notes, format!("{} crosses the system-call boundary; the in-process arms do not", arm.name()));
        case.arms.push(arm);
        case.huge.push(0);
    }
    ensure!(!case.arms.is_empty(), "no arm is left to measure");
    for arm in &case.arms {
        arm.check().with_context(|| format!("{} gives wrong results, so it is not measured", arm.name()))?;
    }
    Ok(case)
}

fn note(notes: &mut Vec<String>, text: String) {
    if !notes.contains(&text) {
        notes.push(text);
    }
}

fn measure(
    workload: &dyn Workload,
    case: &Case,
    options: &Options,
    bar: &ProgressBar,
    report: &mut Report,
) -> Result<()> {
    let settings = &options.settings;
    let turns = settings.rounds * case.variants.len() * settings.widths.len() * case.arms.len();
    bar.inc_length(turns as u64);
    let mut seen = |slot: Slot, batches: &[Vec<_>]| {
        let arm = case.arms[slot.arm].name();
        bar.set_message(arm.to_owned());
        bar.inc(1);
        if options.per_second {
            let lines = per_second::lines(batches).join("\n");
            bar.suspend(|| eprintln!("{arm} x{}\n{lines}", slot.width.workers()));
        }
    };
    let series = schedule::run(case, settings, &mut seen)?;
    bar.inc(1);
    let part = build::part(case, &series);
    if part.rows.is_empty() {
        bail!("no turn could be measured: other programs keep the processors busy");
    }
    for arm in &case.arms {
        arm.remark().into_iter().for_each(|said| note(&mut report.notes, format!("{}: {said}", arm.name())));
    }
    workload.remarks(case, &series).into_iter().for_each(|said| note(&mut report.notes, said));
    report.rows.extend(part.rows);
    report.ratios.extend(part.ratios);
    report.scaling.extend(part.scaling);
    Ok(())
}

/// On a terminal; elsewhere it draws nothing.
fn progress(cases: u64) -> ProgressBar {
    let bar = ProgressBar::new(cases);
    if let Ok(style) = ProgressStyle::with_template("{wide_bar} {pos}/{len} {eta} {msg:12}") {
        bar.set_style(style);
    }
    bar
}

fn emit(report: &Report, matches: &ArgMatches) -> Result<()> {
    let format = *matches.get_one::<Format>("format").context("--format is needed")?;
    let text = write(report, format)?;
    match matches.get_one::<PathBuf>("out") {
        Some(out) => fs::write(out, text).with_context(|| format!("cannot write {}", out.display())),
        None => super::say(&text),
    }
}
