//! `uvfs-tests bigdir`: one directory with a million entries.

use std::path::PathBuf;

use anyhow::Result;

use super::run as in_directory;
use crate::harness::{Verdicts, in_subdirectory};

/// Make many entries in one directory, list them, and remove them while listing.
#[derive(clap::Args)]
pub struct BigdirArgs {
    /// Directory to work in (a subdirectory is made).
    #[arg(long)]
    dir: PathBuf,
    /// A directory of the host, whose times are measured for comparison.
    #[arg(long)]
    host: Option<PathBuf>,
    /// Number of entries.
    #[arg(long, default_value_t = 1_000_000)]
    entries: usize,
}

/// Runs the suite.
///
/// # Errors
/// An entry that is missing, invented or listed twice, and errors of the file system.
pub fn run(args: &BigdirArgs, verdicts: &mut Verdicts) -> Result<()> {
    let entries = args.entries;
    for (which, dir) in [("tested", Some(&args.dir)), ("host", args.host.as_ref())] {
        let Some(dir) = dir else { continue };
        let times = in_subdirectory(dir, "bigdir", |dir| in_directory(dir, entries))?;
        println!(
            "{which:6} {entries} entries: create {:.2?}, list {:.2?}, remove while listing {:.2?}",
            times.create, times.list, times.remove
        );
    }
    verdicts.pass(format_args!("bigdir: {entries} entries"));
    Ok(())
}
