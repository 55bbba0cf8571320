//! `lockstep --a DIR --b DIR`: the same random operations in two directories must have the same results.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use clap::Parser;
use uvfs_tests::generate::{Mix, generate};
use uvfs_tests::host::HostSide;
use uvfs_tests::lockstep::{Mismatch, Pair, Watch, listing, same_kind, seeds, shrink};
use uvfs_tests::model::{Habits, Model};
use uvfs_tests::ops::Step;
use uvfs_tests::view::Side;

/// Runs the same random operations on two targets and compares every result. Needs root.
///
/// A target is a directory, or `model:` for the reference file system in this process.
#[derive(Parser)]
struct Args {
    /// Directory under test.
    #[arg(long)]
    a: String,
    /// Reference directory (a tmpfs of the kernel).
    #[arg(long)]
    b: String,
    /// Seeds to run, both ends included.
    #[arg(long, default_value = "1..20", value_parser = seeds)]
    seeds: (u64, u64),
    /// One seed only.
    #[arg(long)]
    seed: Option<u64>,
    /// Operations per seed.
    #[arg(long, default_value_t = 2000)]
    ops: usize,
    /// Print every operation and both answers.
    #[arg(long)]
    trace: bool,
    /// Seconds spent on shortening a failure.
    #[arg(long, default_value_t = 20)]
    shrink: u64,
    /// Stop after this many failing seeds.
    #[arg(long, default_value_t = 5)]
    failures: usize,
    /// Leave out operations of users other than root.
    #[arg(long)]
    root_only: bool,
    /// Leave out extended attributes.
    #[arg(long)]
    no_xattrs: bool,
}

struct Bench<'a> {
    args: &'a Args,
    runs: u64,
}

impl Bench<'_> {
    fn side(&self, spec: &str) -> Result<(Box<dyn Side>, Option<PathBuf>)> {
        if spec == "model:" {
            let protected = std::fs::read_to_string("/proc/sys/fs/protected_hardlinks").unwrap_or_default();
            let habits = Habits { protected_hardlinks: protected.trim() == "1", ..Habits::default() };
            return Ok((Box::new(Model::new(habits)), None));
        }
        let dir = Path::new(spec).join(format!("lockstep-{}-{}", std::process::id(), self.runs));
        std::fs::create_dir(&dir).with_context(|| format!("cannot create {}", dir.display()))?;
        let side =
            HostSide::new(&dir).with_context(|| format!("cannot work in {} (root?)", dir.display()))?;
        Ok((Box::new(side), Some(dir)))
    }

    fn run(&mut self, steps: &[Step], watch: Watch) -> Result<Option<Mismatch>> {
        self.runs += 1;
        let (a, dir_a) = self.side(&self.args.a)?;
        let (b, dir_b) = self.side(&self.args.b)?;
        let mut pair = Pair { a, b };
        let result = pair.run(steps, watch);
        drop(pair);
        for dir in [dir_a, dir_b].into_iter().flatten() {
            std::fs::remove_dir_all(&dir).with_context(|| format!("cannot remove {}", dir.display()))?;
        }
        result
    }

    /// Runs one seed; true if both targets agreed.
    fn seed(&mut self, seed: u64) -> Result<bool> {
        let args = self.args;
        let mix = Mix {
            users: !args.root_only,
            holes: seed.is_multiple_of(2),
            xattrs: !args.no_xattrs,
            ..Mix::ALL
        };
        let steps = generate(seed, args.ops, mix);
        let watch =
            Watch { each_step: !seed.is_multiple_of(4), ticks: true, tree_every: 250, trace: args.trace };
        let Some(found) = self.run(&steps, watch)? else { return Ok(true) };
        println!("seed {seed}: DIFFERENT at operation {}: {}", found.at, found.what);
        let tail = found.at.saturating_sub(8);
        println!("the last operations:\n{}", listing(&steps[tail..=found.at], tail));
        let ticks = found.what.contains("moved");
        let quiet = Watch { trace: false, tree_every: 1 << 30, ticks, ..watch };
        let mut last = found.what.clone();
        let longest = &steps[..=found.at];
        let short = shrink(longest, Duration::from_secs(args.shrink), |steps| match self.run(steps, quiet) {
            Ok(Some(m)) if same_kind((steps, &m), (longest, &found)) => {
                last = m.what;
                true
            }
            _ => false,
        });
        println!(
            "shortest list found ({} operations) ends with: {last}\n{}",
            short.len(),
            listing(&short, 0)
        );
        println!("again: lockstep --a {} --b {} --seed {seed} --ops {} --trace", args.a, args.b, args.ops);
        Ok(false)
    }
}

fn main() -> Result<ExitCode> {
    let args = Args::parse();
    let (from, to) = args.seed.map_or(args.seeds, |s| (s, s));
    if from > to {
        bail!("no seeds in {from}..{to}");
    }
    let start = Instant::now();
    let mut bench = Bench { args: &args, runs: 0 };
    let mut failed = Vec::new();
    for seed in from..=to {
        if !bench.seed(seed)? {
            failed.push(seed);
            if failed.len() >= args.failures {
                break;
            }
        }
    }
    let seconds = start.elapsed().as_secs_f32();
    if failed.is_empty() {
        println!(
            "PASS lockstep: seeds {from}..{to}, {} operations each, no difference ({seconds:.1} s)",
            args.ops
        );
        return Ok(ExitCode::SUCCESS);
    }
    println!("FAIL lockstep: seeds {failed:?} differ ({seconds:.1} s)");
    Ok(ExitCode::FAILURE)
}
