//! Going into the background.
//!
//! The program starts itself anew, with a pipe as standard output. It returns once the child has written to the pipe
//! that it is ready: that the mount answers, or the index is read. Until then the child's errors go to the terminal. It starts a new program rather than a
//! fork: the state of a new program is known (one thread, no cache), and it needs no `unsafe`. It costs a
//! millisecond.

use std::fs::OpenOptions;
use std::io::{self, BufRead, BufReader, Write};
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::args::Mount;
use crate::{log, sys};

/// The word that the child writes when it is ready.
const READY: &str = "ready";

/// In the parent: starts the child that serves a mount, and waits until the mount answers.
pub fn start(args: &Mount) -> Result<()> {
    let mut command = child("mount");
    for options in &args.options {
        command.arg("-o").arg(options);
    }
    if let Some(address) = args.metrics {
        command.arg("--metrics").arg(address.to_string());
    }
    if args.metrics_for_all {
        command.arg("--metrics-for-all");
    }
    if let Some(file) = &args.pid_file {
        command.arg("--pid-file").arg(file);
    }
    args.log.pass_on(&mut command);
    let (source, dir) = args.what()?;
    command.arg("--").arg(source).arg(dir);
    start_child(command)
}

/// The command of a child that runs this subcommand in the background.
pub fn child(subcommand: &str) -> Command {
    let mut command = Command::new("/proc/self/exe");
    command.arg0("uvfs").args([subcommand, "--daemon-child"]);
    command
}

/// Starts the child, and waits until it is ready.
pub fn start_child(mut command: Command) -> Result<()> {
    // A lock or a file that the caller's shell has open would be held as long as the server lives.
    sys::close_at_exec_from(3);
    command.stdin(Stdio::null()).stdout(Stdio::piped());
    let mut child = command.spawn().context("cannot start the background process from /proc/self/exe")?;
    let mut said = String::new();
    if let Some(stdout) = child.stdout.take() {
        BufReader::new(stdout).read_line(&mut said).context("cannot hear from the background process")?;
    }
    if said.trim_end() == READY {
        return Ok(());
    }
    let status = child.wait().context("cannot wait for the background process")?;
    match status.code() {
        // It has printed the reason.
        Some(code) if code != 0 => std::process::exit(code),
        _ => bail!("the background process ended before it was ready: {status}"),
    }
}

/// In the child, first of all: leaves the terminal and its signals.
pub fn leave_terminal() -> Result<()> {
    rustix::process::setsid().context("cannot start a session of its own")?;
    // As exec left it, the name would be that of the link, "exe".
    rustix::thread::set_name(c"uvfs").context("cannot set the name of the process")
}

/// In the child: whether the process that asked for it still waits.
pub fn is_awaited() -> bool {
    let stdout = io::stdout();
    // Of a pipe without a reader, poll(2) says ERR.
    !matches!(poll(&mut [PollFd::new(&stdout, PollFlags::empty())], Some(&Timespec::default())), Ok(1..))
}

/// In the child, when it is ready: lets the parent go, and holds on to nothing of it. An
/// error means that nobody waits any more.
pub fn ready() -> Result<()> {
    let mut stdout = io::stdout().lock();
    writeln!(stdout, "{READY}")
        .and_then(|()| stdout.flush())
        .context("the process that asked for this one is gone")?;
    let null =
        OpenOptions::new().read(true).write(true).open("/dev/null").context("cannot open /dev/null")?;
    rustix::stdio::dup2_stdout(&null)?;
    rustix::stdio::dup2_stderr(log::file().unwrap_or(&null))?;
    rustix::process::chdir("/").context("cannot leave the working directory")
}
