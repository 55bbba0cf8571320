//! `uvfs-bench figures`: figures of the library alone, without arms: `stat` by path, memory for a file, inserts.
//!
//! The machine's noise is printed with them: median, minimum and maximum of the rounds. `stat` walks paths through
//! namei on a tmpfs. `memory` divides the growth of the process by the files made. `insert` times single creates in the
//! cache while it grows. `hostile` looks up names that were chosen to collide. `pinned` prints the memory that stays
//! resident when a cache is shrunk of which a share is in use. `first-walk` is in [`first_walk`], `links` in [`links`].

mod first_walk;
mod links;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use clap::{ArgMatches, Command, CommandFactory as _, FromArgMatches as _, Parser};
use rustix::time::{ClockId, clock_gettime};
use uvfs::{Cred, Vfs, VfsConfig};
use uvfs_cache::attr::mode::{S_IFDIR, S_IFREG};
use uvfs_cache::machinery::{Fresh, Lookup, SbOptions};
use uvfs_cache::{Attr, Cache, Config, InodeRef, Peek, Room, Ttl};
use uvfs_drivers::tmpfs::{Tmpfs, parse};

/// Print figures of the library alone on this machine
#[derive(Parser)]
#[command(name = "figures")]
enum Figures {
    /// Nanoseconds of processor for one `stat` by path.
    Stat {
        /// Files in the working set, one run each.
        #[arg(long, value_delimiter = ',', default_values_t = [1u64, 10_000, 2_000_000])]
        files: Vec<u64>,
        /// Components of the paths.
        #[arg(long, value_delimiter = ',', default_values_t = [1usize, 6])]
        depths: Vec<usize>,
        /// Threads.
        #[arg(long, value_delimiter = ',', default_values_t = [1usize, 2])]
        threads: Vec<usize>,
        /// Rounds of a quarter of a second each.
        #[arg(long, default_value_t = 7)]
        rounds: usize,
    },
    /// Bytes a file, for names of these lengths.
    Memory {
        /// Files.
        #[arg(long, default_value_t = 2_000_000)]
        files: u64,
        /// Length of every name.
        #[arg(long, default_value_t = 12)]
        name: usize,
    },
    /// Latency of an insert while the table grows.
    Insert {
        /// Names in the end.
        #[arg(long, default_value_t = 20_000_000)]
        names: u64,
    },
    /// Lookups among names that collide under the hash without its key, beside ordinary ones.
    Hostile {
        /// Names of either kind.
        #[arg(long, default_value_t = 1_000_000)]
        names: u64,
        /// Rounds over all names.
        #[arg(long, default_value_t = 5)]
        rounds: usize,
    },
    /// A `stat` by a path with two symbolic links in its middle, beside the same path without.
    Links {
        /// Rounds of a quarter of a second for each path.
        #[arg(long, default_value_t = 7)]
        rounds: usize,
    },
    /// The first `stat` of each file of a tree, with the prefix cache and without it, and the memory of the former.
    FirstWalk {
        /// Files, one run each.
        #[arg(long, value_delimiter = ',', default_values_t = [10_000u64, 1_000_000])]
        files: Vec<u64>,
        /// Rounds; each builds both tables anew.
        #[arg(long, default_value_t = 7)]
        rounds: usize,
    },
    /// Resident memory of a cache that was shrunk, by the share of its names that is in use.
    Pinned {
        /// Names.
        #[arg(long, default_value_t = 1_000_000)]
        names: u64,
        /// Per cent in use.
        #[arg(long, value_delimiter = ',', default_values_t = [0.0, 0.01, 0.1, 1.0, 10.0, 50.0, 100.0])]
        shares: Vec<f64>,
    },
}

/// The command.
pub fn command() -> Command {
    Figures::command().arg_required_else_help(false).disable_help_subcommand(true)
}

/// Runs the command.
///
/// # Errors
/// A sentence for the user.
pub fn run(matches: &ArgMatches) -> Result<()> {
    match Figures::from_arg_matches(matches)? {
        Figures::Stat { files, depths, threads, rounds } => stat(&files, &depths, &threads, rounds),
        Figures::Memory { files, name } => memory(files, name),
        Figures::Insert { names } => insert(names),
        Figures::Hostile { names, rounds } => hostile(names, rounds),
        Figures::FirstWalk { files, rounds } => {
            files.iter().try_for_each(|files| first_walk::run(*files, rounds))
        }
        Figures::Links { rounds } => links::run(rounds),
        Figures::Pinned { names, shares } => pinned(names, &shares),
    }
}

fn tmpfs() -> Result<Arc<Vfs>> {
    let options = parse("size=0,nr_inodes=0").map_err(anyhow::Error::msg)?;
    Ok(Vfs::new(VfsConfig::default(), Tmpfs::new(options)?)?)
}

/// 1000 files a directory below a chain of directories that makes up the depth.
fn paths(files: u64, depth: usize) -> Vec<Vec<u8>> {
    let chain: String = (0..depth.saturating_sub(2)).map(|i| format!("/level{i}")).collect();
    let name = |i: u64| match depth {
        1 => format!("/file{i:07}"),
        _ => format!("{chain}/dir{:05}/file{:03}", i / 1000, i % 1000),
    };
    (0..files).map(|i| name(i).into_bytes()).collect()
}

fn make_tree(vfs: &Vfs, paths: &[Vec<u8>]) -> Result<()> {
    let context = vfs.context(Cred::root());
    let mut made = std::collections::HashSet::new();
    for path in paths {
        let parents = path.iter().enumerate().skip(1).filter(|(_, b)| **b == b'/').map(|(i, _)| &path[..i]);
        for dir in parents {
            if made.insert(dir.to_vec()) {
                context.mkdir(dir, 0o755)?;
            }
        }
        context.mknod(path, S_IFREG | 0o644, 0)?;
    }
    Ok(())
}

fn median(mut v: Vec<f64>) -> (f64, f64, f64) {
    v.sort_by(f64::total_cmp);
    (v[v.len() / 2], v[0], v[v.len() - 1])
}

fn stat(files: &[u64], depths: &[usize], threads: &[usize], rounds: usize) -> Result<()> {
    println!("{:>9} {:>5} {:>7}  ns of processor a stat: median (min to max)", "files", "depth", "threads");
    for &depth in depths {
        for &n in files {
            let vfs = tmpfs()?;
            let mut paths = paths(n, depth);
            make_tree(&vfs, &paths)?;
            fastrand::Rng::with_seed(1).shuffle(&mut paths);
            for &t in threads {
                let (mid, min, max) = median(run_stat(&vfs, &paths, t, rounds)?);
                println!("{n:>9} {depth:>5} {t:>7}  {mid:.1} ({min:.1} to {max:.1})");
            }
        }
    }
    Ok(())
}

/// Nanoseconds of processor a stat, of each round, as each thread saw it.
fn run_stat(vfs: &Vfs, paths: &[Vec<u8>], threads: usize, rounds: usize) -> Result<Vec<f64>> {
    let mut results = Vec::new();
    for round in 0..=rounds {
        let stop = AtomicBool::new(false);
        let each: Vec<Result<f64>> = std::thread::scope(|scope| {
            let workers: Vec<_> = (0..threads)
                .map(|w| {
                    let stop = &stop;
                    scope.spawn(move || worker(vfs, paths, w * paths.len() / threads, stop))
                })
                .collect();
            std::thread::sleep(Duration::from_millis(250));
            stop.store(true, Ordering::Relaxed);
            workers.into_iter().map(|w| w.join().unwrap_or_else(|_| bail!("a thread died"))).collect()
        });
        // The first round warms up.
        for ns in each {
            let ns = ns?;
            if round > 0 {
                results.push(ns);
            }
        }
    }
    Ok(results)
}

fn worker(vfs: &Vfs, paths: &[Vec<u8>], start: usize, stop: &AtomicBool) -> Result<f64> {
    let context = vfs.context(Cred::user(1000, 1000));
    let began = cpu_time();
    let mut done = 0u64;
    let mut at = start;
    while !stop.load(Ordering::Relaxed) {
        for _ in 0..64 {
            let attr = context.stat(&paths[at]).context("a path that was made is not found")?;
            std::hint::black_box(attr);
            at = if at + 1 == paths.len() { 0 } else { at + 1 };
            done += 1;
        }
    }
    Ok((cpu_time() - began) as f64 / done as f64)
}

/// Nanoseconds of processor that this thread has had: unlike the clock on the wall they do not
/// count the time in which another process ran.
fn cpu_time() -> i64 {
    let t = clock_gettime(ClockId::ThreadCPUTime);
    t.tv_sec * 1_000_000_000 + t.tv_nsec
}

/// Resident memory of this process, in bytes.
fn resident() -> Result<u64> {
    let statm = std::fs::read_to_string("/proc/self/statm")?;
    let pages: u64 = statm.split(' ').nth(1).context("no resident figure in /proc/self/statm")?.parse()?;
    Ok(pages * 4096)
}

fn memory(files: u64, len: usize) -> Result<()> {
    if !(8..=255).contains(&len) {
        bail!("--name takes a length from 8 to 255");
    }
    let vfs = tmpfs()?;
    let context = vfs.context(Cred::root());
    let (before, counted) = (resident()?, vfs.cache().counters().bytes);
    for i in 0..files {
        if i % 1000 == 0 {
            context.mkdir(format!("/{}", i / 1000).as_bytes(), 0o755)?;
        }
        let name = format!("{:x<len$}", i);
        context.mknod(format!("/{}/{name}", i / 1000).as_bytes(), S_IFREG | 0o644, 0)?;
    }
    let (grown, counted) = (resident()? - before, vfs.cache().counters().bytes - counted);
    println!("{files} empty files with names of {len} bytes, 1000 a directory");
    println!("resident memory grew by {grown} bytes: {:.1} a file", grown as f64 / files as f64);
    println!("the cache counts {counted} bytes: {:.1} a file", counted as f64 / files as f64);
    Ok(())
}

/// The 50th, 99th, 99.9th and 99.99th percentile and the maximum, in nanoseconds.
fn percentiles(mut ns: Vec<u32>) -> [u32; 5] {
    ns.sort_unstable();
    let at = |p: f64| ns[((ns.len() - 1) as f64 * p) as usize];
    [at(0.5), at(0.99), at(0.999), at(0.9999), at(1.0)]
}

fn insert(names: u64) -> Result<()> {
    let cache = Cache::new(Config::default())?;
    let sb =
        cache.add_superblock(SbOptions { resident: true, watched: false, on_evict: Box::new(|_, _| {}) })?;
    let node = |ino, mode| Fresh {
        attr: Attr { ino, mode, nlink: 1, ..Attr::default() },
        private: 0,
        ttl: Ttl::Forever,
    };
    let root = cache.make_root(sb, &node(1, S_IFDIR | 0o755))?;
    println!("{:>10}  ns of one insert: p50 p99 p99.9 p99.99 max (over the last 100,000)", "names");
    let mut window = Vec::with_capacity(100_000);
    let mut next = 100_000;
    for i in 0..names {
        let name = format!("{i:012}");
        let began = Instant::now();
        let guard = cache.lock_name(&root, name.as_bytes());
        let room = guard.reserve(Room::Node)?;
        drop(guard.create(room, &node(i + 2, S_IFREG | 0o644)));
        drop(guard);
        let ns = began.elapsed().as_nanos() as u32;
        if i >= next - 100_000 {
            window.push(ns);
        }
        if i + 1 == next || i + 1 == names {
            let p = percentiles(std::mem::take(&mut window));
            println!("{:>10}  {} {} {} {} {}", i + 1, p[0], p[1], p[2], p[3], p[4]);
            next = (next * 10).min(names);
        }
    }
    Ok(())
}

/// The answer that a driver would give.
fn answer(ino: u64, mode: u32) -> Fresh {
    let attr = Attr { ino, mode, nlink: 1, ..Attr::default() };
    Fresh { attr, private: 0, ttl: Ttl::Forever }
}

/// A cache that may evict, with its root.
fn evicting() -> Result<(Arc<Cache>, uvfs::SbId)> {
    let cache = Cache::new(Config::default())?;
    let sb =
        cache.add_superblock(SbOptions { resident: false, watched: false, on_evict: Box::new(|_, _| {}) })?;
    drop(cache.make_root(sb, &answer(1, S_IFDIR | 0o755))?);
    Ok((cache, sb))
}

fn visit<'c>(cache: &'c Cache, root: &InodeRef<'c>, name: &[u8], ino: u64) -> Result<InodeRef<'c>> {
    match cache.lookup(root, name) {
        Lookup::Miss(guard) => Ok(guard.found(&answer(ino, S_IFREG | 0o644))?),
        _ => bail!("a name of this tree came twice"),
    }
}

/// Names of nine bytes, in random order of making. The hash multiplies the first eight with the ninth, the length
/// and the key: a tab as the ninth cancels the length, so that without a key the product is nothing, whatever the first
/// eight are. So all names with a tab have the same hash then.
fn nine(names: u64, last: u8) -> Vec<[u8; 9]> {
    let mut made: Vec<[u8; 9]> = (0..names)
        .map(|i| {
            let mut name = [last; 9];
            name[..8].copy_from_slice(format!("{i:08}").as_bytes());
            name
        })
        .collect();
    fastrand::Rng::with_seed(2).shuffle(&mut made);
    made
}

fn hostile(names: u64, rounds: usize) -> Result<()> {
    if !(1..100_000_000).contains(&names) {
        bail!("--names takes a number from 1 to 99999999");
    }
    println!("{names} names; ns of processor a lookup: median (min to max) of {rounds} rounds");
    let mut medians = Vec::new();
    for (kind, last) in [("ordinary", b'x'), ("hostile", b'\t')] {
        let (cache, sb) = evicting()?;
        let root = cache.root(sb).context("a root that was made")?;
        let mut all = nine(names, last);
        for (i, name) in all.iter().enumerate() {
            drop(visit(&cache, &root, name, i as u64 + 2)?);
        }
        fastrand::Rng::with_seed(3).shuffle(&mut all);
        let mut each = Vec::new();
        for _ in 0..rounds.max(1) {
            let began = cpu_time();
            let hits =
                all.iter().filter(|name| matches!(cache.peek(root.id(), *name), Peek::Hit(..))).count();
            each.push((cpu_time() - began) as f64 / names as f64);
            if hits as u64 != names {
                bail!("{hits} of {names} names were found");
            }
        }
        let (mid, min, max) = median(each);
        let counters = cache.counters();
        println!(
            "{kind:>9}  {mid:.1} ({min:.1} to {max:.1}); chains found too long: {}, keys changed: {}",
            counters.long_chains, counters.rekeys
        );
        medians.push(mid);
    }
    println!("hostile to ordinary: {:.2}", medians[1] / medians[0]);
    Ok(())
}

fn pinned(names: u64, shares: &[f64]) -> Result<()> {
    println!("{names} names in the cache, then shrunk as far as it goes; MiB");
    println!("{:>9} {:>10}  {:>9} {:>9} {:>9}", "in use, %", "which", "before", "counted", "resident");
    for share in shares {
        if !(0.0..=100.0).contains(share) {
            bail!("--shares takes per cents");
        }
        for which in ["scattered", "first"] {
            let empty = resident()?;
            let (cache, sb) = evicting()?;
            let root = cache.root(sb).context("a root that was made")?;
            let keep = (names as f64 * share / 100.0).round() as u64;
            let is_kept = |i: u64| match which {
                // One in so many, evenly.
                "scattered" => (i + 1) * keep / names != i * keep / names,
                _ => i < keep,
            };
            let mut held = Vec::new();
            for i in 0..names {
                let inode = visit(&cache, &root, format!("{i:012}").as_bytes(), i + 2)?;
                if is_kept(i) {
                    held.push(inode.into_owned());
                }
            }
            let before = cache.committed();
            cache.shrink_to(0);
            let mib = |bytes: u64| bytes as f64 / f64::from(1 << 20);
            let grown = resident()?.saturating_sub(empty).saturating_sub(size_of_val(&held[..]) as u64);
            println!(
                "{share:>9} {which:>10}  {:>9.1} {:>9.1} {:>9.1}",
                mib(before),
                mib(cache.committed()),
                mib(grown)
            );
            held.into_iter().for_each(|id| drop(cache.adopt(id)));
        }
    }
    Ok(())
}
