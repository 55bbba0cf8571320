//! `ext4_mutate`: damaged images must end in errors: no panic, no hang, bounded memory.

use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context as _, Result};
use clap::Parser;
use uvfs_tests::ext4::mutate::{Damage, bases, damaged, try_one};
use uvfs_tests::ext4::tools::scratch;

/// Walks through randomly damaged ext2, ext3 and ext4 images. Needs mke2fs.
#[derive(Parser)]
struct Args {
    /// Number of images.
    #[arg(long, default_value_t = 1000)]
    images: u64,
    /// Seed of the first image; the others follow.
    #[arg(long, default_value_t = 1)]
    seed: u64,
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
    save: Option<std::path::PathBuf>,
}

/// The peak memory of this process, in KiB.
fn peak() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    line.and_then(|line| line.split_whitespace().next()?.parse().ok()).unwrap_or(0)
}

fn run(args: &Args) -> Result<bool> {
    let dir = scratch()?;
    let bases = bases(dir.path()).context("making the images to begin with")?;
    let how = if args.mend { Damage::Mended } else { Damage::Anywhere };
    if let Some(path) = &args.save {
        let (name, image) = damaged(&bases, args.seed, how);
        std::fs::write(path, image)?;
        println!("seed {}, from {name}: {}", args.seed, path.display());
        return Ok(true);
    }
    let (mut refused, mut found, mut damaged, mut failed) = (0, 0, 0, 0);
    let mut longest = (Duration::ZERO, 0);
    let before = peak();
    for seed in args.seed..args.seed.saturating_add(args.images) {
        match try_one(&bases, seed, how, Duration::from_secs(args.limit)) {
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
    println!(
        "{} images: {refused} refused, {damaged} with damage that was met, {found} files found; longest {:?}, seed {}; \
         memory {} KiB before, {} KiB at most; {failed} failed",
        args.images,
        longest.0,
        longest.1,
        before,
        peak()
    );
    Ok(failed == 0)
}

fn main() -> ExitCode {
    match run(&Args::parse()) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("{error:#}");
            ExitCode::FAILURE
        }
    }
}
