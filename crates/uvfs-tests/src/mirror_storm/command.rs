//! `uvfs-tests mirror-storm`: a mirror is compared with its source, which others change all the time.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result};
use uvfs::{Counted, Vfs, VfsConfig};
use uvfs_drivers::mirror::Mirror;
use uvfs_fuse::Mounted;

use super::{MirrorStormPlan, MirrorStormReport, Staleness, staleness, storm};
use crate::harness::{Mounter, Seed, Verdicts};

/// Compare a mirror with its source, which others change all the time. Needs root.
///
/// Two processes change the source at random, while a third one changes it through the mount. Compares after each turn,
/// then measures how long single changes take to be seen.
#[derive(clap::Args)]
pub struct MirrorStormArgs {
    /// Seconds of storm, at the least.
    #[arg(long, default_value_t = 60)]
    seconds: u64,
    /// Changes that others make in the source while it lasts, at the least.
    #[arg(long, default_value_t = 0)]
    storm_changes: u64,
    /// Milliseconds between two looks.
    #[arg(long, default_value_t = 1500)]
    turn: u64,
    /// Milliseconds between the end of a turn and the look. Where the source cannot be watched they must exceed --ttl.
    #[arg(long, default_value_t = 200)]
    pause: u64,
    /// Milliseconds for which answers are believed where the source cannot be watched. By default that is skipped.
    #[arg(long, default_value_t = 0)]
    ttl: u64,
    /// Milliseconds that the mount may take after that to be right; with --overflow, 4800 more.
    #[arg(long, default_value_t = 20)]
    patience: u64,
    #[command(flatten)]
    seed: Seed,
    /// Have events lost again and again: lowers the system's limit on waiting events
    /// (/proc/sys/fs/fanotify/max_queued_events) while the watch is made.
    #[arg(long)]
    overflow: bool,
    /// Files that are there from the beginning, in directories of a hundred, and are compared with the others.
    #[arg(long, default_value_t = 0)]
    files: usize,
    /// Single changes that are measured, 100 a second.
    #[arg(long, default_value_t = 1000)]
    changes: usize,
    /// Where the source is made: on the file system to be tested.
    #[arg(long, default_value = "/dev/shm")]
    base: PathBuf,
    /// End with a row of the table of ci/staleness.sh, which names the file system so.
    #[arg(long)]
    row: Option<String>,
}

/// Runs the suite.
///
/// # Errors
/// A mount that does not show its source in time, and errors of the system.
pub fn run(args: &MirrorStormArgs, verdicts: &mut Verdicts) -> Result<()> {
    if verdicts.cannot_mount(Mounter::Root) {
        return Ok(());
    }
    let base = tempfile::Builder::new().prefix("mirror_storm").tempdir_in(&args.base)?;
    let (source, mount) = (base.path().join("source"), base.path().join("mount"));
    std::fs::create_dir(&source)?;
    std::fs::create_dir(&mount)?;
    fill(&source, args.files)?;
    // The mount point must not lie in what is mirrored, but may lie beside it.
    let Some((mounted, coherence)) = mirror(&source, &mount, args, verdicts)? else { return Ok(()) };
    let plan = MirrorStormPlan {
        source: source.clone(),
        mount: mount.clone(),
        time: Duration::from_secs(args.seconds),
        changes: args.storm_changes,
        turn: Duration::from_millis(args.turn),
        pause: Duration::from_millis(args.pause),
        patience: Duration::from_millis(args.patience + if args.overflow { 4800 } else { 0 }),
        seed: args.seed.announce(),
        overflow: args.overflow,
    };
    let report = storm(&plan)?;
    println!(
        "{coherence}\n{} changes by others ({}), {} through the mount, {} looks at up to {} entries, {} of them wrong after {:?}, \
        right after {:?} at the most; {:?}",
        report.changes.total(),
        report.changes.kinds(),
        report.own.total(),
        report.looks,
        report.entries,
        report.late,
        plan.pause,
        report.settled,
        mounted.notices()
    );
    let stale =
        if args.changes == 0 { Staleness::default() } else { staleness(&source, &mount, args.changes)? };
    if args.changes != 0 {
        let [median, most, all] = [50, 99, 100].map(|percent| stale.percentile(percent));
        println!("staleness of {} changes: 50% {median:?}, 99% {most:?}, all {all:?}", stale.count());
    }
    if let Some(name) = &args.row {
        println!("{}", row(name, &coherence, &report, &stale));
    }
    mounted.unmount().context("unmount")?;
    verdicts.pass(format_args!("mirror-storm: {} looks", report.looks));
    Ok(())
}

/// File system, coherence, changes, looks, wrong looks, and the milliseconds at the median, the 99th percentile and the maximum.
fn row(name: &str, coherence: &str, report: &MirrorStormReport, stale: &Staleness) -> String {
    let coherence = coherence.split(':').next().unwrap_or_default();
    let [median, most, all] = [50, 99, 100].map(|percent| stale.percentile(percent).as_secs_f64() * 1e3);
    let MirrorStormReport { changes, looks, late, .. } = report;
    let changes = changes.total();
    format!("| {name} | {coherence} | {changes} | {looks} | {late} | {median:.2} | {most:.2} | {all:.2} |")
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

/// A mirror of the source, and its description of its coherence. Skips if the source cannot be watched and --ttl is not
/// given.
fn mirror(
    source: &Path,
    mount: &Path,
    args: &MirrorStormArgs,
    verdicts: &mut Verdicts,
) -> Result<Option<(Mounted, String)>> {
    let ttl = if args.ttl == 0 { Duration::from_secs(1) } else { Duration::from_millis(args.ttl) };
    let mirror = Mirror::new(source, ttl)?;
    let limit = if args.overflow { Some(Limit::lower()?) } else { None };
    let watched = mirror.watch();
    drop(limit);
    if let Err(why) = watched
        && args.ttl == 0
    {
        verdicts.skip(format_args!("changes by others are not seen: {why}"));
        return Ok(None);
    }
    let coherence = mirror.coherence().trim_end().to_owned();
    let vfs = Vfs::new(VfsConfig::default(), Counted::new(mirror))?;
    let mut options = uvfs_fuse::Options::default();
    options.allow_other = true;
    options.suid = true;
    Ok(Some((uvfs_fuse::mount(vfs, mount, &options)?, coherence)))
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
