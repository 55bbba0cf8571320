//! The result of a run: rows, ratios and scaling, and its output formats.
//!
//! [`BenchReport`] is the JSON form, documented in the crate's `README.md`. The other formats are views of it, so a file can be
//! plotted or printed later. [`VERSION`] increases when a key changes its meaning or is removed.

pub mod build;
pub mod per_second;
pub mod plot;
pub mod write;

use std::fs;
use std::path::PathBuf;

use anyhow::{Context as _, Result, ensure};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::harness::machine::Machine;
use crate::harness::schedule::Params;
use crate::harness::spread::Spread;

/// Version of the JSON form.
pub const VERSION: u32 = 1;

/// A run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct BenchReport {
    /// [`VERSION`].
    pub version: u32,
    /// The workload that was measured.
    pub workload: String,
    /// The machine.
    pub machine: Machine,
    /// The options, as the program understood them.
    pub config: Value,
    /// Notes for the reader: arms missing on this machine, arms that cross the system-call boundary.
    pub notes: Vec<String>,
    /// One for each case, variant, number of workers, and arm.
    pub rows: Vec<Row>,
    /// Pairs of rows that differ only in the arm.
    pub ratios: Vec<Ratio>,
    /// Pairs of rows that differ only in the number of workers.
    pub scaling: Vec<Scaling>,
}

/// Reads a report.
///
/// # Errors
/// A sentence for the user: it cannot be read, is no report, or has another version.
pub fn read(file: &PathBuf) -> Result<BenchReport> {
    let text = fs::read_to_string(file).with_context(|| format!("cannot read {}", file.display()))?;
    let report: BenchReport = serde_json::from_str(&text)
        .with_context(|| format!("{} is no report; write one with --format json", file.display()))?;
    ensure!(
        report.version == VERSION,
        "{} has version {}, this program reads version {VERSION}",
        file.display(),
        report.version
    );
    Ok(report)
}

/// An arm's figures.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Row {
    /// The arm.
    pub arm: String,
    /// Simultaneous threads in each process.
    pub threads: usize,
    /// Number of processes, if more than one.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub procs: Option<usize>,
    /// Operations a second of all workers together.
    pub ops_per_s: Spread,
    /// Nanoseconds that one worker needs per operation.
    pub ns_per_op: Spread,
    /// Share of the batches dropped because a thread was preempted, over all rounds.
    pub dropped: f64,
    /// Median of `ns_per_op` with nothing dropped.
    pub undropped_ns_per_op: f64,
    /// Nanoseconds of the servers' processor time per operation, if the arm has servers.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub server_cpu_ns_per_op: Option<Spread>,
    /// Bytes of huge pages that this arm added.
    pub huge_page_bytes: u64,
    /// The workload's own parameters.
    #[serde(flatten)]
    pub params: Params,
}

/// Time of one arm over time of another, formed round by round. Below 1, the arm is faster.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Ratio {
    /// The arm.
    pub arm: String,
    /// The other one.
    pub vs: String,
    /// Threads of both.
    pub threads: usize,
    /// Processes of both, if more than one.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub procs: Option<usize>,
    /// The ratio.
    #[serde(flatten)]
    pub ratio: Spread,
    /// The same for the servers' processor time, where both have servers.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub server_cpu: Option<Spread>,
    /// The workload's own parameters.
    #[serde(flatten)]
    pub params: Params,
}

/// Throughput with several workers over throughput with one, formed round by round.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Scaling {
    /// The arm.
    pub arm: String,
    /// Threads, against one.
    pub threads: usize,
    /// Processes, against one.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub procs: Option<usize>,
    /// Throughput over that of one worker.
    #[serde(flatten)]
    pub scaling: Spread,
    /// The same, divided by the `null` arm's in the same round: 1 is the most that this machine can do.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub of_null: Option<Spread>,
    /// The workload's own parameters.
    #[serde(flatten)]
    pub params: Params,
}
