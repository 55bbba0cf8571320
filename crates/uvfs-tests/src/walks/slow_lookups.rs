//! `uvfs-tests slow-lookups`: how long other names and `.uvfs` take to answer while a driver's lookups are slow.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};

use super::server::Server;
use super::{WalksPlan, walker};
use crate::harness::{Mounter, Verdicts, uvfs_command};

/// Time other requests while a driver's lookups are slow. Needs /dev/fuse, and an otherwise idle machine.
///
/// Mounts a generated tree in which some lookups take seconds and lets many of these wait. Meanwhile times other
/// requests: unknown names, a cached name, and `.uvfs`. Fails if any of them took too long, or if a slow lookup did not
/// wait or got no answer in the end.
#[derive(clap::Args)]
pub struct SlowLookupsArgs {
    /// Lookups that wait [default: four times the number of threads that read requests].
    #[arg(long)]
    waiting: Option<usize>,
    /// Seconds for which they wait.
    #[arg(long, default_value_t = 10)]
    seconds: u64,
    /// Number of other names to look up.
    #[arg(long, default_value_t = 200)]
    names: usize,
    /// Most milliseconds that an answer may take.
    #[arg(long, default_value_t = 50)]
    limit: u64,
    /// The uvfs command [default: the one beside this program].
    #[arg(long)]
    uvfs: Option<PathBuf>,
}

/// Runs the suite.
///
/// # Errors
/// An answer that took too long, a slow lookup that did not wait, and errors of the mount.
pub fn run(args: &SlowLookupsArgs, verdicts: &mut Verdicts) -> Result<()> {
    if verdicts.cannot_mount(Mounter::Anybody) {
        return Ok(());
    }
    let uvfs = uvfs_command(args.uvfs.as_ref())?;
    let waiting = args.waiting.unwrap_or(4 * uvfs_fuse::Options::default().threads);
    // The first lookup is that of the cached name; the waiting ones follow.
    let faults: String =
        (2..waiting + 2).map(|nth| format!(",fault=lookup:delay:{}s@{nth}", args.seconds)).collect();
    let spec = format!("depth=0,files={},may-block{faults}", waiting + args.names + 1);
    let server = Server::start(&WalksPlan {
        uvfs,
        spec: spec.clone(),
        memory: "64M".into(),
        options: String::new(),
        walkers: 0,
        rounds: 0,
        open: 0,
    })?;
    let tree = walker::tree(&spec)?;
    let paths: Vec<_> = walker::files_of_one(&tree).map(|(path, _)| server.mount().join(path)).collect();
    let (slow, others) = paths[1..].split_at(waiting);
    std::fs::metadata(&paths[0]).context("the cached name")?;
    std::thread::scope(|scope| {
        let slow: Vec<_> =
            slow.iter().map(|path| scope.spawn(move || std::fs::metadata(path).is_ok())).collect();
        let worst = measure(&server, &paths[0], others, waiting)?;
        let early = slow.iter().filter(|thread| thread.is_finished()).count();
        ensure!(
            early == 0,
            "{early} of {waiting} were answered before the others were measured; more --seconds"
        );
        ensure!(
            slow.into_iter().all(|thread| thread.join().is_ok_and(|found| found)),
            "a slow lookup failed"
        );
        let limit = Duration::from_millis(args.limit);
        ensure!(worst <= limit, "{worst:.1?} is more than {limit:?}");
        Ok(())
    })?;
    server.end()?;
    verdicts.pass(format_args!("slow-lookups: within {} ms beside {waiting} lookups that wait", args.limit));
    Ok(())
}

/// Times other requests while `waiting` lookups wait. Returns the longest time.
fn measure(server: &Server, cached: &Path, others: &[PathBuf], waiting: usize) -> Result<Duration> {
    let began = Instant::now();
    while calls_now(server)? < waiting as u64 {
        ensure!(began.elapsed() < Duration::from_secs(5), "{} of {waiting} lookups wait", calls_now(server)?);
    }
    let mut worst = Duration::ZERO;
    let mut time = |what: &str, call: &dyn Fn(&PathBuf) -> bool| {
        let mut took = Vec::with_capacity(others.len());
        for path in others {
            let began = Instant::now();
            let answered = call(path);
            took.push(began.elapsed());
            ensure!(answered, "{what}: wrong answer for {}", path.display());
        }
        took.sort_unstable();
        let (half, most) = (took[took.len() / 2], took[took.len() - 1]);
        println!("{what}: {} times, half of them within {half:.1?}, all within {most:.1?}", took.len());
        worst = worst.max(most);
        Ok(())
    };
    time("other names", &|path| std::fs::metadata(path).is_ok())?;
    time("a cached name", &|_| std::fs::metadata(cached).is_ok())?;
    time(".uvfs", &|_| server.read("stats").is_ok())?;
    ensure!(
        calls_now(server)? >= waiting as u64,
        "some were answered before the others were measured; more --seconds"
    );
    Ok(worst)
}

fn calls_now(server: &Server) -> Result<u64> {
    server.read("calls_now")?.trim().parse().context("calls_now")
}
