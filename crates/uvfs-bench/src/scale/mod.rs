//! `uvfs-bench scale`: a model of throughput beyond the processors at hand.
//!
//! It prints the model beside the threads' published figures first, then beside the reports' rows of more than one
//! thread, and only then its predictions. A prediction is not a measurement: the output says so. The private work of
//! each arm is its measured time with one thread, from reports of `stat-same` and `open-same`. The limits of the model
//! are in [`model`].

mod hand_over;
mod model;
mod plot;
mod published;
mod steps;

use std::fs;
use std::path::PathBuf;

use anyhow::{Context as _, Result, ensure};
use clap::{ArgMatches, Command, CommandFactory as _, FromArgMatches as _, Parser};
use serde::Serialize;

use crate::report::{BenchReport, Row};
use model::{MachineClass, Operation};
use published::{Check, SAPPHIRE_RAPIDS, WITHIN};

/// Predict throughput with many processors from reports of one and two threads
#[derive(Parser)]
#[command(name = "scale")]
struct Scale {
    /// Reports of stat-same or open-same, written with --format json; none: only the published figures are checked.
    file: Vec<PathBuf>,
    /// Processors to predict for.
    #[arg(long, value_delimiter = ',', default_values_t = [1usize, 2, 8, 20, 24, 64, 384])]
    processors: Vec<usize>,
    /// Processors in a socket of the machine to predict for.
    #[arg(long, default_value_t = SAPPHIRE_RAPIDS.socket)]
    socket: usize,
    /// Nanoseconds in which a cache line goes from one processor to another of its socket.
    #[arg(long, default_value_t = SAPPHIRE_RAPIDS.inside_ns)]
    inside: f64,
    /// The same between sockets; the default is an assumption.
    #[arg(long, default_value_t = SAPPHIRE_RAPIDS.across_ns)]
    across: f64,
    /// Draw the predictions.
    #[arg(long, value_name = "X.svg")]
    plot: Option<PathBuf>,
    /// Write all of it as JSON: the checks, the reports and the predictions.
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
}

/// The JSON form.
#[derive(Serialize)]
struct Output<'a> {
    published: &'a [Check],
    measured: &'a [Check],
    predictions: &'a [Prediction],
    reports: &'a [BenchReport],
}

/// Throughput of one arm by number of processors.
#[derive(Serialize)]
struct Prediction {
    workload: String,
    arm: String,
    params: String,
    private_ns: f64,
    processors: Vec<usize>,
    ops_per_s: Vec<f64>,
}

/// The command.
pub fn command() -> Command {
    Scale::command()
}

/// Runs the command.
///
/// # Errors
/// A sentence for the user.
pub fn run(matches: &ArgMatches) -> Result<()> {
    let scale = Scale::from_arg_matches(matches)?;
    ensure!(scale.processors.iter().all(|n| (1..=4096).contains(n)), "--processors are from 1 to 4096");
    ensure!((1..=4096).contains(&scale.socket), "--socket is from 1 to 4096");
    let time = |ns: f64| ns.is_finite() && ns > 0.0 && ns <= 1e6;
    ensure!(time(scale.inside) && time(scale.across), "--inside and --across are nanoseconds above 0");
    let machine = MachineClass { socket: scale.socket, inside_ns: scale.inside, across_ns: scale.across };
    let published = published::checks();
    print_checks("The model beside published figures", &published);
    if scale.file.is_empty() {
        return Ok(());
    }
    let reports: Vec<BenchReport> = scale.file.iter().map(crate::report::read).collect::<Result<_>>()?;
    let arms: Vec<(&str, &Row)> = reports
        .iter()
        .flat_map(|report| report.rows.iter().map(|row| (report.workload.as_str(), row)))
        .filter(|(workload, row)| steps::of(workload, &row.arm).is_some() && row.procs.is_none())
        .collect();
    ensure!(!arms.is_empty(), "no arm of these reports has counted steps; stat-same and open-same have");
    let measured = check_here(&arms)?;
    let predictions = predict(&arms, &machine, &scale.processors);
    print_predictions(&predictions, &machine);
    if let Some(out) = &scale.plot {
        plot::plot(&predictions, out)?;
    }
    if let Some(out) = &scale.out {
        let (published, measured) = (&published[..], &measured[..]);
        let output = Output { published, measured, predictions: &predictions, reports: &reports };
        let json = serde_json::to_string_pretty(&output)?;
        fs::write(out, json).with_context(|| format!("cannot write {}", out.display()))?;
    }
    Ok(())
}

fn operation(workload: &str, row: &Row) -> Operation {
    let stations = steps::of(workload, &row.arm).unwrap_or_default();
    Operation { private_ns: row.ns_per_op.median, stations }
}

fn params(row: &Row) -> String {
    let text = |value: &serde_json::Value| value.to_string().trim_matches('"').to_owned();
    row.params.iter().map(|(key, value)| format!("{key} {}", text(value))).collect::<Vec<_>>().join(" ")
}

/// The model's throughput beside that of the reports' rows with more than one thread.
fn check_here(arms: &[(&str, &Row)]) -> Result<Vec<Check>> {
    let Some(inside_ns) = hand_over::measure()? else {
        println!("\nskipped: the model beside the reports: this machine has one processor");
        return Ok(Vec::new());
    };
    let here = MachineClass { socket: usize::MAX, inside_ns, across_ns: inside_ns };
    let check = |(workload, many): &(&str, &Row)| {
        let same = |(w, row): &&(&str, &Row)| {
            w == workload && row.threads == 1 && row.arm == many.arm && row.params == many.params
        };
        let (_, one) = arms.iter().find(same)?;
        Some(Check {
            what: format!("{workload} {} {}, operations a second", one.arm, params(one)),
            n: many.threads,
            published: many.ops_per_s.median,
            model: operation(workload, one).per_second(&here, many.threads),
        })
    };
    let checks: Vec<Check> = arms.iter().filter(|(_, row)| row.threads > 1).filter_map(check).collect();
    let title = format!("The model beside the reports, with {inside_ns:.0} ns a hand-over, measured here");
    print_checks(&title, &checks);
    Ok(checks)
}

fn predict(arms: &[(&str, &Row)], machine: &MachineClass, processors: &[usize]) -> Vec<Prediction> {
    arms.iter()
        .filter(|(_, row)| row.threads == 1)
        .map(|(workload, row)| {
            let operation = operation(workload, row);
            Prediction {
                workload: (*workload).to_owned(),
                arm: row.arm.clone(),
                params: params(row),
                private_ns: operation.private_ns,
                processors: processors.to_vec(),
                ops_per_s: processors.iter().map(|n| operation.per_second(machine, *n)).collect(),
            }
        })
        .collect()
}

fn print_checks(title: &str, checks: &[Check]) {
    println!("\n{title}\n{:>3} {:>12} {:>12} {:>6}", "n", "measured", "model", "error");
    for check in checks {
        let number = |v: f64| if v < 1_000.0 { format!("{v:.1}") } else { format!("{v:.0}") };
        let (error, far) =
            (check.error() * 100.0, if check.error().abs() > WITHIN { "  too far" } else { "" });
        let (measured, model) = (number(check.published), number(check.model));
        println!("{:>3} {measured:>12} {model:>12} {error:>5.0}%  {}{far}", check.n, check.what);
    }
}

fn print_predictions(predictions: &[Prediction], machine: &MachineClass) {
    let MachineClass { socket, inside_ns, across_ns } = machine;
    println!(
        "\nPredictions, not measurements: million operations a second, {socket} processors a socket, {inside_ns} ns a \
         hand-over inside it, {across_ns} ns across"
    );
    let Some(first) = predictions.first() else { return };
    let heads: String = first.processors.iter().map(|n| format!("{n:>9}")).collect();
    println!("{heads}  processors");
    for prediction in predictions {
        let rates: String = prediction.ops_per_s.iter().map(|rate| format!("{:>9.1}", rate / 1e6)).collect();
        let Prediction { workload, arm, params, .. } = prediction;
        println!("{rates}  {workload} {arm} {params}");
    }
}
