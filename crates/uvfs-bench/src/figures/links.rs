//! `uvfs-bench figures links`: the cost of symbolic links in the middle of a path, on a tmpfs in this process.
//!
//! All paths have six components and lead to the same file. The counter of walks that gave up shows whether links were
//! followed without references.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use uvfs::{Bail, Context, Cred, counters};
use uvfs_cache::attr::mode::S_IFREG;

use super::{cpu_time, median, tmpfs};

const PLAIN: &str = "/one/two/three/four/five/file";
/// Names and paths: `b` stands for `two`, and `d` for `four`.
const LINKED: [(&str, &str); 2] =
    [("two relative links", "/one/b/three/d/five/file"), ("two absolute links", "/one/B/three/D/five/file")];
const LENGTH: Duration = Duration::from_millis(250);

/// Measures, in rounds in which each path has one turn.
pub fn run(rounds: usize) -> Result<()> {
    let vfs = tmpfs()?;
    let root = vfs.context(Cred::root());
    for dir in ["/one", "/one/two", "/one/two/three", "/one/two/three/four", "/one/two/three/four/five"] {
        root.mkdir(dir.as_bytes(), 0o755)?;
    }
    root.mknod(PLAIN.as_bytes(), S_IFREG | 0o644, 0)?;
    root.symlink(b"two", b"/one/b")?;
    root.symlink(b"four", b"/one/two/three/d")?;
    root.symlink(b"/one/two", b"/one/B")?;
    root.symlink(b"/one/two/three/four", b"/one/two/three/D")?;
    let user = vfs.context(Cred::user(1000, 1000));
    let paths: Vec<_> = [("no link", PLAIN)].into_iter().chain(LINKED).collect();
    let mut ns = vec![Vec::new(); paths.len()];
    // The first round warms up.
    turn(&user, &paths, &mut ns)?;
    ns.iter_mut().for_each(Vec::clear);
    let before = gave_up();
    (0..rounds).try_for_each(|_| turn(&user, &paths, &mut ns))?;
    let gave_up = gave_up() - before;
    println!("ns of processor a stat of six components: median (min to max), ratio to no link");
    for (at, (name, _)) in paths.iter().enumerate() {
        let ratio = median(ns[at].iter().zip(&ns[0]).map(|(with, without)| with / without).collect()).0;
        let (mid, min, max) = median(ns[at].clone());
        println!("  {name:<20} {mid:.1} ({min:.1} to {max:.1})  {ratio:.2}");
    }
    println!("walks that gave up: {gave_up}");
    Ok(())
}

/// Walks without references of this process that gave up.
fn gave_up() -> u64 {
    let bails = counters();
    Bail::ALL.into_iter().map(|bail| bails.bails().get(bail)).sum()
}

fn turn(user: &Context<'_>, paths: &[(&str, &str)], ns: &mut [Vec<f64>]) -> Result<()> {
    let right = user.stat(PLAIN.as_bytes())?;
    for ((_, path), ns) in paths.iter().zip(ns) {
        ensure!(user.stat(path.as_bytes())? == right, "{path} leads elsewhere");
        let (end, began, mut done) = (Instant::now() + LENGTH, cpu_time(), 0u64);
        while Instant::now() < end {
            for _ in 0..1024 {
                std::hint::black_box(user.stat(path.as_bytes())?);
            }
            done += 1024;
        }
        ns.push((cpu_time() - began) as f64 / done as f64);
    }
    Ok(())
}
