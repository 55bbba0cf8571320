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
}

#[derive(Clone, Debug, clap::Args)]
pub struct Mount {
    /// What to mount: `tmpfs`, or `generated:SPEC` (for instance generated:depth=2,files=100)
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

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_definition_is_consistent() {
        Args::command().debug_assert();
    }
}
