//! `uvfs-tests model`: compares a uvfs tmpfs in this process with the reference file system.

use anyhow::{Context as _, Result};

use super::Model;
use crate::generate::Mix;
use crate::harness::Verdicts;
use crate::inproc::{HABITS, InProcess, new_vfs};
use crate::lockstep::hunt::{Hunt, HuntArgs};
use crate::lockstep::{Pair, Watch, seeds};
use crate::ops::TestStep;

/// Run random operations on a uvfs tmpfs in this process and on a small reference file system, and compare every result.
#[derive(clap::Args)]
pub struct ModelArgs {
    /// Seeds to run, both ends included.
    #[arg(long, default_value = "0..1000", value_parser = seeds)]
    seeds: (u64, u64),
    /// Operations per seed.
    #[arg(long, default_value_t = 500)]
    ops: usize,
    #[command(flatten)]
    hunt: HuntArgs,
}

/// Runs the suite. Differences are given as uvfs / model.
///
/// # Errors
/// If no tmpfs can be made.
pub fn run(args: &ModelArgs, verdicts: &mut Verdicts) -> Result<()> {
    let plan = |seed: u64| {
        let mix = Mix { holes: seed.is_multiple_of(2), ..Mix::IN_PROCESS };
        (mix, Watch { each_step: true, ticks: false, tree_every: 250, trace: false })
    };
    let mut compare = |steps: &[TestStep], watch: Watch| {
        let vfs = new_vfs().context("cannot make a tmpfs")?;
        let mut pair = Pair::new(Box::new(InProcess::new(&vfs)), Box::new(Model::new(HABITS)));
        pair.run(steps, watch)
    };
    let again = "model".to_owned();
    let mut hunt =
        Hunt { name: "model", again, ops: args.ops, plan: &plan, reduce: |steps| steps, run: &mut compare };
    hunt.run(&args.hunt, args.seeds, verdicts)
}
