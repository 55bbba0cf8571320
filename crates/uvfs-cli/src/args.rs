//! The command line, as clap reads it and `--help` shows it.

use std::path::PathBuf;

use clap::{Parser, Subcommand};

use crate::options;

const ABOUT: &str = "Mounts file systems that are kept in memory or computed by this program.";

const EXAMPLES: &str = "\
Examples:
  uvfs mount -d tmpfs /mnt              a file system in memory, in the background
  uvfs mount -o size=1G,mode=700 tmpfs /mnt
  uvfs mount generated:depth=3,files=1000 /mnt
                                        a read-only tree computed from a seed
  uvfs mount kernfs:tree.toml /mnt      the tree that a file declares; SIGHUP reads the file again
  uvfs stat --watch /mnt                what the caches of a mount do
  uvfs umount /mnt

Environment:
  UVFS_LOG   what to log on standard error, without -d: error, warn, info, debug, trace, or a
             filter by module such as uvfs_fuse=debug";

/// The whole command line.
#[derive(Debug, Parser)]
#[command(name = "uvfs", version, about = ABOUT, after_help = EXAMPLES, disable_help_subcommand = true)]
pub struct Args {
    #[command(subcommand)]
    pub command: Command,
}

#[derive(Debug, Subcommand)]
pub enum Command {
    /// Mount a file system on a directory
    #[command(after_help = options::help())]
    Mount(Mount),
    /// Unmount a file system, also one whose server has died
    Umount(Umount),
    /// Show what the caches of a mount do: hits, misses, driver calls
    Stat(Stat),
}

#[derive(Clone, Debug, clap::Args)]
pub struct Mount {
    /// What to mount: `tmpfs`, `mirror:SRC` (a directory), `generated:SPEC` (for instance
    /// generated:depth=2,files=100), or `kernfs:FILE` (a TOML file that declares a tree)
    #[arg(help_heading = "What and where")]
    pub source: String,
    /// The directory to mount on
    #[arg(help_heading = "What and where")]
    pub dir: PathBuf,
    /// Options as mount(8) takes them, separated by commas; see below
    #[arg(short, value_name = "OPTIONS", help_heading = "How")]
    pub options: Vec<String>,
    /// Go into the background; return when the mount is ready, or with its error
    #[arg(short, long, help_heading = "How")]
    pub daemon: bool,
    /// Be the background process that `--daemon` starts
    #[arg(long, hide = true)]
    pub daemon_child: bool,
}

#[derive(Debug, clap::Args)]
pub struct Umount {
    /// Where it is mounted
    pub dir: PathBuf,
    /// Also while it is in use: the name goes now, the rest when it is no longer used
    #[arg(short, long)]
    pub lazy: bool,
}

#[derive(Debug, clap::Args)]
pub struct Stat {
    /// The directory that it is mounted on
    pub dir: PathBuf,
    /// Again and again, every so many seconds, with what was counted in a second
    #[arg(short, long, value_name = "SECONDS", num_args = 0..=1, require_equals = true,
          default_missing_value = "1", value_parser = interval)]
    pub watch: Option<f64>,
    /// As JSON, one object a line
    #[arg(short, long)]
    pub json: bool,
    /// Also kinds of calls and reasons that never occurred
    #[arg(short, long)]
    pub all: bool,
}

fn interval(text: &str) -> Result<f64, String> {
    let seconds = text.parse().ok().filter(|seconds| (0.01..=1e6).contains(seconds));
    seconds.ok_or_else(|| format!("{text:?} is no number of seconds from 0.01 to 1000000"))
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_definition_is_consistent() {
        Args::command().debug_assert();
    }
}
