//! `uvfs mount`: from the command line to a mounted file system, and its end.

use std::convert::Infallible;
use std::sync::Arc;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use uvfs_control::ControlDir;
use uvfs_drivers::ext4::Ext4;
use uvfs_fuse::{Mounted, Unmounted};

use nix::sys::signal::Signal;
use sd_notify::NotifyState;

use crate::hidden_by_mount;
use crate::kernfs;
use crate::metrics::MetricsPort;
use crate::mount_helper;
use crate::object;
use crate::options::{Ctl, Parsed};
use crate::own_control_files;
use crate::pid_file::{self, PidFile};
use crate::preload::Preload;
use crate::print::say;
use crate::reload_requests::Reloader;
use crate::signals::{SignalRequest, Signals};
use crate::source::{self, Opened, Said, Source};
use crate::{args, auto_unmount, daemon, log, memory_keeper, option_warnings, options, remount, sys};

/// How long the users of a detached mount have to finish before it ends under them.
const GRACE: Duration = Duration::from_secs(1);

/// How long the end of the mount may take in all.
const PATIENCE: Duration = Duration::from_secs(5);

/// For mount(8): mounts in the background, or only checks whether it could (`-f`), or changes an existing mount.
pub fn help(asked: &mount_helper::HelperRequest) -> Result<()> {
    if asked.remount {
        let (_, dir) = asked.mount.what()?;
        return if asked.fake { Ok(()) } else { remount::change(dir, &asked.mount.options).map(drop) };
    }
    if !asked.fake {
        return serve(&asked.mount);
    }
    let (what, _) = asked.mount.what()?;
    if let Some(url) = object::url(what) {
        return object::check(&asked.mount, url);
    }
    let mut source = Source::parse(what)?;
    source.check(&options::parse(&asked.mount.options, source.name())?.driver)
}

/// For `uvfs mount`: mounts and serves until it is unmounted.
pub fn run(args: &args::Mount) -> Result<()> {
    // The process that started this one has said it.
    if !args.daemon_child {
        let source = args.what()?.0.split(':').next().unwrap_or_default();
        // Errors are for `serve` to report.
        let asked = options::parse(&args.options, source).unwrap_or_default().mount;
        option_warnings::of_source(source, &args.options, &asked).iter().for_each(say);
        option_warnings::of_environment().iter().for_each(say);
        if args.daemon && args.log.verbose > 0 && args.log.log_file.is_none() {
            say("-v has no effect once the mount answers: with -d, add --log-file FILE");
        }
    }
    serve(args)
}

fn serve(args: &args::Mount) -> Result<()> {
    let (what, dir) = args.what()?;
    if let Some(url) = object::url(what) {
        return object::serve(args, url);
    }
    let mut source = Source::parse(what)?;
    let mut options = options::parse(&args.options, source.name())?;
    options.mount.fsname.get_or_insert_with(|| what.to_owned());
    options.mount.read_only |= source.is_read_only();
    source.check(&options.driver)?;
    source.check_place(dir)?;
    if args.daemon && !args.daemon_child {
        return daemon::start(args);
    }
    if args.daemon_child {
        daemon::leave_terminal()?;
    }
    let pid_file = args.pid_file.as_deref().map(PidFile::make).transpose()?;
    let outcome = serve_here(args, source, options, pid_file);
    pid_file::remove();
    outcome
}

/// In the process that is to serve.
fn serve_here(args: &args::Mount, source: Source, options: Parsed, pid_file: Option<PidFile>) -> Result<()> {
    let (what, dir) = args.what()?;
    let Parsed { mount, ctl, memory, driver, auto_unmount, lends: _ } = options;
    let signals = Signals::block()?;
    // Without it a server that is killed keeps its users waiting for longer; nothing else changes.
    let _ = memory_keeper::start();
    // First of all, because it may be refused.
    let metrics = args.metrics.map(|address| MetricsPort::bind(address, args.metrics_for_all)).transpose()?;
    if rustix::process::getrlimit(rustix::process::Resource::As).current.is_some() {
        sys::one_heap();
    }
    leaves_room()?;
    let Opened { vfs, published, recorded, coherence, submounts } =
        source.open(&driver, memory, mount.timeout, mount.passthrough)?;
    leaves_room()?;
    let preload = options::has(&driver, "preload").then(Arc::<Preload>::default);
    let reloader = published.map(Reloader::new);
    let control = ControlDir::new(&vfs, what, &args.options.join(","));
    if ctl != Ctl::Off {
        let (metrics, reloader) = (metrics.as_ref().map(MetricsPort::url), reloader.clone());
        let files = own_control_files::Files { metrics, reloader, lines: lines(coherence, preload.as_ref()) };
        own_control_files::install(&control, &vfs, ctl == Ctl::Show, files)?;
    }
    let hidden = hidden_by_mount::warning(dir);
    let to_fill = preload.clone().map(|preload| (preload, Arc::clone(&vfs)));
    let mounted = uvfs_fuse::mount(vfs, dir, &mount).inspect_err(|_| source::forget_record(&driver))?;
    let mounted = Arc::new(mounted);
    control.set_mounted(&mounted);
    if let Some(reloader) = &reloader {
        reloader.set_mounted(&mounted);
    }
    if let Some(metrics) = metrics {
        metrics.serve_mount(Arc::clone(&control))?;
    }
    if let Some((preload, vfs)) = to_fill {
        preload.start(&vfs).context("cannot start a thread")?;
    }
    option_warnings::of_mount(&mount, &mounted).iter().chain(&hidden).for_each(say);
    if auto_unmount {
        auto_unmount::start(mounted.dir())?;
    }
    pid_file.map_or(Ok(()), PidFile::write)?;
    announce(args, what, &mounted)?;
    let recording = recorded.clone();
    Signalled { signals, reloader, recorded, what: what.to_owned(), mounted: Arc::clone(&mounted) }
        .start()?;
    let outcome = how_it_ended(&mounted, what);
    if let Some(preload) = &preload {
        preload.stop();
    }
    drop(submounts);
    kernfs::run_command::end_all();
    end_record(recording.as_deref());
    if let (Err(error), true) = (&outcome, args.daemon_child) {
        log::tell_system(&format!("{error:#}"));
    }
    outcome
}

/// Refuses to mount if the limits leave too little for the threads and their allocations: a server that ended for
/// that later would leave a dead mount behind.
fn leaves_room() -> Result<()> {
    /// Bytes: a dozen threads have stacks of 2 MiB and buffers of 1 MiB.
    const NEEDED: usize = 48 << 20;
    // Reserved and not touched.
    Vec::<u8>::new().try_reserve_exact(NEEDED).ok().with_context(|| {
        format!(
            "cannot serve a file system: less than {} MiB of address space are left; raise the limit (ulimit -v, ulimit -d)",
            NEEDED >> 20
        )
    })
}

/// Tells the process that started this one that it is mounted.
fn announce(args: &args::Mount, what: &str, mounted: &Mounted) -> Result<()> {
    if args.daemon_child {
        return daemon::ready();
    }
    // For a service of systemd's `Type=notify`; it does nothing elsewhere.
    if let Err(error) = sd_notify::notify(false, &[NotifyState::Ready]) {
        tracing::warn!(%error, "cannot tell the service manager that the mount is ready");
    }
    let dir = mounted.dir().display();
    say(format_args!("{what} is mounted on {dir}; to end it press Ctrl-C, or: uvfs umount {dir}"));
    Ok(())
}

/// Files of `.uvfs` that not every mount has.
fn lines(coherence: Option<Said>, preload: Option<&Arc<Preload>>) -> Vec<(&'static str, Said)> {
    let mut lines = Vec::from_iter(coherence.map(|said| ("coherence", said)));
    let preload = preload.cloned();
    lines.extend(preload.map(|preload| ("preload", Box::new(move || preload.to_string()) as Said)));
    lines
}

/// Waits for the end of the mount. The error says in one sentence why it ended; there is none after an unmount.
fn how_it_ended(mounted: &Mounted, what: &str) -> Result<()> {
    let dir = mounted.dir().display();
    let outcome = mounted.wait();
    outcome.with_context(|| format!("{what} on {dir} has ended: the connection to the kernel broke"))?;
    if mounted.is_listed() {
        bail!(
            "{what} on {dir} has ended: the connection to the kernel was aborted (by /sys/fs/fuse/connections, or an \
             unmount that was forced while it was in use); what is left of it goes with: uvfs umount {dir}"
        );
    }
    Ok(())
}

/// The trace is in its file, or the reason for its absence is printed.
fn end_record(recorded: Option<&Ext4>) {
    if let Some(Err(error)) = recorded.map(Ext4::end_of_record) {
        say(format_args!("the record of blocks is not whole: {error}"));
    }
}

/// The subject of signals.
struct Signalled {
    signals: Signals,
    reloader: Option<Arc<Reloader>>,
    recorded: Option<Arc<Ext4>>,
    what: String,
    mounted: Arc<Mounted>,
}

impl Signalled {
    /// Waits for signals on a thread of its own.
    fn start(mut self) -> Result<()> {
        let thread = thread::Builder::new().name("uvfs-signals".into());
        thread.spawn(move || self.serve()).map(drop).context("cannot start a thread")
    }

    /// Reloads at SIGHUP what can be reloaded, and ends the mount when a signal asks for that.
    fn serve(&mut self) {
        loop {
            match (self.signals.wait(), &self.reloader) {
                (Ok(SignalRequest::Reload), Some(reloader)) => reloader.ask(),
                (Ok(SignalRequest::Reload), None) => {
                    tracing::warn!("SIGHUP is ignored: {} has nothing to reload", self.what);
                }
                (Ok(SignalRequest::End(signal)), _) => {
                    return end(Ok(signal), &self.mounted, self.recorded.as_ref());
                }
                (Err(error), _) => return end(Err(error), &self.mounted, self.recorded.as_ref()),
            }
        }
    }
}

/// Unmounts at a signal. If that fails, the process ends all the same, and with it the file system: its users get
/// errors, never a hang.
fn end(signal: Result<Signal>, mounted: &Arc<Mounted>, recorded: Option<&Arc<Ext4>>) {
    let _guard = Guard::arm(Arc::clone(mounted), recorded.cloned()).inspect_err(|error| {
        // A signal often comes just because no thread can be started: the unmount needs none.
        tracing::warn!(%error, "no thread to end an unmount that takes too long");
    });
    let outcome = signal.and_then(|signal| {
        tracing::info!(%signal, "unmounting");
        Ok(mounted.unmount()?)
    });
    match outcome {
        // `run` returns when the kernel has let go.
        Ok(Unmounted::Clean) if mounted.wait_for(GRACE) => return,
        Ok(Unmounted::Clean) => {}
        Ok(Unmounted::Detached) => {
            let dir = mounted.dir().display();
            say(format_args!("{dir} was in use and has been detached; what is open there ends now"));
            if mounted.wait_for(GRACE) {
                return;
            }
        }
        Err(error) => {
            say(format_args!("not unmounted: {error:#}"));
            end_record(recorded.map(Arc::as_ref));
            exit(1, mounted);
        }
    }
    end_record(recorded.map(Arc::as_ref));
    exit(0, mounted);
}

/// Ends the process after [`PATIENCE`], even if other threads still wait. If it is dropped before, the mount has
/// ended, and the record may take its time.
struct Guard {
    _disarms: mpsc::Sender<Infallible>,
}

impl Guard {
    fn arm(mounted: Arc<Mounted>, recorded: Option<Arc<Ext4>>) -> std::io::Result<Self> {
        let (disarms, disarmed) = mpsc::channel();
        let guard = move || {
            if disarmed.recv_timeout(PATIENCE) != Err(RecvTimeoutError::Timeout) {
                return;
            }
            tracing::error!("the unmount takes too long: the connection is aborted");
            end_record_soon(recorded);
            exit(1, &mounted);
        };
        thread::Builder::new().name("uvfs-end".into()).spawn(guard)?;
        Ok(Self { _disarms: disarms })
    }
}

/// [`end_record`], for [`GRACE`] at most.
fn end_record_soon(recorded: Option<Arc<Ext4>>) {
    let (done, ended) = mpsc::channel::<Infallible>();
    let end = move || {
        end_record(recorded.as_deref());
        drop(done);
    };
    if thread::Builder::new().spawn(end).is_ok() {
        let _ = ended.recv_timeout(GRACE);
    }
}

/// Ends the process, and the commands that it runs. Its threads may wait in its own mount, and nothing can kill them
/// there. So the connection is aborted, and they come back.
fn exit(status: i32, mounted: &Mounted) -> ! {
    kernfs::run_command::end_all();
    mounted.abort();
    pid_file::remove();
    std::process::exit(status)
}
