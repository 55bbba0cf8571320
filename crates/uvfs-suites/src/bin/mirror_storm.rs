//! `mirror_storm --seconds 60`: a mirror is compared with its source, which others change all the time.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result};
use clap::Parser;
use uvfs::{Counted, Vfs, VfsConfig};
use uvfs_drivers::mirror::Mirror;
use uvfs_fuse::Mounted;
use uvfs_tests::mirror_storm::{Plan, staleness, storm, worker};

/// Mirrors a directory that two processes change at random, while a third one changes it through the mount, and compares
/// after each turn. Then it measures how long single changes take to be seen. Needs root.
#[derive(Parser)]
struct Args {
    /// Seconds of storm.
    #[arg(long, default_value_t = 60)]
    seconds: u64,
    /// Milliseconds between two looks.
    #[arg(long, default_value_t = 1500)]
    turn: u64,
    /// Milliseconds between the end of a turn and the look.
    #[arg(long, default_value_t = 200)]
    pause: u64,
    /// Milliseconds that the mount may take after that to be right; with --overflow, 4800 more.
    #[arg(long, default_value_t = 20)]
    patience: u64,
    /// Decides what is done.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Have events lost again and again: the system's limit on events that wait (/proc/sys/fs/fanotify/max_queued_events) is
    /// lowered for the moment in which the watch is made.
    #[arg(long)]
    overflow: bool,
    /// Files that are there from the beginning, in directories of a hundred, and are compared with the others.
    #[arg(long, default_value_t = 0)]
    files: usize,
    /// Single changes that are measured, 100 a second.
    #[arg(long, default_value_t = 1000)]
    changes: usize,
    /// Where the source is made.
    #[arg(long, default_value = "/dev/shm")]
    base: PathBuf,
    /// Be a process that changes this directory.
    #[arg(long, hide = true)]
    worker: Option<PathBuf>,
}

fn main() -> ExitCode {
    let args = Args::parse();
    let outcome = match &args.worker {
        Some(dir) => worker::serve(dir, args.seed),
        None => run(&args),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            eprintln!("mirror_storm: {why:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(args: &Args) -> Result<()> {
    let base = tempfile::Builder::new().prefix("mirror_storm").tempdir_in(&args.base)?;
    let (source, mount) = (base.path().join("source"), base.path().join("mount"));
    std::fs::create_dir(&source)?;
    std::fs::create_dir(&mount)?;
    fill(&source, args.files)?;
    if let Some(why) = impossible() {
        println!("skipped: {why}");
        return Ok(());
    }
    // The mount point must not lie in what is mirrored, but may lie beside it.
    let Some(mounted) = mirror(&source, &mount, args.overflow)? else { return Ok(()) };
    let plan = Plan {
        source: source.clone(),
        mount: mount.clone(),
        time: Duration::from_secs(args.seconds),
        turn: Duration::from_millis(args.turn),
        pause: Duration::from_millis(args.pause),
        patience: Duration::from_millis(args.patience + if args.overflow { 4800 } else { 0 }),
        seed: args.seed,
        overflow: args.overflow,
    };
    let report = storm(&plan)?;
    println!(
        "{} changes, {} looks at up to {} entries, right after {:?} at the most; {:?}",
        report.changes,
        report.looks,
        report.entries,
        report.settled,
        mounted.notices()
    );
    if args.changes != 0 {
        let stale = staleness(&source, &mount, args.changes)?;
        println!(
            "staleness of {} changes: 50% {:?}, 99% {:?}, all {:?}",
            stale.count(),
            stale.percentile(50),
            stale.percentile(99),
            stale.percentile(100)
        );
    }
    mounted.unmount().context("unmount")?;
    Ok(())
}

/// Why nothing can be mounted here, if so.
fn impossible() -> Option<String> {
    if !rustix::process::geteuid().is_root() {
        return Some("not root".into());
    }
    let device = std::fs::OpenOptions::new().read(true).write(true).open("/dev/fuse");
    device.err().map(|error| format!("/dev/fuse: {error}"))
}

/// So many files, in directories of a hundred.
fn fill(source: &Path, files: usize) -> Result<()> {
    for i in 0..files {
        let dir = source.join(format!("many{}", i / 100));
        if i % 100 == 0 {
            std::fs::create_dir(&dir)?;
        }
        std::fs::write(dir.join(format!("f{i}")), i.to_string())?;
    }
    Ok(())
}

/// A mirror that watches its source; none, said, where that cannot be watched.
fn mirror(source: &Path, mount: &Path, overflow: bool) -> Result<Option<Mounted>> {
    let mirror = Mirror::new(source, Duration::from_secs(1))?;
    let limit = if overflow { Some(Limit::lower()?) } else { None };
    let watched = mirror.watch();
    drop(limit);
    if let Err(why) = watched {
        println!("skipped: changes by others are not seen: {why}");
        return Ok(None);
    }
    let vfs = Vfs::new(VfsConfig::default(), Counted::new(mirror))?;
    let mut options = uvfs_fuse::Options::default();
    options.allow_other = true;
    options.suid = true;
    Ok(Some(uvfs_fuse::mount(vfs, mount, &options)?))
}

const LIMIT: &str = "/proc/sys/fs/fanotify/max_queued_events";

/// The system's limit, as it was.
struct Limit(String);

impl Limit {
    fn lower() -> Result<Self> {
        let was = std::fs::read_to_string(LIMIT).context(LIMIT)?;
        std::fs::write(LIMIT, "16").context(LIMIT)?;
        Ok(Self(was))
    }
}

impl Drop for Limit {
    fn drop(&mut self) {
        let _ = std::fs::write(LIMIT, &self.0);
    }
}
