//! A mirror of a directory that others change: does it show what is there?
//!
//! Two processes change a source at random, a third one changes the same tree through the mount. They work in turns of a
//! second or so; after each, and a pause, the mount and the source are compared: names, attributes and contents. What
//! the processes do is decided by a seed, how it interleaves is not. The processes are this program again
//! ([`worker`]), because a mirror leaves out what its own process does.
//!
//! [`staleness`] measures how long a single change takes to be seen.

mod compare;
mod staleness;
pub mod worker;

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

pub use compare::differences;
pub use staleness::{Staleness, staleness};

/// What is to be done.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The directory that is mirrored, and where.
    pub source: std::path::PathBuf,
    /// Where it is mounted.
    pub mount: std::path::PathBuf,
    /// How long in all.
    pub time: Duration,
    /// How long the processes work between two looks.
    pub turn: Duration,
    /// Between the end of a turn and the first look.
    pub pause: Duration,
    /// How long the mount may take after that to be right.
    pub patience: Duration,
    /// Decides what is done.
    pub seed: u64,
    /// Changes come in bursts too, each file another one.
    pub overflow: bool,
}

/// What came of it.
#[derive(Clone, Copy, Debug, Default)]
pub struct Report {
    /// Changes tried by all processes.
    pub changes: u64,
    /// Comparisons.
    pub looks: u64,
    /// Files and directories in the last one.
    pub entries: u64,
    /// The longest time that the mount took to be right.
    pub settled: Duration,
}

/// A process that changes a tree.
pub(crate) struct Worker {
    child: Child,
    orders: ChildStdin,
    said: BufReader<ChildStdout>,
}

impl Drop for Worker {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Worker {
    pub(crate) fn start(dir: &Path, seed: u64) -> Result<Self> {
        let program = std::env::current_exe().context("who am I")?;
        let mut child = Command::new(program)
            .arg("--worker")
            .arg(dir)
            .args(["--seed", &seed.to_string()])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .context("cannot start a process")?;
        let (orders, said) = (child.stdin.take(), child.stdout.take());
        Ok(Self { child, orders: orders.context("no pipe")?, said: BufReader::new(said.context("no pipe")?) })
    }

    pub(crate) fn order(&mut self, what: &str) -> Result<()> {
        writeln!(self.orders, "{what}").and_then(|()| self.orders.flush()).context("a process has ended")
    }

    /// Its answer to the last order.
    pub(crate) fn answer(&mut self) -> Result<u64> {
        let mut line = String::new();
        self.said.read_line(&mut line)?;
        line.trim().parse().with_context(|| format!("a process said {line:?}"))
    }
}

/// The storm.
///
/// # Errors
/// What differs, or what failed.
pub fn storm(plan: &Plan) -> Result<Report> {
    let mut workers = vec![
        Worker::start(&plan.source, plan.seed)?,
        Worker::start(&plan.source, plan.seed + 1)?,
        Worker::start(&plan.mount, plan.seed + 2)?,
    ];
    let mut report = Report::default();
    let end = Instant::now() + plan.time;
    while Instant::now() < end || report.looks == 0 {
        let order = match plan.overflow && report.looks % 2 == 0 {
            true => "burst 1000".to_owned(),
            false => format!("work {}", plan.turn.as_millis()),
        };
        workers.iter_mut().try_for_each(|worker| worker.order(&order))?;
        for worker in &mut workers {
            report.changes += worker.answer()?;
        }
        report.looks += 1;
        let (entries, settled) = settle(plan)?;
        report.entries = entries;
        report.settled = report.settled.max(settled);
    }
    Ok(report)
}

/// Waits until the mount shows the source; entries, and the time that it took.
fn settle(plan: &Plan) -> Result<(u64, Duration)> {
    let begin = Instant::now();
    thread::sleep(plan.pause);
    loop {
        let looked = begin.elapsed();
        let (entries, wrong) = differences(&plan.source, &plan.mount)?;
        if wrong.is_empty() {
            return Ok((entries, looked));
        }
        if looked > plan.pause + plan.patience {
            let first = wrong.iter().take(20).map(String::as_str).collect::<Vec<_>>().join("\n");
            bail!("{} of {entries} entries differ after {looked:?}:\n{first}", wrong.len());
        }
        thread::sleep(Duration::from_millis(20));
    }
}
