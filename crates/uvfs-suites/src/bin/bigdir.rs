//! `bigdir --dir DIR`: one directory with a million entries.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context as _, Result};
use clap::Parser;
use uvfs_tests::bigdir::{Times, run};

/// Makes many entries in one directory, lists them, and removes them while listing.
#[derive(Parser)]
struct Args {
    /// Directory to work in (a subdirectory is made).
    #[arg(long)]
    dir: PathBuf,
    /// A directory of the host, whose times are measured for comparison.
    #[arg(long)]
    host: Option<PathBuf>,
    /// How many entries.
    #[arg(long, default_value_t = 1_000_000)]
    entries: usize,
}

fn in_subdirectory(parent: &Path, entries: usize) -> Result<Times> {
    let dir = parent.join(format!("bigdir-{}", std::process::id()));
    std::fs::create_dir(&dir).with_context(|| format!("cannot create {}", dir.display()))?;
    let times = run(&dir, entries);
    let removed = std::fs::remove_dir_all(&dir).with_context(|| format!("cannot remove {}", dir.display()));
    let times = times.with_context(|| format!("in {}", dir.display()))?;
    removed.map(|()| times)
}

fn main() -> ExitCode {
    let args = Args::parse();
    for (what, dir) in [("tested", Some(&args.dir)), ("host", args.host.as_ref())] {
        let Some(dir) = dir else { continue };
        match in_subdirectory(dir, args.entries) {
            Ok(t) => println!(
                "{what:6} {} entries: create {:.2?}, list {:.2?}, remove while listing {:.2?}",
                args.entries, t.create, t.list, t.remove
            ),
            Err(why) => {
                println!("FAIL bigdir: {why:#}");
                return ExitCode::FAILURE;
            }
        }
    }
    println!("PASS bigdir: {} entries", args.entries);
    ExitCode::SUCCESS
}
