//! `uvfs-tests lockstep`: the same random operations in two directories must have the same results.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};

use super::hunt::{Hunt, HuntArgs};
use super::object_store::{self, Reduced};
use super::{LentFiles, Mismatch, Pair, Watch, seeds};
use crate::generate::Mix;
use crate::harness::Verdicts;
use crate::host::HostSide;
use crate::model::{Habits, Model};
use crate::ops::TestStep;
use crate::results_agree::Side;

/// Run the same random operations on two targets and compare every result. Needs root.
///
/// A target is a directory, or `model:` for the reference file system in this process.
#[derive(clap::Args)]
pub struct LockstepArgs {
    /// Directory under test.
    #[arg(long)]
    a: String,
    /// Reference directory (a tmpfs of the kernel).
    #[arg(long)]
    b: String,
    /// Seeds to run, both ends included.
    #[arg(long, default_value = "1..20", value_parser = seeds)]
    seeds: (u64, u64),
    /// Operations per seed.
    #[arg(long, default_value_t = 2000)]
    ops: usize,
    #[command(flatten)]
    hunt: HuntArgs,
    /// Leave out operations of users other than root.
    #[arg(long)]
    root_only: bool,
    /// Leave out extended attributes.
    #[arg(long)]
    no_xattrs: bool,
    /// Only what a mount of an object store promises. Prints how often it refused something, as its README says.
    #[arg(long)]
    object_store: bool,
    /// A lends its files to the kernel (FUSE passthrough): no set-id bits are given to files that were open.
    #[arg(long)]
    lent: bool,
}

/// Runs the suite.
///
/// # Errors
/// If the targets cannot be used.
pub fn run(args: &LockstepArgs, verdicts: &mut Verdicts) -> Result<()> {
    let plan = |seed: u64| {
        if args.object_store {
            // No times are compared, so no clock has to tick.
            let each_step = !seed.is_multiple_of(4);
            return (object_store::MIX, Watch { each_step, ticks: false, tree_every: 50, trace: false });
        }
        let mix = Mix {
            users: !args.root_only,
            holes: seed.is_multiple_of(2),
            xattrs: !args.no_xattrs,
            ..Mix::ALL
        };
        let each_step = !seed.is_multiple_of(4);
        (mix, Watch { each_step, ticks: true, tree_every: 250, trace: false })
    };
    let (mut runs, mut refused) = (0, BTreeMap::new());
    let mut pair = |steps: &[TestStep], watch: Watch| {
        runs += 1;
        compare(args, runs, (steps, watch), &mut refused)
    };
    let (reduce, option): (fn(_) -> _, _) =
        if args.object_store { (object_store::reduce, " --object-store") } else { (|steps| steps, "") };
    let lent = if args.lent { " --lent" } else { "" };
    let again = format!("lockstep --a {} --b {}{option}{lent}", args.a, args.b);
    let mut hunt = Hunt { name: "lockstep", again, ops: args.ops, plan: &plan, reduce, run: &mut pair };
    hunt.run(&args.hunt, args.seeds, verdicts)?;
    refused.iter().for_each(|(name, times)| println!("refused: {name}: {times} times"));
    Ok(())
}

fn compare(
    args: &LockstepArgs,
    run: u64,
    (steps, watch): (&[TestStep], Watch),
    refused: &mut BTreeMap<&'static str, u64>,
) -> Result<Option<Mismatch>> {
    let (a, dir_a) = side(&args.a, run)?;
    let (b, dir_b) = side(&args.b, run)?;
    let mut pair = if args.object_store {
        let pair = Pair::new(Box::new(Reduced::new(a)), Box::new(Reduced::new(b)));
        Pair { refusal: object_store::refusal, ..pair }
    } else {
        Pair { lent: args.lent.then(LentFiles::default), ..Pair::new(a, b) }
    };
    let result = pair.run(steps, watch);
    for (name, times) in std::mem::take(&mut pair.refused) {
        *refused.entry(name).or_default() += times;
    }
    drop(pair);
    for dir in [dir_a, dir_b].into_iter().flatten() {
        std::fs::remove_dir_all(&dir).with_context(|| format!("cannot remove {}", dir.display()))?;
    }
    result
}

fn side(target: &str, run: u64) -> Result<(Box<dyn Side>, Option<PathBuf>)> {
    if target == "model:" {
        let protected = std::fs::read_to_string("/proc/sys/fs/protected_hardlinks").unwrap_or_default();
        let habits = Habits { protected_hardlinks: protected.trim() == "1", ..Habits::default() };
        return Ok((Box::new(Model::new(habits)), None));
    }
    let dir = Path::new(target).join(format!("lockstep-{}-{run}", std::process::id()));
    std::fs::create_dir(&dir).with_context(|| format!("cannot create {}", dir.display()))?;
    let side = HostSide::new(&dir).with_context(|| format!("cannot work in {} (root?)", dir.display()))?;
    Ok((Box::new(side), Some(dir)))
}
