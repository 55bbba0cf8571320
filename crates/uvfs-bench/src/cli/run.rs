//! One run: from the options to a written report.

use std::fs;

use anyhow::{Context as _, Result, bail, ensure};
use clap::ArgMatches;
use indicatif::{ProgressBar, ProgressStyle};

use crate::cli::options::RunOptions;
use crate::harness::machine::{Machine, Ticks};
use crate::harness::schedule::{self, Case, Slot};
use crate::harness::{sys, thp};
use crate::report::write::write;
use crate::report::{BenchReport, VERSION, build, per_second};
use crate::workloads::target::RunTarget;
use crate::workloads::{Prepare, Workload};

/// Runs a workload and writes its report.
///
/// # Errors
/// A sentence for the user.
pub fn run(workload: &dyn Workload, matches: &ArgMatches) -> Result<()> {
    let options = RunOptions::read(workload, matches)?;
    let cases = workload.cases(matches)?;
    if let Some(out) = &options.out {
        // Checked now, not after minutes of measuring.
        let made = fs::OpenOptions::new().create(true).append(true).open(out);
        made.with_context(|| format!("cannot write {}", out.display()))?;
    }
    options.thp.begin()?;
    let mut report = BenchReport {
        version: VERSION,
        workload: workload.name().to_owned(),
        machine: Machine::here(),
        config: options.config(workload, matches),
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
    emit(&report, &options)
}

/// Makes a case's arms and checks that each gives right results.
fn set_up(prepare: Prepare<'_>, options: &RunOptions, notes: &mut Vec<String>) -> Result<Case> {
    let Prepare { params, variants, maker } = prepare;
    let mut case = Case { params, variants, arms: Vec::new(), huge: Vec::new() };
    for name in &options.arms {
        // Free memory belongs to no arm. If it stayed, its huge pages would be counted for another arm.
        sys::trim();
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
    let more = maker.more(options.threads())?;
    case.huge.extend(more.iter().map(|_| 0));
    case.arms.extend(more);
    for target in options.targets.iter().filter(|t| **t != RunTarget::InProcess) {
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
    options: &RunOptions,
    bar: &ProgressBar,
    report: &mut BenchReport,
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

/// A progress bar on a terminal; elsewhere it draws nothing.
fn progress(cases: u64) -> ProgressBar {
    let bar = ProgressBar::new(cases);
    if let Ok(style) = ProgressStyle::with_template("{wide_bar} {pos}/{len} {eta} {msg:12}") {
        bar.set_style(style);
    }
    bar
}

fn emit(report: &BenchReport, options: &RunOptions) -> Result<()> {
    let text = write(report, options.format)?;
    match &options.out {
        Some(out) => fs::write(out, text).with_context(|| format!("cannot write {}", out.display())),
        None => super::say(&text),
    }
}
