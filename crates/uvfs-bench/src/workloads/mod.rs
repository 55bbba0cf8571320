//! The workloads.
//!
//! A [`Workload`] has a name, states what it compares and adds its own options to the command line. It turns the
//! options into [`Prepare`]d cases, which the harness sets up, runs and drops one after the other. To add one, write a
//! file here with a type that implements `Workload`, and add a line to [`all`].
//!
//! Most workloads build their arms from [`lookups`] (tables under the same walk), [`context`] (uvfs as a program uses
//! it) and [`target`] (system calls on a mounted directory), but any implementation of [`Arm`] will do.
//! The crate's `README.md` lists each workload's name, its arms and the parameters in its rows; a test checks that.

pub mod blocks;
pub mod context;
pub mod files;
pub mod fuse;
pub mod icache;
pub mod lockref;
pub mod lookups;
pub mod miss;
pub mod open;
pub mod options;
pub mod rename_dirs;
pub mod rwsem;
pub mod showgids;
pub mod stat;
pub mod table;
pub mod target;
pub mod tree;
pub mod visit;

use anyhow::Result;
use clap::{Arg, ArgMatches};
use serde_json::Value;

use crate::harness::schedule::{Case, Params, Series};
use crate::harness::{Arm, Worker, WorkerSeat};
use crate::workloads::target::RunTarget;

/// A workload.
pub trait Workload: Sync {
    /// Its name on the command line.
    fn name(&self) -> &'static str;

    /// One line: what is done, and which arms are compared.
    fn about(&self) -> &'static str;

    /// More of the help, after the options.
    fn notes(&self) -> &'static str {
        ""
    }

    /// Every in-process arm, in the order of their turns.
    fn arms(&self) -> Vec<&'static str>;

    /// Its own options.
    fn args(&self) -> Vec<Arg>;

    /// The cases that the options describe.
    ///
    /// # Errors
    /// A sentence that names the wrong option and the valid values.
    fn cases<'w>(&'w self, matches: &ArgMatches) -> Result<Vec<Prepare<'w>>>;

    /// Whether the workload measures preemption, so that no batch may be dropped for it.
    fn preemption_is_the_subject(&self) -> bool {
        false
    }

    /// Number of companion threads beside the measured ones.
    fn companions(&self, _matches: &ArgMatches) -> usize {
        0
    }

    /// Remarks on the rounds' results, for the report's notes.
    fn remarks(&self, _case: &Case, _series: &[Series]) -> Vec<String> {
        Vec::new()
    }

    /// Whether the work can be done by system calls on a directory.
    fn has_targets(&self) -> bool {
        true
    }
}

/// A case that is not set up yet.
pub struct Prepare<'w> {
    /// The parameters that all of its rows have in common.
    pub params: Params,
    /// The ways to run its arms.
    pub variants: Vec<Params>,
    /// Makes its arms.
    pub maker: Box<dyn Maker + 'w>,
}

/// Makes the arms of one case.
pub trait Maker {
    /// The in-process arm of this name, for at most `threads` threads.
    ///
    /// # Errors
    /// A sentence that says that this build or this machine does not have it.
    fn arm(&self, name: &'static str, threads: usize) -> Result<Box<dyn Arm>>;

    /// Arms that only the options name; they come after the others.
    ///
    /// # Errors
    /// If one cannot be set up.
    fn more(&self, _threads: usize) -> Result<Vec<Box<dyn Arm>>> {
        Ok(Vec::new())
    }

    /// The same work through system calls.
    ///
    /// # Errors
    /// If the directory cannot be used.
    fn target(&self, target: &RunTarget) -> Result<Box<dyn Arm>>;
}

/// The worker of another process, from the description that [`Arm::elsewhere`] gave.
///
/// # Errors
/// If the description cannot be read, or its directory cannot be opened.
pub fn worker_elsewhere(said: &Value, seat: WorkerSeat) -> Result<Box<dyn Worker>> {
    showgids::calls::worker_elsewhere(said, seat)
        .or_else(|| tree::calls::worker_elsewhere(said, seat))
        .unwrap_or_else(|| target::worker_elsewhere(said, seat))
}

/// Every workload.
pub fn all() -> Vec<Box<dyn Workload>> {
    vec![
        Box::new(table::BareTable),
        Box::new(stat::SAME),
        Box::new(stat::MANY),
        Box::new(open::SAME),
        Box::new(open::SEPARATE),
        Box::new(miss::LookupMiss),
        Box::new(rename_dirs::RenameDirs),
        Box::new(lockref::RUNNING),
        Box::new(lockref::OVERSUBSCRIBED),
        Box::new(showgids::Showgids),
        Box::new(rwsem::Rwsem),
        Box::new(icache::Icache),
        Box::new(tree::Trees),
        Box::new(blocks::BlockLookups),
        Box::new(fuse::Fuse),
    ]
}
