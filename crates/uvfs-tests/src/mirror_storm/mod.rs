//! A mirror of a directory that others change: does it show what is there?
//!
//! Two processes change a source at random, a third one changes the same tree through the mount. They work in turns of a
//! second or so; after each, and a pause, the mount and the source are compared: names, attributes and contents. A
//! seed decides what the processes do, but not how it interleaves. The processes are this program again ([`worker`]),
//! because a mirror leaves out what its own process does.
//!
//! [`mod@staleness`] measures how long a single change takes to be seen.

mod changes;
pub mod command;
mod compare;
mod staleness;
pub mod worker;

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::str::FromStr;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

pub use changes::MirrorChanges;
pub use compare::differences;
pub use staleness::{Staleness, staleness};

/// The plan of a storm.
#[derive(Clone, Debug)]
pub struct MirrorStormPlan {
    /// The directory that is mirrored, and where.
    pub source: std::path::PathBuf,
    /// Where it is mounted.
    pub mount: std::path::PathBuf,
    /// How long in all, at the least.
    pub time: Duration,
    /// Changes that others make in the source in all, at the least.
    pub changes: u64,
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

/// The outcome of a storm.
#[derive(Clone, Copy, Debug, Default)]
pub struct MirrorStormReport {
    /// Changes made in the source.
    pub changes: MirrorChanges,
    /// Changes made through the mount.
    pub own: MirrorChanges,
    /// Comparisons.
    pub looks: u64,
    /// Those of them that found the mount wrong at the end of the pause.
    pub late: u64,
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
        let program = std::env::current_exe().context("this program's path")?;
        let mut child = Command::new(program)
            .args(["mirror-storm-worker", "--seed", &seed.to_string()])
            .arg(dir)
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
    pub(crate) fn answer<T: FromStr<Err: Into<anyhow::Error>>>(&mut self) -> Result<T> {
        let mut line = String::new();
        self.said.read_line(&mut line)?;
        line.trim().parse().map_err(Into::into).with_context(|| format!("a process said {line:?}"))
    }
}

/// The storm.
///
/// # Errors
/// The trees differ, or something failed.
pub fn storm(plan: &MirrorStormPlan) -> Result<MirrorStormReport> {
    let mut workers = [
        Worker::start(&plan.source, plan.seed)?,
        Worker::start(&plan.source, plan.seed + 1)?,
        Worker::start(&plan.mount, plan.seed + 2)?,
    ];
    let mut report = MirrorStormReport::default();
    let end = Instant::now() + plan.time;
    while Instant::now() < end || report.looks == 0 || report.changes.total() < plan.changes {
        let order = match plan.overflow && report.looks % 2 == 0 {
            true => "burst 1000".to_owned(),
            false => format!("work {}", plan.turn.as_millis()),
        };
        workers.iter_mut().try_for_each(|worker| worker.order(&order))?;
        let [first, second, through_mount] = &mut workers;
        report.changes += first.answer()?;
        report.changes += second.answer()?;
        report.own += through_mount.answer()?;
        report.looks += 1;
        let settled = settle(plan)?;
        report.entries = settled.entries;
        report.late += u64::from(settled.late);
        report.settled = report.settled.max(settled.after);
    }
    Ok(report)
}

/// The finding of a look that found the mount showing the source.
struct Settled {
    entries: u64,
    /// From the end of the turn to the begin of that look.
    after: Duration,
    /// It was not the first look.
    late: bool,
}

/// Waits until the mount shows the source.
fn settle(plan: &MirrorStormPlan) -> Result<Settled> {
    let begin = Instant::now();
    thread::sleep(plan.pause);
    let mut late = false;
    loop {
        let after = begin.elapsed();
        let (entries, wrong) = differences(&plan.source, &plan.mount)?;
        if wrong.is_empty() {
            return Ok(Settled { entries, after, late });
        }
        let first = wrong.iter().take(20).map(String::as_str).collect::<Vec<_>>().join("\n");
        if after > plan.pause + plan.patience {
            bail!("{} of {entries} entries differ after {after:?}:\n{first}", wrong.len());
        }
        if !late {
            eprintln!("{} of {entries} entries differ after {after:?}, of which:\n{first}", wrong.len());
        }
        late = true;
        thread::sleep(Duration::from_millis(20));
    }
}
