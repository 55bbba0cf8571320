//! What a run says: rows, ratios and scaling, and the forms it is written in.
//!
//! [`Report`] is the JSON form, documented in the crate's `README.md`; the others are views of it, so that a file can be
//! plotted or printed later. [`VERSION`] moves when a key changes its meaning or goes away.

pub mod build;
pub mod per_second;
pub mod plot;
pub mod write;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::harness::machine::Machine;
use crate::harness::schedule::Params;
use crate::harness::spread::Spread;

/// Of the JSON form.
pub const VERSION: u32 = 1;

/// A run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Report {
    /// [`VERSION`].
    pub version: u32,
    /// What was measured.
    pub workload: String,
    /// On what.
    pub machine: Machine,
    /// How: the options, as they were understood.
    pub config: Value,
    /// What should be known: arms that are missing here, what crosses the system-call boundary.
    pub notes: Vec<String>,
    /// One for each case, variant, number of workers, and arm.
    pub rows: Vec<Row>,
    /// Pairs of rows that differ in the arm only.
    pub ratios: Vec<Ratio>,
    /// Pairs of rows that differ in the number of workers only.
    pub scaling: Vec<Scaling>,
}

/// An arm's figures.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Row {
    /// The arm.
    pub arm: String,
    /// Threads that worked at once, in each process.
    pub threads: usize,
    /// Processes, where there was more than the one.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub procs: Option<usize>,
    /// Operations a second of all workers together.
    pub ops_per_s: Spread,
    /// Nanoseconds that one worker needs for an operation.
    pub ns_per_op: Spread,
    /// Share of the batches that were left out because a thread was preempted, over all rounds.
    pub dropped: f64,
    /// Median of `ns_per_op` with nothing left out.
    pub undropped_ns_per_op: f64,
    /// Nanoseconds of processor time that the arm's servers used for each operation, where it has servers.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub server_cpu_ns_per_op: Option<Spread>,
    /// Bytes in huge pages that came with this arm.
    pub huge_page_bytes: u64,
    /// The workload's own parameters.
    #[serde(flatten)]
    pub params: Params,
}

/// Time of an arm over time of another, formed round by round: below 1 the arm is faster.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Ratio {
    /// The arm.
    pub arm: String,
    /// The other one.
    pub vs: String,
    /// Threads of both.
    pub threads: usize,
    /// Processes of both, where there was more than the one.
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

/// Throughput with so many workers over throughput with one, formed round by round.
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
    /// The same over the `null` arm's of the same round: 1 is all that this machine can do.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub of_null: Option<Spread>,
    /// The workload's own parameters.
    #[serde(flatten)]
    pub params: Params,
}
