//! `uvfs-tests ext4-compare` and `uvfs-tests ext4-mutate`: whole images read, and damaged ones.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};

use super::mutate::{BaseImage, Damage, bases, damaged, try_one};
use super::populate::Amount;
use super::recipes::{self, Compared, RECIPES};
use super::tools::{missing, scratch};
use crate::harness::{Seed, Verdicts};

/// Compare what uvfs reads from ext2, ext3 and ext4 images with what the kernel reads.
///
/// Makes and fills images of all kinds with mke2fs. Compares the names, attributes, extended attributes, targets and
/// contents that uvfs reads with the source tree, and with the kernel's mount (needs root).
#[derive(clap::Args)]
pub struct CompareArgs {
    /// Compare these existing images instead.
    images: Vec<PathBuf>,
    /// One kind only.
    #[arg(long)]
    recipe: Option<String>,
    /// Names in the large directory.
    #[arg(long, default_value_t = Amount::USUAL.names)]
    names: usize,
    #[command(flatten)]
    seed: Seed,
}

/// Runs `ext4-compare`. An odd seed makes hashes of names unsigned.
///
/// # Errors
/// If there is no such recipe, or an image cannot be made or read.
pub fn compare(args: &CompareArgs, verdicts: &mut Verdicts) -> Result<()> {
    if let Some(name) = args.recipe.as_deref().filter(|name| recipes::by_name(name).is_none()) {
        let known: Vec<&str> = RECIPES.iter().map(|recipe| recipe.name).collect();
        bail!("there is no recipe {name:?}; there are: {}", known.join(", "));
    }
    for image in &args.images {
        let name = image.display().to_string();
        judge(&name, &recipes::compare_image(image).context(name.clone())?, verdicts);
    }
    if !args.images.is_empty() {
        return Ok(());
    }
    if let Some(why) = missing() {
        verdicts.skip(why);
        return Ok(());
    }
    let seed = args.seed.announce();
    let amount = Amount { names: args.names, ..Amount::USUAL };
    let wanted = |name: &str| args.recipe.as_deref().is_none_or(|recipe| recipe == name);
    for recipe in RECIPES.iter().filter(|recipe| wanted(recipe.name)) {
        let dir = scratch()?;
        let compared = recipe.compare(dir.path(), amount, seed).context(recipe.name)?;
        judge(recipe.name, &compared, verdicts);
    }
    Ok(())
}

fn judge(name: &str, compared: &Compared, verdicts: &mut Verdicts) {
    let note = compared
        .without_kernel
        .as_ref()
        .map_or_else(String::new, |why| format!(" (without the kernel: {why})"));
    let what = format!("{name}: {} files, {} differences{note}", compared.files, compared.differences.len());
    compared.differences.iter().for_each(|difference| println!("  {difference}"));
    if compared.differences.is_empty() { verdicts.pass(what) } else { verdicts.fail(what) }
}

/// Walk through randomly damaged ext2, ext3 and ext4 images.
///
/// Each must end in errors: no panic, no hang, bounded memory. Needs mke2fs.
#[derive(clap::Args)]
pub struct MutateArgs {
    /// Number of images; their seeds follow one another.
    #[arg(long, default_value_t = 1000)]
    images: u64,
    #[command(flatten)]
    seed: Seed,
    /// Time limit for one image, in seconds.
    #[arg(long, default_value_t = 8)]
    limit: u64,
    /// Most memory that walking may take beyond that of the undamaged images, in MiB.
    #[arg(long, default_value_t = 128)]
    memory: u64,
    /// Damage metadata but correct its checksums, so that the driver's other checks must find the damage.
    #[arg(long)]
    mend: bool,
    /// Only write the first image to this file.
    #[arg(long)]
    save: Option<PathBuf>,
}

/// Runs `ext4-mutate`.
///
/// # Errors
/// If the undamaged images cannot be made.
pub fn mutate(args: &MutateArgs, verdicts: &mut Verdicts) -> Result<()> {
    if let Some(why) = missing() {
        verdicts.skip(why);
        return Ok(());
    }
    let dir = scratch()?;
    let bases = bases(dir.path()).context("making the undamaged images")?;
    let how = if args.mend { Damage::Mended } else { Damage::Anywhere };
    let seed = args.seed.announce();
    if let Some(path) = &args.save {
        let (name, image) = damaged(&bases, seed, how);
        std::fs::write(path, image)?;
        println!("seed {seed}, from {name}: {}", path.display());
        return Ok(());
    }
    walk_all(args, &bases, how, seed, verdicts);
    Ok(())
}

fn walk_all(args: &MutateArgs, bases: &[BaseImage], how: Damage, first: u64, verdicts: &mut Verdicts) {
    let (mut refused, mut found, mut damaged, mut failed) = (0, 0, 0, 0);
    let mut longest = (Duration::ZERO, 0);
    let before = peak();
    for seed in first..first.saturating_add(args.images) {
        match try_one(bases, seed, how, Duration::from_secs(args.limit)) {
            Ok((seen, time)) => {
                refused += u64::from(seen.refused);
                found += seen.found;
                damaged += u64::from(!seen.errors.is_empty());
                longest = longest.max((time, seed));
            }
            Err(error) => {
                failed += 1;
                println!("{error:#}");
            }
        }
    }
    let more = peak().saturating_sub(before) >> 10;
    if more > args.memory {
        failed += 1;
        println!("{more} MiB more than before were needed: {} may be", args.memory);
    }
    let what = format!(
        "ext4-mutate: {} images: {refused} refused, {damaged} with damage that was met, {found} files found; \
         longest {:?}, seed {}; memory {before} KiB before, {} KiB at most; {failed} failed",
        args.images,
        longest.0,
        longest.1,
        peak()
    );
    if failed == 0 { verdicts.pass(what) } else { verdicts.fail(what) }
}

/// The peak memory of this process, in KiB.
fn peak() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    line.and_then(|line| line.split_whitespace().next()?.parse().ok()).unwrap_or(0)
}
