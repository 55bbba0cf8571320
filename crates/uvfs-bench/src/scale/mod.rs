//! `uvfs-bench scale`: a model of throughput beyond the processors at hand.
//!
//! It prints the model beside the threads' published figures first, then beside the reports' rows of more than one
//! thread, and only then its predictions. A prediction is not a measurement: the output says so. The private work of
//! each arm is its measured time with one thread, from reports of the workloads that [`steps`] knows. The limits of the
//! model are in [`model`].

mod fit;
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
use fit::FittedLock;
use model::{MachineClass, Operation};
use published::{Check, SAPPHIRE_RAPIDS, WITHIN};
use steps::SharedSteps;

/// Predict throughput with many processors from reports of one and two threads
#[derive(Parser)]
#[command(name = "scale")]
struct Scale {
    /// Reports of stat-same, open-same, showgids, icache or tree, written with --format json; none: only the published
    /// figures are checked.
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
    /// The same on the machine of the reports; without it, measured here and now.
    #[arg(long, value_name = "NS")]
    here: Option<f64>,
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
    missed: &'a [Check],
    /// Nanoseconds of a hand-over on the reports' machine, for `measured`.
    #[serde(skip_serializing_if = "Option::is_none")]
    here_ns: Option<f64>,
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
    /// Of the lock that each operation takes, fitted to the report's two threads.
    #[serde(skip_serializing_if = "Option::is_none")]
    hold_ns: Option<f64>,
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
    ensure!(
        time(scale.inside) && time(scale.across) && scale.here.is_none_or(time),
        "--inside, --across and --here are nanoseconds above 0"
    );
    let machine = MachineClass { socket: scale.socket, inside_ns: scale.inside, across_ns: scale.across };
    let (published, missed) = (published::checks(), published::missed());
    print_checks("The model beside published figures", &published);
    print_checks(
        "Published figures that the model does not meet: no prediction of that workload is validated",
        &missed,
    );
    if scale.file.is_empty() {
        return Ok(());
    }
    let reports: Vec<BenchReport> = scale.file.iter().map(crate::report::read).collect::<Result<_>>()?;
    let arms: Vec<(&str, &Row)> = reports
        .iter()
        .flat_map(|report| report.rows.iter().map(|row| (report.workload.as_str(), row)))
        .filter(|(workload, row)| steps::of(workload, row, row.threads).is_some() && row.procs.is_none())
        .collect();
    ensure!(!arms.is_empty(), "no arm of these reports has counted steps");
    let of_here = match scale.here {
        Some(ns) => Some(ns),
        None => hand_over::measure()?,
    };
    let here = of_here.map(|ns| MachineClass { socket: usize::MAX, inside_ns: ns, across_ns: ns });
    let measured = check_here(&arms, here.as_ref());
    let predictions = predict(&arms, here.as_ref(), &machine, &scale.processors);
    print_predictions(&predictions, &machine);
    if let Some(out) = &scale.plot {
        plot::plot(&predictions, out)?;
    }
    if let Some(out) = &scale.out {
        let (published, missed, measured) = (&published[..], &missed[..], &measured[..]);
        let output = Output {
            published,
            missed,
            here_ns: of_here,
            measured,
            predictions: &predictions,
            reports: &reports,
        };
        let json = serde_json::to_string_pretty(&output)?;
        fs::write(out, json).with_context(|| format!("cannot write {}", out.display()))?;
    }
    Ok(())
}

/// The operation of a row of one thread beside so many processors that do the same, if all its shared steps are lines.
fn operation(workload: &str, row: &Row, processors: usize) -> Option<Operation> {
    match steps::of(workload, row, processors)? {
        SharedSteps::Lines(stations) => Some(Operation { private_ns: row.ns_per_op.median, stations }),
        SharedSteps::Lock(_) => None,
    }
}

/// The same, if it takes a lock: fitted to the row of two threads.
fn held(arms: &[(&str, &Row)], here: &MachineClass, workload: &str, one: &Row) -> Option<FittedLock> {
    let Some(SharedSteps::Lock(holds)) = steps::of(workload, one, 2) else { return None };
    let (_, two) = arms.iter().find(|(w, row)| *w == workload && row.threads == 2 && same(row, one))?;
    FittedLock::fitted(here, one.ns_per_op.median, holds, two.ops_per_s.median)
}

fn same(a: &Row, b: &Row) -> bool {
    a.arm == b.arm && a.params == b.params
}

fn params(row: &Row) -> String {
    let text = |value: &serde_json::Value| value.to_string().trim_matches('"').to_owned();
    row.params.iter().map(|(key, value)| format!("{key} {}", text(value))).collect::<Vec<_>>().join(" ")
}

/// The model's throughput beside that of the reports' rows with more than one thread.
fn check_here(arms: &[(&str, &Row)], here: Option<&MachineClass>) -> Vec<Check> {
    let Some(here) = here else {
        println!("\nskipped: the model beside the reports: this machine has one processor");
        return Vec::new();
    };
    let check = |(workload, many): &(&str, &Row)| {
        let (_, one) = arms.iter().find(|(w, row)| w == workload && row.threads == 1 && same(row, many))?;
        Some(Check {
            what: format!("{workload} {} {}, operations a second", one.arm, params(one)),
            n: many.threads,
            published: many.ops_per_s.median,
            model: operation(workload, one, many.threads)?.per_second(here, many.threads),
        })
    };
    let checks: Vec<Check> = arms.iter().filter(|(_, row)| row.threads > 1).filter_map(check).collect();
    let title =
        format!("The model beside the reports, with {:.0} ns a hand-over on their machine", here.inside_ns);
    print_checks(&title, &checks);
    checks
}

fn predict(
    arms: &[(&str, &Row)],
    here: Option<&MachineClass>,
    machine: &MachineClass,
    processors: &[usize],
) -> Vec<Prediction> {
    let predict = |(workload, row): &(&str, &Row)| {
        let held = here.and_then(|here| held(arms, here, workload, row));
        let of = |n: usize| held.map(|held| held.of(n)).or_else(|| operation(workload, row, n));
        let Some(alone) = of(1) else {
            let what = format!("{workload} {} {}", row.arm, params(row));
            println!(
                "not predicted: {what}: the report's two threads do not queue as the model would have them"
            );
            return None;
        };
        Some(Prediction {
            workload: (*workload).to_owned(),
            arm: row.arm.clone(),
            params: params(row),
            private_ns: alone.private_ns,
            hold_ns: held.map(|held| held.hold_ns),
            processors: processors.to_vec(),
            ops_per_s: processors.iter().filter_map(|n| Some(of(*n)?.per_second(machine, *n))).collect(),
        })
    };
    arms.iter().filter(|(_, row)| row.threads == 1).filter_map(predict).collect()
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
        let Prediction { workload, arm, params, hold_ns, .. } = prediction;
        let fitted = hold_ns.map_or(String::new(), |ns| format!(", lock held {ns:.0} ns (fitted)"));
        println!("{rates}  {workload} {arm} {params}{fitted}");
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn row(arm: &str, threads: usize, ns: f64, params: serde_json::Value) -> Row {
        let spread = |v: f64| json!({ "median": v, "min": v, "max": v });
        let mut row = json!({
            "arm": arm, "threads": threads, "ops_per_s": spread(threads as f64 * 1e9 / ns), "ns_per_op": spread(ns),
            "dropped": 0.0, "undropped_ns_per_op": ns, "huge_page_bytes": 0,
        });
        row.as_object_mut().unwrap().extend(params.as_object().unwrap().clone());
        serde_json::from_value(row).unwrap()
    }

    /// Two processors do not queue for a lock: a prediction for them counts its hand-overs as the check does.
    #[test]
    fn two_processors_are_predicted_as_they_are_checked() {
        let rows: Vec<Row> = ["stock", "hashed", "patched", "uvfs"]
            .into_iter()
            .flat_map(|arm| [(1, 900.0), (2, 1_800.0)].map(|(n, ns)| row(arm, n, ns, json!({ "links": 0 }))))
            .collect();
        let arms: Vec<(&str, &Row)> = rows.iter().map(|row| ("showgids", row)).collect();
        let here = MachineClass { socket: usize::MAX, ..SAPPHIRE_RAPIDS };
        let checks = check_here(&arms, Some(&here));
        let predictions = predict(&arms, Some(&here), &SAPPHIRE_RAPIDS, &[2]);
        assert_eq!((checks.len(), predictions.len()), (4, 4));
        for (check, prediction) in checks.iter().zip(&predictions) {
            let error = prediction.ops_per_s[0] / check.model - 1.0;
            assert!(error.abs() < 1e-9, "{}: {error}", check.what);
        }
    }

    /// The hold is fitted to two threads, so the prediction for two is what they made.
    #[test]
    fn a_fitted_lock_predicts_the_two_threads_it_was_fitted_to() {
        let rows = [(1, 300.0), (2, 700.0)].map(|(n, ns)| row("lists", n, ns, json!({ "phase": "get" })));
        let arms: Vec<(&str, &Row)> = rows.iter().map(|row| ("icache", row)).collect();
        let predictions = predict(&arms, Some(&SAPPHIRE_RAPIDS), &SAPPHIRE_RAPIDS, &[2, 20]);
        let rates = &predictions[0].ops_per_s;
        assert!((rates[0] / rows[1].ops_per_s.median - 1.0).abs() < 0.01, "{rates:?}");
        assert!(rates[1] < rates[0], "{rates:?}");
    }
}
