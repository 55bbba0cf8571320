//! The command line, as clap reads it and `--help` shows it.

use std::ffi::{OsStr, OsString};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use anyhow::{Result, bail};
use clap::{Parser, Subcommand, ValueHint};
use clap_complete::Shell;
use clap_complete::engine::ArgValueCompleter;

use crate::print::NotUnderstood;
use crate::{completions, log, options, source};

const ABOUT: &str =
    "Mounts file systems: in memory, a directory of the host, an image, or a tree that a file declares.";

/// Lines of at most 80 columns: clap wraps longer ones without regard to the columns.
const EXAMPLES: &str = "\
Examples:
  uvfs mount -d tmpfs /mnt          a file system in memory, in the background
  uvfs mount -o size=1G,mode=700 tmpfs /mnt
  uvfs mount mirror:/srv/data /mnt  a directory of the host, read and write
  uvfs mount generated:depth=3,files=1000 /mnt
                                    a read-only tree computed from a seed
  uvfs mount ext4:disk.img /mnt     an ext2, ext3 or ext4 image, read-only
  uvfs mount kernfs:tree.toml /mnt  the tree that a file declares
  uvfs reload /mnt                  read that file again
  uvfs mount --list                 what is mounted, where, and by which process
  uvfs stat --watch /mnt            what the caches of a mount do
  uvfs umount /mnt
  uvfs index -d /home               keep all names of /home in memory
  uvfs find /home -name '*.rs' -ls  find's output, from memory
  uvfs changed --since CLOCK /home  what changed there, and the new clock

Environment:
  UVFS_LOG        what to log on standard error, without -d: error, warn, info,
                  debug, trace, or a filter by module such as uvfs_fuse=debug
  UVFS_TRANSPORT  the default of -o transport=: auto, uring or dev

Signals, to the process that serves a mount:
  SIGTERM, SIGINT, SIGQUIT   unmount, and end
  SIGHUP                     reload what kernfs:FILE declares; ignored by every
                             other mount
  Others that would end a process are ignored, so that none loses a tmpfs by
  mistake; the first of each kind is logged. SIGKILL and faults end it: users
  then get ENOTCONN.";

impl Mount {
    /// Returns the source and the mount point.
    pub fn what(&self) -> Result<(&str, &Path)> {
        match (&self.source, &self.dir) {
            (Some(source), Some(dir)) => Ok((source, dir)),
            _ => bail!("what to mount and where are both needed"),
        }
    }
}

/// The whole command line.
#[derive(Debug, Parser)]
#[command(name = "uvfs", version, about = ABOUT, after_help = EXAMPLES)]
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
    #[command(alias = "unmount")]
    Umount(Umount),
    /// Have a mount read again the file that declares it, and print what that changed
    #[command(
        after_help = "Only what is mounted as kernfs:FILE can be reloaded. What is declared as before stays as it is; a file that cannot \
                            be used changes nothing, and its error is printed. SIGHUP to the server does the same without waiting for it."
    )]
    Reload(Reload),
    /// Change the options of a mount that is there
    #[command(
        after_help = "What can be changed: ro, rw, suid, nosuid, dev, nodev, exec, noexec, sync, async, atime and its like, \
                            and memory=BYTES. All but the last need root."
    )]
    Remount(Remount),
    /// Show what the caches of a mount do: hits, misses, driver calls
    // clap's own would have DIR optional.
    #[command(override_usage = "uvfs stat [OPTIONS] <DIR>")]
    Stat(Stat),
    /// Keep every name of directories in memory, and know what changes in them
    #[command(
        after_help = "The directories are read once and then followed; ask with uvfs changed and uvfs git-fsmonitor. As root (CAP_SYS_ADMIN \
                            and CAP_DAC_READ_SEARCH) one mark watches each file system. Others watch each directory by itself: Linux 5.17, and \
                            at most as many as fs.fanotify.max_user_marks says."
    )]
    Index(Index),
    /// Print what was created, changed, removed or renamed since a clock, and the new clock
    #[command(
        after_help = "Without --since, or if that moment is not known (another server, lost events), everything may have changed. Then \
                            the only change is \"all\", and the caller looks at the directory itself. A directory with a / behind it stands for \
                            all that is below it."
    )]
    Changed(Changed),
    /// Print find(1)'s output, from an index
    #[command(
        override_usage = "uvfs find [--socket PATH] [--json] [PATH]... [EXPRESSION]",
        after_help = "The words are find's: see uvfs-find(1). --socket PATH and --json stand before them."
    )]
    Find(Find),
    /// Answer git's question about changed files: git config core.fsmonitor "uvfs git-fsmonitor"
    #[command(
        after_help = "Also: git config core.fsmonitorHookVersion 2. Without it git asks a second time, by version 1, where this fails."
    )]
    GitFsmonitor(GitFsmonitor),
    /// Ask an index in watchman's protocol, with the words of watchman's own program
    #[command(
        override_usage = "uvfs watchman [-U SOCKET] [-j] [-p] [--no-pretty] COMMAND [WORD]...",
        after_help = "The socket is that of uvfs index --watchman: the one that -U names, else that of $WATCHMAN_SOCK, else \
                            watchman.sock beside the usual socket of an index."
    )]
    Watchman(Watchman),
    /// Print the completions of a shell
    Completions {
        /// For which shell
        shell: Shell,
    },
    /// Print a manual page, or write all of them into a directory
    Man {
        /// Print this page, such as mount or uvfs-mount.8, and not uvfs.1; to read it: uvfs man --page mount | man -l -
        #[arg(long, value_name = "PAGE", conflicts_with = "dir", add = ArgValueCompleter::new(completions::pages))]
        page: Option<String>,
        /// Write the pages below this directory, such as /usr/local/share/man
        dir: Option<PathBuf>,
    },
}

#[derive(Clone, Debug, Default, clap::Args)]
pub struct Mount {
    /// Show what of uvfs is mounted, and where, and by which process
    #[arg(long, conflicts_with_all = ["source", "dir", "options", "daemon", "metrics", "pid_file", "verbose", "log_file"])]
    pub list: bool,
    /// The list as JSON, one object a line
    // clap does not require what conflicts with a word that is there.
    #[arg(long, requires = "list", conflicts_with_all = ["source", "dir"])]
    pub json: bool,
    // The feature `object` adds one to them.
    #[arg(help = source::help(), help_heading = "What and where", display_order = 1, required_unless_present_any = ["list", "json"], add = ArgValueCompleter::new(completions::sources))]
    pub source: Option<String>,
    /// The directory to mount on
    #[arg(help_heading = "What and where", display_order = 2, required_unless_present_any = ["list", "json"], value_hint = ValueHint::DirPath)]
    pub dir: Option<PathBuf>,
    /// Options as mount(8) takes them, separated by commas; see below
    #[arg(short, value_name = "OPTIONS", help_heading = "How", add = ArgValueCompleter::new(completions::mount_options))]
    pub options: Vec<String>,
    /// Go into the background; return when the mount is ready, or with its error
    #[arg(short, long, help_heading = "How")]
    pub daemon: bool,
    /// Show the figures of .uvfs to Prometheus, at /metrics of an address of this machine, such as 127.0.0.1:9180;
    /// port 0 is any that is free, and .uvfs/metrics says which
    #[arg(long, value_name = "ADDRESS:PORT", value_parser = address, help_heading = "How")]
    pub metrics: Option<SocketAddr>,
    /// Let --metrics have an address that other machines reach
    #[arg(long, requires = "metrics", help_heading = "How")]
    pub metrics_for_all: bool,
    /// Write the number of the process that serves the mount to this file, which goes with the mount
    #[arg(long, value_name = "FILE", help_heading = "How")]
    pub pid_file: Option<PathBuf>,
    #[command(flatten)]
    pub log: LogFlags,
    /// Be the background process that `--daemon` starts
    #[arg(long, hide = true)]
    pub daemon_child: bool,
}

/// The log of a server.
#[derive(Clone, Debug, Default, clap::Args)]
pub struct LogFlags {
    /// Log more: -v info, -vv debug, -vvv trace; it outweighs UVFS_LOG
    #[arg(short, long, action = clap::ArgAction::Count, help_heading = "How")]
    pub verbose: u8,
    /// Append the log to this file, and with -d all messages
    #[arg(long, value_name = "FILE", help_heading = "How")]
    pub log_file: Option<PathBuf>,
}

impl LogFlags {
    /// For [`log::start`].
    pub fn wishes(&self) -> log::Wishes<'_> {
        log::Wishes { verbose: self.verbose, file: self.log_file.as_deref(), told: false }
    }

    /// The arguments for a process in the background.
    pub fn pass_on(&self, command: &mut std::process::Command) {
        command.args(std::iter::repeat_n("-v", usize::from(self.verbose)));
        if let Some(file) = &self.log_file {
            command.arg("--log-file").arg(file);
        }
    }
}

impl Command {
    /// The wishes for the log.
    pub fn log(&self) -> log::Wishes<'_> {
        match self {
            Self::Mount(mount) => log::Wishes { told: mount.daemon_child, ..mount.log.wishes() },
            Self::Index(index) => log::Wishes { told: index.daemon_child, ..index.log.wishes() },
            _ => log::Wishes::default(),
        }
    }
}

#[derive(Debug, clap::Args)]
pub struct Umount {
    /// Where they are mounted
    #[arg(value_name = "DIR", required = true, add = ArgValueCompleter::new(completions::mounted))]
    pub dirs: Vec<PathBuf>,
    /// Also while it is in use: the name goes now, the rest when it is no longer used
    #[arg(short, long)]
    pub lazy: bool,
    /// Be the process that `-o auto_unmount` starts
    #[arg(long, hide = true)]
    pub after_server: bool,
}

#[derive(Debug, clap::Args)]
pub struct Reload {
    /// Where it is mounted
    #[arg(add = ArgValueCompleter::new(completions::mounted))]
    pub dir: PathBuf,
}

#[derive(Debug, clap::Args)]
pub struct Remount {
    /// Where it is mounted
    #[arg(add = ArgValueCompleter::new(completions::mounted))]
    pub dir: PathBuf,
    /// Options as mount(8) takes them, separated by commas
    #[arg(short, value_name = "OPTIONS", required = true, add = ArgValueCompleter::new(completions::remount_options))]
    pub options: Vec<String>,
}

#[derive(Debug, clap::Args)]
pub struct Stat {
    /// The directory that it is mounted on
    #[arg(required_unless_present = "watch", add = ArgValueCompleter::new(completions::mounted))]
    pub dir: Option<PathBuf>,
    /// Again and again, every so many seconds (usual: 1), with what was counted in a second
    // Its value may be missing, and then the word behind it is the directory: see `Stat::what`.
    #[arg(short, long, value_name = "SECONDS", num_args = 0..=1, add = ArgValueCompleter::new(completions::mounted))]
    watch: Option<Option<OsString>>,
    /// As JSON, one object a line
    #[arg(short, long)]
    pub json: bool,
    /// Also kinds of calls and reasons that never occurred
    #[arg(short, long)]
    pub all: bool,
}

impl Stat {
    /// The directory, and the seconds between two looks if it is watched.
    pub fn what(&self) -> Result<(&Path, Option<f64>)> {
        match (&self.dir, &self.watch) {
            (Some(dir), None) => Ok((dir, None)),
            (Some(dir), Some(None)) => Ok((dir, Some(1.0))),
            (Some(dir), Some(Some(seconds))) => Ok((dir, Some(interval(seconds)?))),
            (None, Some(Some(word))) if interval(word).is_err() => Ok((Path::new(word), Some(1.0))),
            _ => bail!(NotUnderstood("the directory is missing: uvfs stat --watch=SECONDS DIR".into())),
        }
    }
}

#[derive(Clone, Debug, Default, clap::Args)]
pub struct Index {
    /// The directories
    #[arg(value_name = "DIR", required_unless_present_any = ["list", "stop"])]
    pub dirs: Vec<PathBuf>,
    /// Show the directories of the server, and how far each is
    #[arg(long, conflicts_with_all = ["dirs", "stop"])]
    pub list: bool,
    /// End the server
    #[arg(long, conflicts_with = "dirs")]
    pub stop: bool,
    /// Go into the background; return when all is read, or with the error
    #[arg(short, long)]
    pub daemon: bool,
    /// The server's socket (usual: /run/uvfs/index.sock for root, else uvfs/index.sock in $XDG_RUNTIME_DIR)
    #[arg(long, value_name = "PATH")]
    pub socket: Option<PathBuf>,
    /// Permissions of the socket, in octal: users with write permission may ask, and learn all names
    #[arg(long, value_name = "MODE", default_value = "600", value_parser = octal)]
    pub mode: u32,
    /// Also speak watchman's protocol, at this socket
    #[arg(long, value_name = "SOCKET", conflicts_with_all = ["list", "stop"])]
    pub watchman: Option<PathBuf>,
    /// Most memory for each directory's index; k, m or g may follow (usual: no limit)
    #[arg(long, value_name = "BYTES", value_parser = uvfs_control::memory_limit)]
    pub memory: Option<u64>,
    /// The directory that snapshots are kept in, so that all names are there at once after a restart (usual:
    /// /var/lib/uvfs/index for root, else uvfs/index in $XDG_STATE_HOME or ~/.local/state)
    #[arg(long, value_name = "DIR", conflicts_with = "no_snapshot")]
    pub snapshots: Option<PathBuf>,
    /// Neither read nor write a snapshot
    #[arg(long)]
    pub no_snapshot: bool,
    /// Show figures to Prometheus, at /metrics of an address of this machine, such as 127.0.0.1:9181; port 0 is any
    /// that is free, and a line on standard error says which
    #[arg(long, value_name = "ADDRESS:PORT", value_parser = address)]
    pub metrics: Option<SocketAddr>,
    /// Let --metrics have an address that other machines reach
    #[arg(long, requires = "metrics")]
    pub metrics_for_all: bool,
    #[command(flatten)]
    pub log: LogFlags,
    /// Be the background process that `--daemon` starts
    #[arg(long, hide = true)]
    pub daemon_child: bool,
}

#[derive(Debug, clap::Args)]
pub struct Changed {
    /// A directory of an index, or anything below one
    #[arg(value_name = "PATH", default_value = ".")]
    pub path: PathBuf,
    /// The moment, as an earlier answer had it
    #[arg(short, long, value_name = "CLOCK")]
    pub since: Option<String>,
    /// Wait until there is a change
    #[arg(short, long)]
    pub wait: bool,
    /// As JSON, one object a line
    #[arg(short, long)]
    pub json: bool,
    /// Print the clock, then the paths alone, with a nul behind each; with --json, a nul behind each object
    #[arg(short = '0', long)]
    pub null: bool,
    /// The server's socket
    #[arg(long, value_name = "PATH")]
    pub socket: Option<PathBuf>,
}

#[derive(Debug, clap::Args)]
pub struct Find {
    /// The server's socket
    #[arg(long, value_name = "PATH")]
    pub socket: Option<PathBuf>,
    /// Print each file as a JSON object, a line each
    #[arg(long)]
    pub json: bool,
    /// Starting points, and find's expression
    #[arg(value_name = "PATH|EXPRESSION", trailing_var_arg = true, allow_hyphen_values = true, add = ArgValueCompleter::new(completions::find_words))]
    pub words: Vec<OsString>,
}

#[derive(Debug, clap::Args)]
pub struct GitFsmonitor {
    /// The version of git's protocol: 2
    #[arg(value_name = "VERSION")]
    pub version: u32,
    /// The token of the last answer
    #[arg(value_name = "TOKEN", default_value = "")]
    pub token: String,
    /// The server's socket
    #[arg(long, value_name = "PATH")]
    pub socket: Option<PathBuf>,
}

#[derive(Debug, clap::Args)]
pub struct Watchman {
    /// Options and words of watchman's program
    #[arg(value_name = "WORD", trailing_var_arg = true, allow_hyphen_values = true)]
    pub words: Vec<OsString>,
}

fn octal(text: &str) -> Result<u32, String> {
    let mode = u32::from_str_radix(text, 8).ok().filter(|mode| *mode <= 0o777);
    mode.ok_or_else(|| format!("{text:?} is no permissions from 0 to 777"))
}

fn address(text: &str) -> Result<SocketAddr, String> {
    text.parse()
        .map_err(|_| "expected an address and a port, such as 127.0.0.1:9180 or [::1]:9180".to_owned())
}

fn interval(text: &OsStr) -> Result<f64> {
    let seconds = text.to_str().and_then(|text| text.parse().ok());
    match seconds.filter(|seconds| (0.01..=1e6).contains(seconds)) {
        Some(seconds) => Ok(seconds),
        None => bail!(NotUnderstood(format!(
            "--watch: {:?} is no number of seconds from 0.01 to 1000000",
            text.to_string_lossy()
        ))),
    }
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
