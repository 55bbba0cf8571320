//! `uvfs index`: serves indices of directories, lists them, and ends the server.
//!
//! The main thread waits for signals; others scan, follow and answer. The socket exists before the first directory is
//! read, so that questions are answered meanwhile ("everything may have changed"). Snapshots have a thread of their
//! own; the last ones are written after a signal to end, while the socket still answers.

pub mod changed;
mod figures;
pub mod find;
pub mod git;
pub mod watchman;

use std::fmt::Write;
use std::os::unix::ffi::OsStringExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result, anyhow};
use indicatif::{ProgressBar, ProgressStyle};
use rustix::process::{Signal, getpid, kill_process};
use sd_notify::NotifyState;
use uvfs_index::protocol::WirePath;
use uvfs_index::{
    IndexClient, IndexPhase, IndexServer, IndexSocket, SnapshotDir, TreeLimits, WatchmanServer,
    make_usual_directory, usual_snapshots, usual_socket,
};

use crate::args::Index;
use crate::print::{out, say};
use crate::signals::{SignalRequest, Signals};
use crate::{daemon, log, metrics};

/// How often the progress is shown.
const TICK: Duration = Duration::from_millis(100);

/// Serves, lists or stops.
pub fn run(args: &Index) -> Result<()> {
    let client = || IndexClient::new(args.socket.as_deref());
    if args.stop {
        return client().stop().map_err(|why| anyhow!(why));
    }
    if args.list {
        return list(&client());
    }
    if args.daemon && !args.daemon_child {
        return start_child(args);
    }
    if args.daemon_child {
        daemon::leave_terminal()?;
    }
    serve(args)
}

fn start_child(args: &Index) -> Result<()> {
    let mut command = daemon::child("index");
    // The child's working directory is that of this process until it is ready.
    command.arg("--mode").arg(format!("{:o}", args.mode));
    if let Some(socket) = &args.socket {
        command.arg("--socket").arg(std::path::absolute(socket)?);
    }
    if let Some(socket) = &args.watchman {
        command.arg("--watchman").arg(std::path::absolute(socket)?);
    }
    if let Some(memory) = args.memory {
        command.arg("--memory").arg(memory.to_string());
    }
    if let Some(snapshots) = &args.snapshots {
        command.arg("--snapshots").arg(std::path::absolute(snapshots)?);
    }
    if let Some(address) = args.metrics {
        command.arg("--metrics").arg(address.to_string());
    }
    for (given, option) in [(args.no_snapshot, "--no-snapshot"), (args.metrics_for_all, "--metrics-for-all")]
    {
        if given {
            command.arg(option);
        }
    }
    args.log.pass_on(&mut command);
    command.arg("--").args(&args.dirs);
    daemon::start_child(command)
}

fn serve(args: &Index) -> Result<()> {
    let mut signals = Signals::block()?;
    let metrics = args.metrics.map(|address| metrics::MetricsPort::bind(address, args.metrics_for_all));
    let metrics = metrics.transpose()?;
    if args.socket.is_none() {
        make_usual_directory().map_err(|why| anyhow!(why))?;
    }
    let path = std::path::absolute(args.socket.clone().unwrap_or_else(usual_socket))?;
    let socket = IndexSocket::bind(&path, args.mode).map_err(|why| anyhow!(why + &remedy(&path)))?;
    // Both before anything is read: a socket of another server is an error at once.
    let watchman = args.watchman.as_deref().map(|path| bind_watchman(path, args.mode)).transpose()?;
    let memory = usize::try_from(args.memory.unwrap_or(0)).unwrap_or(usize::MAX);
    let limits = TreeLimits { memory, names_below: args.watchman.is_some(), ..TreeLimits::default() };
    // A client that asks for the end gets what a signal brings.
    let end = || {
        let _ = kill_process(getpid(), Signal::TERM);
    };
    let snapshots = snapshots(args)?;
    let server = IndexServer::start(&args.dirs, limits, snapshots.as_ref(), end);
    let server = Arc::new(server.map_err(|why| anyhow!(why))?);
    if let Some(metrics) = metrics {
        say(format_args!("the figures are at {}", metrics.url()));
        let served = Arc::clone(&server);
        metrics.serve(move || Some(figures::text(&served)))?;
    }
    let socket = Arc::new(socket);
    let (serving, listened) = (Arc::clone(&server), Arc::clone(&socket));
    let thread = thread::Builder::new().name("uvfs-accept".into());
    thread
        .spawn(move || {
            say(format_args!("no connection can be accepted any more: {}", serving.serve(&listened)));
            let _ = kill_process(getpid(), Signal::TERM);
        })
        .context("cannot start a thread")?;
    let watchman = watchman.map(|(path, socket)| speak_watchman(&server, path, socket)).transpose()?;
    let (watched, child) = (Arc::clone(&server), args.daemon_child);
    let thread = thread::Builder::new().name("uvfs-progress".into());
    thread.spawn(move || announce(&watched, child)).context("cannot start a thread")?;
    let saved = Arc::clone(&server);
    let thread = thread::Builder::new().name("uvfs-snapshot".into());
    thread.spawn(move || saved.keep_snapshots()).context("cannot start a thread")?;
    while signals.wait()? == SignalRequest::Reload {}
    server.save_all();
    // The process ends with threads that hold the sockets too; so these are closed here.
    [Some(socket), watchman].into_iter().flatten().for_each(|socket| socket.close());
    Ok(())
}

/// The rest of the sentence about a socket that is taken: how to end its server, if one listens.
fn remedy(socket: &Path) -> String {
    if UnixStream::connect(socket).is_err() {
        return String::new();
    }
    let is_usual = IndexClient::new(None).socket() == socket;
    let option = if is_usual { String::new() } else { format!(" --socket {}", socket.display()) };
    format!(
        "; it takes no further directory; end it with: uvfs index{option} --stop, and name all in one command"
    )
}

/// The directory of snapshots. The usual one may be missing; one that was asked for may not.
fn snapshots(args: &Index) -> Result<Option<SnapshotDir>> {
    if args.no_snapshot {
        return Ok(None);
    }
    if let Some(dir) = &args.snapshots {
        return SnapshotDir::open(&std::path::absolute(dir)?).map(Some).map_err(|why| anyhow!(why));
    }
    let opened = usual_snapshots().map(|dir| SnapshotDir::open(&dir));
    Ok(opened.and_then(|dir| dir.inspect_err(|why| tracing::warn!("{why}")).ok()))
}

fn bind_watchman(path: &Path, mode: u32) -> Result<(PathBuf, IndexSocket)> {
    let path = std::path::absolute(path)?;
    let socket = IndexSocket::bind(&path, mode).map_err(|why| anyhow!(why))?;
    Ok((path, socket))
}

/// Serves watchman's protocol too. Returns the socket.
fn speak_watchman(server: &Arc<IndexServer>, path: PathBuf, socket: IndexSocket) -> Result<Arc<IndexSocket>> {
    let socket = Arc::new(socket);
    let served = Arc::clone(&socket);
    let watchman = Arc::new(WatchmanServer::new(Arc::clone(server), &path));
    let thread = thread::Builder::new().name("uvfs-accept".into());
    let serve = move || {
        say(format_args!(
            "no connection of watchman's can be accepted any more: {}",
            watchman.serve(&served)
        ));
        let _ = kill_process(getpid(), Signal::TERM);
    };
    thread.spawn(serve).context("cannot start a thread")?;
    Ok(socket)
}

/// Shows the progress until every tree is read, then says so.
fn announce(server: &IndexServer, child: bool) {
    let bar = ProgressBar::new_spinner();
    // A constant template; without it the line would only look different.
    if let Ok(style) = ProgressStyle::with_template("{spinner} {human_pos} names, {per_sec}, {elapsed}") {
        bar.set_style(style);
    }
    loop {
        if child && !daemon::is_awaited() {
            // As a server of a mount, it ends with the command that asked for it.
            let _ = kill_process(getpid(), Signal::TERM);
            return;
        }
        let trees = server.trees();
        bar.set_position(trees.iter().map(|tree| tree.figures().names).sum());
        let scanning = trees.iter().find(|tree| tree.wait_scanned(TICK) == IndexPhase::Scanning);
        if scanning.is_none() {
            break;
        }
    }
    bar.finish_and_clear();
    for tree in server.trees() {
        let figures = tree.figures();
        let dir = tree.path().display();
        let is_lost = matches!(figures.phase, IndexPhase::Lost(_));
        match figures.phase {
            IndexPhase::Lost(why) => say(format_args!("{dir} is not known: {why}")),
            IndexPhase::Checking if !child => say(format_args!(
                "{} names of {dir} are known from a snapshot, and are compared with the directory",
                figures.names
            )),
            _ if !child => say(format_args!("{} names of {dir} are known, and followed", figures.names)),
            _ => {}
        }
        if figures.by_directory && !is_lost {
            say(format_args!(
                "each directory of {dir} is watched by itself, because CAP_SYS_ADMIN or CAP_DAC_READ_SEARCH is missing; \
                 a file's first name elsewhere is not noticed"
            ));
        }
        if let (count, Some(some)) = figures.unread {
            say(format_args!("{count} names of {dir} could not be read: {some}"));
        }
    }
    if child {
        if let Err(error) = daemon::ready() {
            log::tell_system(&format!("{error:#}"));
            let _ = kill_process(getpid(), Signal::TERM);
        }
    } else if let Err(error) = sd_notify::notify(false, &[NotifyState::Ready]) {
        tracing::warn!(%error, "cannot tell the service manager that the index is ready");
    }
}

/// The path that the server has sent.
fn path_of(path: &WirePath) -> Result<Vec<u8>> {
    path.bytes().context("the index's answer has a path that is none")
}

fn list(client: &IndexClient) -> Result<()> {
    let list = client.list().map_err(|why| anyhow!(why))?;
    let mut text = String::new();
    for tree in list.trees {
        let path = PathBuf::from(std::ffi::OsString::from_vec(path_of(&tree.path)?));
        let (state, names, bytes) = (&tree.state, tree.names, tree.bytes);
        let read = if tree.scans == 1 { "once".to_owned() } else { format!("{} times", tree.scans) };
        write!(text, "{}: {state}, {names} names in {bytes} bytes, read {read}", path.display())?;
        if tree.by_directory {
            text += ", each directory watched by itself";
        }
        if let Some(written) = tree.snapshot {
            let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
            write!(text, ", snapshot {} seconds old", now.saturating_sub(written))?;
        }
        text += &tree.warning.map(|warning| format!("; {warning}")).unwrap_or_default();
        text.push('\n');
    }
    out(text)
}
