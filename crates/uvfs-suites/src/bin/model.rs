//! `model --seeds 0..10000`: compares a uvfs tmpfs in this process with the reference file system.

use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use clap::Parser;
use uvfs_tests::generate::{Mix, generate};
use uvfs_tests::inproc::{HABITS, InProcess, new_vfs};
use uvfs_tests::lockstep::{Mismatch, Pair, Watch, listing, same_kind, seeds, shrink};
use uvfs_tests::model::Model;
use uvfs_tests::ops::Step;

/// Runs random operations on a uvfs tmpfs in this process and on a small reference file system, and
/// compares every result.
#[derive(Parser)]
struct Args {
    /// Seeds to run, both ends included.
    #[arg(long, default_value = "0..1000", value_parser = seeds)]
    seeds: (u64, u64),
    /// One seed only.
    #[arg(long)]
    seed: Option<u64>,
    /// Operations per seed.
    #[arg(long, default_value_t = 500)]
    ops: usize,
    /// Print every operation and both answers.
    #[arg(long)]
    trace: bool,
    /// Stop after this many failing seeds.
    #[arg(long, default_value_t = 5)]
    failures: usize,
}

fn run(steps: &[Step], watch: Watch) -> Result<Option<Mismatch>> {
    let vfs = new_vfs().context("cannot make a tmpfs")?;
    let mut pair = Pair { a: Box::new(InProcess::new(&vfs)), b: Box::new(Model::new(HABITS)) };
    pair.run(steps, watch)
}

fn one(seed: u64, args: &Args) -> Result<bool> {
    let mix = Mix { holes: seed.is_multiple_of(2), ..Mix::IN_PROCESS };
    let steps = generate(seed, args.ops, mix);
    let watch = Watch { each_step: true, ticks: false, tree_every: 250, trace: args.trace };
    let Some(found) = run(&steps, watch)? else { return Ok(true) };
    println!("seed {seed}: DIFFERENT (uvfs / model) at operation {}: {}", found.at, found.what);
    let quiet = Watch { trace: false, ..watch };
    let mut last = found.what.clone();
    let longest = &steps[..=found.at];
    let short = shrink(longest, Duration::from_secs(20), |steps| match run(steps, quiet) {
        Ok(Some(m)) if same_kind((steps, &m), (longest, &found)) => {
            last = m.what;
            true
        }
        _ => false,
    });
    let tail = &short[short.len().saturating_sub(40)..];
    println!("shortest list found ({} operations) ends with: {last}\n{}", short.len(), listing(tail, 0));
    println!("again: model --seed {seed} --ops {} --trace", args.ops);
    Ok(false)
}

fn main() -> Result<ExitCode> {
    let args = Args::parse();
    let (from, to) = args.seed.map_or(args.seeds, |s| (s, s));
    let start = Instant::now();
    let mut failed = Vec::new();
    for seed in from..=to {
        if !one(seed, &args)? {
            failed.push(seed);
            if failed.len() >= args.failures {
                break;
            }
        }
    }
    let seconds = start.elapsed().as_secs_f32();
    if failed.is_empty() {
        println!(
            "PASS model: seeds {from}..{to}, {} operations each, no difference ({seconds:.1} s)",
            args.ops
        );
        return Ok(ExitCode::SUCCESS);
    }
    println!("FAIL model: seeds {failed:?} differ ({seconds:.1} s)");
    Ok(ExitCode::FAILURE)
}
