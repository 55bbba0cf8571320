//! The hunt for seeds on which two targets differ: what the commands `lockstep` and `model` share.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};

use super::{Mismatch, Watch, listing, same_kind, shrink};
use crate::generate::{Mix, generate};
use crate::harness::Verdicts;
use crate::ops::TestStep;

/// Options of every hunt.
#[derive(clap::Args)]
pub struct HuntArgs {
    /// One seed only.
    #[arg(long)]
    seed: Option<u64>,
    /// Print every operation and both answers.
    #[arg(long)]
    pub trace: bool,
    /// Seconds spent on shortening a failure.
    #[arg(long, default_value_t = 20)]
    shrink: u64,
    /// Stop after this many failing seeds.
    #[arg(long, default_value_t = 5)]
    failures: usize,
}

/// Runs a list of operations on two new targets; returns the first difference.
pub type Run<'a> = &'a mut dyn FnMut(&[TestStep], Watch) -> Result<Option<Mismatch>>;

/// A hunt.
pub struct Hunt<'a> {
    /// Its name, for messages.
    pub name: &'static str,
    /// The command that starts it again, without a seed.
    pub again: String,
    /// Operations per seed.
    pub ops: usize,
    /// Which operations a seed has, and how closely its run is observed.
    pub plan: &'a dyn Fn(u64) -> (Mix, Watch),
    /// The operations of a list that the targets promise.
    pub reduce: fn(Vec<TestStep>) -> Vec<TestStep>,
    /// Runs operations on both targets.
    pub run: Run<'a>,
}

impl Hunt<'_> {
    /// Runs all seeds, both ends included, and shortens each failure.
    ///
    /// # Errors
    /// If the targets cannot be made or removed.
    pub fn run(&mut self, args: &HuntArgs, seeds: (u64, u64), verdicts: &mut Verdicts) -> Result<()> {
        let (from, to) = args.seed.map_or(seeds, |seed| (seed, seed));
        ensure!(from <= to, "no seeds in {from}..{to}");
        let start = Instant::now();
        let mut failed = Vec::new();
        for seed in from..=to {
            if !self.one(seed, args)? {
                failed.push(seed);
                if failed.len() >= args.failures {
                    break;
                }
            }
        }
        let (name, ops, seconds) = (self.name, self.ops, start.elapsed().as_secs_f32());
        if failed.is_empty() {
            verdicts.pass(format_args!(
                "{name}: seeds {from}..{to}, {ops} operations each, no difference ({seconds:.1} s)"
            ));
        } else {
            verdicts.fail(format_args!("{name}: seeds {failed:?} differ ({seconds:.1} s)"));
        }
        Ok(())
    }

    /// Runs one seed; returns whether both targets agreed.
    fn one(&mut self, seed: u64, args: &HuntArgs) -> Result<bool> {
        let (mix, watch) = (self.plan)(seed);
        let watch = Watch { trace: args.trace, ..watch };
        let steps = (self.reduce)(generate(seed, self.ops, mix));
        let Some(found) = (self.run)(&steps, watch)? else { return Ok(true) };
        println!("seed {seed}: DIFFERENT at operation {}: {}", found.at, found.what);
        let tail = found.at.saturating_sub(8);
        println!("the last operations:\n{}", listing(&steps[tail..=found.at], tail));
        let ticks = watch.ticks && found.what.contains("moved");
        let quiet = Watch { trace: false, tree_every: 1 << 30, ticks, ..watch };
        let mut last = found.what.clone();
        let longest = &steps[..=found.at];
        let short =
            shrink(longest, Duration::from_secs(args.shrink), |steps| match (self.run)(steps, quiet) {
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
        println!("again: uvfs-tests {} --seed {seed} --ops {} --trace", self.again, self.ops);
        Ok(false)
    }
}
