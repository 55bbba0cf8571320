//! A program that publishes its own state as files: `publish DIR`, until DIR is unmounted (umount(8)).
//!
//! ```text
//! $ cat DIR/level              info
//! $ echo debug > DIR/level     (echo loud > DIR/level: Invalid argument)
//! $ cat DIR/ticks              the number of the program's rounds
//! $ ls DIR/jobs                the jobs that run; echo 1 > DIR/jobs/3/cancel ends one, and its directory goes
//! ```

use std::error::Error;
use std::io::Write as _;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::time::Duration;

use uvfs::{Errno, Result, Vfs, VfsConfig};
use uvfs_drivers::kernfs::{Call, Kernfs, KernfsOptions, Meta, Node, read_write};

const LEVELS: [&str; 4] = ["error", "warn", "info", "debug"];

/// A file that everyone may read.
const READ: Meta = Meta::new(0o444);
/// A file that its owner may also write.
const WRITE: Meta = Meta::new(0o644);

/// Appends a line; a `Vec` accepts everything written to it.
fn line(out: &mut Vec<u8>, value: impl std::fmt::Display) -> Result<()> {
    writeln!(out, "{value}").map_err(|_| Errno::IO)
}

/// A level that is read and written by name.
fn publish_level(root: &Node, level: Arc<AtomicUsize>) -> Result<Node> {
    let shown = Arc::clone(&level);
    let show = move |out: &mut Vec<u8>| line(out, LEVELS[shown.load(Relaxed)]);
    let store = move |_: &Call<'_>, text: &[u8]| {
        let known = LEVELS.iter().position(|name| name.as_bytes() == text.trim_ascii());
        level.store(known.ok_or(Errno::INVAL)?, Relaxed);
        Ok(())
    };
    root.add_attr("level", WRITE, read_write(show, store))
}

/// A directory for a job. It is complete before anyone can see it.
fn publish_job(jobs: &Node, number: u64) -> Result<Node> {
    let job = jobs.add_dir(number.to_string(), Meta::new(0o755).hidden())?;
    job.add_attr("name", READ, move |out: &mut Vec<u8>| line(out, format_args!("job {number}")))?;
    // Weak: an attribute that held a node of its own tree would keep the tree for ever.
    let itself = job.downgrade();
    let show = |_: &mut Vec<u8>| Err(Errno::ACCESS);
    let cancel = move |call: &Call<'_>, _: &[u8]| {
        // The removal waits for all calls below the job, and this call is one of them: it must not be waited for.
        call.break_protection();
        if let Some(job) = itself.upgrade() {
            job.remove();
        }
        Ok(())
    };
    job.add_attr("cancel", Meta::new(0o200), read_write(show, cancel))?;
    job.activate()?;
    Ok(job)
}

fn main() -> std::result::Result<(), Box<dyn Error>> {
    let dir = std::env::args_os().nth(1).ok_or("usage: publish DIR")?;
    let tree = Kernfs::new(KernfsOptions { may_block: false, ..KernfsOptions::default() })?;
    let root = tree.root();
    let level = Arc::new(AtomicUsize::new(2));
    publish_level(&root, Arc::clone(&level))?;
    let ticks = Arc::new(AtomicU64::new(0));
    let shown = Arc::clone(&ticks);
    let ticks_file = root.add_attr("ticks", READ, move |out: &mut Vec<u8>| line(out, shown.load(Relaxed)))?;
    let jobs = root.add_dir("jobs", Meta::new(0o755))?;
    for number in 1..=3 {
        publish_job(&jobs, number)?;
    }
    let vfs = Vfs::new(VfsConfig::default(), tree.view(None))?;
    let mounted = uvfs_fuse::mount(vfs, Path::new(&dir), &uvfs_fuse::Options::default())?;
    println!("mounted on {}", mounted.dir().display());
    // The program's own work. Pollers of DIR/ticks are woken each time.
    while !mounted.wait_for(Duration::from_millis(500)) {
        ticks.fetch_add(1, Relaxed);
        ticks_file.notify();
        if level.load(Relaxed) == 3 {
            eprintln!("tick {}", ticks.load(Relaxed));
        }
    }
    Ok(mounted.wait()?)
}
