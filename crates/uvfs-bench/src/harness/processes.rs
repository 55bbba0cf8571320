//! A turn of processes instead of threads: `--procs`.
//!
//! Each process runs this program again. It reads its order from standard input (one line of JSON) and answers
//! `ready`. It then reads the start time on the monotonic clock, which is the same for all, and at the end answers
//! with its batches. Only arms that another process can reach take part: those that go through system calls.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use rustix::time::{ClockId, clock_gettime};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::harness::batch::Batch;
use crate::harness::turn::{TurnPlan, TurnTime, batches};
use crate::harness::{Arm, Worker, WorkerSeat, pin};

/// The word on the command line that turns this program into a worker.
pub const WORD: &str = "work-for-uvfs-bench";
/// Time between the last `ready` and the common start.
const HEAD_START: Duration = Duration::from_millis(2);

/// The order that a worker process receives.
#[derive(Debug, Serialize, Deserialize)]
pub struct Order {
    /// The arm's description of itself, from [`Arm::elsewhere`].
    pub arm: Value,
    /// Index of this worker, counted from 0.
    pub index: usize,
    /// Number of workers.
    pub of: usize,
    /// Operations of a batch.
    pub grain: u64,
    /// Length of the turn in nanoseconds.
    pub length: u64,
}

struct Process {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl Drop for Process {
    fn drop(&mut self) {
        // After a failure it may still run. Killing a process that has ended fails, which is fine.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Runs a turn of `plan.threads` processes.
///
/// # Errors
/// If a process cannot start or answers wrongly.
pub fn run(arm: &dyn Arm, plan: TurnPlan<'_>) -> Result<Vec<Vec<Batch>>> {
    let what = arm.elsewhere(plan.variant).context("another process cannot do this arm's work")?;
    let mut processes = (0..plan.threads)
        .map(|index| {
            let length = plan.length.as_nanos() as u64;
            start(&Order { arm: what.clone(), index, of: plan.threads, grain: plan.grain, length })
        })
        .collect::<Result<Vec<_>>>()?;
    for process in &mut processes {
        ensure!(process.line()? == "ready", "a worker process could not begin");
    }
    let begin = now() + HEAD_START.as_nanos() as u64;
    for process in &mut processes {
        writeln!(process.input, "{begin}").context("a worker process went away")?;
    }
    processes
        .iter_mut()
        .map(|p| serde_json::from_str(&p.line()?).context("a worker process's answer"))
        .collect()
}

fn start(order: &Order) -> Result<Process> {
    let program = std::env::current_exe().context("cannot find this program's file")?;
    let mut child = Command::new(program)
        .arg(WORD)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .context("cannot start a worker process")?;
    let (Some(mut input), Some(output)) = (child.stdin.take(), child.stdout.take()) else {
        bail!("a worker process has no standard input or output");
    };
    let sent = writeln!(input, "{}", serde_json::to_string(order)?);
    let process = Process { child, input, output: BufReader::new(output) };
    sent.context("a worker process went away")?;
    Ok(process)
}

impl Process {
    fn line(&mut self) -> Result<String> {
        let mut line = String::new();
        self.output.read_line(&mut line).context("a worker process went away")?;
        ensure!(line.ends_with('\n'), "a worker process ended early; what it said stands above");
        Ok(line.trim_end().to_owned())
    }
}

/// Nanoseconds of the clock that all processes share.
fn now() -> u64 {
    let t = clock_gettime(ClockId::Monotonic);
    t.tv_sec as u64 * 1_000_000_000 + t.tv_nsec as u64
}

/// The worker's side. `make` sets up the work that the order describes.
///
/// # Errors
/// The work's error, or that the parent went away.
pub fn serve(make: impl FnOnce(&Value, WorkerSeat) -> Result<Box<dyn Worker>>) -> Result<()> {
    let mut input = std::io::stdin().lock();
    let mut line = String::new();
    input.read_line(&mut line).context("no order on standard input")?;
    let order: Order = serde_json::from_str(&line).context("an order that cannot be read")?;
    pin::pin(&pin::cpus()?, order.index)?;
    let mut worker = make(&order.arm, WorkerSeat { index: order.index, of: order.of })?;
    println!("ready");
    line.clear();
    input.read_line(&mut line).context("no time to begin at")?;
    let begin: u64 = line.trim().parse().context("the time to begin at is no number")?;
    while now() < begin {
        std::hint::spin_loop();
    }
    let late = Duration::from_nanos(now() - begin);
    let began = Instant::now().checked_sub(late).context("the clock is younger than this run")?;
    let time = TurnTime { began, length: Duration::from_nanos(order.length), grain: order.grain };
    let done = batches(&mut *worker, time, &AtomicBool::new(false))?;
    println!("{}", serde_json::to_string(&done)?);
    Ok(())
}
