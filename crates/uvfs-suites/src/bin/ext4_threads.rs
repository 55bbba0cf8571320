//! `ext4_threads`: what an image's inodes and names cost to look up in this process, by one thread and by several.

use std::hint::black_box;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Barrier;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use clap::Parser;
use uvfs::{Cred, Driver as _, Found, Inode, Vfs, VfsConfig, driver};
use uvfs_drivers::ext4::Ext4;
use uvfs_tests::ext4::tools::{mke2fs, scratch};

/// Looks up and reads what is in an ext4 image from one thread and from several, without a mount, and prints how that scales. It is
/// the driver that is asked, each time: nothing is answered by the cache of names. Each thread has files of its own.
/// `null` is work that shares nothing: what the machine gives. `lookup` finds a name in a directory, and its inode; `read` reads up to 4 KiB
/// of a file by its inode's number.
#[derive(Parser)]
struct Args {
    /// The image; without one, a directory is put into a new one.
    #[arg(long)]
    image: Option<PathBuf>,
    /// What is put into a new image.
    #[arg(long, default_value = "/usr/include")]
    tree: PathBuf,
    /// Threads beside one.
    #[arg(long, default_value_t = 2)]
    threads: usize,
    /// Rounds, each of which measures everything.
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// Milliseconds of each measurement.
    #[arg(long, default_value_t = 300)]
    millis: u64,
}

/// A file that is there.
struct File<'v> {
    dir: Inode<'v>,
    name: Vec<u8>,
    node: Inode<'v>,
    is_reg: bool,
}

/// All files of the image.
fn files(vfs: &Vfs) -> Result<Vec<File<'_>>> {
    let op = vfs.op(&Cred::root());
    let (mut found, mut waiting) = (Vec::new(), vec![vfs.root()]);
    while let Some(dir) = waiting.pop() {
        let mut names = Vec::new();
        vfs.readdir(&op, &dir, 0, &mut |entry| {
            names.push(entry.name.to_vec());
            true
        })?;
        for name in names {
            let Found::Node(node, attr) = vfs.lookup(&op, &dir, &name)? else { continue };
            if attr.is_dir() {
                waiting.push(node.clone());
            }
            found.push(File { dir: dir.clone(), name, node, is_reg: attr.is_reg() });
        }
    }
    Ok(found)
}

/// What a thread does with one of its files.
type Work<'w> = &'w (dyn Fn(usize, u64) + Sync);

/// Operations a second of so many threads together.
fn measure(threads: usize, time: Duration, work: Work<'_>) -> Result<f64> {
    let (all, begin) = (AtomicU64::new(0), Barrier::new(threads));
    let start = Instant::now();
    thread::scope(|scope| {
        let spawned: Vec<_> = (0..threads)
            .map(|thread| {
                let (all, begin) = (&all, &begin);
                scope.spawn(move || {
                    begin.wait();
                    let (start, mut done) = (Instant::now(), 0);
                    while start.elapsed() < time {
                        (0..64).for_each(|step| work(thread, done + step));
                        done += 64;
                    }
                    all.fetch_add(done, Ordering::Relaxed);
                })
            })
            .collect();
        spawned.into_iter().for_each(|thread| drop(thread.join()));
    });
    Ok(all.into_inner() as f64 / start.elapsed().as_secs_f64())
}

fn median(mut all: Vec<f64>) -> f64 {
    all.sort_by(f64::total_cmp);
    all[all.len() / 2]
}

fn image(args: &Args, dir: &Path) -> Result<PathBuf> {
    match &args.image {
        Some(image) => Ok(image.clone()),
        None => {
            let image = dir.join("image");
            mke2fs(&image, &["-t", "ext4"], Some(&args.tree), "1G")?;
            Ok(image)
        }
    }
}

fn run(args: &Args) -> Result<()> {
    let dir = scratch()?;
    let image = image(args, dir.path())?;
    let opened = Ext4::open(&image).with_context(|| image.display().to_string())?;
    let vfs = Vfs::new(VfsConfig::default(), opened.clone())?;
    let op = vfs.op(&Cred::root());
    let files = files(&vfs)?;
    ensure!(files.len() >= 64 * args.threads, "only {} files are in the image", files.len());
    // Neighbours belong to one thread, as if each walked a part of the tree.
    let part = files.len() / args.threads.max(1);
    let of = |thread: usize, step: u64| &files[(thread % args.threads) * part + step as usize % part];
    let null = |thread: usize, step: u64| {
        let mut x = step ^ thread as u64;
        (0..100).for_each(|_| x = black_box(x).wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ x >> 29);
    };
    let lookup = |thread: usize, step: u64| {
        let file = of(thread, step);
        assert!(black_box(opened.lookup(&op, &file.dir, &file.name)).is_ok());
    };
    let read = |thread: usize, step: u64| {
        let (file, mut buffer) = (of(thread, step), [0; 4096]);
        if file.is_reg {
            let open = driver::File { inode: &file.node, handle: 0 };
            assert!(black_box(opened.read(&op, open, 0, &mut buffer)).is_ok());
        }
    };
    let phases: [(&str, Work<'_>); 3] = [("null", &null), ("lookup", &lookup), ("read", &read)];
    let time = Duration::from_millis(args.millis);
    for (name, work) in phases {
        measure(1, time / 4, work)?;
        let (mut one, mut many) = (Vec::new(), Vec::new());
        for _ in 0..args.rounds {
            one.push(measure(1, time, work)?);
            many.push(measure(args.threads, time, work)?);
        }
        let (one, many) = (median(one), median(many));
        println!("{name}: {:.0} ns, {} threads {:.2} times as many", 1e9 / one, args.threads, many / one);
    }
    Ok(())
}

fn main() -> ExitCode {
    match run(&Args::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error:#}");
            ExitCode::FAILURE
        }
    }
}
