//! `uvfs-bench ext4-peers` and `uvfs-bench ext4-threads`: an ext4 image beside another server, and from several threads.

mod peers;
mod threads;

use std::path::{Path, PathBuf};

use anyhow::Result;
use clap::{ArgMatches, Command, CommandFactory as _, FromArgMatches as _};
use uvfs_tests::ext4::tools::mke2fs;

/// The commands.
pub fn commands() -> [Command; 2] {
    [peers::PeersArgs::command(), threads::ThreadsArgs::command()]
}

/// Runs `ext4-peers`.
///
/// # Errors
/// A sentence for the user.
pub fn peers(matches: &ArgMatches) -> Result<()> {
    peers::run(&peers::PeersArgs::from_arg_matches(matches)?)
}

/// Runs `ext4-threads`.
///
/// # Errors
/// A sentence for the user.
pub fn threads(matches: &ArgMatches) -> Result<()> {
    threads::run(&threads::ThreadsArgs::from_arg_matches(matches)?)
}

/// The image to be measured: the given one, or a new one of `size` in `scratch`, made from the directory `tree`.
fn image(given: Option<&PathBuf>, tree: &Path, size: &str, scratch: &Path) -> Result<PathBuf> {
    match given {
        Some(image) => Ok(image.canonicalize()?),
        None => {
            let image = scratch.join("image");
            mke2fs(&image, &["-t", "ext4"], Some(tree), size)?;
            Ok(image)
        }
    }
}
